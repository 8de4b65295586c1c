"""Work on the row groups of Parquet files, inside Spark's workers.

Spark hands out which row group is whose, and gets back what was made of it; the rows themselves go
from the file to NumPy and never through the JVM, which would cost more than all that is done with
them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from syncline.errors import SchemaError
from syncline.kernels.prefix_digests import Integers
from syncline.kernels.xxh3 import ID_BYTES, Ids
from syncline.pipeline.arrow import footer_of
from syncline.pipeline.schemas import spark_schema
from syncline.pipeline.tables import Version

# Tasks for each core: enough that none waits long for the last one.
_TASKS_EACH = 4


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of ids. The bounds are what the file says; None if it does not."""

    path: str
    number: int
    row_count: int
    services: tuple[bytes, bytes] | None
    ids: tuple[bytes, bytes] | None
    # Of which input, for jobs that have two.
    side: int = 0


@dataclass(frozen=True, slots=True)
class IdSet:
    """Ids of one set that stand in one row group."""

    service: bytes
    role: str
    ids: Ids


def row_groups(version: Version, side: int = 0) -> list[RowGroup]:
    """Of all files, read from their footers."""
    found: list[RowGroup] = []
    for each in version.files:
        footer = footer_of(each.path)
        names = [footer.schema.column(place).name for place in range(footer.num_columns)]
        service, member = names.index("service"), names.index("id")
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            services, ids = _bounds(group, service), _bounds(group, member)
            found.append(RowGroup(str(each.path), number, group.num_rows, services, ids, side))
    return found


def _bounds(group: Any, column: int) -> tuple[bytes, bytes] | None:
    found = group.column(column).statistics
    if found is None or not found.has_min_max:
        return None
    return bytes(found.min), bytes(found.max)


def read_sets(group: RowGroup) -> Iterator[IdSet]:
    """The ids of a row group by the set that they are in."""
    # Service and role stand in the file as numbers into a short list: they are left so.
    file: Any = cast(Any, pq).ParquetFile(group.path, read_dictionary=["service", "role"])
    columns = file.read_row_group(group.number, columns=["service", "role", "id"]).combine_chunks()
    if not len(columns):
        return
    services, roles = (columns.column(name).chunk(0) for name in ("service", "role"))
    ids = ids_of(columns.column("id").chunk(0), group.path)
    service_names: list[bytes] = services.dictionary.to_pylist()
    role_names: list[str] = roles.dictionary.to_pylist()
    if len(service_names) == len(role_names) == 1:
        yield IdSet(service_names[0], role_names[0], ids)
        return
    codes: Integers = services.indices.to_numpy().astype(np.int64) * len(role_names)
    codes += roles.indices.to_numpy()
    for code in map(int, np.unique(codes)):
        service, role = divmod(code, len(role_names))
        yield IdSet(service_names[service], role_names[role], ids[codes == code])


def ids_of(column: Any, path: str) -> Ids:
    """A binary column of ids as rows of bytes, without a copy. Raises SchemaError."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    if column.null_count or (np.diff(offsets) != ID_BYTES).any():
        raise SchemaError(f"{path} has ids that do not have {ID_BYTES} bytes")
    start, end = int(offsets[0]), int(offsets[-1])
    return np.frombuffer(column.buffers()[2], np.uint8)[start:end].reshape(-1, ID_BYTES)


def worked_through(
    spark: SparkSession,
    groups: Sequence[RowGroup],
    work: Callable[[RowGroup], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """What `work` makes of each row group."""
    tasks = list(groups)
    part_count = min(len(tasks), _TASKS_EACH * spark.sparkContext.defaultParallelism) or 1

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast(list[int], cast(Any, batch.column(0)).to_pylist()):
                yield from work(tasks[number])

    numbers = spark.range(0, len(tasks), 1, part_count)
    return numbers.mapInArrow(cast(Any, run), spark_schema(schema))
