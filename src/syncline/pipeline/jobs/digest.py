"""`digest`: what the ids of a snapshot come to, set by set, compared with what the router claimed.

Row groups are hashed where they are read; what is shuffled is a row for each set and row group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.kernels.md5 import xor_md5
from syncline.kernels.prefix_digests import prefix_digests
from syncline.pipeline.arrow import batch_of_rows, without
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.row_groups import RowGroup, read_sets, row_groups, worked_through
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, SERVICE_DIGESTS
from syncline.pipeline.snapshot_tables import snapshot_of
from syncline.pipeline.tables import Table

# A row for each set in a row group: the digest of its ids there.
PARTIAL: Final = without(SERVICE_DIGESTS.schema, ["snapshot", "claimed_count", "matches"])
_SET: Final = ("service", "role")
_SUMS: Final = ("count", "sum_3", "sum_2", "sum_1", "sum_0")
_XORS: Final = ("xor_high", "xor_low", "md5_high", "md5_low")

EXPECTATIONS: Final = [
    Expectation("every set is claimed", "claimed_count IS NULL"),
    Expectation("a set does not match its claim", "NOT matches", None),
]


@dataclass(frozen=True, slots=True)
class DigestReport:
    """`version` is the one that has the rows; `is_new` is False if they were there already."""

    snapshot: str
    version: int
    is_new: bool
    set_count: int
    id_count: int
    mismatch_count: int


def digest_group(group: RowGroup) -> Iterator[pa.RecordBatch]:
    """In a worker: the digests of the sets in one row group."""
    rows: list[tuple[object, ...]] = []
    for found in read_sets(group):
        whole = prefix_digests(found.ids, 0)
        hashed = np.frombuffer(xor_md5(found.ids), ">i8")
        sums = (int(part[0]) for part in whole.sums)
        halves = (int(whole.xor_high[0]), int(whole.xor_low[0]))
        rows.append((found.service, found.role, len(found.ids), *halves, *sums, *map(int, hashed)))
    yield batch_of_rows(rows, PARTIAL)


def service_digests(partial: DataFrame, claims: DataFrame) -> DataFrame:
    """Digests of parts of sets, put together and compared with the claims."""
    sums = [F.sum(name).alias(name) for name in _SUMS]
    xors = [F.bit_xor(name).alias(name) for name in _XORS]
    whole = partial.groupBy(*_SET).agg(*sums, *xors)
    renamed = [F.col(name).alias(f"claimed_{name}") for name in (*_SUMS, *_XORS)]
    joined = whole.join(F.broadcast(claims.select(*_SET, *renamed)), list(_SET), how="full")
    # A set without ids has no rows to be digested: it comes to nothing.
    filled = [F.coalesce(F.col(name), F.lit(0)).alias(name) for name in (*_SUMS, *_XORS)]
    compared = F.lit(True)
    for name in (*_SUMS, *_XORS):
        compared = compared & (
            F.coalesce(F.col(name), F.lit(0)) == F.coalesce(F.col(f"claimed_{name}"), F.lit(-1))
        )
    return joined.select(*_SET, *filled, "claimed_count", compared.alias("matches"))


def digest(spark: SparkSession, tables: Path, snapshot: str) -> DigestReport:
    """Raises TableError for a snapshot that is not there."""
    associations = snapshot_of(tables, ASSOCIATIONS, snapshot)
    claims = snapshot_of(tables, CLAIMS, snapshot)
    target = Table(tables, SERVICE_DIGESTS)
    is_new = False
    with target.begin({f"digest/{snapshot}": 1}) as load:
        version = load.based_on
        if not load.is_done:
            partial = worked_through(spark, row_groups(associations), digest_group, PARTIAL)
            rows = service_digests(partial, read_version(spark, CLAIMS, claims))
            named = rows.withColumn("snapshot", F.lit(snapshot))
            found = write_rows(named, load, EXPECTATIONS, sorted_by=_SET)
            inputs = {"associations": associations.number, "claims": claims.number}
            lineage = lineage_of("digest", {"snapshot": snapshot, **inputs}, found)
            version = load.commit(lineage, row_count=found.row_count)
            is_new = True
    rows = read_version(spark, SERVICE_DIGESTS, snapshot_of(tables, SERVICE_DIGESTS, snapshot))
    counted = rows.agg(
        F.count("*").alias("sets"),
        F.coalesce(F.sum("count"), F.lit(0)).alias("ids"),
        F.count_if(~F.col("matches")).alias("mismatches"),
    )
    (numbers,) = cast(list[Any], counted.collect())
    return DigestReport(
        snapshot,
        version,
        is_new,
        int(numbers.sets),
        int(numbers.ids),
        int(numbers.mismatches),
    )
