"""`digest`: what the ids of a snapshot come to, set by set, compared with what the router claimed.

Row groups are hashed where they are read; what is shuffled is a row for each set and row group.

Two hashes are in use. XXH3 alone finds every difference that chance can make; MD5 is what peers of
the queue protocol compare, and takes several times as long. Without it, its columns are empty, and
a set *matches* if all the rest does. A snapshot that was digested without MD5 can be digested with
it later: the new rows take the place of the old ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.kernels.md5 import xor_md5_at
from syncline.kernels.prefix_digests import digests_at
from syncline.pipeline.arrow import batch_of_rows, without
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.row_groups import (
    GroupIds,
    RowGroup,
    read_groups,
    row_groups,
    worked_through,
)
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, SERVICE_DIGESTS
from syncline.pipeline.snapshot_tables import snapshot_of
from syncline.pipeline.tables import Table, Version

# A row for each set in a row group: the digest of its ids there.
PARTIAL: Final = without(SERVICE_DIGESTS.schema, ["snapshot", "claimed_count", "matches"])
_SET: Final = ("service", "role")
_SUMS: Final = ("count", "sum_3", "sum_2", "sum_1", "sum_0")
_XORS: Final = ("xor_high", "xor_low")
_MD5: Final = ("md5_high", "md5_low")
_MISMATCHES: Final = "a set does not match its claim"
EXPECTATIONS: Final = [
    Expectation("every set is claimed", "claimed_count IS NULL"),
    Expectation(_MISMATCHES, "NOT matches", None),
]


class Hashes(StrEnum):
    """Which are computed."""

    XXH3 = "xxh3"
    BOTH = "both"

    @property
    def level(self) -> int:
        """How far a snapshot is with its digests: what has both has the one."""
        return 1 if self is Hashes.XXH3 else 2


@dataclass(frozen=True, slots=True)
class DigestReport:
    """`version` is the one that has the rows; `is_new` is False if they were there already."""

    snapshot: str
    version: int
    is_new: bool
    set_count: int
    id_count: int
    mismatch_count: int
    hashes: Hashes


def digest_groups(groups: Iterable[RowGroup], hashes: Hashes) -> Iterator[pa.RecordBatch]:
    """In a worker: the digests of the sets in row groups."""
    for _, found in read_groups(groups):
        yield batch_of_rows(list(_digest_rows(found, hashes)), PARTIAL)


def _digest_rows(found: GroupIds, hashes: Hashes) -> Iterator[tuple[object, ...]]:
    counts, xor_high, xor_low, sums = digests_at(found.ids, found.starts)
    numbers = np.stack([counts, xor_high, xor_low, *sums], axis=1).tolist()
    md5: list[list[int | None]] = [[None, None]] * len(numbers)
    if hashes is Hashes.BOTH:
        md5 = xor_md5_at(found.ids, found.starts).view(">i8").tolist()
    for (service, role), row, halves in zip(found.sets, numbers, md5, strict=True):
        yield (service, role, *row, *halves)


def partial_digests(spark: SparkSession, associations: Version, hashes: Hashes) -> DataFrame:
    return worked_through(
        spark,
        row_groups(associations),
        lambda groups: digest_groups(groups, hashes),
        PARTIAL,
    )


def service_digests(partial: DataFrame, claims: DataFrame, hashes: Hashes) -> DataFrame:
    """Digests of parts of sets, put together and compared with the claims.

    Claims are rows among the others: one shuffle and no join.
    """
    names = (*_SUMS, *_XORS, *(_MD5 if hashes is Hashes.BOTH else ()))
    both = partial.select(*_SET, *names, F.lit(False).alias("is_claim")).unionByName(
        claims.select(*_SET, *names, F.lit(True).alias("is_claim"))
    )
    whole = both.groupBy(*_SET).agg(
        *(_put_together(name) for name in names),
        *(F.max(F.when(F.col("is_claim"), F.col(name))).alias(f"claimed_{name}") for name in names),
    )
    compared = F.lit(True)
    for name in names:
        claimed = F.coalesce(F.col(f"claimed_{name}"), F.lit(-1))
        compared = compared & (F.col(name) == claimed)
    empty = [F.lit(None).cast("bigint").alias(name) for name in _MD5 if name not in names]
    return whole.select(*_SET, *names, *empty, "claimed_count", compared.alias("matches"))


def _put_together(name: str) -> Column:
    # A set without ids has no rows to be digested: it comes to nothing.
    part = F.when(F.col("is_claim"), F.lit(0)).otherwise(F.col(name))
    return (F.sum if name in _SUMS else F.bit_xor)(part).alias(name)


def digest(
    spark: SparkSession, tables: Path, snapshot: str, *, hashes: Hashes = Hashes.BOTH
) -> DigestReport:
    """Raises TableError for a snapshot that is not there."""
    associations = snapshot_of(tables, ASSOCIATIONS, snapshot)
    claims = snapshot_of(tables, CLAIMS, snapshot)
    target, source = Table(tables, SERVICE_DIGESTS), f"digest/{snapshot}"
    with target.begin({source: hashes.level}) as load:
        if load.is_done:
            return _known(spark, tables, snapshot, load.based_on)
        partial = partial_digests(spark, associations, hashes)
        rows = service_digests(partial, read_version(spark, CLAIMS, claims), hashes)
        named = rows.withColumn("snapshot", F.lit(snapshot))
        found = write_rows(named, load, EXPECTATIONS, sorted_by=_SET)
        inputs = {
            "snapshot": snapshot,
            "associations": associations.number,
            "claims": claims.number,
            "hashes": hashes.value,
        }
        version = load.commit(
            lineage_of("digest", inputs, found),
            # What an earlier run has found without MD5.
            replaces={"snapshot": snapshot} if target.progress(source) else None,
            row_count=found.row_count,
        )
    return DigestReport(
        snapshot,
        version,
        True,
        found.row_count,
        associations.row_count,
        found.counts[_MISMATCHES],
        hashes,
    )


def _known(spark: SparkSession, tables: Path, snapshot: str, version: int) -> DigestReport:
    rows = read_version(spark, SERVICE_DIGESTS, snapshot_of(tables, SERVICE_DIGESTS, snapshot))
    counted = rows.agg(
        F.count("*").alias("sets"),
        F.coalesce(F.sum("count"), F.lit(0)).alias("ids"),
        F.count_if(~F.col("matches")).alias("mismatches"),
        F.count("md5_high").alias("with_md5"),
    )
    (numbers,) = cast(list[Any], counted.collect())
    hashes = Hashes.BOTH if numbers.with_md5 == numbers.sets else Hashes.XXH3
    return DigestReport(
        snapshot,
        version,
        False,
        int(numbers.sets),
        int(numbers.ids),
        int(numbers.mismatches),
        hashes,
    )
