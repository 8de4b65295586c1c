"""The newest snapshot of a document, or the newest that can still be read.

A document without its snapshot is not an empty document. So a snapshot that fails its checksum is
never passed over in silence: an older one stands in for it if there is one left, in a segment or a
run, and the damage says which entries lie between the two; else the caller gets an error.
"""

from collections.abc import Callable, Iterator

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Snapshot
from syncline.storage.log.format import IS_DOCUMENT, KIND_MASK, SEQUENCE, RecordKind
from syncline.storage.log.reading import read_around
from syncline.storage.log.runset import RunSet
from syncline.storage.log.scan import DamagedStretch, WholeBatch, batches, records_of
from syncline.storage.log.segments import Segments
from syncline.storage.log.streams import LENGTH_BITS, OpenStream
from syncline.values.ids import StreamId


class Snapshots:
    """Looks them up. `report` hears of damage."""

    def __init__(self, segments: Segments, runs: RunSet, report: Callable[[Damage], None]) -> None:
        self._segments = segments
        self._runs = runs
        self._report = report
        # Places that fail and have nothing to stand in for them: looking again takes long.
        self._lost: set[int] = set()
        # Streams whose snapshot was looked for everywhere, with the runs that there were.
        self._missing: dict[tuple[bytes, int], frozenset[str]] = {}

    def newest(self, opened: OpenStream, durable_end: int) -> Snapshot | None:
        """Of a stream that has one; None if that is not durable yet. Raises CorruptionError."""
        place = opened.durable_snapshot_place(durable_end)
        if not place:
            found = self._runs.snapshot(opened)
            is_staged = bool(opened.snapshot_places)
            return found if is_staged or _reaches(opened, found) else self._missed(opened, found)
        path, offset = self._where(place)
        if place in self._lost:
            raise self._error(opened, path, offset)
        found = self._read(place)
        return found if found is not None else self._older(opened, place)

    def _missed(self, opened: OpenStream, found: Snapshot | None) -> Snapshot:
        """What a damaged key has hidden, or `found` if there is nothing newer.

        Whoever truncates beyond its snapshot comes here without any damage.
        """
        runs = frozenset(self._runs.names)
        key = opened.stream, opened.born
        if self._missing.get(key) != runs:
            found = self._runs.snapshot_anywhere(opened)
        if found is None or not _reaches(opened, found):
            self._missing[key] = runs
        if found is None:
            folder = self._runs.folder
            reason = "the snapshot is in no run any more"
            self._report(Damage(folder, 0, reason, StreamId(opened.stream)))
            raise self._error(opened, folder, 0)
        return found

    def _older(self, opened: OpenStream, damaged: int) -> Snapshot:
        """What stands in for the one at place `damaged`."""
        path, offset = self._where(damaged)
        stream = StreamId(opened.stream)
        reason = "a snapshot fails its checksum"
        staged = tuple(place for place in opened.snapshot_places if place > damaged)
        for place in sorted(self._places_before(opened, damaged), reverse=True):
            found = self._read(place)
            if found is not None:
                opened.snapshot_places = (place, *staged)
                break
        else:
            found = self._runs.snapshot(opened)
            if found is None:
                self._lost.add(damaged)
                self._report(Damage(path, offset, reason, stream))
                raise self._error(opened, path, offset)
            opened.snapshot_places = staged
        if not staged:
            opened.snapshot_seq = found.up_to_seq
        lost_count = max(0, opened.first - 1 - found.up_to_seq)
        first_lost = found.up_to_seq + 1 if lost_count else None
        self._report(Damage(path, offset, reason, stream, first_lost, lost_count))
        return found

    def _places_before(self, opened: OpenStream, place: int) -> Iterator[int]:
        """Places of older snapshots of the stream in the live log. Reads all of it."""
        start = place >> LENGTH_BITS
        for number in self._segments.numbers:
            begin = number * self._segments.segment_bytes
            if begin >= start:
                break
            file = self._segments.file_for(begin, "")
            data = read_around(file, 0, self._segments.segment_bytes)
            for part in batches(data, begin, None, tag=self._segments.tag):
                match part:
                    case WholeBatch():
                        records = records_of(data, begin, part)
                    case DamagedStretch():
                        records = part.records
                    case _:
                        continue
                for position, kind, length, stream, *_ in records:
                    is_snapshot = kind & KIND_MASK == RecordKind.SNAPSHOT
                    is_older = opened.born <= position < start
                    if is_snapshot and is_older and stream == opened.stream:
                        yield position << LENGTH_BITS | length

    def _read(self, place: int) -> Snapshot | None:
        record = self._segments.read(place)
        if record is None or len(record.payload) < SEQUENCE.size:
            return None
        (up_to_seq,) = SEQUENCE.unpack_from(record.payload)
        return Snapshot(up_to_seq, record.time_ms, record.payload[SEQUENCE.size :])

    def _where(self, place: int) -> tuple[str, int]:
        number, offset = divmod(place >> LENGTH_BITS, self._segments.segment_bytes)
        return self._segments.path(number), offset

    def _error(self, opened: OpenStream, path: str, offset: int) -> CorruptionError:
        document = StreamId(opened.stream)
        reason = f"the snapshot of document {document} cannot be read, and there is no older one"
        return CorruptionError(path, offset, reason)


def _reaches(opened: OpenStream, snapshot: Snapshot | None) -> bool:
    """Whether there is one, and nothing was let go of that it ought to cover."""
    if snapshot is None:
        return False
    # A queue lets go of what was acknowledged, whatever its snapshot covers.
    return not opened.flags & IS_DOCUMENT or snapshot.up_to_seq >= opened.first - 1
