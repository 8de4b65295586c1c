"""`gc-plan`: up to where each stream could be truncated, and who holds the rest.

Whatever is acknowledged of a queue may go. Of a document, what its newest snapshot covers and every
reader has acknowledged whose place the router would keep: the rules are those of `core.tracker`, as
of the newest row of each log. A place that is kept for a client while it is away is not in the log,
so a router may hold a little more than this says.

One exchange, by stream; what readers and messages come to is decided behind it. Before that a small
query asks each log for its last start and its newest time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from syncline.core.tracker import LagRules
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, read_version, write_rows
from syncline.pipeline.log_branches import Heirs, branches_of, heirs_of
from syncline.pipeline.schemas import EVENTS, TRUNCATION_PLAN
from syncline.pipeline.tables import Table
from syncline.values.events import EventKind

SOURCE: Final = "events"
READER, SNAPSHOT, UNREAD, NOTHING = "reader", "snapshot", "unread", "nothing"

_MESSAGE, _QUOTA_MARKER, _CREATE, _DELETE, _ACKNOWLEDGEMENTS, _SNAPSHOT, _EVENTS = (
    *(1, 2, 3, 4, 5, 6),
    10,
)
_SUBSCRIBED, _UNSUBSCRIBED = int(EventKind.SUBSCRIBED), int(EventKind.UNSUBSCRIBED)
_DELIVERED, _ACKNOWLEDGED = int(EventKind.DELIVERED), int(EventKind.ACKNOWLEDGED)
_EVICTED, _EXPIRED = int(EventKind.EVICTED), int(EventKind.EXPIRED)
_TOLD: Final = (_SUBSCRIBED, _UNSUBSCRIBED, _DELIVERED, _ACKNOWLEDGED, _EVICTED, _EXPIRED)
_IS_DOCUMENT: Final = 0x80

_KEY: Final = ("store", "stream")
_COLUMNS: Final = (
    *_KEY,
    *("position", "part", "kind", "seq", "time_ms", "flags", "last", "unread"),
    *("event", "session", "first", "length"),
)

EXPECTATIONS: Final = [
    Expectation("a stream has a head", "head_seq IS NULL OR truncated_seq IS NULL"),
    Expectation(
        "what is safe is between the two", "NOT safe_seq BETWEEN truncated_seq AND head_seq"
    ),
    Expectation("a reader that holds something is named", "held_by = 'reader' AND session IS NULL"),
]


@dataclass(frozen=True, slots=True)
class GcPlanReport:
    """`run` is the version of `events` that was read; `version` None: there is nothing yet."""

    run: int
    version: int | None
    is_new: bool
    stream_count: int
    reclaimable_count: int
    reclaimable_bytes: int
    held_bytes: int


def gc_plan(spark: SparkSession, tables: Path) -> GcPlanReport:
    """Raises TableError if there is no table `events`, ExpectationError, CommitConflictError."""
    events = Table(tables, EVENTS).version()
    target = Table(tables, TRUNCATION_PLAN)
    is_new = False
    with target.begin({SOURCE: events.number}) as load:
        if not load.is_done:
            rows = read_version(spark, EVENTS, events).select(*_COLUMNS)
            heirs = heirs_of(branches_of(spark, events))
            wanted = with_former_rows(spark, rows, heirs).transform(_without, bygone(rows, heirs))
            plan = truncation_plan(wanted, log_facts(wanted), LagRules())
            named = plan.withColumn("run", F.lit(events.number).cast("long"))
            former = {each.partition["run"] for each in target.version().files}
            found = write_rows(named, load, EXPECTATIONS)
            lineage = lineage_of("gc-plan", {SOURCE: events.number}, found)
            replaces = {"run": str(former.pop())} if former else None
            load.commit(lineage, replaces=replaces, row_count=found.row_count)
            is_new = True
    return _report(target, events.number, is_new=is_new)


# ------------------------------------------------------------------------------------------- frames


def with_former_rows(spark: SparkSession, rows: DataFrame, heirs: Heirs) -> DataFrame:
    """Logs that go on from another one, with the rows of that up to there."""
    listed = [
        (bytearray(former), bytearray(log), limit)
        for former, each in heirs.items()
        for log, limit in each
    ]
    if not listed:
        return rows
    branches = spark.createDataFrame(listed, "former binary, log binary, below long")
    joined = rows.join(
        F.broadcast(branches),
        (F.col("store") == F.col("former")) & (F.col("position") < F.col("below")),
        how="inner",
    )
    renamed = [F.col("log").alias("store"), *(name for name in _COLUMNS if name != "store")]
    return rows.unionByName(joined.select(*renamed))


def bygone(rows: DataFrame, heirs: Heirs) -> list[bytes]:
    """Logs of which nothing is known but what others go on from: no folder goes on with them."""
    if not heirs:
        return []
    former = rows.where(F.col("store").isin([bytearray(log) for log in heirs]))
    ends = former.groupBy("store").agg(F.max("position").alias("end")).collect()
    known = {bytes(row.store): row.end for row in cast(list[Any], ends)}
    return [log for log, end in known.items() if end < max(position for _, position in heirs[log])]


def _without(rows: DataFrame, logs: Sequence[bytes]) -> DataFrame:
    return rows.where(~F.col("store").isin([bytearray(log) for log in logs])) if logs else rows


def log_facts(rows: DataFrame) -> DataFrame:
    """Of each log, where its router started last, and its newest time."""
    started = (F.col("kind") == _EVENTS) & (F.col("event") == int(EventKind.STARTED))
    return rows.groupBy("store").agg(
        F.max(F.when(started, F.col("position"))).alias("started"),
        F.max("time_ms").alias("as_of_ms"),
    )


def truncation_plan(rows: DataFrame, logs: DataFrame, rules: LagRules) -> DataFrame:
    """A row for each stream that there is."""
    is_told = (F.col("kind") == _EVENTS) & F.col("event").isin(*_TOLD)
    is_stored = F.col("kind").between(_MESSAGE, _SNAPSHOT)
    about = rows.where(F.col("stream").isNotNull() & (is_stored | is_told))
    placed = about.join(F.broadcast(logs), ["store"], how="left").repartition(*_KEY)
    streams = (
        placed.transform(_with_stream_facts)
        .transform(_still_wanted)
        .transform(_by_session)
        .transform(_by_stream)
    )
    return _decided(streams, rules)


def _newest(condition: Column, *values: str | Column) -> Column:
    """Of the rows that meet the condition, what the last one in the log says."""
    return F.max(F.when(condition, F.struct("position", "part", *values)))


def _with_stream_facts(rows: DataFrame) -> DataFrame:
    """Every row with what its stream is now: each record carries that."""
    kind, seq = F.col("kind"), F.col("seq")
    is_entry = kind.isin(_MESSAGE, _QUOTA_MARKER)
    # Rows of runs do not say what they are of.
    tells = (kind == _SNAPSHOT) | (kind.isin(_MESSAGE, _CREATE) & F.col("flags").isNotNull())
    is_document = (kind == _SNAPSHOT) | (F.col("flags").bitwiseAND(_IS_DOCUMENT) != 0)
    stream = Window.partitionBy(*_KEY)
    facts = {
        "born": F.max(F.when(kind == _CREATE, F.col("position"))),
        "gone": F.max(F.when(kind == _DELETE, F.col("position"))),
        "record": _newest(F.col("last").isNotNull(), "last", "unread"),
        # Runs have no more than entries that are still wanted.
        "lowest_seq": F.min(F.when(is_entry, seq)),
        "highest_seq": F.max(F.when(is_entry, seq)),
        "told": _newest(tells, is_document.alias("is_document")),
        "acknowledged": _newest(F.col("event").isin(_ACKNOWLEDGED, _EXPIRED), "seq"),
    }
    return rows.select("*", *(fact.over(stream).alias(name) for name, fact in facts.items()))


def _still_wanted(rows: DataFrame) -> DataFrame:
    """Of streams that there are: what concerns them as they are now."""
    life_from = F.coalesce("born", F.lit(-1))
    record = F.col("record")
    head = F.coalesce(record["last"], "highest_seq")
    truncated = F.coalesce(record["last"] - record["unread"], F.col("lowest_seq") - 1)
    acknowledged = F.when(F.col("acknowledged")["position"] >= life_from, F.col("acknowledged.seq"))
    kind = F.col("kind")
    is_unlet = kind.isin(_MESSAGE, _QUOTA_MARKER) & (F.col("seq") > F.col("truncated_seq"))
    is_live = (kind == _EVENTS) & (F.col("position") > F.coalesce("started", F.lit(-1)))
    is_last = F.col("position") == record["position"]
    return (
        rows.where(
            (F.coalesce("gone", F.lit(-1)) <= life_from)
            & head.isNotNull()
            & (F.col("position") >= life_from)
        )
        .withColumns(
            {
                "is_document": F.coalesce(F.col("told")["is_document"], F.lit(False)),
                "head_seq": head,
                "truncated_seq": truncated,
                # A function of several values passes over those that are null.
                "queue_safe_seq": F.greatest(
                    truncated, F.least(F.coalesce(acknowledged, truncated), head)
                ),
            }
        )
        .where(is_unlet | (kind == _SNAPSHOT) | is_live | is_last)
    )


def _by_session(rows: DataFrame) -> DataFrame:
    """Of each session its place; messages and what all share are under no session."""
    kind, event, seq, length = F.col("kind"), F.col("event"), F.col("seq"), F.col("length")
    is_event = kind == _EVENTS
    place = F.when(event == _SUBSCRIBED, F.col("first") - 1).otherwise(seq).alias("acked")
    is_entry = kind.isin(_MESSAGE, _QUOTA_MARKER) & (seq > F.col("truncated_seq"))
    of_queue = is_entry & ~F.col("is_document")
    safe = of_queue & (seq <= F.col("queue_safe_seq"))
    held = of_queue & (seq > F.col("queue_safe_seq"))
    shared = ("is_document", "head_seq", "truncated_seq", "queue_safe_seq", "as_of_ms")
    return rows.groupBy(*_KEY, F.when(is_event, F.col("session")).alias("session")).agg(
        *(F.first(name).alias(name) for name in shared),
        _newest(
            is_event & event.isin(_SUBSCRIBED, _UNSUBSCRIBED, _ACKNOWLEDGED, _EVICTED),
            "event",
            place,
        ).alias("newest"),
        _newest(is_event & (event == _SUBSCRIBED), seq.alias("acknowledges"), "time_ms").alias(
            "subscribed"
        ),
        _newest(is_event & (event == _DELIVERED), "seq").alias("delivered"),
        F.max(F.when(kind == _SNAPSHOT, seq)).alias("snapshot_seq"),
        F.count_if(safe).alias("safe_count"),
        F.sum(F.when(safe, length)).alias("safe_bytes"),
        F.sum(F.when(held, length)).alias("held_bytes"),
        F.min(F.when(held, F.struct("seq", "time_ms"))).alias("first_held"),
        F.collect_list(
            F.when(is_entry & F.col("is_document"), F.struct("seq", "time_ms", "length"))
        ).alias("updates"),
    )


def _by_stream(sessions: DataFrame) -> DataFrame:
    """Readers and updates of each stream, side by side."""
    newest, subscribed, delivered = F.col("newest"), F.col("subscribed"), F.col("delivered")
    # Who never acknowledges has what it was handed.
    handed = F.when(
        (subscribed["acknowledges"] == 0) & (delivered["position"] > subscribed["position"]),
        delivered["seq"],
    )
    reader = F.struct(
        F.greatest(newest["acked"], handed).alias("acked"),
        "session",
        subscribed["time_ms"].alias("joined_ms"),
    )
    is_reader = F.col("session").isNotNull() & newest["event"].isin(_SUBSCRIBED, _ACKNOWLEDGED)
    shared = ("is_document", "head_seq", "truncated_seq", "queue_safe_seq", "as_of_ms")
    return sessions.groupBy(*_KEY).agg(
        *(F.first(name).alias(name) for name in shared),
        F.max("snapshot_seq").alias("snapshot_seq"),
        F.sum("safe_count").alias("safe_count"),
        F.sum("safe_bytes").alias("safe_bytes"),
        F.sum("held_bytes").alias("held_bytes"),
        F.min("first_held").alias("first_held"),
        F.collect_list(F.when(is_reader, reader)).alias("readers"),
        F.array_sort(F.flatten(F.collect_list("updates"))).alias("updates"),
    )


def _decided(streams: DataFrame, rules: LagRules) -> DataFrame:
    """What may go, and who holds the rest."""
    is_document, by_reader = F.col("is_document"), F.col("held_by") == READER
    may_go, stays = F.col("may_go"), F.col("stays")
    # What a later column is made of is put together before, so that each list is gone through once.
    decided = (
        streams.withColumn("holder", _holder(rules))
        .withColumn("safe_seq", _safe_seq())
        .withColumns(
            {
                "held_by": _held_by(),
                "may_go": F.filter("updates", lambda update: update["seq"] <= F.col("safe_seq")),
                "stays": F.filter("updates", lambda update: update["seq"] > F.col("safe_seq")),
            }
        )
    )

    def either(of_document: Column, of_queue: Column, name: str) -> Column:
        return F.when(is_document, of_document).otherwise(of_queue).alias(name)

    none = F.lit(0).cast("long")
    return decided.select(
        *_KEY,
        *("is_document", "head_seq", "truncated_seq", "safe_seq", "held_by"),
        F.when(by_reader, F.col("holder")["session"]).alias("session"),
        F.when(by_reader, F.col("holder")["lag_ms"]).alias("lag_ms"),
        "as_of_ms",
        either(F.size(may_go).cast("long"), F.col("safe_count"), "reclaimable_count"),
        either(_bytes_of(may_go), F.coalesce("safe_bytes", none), "reclaimable_bytes"),
        either(_bytes_of(stays), F.coalesce("held_bytes", none), "held_bytes"),
        either(_first_of(stays)["time_ms"], F.col("first_held")["time_ms"], "oldest_held_ms"),
    )


def _holder(rules: LagRules) -> Column:
    """Of the readers whose place would be kept, the one that is furthest behind."""
    readers = F.col("readers")
    furthest = F.array_max(F.transform(readers, lambda reader: reader["acked"]))

    def is_kept(reader: Column) -> Column:
        """See `core.tracker.is_too_far_behind`."""
        lag, is_led = reader["lag_ms"], furthest > reader["acked"]
        return ~((lag > rules.absolute_ms) | ((lag > rules.relative_ms) & is_led))

    return F.array_min(F.filter(F.transform(readers, _with_lag), is_kept))


def _with_lag(reader: Column) -> Column:
    """How long it has owed an acknowledgement (`core.tracker.lag_ms`): 0 if that is not known.

    One that owes nothing is not asked for: it holds nothing, whether its place is kept or not.
    """
    since = F.greatest(_owed_ms(reader), reader["joined_ms"])
    return F.struct(
        reader["acked"].alias("acked"),
        reader["session"].alias("session"),
        F.greatest(F.lit(0), F.col("as_of_ms") - since).alias("lag_ms"),
    )


def _owed_ms(reader: Column) -> Column:
    """When the first update was stored that it has not acknowledged."""
    updates, owed = F.col("updates"), reader["acked"] + 1
    # Mostly none is missing: then its place is known.
    there = F.get(updates, (owed - _first_of(updates)["seq"]).cast("int"))
    behind = F.filter(updates, lambda update: update["seq"] >= owed)
    return F.when(there["seq"] == owed, there["time_ms"]).otherwise(_first_of(behind)["time_ms"])


def _safe_seq() -> Column:
    """Of a document, what a snapshot covers and everybody has whose place would be kept."""
    # Without a holder nothing is said of one: a function of several values passes over null.
    lowest = F.least(_covered_seq(), F.col("holder")["acked"], F.col("head_seq"))
    of_document = F.greatest(F.col("truncated_seq"), lowest)
    return F.when(F.col("is_document"), of_document).otherwise(F.col("queue_safe_seq"))


def _covered_seq() -> Column:
    return F.coalesce("snapshot_seq", "truncated_seq")


def _held_by() -> Column:
    is_document = F.col("is_document")
    return (
        F.when(F.col("head_seq") <= F.col("safe_seq"), NOTHING)
        .when(is_document & (F.col("holder")["acked"] < _covered_seq()), READER)
        .when(is_document, SNAPSHOT)
        .otherwise(UNREAD)
    )


def _bytes_of(updates: Column) -> Column:
    none = F.lit(0).cast("long")
    return F.aggregate(updates, none, lambda total, update: total + update["length"])


def _first_of(updates: Column) -> Column:
    return F.get(updates, F.lit(0))


# ----------------------------------------------------------------------------------- what is told


def _report(target: Table, run: int, *, is_new: bool) -> GcPlanReport:
    version = target.version()
    names = ("reclaimable_count", "reclaimable_bytes", "held_bytes")
    totals = dict.fromkeys(names, 0)
    for each in version.files:
        rows: Any = cast(Any, pq).ParquetFile(each.path).read(columns=list(names))
        for name in names:
            totals[name] += cast(Any, pc).sum(rows.column(name)).as_py() or 0
    number = version.number if version.number else None
    return GcPlanReport(run, number, is_new, version.row_count, **totals)
