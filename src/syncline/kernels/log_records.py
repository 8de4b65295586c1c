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


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """One array for each field, a row for each record or acknowledgement, in order."""

    positions: Integers
    parts: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int8]
    flags: npt.NDArray[np.int16]
    # 24 bytes each. An event may be about none.
    streams: Voids
    has_stream: Flags
    sequences: Integers
    has_sequence: Flags
    last: Integers
    unread: npt.NDArray[np.int32]
    times_ms: Integers
    quotas: npt.NDArray[np.int32]
    # Of events alone; of an event, what the log says of streams is not known.
    is_event: Flags
    events: npt.NDArray[np.int16]
    sessions: Integers
    firsts: Integers
    details: Integers
    # Where the body stands in the segment. Rows of acknowledgements and events have none.
    body_starts: Integers
    body_lengths: Integers

    def __len__(self) -> int:
        return len(self.positions)

    def taken(self, which: Flags) -> "RecordColumns":
        """Some of the rows."""
        return RecordColumns(*(getattr(self, name)[which] for name in self.__slots__))


def record_offsets(data: bytes, at: int, end: int) -> list[int]:
    """Where records start from `at` to `end`, up to the first that does not fit."""
    offsets: list[int] = []
    unpack = _LENGTH.unpack_from
    add = offsets.append
    last = end - HEADER_BYTES
    while at <= last:
        (kind_length,) = unpack(data, at + _LENGTH_OFFSET)
        behind = at + HEADER_BYTES + (kind_length & _LENGTH_MASK)
        if behind > end:
            break
        add(at)
        at = behind
    return offsets


def columns(data: bytes, segment_start: int, offsets: Integers) -> RecordColumns:
    """The fields of the records at `offsets`, ascending, each of which ends inside of `data`."""
    heads = gathered(data, offsets, HEADER)
    lengths = (heads["kind_length"] & _LENGTH_MASK).astype(np.int64)
    payloads = offsets + HEADER_BYTES
    kind_bytes = (heads["kind_length"] >> _KIND_SHIFT).astype(np.int16)
    kinds = (kind_bytes & _KIND_MASK).astype(np.int8)
    streams, last_unread = heads["stream"], heads["last_unread"].astype(np.uint64)

    row_bytes = _ROW_BYTES[kinds]
    row_counts = np.where(row_bytes > 0, lengths // np.maximum(row_bytes, 1), 1)
    parts = np.zeros(len(offsets), np.int64)
    if row_bytes.any():
        # From one row for each record to one for each row in it.
        which = np.repeat(np.arange(len(offsets)), row_counts)
        first_rows = np.cumsum(row_counts) - row_counts
        parts = np.arange(len(which)) - first_rows[which]
        offsets, payloads, lengths = offsets[which], payloads[which], lengths[which]
        heads, kinds, kind_bytes = heads[which], kinds[which], kind_bytes[which]
        streams, last_unread, row_bytes = streams[which], last_unread[which], row_bytes[which]
        is_acks = kinds == ACKNOWLEDGEMENTS
        rows = gathered(data, payloads[is_acks] + parts[is_acks] * _ACK_ROW.itemsize, _ACK_ROW)
        streams[is_acks], last_unread[is_acks] = rows["stream"], rows["last_unread"]
        lengths = np.where(row_bytes > 0, 0, lengths)
    is_event = kinds == EVENTS
    told = gathered(data, payloads[is_event] + parts[is_event] * _EVENT_ROW.itemsize, _EVENT_ROW)
    has_stream = np.ones(len(offsets), np.bool_)
    if len(told):
        streams[is_event] = told["stream"]
        has_stream[is_event] = (
            np.ascontiguousarray(told["stream"]).view(np.uint8).reshape(-1, 24).any(axis=1)
        )

    last = (last_unread >> _UNREAD_SHIFT).astype(np.int64)
    unread = (last_unread & _UNREAD_MASK).astype(np.int32)
    sequences, has_sequence = last.copy(), ~_HAS_NO_SEQUENCE[kinds]
    acknowledged = _IS_ACKNOWLEDGED[kinds]
    sequences[acknowledged] -= unread[acknowledged]
    has_head = _HAS_HEAD[kinds] & (lengths >= _SEQUENCE.itemsize)
    sequences[has_head] = gathered(data, payloads[has_head], _SEQUENCE).astype(np.int64)
    sequences[is_event] = told["last"].astype(np.int64)
    # The writer never leaves a head out; a length is not trusted all the same.
    has_sequence &= has_head | ~_HAS_HEAD[kinds]
    sequences[~has_sequence] = 0
    heads_skipped = np.where(has_head, _SEQUENCE.itemsize, 0)
    time_quota = heads["time_quota"].astype(np.uint64)
    times_ms = (time_quota >> _QUOTA_SHIFT).astype(np.int64)
    times_ms[is_event] = (told["time_kind"] >> _EVENT_SHIFT).astype(np.int64)
    return RecordColumns(
        offsets + segment_start,
        parts.astype(np.int32),
        kinds,
        (kind_bytes & ~_KIND_MASK).astype(np.int16),
        streams,
        has_stream,
        sequences,
        has_sequence,
        last,
        unread,
        times_ms,
        (time_quota & _QUOTA_MASK).astype(np.int32),
        is_event,
        _spread(is_event, told["time_kind"] & _EVENT_MASK).astype(np.int16),
        _spread(is_event, told["session"]),
        _spread(is_event, told["first"]),
        _spread(is_event, told["detail"]),
        payloads + heads_skipped,
        lengths - heads_skipped,
    )


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
