"""In workers: row groups of `events`, and of the carry, packed into a block for each bucket.

Of a row, only what the check needs goes on, and never a body. Sessions get rows of their own, as
far as their end is not told by the streams they read: the last delivery in a row group is enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from syncline.kernels.delivery_rows import (
    DELIVERED,
    DISCONNECTED,
    DOCUMENT_FLAG,
    FACE_DOCUMENTS,
    FACE_MASK,
    HEAD,
    KEY_BYTES,
    MARKER,
    MESSAGE,
    ROLLED_BACK,
    SESSION_END,
    SESSION_LAST,
    STORE_BYTES,
    STREAM_BYTES,
    Bytes,
    Flags,
    Integers,
    LogRows,
    blocks,
    codes_of,
)
from syncline.pipeline.arrow import batch_of_rows, schema_of
from syncline.pipeline.auditing.groups import (
    CARRIED,
    NEW,
    RowGroup,
    coded_rows,
    numbers,
    read_columns,
)

PACKED: Final = schema_of([pa.field("bucket", pa.int32()), pa.field("block", pa.binary())])
_EVENT_COLUMNS: Final = (
    *("store", "position", "part", "kind", "stream", "seq", "time_ms", "flags"),
    *("event", "session", "first", "detail"),
)
_CARRY_COLUMNS: Final = (
    *("store", "stream", "code", "session", "position", "time_ms"),
    *("first", "last", "detail"),
)
_CODED: Final = ("store", "stream")
_WORDS: Final = STREAM_BYTES // 8


@dataclass(frozen=True, slots=True)
class Packing:
    """What every worker has to know."""

    bucket_count: int
    # By log: where routers started, and from where on a restore took its rows.
    starts: Mapping[bytes, Integers]
    branches: Mapping[bytes, int]

    def pack(self, group: RowGroup) -> Iterator[pa.RecordBatch]:
        """The blocks of a row group."""
        parts = [self._carried(group)] if group.purpose == CARRIED else self._of_log(group)
        for rows in parts:
            found = [(bucket, block) for bucket, block in blocks(rows, self.bucket_count)]
            if found:
                yield batch_of_rows(found, PACKED)

    def _carried(self, group: RowGroup) -> LogRows:
        table = read_columns(group, _CARRY_COLUMNS, coded=_CODED)
        keys, _, _, key = _keys(table)
        code = numbers(table, "code").astype(np.int16)
        detail = numbers(table, "detail")
        return LogRows(
            *(keys, key, code, numbers(table, "position"), numbers(table, "time_ms")),
            *(numbers(table, "session"), numbers(table, "first"), numbers(table, "last")),
            detail,
            np.where(code == HEAD, detail & 1, -1).astype(np.int8),
            is_new=False,
        )

    def _of_log(self, group: RowGroup) -> Iterator[LogRows]:
        table = read_columns(group, _EVENT_COLUMNS, coded=_CODED)
        keys, stores, store, key = _keys(table)
        kind = numbers(table, "kind")
        code = codes_of(kind, numbers(table, "event"))
        flags = numbers(table, "flags", -1)
        is_message = (code == MESSAGE) | (code == MARKER)
        is_document = np.where(
            is_message & (flags >= 0), (flags & DOCUMENT_FLAG) > 0, np.int8(-1)
        ).astype(np.int8)
        rows = LogRows(
            *(keys, key, code),
            numbers(table, "position") + numbers(table, "part"),
            *(numbers(table, "time_ms"), numbers(table, "session"), numbers(table, "first")),
            *(numbers(table, "seq"), numbers(table, "detail"), is_document),
            is_new=True,
        )
        if group.purpose == NEW:
            yield rows
            yield from self._sessions(rows, stores, store)
        gone = self._gone(rows, stores, store, is_message)
        if gone.any():
            yield _taken(rows, np.flatnonzero(gone), np.int16(ROLLED_BACK))

    def _gone(
        self, rows: LogRows, stores: list[bytes], store: Integers, is_message: Flags
    ) -> Flags:
        """Messages that a restored router does not have."""
        found = np.zeros(len(rows.code), np.bool_)
        for number, name in enumerate(stores):
            if name in self.branches:
                found |= (store == number) & (rows.place >= self.branches[name])
        return found & is_message

    def _sessions(self, rows: LogRows, stores: list[bytes], store: Integers) -> Iterator[LogRows]:
        is_end = rows.code == DISCONNECTED
        is_last = rows.code == DELIVERED
        face = rows.session & FACE_MASK
        at = np.flatnonzero((is_end | is_last) & (face != FACE_DOCUMENTS))
        if not len(at):
            return
        ends, session, place = is_end[at], rows.session[at], rows.place[at]
        start = np.full(len(at), -1)
        for number, name in enumerate(stores):
            mine = store[at] == number
            known = self.starts.get(name, np.empty(0, np.int64))
            start[mine] = np.append(-1, known)[np.searchsorted(known, place[mine])]
        # Of each session the last delivery, and every end.
        order = np.lexsort((place, ends, session, start, store[at]))
        names = np.stack((store[at], start, session, ends), axis=1)[order]
        is_newest = np.ones(len(order), np.bool_)
        is_newest[:-1] = (names[1:] != names[:-1]).any(axis=1)
        order = order[is_newest | ends[order]]
        at, ends, session, start = at[order], ends[order], session[order], start[order]
        keys = np.zeros((len(at), KEY_BYTES), np.uint8)
        of_store = np.frombuffer(b"".join(stores), np.uint8).reshape(-1, STORE_BYTES)
        keys[:, :STORE_BYTES] = of_store[store[at]]
        words = np.stack((start, session, np.zeros(len(at), np.int64)), axis=1).astype("<i8")
        keys[:, STORE_BYTES:] = words.view(np.uint8).reshape(-1, STREAM_BYTES)
        streams = rows.keys[np.maximum(rows.key[at], 0), STORE_BYTES:]
        stream = np.ascontiguousarray(streams).view("<i8").reshape(-1, _WORDS).astype(np.int64)
        yield LogRows(
            keys,
            np.arange(len(at)),
            np.where(ends, SESSION_END, SESSION_LAST).astype(np.int16),
            rows.place[at],
            rows.time_ms[at],
            rows.last[at],
            np.where(ends, 0, stream[:, 0]),
            np.where(ends, 0, stream[:, 1]),
            np.where(ends, 0, stream[:, 2]),
            np.full(len(at), -1, np.int8),
            is_new=True,
        )


def _keys(table: Any) -> tuple[Bytes, list[bytes], Integers, Integers]:
    """The keys that there are; the logs; and of each row its log and its key."""
    stores, store = coded_rows(table, "store", STORE_BYTES)
    streams, stream = coded_rows(table, "stream", STREAM_BYTES)
    names = [each.tobytes() for each in stores]
    if len(stores) <= 1 or not len(streams):
        of_store, of_stream = np.zeros(len(streams), np.int64), np.arange(len(streams))
        key = stream
    else:
        pair, found = np.unique(store * len(streams) + stream, return_inverse=True)
        of_store, of_stream = pair // len(streams), pair % len(streams)
        # A row without a stream would be taken for one of the log before.
        key = np.where(stream < 0, -1, found)
    keys = np.empty((len(of_store), KEY_BYTES), np.uint8)
    if len(of_store):
        keys[:, :STORE_BYTES], keys[:, STORE_BYTES:] = stores[of_store], streams[of_stream]
    return keys, names, store, key


def _taken(rows: LogRows, at: npt.NDArray[np.intp], code: np.int16) -> LogRows:
    return LogRows(
        rows.keys,
        rows.key[at],
        np.full(len(at), code),
        rows.place[at],
        rows.time_ms[at],
        rows.session[at],
        rows.first[at],
        rows.last[at],
        rows.detail[at],
        np.full(len(at), -1, np.int8),
        is_new=True,
    )
