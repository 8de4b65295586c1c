"""Others that find the ids in which two snapshots differ."""

from pathlib import Path
from typing import Any, cast

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.pipeline.drift import Items
from syncline.pipeline.arrow import without
from syncline.pipeline.jobs.reconcile import EXTRA, MISSING
from syncline.pipeline.schemas import ASSOCIATIONS, spark_schema

_SET = ("service", "role", "id")

_VIEWS = """
    CREATE TEMP VIEW {name} AS
    SELECT service, role, id FROM read_parquet({files}, hive_partitioning = false)
"""
_ANTI_JOINS = f"""
    SELECT service, role, id, '{MISSING}' FROM {{wanted}} ANTI JOIN {{router}}
        USING (service, role, id)
    UNION ALL
    SELECT service, role, id, '{EXTRA}' FROM {{router}} ANTI JOIN {{wanted}}
        USING (service, role, id)
"""
# Count and XOR of 65,536 buckets of either side; those that differ; their ids, and no others.
_BUCKETS = """
    CREATE TEMP TABLE {name}_buckets AS
    SELECT hash & 65535 AS bucket, count(*) AS row_count, bit_xor(hash) AS hashes
    FROM (SELECT hash(service, role, id) AS hash FROM {name}) GROUP BY bucket
"""
_DIFFERING = """
    CREATE TEMP TABLE differing AS
    SELECT bucket FROM router_buckets FULL JOIN wanted_buckets AS other USING (bucket)
    WHERE router_buckets.row_count IS DISTINCT FROM other.row_count
       OR router_buckets.hashes IS DISTINCT FROM other.hashes
"""
_CANDIDATES = """
    CREATE TEMP TABLE {name}_candidates AS
    SELECT service, role, id
    FROM (SELECT *, hash(service, role, id) & 65535 AS bucket FROM {name})
    SEMI JOIN differing USING (bucket)
"""


class Duck:
    """A fresh DuckDB for every run, with the files of both snapshots as views."""

    def __init__(self, router: list[str], wanted: list[str], cores: int, folder: Path) -> None:
        self._files = {"router": router, "wanted": wanted}
        self._core_count = cores
        self._folder = folder

    def anti_joins(self) -> Items:
        with self._connected() as connection:
            return _items(connection, _ANTI_JOINS.format(router="router", wanted="wanted"))

    def pruned(self) -> Items:
        with self._connected() as connection:
            for name in self._files:
                connection.execute(_BUCKETS.format(name=name))
            connection.execute(_DIFFERING)
            for name in self._files:
                connection.execute(_CANDIDATES.format(name=name))
            names = {name: f"{name}_candidates" for name in self._files}
            return _items(connection, _ANTI_JOINS.format(**names))

    def _connected(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        connection.execute(f"SET threads = {self._core_count}")
        connection.execute(f"SET temp_directory = '{self._folder}'")
        for name, files in self._files.items():
            connection.execute(_VIEWS.format(name=name, files=files))
        return connection


def _items(connection: duckdb.DuckDBPyConnection, query: str) -> Items:
    rows = connection.execute(query).fetchall()
    return frozenset((bytes(row[0]), row[1], bytes(row[2]), row[3]) for row in rows)


def outer_join(spark: SparkSession, router: list[str], wanted: list[str]) -> Items:
    """Spark's own, as it plans it."""
    sides = [
        _scan(spark, files).withColumn(name, F.lit(True))
        for name, files in (("in_router", router), ("in_wanted", wanted))
    ]
    joined = sides[0].join(sides[1], list(_SET), how="full")
    verdict = F.when(F.col("in_router").isNull(), MISSING).otherwise(EXTRA)
    found = joined.where("in_router IS NULL OR in_wanted IS NULL").select(*_SET, verdict)
    rows = cast(list[Any], found.collect())
    return frozenset((bytes(row[0]), row[1], bytes(row[2]), row[3]) for row in rows)


def _scan(spark: SparkSession, files: list[str]) -> DataFrame:
    schema = spark_schema(without(ASSOCIATIONS.schema, ["snapshot"]))
    return spark.read.schema(schema).parquet(*files)
