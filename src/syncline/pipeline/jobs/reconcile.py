"""`reconcile`: which ids one snapshot has and another has not, by the digests of their ranges.

1. The range digests of both snapshots are put side by side: one shuffle of small rows. Ranges whose
   count, XOR or sums differ are what is left. A snapshot that came without them is read, and they
   are computed where its row groups lie.
2. Of both snapshots, the row groups that can have ids of such a range are read where they lie, and
   only those ids are shuffled.

No id of a range that is equal is ever sent anywhere. Where more than half of all ranges differ, all
ids are compared: finding out which to leave would cost more than it saves.

*Missing* is an id that `wanted` has and the router's snapshot has not, *extra* one that it has and
`wanted` has not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from syncline.kernels.prefix_digests import (
    DEPTH_MAX,
    DigestSums,
    Integers,
    PrefixDigests,
    depth_for,
    digests_at,
    first_bits,
    prefixes_of,
)
from syncline.kernels.segments import segment_starts
from syncline.kernels.xxh3 import ID_BYTES
from syncline.pipeline.arrow import record_batch, schema_of, without
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.row_groups import (
    GroupIds,
    RowGroup,
    SetName,
    read_groups,
    row_groups,
    worked_through,
)
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
RANGES: Final = without(RANGE_DIGESTS.schema, ["snapshot"])
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
# Ranges of unsorted ids that a worker keeps at once, 56 bytes each.
_SLOT_COUNT_MAX: Final = 1 << 20

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
    # Read for their digests, as the snapshot has none.
    digested_row_group_count: int


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


# ---------------------------------------------------------------------- row groups: range digests


def sizes_of(groups: Iterable[RowGroup]) -> dict[bytes, int]:
    """How many ids a service can have at most, of those at the edge of a row group.

    In a sorted snapshot any other lies in one row group as a whole: who reads it sees its size.
    """
    sizes: dict[bytes, int] = {}
    for group in groups:
        for service in set(group.services or ()):
            sizes[service] = sizes.get(service, 0) + group.row_count
    return sizes


def ranges_in(groups: Iterable[RowGroup], sizes: Mapping[bytes, int]) -> Iterator[pa.RecordBatch]:
    """In a worker: the digests of the ranges in row groups, as if they were a snapshot's own.

    Ranges that go on in another row group are there twice, and are added up where they meet.
    """
    slots = _Slots()
    for _, found in read_groups(groups):
        counts = found.counts.tolist()
        depths = np.array(
            [
                depth_for(max(count, sizes.get(service, 0)))
                for (service, _), count in zip(found.sets, counts, strict=True)
            ],
            np.uint16,
        )
        prefixes = first_bits(found.ids) >> np.repeat(DEPTH_MAX - depths, counts)
        is_other, is_lower = prefixes[1:] != prefixes[:-1], prefixes[1:] < prefixes[:-1]
        edges = found.starts[1:] - 1
        is_other[edges], is_lower[edges] = True, False
        if is_lower.any():
            # Not sorted: any range may have ids in every row group.
            yield from slots.add(found, depths.tolist())
            continue
        starts = segment_starts(is_other)
        numbers = np.searchsorted(found.starts, starts, "right") - 1
        digests = PrefixDigests(prefixes[starts].astype(np.int64), *digests_at(found.ids, starts))
        yield _range_batch(found.sets, numbers, depths[numbers], digests)
    yield from slots.take()


class _Slots:
    """Digests of ranges that come again and again: as many at once as memory is given to them."""

    def __init__(self) -> None:
        self._sums: dict[tuple[SetName, int], DigestSums] = {}
        self._count = 0

    def add(self, found: GroupIds, depths: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Gives back what there is no room for."""
        parts = np.split(found.ids, found.starts[1:])
        for name, depth, ids in zip(found.sets, depths, parts, strict=True):
            if (name, depth) not in self._sums:
                if self._count + (1 << depth) > _SLOT_COUNT_MAX:
                    yield from self.take()
                self._sums[name, depth] = DigestSums(depth)
                self._count += 1 << depth
            self._sums[name, depth].add(ids)

    def take(self) -> Iterator[pa.RecordBatch]:
        for (name, depth), sums in self._sums.items():
            found = sums.digests()
            numbers = np.zeros(len(found), np.int64)
            yield _range_batch([name], numbers, np.full(len(found), depth), found)
        self._sums, self._count = {}, 0


def _range_batch(
    sets: Sequence[SetName], numbers: Integers, depths: npt.NDArray[Any], found: PrefixDigests
) -> pa.RecordBatch:
    columns = [
        *_set_columns(sets, numbers),
        pa.array(depths.astype(np.int32)),
        pa.array(found.prefixes.astype(np.int32)),
        *map(pa.array, (found.counts, found.xor_high, found.xor_low, *found.sums)),
    ]
    return record_batch(columns, RANGES)


def _set_columns(sets: Sequence[SetName], numbers: Integers) -> list[Any]:
    """Service and role of rows, each given by which of the sets it is of."""
    places = pa.array(numbers)
    services, roles = zip(*sets, strict=True)
    return [
        cast(Any, pa.array(services, pa.binary())).take(places),
        cast(Any, pa.array(roles, pa.string())).take(places),
    ]


# --------------------------------------------------------------------------- row groups: candidates

Ranges = Mapping[SetName, DifferingRanges]


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
    return int.from_bytes(member[:2].ljust(2, b"\0"), "big") >> (DEPTH_MAX - depth)


def candidates_in(groups: Iterable[RowGroup], ranges: Ranges | None) -> Iterator[pa.RecordBatch]:
    """In a worker: the ids of row groups whose range differs; all of them without `ranges`."""
    for group, found in read_groups(groups):
        chosen = np.ones(len(found.ids), np.bool_)
        if ranges is not None:
            ends = [*found.starts[1:].tolist(), len(found.ids)]
            for name, start, end in zip(found.sets, found.starts.tolist(), ends, strict=True):
                differing = ranges.get(name)
                chosen[start:end] = (
                    differing is not None
                    and differing.differs[prefixes_of(found.ids[start:end], differing.depth)]
                )
        places = np.flatnonzero(chosen)
        numbers = np.searchsorted(found.starts, places, "right") - 1
        items = found.ids[places].view(f"V{ID_BYTES}").reshape(-1)
        columns = [
            *_set_columns(found.sets, numbers),
            fixed_binary(items),
            pa.array(np.full(len(items), group.side, np.int32)),
        ]
        yield record_batch(columns, CANDIDATES)


# -------------------------------------------------------------------------------------------- job


def run_name(router: str, wanted: str) -> str:
    return f"{router}..{wanted}"


def reconcile(spark: SparkSession, tables: Path, router: str, wanted: str) -> ReconcileReport:
    """Compare two snapshots. Raises TableError if one of them is not there."""
    sides = ((router, ROUTER), (wanted, WANTED))
    associations = [snapshot_of(tables, ASSOCIATIONS, name) for name, _ in sides]
    run = run_name(router, wanted)
    with Table(tables, DRIFT_ITEMS).begin({f"reconcile/{run}": 1}) as load:
        if load.is_done:
            return _known(spark, tables, run, load.based_on)
        groups = [
            row_groups(version, side)
            for version, (_, side) in zip(associations, sides, strict=True)
        ]
        stored = [_stored_ranges(spark, tables, name) for name, _ in sides]
        frames = [
            _computed_ranges(spark, of_side) if found is None else found
            for found, of_side in zip(stored, groups, strict=True)
        ]
        differing, range_count = _differing(compared_ranges(*frames))
        differing_count = sum(int(found.differs.sum()) for found in differing.values())
        wants_all = differing_count > _SHARE_MAX * range_count
        chosen = [group for group in chain(*groups) if wants_all or can_have(group, differing)]
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
        sum(map(len, groups)),
        sum(len(of_side) for of_side, kept in zip(groups, stored, strict=True) if kept is None),
    )


def _stored_ranges(spark: SparkSession, tables: Path, snapshot: str) -> DataFrame | None:
    """None if the snapshot came without."""
    if not Table(tables, RANGE_DIGESTS).exists():
        return None
    found = snapshot_of(tables, RANGE_DIGESTS, snapshot)
    return read_version(spark, RANGE_DIGESTS, found).drop("snapshot") if found.files else None


def _computed_ranges(spark: SparkSession, groups: Sequence[RowGroup]) -> DataFrame:
    sizes = sizes_of(groups)
    return worked_through(spark, groups, lambda some: ranges_in(some, sizes), RANGES)


def _candidates(
    spark: SparkSession, groups: Sequence[RowGroup], ranges: Ranges | None
) -> DataFrame:
    return worked_through(spark, groups, lambda some: candidates_in(some, ranges), CANDIDATES)


def _differing(ranges: DataFrame) -> tuple[dict[SetName, DifferingRanges], int]:
    """Ranges that differ, by set, and how many ranges there are. No id is in them."""
    observation = Observation()
    counted = ranges.observe(observation, F.count(F.lit(1)).alias("range_count"))
    by_set = counted.where("differs").groupBy(*_SET, "depth")
    rows = by_set.agg(F.collect_list("prefix").alias("prefixes")).collect()
    found: dict[SetName, DifferingRanges] = {}
    for row in cast(list[Any], rows):
        differs = np.zeros(1 << int(row.depth), np.bool_)
        differs[row.prefixes] = True
        found[bytes(row.service), str(row.role)] = DifferingRanges(int(row.depth), differs)
    return found, int(observation.get["range_count"])


def _known(spark: SparkSession, tables: Path, run: str, version: int) -> ReconcileReport:
    items = Table(tables, DRIFT_ITEMS).version(version).skipping("run", run, run)
    counts = {MISSING: 0, EXTRA: 0}
    rows = read_version(spark, DRIFT_ITEMS, items).groupBy("verdict").count().collect()
    for row in cast(list[Any], rows):
        counts[row.verdict] = int(row["count"])
    return ReconcileReport(run, version, False, counts[MISSING], counts[EXTRA], 0, 0, 0, 0, 0)
