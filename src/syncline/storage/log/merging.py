"""Merging: the live rows of several runs become one run; measuring: how much of a run is live.

Memory is bounded whatever the runs hold: rows are looked at in chunks, payloads copied one by one.
What stays of a merge in memory is one flag for each row.

- Every row that is kept is checked on the way. A damaged one is reported and left out.
- An index that fails its checksum may have damaged keys. Then all rows of that run are checked,
  those that look dead too, before any of them is believed. So merging a damaged run alone mends it.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge as merge_sorted
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.errors import CorruptionError, StoreFullError
from syncline.kernels import rows as row_kernel
from syncline.storage.base import Damage
from syncline.storage.files import Files
from syncline.storage.log.format import RUN_FOOTER_BYTES, RUN_KEY_BYTES, RUN_ROW_BYTES
from syncline.storage.log.jobs import MeasureJob, MeasureResult, MergeJob, MergeResult
from syncline.storage.log.liveness import LiveTable
from syncline.storage.log.run_rows import RunMeta, parse_row, row_damage
from syncline.storage.log.run_writer import RunWriter
from syncline.storage.log.runs import Run
from syncline.values.ids import STREAM_ID_BYTES

_CHUNK_ROWS: Final = 65_536

Flags = npt.NDArray[np.bool_]
# The raw row, the number of its source, its place there. A plain tuple: a merge compares each of
# them several times.
_KeptRow = tuple[bytes, int, int]


def merge(files: Files, job: MergeJob) -> MergeResult:
    """Raises CorruptionError for a run that cannot be opened, StoreFullError, DeviceError."""
    with ExitStack() as stack:
        table = stack.enter_context(LiveTable(files, job.table_paths, job.table_key))
        runs = _open_runs(files, job.run_paths, job.listed, stack)
        others = _open_runs(files, job.other_run_paths, job.listed, stack)
        sources = [_Source(run, _live_flags(run, table)) for run in runs]
        damage: list[Damage] = []
        for source in sources:
            if source.run.footer_damage:
                damage.append(source.run.footer_damage)
            damage += _drop_unsound(source)
        _drop_replaced_snapshots(sources, others)
        for source in sources:
            if source.is_scattered():
                source.run.expect_reads()
        payload_bytes = sum(_live_payload_bytes(source) for source in sources)
        row_count = sum(int(source.is_kept.sum()) for source in sources)
        _check_room(files, job.run_path, payload_bytes + row_count * RUN_ROW_BYTES)
        writer = stack.enter_context(RunWriter(files, job.run_path, payload_bytes))
        kept = _copy_rows(sources, writer, damage)
        run = writer.finish()
    return MergeResult(run, sum(run.row_count for run in runs) - kept, tuple(damage))


def _check_room(files: Files, path: str, byte_count: int) -> None:
    """Before anything is written: a merge that fails at its end has left no room for anybody."""
    free = files.free_bytes(posixpath.dirname(path))
    if free < byte_count:
        raise StoreFullError(path, f"a merge would take {byte_count} bytes, {free} are free")


def measure(files: Files, job: MeasureJob) -> MeasureResult:
    """Raises CorruptionError for a run that cannot be opened."""
    live: list[tuple[str, tuple[int, int]]] = []
    with ExitStack() as stack:
        table = stack.enter_context(LiveTable(files, job.table_paths, job.table_key))
        others = _open_runs(files, job.other_run_paths, job.listed, stack)
        for path in job.run_paths:
            with ExitStack() as inner:
                (run,) = _open_runs(files, [path], job.listed, inner)
                source = _Source(run, _live_flags(run, table))
                _drop_replaced_snapshots([source], others)
                rows = int(source.is_kept.sum())
                size = _live_payload_bytes(source) + rows * RUN_ROW_BYTES
                live.append((run.meta.name, (rows, size + RUN_FOOTER_BYTES if rows else 0)))
    return MeasureResult(tuple(live))


@dataclass(frozen=True, slots=True)
class _Source:
    """A run and, for each of its rows, whether it is copied."""

    run: Run
    is_kept: Flags

    def is_scattered(self) -> bool:
        """Whether what is copied lies in another order than its rows: the run was a segment."""
        if not self.is_kept.any():
            return False
        offsets = self.run.rows(0, _CHUNK_ROWS)["offset"]
        return bool((offsets[1:] < offsets[:-1]).any())

    def chunks(self) -> Iterator[tuple[int, row_kernel.Rows]]:
        """Start and rows of each chunk."""
        for start in range(0, self.run.row_count, _CHUNK_ROWS):
            yield start, self.run.rows(start, _CHUNK_ROWS)


def _open_runs(
    files: Files, paths: Sequence[str], listed: Sequence[RunMeta], stack: ExitStack
) -> list[Run]:
    known = {meta.name: meta for meta in listed}
    runs: list[Run] = []
    for path in paths:
        try:
            run = Run.open(files, path, known.get(posixpath.basename(path)))
        except FileNotFoundError as error:
            raise CorruptionError(path, 0, "the run is missing") from error
        stack.callback(run.close)
        runs.append(run)
    return runs


def _live_flags(run: Run, table: LiveTable) -> Flags:
    is_live = np.zeros(run.row_count, np.bool_)
    for start in range(0, run.row_count, _CHUNK_ROWS):
        rows = run.rows(start, _CHUNK_ROWS)
        is_live[start : start + len(rows)] = table.are_live(
            row_kernel.streams(rows),
            rows["position"],
            row_kernel.sequences(rows),
            row_kernel.are_snapshots(rows),
        )
    return is_live


def _live_payload_bytes(source: _Source) -> int:
    return sum(
        int(row_kernel.lengths(rows)[source.is_kept[start : start + len(rows)]].sum())
        for start, rows in source.chunks()
    )


def _drop_unsound(source: _Source) -> list[Damage]:
    """If the index is damaged, check every row and drop those that fail."""
    run = source.run
    if run.is_index_sound():
        return []
    damage: list[Damage] = []
    for index in range(run.row_count):
        row = run.row_at(index)
        reason, _ = run.read_row(row)
        if reason:
            found = row_damage(run.path, run.meta.index_offset, row, index, reason)
            if not source.is_kept[index]:
                # It looks dead, or its key is what is damaged: then that names no stream.
                found = Damage(found.file, found.offset, found.reason)
            damage.append(found)
            source.is_kept[index] = False
    if not damage:
        # All rows are whole, so it is the footer's own checksum of them that is not.
        damage.append(run.index_damage())
    return damage


def _drop_replaced_snapshots(sources: Sequence[_Source], others: Sequence[Run]) -> None:
    """Keep the newest snapshot of each stream, and none that another run has a newer one of.

    One that fails its check replaces nothing: the older one is all that is left of the document.
    """
    streams: list[npt.NDArray[np.bytes_]] = []
    positions: list[npt.NDArray[np.uint64]] = []
    places: list[tuple[_Source, int]] = []
    for source in sources:
        for start, rows in source.chunks():
            is_kept = source.is_kept[start : start + len(rows)]
            found = np.flatnonzero(row_kernel.are_snapshots(rows) & is_kept)
            ids = np.ascontiguousarray(row_kernel.streams(rows)[found])
            streams.append(ids.view(f"S{STREAM_ID_BYTES}").ravel())
            positions.append(rows["position"][found])
            places += [(source, start + int(index)) for index in found]
    if not places:
        return
    stream, position = np.concatenate(streams), np.concatenate(positions)
    newest_first = np.lexsort((position, stream))[::-1]
    grouped = stream[newest_first]
    is_same = np.append(grouped[1:] == grouped[:-1], False)
    is_replaced = False
    for rank, place in enumerate(newest_first):
        source, index = places[int(place)]
        row = source.run.row_at(index)
        if is_replaced or _has_newer(others, row):
            source.is_kept[index] = False
        # Whether the next one, if it is of the same stream, is replaced by this or a newer one.
        is_replaced = bool(is_same[rank]) and (is_replaced or _is_sound(source.run, row))


def _has_newer(others: Sequence[Run], row: bytes) -> bool:
    position = parse_row(0, row).position
    candidates = (
        (run, run.snapshot(row[:STREAM_ID_BYTES]))
        for run in others
        if run.highest_position > position
    )
    return any(
        found is not None and found.position > position and _is_sound(run, run.row_at(found.index))
        for run, found in candidates
    )


def _is_sound(run: Run, row: bytes) -> bool:
    reason, _ = run.read_row(row)
    return not reason


def _kept_rows(sources: Sequence[_Source], number: int) -> Iterator[_KeptRow]:
    for start, rows in sources[number].chunks():
        data = rows.tobytes()
        is_kept = sources[number].is_kept[start : start + len(rows)]
        for place in np.flatnonzero(is_kept).tolist():
            row = data[place * RUN_ROW_BYTES : (place + 1) * RUN_ROW_BYTES]
            yield row, number, start + place


def _copy_rows(sources: Sequence[_Source], writer: RunWriter, damage: list[Damage]) -> int:
    """Copy what is kept, in order; return how many rows that were."""
    count = 0
    kept = merge_sorted(*(_kept_rows(sources, number) for number in range(len(sources))))
    for row, number, index in _newest_of_each_key(kept):
        run = sources[number].run
        reason, payload = run.read_row(row)
        if reason:
            damage.append(row_damage(run.path, run.meta.index_offset, row, index, reason))
            continue
        found = parse_row(index, row)
        writer.add(row[:RUN_KEY_BYTES], found.position, found.time_ms, found.kind, payload)
        count += 1
    return count


def _newest_of_each_key(rows: Iterable[_KeptRow]) -> Iterator[_KeptRow]:
    """Equal keys come from a stream that was deleted and created anew: the later one counts."""
    newest: _KeptRow | None = None
    for found in rows:
        if newest is not None and newest[0][:RUN_KEY_BYTES] == found[0][:RUN_KEY_BYTES]:
            if parse_row(0, found[0]).position > parse_row(0, newest[0]).position:
                newest = found
            continue
        if newest is not None:
            yield newest
        newest = found
    if newest is not None:
        yield newest
