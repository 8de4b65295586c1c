"""Writes runs: payloads in the order they come, the index sorted by key, a footer.

- Memory is bounded: payloads leave in writes of about 1 MiB. The rows stay until the end, unless
  the writer is told beforehand how many payload bytes will come; then they leave at once, too, to
  the place where the index will be.
- It is synced as it grows. Left to the system, a gigabyte would go to the device at once, and the
  log with its own small writes would wait behind it (bench: log).
- Rows come one at a time or, where many are at hand, as an array (bench: log).
- A run that is not finished is removed. One that is, is durable with its name.
"""

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from syncline.errors import StorageError
from syncline.storage.files import Files
from syncline.storage.log.format import (
    CRC,
    LENGTH_MASK,
    RUN_FOOTER,
    RUN_FOOTER_BYTES,
    RUN_KEY_BYTES,
    RUN_MAGIC,
    RUN_ROW,
    RUN_ROW_BYTES,
    crc32c_extend,
)
from syncline.storage.log.run_rows import RunMeta

if TYPE_CHECKING:
    from syncline.kernels.rows import Rows

# Whole rows fill it.
WRITE_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 4 << 20
_CHECKED_ROW_BYTES: Final = RUN_ROW_BYTES - CRC.size

# key of 32 bytes, position, time, kind, payload
NewRow = tuple[bytes, int, int, int, bytes]


def write_run(files: Files, path: str, rows: Iterable[NewRow]) -> RunMeta:
    """Write rows in whatever order they come; of equal keys the highest position stays."""
    with RunWriter(files, path) as writer:
        for row in rows:
            writer.add(*row)
        meta = writer.finish()
    if meta is None:
        raise ValueError("a run has at least one row")
    return meta


class RunWriter:
    """A run in the making; a context manager. `payload_bytes`: see the module."""

    def __init__(self, files: Files, path: str, payload_bytes: int | None = None) -> None:
        self._files = files
        self._path = path
        self._file = files.open(path, create=True)
        self._is_open = True
        self._payloads: list[bytes] = []
        self._payloads_bytes = 0
        self._payload_end = 0
        self._synced_end = 0
        # Each is one row or several.
        self._rows: list[bytes] = []
        self._index_offset = payload_bytes
        self._index_crc = 0
        self._written_row_count = 0
        self._last_key = b""
        self._times = _Bounds()
        self._positions = _Bounds()
        # What a run of this name left behind when its making was cut off.
        self._file.truncate(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_open:
            self._abandon()

    def add(self, key: bytes, position: int, time_ms: int, kind: int, payload: bytes) -> None:
        """With `payload_bytes` given, keys must come in strictly ascending order."""
        length = len(payload)
        head = key + RUN_ROW.pack(position, time_ms, self._payload_end, kind << 24 | length, 0)[:-4]
        crc = crc32c_extend(crc32c_extend(0, head), payload)
        self._rows.append(head + CRC.pack(crc))
        self._payloads.append(payload)
        self._payloads_bytes += length
        self._payload_end += length
        self._times.add(time_ms)
        self._positions.add(position)
        if self._payloads_bytes >= WRITE_BYTES:
            self._write_payloads()
        if self._index_offset is not None:
            assert key > self._last_key
            assert self._payload_end <= self._index_offset
            self._last_key = key
            if len(self._rows) * RUN_ROW_BYTES >= WRITE_BYTES:
                self._write_rows(self._index_offset)

    def add_rows(self, rows: "Rows", payloads: Sequence[bytes]) -> None:
        """Many at a time, in any order; not with `payload_bytes`.

        Their offsets and checksums are filled in here.
        """
        assert self._index_offset is None
        ends = (rows["kind_length"] & LENGTH_MASK).astype("int64").cumsum()
        rows["offset"][0] = 0
        rows["offset"][1:] = ends[:-1]
        rows["offset"] += self._payload_end
        fill_checksums(rows, payloads)
        self._rows.append(rows.tobytes())
        self._payloads += payloads
        self._payloads_bytes += int(ends[-1])
        self._payload_end += int(ends[-1])
        for bounds, values in ((self._times, rows["time_ms"]), (self._positions, rows["position"])):
            bounds.add(int(values.min()))
            bounds.add(int(values.max()))
        if self._payloads_bytes >= WRITE_BYTES:
            self._write_payloads()

    def finish(self) -> RunMeta | None:
        """Make the run durable; None, and no file, if it has no rows."""
        self._write_payloads()
        if self._index_offset is None:
            self._index_offset = self._payload_end
            self._rows = [newest_of_each_key(b"".join(self._rows))]
        self._write_rows(self._index_offset)
        if self._written_row_count == 0:
            self._abandon()
            return None
        rows_end = self._index_offset + self._written_row_count * RUN_ROW_BYTES
        run = RunMeta(
            posixpath.basename(self._path),
            self._written_row_count,
            rows_end + RUN_FOOTER_BYTES,
            self._times.lowest,
            self._times.highest,
            self._positions.lowest,
            self._positions.highest,
            self._index_crc,
        )
        self._file.write(rows_end, [encode_footer(run)])
        self._file.sync()
        self._file.close()
        self._is_open = False
        self._files.sync_folder(posixpath.dirname(self._path) or ".")
        return run

    def _write_payloads(self) -> None:
        start = self._payload_end - self._payloads_bytes
        if self._payloads_bytes:
            # Joined: thousands of small pieces cost more than one copy.
            self._file.write(start, [b"".join(self._payloads)])
        self._payloads.clear()
        self._payloads_bytes = 0
        if self._payload_end >= self._synced_end + _SYNC_BYTES:
            self._file.sync()
            self._synced_end = self._payload_end

    def _write_rows(self, index_offset: int) -> None:
        rows = b"".join(self._rows)
        for start in range(0, len(rows), WRITE_BYTES):
            part = rows[start : start + WRITE_BYTES]
            self._file.write(index_offset + self._written_row_count * RUN_ROW_BYTES, [part])
            self._index_crc = crc32c_extend(self._index_crc, part)
            self._written_row_count += len(part) // RUN_ROW_BYTES
        self._rows.clear()

    def _abandon(self) -> None:
        self._is_open = False
        self._file.close()
        # If even that fails, the file is one that no manifest lists: the next start removes it.
        with suppress(StorageError):
            self._files.remove(self._path)


def encode_footer(run: RunMeta) -> bytes:
    footer = RUN_FOOTER.pack(
        RUN_MAGIC,
        run.row_count,
        run.index_offset,
        run.lowest_time_ms,
        run.highest_time_ms,
        run.lowest_position,
        run.highest_position,
        run.index_crc,
    )
    return footer + CRC.pack(crc32c_extend(0, footer))


class _Bounds:
    """The lowest and highest of what was added; 0 of nothing."""

    def __init__(self) -> None:
        self.lowest = 0
        self.highest = 0
        self._is_empty = True

    def add(self, value: int) -> None:
        if self._is_empty:
            self.lowest = self.highest = value
            self._is_empty = False
        elif value < self.lowest:
            self.lowest = value
        elif value > self.highest:
            self.highest = value


def fill_checksums(rows: "Rows", payloads: Iterable[bytes]) -> None:
    """All else in the rows is as it will be."""
    heads = rows.tobytes()
    extend, row_bytes, checked_bytes = crc32c_extend, RUN_ROW_BYTES, _CHECKED_ROW_BYTES
    rows["crc"] = [
        extend(extend(0, heads[at : at + checked_bytes]), payload)
        for at, payload in zip(range(0, len(heads), row_bytes), payloads, strict=True)
    ]


def newest_of_each_key(rows: bytes) -> bytes:
    """Sorted. A stream that was deleted and created anew has equal keys: the later one counts."""
    # Not at the top: a router that only serves never needs it.
    import numpy as np

    table = np.frombuffer(rows, np.uint8).reshape(-1, RUN_ROW_BYTES)
    # Compared as whole byte strings: fixed width makes zeros at the end as good as any byte.
    keys = np.ascontiguousarray(table[:, :RUN_KEY_BYTES]).view(f"S{RUN_KEY_BYTES}").ravel()
    if (keys[1:] > keys[:-1]).all():
        # As a segment or a merge gives them.
        return rows
    positions = np.ascontiguousarray(table[:, RUN_KEY_BYTES : RUN_KEY_BYTES + 8]).view("<u8")
    order = np.lexsort((positions.ravel(), keys))
    keys = keys[order]
    is_newest = np.ones(len(keys), np.bool_)
    is_newest[:-1] = keys[1:] != keys[:-1]
    return table[order[is_newest]].tobytes()
