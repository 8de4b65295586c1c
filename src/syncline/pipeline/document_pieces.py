"""Rows of documents on their way to where each document is folded, many in one piece.

A row group is read where Spark puts the task, what is of documents is taken out of it and cut into
*pieces*, one for each bucket of streams: a row for Spark, and as Arrow in that row thousands of
rows of the log. Spark shuffles the pieces; the rows themselves never go through the JVM one by one,
which would cost as much as folding them.

Of one log, pieces come in the order of their first position. Where they overlap they are put
together, so that a document always sees its rows in the order of the log.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from syncline.kernels.log_records import Flags, Integers
from syncline.pipeline.arrow import batch_of_rows, schema_of, without
from syncline.pipeline.document_folds import DocumentFold, DocumentState
from syncline.pipeline.log_branches import Heirs
from syncline.pipeline.schemas import DOCUMENT_STATES
from syncline.values.ids import STREAM_ID_BYTES
from syncline.values.limits import MIB

_pa = cast(Any, pa)
_pc = cast(Any, pc)

MESSAGE, CREATE, DELETE, SNAPSHOT = 1, 3, 4, 6
_IS_DOCUMENT: Final = 0x80
_PIECE_BYTES_MAX: Final = 8 * MIB
# What is given to Spark in one go.
_RESULT_BYTES: Final = 8 * MIB
_RESULT_ROWS: Final = 10_000

STATES: Final = without(DOCUMENT_STATES.schema, ["run"])
ROWS: Final = schema_of(
    [
        pa.field("position", pa.int64()),
        pa.field("kind", pa.int8()),
        # Of a row from a run that is not known.
        pa.field("is_document", pa.bool_()),
        pa.field("stream", pa.binary()),
        pa.field("seq", pa.int64()),
        # Large: what is put together may be more than offsets of 32 bits reach.
        pa.field("body", pa.large_binary()),
    ]
)
PIECES: Final = schema_of(
    [
        pa.field("bucket", pa.int32()),
        pa.field("store", pa.binary()),
        # 0: states of an earlier run, 1: rows of the log.
        pa.field("part", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rows", pa.binary()),
    ]
)


class Source(Enum):
    """What a file holds: rows since the last run, rows of before, or states of the last run."""

    NEW = 1
    OLD = 2
    STATES = 3


@dataclass(frozen=True, slots=True)
class Group:
    path: str
    number: int
    byte_count: int
    source: Source


@dataclass(frozen=True, slots=True)
class Cutting:
    """How rows are cut into pieces. Documents that are folded again get their old rows as well."""

    bucket_count: int
    heirs: Heirs
    again_logs: frozenset[bytes] = frozenset()
    again: frozenset[tuple[bytes, bytes]] = frozenset()


# ----------------------------------------------------------------------------------------- cutting


def pieces_of(group: Group, cutting: Cutting) -> Iterator[pa.RecordBatch]:
    """In a worker: the pieces of one row group."""
    pieces = (
        _state_pieces(group, cutting)
        if group.source is Source.STATES
        else _row_pieces(group, cutting)
    )
    for bucket, store, part, first, last, rows in pieces:
        yield batch_of_rows([(bucket, store, part, first, last, rows)], PIECES)


_Piece = tuple[int, bytes, int, int, int, bytes]


def _row_pieces(group: Group, cutting: Cutting) -> Iterator[_Piece]:
    file: Any = cast(Any, pq).ParquetFile(group.path)
    heads = file.read_row_group(
        group.number, columns=["store", "position", "kind", "stream", "seq", "flags"]
    )
    kinds: npt.NDArray[np.int8] = heads.column("kind").to_numpy()
    flags: Integers = _pc.fill_null(heads.column("flags"), _IS_DOCUMENT).to_numpy()
    of_document = (flags & _IS_DOCUMENT) != 0
    # A deletion does not say what it was that is deleted.
    wanted: Flags = (kinds == SNAPSHOT) | (kinds == DELETE)
    wanted |= ((kinds == MESSAGE) | (kinds == CREATE)) & of_document
    if not wanted.any():
        return
    bodies = file.read_row_group(group.number, columns=["body"]).column("body")
    is_known = _pc.is_valid(heads.column("flags"))
    columns = [
        heads.column("position"),
        heads.column("kind"),
        _pc.or_(is_known, _pc.equal(heads.column("kind"), SNAPSHOT)),
        heads.column("stream"),
        heads.column("seq"),
        bodies.cast(pa.large_binary()),
    ]
    rows = _pa.table(columns, schema=ROWS)
    stores = heads.column("store").combine_chunks().dictionary_encode()
    if not wanted.all():
        mask = _pa.array(wanted)
        rows, stores = rows.filter(mask), stores.filter(mask)
    if isinstance(stores, _pa.ChunkedArray):
        stores = stores.combine_chunks()
    rows = rows.combine_chunks()
    names: list[bytes] = stores.dictionary.to_pylist()
    numbers: Integers = stores.indices.to_numpy()
    for number, former in enumerate(names):
        own = rows if len(names) == 1 else rows.filter(_pa.array(numbers == number))
        for store, limit in [(former, None), *cutting.heirs.get(former, [])]:
            found = own if limit is None else own.filter(_pc.less(own.column("position"), limit))
            if group.source is Source.OLD:
                found = _again(store, found, cutting)
            if len(found):
                yield from _cut(store, found.combine_chunks().to_batches()[0], cutting)


def _again(store: bytes, rows: Any, cutting: Cutting) -> Any:
    """Of rows that an earlier run had: those of documents that are folded again."""
    if store in cutting.again_logs:
        return rows
    streams = [stream for log, stream in cutting.again if log == store]
    return rows.filter(_pc.is_in(rows.column("stream"), value_set=_pa.array(streams, pa.binary())))


def _cut(store: bytes, rows: Any, cutting: Cutting) -> Iterator[_Piece]:
    positions: Integers = rows.column("position").to_numpy()
    buckets = _buckets(rows, cutting.bucket_count)
    # By position inside of each bucket: then pieces of one row group do not overlap.
    order = np.lexsort((positions, buckets))
    rows = rows.take(_pa.array(order))
    positions, buckets = positions[order], buckets[order]
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
    for start, end in zip(starts, np.r_[starts[1:], len(buckets)], strict=True):
        for first, last in _small_enough(rows, int(start), int(end)):
            piece = rows.slice(first, last - first).serialize().to_pybytes()
            bounds = int(positions[first]), int(positions[last - 1])
            yield int(buckets[first]), store, 1, *bounds, piece


def _small_enough(rows: Any, start: int, end: int) -> Iterator[tuple[int, int]]:
    if end - start > 1 and rows.slice(start, end - start).nbytes > _PIECE_BYTES_MAX:
        middle = (start + end) // 2
        yield from _small_enough(rows, start, middle)
        yield from _small_enough(rows, middle, end)
    else:
        yield start, end


def _buckets(rows: Any, bucket_count: int) -> npt.NDArray[np.int32]:
    """By the first two bytes of a stream, which is a hash of a name."""
    ids = _ids(rows.column("stream"))
    heads: npt.NDArray[np.int32] = ids[:, 0].astype(np.int32) << 8 | ids[:, 1]
    return heads % np.int32(bucket_count)


def _ids(column: Any) -> npt.NDArray[np.uint8]:
    """Streams, all of which have as many bytes: an expectation of `ingest`."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    start = int(offsets[column.offset])
    values = np.frombuffer(column.buffers()[2], np.uint8)
    return values[start : start + len(column) * STREAM_ID_BYTES].reshape(-1, STREAM_ID_BYTES)


def _state_pieces(group: Group, cutting: Cutting) -> Iterator[_Piece]:
    file: Any = cast(Any, pq).ParquetFile(group.path)
    rows = file.read_row_group(group.number).combine_chunks().cast(STATES)
    if not len(rows):
        return
    names = zip(rows.column("store").to_pylist(), rows.column("stream").to_pylist(), strict=True)
    kept = [
        store not in cutting.again_logs and (store, stream) not in cutting.again
        for store, stream in names
    ]
    rows = rows.filter(_pa.array(kept))
    for store in _pc.unique(rows.column("store")).to_pylist():
        own = rows.filter(_pc.equal(rows.column("store"), store)).combine_chunks()
        batch = own.to_batches()[0]
        buckets = _buckets(batch, cutting.bucket_count)
        order = np.argsort(buckets, kind="stable")
        batch, buckets = batch.take(_pa.array(order)), buckets[order]
        starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
        for start, end in zip(starts, np.r_[starts[1:], len(buckets)], strict=True):
            for first, last in _small_enough(batch, int(start), int(end)):
                piece = batch.slice(first, last - first).serialize().to_pybytes()
                yield int(buckets[first]), store, 0, 0, 0, piece


# ----------------------------------------------------------------------------------------- folding

# By log: where a stretch that could not be read begins or ends, ascending.
Edges = Mapping[bytes, Integers]
_NO_EDGES: Final = np.empty(0, np.int64)


def folded(pieces: Iterable[pa.RecordBatch], edges: Edges) -> Iterator[pa.RecordBatch]:
    """In a worker: pieces by log, states first, then rows by position. The states that come of it.

    A bucket of documents is in memory, and the pieces that overlap.
    """
    log: _Log | None = None
    for batch in pieces:
        for place in range(batch.num_rows):
            store, part, first, last, rows = (
                cast(Any, batch.column(name))[place].as_py()
                for name in ("store", "part", "first", "last", "rows")
            )
            if log is None or log.store != store:
                if log is not None:
                    yield from log.results()
                log = _Log(store, edges.get(store, _NO_EDGES))
            log.take(part, first, last, rows)
    if log is not None:
        yield from log.results()


class _Log:
    """Documents of one log and one bucket."""

    def __init__(self, store: bytes, edges: Integers) -> None:
        self.store = store
        self._edges = edges
        self._states: list[Any] = []
        # Where the state of a stream is, as long as nothing has come for it.
        self._state_at: dict[bytes, tuple[int, int]] = {}
        self._folds: dict[bytes, DocumentFold] = {}
        self._overlapping: list[Any] = []
        self._up_to = -1

    def take(self, part: int, first: int, last: int, rows: bytes) -> None:
        schema = STATES if part == 0 else ROWS
        batch: Any = _pa.ipc.read_record_batch(_pa.py_buffer(rows), schema)
        if part == 0:
            for place, stream in enumerate(batch.column("stream").to_pylist()):
                self._state_at[stream] = (len(self._states), place)
            self._states.append(batch)
            return
        if first > self._up_to:
            self._fold_overlapping()
        self._overlapping.append(batch)
        self._up_to = max(self._up_to, last)

    def results(self) -> Iterator[pa.RecordBatch]:
        self._fold_overlapping()
        waiting: list[tuple[object, ...]] = []
        byte_count = 0
        for fold in self._folds.values():
            if (found := fold.result()) is None:
                continue
            waiting.append(_as_row(found))
            byte_count += found.bytes_out
            if byte_count >= _RESULT_BYTES or len(waiting) >= _RESULT_ROWS:
                yield batch_of_rows(waiting, STATES)
                waiting, byte_count = [], 0
        yield batch_of_rows(waiting, STATES)
        kept: list[list[int]] = [[] for _ in self._states]
        for number, place in self._state_at.values():
            kept[number].append(place)
        for batch, places in zip(self._states, kept, strict=True):
            if places:
                yield batch.take(_pa.array(places))

    def _fold_overlapping(self) -> None:
        if not self._overlapping:
            return
        rows = _pa.Table.from_batches(self._overlapping).combine_chunks().to_batches()[0]
        self._overlapping = []
        ids = _ids(rows.column("stream"))
        positions: Integers = rows.column("position").to_numpy()
        heads = np.ascontiguousarray(ids[:, :8]).view(np.uint64)[:, 0]
        # Should two streams begin with the same eight bytes, their rows alternate: that is no harm.
        order = np.lexsort((positions, heads))
        rows = rows.take(_pa.array(order))
        self._fold_sorted(rows, ids[order], positions[order])

    def _fold_sorted(self, rows: Any, ids: npt.NDArray[np.uint8], positions: Integers) -> None:
        kinds: npt.NDArray[np.int8] = rows.column("kind").to_numpy()
        seqs: Integers = _pc.fill_null(rows.column("seq"), 0).to_numpy()
        known: Flags = rows.column("is_document").to_numpy(zero_copy_only=False)
        edges = np.searchsorted(self._edges, positions, "right")
        is_update = kinds == MESSAGE
        follows = is_update[1:] & is_update[:-1] & (seqs[1:] == seqs[:-1] + 1)
        follows &= (known[1:] == known[:-1]) & (edges[1:] == edges[:-1])
        follows &= (ids[1:] == ids[:-1]).all(axis=1)
        starts = np.flatnonzero(np.r_[True, ~follows])
        ends = np.r_[starts[1:], len(kinds)]
        bodies: list[bytes | None] = rows.column("body").to_pylist()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            fold = self._fold_of(ids[start].tobytes())
            if edges[start] != np.searchsorted(self._edges, fold.position, "right"):
                fold.log_is_missing()
            fold.position = int(positions[end - 1])
            _tell(
                fold,
                int(kinds[start]),
                int(seqs[start]),
                [body or b"" for body in bodies[start:end]],
                is_document=bool(known[start]),
            )

    def _fold_of(self, stream: bytes) -> DocumentFold:
        fold = self._folds.get(stream)
        if fold is None:
            state: DocumentState | None = None
            if (at := self._state_at.pop(stream, None)) is not None:
                number, place = at
                (row,) = self._states[number].slice(place, 1).to_pylist()
                state = DocumentState(**row)
            fold = self._folds[stream] = DocumentFold(self.store, stream, state)
        return fold


def _tell(
    fold: DocumentFold, kind: int, seq: int, bodies: list[bytes], *, is_document: bool
) -> None:
    match kind:
        case 1:
            fold.updates(seq, bodies, is_document=is_document)
        case 3:
            fold.created()
        case 4:
            fold.deleted()
        case _:
            fold.snapshot(seq, bodies[0])


_NAMES: Final = tuple(field.name for field in fields(DocumentState))


def _as_row(state: DocumentState) -> tuple[object, ...]:
    return tuple(getattr(state, name) for name in _NAMES)
