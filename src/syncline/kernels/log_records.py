"""Records of the log as columns (docs/formats/log.md, "Record").

Finding where records start is a walk from length to length, in plain Python: one step for each
record, which costs less than what is done with it afterwards. All else is NumPy over the bytes of a
whole segment. Checksums are not looked at: whoever calls has compared those of the batches, or of
the records, before.

A record gives one row, but for acknowledgements and events: each of their rows is a row here, with
its place among them as `part`. What a kind of record holds is said in one table, `LAYOUTS`; a kind
that is not in it gives a row without a sequence, and its payload as it is.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

HEADER: Final = np.dtype(
    [
        ("crc", "<u4"),
        ("kind_length", "<u4"),
        ("stream", "V24"),
        ("last_unread", "<u8"),
        ("time_quota", "<u8"),
    ]
)
HEADER_BYTES: Final = HEADER.itemsize
_ACK_ROW: Final = np.dtype([("stream", "V24"), ("last_unread", "<u8")])
# As drawn in `values.events`.
_EVENT_ROW: Final = np.dtype(
    [
        ("time_kind", "<u8"),
        ("stream", "V24"),
        ("session", "<u8"),
        ("first", "<u8"),
        ("last", "<u8"),
        ("detail", "<u8"),
    ]
)
_EVENT_SHIFT: Final = np.uint64(8)
_EVENT_MASK: Final = np.uint64(0xFF)
_STREAM: Final = np.dtype("V24")
_SEQUENCE: Final = np.dtype("<u8")
_LENGTH: Final = struct.Struct("<I")
_LENGTH_OFFSET: Final = 4
_LENGTH_MASK: Final = 0xFF_FFFF
_KIND_MASK: Final = 0x1F
_KIND_SHIFT: Final = 24
_UNREAD_SHIFT: Final = np.uint64(24)
_UNREAD_MASK: Final = np.uint64(0xFF_FFFF)
_QUOTA_SHIFT: Final = np.uint64(16)
_QUOTA_MASK: Final = np.uint64(0xFFFF)
ACKNOWLEDGEMENTS: Final = 5
EVENTS: Final = 10

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Voids = npt.NDArray[np.void]


class SequenceOf(Enum):
    """Where the sequence that a record is about stands."""

    # Nowhere: it is about no entry.
    NOTHING = 0
    # The highest one given out: that of the entry itself.
    LAST = 1
    # The first eight bytes of the payload; the body is what follows.
    HEAD = 2
    # The highest one that nobody wants any more: what was given out without what is unread.
    ACKNOWLEDGED = 3
    # The last one that an event tells of.
    EVENT = 4


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    sequence: SequenceOf


# By kind. The names are those on the page of the format.
LAYOUTS: Final = {
    1: Layout("message", SequenceOf.LAST),
    2: Layout("quota marker", SequenceOf.LAST),
    3: Layout("create", SequenceOf.NOTHING),
    4: Layout("delete", SequenceOf.NOTHING),
    ACKNOWLEDGEMENTS: Layout("acknowledgements", SequenceOf.ACKNOWLEDGED),
    6: Layout("snapshot", SequenceOf.HEAD),
    7: Layout("cursor", SequenceOf.HEAD),
    8: Layout("drop cursor", SequenceOf.NOTHING),
    9: Layout("cursors", SequenceOf.NOTHING),
    EVENTS: Layout("events", SequenceOf.EVENT),
}


def _kinds_with(sequence: SequenceOf) -> Flags:
    """For each kind whether its sequence stands there."""
    found = np.zeros(_KIND_MASK + 1, np.bool_)
    for kind, layout in LAYOUTS.items():
        found[kind] = layout.sequence is sequence
    return found


_HAS_NO_SEQUENCE: Final = ~(
    _kinds_with(SequenceOf.LAST)
    | _kinds_with(SequenceOf.HEAD)
    | _kinds_with(SequenceOf.ACKNOWLEDGED)
    | _kinds_with(SequenceOf.EVENT)
)
_HAS_HEAD: Final = _kinds_with(SequenceOf.HEAD)
_IS_ACKNOWLEDGED: Final = _kinds_with(SequenceOf.ACKNOWLEDGED)
# By kind, the bytes of a row in the payload; 0: the record is one row itself.
_ROW_BYTES: Final = np.zeros(_KIND_MASK + 1, np.int64)
_ROW_BYTES[ACKNOWLEDGEMENTS] = _ACK_ROW.itemsize
_ROW_BYTES[EVENTS] = _EVENT_ROW.itemsize


class RecordColumns:
    """One array for each field, a row for each record, acknowledgement or event, in order.

    Each is made when it is first asked for: who counts rows by kind pays for nothing else.
    """

    def __init__(
        self,
        data: bytes,
        segment_start: int,
        offsets: Integers,
        heads: npt.NDArray[Any],
        which: Integers | None,
        parts: Integers,
    ) -> None:
        self._data = data
        self._segment_start = segment_start
        # For each record where it starts, and its header.
        self._offsets = offsets
        self._heads = heads
        # For each row the record that it is in; None: each record is one row.
        self._which = which
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def data(self) -> bytes:
        """The segment that bodies stand in."""
        return self._data

    def taken(self, rows: Flags) -> "RecordColumns":
        """Some of the rows."""
        which = np.arange(len(self._parts)) if self._which is None else self._which
        return RecordColumns(
            self._data,
            self._segment_start,
            self._offsets,
            self._heads,
            which[rows],
            self._parts[rows],
        )

    @cached_property
    def positions(self) -> Integers:
        return self._starts + self._segment_start

    @cached_property
    def parts(self) -> npt.NDArray[np.int32]:
        return self._parts.astype(np.int32)

    @cached_property
    def kinds(self) -> npt.NDArray[np.int8]:
        return (self._kind_bytes & _KIND_MASK).astype(np.int8)

    @cached_property
    def flags(self) -> npt.NDArray[np.int16]:
        return (self._kind_bytes & ~_KIND_MASK).astype(np.int16)

    @cached_property
    def streams(self) -> Voids:
        """24 bytes each. An event may be about none."""
        found: Voids = self._of_rows(self._heads["stream"]).copy()
        if self._has_acknowledgements:
            found[self._is_acknowledgement] = self._acknowledged["stream"]
        if self._has_events:
            found[self.is_event] = self._told["stream"]
        return found

    @cached_property
    def has_stream(self) -> Flags:
        found = np.ones(len(self), np.bool_)
        if self._has_events:
            words = np.ascontiguousarray(self._told["stream"]).view("<u8").reshape(-1, 3)
            found[self.is_event] = words.any(axis=1)
        return found

    @cached_property
    def sequences(self) -> Integers:
        """0 where there is none."""
        found = self.last.copy()
        acknowledged = _IS_ACKNOWLEDGED[self.kinds]
        found[acknowledged] -= self.unread[acknowledged]
        heads = gathered(self._data, self._payloads[self._has_head], _SEQUENCE)
        found[self._has_head] = heads.astype(np.int64)
        if self._has_events:
            found[self.is_event] = self._told["last"].astype(np.int64)
        found[~self.has_sequence] = 0
        return found

    @cached_property
    def has_sequence(self) -> Flags:
        # The writer never leaves a head out; a length is not trusted all the same.
        needs_head: Flags = _HAS_HEAD[self.kinds]
        found: Flags = ~_HAS_NO_SEQUENCE[self.kinds] & (self._has_head | ~needs_head)
        return found

    @cached_property
    def last(self) -> Integers:
        return (self._last_unread >> _UNREAD_SHIFT).astype(np.int64)

    @cached_property
    def unread(self) -> npt.NDArray[np.int32]:
        return (self._last_unread & _UNREAD_MASK).astype(np.int32)

    @cached_property
    def times_ms(self) -> Integers:
        found = (self._of_rows(self._heads["time_quota"]) >> _QUOTA_SHIFT).astype(np.int64)
        if self._has_events:
            found[self.is_event] = (self._told["time_kind"] >> _EVENT_SHIFT).astype(np.int64)
        return found

    @cached_property
    def quotas(self) -> npt.NDArray[np.int32]:
        return (self._of_rows(self._heads["time_quota"]) & _QUOTA_MASK).astype(np.int32)

    # Of events alone; of an event, what the log says of streams is not known.

    @cached_property
    def is_event(self) -> Flags:
        found: Flags = self.kinds == EVENTS
        return found

    @cached_property
    def events(self) -> npt.NDArray[np.int16]:
        return _spread(self.is_event, self._told["time_kind"] & _EVENT_MASK).astype(np.int16)

    @cached_property
    def sessions(self) -> Integers:
        return _spread(self.is_event, self._told["session"])

    @cached_property
    def firsts(self) -> Integers:
        return _spread(self.is_event, self._told["first"])

    @cached_property
    def details(self) -> Integers:
        return _spread(self.is_event, self._told["detail"])

    # Where the body stands in the segment. Rows of acknowledgements and events have none.

    @cached_property
    def body_starts(self) -> Integers:
        return self._payloads + self._heads_skipped

    @cached_property
    def body_lengths(self) -> Integers:
        return self._lengths - self._heads_skipped

    # What several of them need.

    def _of_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """From a value for each record to one for each row."""
        return values if self._which is None else values[self._which]

    @cached_property
    def _kind_bytes(self) -> npt.NDArray[np.int16]:
        return (self._of_rows(self._heads["kind_length"]) >> _KIND_SHIFT).astype(np.int16)

    @cached_property
    def _starts(self) -> Integers:
        return self._of_rows(self._offsets)

    @cached_property
    def _payloads(self) -> Integers:
        return self._starts + HEADER_BYTES

    @cached_property
    def _lengths(self) -> Integers:
        found = (self._of_rows(self._heads["kind_length"]) & _LENGTH_MASK).astype(np.int64)
        if self._has_acknowledgements or self._has_events:
            found[_ROW_BYTES[self.kinds] > 0] = 0
        return found

    @cached_property
    def _has_head(self) -> Flags:
        found: Flags = _HAS_HEAD[self.kinds] & (self._lengths >= _SEQUENCE.itemsize)
        return found

    @cached_property
    def _heads_skipped(self) -> Integers:
        return np.where(self._has_head, _SEQUENCE.itemsize, 0)

    @cached_property
    def _last_unread(self) -> npt.NDArray[np.uint64]:
        found: npt.NDArray[np.uint64] = self._of_rows(self._heads["last_unread"]).copy()
        if self._has_acknowledgements:
            found[self._is_acknowledgement] = self._acknowledged["last_unread"]
        return found

    @cached_property
    def _is_acknowledgement(self) -> Flags:
        found: Flags = self.kinds == ACKNOWLEDGEMENTS
        return found

    @cached_property
    def _has_acknowledgements(self) -> bool:
        return bool(self._is_acknowledgement.any())

    @cached_property
    def _acknowledged(self) -> npt.NDArray[Any]:
        return self._inner(self._is_acknowledgement, _ACK_ROW)

    @cached_property
    def _has_events(self) -> bool:
        return bool(self.is_event.any())

    @cached_property
    def _told(self) -> npt.NDArray[Any]:
        return self._inner(self.is_event, _EVENT_ROW)

    def _inner(self, rows: Flags, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """What stands in the records of these rows, at their parts."""
        places = self._payloads[rows] + self._parts[rows] * dtype.itemsize
        return gathered(self._data, places, dtype)


def record_offsets(data: bytes, at: int, end: int) -> list[int]:
    """Where records start from `at` to `end`, up to the first that does not fit."""
    offsets: list[int] = []
    unpack = _LENGTH.unpack_from
    add = offsets.append
    last = end - HEADER_BYTES
    # A step for each record of a log: nothing is done in it that can be done afterwards.
    while at <= last:
        add(at)
        at += HEADER_BYTES + (unpack(data, at + _LENGTH_OFFSET)[0] & _LENGTH_MASK)
    if at > end:
        offsets.pop()
    return offsets


def columns(data: bytes, segment_start: int, offsets: Integers) -> RecordColumns:
    """The fields of the records at `offsets`, ascending, each of which ends inside of `data`."""
    heads = gathered(data, offsets, HEADER)
    kind_lengths = heads["kind_length"]
    row_bytes = _ROW_BYTES[(kind_lengths >> _KIND_SHIFT) & _KIND_MASK]
    which, parts = None, np.zeros(len(offsets), np.int64)
    if row_bytes.any():
        # From one row for each record to one for each row in it.
        lengths = (kind_lengths & _LENGTH_MASK).astype(np.int64)
        row_counts = np.where(row_bytes > 0, lengths // np.maximum(row_bytes, 1), 1)
        which = np.repeat(np.arange(len(offsets)), row_counts)
        first_rows = np.cumsum(row_counts) - row_counts
        parts = np.arange(len(which)) - first_rows[which]
    return RecordColumns(data, segment_start, offsets, heads, which, parts)


def _spread(where: Flags, values: npt.NDArray[np.uint64]) -> Integers:
    """The values where they belong, and 0 elsewhere."""
    found = np.zeros(len(where), np.int64)
    found[where] = values.astype(np.int64)
    return found


def gathered(data: bytes, offsets: Integers, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """What stands at each of `offsets`, as items of `dtype`; each must end inside of `data`."""
    size = dtype.itemsize
    if not len(offsets):
        return np.empty(0, dtype)
    # A window that begins at every byte: taking some of them copies each in one piece.
    windows: Voids = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    return windows[offsets].view(dtype)


def joined(data: Bytes, starts: Integers, lengths: Integers) -> Bytes:
    """The stretches one after another, as the data buffer of an Arrow column.

    If they ascend and do not overlap, as in a segment, one boolean mask over the bytes drops what
    is between them; else they are copied one by one.
    """
    if not len(starts):
        return np.empty(0, np.uint8)
    ends = starts + lengths
    gaps = starts.copy()
    gaps[1:] -= ends[:-1]
    if (gaps < 0).any():
        pieces = zip(starts.tolist(), ends.tolist(), strict=True)
        return np.concatenate([data[start:end] for start, end in pieces])
    first = int(starts[0])
    gaps[0] = 0
    counts = np.empty(2 * len(starts), np.int64)
    counts[0::2], counts[1::2] = gaps, lengths
    pattern = np.tile(np.array([False, True]), len(starts))
    mask = np.repeat(pattern, counts)
    kept: Bytes = data[first : first + len(mask)][mask]
    return kept
