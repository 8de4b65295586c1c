"""What the replayed log says of each stream, kept as it was read until somebody asks.

A restart reads a few hundred thousand records, and the first reader waits for all of them. So
replay no more than gathers their headers and orders them by stream, all at once; a `Tail` is made
of them when its stream is first used, or when the store gets round to it. This is what decides how
long a restart takes (bench: restart).

A log that is whole has no gaps: batches follow one another without one, and so do the entries of a
stream. Only where replay found damage are all tails made at once, to report what is missing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.log_records import HEADER, gathered, record_offsets
from syncline.kernels.stream_index import NOT_FOUND, StreamIndex
from syncline.storage.base import Damage
from syncline.storage.log.format import (
    ACK_ROW_BYTES,
    KIND_MASK,
    LENGTH_MASK,
    QUOTA_MASK,
    RECORD_BODY,
    RECORD_HEADER_BYTES,
    SEQUENCE,
    UNREAD_BITS,
    RecordKind,
    parse_cursors,
)
from syncline.storage.log.streams import LENGTH_BITS, Tail
from syncline.values.ids import STREAM_ID_BYTES, StreamId

_WITH_PAYLOAD: Final = [RecordKind.CURSOR, RecordKind.DROP_CURSOR, RecordKind.CURSORS]
_OF_NO_STREAM: Final = [RecordKind.ACKNOWLEDGEMENTS, RecordKind.EVENTS]
# In place of a kind: a row of acknowledgements, which says no more than what is unread.
_ACKNOWLEDGEMENT: Final = 0
_ACK_ROW: Final = np.dtype([("stream", "V24"), ("last_unread", "<u8")])
# The header without its checksum.
_BODY_OFFSET: Final = RECORD_HEADER_BYTES - RECORD_BODY.size
assert _ACK_ROW.itemsize == ACK_ROW_BYTES

Heads = npt.NDArray[Any]
Positions = npt.NDArray[np.int64]


class Tails:
    """Streams of the live log, each until it is popped. First all is taken in, then `finish`."""

    def __init__(
        self, segment_bytes: int, path_of: Callable[[int], str], counted_to: int = 0
    ) -> None:
        """Creations and deletions from position `counted_to` on are counted."""
        self._segment_bytes = segment_bytes
        self._path_of = path_of
        self._counted_to = counted_to
        # Bytes that are being read, their position, and where in them records start.
        self._data: bytes = b""
        self._start = 0
        self._offsets: list[int] = []
        self._heads: list[Heads] = []
        self._positions: list[Positions] = []
        # Of records whose payload matters, by position.
        self._payloads: dict[int, bytes] = {}
        self._index: StreamIndex | None = None
        self._head_bytes = memoryview(b"")
        self._position_of = memoryview(b"")
        # By number of the stream; and the lowest that may be left.
        self._is_popped = bytearray()
        self._lowest = 0
        self._left_count = 0
        self.stream_count_change = 0
        # In all of the log: so many streams may be in the table though they are gone.
        self.deletion_count = 0
        # Who hears of entries that are missing between two others.
        self.report: Callable[[Damage], None] = lambda damage: None

    # ---- Taking in ----

    def take(self, data: bytes, at: int, end: int, start: int) -> bool:
        """Take in the records of `data` from offset `at` to `end`; `start` is its position.

        Whether they end there, as the records of a whole batch do.
        """
        if data is not self._data or start != self._start:
            self._gather()
            self._data, self._start = data, start
        offsets = record_offsets(data, at, end)
        self._offsets += offsets
        if not offsets:
            return at == end
        kind_length, *_ = RECORD_BODY.unpack_from(data, offsets[-1] + _BODY_OFFSET)
        behind: int = offsets[-1] + RECORD_HEADER_BYTES + (kind_length & LENGTH_MASK)
        return behind == end

    def finish(self) -> None:
        """All is taken in."""
        self._gather()
        self._data = b""
        if not any(len(heads) for heads in self._heads):
            return
        heads = np.concatenate(self._heads)
        positions = np.concatenate(self._positions)
        self._heads, self._positions = [], []
        streams = np.ascontiguousarray(heads["stream"]).view(np.uint8)
        self._index = StreamIndex(streams.reshape(-1, STREAM_ID_BYTES))
        self._head_bytes = heads.view(np.uint8).data
        self._position_of = positions.data
        self._left_count = len(self._index)
        self._is_popped = bytearray(self._left_count)

    def _gather(self) -> None:
        """Keep the headers of the records found in `_data`."""
        if not self._offsets:
            return
        offsets = np.array(self._offsets, np.int64)
        self._offsets = []
        heads = gathered(self._data, offsets, HEADER)
        kinds = (heads["kind_length"] >> 24) & KIND_MASK
        if kinds.max() > RecordKind.QUOTA_MARKER:
            self._gather_others(offsets, kinds)
            is_kept = ~np.isin(kinds, _OF_NO_STREAM)
            offsets, heads = offsets[is_kept], heads[is_kept]
        self._heads.append(heads)
        self._positions.append(offsets + self._start)

    def _gather_others(self, offsets: Positions, kinds: npt.NDArray[Any]) -> None:
        """What is no entry of a stream."""
        is_counted = offsets + self._start >= self._counted_to
        self.stream_count_change += int((is_counted & (kinds == RecordKind.CREATE)).sum())
        is_deletion = kinds == RecordKind.DELETE
        self.stream_count_change -= int((is_counted & is_deletion).sum())
        self.deletion_count += int(is_deletion.sum())
        for index in np.flatnonzero(np.isin(kinds, _WITH_PAYLOAD)).tolist():
            at = int(offsets[index])
            self._payloads[self._start + at] = self._payload(at)
        self._gather_acknowledgements(offsets[kinds == RecordKind.ACKNOWLEDGEMENTS])

    def _payload(self, at: int) -> bytes:
        kind_length, *_ = RECORD_BODY.unpack_from(self._data, at + _BODY_OFFSET)
        begin = at + RECORD_HEADER_BYTES
        return self._data[begin : begin + (kind_length & LENGTH_MASK)]

    def _gather_acknowledgements(self, offsets: Positions) -> None:
        """A row for each that the records at these offsets hold."""
        payloads = [self._payload(at) for at in offsets.tolist()]
        counts = [len(payload) // ACK_ROW_BYTES for payload in payloads]
        whole = [
            payload[: count * ACK_ROW_BYTES]
            for payload, count in zip(payloads, counts, strict=True)
        ]
        found = np.frombuffer(b"".join(whole), _ACK_ROW)
        heads = np.zeros(len(found), HEADER)
        heads["kind_length"] = _ACKNOWLEDGEMENT << 24
        heads["stream"] = found["stream"]
        heads["last_unread"] = found["last_unread"]
        self._heads.append(heads)
        self._positions.append(np.repeat(offsets + self._start, counts))

    # ---- Asking ----

    def __len__(self) -> int:
        return self._left_count

    def __iter__(self) -> Iterator[bytes]:
        index = self._index
        if index is None:
            return
        while self._lowest < len(index) and self._is_popped[self._lowest]:
            self._lowest += 1
        for number in range(self._lowest, len(index)):
            if not self._is_popped[number]:
                yield index.stream(number)

    def among(self, streams: Sequence[bytes]) -> set[bytes]:
        """Those of these streams that are left."""
        if self._index is None or not streams:
            return set()
        numbers = self._index.find_many(streams).tolist()
        return {
            stream
            for stream, number in zip(streams, numbers, strict=True)
            if number != NOT_FOUND and not self._is_popped[number]
        }

    def pop(self, stream: bytes) -> Tail | None:
        """What the log says of a stream; None if nothing, or if it was popped before."""
        if self._index is None:
            return None
        number = self._index.find(stream)
        if number == NOT_FOUND or self._is_popped[number]:
            return None
        tail = self._tail_of(self._index, number)
        self._is_popped[number] = True
        self._left_count -= 1
        if not self._left_count:
            # Nothing of the replayed log is needed any longer.
            self._index = None
            self._head_bytes = self._position_of = memoryview(b"")
            self._payloads.clear()
            self.deletion_count = 0
        return tail

    def items(self) -> Iterator[tuple[bytes, Tail]]:
        """Every stream that is left with its tail, which is made for that."""
        index = self._index
        if index is not None:
            for number in range(len(index)):
                if not self._is_popped[number]:
                    yield index.stream(number), self._tail_of(index, number)

    def report_gaps(self, report: Callable[[Damage], None]) -> None:
        """Look at every stream for entries that are missing."""
        heard, self.report = self.report, report
        for _ in self.items():
            pass
        self.report = heard

    def _tail_of(self, index: StreamIndex, number: int) -> Tail:
        stream = index.stream(number)
        tail = Tail()
        # Acknowledgements were gathered apart: rows are in order of the log only by position.
        position_of = self._position_of
        for row in sorted(index.rows(number), key=position_of.__getitem__):
            position = position_of[row]
            kind_length, _, tail.last_unread, time_quota = RECORD_BODY.unpack_from(
                self._head_bytes, row * RECORD_HEADER_BYTES + _BODY_OFFSET
            )
            tail.applied = position
            kind = kind_length >> 24
            if kind == _ACKNOWLEDGEMENT:
                continue
            tail.kind = kind
            tail.quota = time_quota & QUOTA_MASK
            place = position << LENGTH_BITS | kind_length & LENGTH_MASK
            if kind & KIND_MASK <= RecordKind.QUOTA_MARKER:
                self._take_entry(stream, tail, place)
            else:
                _take_other(tail, place, self._payloads.get(position, b""))
        return tail

    def _take_entry(self, stream: bytes, tail: Tail, place: int) -> None:
        seq = tail.last_unread >> UNREAD_BITS
        missing = tail.add_entry(seq, place)
        if missing:
            number, offset = divmod(place >> LENGTH_BITS, self._segment_bytes)
            reason = "entries before this one are missing"
            path = self._path_of(number)
            self.report(Damage(path, offset, reason, StreamId(stream), seq - missing, missing))


def _take_other(tail: Tail, place: int, payload: bytes) -> None:
    position = place >> LENGTH_BITS
    match tail.kind & KIND_MASK:
        case RecordKind.CREATE:
            tail.begin_anew()
            tail.born = position
            tail.is_deleted = False
        case RecordKind.DELETE:
            tail.begin_anew()
            tail.is_deleted = True
        case RecordKind.SNAPSHOT:
            tail.snapshot_place = place
        case RecordKind.CURSOR:
            (seq,) = SEQUENCE.unpack_from(payload)
            if tail.cursors is None:
                tail.cursors = {}
                tail.cursor_position = position
            tail.cursors[payload[SEQUENCE.size :]] = seq
        case RecordKind.DROP_CURSOR:
            if tail.cursors is not None:
                tail.cursors.pop(payload, None)
        case RecordKind.CURSORS:
            tail.cursors = parse_cursors(payload) or {}
            tail.cursor_position = position
        case _:
            pass
