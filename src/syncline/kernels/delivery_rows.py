"""The rows of the log that a check of deliveries reads, sorted into kinds and packed.

Four kinds of rows, as columns of 64-bit numbers: what was appended, what was delivered, what was
acknowledged, and all that happens rarely, the *notes*. A row belongs to a *key*: the id of its log
and its stream, 40 bytes.

- The *place* of a row is its position plus its part. A record is longer than it has rows, so that
  orders all rows of a log as they happened, and no two have the same.
- A *block* holds rows of some keys, all of them new or all of them carried over from an earlier
  run. Each column is written with as few bytes as its values need, less their lowest.

    block   u8 is new | u32 key count | keys | u8 hints of each key | 4 x kind
    kind    u32 row count | for each column: i64 lowest, u8 width, row count numbers of that width
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import ClassVar, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Narrow = npt.NDArray[np.unsignedinteger]

STORE_BYTES: Final = 16
STREAM_BYTES: Final = 24
KEY_BYTES: Final = STORE_BYTES + STREAM_BYTES
# Events as the log numbers them.
STARTED, CONNECTED, DISCONNECTED, SUBSCRIBED, UNSUBSCRIBED, DELIVERED = 1, 2, 3, 4, 5, 6
RESENT, ACKNOWLEDGED, EVICTED, DROPPED, REPEATED, EXPIRED = 7, 8, 9, 13, 14, 15
# Records: their kind, above all events.
MESSAGE, MARKER, DELETED, PASSED = 101, 102, 104, 105
# What only a carry has: how far a stream has come; what a reader was given; how far a reader has
# come; what a queue was acknowledged up to; up to where it was given up.
HEAD, COVERED, REACHED, TAKEN, GIVEN_UP = 120, 121, 122, 123, 124
# Of a session, whose key has its number in place of a stream: its end, and its last delivery.
SESSION_END, SESSION_LAST = 130, 131
# A message that a restored router does not have any more.
ROLLED_BACK = 140

KIND_MESSAGE, KIND_MARKER, KIND_DELETE, KIND_PASSED, KIND_EVENTS = 1, 2, 4, 5, 10
# What is known of a key: a record of a document, one of a queue, a reader of documents.
HINT_DOCUMENT, HINT_QUEUE, HINT_READER = 1, 2, 4
FACE_MASK: Final = 0xF
FACE_DOCUMENTS: Final = 1
DOCUMENT_FLAG: Final = 0x80

# Beyond these a number is somebody's mistake; it counts as the nearest that is not.
SEQ_MAX: Final = 1 << 61
TIME_MAX: Final = (1 << 47) - 1
PLACE_MAX: Final = 1 << 61

_HEAD: Final = struct.Struct("<BI")
_COUNT: Final = struct.Struct("<I")
_COLUMN: Final = struct.Struct("<qB")
_WIDTHS: Final = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Columns of one length."""

    def __len__(self) -> int:
        return len(self.columns()[0])

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(each.name for each in fields(cls))

    def columns(self) -> list[Integers]:
        return [getattr(self, name) for name in self.names()]

    @classmethod
    def of_columns(cls, columns: "Sequence[Integers]") -> Self:
        return cls(**dict(zip(cls.names(), columns, strict=True)))

    def taken(self, which: Flags | Integers) -> Self:
        return self.of_columns([column[which] for column in self.columns()])

    @classmethod
    def empty(cls) -> Self:
        return cls.of_columns([np.empty(0, np.int64) for _ in cls.names()])

    @classmethod
    def joined(cls, parts: "Sequence[Self]") -> Self:
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls.of_columns([np.concatenate(column) for column in columns])


@dataclass(frozen=True, slots=True)
class Appends(_Kind):
    """`author` is 0 if not known. Of a queue it is 1 for what was delivered in an earlier run."""

    key: Integers
    place: Integers
    seq: Integers
    time_ms: Integers
    author: Integers
    is_new: Integers


@dataclass(frozen=True, slots=True)
class Deliveries(_Kind):
    key: Integers
    session: Integers
    place: Integers
    time_ms: Integers
    first: Integers
    # How many more than one.
    more: Integers
    own: Integers


@dataclass(frozen=True, slots=True)
class Acknowledgements(_Kind):
    key: Integers
    session: Integers
    place: Integers
    time_ms: Integers
    last: Integers


@dataclass(frozen=True, slots=True)
class Notes(_Kind):
    key: Integers
    code: Integers
    session: Integers
    place: Integers
    time_ms: Integers
    first: Integers
    last: Integers
    detail: Integers
    is_new: Integers


_K = TypeVar("_K", bound=_Kind)
KINDS: Final[tuple[type[_Kind], ...]] = (Appends, Deliveries, Acknowledgements, Notes)


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of some keys. `keys` has 40 bytes a row, `hints` what is known of each."""

    keys: Bytes
    hints: Integers
    appends: Appends
    deliveries: Deliveries
    acknowledgements: Acknowledgements
    notes: Notes


@dataclass(frozen=True, slots=True)
class LogRows:
    """Columns of the table `events`, or of a carry: `code` tells the kinds of rows apart.

    `key` is an index into `keys`; -1 for rows that are about no stream. Nothing in it is trusted.
    """

    keys: Bytes
    key: Integers
    code: npt.NDArray[np.int16]
    place: Integers
    time_ms: Integers
    session: Integers
    first: Integers
    last: Integers
    detail: Integers
    # 1 or 0 where a row says so; -1 where it does not.
    is_document: npt.NDArray[np.int8]
    is_new: bool

    # Rows of other codes are left out.
    NOTED: ClassVar = (
        *(SUBSCRIBED, UNSUBSCRIBED, RESENT, EVICTED, REPEATED, EXPIRED, DELETED, PASSED),
        *(HEAD, COVERED, REACHED, TAKEN, GIVEN_UP, SESSION_END, SESSION_LAST, ROLLED_BACK),
    )


_ACKNOWLEDGEMENTS: Final = 2
_NOTES: Final = 3
_CLASS_OF: Final = np.full(256, 4, np.uint16)
_CLASS_OF[[MESSAGE, MARKER]] = 0
_CLASS_OF[DELIVERED] = 1
_CLASS_OF[ACKNOWLEDGED] = 2
_CLASS_OF[list(LogRows.NOTED)] = 3


def codes_of(kinds: npt.NDArray[np.int8], events: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The event, or 100 and the kind of a record; 0 for what nobody asks for."""
    codes = np.where(kinds == KIND_EVENTS, events, 0).astype(np.int16)
    for kind in (KIND_MESSAGE, KIND_MARKER, KIND_DELETE, KIND_PASSED):
        codes[kinds == kind] = 100 + kind
    return np.where((codes < 0) | (codes > 255), np.int16(0), codes)


def buckets_of(keys: Bytes, bucket_count: int) -> npt.NDArray[np.uint16]:
    """Where each key belongs: the same key always to the same bucket. A power of two of them."""
    words = np.ascontiguousarray(keys).view("<u8").reshape(-1, KEY_BYTES // 8).astype(np.uint64)
    mixed = np.zeros(len(words), np.uint64)
    for place in range(words.shape[1]):
        mixed = (mixed ^ words[:, place]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return ((mixed >> np.uint64(20)) & np.uint64(bucket_count - 1)).astype(np.uint16)


def blocks(rows: LogRows, bucket_count: int) -> Iterator[tuple[int, bytes]]:
    """The rows of each bucket that has any, as a block."""
    if not len(rows.keys):
        return
    kinds = _CLASS_OF[np.clip(rows.code, 0, 255)]
    kinds[rows.key < 0] = 4
    of_key = buckets_of(rows.keys, bucket_count)
    # One sort for both: by bucket, and in it by kind. Stable, and by 16 bits, so one pass each.
    slot = np.where(kinds < 4, of_key[rows.key] * np.uint16(4) + kinds, np.uint16(0xFFFF))
    order = np.argsort(slot, kind="stable")
    edges = np.searchsorted(slot[order], np.arange(bucket_count * 4 + 1))
    # Keys in the order of their buckets, so that those of a block are a stretch.
    key_order = np.argsort(of_key, kind="stable")
    key_edges = np.searchsorted(of_key[key_order], np.arange(bucket_count + 1))
    rank = np.empty(len(key_order), np.int64)
    rank[key_order] = np.arange(len(key_order)) - key_edges[of_key[key_order]]
    hints = _hints(rows)
    of_kind = kinds[order]
    packed = [_packed(rows, order[of_kind == kind], rank, kind) for kind in range(_NOTES + 1)]
    key_rows, key_hints = rows.keys[key_order], hints[key_order]
    starts = [0, 0, 0, 0]
    for bucket in np.flatnonzero(edges[4::4] > edges[:-4:4]).tolist():
        lengths = np.diff(edges[bucket * 4 : bucket * 4 + 5]).tolist()
        first, last = int(key_edges[bucket]), int(key_edges[bucket + 1])
        parts = [
            _HEAD.pack(rows.is_new, last - first),
            key_rows[first:last].tobytes(),
            key_hints[first:last].tobytes(),
        ]
        for kind, length in enumerate(lengths):
            start = starts[kind]
            starts[kind] += length
            parts.append(_COUNT.pack(length))
            if length:
                for low, narrow in packed[kind]:
                    parts.append(_COLUMN.pack(low, narrow.dtype.itemsize))
                    parts.append(narrow[start : start + length].tobytes())
        yield bucket, b"".join(parts)


def _hints(rows: LogRows) -> Bytes:
    hints = np.zeros(len(rows.keys), np.uint8)
    for says, hint in ((1, HINT_DOCUMENT), (0, HINT_QUEUE)):
        hints[rows.key[(rows.is_document == says) & (rows.key >= 0)]] |= np.uint8(hint)
    is_reader = (rows.code == SUBSCRIBED) & (rows.key >= 0)
    is_reader &= (rows.session & FACE_MASK) == FACE_DOCUMENTS
    hints[rows.key[is_reader]] |= np.uint8(HINT_READER)
    return hints


def _packed(
    rows: LogRows, chosen: npt.NDArray[np.intp], rank: Integers, kind: int
) -> list[tuple[int, Narrow]]:
    """In the order of the fields of the kind, but for `is_new`, which the block says."""
    key = narrowed(rank[rows.key[chosen]])
    place = narrowed(_sane(rows.place[chosen], PLACE_MAX))
    time_ms = narrowed(_sane(rows.time_ms[chosen], TIME_MAX))
    detail = rows.detail[chosen] if kind != _ACKNOWLEDGEMENTS else rows.detail[:0]
    if kind == 0:
        seq = narrowed(_sane(rows.last[chosen], SEQ_MAX))
        return [key, place, seq, time_ms, narrowed(detail)]
    session = narrowed(rows.session[chosen])
    if kind == _ACKNOWLEDGEMENTS:
        return [key, session, place, time_ms, narrowed(_sane(rows.last[chosen], SEQ_MAX))]
    first, last = rows.first[chosen], rows.last[chosen]
    if kind == _NOTES:
        code = rows.code[chosen].astype(np.int64)
        # The last delivery of a session has a stream where others have sequences.
        is_plain = code != SESSION_LAST
        first = np.where(is_plain, np.clip(first, 0, SEQ_MAX), first)
        last = np.where(is_plain, np.clip(last, 0, SEQ_MAX), last)
        numbers = [narrowed(each) for each in (first, last, detail)]
        return [key, narrowed(code), session, place, time_ms, *numbers]
    first = _sane(first, SEQ_MAX)
    # First above last: a range of nothing.
    more: Integers = np.maximum(_sane(last, SEQ_MAX) - first, -1)
    return [key, session, place, time_ms, *(narrowed(each) for each in (first, more, detail))]


def _sane(values: Integers, highest: int) -> Integers:
    if not len(values) or (values.min() >= 0 and values.max() <= highest):
        return values
    return np.clip(values, 0, highest)


def narrowed(values: Integers) -> tuple[int, Narrow]:
    """The lowest, and by how much each is above it, in as few bytes as that takes."""
    if not len(values):
        return 0, np.empty(0, _WIDTHS[0])
    low, high = int(values.min()), int(values.max())
    reach = high - low
    for dtype in _WIDTHS[:-1]:
        if reach < 1 << (8 * dtype.itemsize):
            return low, (values - low).astype(dtype)
    # The difference may need all 64 bits: it wraps around, and back when it is added.
    return low, (values.view(np.uint64) - np.uint64(low & 0xFFFF_FFFF_FFFF_FFFF)).astype("<u8")


def joined(parts: Sequence[bytes]) -> Rows:
    """The rows of all blocks of a bucket."""
    read = [_parsed(part) for part in parts]
    all_keys = np.concatenate([keys for _, keys, _, _ in read])
    names = np.ascontiguousarray(all_keys).view(f"V{KEY_BYTES}").reshape(-1)
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    hints = np.zeros(len(first), np.int64)
    np.bitwise_or.at(hints, inverse, np.concatenate([found for _, _, found, _ in read]))
    places = np.cumsum([0, *(len(keys) for _, keys, _, _ in read)])
    mapped = [inverse[start:end] for start, end in pairwise(places.tolist())]

    def of(kind: type[_K], number: int) -> _K:
        pieces: list[_K] = []
        for (is_new, _, _, columns), names_of in zip(read, mapped, strict=True):
            found = columns[number]
            if found and len(found[0]):
                has_flag = "is_new" in kind.names()
                flag = [np.full(len(found[0]), is_new, np.int64)] if has_flag else []
                pieces.append(kind.of_columns([names_of[found[0]], *found[1:], *flag]))
        return kind.joined(pieces)

    return Rows(
        all_keys[first],
        hints,
        of(Appends, 0),
        of(Deliveries, 1),
        of(Acknowledgements, 2),
        of(Notes, _NOTES),
    )


def _parsed(data: bytes) -> tuple[int, Bytes, Integers, list[list[Integers]]]:
    is_new, key_count = _HEAD.unpack_from(data)
    at = _HEAD.size
    keys = np.frombuffer(data, np.uint8, key_count * KEY_BYTES, at).reshape(-1, KEY_BYTES)
    at += key_count * KEY_BYTES
    hints = np.frombuffer(data, np.uint8, key_count, at).astype(np.int64)
    at += key_count
    kinds: list[list[Integers]] = []
    for kind in KINDS:
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        columns: list[Integers] = []
        for _ in range(len(kind.names()) - ("is_new" in kind.names()) if count else 0):
            low, width = _COLUMN.unpack_from(data, at)
            at += _COLUMN.size
            narrow = np.frombuffer(data, f"<u{width}", count, at)
            at += count * width
            if width == 8:
                columns.append((narrow + np.uint64(low & 0xFFFF_FFFF_FFFF_FFFF)).view(np.int64))
            else:
                columns.append(narrow.astype(np.int64) + low)
        kinds.append(columns)
    return is_new, keys, hints, kinds
