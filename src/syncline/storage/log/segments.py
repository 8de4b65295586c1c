"""The segment files of the log: where a position is, spare files for the next one, reading records.

A position is segment number x segment bytes + offset. Numbers start at 1 and never repeat; a sealed
file is renamed to a spare and later to the next number, unless it became a run. So its blocks stay
allocated, and a full disk meets the preparation of a segment, never the middle of a batch.
"""

from bisect import bisect_right
from typing import Final

from syncline.storage.base import Entry, EntryKind
from syncline.storage.files import File, Files
from syncline.storage.log.format import (
    KIND_MASK,
    QUOTA_BITS,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    UNREAD_BITS,
    Record,
    RecordKind,
    checksum_seed,
    crc32c_extend,
    parse_record,
)
from syncline.storage.log.preparing import reserve_zeros, write_zeros
from syncline.storage.log.reading import read_around
from syncline.storage.log.recent import RecentLog
from syncline.storage.log.streams import LENGTH_BITS, LENGTH_MASK

_unpack_header = RECORD_HEADER.unpack_from
# Plain numbers: a member of an enumeration costs more to compare.
_MESSAGE: Final = int(RecordKind.MESSAGE)
_QUOTA_MARKER: Final = int(RecordKind.QUOTA_MARKER)
# What is made ready at once for a reader who lags behind: others do so at the same place.
_EXPECTED_BITS: Final = 20


class Segments:
    """The live segments of an open store."""

    def __init__(self, files: Files, folder: str, segment_bytes: int, epoch: int, tag: int) -> None:
        self._files = files
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.epoch = epoch
        self.tag = tag
        self._open: dict[int, File] = {}
        self.recent = RecentLog()
        # Mebibytes of the log that a reader who lags behind has asked for.
        self._expected: set[int] = set()
        # Paths of prepared files; those sealed last, not yet made spares.
        self.spares: list[str] = []
        self.retired: list[str] = []
        # From which position on records carry which epoch, ascending.
        self._epoch_starts: list[int] = []
        self._epochs: list[int] = []

    def path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.wal"

    def paths(self, numbers: list[int]) -> list[str]:
        return [self.path(number) for number in numbers]

    @property
    def numbers(self) -> list[int]:
        return sorted(self._open)

    def is_open(self, number: int) -> bool:
        return number in self._open

    def adopt(self, number: int, file: File) -> None:
        self._open[number] = file

    def give_up(self, number: int) -> None:
        """Nothing was written to this segment: it becomes a spare.

        Under another name at once: its number is used again by the segment that comes next.
        """
        self._rename(number, f"{self.folder}/spare-{self.epoch}-unused-{number}.wal")

    def set_aside(self, number: int) -> str:
        """It cannot be read as part of the log: keep it under a name that nobody uses."""
        path = f"{self.folder}/unreached-{self.epoch}-{number}.bin"
        self._rename(number, path)
        return path

    def _rename(self, number: int, path: str) -> None:
        self._open.pop(number).close()
        self._files.rename(self.path(number), path)

    def note_epoch(self, position: int, epoch: int) -> None:
        """Records from `position` on carry `epoch`."""
        if not self._epochs or self._epochs[-1] != epoch:
            self._epoch_starts.append(position)
            self._epochs.append(epoch)

    def file_for(self, position: int, spare_path: str) -> File:
        """The file to write at `position`, made from a spare if its segment is new.

        Called by the thread that writes batches, one at a time.
        """
        number = position // self.segment_bytes
        file = self._open.get(number)
        if file is None:
            path = self.path(number)
            self._files.rename(spare_path, path)
            self._files.sync_folder(self.folder)
            file = self._files.open(path)
            if file.size() > self.segment_bytes:
                # It was a run, or was about to become one.
                file.truncate(self.segment_bytes)
            self._open[number] = file
        return file

    def read_entry(self, place: int, stream: bytes, seq: int) -> Entry | None:
        """The entry at a place, or None if its record fails its checksum or is another one.

        Spelled out rather than composed: it runs once for each delivery (bench: log).
        """
        position = place >> LENGTH_BITS
        length = place & LENGTH_MASK
        end = RECORD_HEADER_BYTES + length
        data = self.recent.find(position, end)
        # What was kept of the log is as it was made: only the device's copy has to be checked.
        is_checked = data is not None
        if data is None:
            data = self._read_bytes(position, end)
            if len(data) != end:
                return None
        crc, kind_length, found, last_unread, time_quota = _unpack_header(data)
        if (
            kind_length & LENGTH_MASK != length
            or found != stream
            or last_unread >> UNREAD_BITS != seq
            or not (is_checked or self._checksum(position, data) == crc)
        ):
            return None
        payload = data[RECORD_HEADER_BYTES:]
        kind = kind_length >> 24 & KIND_MASK
        if kind == _MESSAGE:
            return Entry(seq, time_quota >> QUOTA_BITS, payload)
        if kind == _QUOTA_MARKER:
            return Entry(seq, time_quota >> QUOTA_BITS, payload, EntryKind.QUOTA_MARKER)
        return None

    def read(self, place: int) -> Record | None:
        """The record at a place, or None if it fails its checksum."""
        position = place >> LENGTH_BITS
        data = self._read_bytes(position, RECORD_HEADER_BYTES + (place & LENGTH_MASK))
        return parse_record(data, 0, len(data), position, self._epoch_at(position) ^ self.tag)

    def _read_bytes(self, position: int, length: int) -> bytes:
        number, offset = divmod(position, self.segment_bytes)
        file = self._open[number]
        part = position >> _EXPECTED_BITS
        if part not in self._expected:
            # Batches go past the page cache: the first to read here pays for all.
            self._expected.add(part)
            file.expect_reads(offset >> _EXPECTED_BITS << _EXPECTED_BITS, 1 << _EXPECTED_BITS)
        return read_around(file, offset, length)

    def _checksum(self, position: int, data: bytes) -> int:
        """What the checksum of the record at `position` ought to be."""
        return crc32c_extend(checksum_seed(position, self._epoch_at(position) ^ self.tag), data[4:])

    def _epoch_at(self, position: int) -> int:
        if position >= self._epoch_starts[-1]:
            return self._epochs[-1]
        return self._epochs[bisect_right(self._epoch_starts, position) - 1]

    def retire_below(self, position: int) -> None:
        """Their records are elsewhere: these files become spares."""
        for number in self.numbers:
            if (number + 1) * self.segment_bytes <= position:
                self._open.pop(number).close()
                self.retired.append(self.path(number))
        keep = max(0, bisect_right(self._epoch_starts, position) - 1)
        del self._epoch_starts[:keep]
        del self._epochs[:keep]
        first = position >> _EXPECTED_BITS
        self._expected = {part for part in self._expected if part >= first}

    def forget_all(self) -> None:
        """Before the log is read anew."""
        self.close()
        self.retired.clear()
        self._epoch_starts.clear()
        self._epochs.clear()

    def prepare(self, path: str) -> None:
        """Make a segment file here and now. Raises StoreFullError; then nothing is left of it."""
        write_zeros(self._files, path, self.segment_bytes)

    def reserve(self, path: str) -> None:
        """As `prepare`, at once: no batch waits for zeros to be written."""
        reserve_zeros(self._files, path, self.segment_bytes)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
