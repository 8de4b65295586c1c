"""What the replayed log says of each stream, kept as it was read until somebody asks.

A restart reads a few hundred thousand records, and the first reader waits for all of them. So
replay no more than sorts the headers by stream; a `Tail` is made of them when its stream is first
used, or when the store gets round to it. This is what decides how long a restart takes (bench:
restart).

A log that is whole has no gaps: batches follow one another without one, and so do the entries of a
stream. Only where replay found damage are all tails made at once, to report what is missing.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from syncline.storage.base import Damage
from syncline.storage.log.format import (
    ACK_ROW,
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
from syncline.values.ids import StreamId

# Of a record header: kind with length, and the stream.
_HEAD: Final = struct.Struct("<4xI24s")
_KIND_BITS: Final = KIND_MASK << 24
_ENTRIES_END: Final = (RecordKind.QUOTA_MARKER + 1) << 24
# The header without its checksum.
_BODY_OFFSET: Final = RECORD_HEADER_BYTES - RECORD_BODY.size
_WITH_PAYLOAD: Final = (RecordKind.CURSOR, RecordKind.DROP_CURSOR, RecordKind.CURSORS)

# Position and header of each record of a stream, one after the other; in place of a header, the
# number of an acknowledgement. Flat: a pair for each record would be another object for each.
_Taken = list[int | bytes]


class Tails:
    """Streams of the live log, each until it is popped."""

    def __init__(self, segment_bytes: int, path_of: Callable[[int], str]) -> None:
        self._segment_bytes = segment_bytes
        self._path_of = path_of
        self._taken: dict[bytes, _Taken] = {}
        # Streams with a record of a cursor: these are needed in memory at once.
        self.with_cursors: dict[bytes, None] = {}
        # Who hears of entries that are missing between two others.
        self.report: Callable[[Damage], None] = lambda damage: None

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._taken)

    def __contains__(self, stream: object) -> bool:
        return stream in self._taken

    def take(self, data: bytes, at: int, end: int, start: int) -> tuple[bool, int, int]:
        """Take in the records of `data` from offset `at` to `end`; `start` is its position.

        Whether they end there, as the records of a whole batch do; and how many streams they create
        and delete. Spelled out rather than composed: it runs for each record (bench: restart).
        """
        taken = self._taken
        known_records = taken.get
        unpack = _HEAD.unpack_from
        last = end - RECORD_HEADER_BYTES
        created_count = deleted_count = 0
        while at <= last:
            kind_length, stream = unpack(data, at)
            behind = at + RECORD_HEADER_BYTES + (kind_length & LENGTH_MASK)
            if behind > end:
                break
            kind = kind_length & _KIND_BITS
            body_end = at + RECORD_HEADER_BYTES
            if kind >= _ENTRIES_END:
                record_kind = kind >> 24
                if record_kind == RecordKind.EVENTS:
                    at = behind
                    continue
                if record_kind == RecordKind.ACKNOWLEDGEMENTS:
                    self._take_acknowledgements(data[body_end:behind], start + at)
                    at = behind
                    continue
                created_count += record_kind == RecordKind.CREATE
                deleted_count += record_kind == RecordKind.DELETE
                if record_kind in _WITH_PAYLOAD:
                    self.with_cursors[stream] = None
                    body_end = behind
            known = known_records(stream)
            if known is None:
                taken[stream] = [start + at, data[at + _BODY_OFFSET : body_end]]
            else:
                known.append(start + at)
                known.append(data[at + _BODY_OFFSET : body_end])
            at = behind
        return at == end, created_count, deleted_count

    def pop(self, stream: bytes) -> Tail | None:
        """What the log says of a stream; None if nothing, or if it was popped before."""
        taken = self._taken.pop(stream, None)
        return None if taken is None else self._tail_of(stream, taken)

    def items(self) -> Iterator[tuple[bytes, Tail]]:
        """Every stream with its tail, which is made for that."""
        for stream, taken in self._taken.items():
            yield stream, self._tail_of(stream, taken)

    def report_gaps(self, report: Callable[[Damage], None]) -> None:
        """Look at every stream for entries that are missing."""
        heard, self.report = self.report, report
        for _ in self.items():
            pass
        self.report = heard

    def _take_acknowledgements(self, rows: bytes, position: int) -> None:
        whole = len(rows) - len(rows) % ACK_ROW_BYTES
        for stream, last_unread in ACK_ROW.iter_unpack(rows[:whole]):
            self._taken.setdefault(stream, []).extend((position, last_unread))

    def _tail_of(self, stream: bytes, taken: _Taken) -> Tail:
        tail = Tail()
        parts = iter(taken)
        for position, image in zip(parts, parts, strict=True):
            assert isinstance(position, int)
            tail.applied = position
            if isinstance(image, int):
                tail.last_unread = image
                continue
            kind_length, _, tail.last_unread, time_quota = RECORD_BODY.unpack_from(image)
            tail.kind = kind_length >> 24
            tail.quota = time_quota & QUOTA_MASK
            place = position << LENGTH_BITS | kind_length & LENGTH_MASK
            if tail.kind & KIND_MASK <= RecordKind.QUOTA_MARKER:
                self._take_entry(stream, tail, place)
            else:
                _take_other(tail, place, image[RECORD_BODY.size :])
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
