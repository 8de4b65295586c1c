"""`reconcile`: which ids one snapshot has and another has not, by the digests of their ranges.

1. The range digests of both snapshots are put side by side: one shuffle of small rows. Ranges whose
   count, XOR or sums differ are what is left.
2. Of both snapshots, the row groups that can have ids of such a range are read where they lie, and
   only those ids are shuffled.

No id of a range that is equal is ever sent anywhere. Where more than half of all ranges differ, all
ids are compared: finding out which to leave would cost more than it saves.

*Missing* is an id that `wanted` has and the router's snapshot has not, *extra* one that it has and
`wanted` has not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from syncline.kernels.prefix_digests import prefixes_of
from syncline.kernels.xxh3 import ID_BYTES
from syncline.pipeline.arrow import record_batch, schema_of
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.row_groups import RowGroup, read_sets, row_groups, worked_through
from syncline.pipeline.schemas import ASSOCIATIONS, DRIFT_ITEMS, RANGE_DIGESTS
from syncline.pipeline.snapshot_tables import snapshot_of
from syncline.pipeline.sources.rows import fixed_binary
from syncline.pipeline.tables import Table

MISSING: Final = "missing"
EXTRA: Final = "extra"
ROUTER: Final = 1
WANTED: Final = 2

CANDIDATES: Final = schema_of(
    [
        pa.field("service", pa.binary()),
        pa.field("role", pa.string()),
        pa.field("id", pa.binary()),
        pa.field("side", pa.int32()),
    ]
)
EXPECTATIONS: Final = [
    Expectation("an id has 24 bytes", f"length(id) <> {ID_BYTES}"),
    Expectation(MISSING, f"verdict = '{MISSING}'", None),
    Expectation(EXTRA, f"verdict = '{EXTRA}'", None),
]
_SET: Final = ("service", "role")
_XORS: Final = ("xor_high", "xor_low")
_SUMS: Final = ("count", "sum_3", "sum_2", "sum_1", "sum_0")
# Past one half, looking at all ids costs less than looking for those that need not be.
_SHARE_MAX: Final = 0.5

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DifferingRanges:
    """Of one set: how many bits a prefix has, and for each prefix whether its range differs."""

    depth: int
    differs: Flags


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """`is_new` is False if the same was done before; then nothing was read but its result."""

    run: str
    version: int
    is_new: bool
    missing_count: int
    extra_count: int
    differing_range_count: int
    range_count: int
    read_row_group_count: int
    row_group_count: int


# ------------------------------------------------------------------------------------- transforms


def compared_ranges(router: DataFrame, wanted: DataFrame) -> DataFrame:
    """One row for each range that either snapshot has, with `differs`.

    Where the two were parted into ranges of different size, those of the larger are compared.
    """
    both = router.withColumn("sign", F.lit(1)).unionByName(wanted.withColumn("sign", F.lit(-1)))
    of_set = Window.partitionBy(*_SET)
    shared = both.withColumn("shared", F.min("depth").over(of_set)).withColumn(
        "prefix", F.expr("CAST(prefix AS INT) >> (depth - shared)")
    )
    sums = [F.sum(F.col(name) * F.col("sign")).alias(name) for name in _SUMS]
    xors = [F.bit_xor(name).alias(name) for name in _XORS]
    ranges = shared.groupBy(*_SET, F.col("shared").alias("depth"), "prefix").agg(*sums, *xors)
    differs = F.lit(False)
    for name in (*_SUMS, *_XORS):
        differs = differs | (F.col(name) != 0)
    return ranges.select(*_SET, "depth", "prefix", differs.alias("differs"))


def verdicts(candidates: DataFrame) -> DataFrame:
    """The ids that only one side has."""
    sides = candidates.groupBy(*_SET, "id").agg(F.bit_or("side").alias("sides"))
    verdict = F.when(F.col("sides") == WANTED, MISSING).otherwise(EXTRA)
    return sides.where(F.col("sides") != ROUTER | WANTED).select(
        *_SET, "id", verdict.alias("verdict")
    )


# ------------------------------------------------------------------------------------- row groups

Ranges = Mapping[tuple[bytes, str], DifferingRanges]


def can_have(group: RowGroup, ranges: Ranges) -> bool:
    """Whether an id of a differing range can be in a row group, by its bounds."""
    if group.services is None or group.ids is None:
        return True
    lowest, highest = group.services
    for (service, _), found in ranges.items():
        if not lowest <= service <= highest:
            continue
        if lowest != highest:
            # Ids are sorted inside of a set only: the bounds say nothing of this one.
            return True
        first, last = (_prefix(edge, found.depth) for edge in group.ids)
        if found.differs[first : last + 1].any():
            return True
    return False


def _prefix(member: bytes, depth: int) -> int:
    # A file may keep bounds that are cut short.
    return int.from_bytes(member[:2].ljust(2, b"\0"), "big") >> (16 - depth)


def candidates_in(group: RowGroup, ranges: Ranges | None) -> Iterator[pa.RecordBatch]:
    """In a worker: the ids of a row group whose range differs; all of them without `ranges`."""
    for found in read_sets(group):
        ids = found.ids
        if ranges is not None:
            differing = ranges.get((found.service, found.role))
            if differing is None:
                continue
            ids = ids[differing.differs[prefixes_of(ids, differing.depth)]]
        items = np.ascontiguousarray(ids).view(f"V{ID_BYTES}").reshape(-1)
        count = len(items)
        columns = [
            pa.array([found.service] * count, pa.binary()),
            pa.array([found.role] * count, pa.string()),
            fixed_binary(items),
            pa.array(np.full(count, group.side, np.int32)),
        ]
        yield record_batch(columns, CANDIDATES)


# -------------------------------------------------------------------------------------------- job


def run_name(router: str, wanted: str) -> str:
    return f"{router}..{wanted}"


def reconcile(spark: SparkSession, tables: Path, router: str, wanted: str) -> ReconcileReport:
    """Compare two snapshots. Raises TableError if one of them is not there."""
    sides = ((router, ROUTER), (wanted, WANTED))
    associations = [snapshot_of(tables, ASSOCIATIONS, name) for name, _ in sides]
    digests = [snapshot_of(tables, RANGE_DIGESTS, name) for name, _ in sides]
    run = run_name(router, wanted)
    with Table(tables, DRIFT_ITEMS).begin({f"reconcile/{run}": 1}) as load:
        if load.is_done:
            return _known(spark, tables, run, load.based_on)
        frames = [read_version(spark, RANGE_DIGESTS, each) for each in digests]
        differing, range_count = _differing(compared_ranges(*frames))
        groups = [
            group
            for version, (_, side) in zip(associations, sides, strict=True)
            for group in row_groups(version, side)
        ]
        differing_count = sum(int(found.differs.sum()) for found in differing.values())
        wants_all = differing_count > _SHARE_MAX * range_count
        chosen = [group for group in groups if wants_all or can_have(group, differing)]
        items = verdicts(_candidates(spark, chosen, None if wants_all else differing))
        named = items.withColumn("run", F.lit(run))
        found = write_rows(named, load, EXPECTATIONS, sorted_by=(*_SET, "id"))
        inputs = {"router": router, "wanted": wanted, "associations": associations[0].number}
        version = load.commit(lineage_of("reconcile", inputs, found), row_count=found.row_count)
    return ReconcileReport(
        run,
        version,
        True,
        found.counts[MISSING],
        found.counts[EXTRA],
        differing_count,
        range_count,
        len(chosen),
        len(groups),
    )


def _candidates(
    spark: SparkSession, groups: Sequence[RowGroup], ranges: Ranges | None
) -> DataFrame:
    return worked_through(spark, groups, lambda group: candidates_in(group, ranges), CANDIDATES)


def _differing(ranges: DataFrame) -> tuple[dict[tuple[bytes, str], DifferingRanges], int]:
    """Ranges that differ, by set, and how many ranges there are. No id is in them."""
    counted = ranges.cache()
    try:
        range_count = counted.count()
        rows = counted.where("differs").collect()
    finally:
        counted.unpersist()
    found: dict[tuple[bytes, str], DifferingRanges] = {}
    for row in cast(list[Any], rows):
        key = (bytes(row.service), str(row.role))
        if key not in found:
            depth = int(row.depth)
            found[key] = DifferingRanges(depth, np.zeros(1 << depth, np.bool_))
        found[key].differs[row.prefix] = True
    return found, range_count


def _known(spark: SparkSession, tables: Path, run: str, version: int) -> ReconcileReport:
    items = Table(tables, DRIFT_ITEMS).version(version).skipping("run", run, run)
    counts = {MISSING: 0, EXTRA: 0}
    rows = read_version(spark, DRIFT_ITEMS, items).groupBy("verdict").count().collect()
    for row in cast(list[Any], rows):
        counts[row.verdict] = int(row["count"])
    return ReconcileReport(run, version, False, counts[MISSING], counts[EXTRA], 0, 0, 0, 0)
