"""Small aggregates of large tables: rows are folded where they are read, and only sums travel.

A fold makes a few rows of many, and of such rows of several parts again the same few, whatever the
order of the parts. So a table can be gone through in pieces: in this process, file by file, or, if
it is large and there is a session of Spark, in the workers, which send a few rows for each task.

- Only the columns that a fold names are read.
- No more than a batch of rows and what was folded so far is held at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from syncline.errors import TableError
from syncline.pipeline.arrow import footer_of, names_and_types
from syncline.pipeline.schemas import spark_schema
from syncline.pipeline.tables import TableSpec, Version

# Below this, a table is read sooner than Spark would have planned to.
IN_PROCESS_BYTES_MAX: Final = 64 << 20
_BATCH_ROWS: Final = 1 << 16
# So many folded rows may wait before they are folded together.
_WAITING_ROWS_MAX: Final = 1 << 16
_TASKS_EACH: Final = 4

# Untyped from here on, so that each of these is called by a name that is known.
_pa = cast(Any, pa)
_pc = cast(Any, pc)
_pq = cast(Any, pq)

Partition = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Fold:
    """`rows` folds rows of the table, `again` folds what it gave; both give `schema`."""

    columns: tuple[str, ...]
    schema: pa.Schema
    rows: Callable[[pa.Table], pa.Table]
    again: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A row group, and what its folder says of its rows."""

    path: str
    number: int
    partition: Partition


class Reader:
    """Folds versions of tables, in this process or in Spark's workers."""

    def __init__(self, spark: SparkSession | None, in_process_bytes_max: int | None = None) -> None:
        """A table up to so many bytes is read here, else up to `IN_PROCESS_BYTES_MAX`."""
        self._spark = spark
        self._in_process_bytes_max = (
            IN_PROCESS_BYTES_MAX if in_process_bytes_max is None else in_process_bytes_max
        )

    def folded(self, spec: TableSpec, version: Version, fold: Fold) -> list[dict[str, Any]]:
        """The few rows that are left. Raises TableError if a file cannot be read."""
        # Opening a footer tells a broken file from a good one before any work starts.
        pieces = list(_pieces(spec, version))
        byte_count = sum(each.byte_count for each in version.files)
        if self._spark is None or byte_count <= self._in_process_bytes_max:
            found = _folded(spec, pieces, fold)
        else:
            found = _folded_by_workers(self._spark, spec, pieces, fold)
        return cast(list[dict[str, Any]], cast(Any, found).to_pylist())


def needs_workers(versions: Sequence[Version]) -> bool:
    """Whether any of the tables is too large to be read in one process."""
    return any(
        sum(each.byte_count for each in version.files) > IN_PROCESS_BYTES_MAX
        for version in versions
    )


# ------------------------------------------------------------------------------------- what folds


def summed(
    table: pa.Table, keys: Sequence[str], *, sums: Sequence[str] = (), highest: Sequence[str] = ()
) -> pa.Table:
    """A row for each group. The columns keep their names; keys come first."""
    asked = [(name, "sum") for name in sums] + [(name, "max") for name in highest]
    found = cast(Any, table).group_by(list(keys), use_threads=False).aggregate(asked)
    # Arrow had keys behind the sums once.
    ordered = found.select([*keys, *(f"{name}_{how}" for name, how in asked)])
    return cast(pa.Table, ordered.rename_columns([*keys, *sums, *highest]))


def summing(
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    sums: Sequence[str] = (),
    highest: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    prepared: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> Fold:
    """A fold that adds up, of rows that were `prepared` to have the columns of `schema`."""

    def again(rows: pa.Table) -> pa.Table:
        return shaped(summed(rows, keys, sums=sums, highest=highest), schema)

    read = tuple(columns if columns is not None else (*keys, *sums, *highest))
    return Fold(read, schema, lambda rows: again(prepared(rows)), again)


def highest_rows(
    schema: pa.Schema,
    order: Sequence[tuple[str, str]],
    count: int,
    *,
    prepared: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    columns: Sequence[str] | None = None,
) -> Fold:
    """A fold that keeps the first `count` rows in an order that names every row."""

    def again(rows: pa.Table) -> pa.Table:
        places = _pc.sort_indices(rows, sort_keys=list(order))
        return shaped(cast(Any, rows).take(places[:count]), schema)

    read = tuple(columns if columns is not None else (name for name, _ in names_and_types(schema)))
    return Fold(read, schema, lambda rows: again(prepared(rows)), again)


def worst_of_each(
    schema: pa.Schema,
    keys: Sequence[str],
    order: Sequence[tuple[str, str]],
    count: int,
    *,
    prepared: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> Fold:
    """A fold that keeps the first row of each group, and of those the first `count`.

    A group that is among the first of all is among them in the part that has its first row, so
    nothing is missed by keeping so few of each part.
    """
    whole_order = [*order, *((name, "ascending") for name in keys)]

    def again(rows: pa.Table) -> pa.Table:
        there: Any = rows
        there = there.take(_pc.sort_indices(there, sort_keys=whole_order))
        placed = there.append_column("place", _pa.array(np.arange(len(there))))
        firsts = placed.group_by(list(keys), use_threads=False).aggregate([("place", "min")])
        places = np.sort(firsts.column("place_min").to_numpy())[:count]
        return shaped(there.take(_pa.array(places)), schema)

    columns = tuple(name for name, _ in names_and_types(schema))
    return Fold(columns, schema, lambda rows: again(prepared(rows)), again)


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order and with its types."""
    names = [name for name, _ in names_and_types(schema)]
    return cast(pa.Table, cast(Any, table).select(names).cast(schema))


def chosen(table: pa.Table, is_wanted: object) -> pa.Table:
    """The rows for which an expression of Arrow holds."""
    return cast(pa.Table, cast(Any, table).filter(is_wanted))


def counted(table: pa.Table) -> pa.Table:
    """With a column `count` of ones, to be added up."""
    return with_column(table, "count", _pa.repeat(_pa.scalar(1, _pa.int64()), len(table)))


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    """With a column more, or with another one under its name."""
    there: Any = table
    place = there.schema.get_field_index(name)
    if place >= 0:
        return cast(pa.Table, there.set_column(place, name, values))
    return cast(pa.Table, there.append_column(name, values))


# ------------------------------------------------------------------------------------ going through


def _pieces(spec: TableSpec, version: Version) -> Iterator[_Piece]:
    for each in version.files:
        try:
            footer = footer_of(each.path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(spec, str(each.path), error) from error
        for number in range(footer.num_row_groups):
            yield _Piece(str(each.path), number, each.partition)


def _folded(spec: TableSpec, pieces: Sequence[_Piece], fold: Fold) -> pa.Table:
    """All pieces, one after another."""
    waiting: list[pa.Table] = []
    for piece in pieces:
        for rows in _read(spec, piece, fold.columns):
            waiting.append(fold.rows(rows))
            if sum(map(len, waiting)) > _WAITING_ROWS_MAX:
                waiting = [fold.again(_joined(waiting))]
    if not waiting:
        return fold.schema.empty_table()
    return fold.again(_joined(waiting))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return cast(pa.Table, _pa.concat_tables(tables))


def _folded_by_workers(
    spark: SparkSession, spec: TableSpec, pieces: Sequence[_Piece], fold: Fold
) -> pa.Table:
    # Neighbours go to different tasks: row groups of one file are alike in size.
    task_count = min(len(pieces), _TASKS_EACH * spark.sparkContext.defaultParallelism) or 1
    shares = [list(pieces[number::task_count]) for number in range(task_count)]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast(list[int], cast(Any, batch.column(0)).to_pylist()):
                yield from cast(Any, _folded(spec, shares[number], fold)).to_batches()

    numbers = spark.range(0, task_count, 1, task_count)
    parts = numbers.mapInArrow(cast(Any, run), spark_schema(fold.schema))
    try:
        found = cast(Any, parts).toArrow()
    except PySparkException as error:
        raise TableError(spec.name, f"its files could not be read ({_last_line(error)})") from error
    return fold.again(shaped(found, fold.schema))


def _read(spec: TableSpec, piece: _Piece, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a row group in batches, with the columns of its partition."""
    stored = [name for name in columns if name not in piece.partition]
    try:
        with _pq.ParquetFile(piece.path) as file:
            missing = set(stored) - set(file.schema_arrow.names)
            if missing:
                raise TableError(
                    spec.name, f"{piece.path} has no column {', '.join(sorted(missing))}"
                )
            batches: Iterator[Any] = file.iter_batches(
                _BATCH_ROWS, row_groups=[piece.number], columns=stored, use_threads=False
            )
            for batch in batches:
                yield _with_partition(spec, _pa.table(batch), piece.partition, columns)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(spec, piece.path, error) from error


def _with_partition(
    spec: TableSpec, rows: pa.Table, partition: Partition, columns: Sequence[str]
) -> pa.Table:
    there: Any = rows
    for name in columns:
        kind = cast(Any, spec.schema).field(name).type
        if name in partition:
            value = _pa.scalar(partition[name], _pa.string()).cast(kind)
            there = there.append_column(name, _pa.repeat(value, len(rows)))
    schema = _pa.schema(
        [cast(Any, spec.schema).field(name).with_nullable(True) for name in columns]
    )
    return shaped(there, schema)


def _unreadable(spec: TableSpec, path: str, error: Exception) -> TableError:
    return TableError(spec.name, f"{path} cannot be read ({_last_line(error)})")


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
