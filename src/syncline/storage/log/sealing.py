"""Sealing: what is still wanted of old segments goes into a run, and the table to the device.

A segment of which most is wanted becomes a run itself (`adopting`); what is wanted of the others is
copied into one.

Segments are taken newest first and one at a time, so memory holds one of them, and the first
snapshot met of a stream is its last. The payloads that are written are the very bytes whose
checksum was compared.
"""

import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.errors import StorageError
from syncline.kernels.log_records import HEADER, gathered, record_offsets
from syncline.kernels.rows import ROW, Rows
from syncline.storage.base import Damage
from syncline.storage.files import Files
from syncline.storage.log.adopting import adopt_segment, adopted_path
from syncline.storage.log.format import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    CLASS_BITS,
    CLASS_SNAPSHOT,
    KIND_MASK,
    LENGTH_MASK,
    QUOTA_BITS,
    RECORD_HEADER_BYTES,
    RUN_KEY_BYTES,
    SEQUENCE,
    UNREAD_BITS,
    RecordKind,
)
from syncline.storage.log.jobs import SealJob, SealResult
from syncline.storage.log.liveness import LiveTable
from syncline.storage.log.reading import read_around
from syncline.storage.log.run_rows import RunMeta
from syncline.storage.log.run_writer import WRITE_BYTES, RunWriter
from syncline.storage.log.scan import (
    DamagedStretch,
    End,
    WholeBatch,
    batches,
)
from syncline.values.ids import STREAM_ID_BYTES, StreamId

# Share of a segment that must be wanted for it to become a run as it is. What is not wanted takes
# room until runs are merged; what is wanted need not be written again.
ADOPTED_SHARE: Final = 0.75
_SEALED_KINDS: Final = [RecordKind.MESSAGE, RecordKind.QUOTA_MARKER, RecordKind.SNAPSHOT]


@dataclass(slots=True)
class _Segment:
    """What was read of one segment. `start` is its position in the log."""

    path: str
    start: int
    data: bytes
    # Of records that passed their checks, in `data`.
    offsets: list[int] = field(default_factory=list[int])
    stretches: list[DamagedStretch] = field(default_factory=list[DamagedStretch])
    # Of the first batch, 0 if that is damaged or there is none, and of the last whole one.
    first_number: int = 0
    last_number: int = 0
    # Where its batches end, and whether something that is no batch was begun there.
    end: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Records that a run may hold, column by column. `offsets` are those of the payloads."""

    keys: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.uint64]
    times: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.uint64]
    is_snapshot: npt.NDArray[np.bool_]

    def taken(self, which: npt.NDArray[np.int64]) -> "_Rows":
        return _Rows(
            self.keys[which],
            self.positions[which],
            self.times[which],
            self.kinds[which],
            self.offsets[which],
            self.lengths[which],
            self.sequences[which],
            self.is_snapshot[which],
        )


def seal(files: Files, job: SealJob) -> SealResult:
    """Raises StoreFullError or DeviceError; then there is no run, and the job may be done again."""
    # What a process that died over this job left: the names are this job's alone.
    _remove_runs(files, job)
    try:
        return _seal(files, job)
    except BaseException:
        # It is done again under other names, and these would keep their blocks until a restart.
        with suppress(StorageError):
            _remove_runs(files, job)
        raise


def _seal(files: Files, job: SealJob) -> SealResult:
    newest_first = sorted(zip(job.segment_numbers, job.segment_paths, strict=True))[::-1]
    number_behind = _number_behind(files, job, newest_first[0])
    with (
        LiveTable(files, job.table_paths, job.table_key) as table,
        RunWriter(files, job.run_path) as writer,
    ):
        sealing = _Sealing(files, job, table, writer)
        for number, path in newest_first:
            number_behind = sealing.seal_segment(number, path, number_behind)
        copied = writer.finish()
        # Only now: the segments may be recycled once the slots they justify are durable.
        table.sync()
    runs = sealing.runs if copied is None else [*sealing.runs, copied]
    return SealResult(tuple(runs), sealing.live_bytes, tuple(sealing.damage))


class _Sealing:
    """What was found in the segments sealed so far; of none of them the bytes are kept."""

    def __init__(self, files: Files, job: SealJob, table: LiveTable, writer: RunWriter) -> None:
        self._files = files
        self._job = job
        self._table = table
        self._writer = writer
        # Those that have a snapshot in a newer segment.
        self._snapshot_streams: set[bytes] = set()
        self.damage: list[Damage] = []
        self.runs: list[RunMeta] = []
        self.live_bytes = 0

    def seal_segment(self, number: int, path: str, number_behind: int) -> int:
        """The number of its first batch, 0 if that is not known; `number_behind` is the same of
        the next segment."""
        job, table = self._job, self._table
        data = _read(self._files, path, job.segment_bytes)
        if data is None:
            self.damage.append(Damage(path, 0, "the segment is missing"))
            return 0
        segment = _scan(path, number * job.segment_bytes, data, number_behind, job.tag)
        self.damage += _damage_of(segment, number_behind, table)
        rows = _newest_snapshots(_live_rows(segment, table), self._snapshot_streams)
        self.live_bytes += int(rows.lengths.sum())
        is_mostly_live = _is_mostly_live(job, rows)
        run = _adopt(self._files, job, number, segment, rows) if is_mostly_live else None
        if run is not None:
            self.runs.append(run)
        else:
            _write_rows(data, rows, self._writer)
        return segment.first_number


def _is_mostly_live(job: SealJob, rows: _Rows) -> bool:
    live_bytes = int(rows.lengths.sum()) + len(rows.lengths) * RECORD_HEADER_BYTES
    return live_bytes >= ADOPTED_SHARE * job.segment_bytes


def _adopt(
    files: Files, job: SealJob, number: int, segment: _Segment, rows: _Rows
) -> RunMeta | None:
    index = _index_rows(rows)
    index["offset"] = rows.offsets
    path = adopted_path(job.run_path, number)
    return adopt_segment(files, segment.path, segment.data, job.segment_bytes, index, path)


def _remove_runs(files: Files, job: SealJob) -> None:
    """Nobody lists them. Of segments that became runs the second name goes."""
    for path in (job.run_path, *(adopted_path(job.run_path, n) for n in job.segment_numbers)):
        if files.exists(path):
            files.remove(path)


def _read(files: Files, path: str, length: int) -> bytes | None:
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return read_around(file, 0, length)
    finally:
        file.close()


def _number_behind(files: Files, job: SealJob, newest: tuple[int, str]) -> int:
    """The number of the first batch after the sealed segments; 0 if that cannot be read."""
    number = newest[0] + 1
    path = posixpath.join(posixpath.dirname(newest[1]), f"{number:012d}.wal")
    data = _read(files, path, BATCH_HEADER_BYTES)
    if data is None or len(data) < BATCH_HEADER_BYTES:
        return 0
    magic, _, batch_number, position, *_ = BATCH_HEADER.unpack(data)
    is_header = magic == BATCH_MAGIC and position == number * job.segment_bytes
    return batch_number if is_header else 0


def _scan(path: str, start: int, data: bytes, number_behind: int, tag: int) -> _Segment:
    segment = _Segment(path, start, data)
    for part in batches(data, start, None, number_behind=number_behind, tag=tag):
        match part:
            case WholeBatch(header=header):
                if not segment.first_number and not segment.stretches:
                    segment.first_number = header.number
                segment.last_number = header.number
                end = header.end - start
                segment.offsets += record_offsets(data, end - header.length, end)
            case DamagedStretch(records=records):
                segment.stretches.append(part)
                segment.offsets += [record[0] - start for record in records]
            case End(position=position):
                segment.end = position - start
    return segment


def _damage_of(segment: _Segment, number_behind: int, table: LiveTable) -> list[Damage]:
    damage: list[Damage] = []
    for stretch in segment.stretches:
        offset = stretch.start - segment.start
        streams = _existing(stretch.suspects, table)
        damage += [Damage(segment.path, offset, stretch.reason, stream) for stream in streams]
        if not streams:
            damage.append(Damage(segment.path, offset, stretch.reason))
    goes_on = number_behind in (0, segment.last_number + 1)
    if not segment.stretches and not goes_on:
        damage.append(Damage(segment.path, segment.end, "batches are missing here"))
    return damage


def _existing(suspects: Sequence[bytes], table: LiveTable) -> list[StreamId]:
    """Suspects are read from damaged bytes: only those that name a stream are worth a report."""
    unique = sorted(set(suspects))
    if not unique:
        return []
    streams = np.frombuffer(b"".join(unique), np.uint8).reshape(-1, STREAM_ID_BYTES)
    return [StreamId(unique[place]) for place in np.flatnonzero(table.are_known(streams))]


def _live_rows(segment: _Segment, table: LiveTable) -> _Rows:
    rows = _rows_of(segment)
    is_live = table.are_live(
        rows.keys[:, :STREAM_ID_BYTES], rows.positions, rows.sequences, rows.is_snapshot
    )
    # Sorted, so that what is read together later lies together.
    live = rows.taken(np.flatnonzero(is_live))
    keys = np.ascontiguousarray(live.keys).view(f"S{RUN_KEY_BYTES}").ravel()
    return live.taken(np.argsort(keys, kind="stable"))


def _rows_of(segment: _Segment) -> _Rows:
    """The records that a run may hold, read from the segment's bytes, which passed their checks."""
    data = np.frombuffer(segment.data, np.uint8)
    offsets = np.array(segment.offsets, np.int64)
    heads = gathered(segment.data, offsets, HEADER)
    is_sealed = _are_sealed(heads["kind_length"])
    offsets, heads = offsets[is_sealed], heads[is_sealed]
    kinds = ((heads["kind_length"] >> 24) & KIND_MASK).astype(np.int64)
    lengths = (heads["kind_length"] & LENGTH_MASK).astype(np.int64)
    payloads = offsets + RECORD_HEADER_BYTES
    sequences = heads["last_unread"] >> np.uint64(UNREAD_BITS)
    is_snapshot = kinds == RecordKind.SNAPSHOT
    # A snapshot's payload starts with the sequence that it covers.
    covered = data[payloads[is_snapshot][:, None] + np.arange(SEQUENCE.size)]
    sequences[is_snapshot] = covered.view("<u8").reshape(-1)
    payloads[is_snapshot] += SEQUENCE.size
    lengths[is_snapshot] -= SEQUENCE.size
    classes = is_snapshot.astype(np.uint64) * np.uint64(CLASS_SNAPSHOT)
    keys = np.empty((len(offsets), RUN_KEY_BYTES), np.uint8)
    streams = np.ascontiguousarray(heads["stream"])
    keys[:, :STREAM_ID_BYTES] = streams.view(np.uint8).reshape(-1, STREAM_ID_BYTES)
    ends = (classes << np.uint64(CLASS_BITS) | sequences).astype(">u8")
    keys[:, STREAM_ID_BYTES:] = ends.view(np.uint8).reshape(-1, 8)
    return _Rows(
        keys,
        (offsets + segment.start).astype(np.uint64),
        heads["time_quota"] >> np.uint64(QUOTA_BITS),
        kinds,
        payloads,
        lengths,
        sequences,
        is_snapshot,
    )


def _are_sealed(kind_lengths: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    kinds = (kind_lengths >> 24) & KIND_MASK
    # The writer never makes a snapshot without its sequence; a length is not trusted all the same.
    is_long_enough = (kinds != RecordKind.SNAPSHOT) | (
        (kind_lengths & LENGTH_MASK) >= SEQUENCE.size
    )
    is_kept: npt.NDArray[np.bool_] = np.isin(kinds, _SEALED_KINDS) & is_long_enough
    return is_kept


def _newest_snapshots(rows: _Rows, streams: set[bytes]) -> _Rows:
    """Without snapshots that a later one has replaced; `streams` have one already, and grow."""
    keeps = np.ones(len(rows.positions), np.bool_)
    snapshots = np.flatnonzero(rows.is_snapshot)
    for place in snapshots[np.argsort(rows.positions[snapshots])][::-1]:
        stream = rows.keys[place, :STREAM_ID_BYTES].tobytes()
        keeps[place] = stream not in streams
        streams.add(stream)
    return rows.taken(np.flatnonzero(keeps))


def _index_rows(rows: _Rows) -> Rows:
    """Without offsets and checksums."""
    index = np.zeros(len(rows.lengths), ROW)
    index.view(np.uint8).reshape(-1, ROW.itemsize)[:, :RUN_KEY_BYTES] = rows.keys
    index["position"] = rows.positions
    index["time_ms"] = rows.times
    index["kind_length"] = rows.kinds << 24 | rows.lengths
    return index


def _write_rows(data: bytes, rows: _Rows, writer: RunWriter) -> None:
    """A portion at a time: its payloads are in memory twice."""
    index = _index_rows(rows)
    starts = rows.offsets.tolist()
    ends = (rows.offsets + rows.lengths).tolist()
    summed = np.cumsum(rows.lengths)
    at = written_bytes = 0
    while at < len(index):
        behind = max(at + 1, int(np.searchsorted(summed, written_bytes + WRITE_BYTES, "right")))
        payloads = [
            data[start:end] for start, end in zip(starts[at:behind], ends[at:behind], strict=True)
        ]
        writer.add_rows(index[at:behind], payloads)
        at, written_bytes = behind, int(summed[behind - 1])
