"""Pieces of a log as Arrow batches: a whole segment at once, a run some rows at a time.

Checksums are those that the log's own scan compares (`storage.log.scan`, `storage.log.runs`); what
fails is a row of its own and stops nothing. Records are then read as columns by
`kernels.log_records`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from syncline.errors import CorruptionError
from syncline.kernels import rows as run_rows
from syncline.kernels.crc32c import crc32c_rows
from syncline.kernels.log_records import (
    Bytes,
    Flags,
    Integers,
    RecordColumns,
    columns,
    joined,
    record_offsets,
)
from syncline.pipeline.arrow import one_batch
from syncline.pipeline.sources.filters import FilterColumns, RowFilter, wanted, wanted_rows
from syncline.pipeline.sources.folders import (
    RECYCLED,
    GapPiece,
    Piece,
    SegmentBytes,
    SegmentPiece,
    open_segment,
    read_segment,
)
from syncline.pipeline.sources.rows import (
    Unread,
    batch_of_records,
    batch_of_run,
    batch_of_unread,
    schema_with,
)
from syncline.storage.files import File, Files
from syncline.storage.log.format import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    CLASS_SNAPSHOT,
    KIND_MASK,
    crc32c_extend,
)
from syncline.storage.log.manifest import read_manifest
from syncline.storage.log.reading import read_around
from syncline.storage.log.runs import Run
from syncline.storage.log.scan import DamagedStretch, End, WholeBatch

# Rows that are handed to Spark together: at most, and if there is more to come, at least, or so
# many bytes.
BATCH_ROWS_MAX: Final = 65_536
BATCH_ROWS_MIN: Final = 16_384
BATCH_BYTES_MIN: Final = 4 << 20
_RUN_BYTES_MAX: Final = 32 << 20
_LOOK_COUNT_MAX: Final = 10
_CHECKED_ROW_BYTES: Final = 60
NOT_FOLLOWED: Final = "no batch behind can be read that tells whether some are missing here"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which rows are wanted, whether their bodies are, and which columns: none named is all."""

    filters: tuple[RowFilter, ...] = ()
    has_bodies: bool = True
    columns: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return schema_with(self.columns)

    @property
    def copies_bodies(self) -> bool:
        return self.has_bodies and (not self.columns or "body" in self.columns)


def read_pieces(files: Files, pieces: Sequence[Piece], wish: Wish) -> Iterator[pa.RecordBatch]:
    """All rows of the pieces, those of small ones together: a batch costs as much as many rows."""
    waiting: list[pa.RecordBatch] = []
    row_count = byte_count = 0
    for piece in pieces:
        for batch in read_piece(files, piece, wish):
            waiting.append(batch)
            row_count += batch.num_rows
            byte_count += batch.nbytes
            if row_count >= BATCH_ROWS_MIN or byte_count >= BATCH_BYTES_MIN:
                yield one_batch(waiting)
                waiting, row_count, byte_count = [], 0, 0
    if waiting:
        yield one_batch(waiting)


def read_piece(files: Files, piece: Piece, wish: Wish) -> Iterator[pa.RecordBatch]:
    """All rows of a piece. Raises only if the device fails as a whole."""
    for batch in _read_piece(files, piece, wish):
        # Where rows are few, all columns were made.
        yield batch.select(list(wish.columns)) if wish.columns else batch


def _read_piece(files: Files, piece: Piece, wish: Wish) -> Iterator[pa.RecordBatch]:
    match piece:
        case SegmentPiece():
            behind = _number_behind(files, piece)
            found = read_segment(
                files,
                piece.folder,
                piece.number,
                piece.segment_bytes,
                piece.tag,
                behind,
            )
            if found is None:
                # It was there when the piece was made: the router has used it again since.
                gap = GapPiece(piece.folder, piece.log_id, piece.start, piece.end, RECYCLED)
                yield from _read_gap(files, gap, wish)
                return
            if not behind and piece.reports_torn:
                piece = replace(piece, is_followed=False)
            yield from segment_rows(piece, found, behind, wish)
        case GapPiece():
            yield from _read_gap(files, piece, wish)


# ---------------------------------------------------------------------------------------- segments


def segment_rows(
    piece: SegmentPiece, segment: SegmentBytes, number_behind: int, wish: Wish
) -> Iterator[pa.RecordBatch]:
    """`number_behind` is that of the first batch of the next segment, 0 if that is not known."""
    segment_start = piece.number * piece.segment_bytes
    data = segment.data
    offsets: list[int] = []
    last_number = 0
    has_stretch = False
    for part in segment.parts:
        match part:
            case WholeBatch(header=header):
                last_number = header.number
                if piece.start <= header.position < piece.end:
                    at = header.position - segment_start + BATCH_HEADER_BYTES
                    offsets += record_offsets(data, at, at + header.length)
            case DamagedStretch():
                has_stretch = True
                start, end = max(part.start, piece.start), min(part.end, piece.end)
                if start < end:
                    positions = [position for position, *_ in part.records]
                    offsets += [each - segment_start for each in positions if start <= each < end]
                    yield from _unread(
                        piece.log_id,
                        Unread.DAMAGE,
                        start,
                        end - start,
                        part.reason,
                        part.suspects,
                        wish,
                    )
            case End(position=position, is_torn=is_torn):
                rest = min(piece.end, segment_start + piece.segment_bytes) - position
                if not piece.reports_torn or not piece.start <= position < piece.end:
                    break
                if not piece.is_followed:
                    # Only the batch behind could tell whether this is the end of the segment.
                    yield from _unread(
                        piece.log_id, Unread.GAP, position, rest, NOT_FOLLOWED, [], wish
                    )
                    continue
                if is_torn:
                    reason = "a batch was begun here and never completed"
                    yield from _unread(piece.log_id, Unread.TORN, position, rest, reason, [], wish)
                goes_on = number_behind in (0, last_number + 1)
                if not has_stretch and not goes_on:
                    reason = "batches are missing here"
                    yield from _unread(
                        piece.log_id, Unread.DAMAGE, position, rest, reason, [], wish
                    )
    found = columns(data, segment_start, np.array(offsets, np.int64))
    yield from _in_batches(_record_batch(piece.log_id, data, found, wish))


def _record_batch(store_id: bytes, data: bytes, found: RecordColumns, wish: Wish) -> pa.RecordBatch:
    if wish.filters:
        keep = wanted(
            wish.filters,
            FilterColumns(
                found.positions,
                found.kinds,
                found.streams,
                found.sequences,
                found.has_sequence,
                found.times_ms,
                found.has_stream,
                found.events,
                found.is_event,
            ),
        )
        if keep is not None and not keep.all():
            found = found.taken(keep)
    bodies = None
    if wish.copies_bodies:
        # Acknowledgements of one record all point at it; without bodies they are nothing to copy.
        has_body = found.body_lengths > 0
        bodies = joined(
            np.frombuffer(data, np.uint8),
            found.body_starts[has_body],
            found.body_lengths[has_body],
        )
    return batch_of_records(store_id, found, bodies, wish.schema)


def _number_behind(files: Files, piece: SegmentPiece) -> int:
    """The number of the first batch of the next segment; 0 if that cannot be read."""
    number = piece.number + 1
    file = open_segment(files, piece.folder, number)
    if file is None:
        return 0
    try:
        data = read_around(file, 0, BATCH_HEADER_BYTES)
    finally:
        file.close()
    if len(data) < BATCH_HEADER_BYTES:
        return 0
    magic, _, batch_number, position, *_ = BATCH_HEADER.unpack(data)
    is_header = magic == BATCH_MAGIC and position == number * piece.segment_bytes
    return int(batch_number) if is_header else 0


# -------------------------------------------------------------------------------------------- runs


def _read_gap(files: Files, piece: GapPiece, wish: Wish) -> Iterator[pa.RecordBatch]:
    length = piece.end - piece.start
    yield from _unread(piece.log_id, Unread.GAP, piece.start, length, piece.reason, [], wish)
    with ExitStack() as stack:
        runs, unreadable = _open_runs(files, piece, stack)
        for path, reason in unreadable:
            reason = f"{path}: {reason}"
            yield from _unread(
                piece.log_id, Unread.DAMAGE, piece.start, 0, reason, [], wish, is_from_run=True
            )
        for run, file in runs:
            yield from run_batches(run, file, piece.log_id, piece.start, piece.end, wish)


def _open_runs(
    files: Files, piece: GapPiece, stack: ExitStack
) -> tuple[list[tuple[Run, File]], list[tuple[str, str]]]:
    """The runs of one manifest that may have rows of the gap, open; and those that cannot be."""
    for look in range(_LOOK_COUNT_MAX):
        state = read_manifest(files, piece.folder)
        found: list[tuple[Run, File]] = []
        unreadable: list[tuple[str, str]] = []
        is_changed = False
        with ExitStack() as opened:
            for meta in state.runs if state is not None else ():
                if meta.lowest_position >= piece.end or meta.highest_position < piece.start:
                    continue
                path = f"{piece.folder}/runs/{meta.name}"
                try:
                    run = Run.open(files, path, meta)
                    opened.callback(run.close)
                    file = files.open(path, writable=False)
                    opened.callback(file.close)
                    found.append((run, file))
                except FileNotFoundError:
                    # Merged into another since the manifest was read, or lost.
                    is_changed = True
                    unreadable.append((path, "the run is missing"))
                except CorruptionError as error:
                    unreadable.append((path, error.reason))
            if not is_changed or look == _LOOK_COUNT_MAX - 1:
                stack.push(opened.pop_all())
                return found, unreadable
    raise AssertionError("the last look returns")


def run_batches(
    run: Run, file: File, store_id: bytes, start: int, end: int, wish: Wish
) -> Iterator[pa.RecordBatch]:
    """Rows of a run whose position lies between; each is checked together with its payload.

    In a damaged index the position itself may be wrong: then every row is checked, and those that
    fail are told of whatever their position is.
    """
    is_index_sound = run.is_index_sound()
    for first in range(0, run.row_count, BATCH_ROWS_MAX):
        rows = run.rows(first, BATCH_ROWS_MAX)
        places = np.arange(len(rows))
        if is_index_sound:
            places = np.flatnonzero((rows["position"] >= start) & (rows["position"] < end))
        for chunk in _chunks(rows, places):
            yield from _run_chunk(
                rows[chunk], file, run.meta.index_offset, (start, end), store_id, wish
            )


def _chunks(rows: run_rows.Rows, places: Integers) -> Iterator[Integers]:
    """Rows whose payloads fit into memory together."""
    if not len(places):
        return
    total = np.cumsum(run_rows.lengths(rows[places]))
    cuts = np.flatnonzero(np.diff(total // _RUN_BYTES_MAX)) + 1
    yield from np.split(places, cuts)


def _run_chunk(
    rows: run_rows.Rows,
    file: File,
    index_offset: int,
    between: tuple[int, int],
    store_id: bytes,
    wish: Wish,
) -> Iterator[pa.RecordBatch]:
    lengths = run_rows.lengths(rows)
    # A damaged offset may be anything: as a float it is compared without wrapping round.
    fits = rows["offset"].astype(np.float64) + lengths <= index_offset
    starts = np.where(fits, rows["offset"], 0).astype(np.int64)
    data, base = _read_payloads(file, starts[fits], lengths[fits])
    is_sound = _are_sound(rows, data, starts - base, lengths, fits)
    for place in np.flatnonzero(~is_sound).tolist():
        yield from _damaged_row(rows[place : place + 1], bool(fits[place]), store_id, wish)
    rows, starts, lengths = rows[is_sound], (starts - base)[is_sound], lengths[is_sound]
    streams = np.ascontiguousarray(rows["stream"])
    positions, sequences = (
        rows["position"].astype(np.int64),
        run_rows.sequences(rows).astype(np.int64),
    )
    times_ms = rows["time_ms"].astype(np.int64)
    kinds = ((rows["kind_length"] >> 24) & KIND_MASK).astype(np.int8)
    keep = wanted(wish.filters, FilterColumns(positions, kinds, streams, sequences, None, times_ms))
    is_between: Flags = (positions >= between[0]) & (positions < between[1])
    keep = is_between if keep is None else keep & is_between
    bodies = None
    if wish.copies_bodies:
        bodies = joined(np.frombuffer(data, np.uint8), starts[keep], lengths[keep])
    yield batch_of_run(
        store_id,
        positions=positions[keep],
        kinds=kinds[keep],
        streams=streams[keep],
        sequences=sequences[keep],
        times_ms=times_ms[keep],
        lengths=lengths[keep],
        bodies=bodies,
    )


def _read_payloads(file: File, starts: Integers, lengths: Integers) -> tuple[bytes, int]:
    """The stretch of the file that holds them all, and where it starts."""
    if not len(starts):
        return b"", 0
    low, high = int(starts.min()), int((starts + lengths).max())
    return read_around(file, low, high - low), low


def _are_sound(
    rows: run_rows.Rows, data: bytes, starts: Integers, lengths: Integers, fits: Flags
) -> Flags:
    """Whether each row and its payload pass the row's checksum, as `Run.read_row` finds it."""
    raw: Bytes = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, run_rows.ROW.itemsize)
    crcs = crc32c_rows(raw[:, :_CHECKED_ROW_BYTES]).tolist()
    ends = starts + lengths
    found = np.zeros(len(rows), np.bool_)
    places = zip(
        crcs, rows["crc"].tolist(), starts.tolist(), ends.tolist(), fits.tolist(), strict=True
    )
    for place, (crc, expected, start, end, is_inside) in enumerate(places):
        found[place] = is_inside and crc32c_extend(crc, data[start:end]) == expected
    return found


def _damaged_row(
    row: run_rows.Rows, fits: bool, store_id: bytes, wish: Wish
) -> Iterator[pa.RecordBatch]:
    """The stream and the sequence are what the row says, which may be what is damaged."""
    reason = "a row of a run fails its checksum" if fits else "a row points outside its run"
    is_snapshot = int(row["class_seq"][0]) >> 56 == CLASS_SNAPSHOT
    yield from _unread(
        store_id,
        Unread.DAMAGE,
        int(row["position"][0]) & 0x7FFF_FFFF_FFFF_FFFF,
        0,
        reason,
        [row["stream"].tobytes()],
        wish,
        is_from_run=True,
        seq=None if is_snapshot else int(run_rows.sequences(row)[0]),
    )


# -------------------------------------------------------------------------------------------- both


def _unread(
    store_id: bytes,
    kind: Unread,
    position: int,
    length: int,
    reason: str,
    suspects: Sequence[bytes],
    wish: Wish,
    *,
    is_from_run: bool = False,
    seq: int | None = None,
) -> Iterator[pa.RecordBatch]:
    batch = batch_of_unread(
        store_id, kind, position, length, reason, list(suspects), is_from_run=is_from_run, seq=seq
    )
    batch = wanted_rows(wish.filters, batch)
    if batch.num_rows:
        yield batch


def _in_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
        yield batch.slice(start, BATCH_ROWS_MAX)
