"""Runs: what was still wanted when its segment was sealed, sorted by stream and sequence.

The bytes are drawn in `format` and on docs/formats/log.md. Here is the reader; `run_writer` makes
them, `run_rows` has their values.

- A run never changes. Its index stays in the file and is searched through a map: an open run costs
  no memory for its rows.
- Opening reads the footer alone, so a start does not depend on how many rows there are. A row is
  checked together with its payload, when it is read; `verify` and `verify_rows` check all.
- A damaged key can lead a binary search astray. Whoever misses a row that must exist asks
  `entries_anywhere`, which looks at every row.
"""

import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

from syncline.errors import CorruptionError
from syncline.storage.base import Damage
from syncline.storage.files import File, Files, MappedFile
from syncline.storage.log.format import (
    CLASS_ENTRY,
    CLASS_SNAPSHOT,
    CRC,
    RUN_FOOTER,
    RUN_FOOTER_BYTES,
    RUN_KEY_BYTES,
    RUN_MAGIC,
    RUN_ROW_BYTES,
    crc32c_extend,
    run_key,
)
from syncline.storage.log.reading import read_around

# Whoever reads runs finds here what it needs to write them, too.
from syncline.storage.log.run_rows import SEQUENCE_MAX, parse_row, row_damage
from syncline.storage.log.run_rows import RunMeta as RunMeta
from syncline.storage.log.run_rows import RunRow as RunRow
from syncline.storage.log.run_writer import write_run as write_run
from syncline.values.ids import STREAM_ID_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CHECKED_ROW_BYTES: Final = RUN_ROW_BYTES - CRC.size
_EXPECTED_BYTES: Final = 4 << 20
# Rows copied out of the map at a time: a quarter of a mebibyte.
_CHUNK_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """One step of checking a run. `next_row` is the row count once all of it is checked."""

    next_row: int
    byte_count: int
    damage: tuple[Damage, ...]


class Run:
    """An open run. One thread at a time."""

    def __init__(
        self, file: File, mapped: MappedFile, meta: RunMeta, damage: Damage | None
    ) -> None:
        self._file = file
        self._map = mapped
        self._index_offset = meta.index_offset
        self.meta = meta
        # The footer fails its check, and the manifest's knowledge stood in for it.
        self.footer_damage = damage
        self.row_count = meta.row_count
        self.data_bytes = meta.file_bytes
        self.lowest_time_ms = meta.lowest_time_ms
        self.highest_time_ms = meta.highest_time_ms
        self.lowest_position = meta.lowest_position
        self.highest_position = meta.highest_position

    @classmethod
    def open(cls, files: Files, path: str, known: RunMeta | None = None) -> Self:
        """Check the footer and map the index.

        `known` is what the manifest says: a damaged footer then costs nothing but a report.
        Raises FileNotFoundError, or CorruptionError for what is no whole run or not the known one.
        """
        file = files.open(path, writable=False)
        try:
            size = file.size()
            found = _read_footer(file, size)
            damage = None
            if found is None:
                if known is None or known.file_bytes != size:
                    offset = max(0, size - RUN_FOOTER_BYTES)
                    raise CorruptionError(path, offset, "the footer of a run fails its check")
                offset = size - RUN_FOOTER_BYTES
                damage = Damage(path, offset, "the footer of a run fails its check")
                found = known
            elif known is not None and known != found:
                raise CorruptionError(path, size - RUN_FOOTER_BYTES, "not the run that is listed")
            return cls(file, file.map(writable=False), found, damage)
        except BaseException:
            file.close()
            raise

    @property
    def path(self) -> str:
        return self._file.path

    def close(self) -> None:
        self._map.close()
        self._file.close()

    # Looking up.

    def entries(self, stream: bytes, from_seq: int, count_max: int) -> list[RunRow]:
        """Entries of a stream from `from_seq` on, in order."""
        start = bisect_left(
            range(self.row_count),
            run_key(stream, CLASS_ENTRY, max(0, from_seq)),
            key=self._key_at,
        )
        found: list[RunRow] = []
        for index in range(start, min(start + count_max, self.row_count)):
            row = self.row_at(index)
            if row[:STREAM_ID_BYTES] != stream or row[STREAM_ID_BYTES] != CLASS_ENTRY:
                break
            found.append(parse_row(index, row))
        return found

    def entries_anywhere(
        self, stream: bytes, from_seq: int, count_max: int, born: int = 0
    ) -> list[RunRow]:
        """The same by looking at every row: for when a missing entry says the index is damaged.

        Rows from before `born` do not count: they are of an earlier stream.
        """
        lowest = run_key(stream, CLASS_ENTRY, max(0, from_seq))
        highest = run_key(stream, CLASS_ENTRY, SEQUENCE_MAX)
        found: list[RunRow] = []
        for rows in self._rows_anywhere(lowest, highest):
            found += [row for row in rows if row.position >= born]
            # No more of them in memory than are wanted, however long the stream is.
            found = sorted(found, key=lambda row: row.seq)[:count_max]
        return found

    def snapshot(self, stream: bytes) -> RunRow | None:
        """The snapshot of a stream that covers most."""
        behind = bisect_right(
            range(self.row_count), run_key(stream, CLASS_SNAPSHOT, SEQUENCE_MAX), key=self._key_at
        )
        if behind == 0:
            return None
        row = self.row_at(behind - 1)
        if row[:STREAM_ID_BYTES] != stream or row[STREAM_ID_BYTES] != CLASS_SNAPSHOT:
            return None
        return parse_row(behind - 1, row)

    def snapshots_anywhere(self, stream: bytes) -> list[RunRow]:
        """All of a stream, by looking at every row: for when one that must exist is missing."""
        lowest = run_key(stream, CLASS_SNAPSHOT, 0)
        highest = run_key(stream, CLASS_SNAPSHOT, SEQUENCE_MAX)
        return list(chain.from_iterable(self._rows_anywhere(lowest, highest)))

    def payload(self, row: RunRow) -> bytes:
        """Read and check. Raises CorruptionError with the place of the row."""
        reason, payload = self.read_row(self.row_at(row.index))
        if reason:
            offset = self._index_offset + row.index * RUN_ROW_BYTES
            raise CorruptionError(self.path, offset, reason)
        return payload

    def rows(self, start: int, count: int) -> "npt.NDArray[np.void]":
        """Rows from `start` on as a structured array (`kernels.rows.ROW`), copied and unchecked."""
        # Not at the top: a router that only serves never needs it.
        import numpy as np

        from syncline.kernels.rows import ROW

        return np.frombuffer(self._rows_at(start, count), ROW)

    def expect_reads(self) -> None:
        """All payloads are going to be read, in an order that the system cannot guess.

        A part at a time, and waited for: others need the device as well.
        """
        for start in range(0, self._index_offset, _EXPECTED_BYTES):
            end = min(start + _EXPECTED_BYTES, self._index_offset)
            self._file.expect_reads(start, end - start)
            read_around(self._file, end - 1, 1)

    # Raw rows, for those who copy or check runs.

    def row_at(self, index: int) -> bytes:
        at = self._index_offset + index * RUN_ROW_BYTES
        return self._map[at : at + RUN_ROW_BYTES]

    def read_row(self, row: bytes) -> tuple[str, bytes]:
        """The payload of a raw row, and what is wrong with it: empty if nothing is."""
        found = parse_row(0, row)
        if found.offset + found.length > self._index_offset:
            return "a row points outside its run", b""
        payload = read_around(self._file, found.offset, found.length)
        (crc,) = CRC.unpack_from(row, _CHECKED_ROW_BYTES)
        if crc32c_extend(crc32c_extend(0, row[:_CHECKED_ROW_BYTES]), payload) != crc:
            return "a row of a run fails its checksum", b""
        return "", payload

    # Checking.

    def is_index_sound(self) -> bool:
        """Whether all rows together pass the footer's checksum; payloads are not read."""
        crc = 0
        for start in range(0, self.row_count, _CHUNK_ROWS):
            crc = crc32c_extend(crc, self._rows_at(start, _CHUNK_ROWS))
        return crc == self.meta.index_crc

    def verify_rows(self, start: int, bytes_max: int) -> VerifiedRows:
        """Check rows and payloads from row `start` on: one, and more while under `bytes_max`."""
        damage: list[Damage] = []
        byte_count = 0
        previous = self.row_at(start - 1) if start else b""
        index = start
        while index < self.row_count and (index == start or byte_count < bytes_max):
            row = self.row_at(index)
            reason, payload = self.read_row(row)
            byte_count += RUN_ROW_BYTES + len(payload)
            if not reason and row[:RUN_KEY_BYTES] <= previous[:RUN_KEY_BYTES]:
                # A damaged neighbour is out of order too: only two sound rows prove anything.
                reason = "" if self.read_row(previous)[0] else "the rows of a run are out of order"
            if reason:
                damage.append(row_damage(self.path, self._index_offset, row, index, reason))
            previous = row
            index += 1
        return VerifiedRows(index, byte_count, tuple(damage))

    def verify(self) -> list[Damage]:
        """Check all of it."""
        damage = [self.footer_damage] if self.footer_damage else []
        start = 0
        while start < self.row_count:
            step = self.verify_rows(start, 1 << 20)
            damage += step.damage
            start = step.next_row
        if not damage and not self.is_index_sound():
            damage.append(self.index_damage())
        return damage

    def index_damage(self) -> Damage:
        """What is to be reported if `is_index_sound` says no."""
        return Damage(self.path, self._index_offset, "the index fails its checksum")

    # Inside.

    def _rows_anywhere(self, lowest: bytes, highest: bytes) -> Iterator[list[RunRow]]:
        """Rows of one stream with keys from `lowest` to `highest`, wherever they are; in parts."""
        stream = lowest[:STREAM_ID_BYTES]
        for start in range(0, self.row_count, _CHUNK_ROWS):
            chunk = self._rows_at(start, _CHUNK_ROWS)
            found: list[RunRow] = []
            at = chunk.find(stream)
            while at != -1:
                if not at % RUN_ROW_BYTES and lowest <= chunk[at : at + RUN_KEY_BYTES] <= highest:
                    index = start + at // RUN_ROW_BYTES
                    found.append(parse_row(index, chunk[at : at + RUN_ROW_BYTES]))
                at = chunk.find(stream, at + 1)
            yield found

    def _rows_at(self, start: int, count: int) -> bytes:
        end = min(start + count, self.row_count)
        at = self._index_offset
        return self._map[at + start * RUN_ROW_BYTES : at + end * RUN_ROW_BYTES]

    def _key_at(self, index: int) -> bytes:
        at = self._index_offset + index * RUN_ROW_BYTES
        return self._map[at : at + RUN_KEY_BYTES]


def _read_footer(file: File, size: int) -> RunMeta | None:
    """None unless the footer passes its checksum and its numbers fit the file's size."""
    if size < RUN_FOOTER_BYTES:
        return None
    footer = read_around(file, size - RUN_FOOTER_BYTES, RUN_FOOTER_BYTES)
    magic, row_count, index_offset, *rest = RUN_FOOTER.unpack_from(footer)
    (crc,) = CRC.unpack_from(footer, RUN_FOOTER.size)
    if magic != RUN_MAGIC or crc32c_extend(0, footer[: RUN_FOOTER.size]) != crc:
        return None
    if index_offset + row_count * RUN_ROW_BYTES + RUN_FOOTER_BYTES != size:
        return None
    return RunMeta(posixpath.basename(file.path), row_count, size, *rest)
