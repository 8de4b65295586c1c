"""Row groups of `events` with what their file says of them, so that few have to be looked into."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from syncline.pipeline.arrow import footer_of
from syncline.pipeline.tables import DataFile
from syncline.pipeline.tasks import worked_off

Integers = npt.NDArray[np.int64]

# What a row group is read for.
NEW: Final = 0
CARRIED: Final = 1
# Rows of earlier runs that turned out to be gone by a restore.
ROLLED_BACK: Final = 2

# Tasks for each core: enough that none waits long for the last one.
_TASKS_EACH: Final = 4
_BOUNDS: Final[tuple[str, ...]] = ("store", "kind", "event", "position", "time_ms")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file, and what it is read for."""

    path: str
    number: int
    row_count: int
    purpose: int


@dataclass(frozen=True, slots=True)
class LogGroup:
    """Bounds are by column; a column is not there if the file does not say."""

    group: RowGroup
    bounds: dict[str, tuple[Any, Any]]

    def has_only(self, column: str) -> Any | None:
        """The value of a column, if all rows have the same."""
        low, high = self.bounds.get(column, (None, None))
        return low if low is not None and low == high else None

    def may_have(self, column: str, low: int, high: int) -> bool:
        found = self.bounds.get(column)
        return found is None or (found[0] <= high and found[1] >= low)


def log_groups(files: Sequence[DataFile], purpose: int) -> list[LogGroup]:
    """Of all files, read from their footers."""
    found: list[LogGroup] = []
    for each in files:
        footer = footer_of(each.path)
        names = [footer.schema.column(place).name for place in range(footer.num_columns)]
        columns: dict[str, int] = {name: names.index(name) for name in _BOUNDS if name in names}
        for number in range(footer.num_row_groups):
            group: Any = footer.row_group(number)
            task = RowGroup(str(each.path), number, group.num_rows, purpose)
            found.append(LogGroup(task, _bounds(group, columns)))
    return found


def _bounds(group: Any, columns: dict[str, int]) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for name, place in columns.items():
        column = group.column(place)
        known = column.statistics
        if known is None:
            continue
        if known.has_min_max:
            found[name] = known.min, known.max
        elif known.null_count == group.num_rows:
            # Nothing is between these.
            found[name] = _NOTHING
    return found


_NOTHING: Final = (1, 0)


def read_columns(group: RowGroup, columns: Sequence[str], coded: Sequence[str] = ()) -> Any:
    """An Arrow table of one chunk each; of `coded` columns as numbers into a short list."""
    file: Any = cast(Any, pq).ParquetFile(group.path, read_dictionary=list(coded), pre_buffer=False)
    # Every core has a worker of its own: threads would get into each other's way.
    rows = file.read_row_group(group.number, columns=list(columns), use_threads=False)
    return rows.combine_chunks()


def numbers(table: Any, name: str, empty: int = 0) -> npt.NDArray[Any]:
    """A column as NumPy has it, with a value in place of nothing."""
    column = table.column(name)
    if column.num_chunks == 0:
        return np.empty(0, column.type.to_pandas_dtype())
    chunk: Any = column.chunk(0)
    if chunk.null_count:
        chunk = chunk.fill_null(empty)
    found: npt.NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
    return found


def codes(table: Any, name: str) -> tuple[list[bytes | None], Integers]:
    """The values of a column read as coded, and for each row which; -1 for nothing."""
    values, indices = _coded(table, name)
    return ([] if values is None else values.to_pylist()), indices


def coded_rows(table: Any, name: str, size: int) -> tuple[npt.NDArray[np.uint8], Integers]:
    """As `codes`, with the values as rows of bytes. What has another size is cut or filled up."""
    values, indices = _coded(table, name)
    if values is None or not len(values):
        return np.zeros((0, size), np.uint8), indices
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    if not values.null_count and (np.diff(offsets) == size).all():
        data = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        return data.reshape(-1, size), indices
    padded = [bytes(each or b"").ljust(size, b"\0")[:size] for each in values.to_pylist()]
    return np.frombuffer(b"".join(padded), np.uint8).reshape(-1, size), indices


def _coded(table: Any, name: str) -> tuple[Any, Integers]:
    column = table.column(name)
    if column.num_chunks == 0:
        return None, np.empty(0, np.int64)
    chunk: Any = column.chunk(0)
    if not isinstance(chunk, pa.DictionaryArray):
        chunk = chunk.dictionary_encode()
    indices: Any = cast(Any, chunk).indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    return cast(Any, chunk).dictionary, indices.to_numpy(zero_copy_only=False).astype(np.int64)


def worked_through(
    spark: SparkSession,
    groups: Sequence[RowGroup],
    work: Callable[[RowGroup], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """What `work` makes of each row group."""
    core_count = spark.sparkContext.defaultParallelism
    return worked_off(spark, groups, work, schema, _TASKS_EACH * core_count)
