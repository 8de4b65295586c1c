"""Work on the row groups of Parquet files, inside Spark's workers.

Spark hands out which row groups are whose, and gets back what was made of them; the rows themselves
go from the file to NumPy and never through the JVM, which would cost more than all that is done
with them.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from syncline.errors import SchemaError
from syncline.kernels import compiled
from syncline.kernels.prefix_digests import Integers
from syncline.kernels.segments import Starts, segment_starts
from syncline.kernels.xxh3 import ID_BYTES, Ids
from syncline.pipeline.arrow import footer_of
from syncline.pipeline.tables import Version
from syncline.pipeline.tasks import worked_off

# What the tasks of a core do, one after the other. A task costs some 50 ms by itself.
_WEIGHTS: Final = (5, 3, 2)
# Rows for each core from which on it pays to load numba in every worker.
_COMPILED_ROWS: Final = 1 << 22

# Rows that go to the JVM in one piece: each piece costs the same on its way.
_BATCH_ROWS: Final = 16_384

_SET: Final = ("service", "role")
# A service and a role.
SetName = tuple[bytes, str]


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
    # The set that all of its rows are of, where the file says that it is one.
    only: SetName | None = None


@dataclass(frozen=True, slots=True)
class GroupIds:
    """The ids of a row group, those of a set together. A set may be there more than once."""

    ids: Ids
    sets: list[SetName]
    starts: Starts

    @property
    def counts(self) -> Integers:
        return np.diff(self.starts, append=len(self.ids))


# ----------------------------------------------------------------------------------------- reading


def row_groups(version: Version, side: int = 0) -> list[RowGroup]:
    """Of all files, read from their footers."""
    found: list[RowGroup] = []
    for each in version.files:
        footer = footer_of(each.path)
        names = [footer.schema.column(place).name for place in range(footer.num_columns)]
        service, role, member = (names.index(name) for name in ("service", "role", "id"))
        for number in range(footer.num_row_groups):
            group: Any = footer.row_group(number)
            services, ids = _bounds(group, service), _bounds(group, member)
            only = None
            if services is not None and services[0] == services[1]:
                roles = _bounds(group, role)
                if roles is not None and roles[0] == roles[1]:
                    only = (services[0], roles[0].decode())
            path, count = str(each.path), group.num_rows
            found.append(RowGroup(path, number, count, services, ids, side, only))
    return found


def _bounds(group: Any, column: int) -> tuple[bytes, bytes] | None:
    found = group.column(column).statistics
    # A row without a value is in no bounds.
    if found is None or not found.has_min_max or found.null_count != 0:
        return None
    return _as_bytes(found.min), _as_bytes(found.max)


def _as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def read_groups(groups: Iterable[RowGroup]) -> Iterator[tuple[RowGroup, GroupIds]]:
    """The ids of each; a file stays open for those of its row groups that follow one another."""
    path, file = "", cast(Any, None)
    for group in groups:
        if group.path != path:
            # They stand in the file as numbers into a short list, and are left so.
            names = list(_SET)
            file = cast(Any, pq).ParquetFile(group.path, read_dictionary=names, pre_buffer=False)
            path = group.path
        # Every core has a worker of its own: threads would get into each other's way.
        columns = ["id"] if group.only is not None else [*_SET, "id"]
        rows = file.read_row_group(group.number, columns=columns, use_threads=False)
        ids = ids_of(_in_one(rows.column("id")), group.path)
        if not len(ids):
            continue
        if group.only is not None:
            yield group, GroupIds(ids, [group.only], np.zeros(1, np.int64))
        else:
            services, roles = (_in_one(rows.column(name)) for name in _SET)
            yield group, sets_together(services, roles, ids)


def _in_one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def sets_together(services: Any, roles: Any, ids: Ids) -> GroupIds:
    """Ids by their sets, of which the first two are columns of numbers into lists."""
    service_names: list[bytes] = services.dictionary.to_pylist()
    role_names: list[str] = roles.dictionary.to_pylist()
    codes: Integers = services.indices.to_numpy().astype(np.int64) * len(role_names)
    codes += roles.indices.to_numpy()
    starts = segment_starts(codes[1:] != codes[:-1])
    if len(starts) > len(service_names) * len(role_names):
        # They are not sorted.
        order = np.argsort(codes, kind="stable")
        codes, ids = codes[order], ids[order]
        starts = segment_starts(codes[1:] != codes[:-1])
    chosen: list[int] = codes[starts].tolist()
    numbers = [divmod(code, len(role_names)) for code in chosen]
    sets = [(service_names[service], role_names[role]) for service, role in numbers]
    return GroupIds(ids, sets, starts)


def ids_of(column: Any, path: str) -> Ids:
    """A binary column of ids as rows of bytes, without a copy. Raises SchemaError."""
    if not len(column):
        return np.empty((0, ID_BYTES), np.uint8)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    if column.null_count or (np.diff(offsets) != ID_BYTES).any():
        raise SchemaError(f"{path} has ids that do not have {ID_BYTES} bytes")
    start, end = int(offsets[0]), int(offsets[-1])
    return np.frombuffer(column.buffers()[2], np.uint8)[start:end].reshape(-1, ID_BYTES)


# ----------------------------------------------------------------------------------------- working


def worked_through(
    spark: SparkSession,
    groups: Sequence[RowGroup],
    work: Callable[[Iterator[RowGroup]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """What `work` makes of the row groups, of which each task gets some that follow each other."""
    core_count = spark.sparkContext.defaultParallelism
    parts = parts_of(groups, core_count)
    is_large = sum(group.row_count for group in groups) >= _COMPILED_ROWS * core_count

    def run(part: list[RowGroup]) -> Iterator[pa.RecordBatch]:
        _settle()
        if is_large:
            compiled.prepare()
        return gathered(work(iter(part)))

    return worked_off(spark, parts, run, schema, len(parts))


def parts_of(groups: Sequence[RowGroup], core_count: int) -> list[list[RowGroup]]:
    """One part for each task: large ones first, so that at the end nobody waits for long."""
    wanted = [weight for weight in _WEIGHTS for _ in range(core_count)]
    edges = np.cumsum([0, *wanted]) * len(groups) // sum(wanted)
    parts = [list(groups[start:end]) for start, end in pairwise(edges.tolist())]
    return [part for part in parts if part]


def _settle() -> None:
    """After every task a worker looks for garbage: among our modules it need not."""
    if not gc.get_freeze_count():
        gc.freeze()


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches."""
    waiting: list[pa.RecordBatch] = []
    row_count = 0
    for batch in batches:
        waiting.append(batch)
        row_count += batch.num_rows
        if row_count >= _BATCH_ROWS:
            yield cast(Any, pa).concat_batches(waiting)
            waiting, row_count = [], 0
    if row_count:
        yield cast(Any, pa).concat_batches(waiting)
