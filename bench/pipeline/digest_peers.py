"""Others that compute the digests of the sets of a snapshot, each as one would write it there."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from syncline.kernels import compiled
from syncline.kernels.prefix_digests import digests_at
from syncline.pipeline.arrow import batch_of_rows, without
from syncline.pipeline.jobs.digest import PARTIAL
from syncline.pipeline.row_groups import ids_of, sets_together
from syncline.pipeline.schemas import ASSOCIATIONS, spark_schema

# By set: count, the halves of the XOR, the four sums.
Sums = dict[tuple[bytes, str], tuple[int, ...]]
# By set: count, and the XOR of MD5 as a number.
Md5s = dict[tuple[bytes, str], tuple[int, int]]

_MASK = (1 << 64) - 1
# Row groups of one turn of a process.
_GROUPS_EACH = 8


# ------------------------------------------------------------------------------------ two processes


class TwoProcesses:
    """Hand-written: two processes, pyarrow and the same kernel in NumPy; started beforehand."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))

    def warm(self) -> None:
        list(self._pool.map(_be_ready, range(4)))

    def digests(self, files: list[str]) -> Sums:
        turns: list[tuple[str, range]] = []
        for path in files:
            count = cast(Any, pq).read_metadata(path).num_row_groups
            turns += [
                (path, range(first, min(first + _GROUPS_EACH, count)))
                for first in range(0, count, _GROUPS_EACH)
            ]
        whole: Sums = {}
        for found in self._pool.map(_digest_turn, turns):
            for name, numbers in found.items():
                _add(whole, name, numbers)
        return whole

    def close(self) -> None:
        self._pool.shutdown()


def _be_ready(_: int) -> bool:
    return compiled.is_ready()


def _digest_turn(turn: tuple[str, range]) -> Sums:
    path, numbers = turn
    file: Any = cast(Any, pq).ParquetFile(path, read_dictionary=["service", "role"])
    sums: Sums = {}
    for number in numbers:
        rows = file.read_row_group(number, columns=["service", "role", "id"]).combine_chunks()
        services, roles, ids = (rows.column(name).chunk(0) for name in ("service", "role", "id"))
        _digest_rows(services, roles, ids, sums)
    return sums


def _digest_rows(services: Any, roles: Any, ids: Any, sums: Sums) -> None:
    found = sets_together(services, roles, ids_of(ids, "a file of the bench"))
    counts, xor_high, xor_low, parts = digests_at(found.ids, found.starts)
    rows = np.stack([counts, xor_high, xor_low, *parts], axis=1).tolist()
    for name, numbers in zip(found.sets, rows, strict=True):
        _add(sums, name, tuple(numbers))


def _add(sums: Sums, name: tuple[bytes, str], numbers: tuple[int, ...]) -> None:
    count, high, low, *parts = sums.get(name, (0,) * 7)
    added = (known + new for known, new in zip(parts, numbers[3:], strict=True))
    sums[name] = (count + numbers[0], high ^ numbers[1], low ^ numbers[2], *added)


# -------------------------------------------------------------------------------------- mapInArrow


def scanned(spark: SparkSession, files: list[str]) -> DataFrame:
    """Spark reads, and sends the rows to Python, where the same kernel hashes them."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            services, roles = (
                cast(Any, batch.column(name)).dictionary_encode() for name in ("service", "role")
            )
            sums: Sums = {}
            _digest_rows(services, roles, batch.column("id"), sums)
            rows = [(*name, *numbers, None, None) for name, numbers in sums.items()]
            yield batch_of_rows(rows, PARTIAL)

    schema = without(ASSOCIATIONS.schema, ["snapshot"])
    rows = spark.read.schema(spark_schema(schema)).parquet(*files)
    return rows.mapInArrow(cast(Any, run), spark_schema(PARTIAL))


# ------------------------------------------------------------------------------------------ DuckDB


def duckdb_md5(files: list[str], thread_count: int) -> Md5s:
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {thread_count}")
        rows = connection.execute(
            "SELECT service, role, count(*), bit_xor(md5_number(id)) "
            "FROM read_parquet($1, hive_partitioning = false) GROUP BY service, role",
            [files],
        ).fetchall()
    return {(bytes(row[0]), row[1]): (row[2], row[3]) for row in rows}


def as_duckdb_has_it(high: int, low: int) -> int:
    """The halves of an MD5 as the number that DuckDB makes of it, its bytes the other way round."""
    digest = ((high & _MASK) << 64 | (low & _MASK)).to_bytes(16, "big")
    return int.from_bytes(digest, "little")
