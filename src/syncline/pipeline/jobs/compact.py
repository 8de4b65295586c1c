"""`compact`: the state of each document, folded from what the log has of it.

The states of the last run and what is new in `events` give the states of this one, as if all had
been folded at once. A run writes all states anew, in place of those of the last one; older versions
of the table have the older ones.

Wherever the log has a snapshot of the router, what was folded here up to there is compared with it
(`pipeline.document_folds`). One shuffle, of pieces of many rows (`pipeline.document_pieces`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.kernels.log_records import Integers
from syncline.pipeline.arrow import footer_of
from syncline.pipeline.document_pieces import (
    PIECES,
    SNAPSHOT,
    STATES,
    Cutting,
    Group,
    Source,
    folded,
    pieces_of,
)
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.log_branches import Heirs, branches_of, heirs_of
from syncline.pipeline.schemas import DOCUMENT_STATES, EVENTS, spark_schema
from syncline.pipeline.sources.rows import Unread
from syncline.pipeline.tables import Table, Version
from syncline.pipeline.tasks import worked_off
from syncline.values.limits import MIB

# Under which the table keeps up to which version of `events` it has come.
SOURCE: Final = "events"
# Rows of this many bytes are a bucket, folded by one task.
_BUCKET_BYTES: Final = 64 * MIB
_BUCKETS_MAX: Final = 4_096
# Tasks for each core: enough that none waits long for the last one.
_TASKS_EACH: Final = 2
_SUMS: Final = ("update_count", "bytes_in", "bytes_out", "checked_count", "mismatch_count")

EXPECTATIONS: Final = [
    Expectation("a document has a stream", "store IS NULL OR stream IS NULL"),
    Expectation("a state has a sequence", "(state IS NULL) <> (up_to_seq IS NULL)"),
    Expectation("a deleted document has no state", "is_deleted AND state IS NOT NULL"),
    Expectation("a snapshot of the router holds something else", "mismatch_count > 0", None),
    Expectation("a document has a problem", "problem IS NOT NULL", None),
]


@dataclass(frozen=True, slots=True)
class CompactReport:
    """`run` is the version of `events` that was read; `version` None: there is nothing yet.

    Counts are those of all documents that there are, deleted ones aside; mismatches are of all.
    """

    run: int
    version: int | None
    is_new: bool
    document_count: int
    update_count: int
    bytes_in: int
    bytes_out: int
    checked_count: int
    mismatch_count: int
    problem_count: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run reads: `old` rows only of documents that are folded again."""

    new: Version
    old: Version
    states: Version | None


def compact(spark: SparkSession, tables: Path) -> CompactReport:
    """Raises TableError if there is no table `events`, ExpectationError, CommitConflictError."""
    events = Table(tables, EVENTS).version()
    target = Table(tables, DOCUMENT_STATES)
    is_new = False
    with target.begin({SOURCE: events.number}) as load:
        if not load.is_done:
            inputs = _inputs(tables, target, events)
            rows = document_states(spark, inputs, events)
            named = rows.withColumn("run", F.lit(events.number).cast("long"))
            found = write_rows(named, load, EXPECTATIONS)
            lineage = lineage_of("compact", {SOURCE: events.number}, found)
            former = inputs.states.files[0].partition["run"] if inputs.states else None
            replaces = {"run": former} if former is not None else None
            load.commit(lineage, replaces=replaces, row_count=found.row_count)
            is_new = True
    return _report(target, events.number, is_new=is_new)


def _inputs(tables: Path, target: Table, events: Version) -> Inputs:
    before = target.progress(SOURCE)
    if before is None:
        return Inputs(events, _part(events, []), None)
    known = {each.path for each in Table(tables, EVENTS).version(before).files}
    states = target.version()
    return Inputs(
        _part(events, [each for each in events.files if each.path not in known]),
        _part(events, [each for each in events.files if each.path in known]),
        states if states.files else None,
    )


def _part(version: Version, files: Sequence[Any]) -> Version:
    return Version(version.table, version.number, tuple(files))


# --------------------------------------------------------------------------------------- the frame


def document_states(spark: SparkSession, inputs: Inputs, events: Version) -> DataFrame:
    """All states as of `events`."""
    branches = branches_of(spark, events)
    heirs = heirs_of(branches)
    again_logs: set[bytes] = set()
    if branches and inputs.old.files:
        before = {each.log for each in branches_of(spark, inputs.old)}
        again_logs = {each.log for each in branches} - before
        again_logs.update(_overtaken(spark, inputs.new, heirs))
    again: set[tuple[bytes, bytes]] = set()
    if inputs.states is not None:
        again = _to_fold_again(spark, inputs.states, inputs.new)
    groups = [*_groups(inputs.new, Source.NEW)]
    if again or again_logs:
        groups += _groups(inputs.old, Source.OLD)
    if inputs.states is not None:
        groups += _groups(inputs.states, Source.STATES)
    core_count = spark.sparkContext.defaultParallelism
    byte_count = sum(group.byte_count for group in groups)
    bucket_count = min(max(_TASKS_EACH * core_count, byte_count // _BUCKET_BYTES), _BUCKETS_MAX)
    cutting = Cutting(bucket_count, heirs, frozenset(again_logs), frozenset(again))
    return folded_groups(spark, groups, cutting, _edges(spark, events, heirs))


def folded_groups(
    spark: SparkSession, groups: Sequence[Group], cutting: Cutting, edges: dict[bytes, Integers]
) -> DataFrame:
    """Row groups in, states out, by one exchange."""

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from folded(batches, edges)

    part_count = _TASKS_EACH * spark.sparkContext.defaultParallelism
    pieces = worked_off(spark, groups, lambda group: pieces_of(group, cutting), PIECES, part_count)
    placed = pieces.repartitionById(cutting.bucket_count, "bucket").sortWithinPartitions(
        "store", "part", "first"
    )
    return placed.mapInArrow(cast(Any, fold), spark_schema(STATES))


def _groups(version: Version, source: Source) -> Iterator[Group]:
    for each in version.files:
        footer = footer_of(each.path)
        for number in range(footer.num_row_groups):
            yield Group(str(each.path), number, footer.row_group(number).total_byte_size, source)


# ------------------------------------------------------------------------- what a run has to know


def _edges(spark: SparkSession, events: Version, heirs: Heirs) -> dict[bytes, Integers]:
    """Where stretches that could not be read begin and end, by log. A torn end held nothing."""
    unread = events.skipping("kind", int(Unread.GAP), int(Unread.DAMAGE))
    if not unread.files:
        return {}
    is_unread = F.col("kind").isin(int(Unread.GAP), int(Unread.DAMAGE)) & (F.col("part") == 0)
    rows = read_version(spark, EVENTS, unread).where(is_unread)
    found: dict[bytes, set[int]] = {}
    for row in cast(list[Any], rows.select("store", "position", "length").collect()):
        own = bytes(row.store)
        for store, limit in [(own, None), *heirs.get(own, [])]:
            if limit is None or row.position < limit:
                found.setdefault(store, set()).update((row.position, row.position + row.length))
    return {store: np.array(sorted(edges), np.int64) for store, edges in found.items()}


def _to_fold_again(spark: SparkSession, states: Version, new: Version) -> set[tuple[bytes, bytes]]:
    """Documents of which a snapshot has come that needs older rows: to be compared with a state in
    their middle, or to take up what has waited for it."""
    snapshots = new.skipping("kind", SNAPSHOT, SNAPSHOT)
    if not snapshots.files:
        return set()
    key = ["store", "stream"]
    rows = read_version(spark, EVENTS, snapshots).where(F.col("kind") == SNAPSHOT)
    lowest = rows.groupBy(*key).agg(F.min("seq").alias("lowest_seq"))
    known = read_version(spark, DOCUMENT_STATES, states)
    joined = known.select(*key, "up_to_seq", "waiting_count").join(lowest, key, how="inner")
    needed = (F.col("waiting_count") > 0) | (F.col("lowest_seq") < F.col("up_to_seq"))
    return {
        (bytes(row.store), bytes(row.stream))
        for row in cast(list[Any], joined.where(needed).select(*key).collect())
    }


def _overtaken(spark: SparkSession, new: Version, heirs: Heirs) -> Iterable[bytes]:
    """Logs that have rows of a former log, of which more have come only now."""
    lowest = read_version(spark, EVENTS, new).groupBy("store").agg(F.min("position").alias("low"))
    for row in cast(list[Any], lowest.collect()):
        for log, limit in heirs.get(bytes(row.store), []):
            if row.low < limit:
                yield log


# ----------------------------------------------------------------------------------- what is told


def _report(target: Table, run: int, *, is_new: bool) -> CompactReport:
    """Read from the table: columns of numbers, a row for each document."""
    version = target.version()
    columns = [*_SUMS, "is_deleted", "problem"]
    totals = dict.fromkeys(_SUMS, 0)
    document_count = problem_count = 0
    for each in version.files:
        rows: Any = cast(Any, pq).ParquetFile(each.path).read(columns=columns)
        problem_count += len(rows) - rows.column("problem").null_count
        totals["mismatch_count"] += cast(Any, pc).sum(rows.column("mismatch_count")).as_py() or 0
        there = rows.filter(cast(Any, pc).invert(rows.column("is_deleted")))
        document_count += len(there)
        for name in _SUMS[:-1]:
            totals[name] += cast(Any, pc).sum(there.column(name)).as_py() or 0
    number = version.number if version.number else None
    return CompactReport(run, number, is_new, document_count, **totals, problem_count=problem_count)
