"""A trigger of the stream `lag`, against one that passes the same rows on and keeps nothing.

Both read one log, a segment a trigger, take the same rows to the driver and commit to a table; what
is measured is what Spark itself says a trigger took.

In each round every document gets two updates, its three readers get them and acknowledge; but for
some, who never do and fall behind.
"""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, cast

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.pipeline.setting import Setting
from bench.support.figures import Figure, at_most_ratio
from bench.support.processes import BenchError
from syncline.pipeline.jobs.lag import LagReport, folded, lag, log_options
from syncline.pipeline.lag_state import LogRow
from syncline.pipeline.sources.rows import schema_with
from syncline.pipeline.tables import Table, TableSpec
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.storage.log.format import BLOCK_BYTES
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.events import EventKind, Face, encode_event
from syncline.values.ids import StreamId

RATIO_MAX = 2.5
START_MS = 1_700_000_000_000
ROUND_MS = 40_000
READERS_EACH = 3
UPDATES_EACH = 2
# Rows of a document in a round: its updates, delivered and acknowledged, and events of others.
OTHERS_EACH = 2
ROWS_EACH = UPDATES_EACH + 2 * READERS_EACH + OTHERS_EACH
BYTES_EACH = 700
# One of so many readers stands still.
STUCK_EACH = 100
BODY = b"an update of a document."

_COMMIT_DOCUMENTS = 100

PASSED_ON = TableSpec("passed_on", schema_with(LogRow._fields))


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    document_count = max(STUCK_EACH, plan.lag_events_each // ROWS_EACH)
    reader_count = document_count * READERS_EACH
    folder = setting.folder / "lag"
    setting.doing(f"writing a log of {document_count} documents and {reader_count} readers")
    stuck_count = write_log(folder, document_count, plan.lag_batch_count, setting.seed)
    medians: dict[str, list[float]] = {"pass-through": [], "lag": []}
    contestants: dict[str, Callable[[Path], list[float]]] = {
        "pass-through": lambda work: passed_on(setting.spark, work, folder),
        "lag": lambda work: lagging(setting.spark, work, folder, reader_count, stuck_count),
    }
    order = list(contestants)
    for turn in range(2):
        for name in order if turn == 0 else reversed(order):
            setting.doing(f"{name}, turn {turn + 1}")
            work = setting.folder / f"{name}-{turn}"
            medians[name].append(median(contestants[name](work)))
    setting.details["lag"] = medians
    ours, peer = min(medians["lag"]), min(medians["pass-through"])
    return [
        Figure(
            "lag trigger, median ms",
            ours,
            "pass-through",
            peer,
            ours / peer,
            at_most_ratio(f"<= {RATIO_MAX:g} x", RATIO_MAX),
            f"{document_count * ROWS_EACH:,} events a batch, {reader_count:,} readers",
        )
    ]


def lagging(
    spark: SparkSession, work: Path, folder: Path, reader_count: int, stuck_count: int
) -> list[float]:
    with _Triggers(spark) as triggers:
        found = lag(spark, work, [str(folder)], tail="stopped", batch_bytes=1)
    check(found, reader_count, stuck_count)
    return triggers.taken_ms


def check(found: LagReport, reader_count: int, stuck_count: int) -> None:
    counts = (found.consumer_count, found.relative_count, found.absolute_count)
    if counts != (reader_count, stuck_count, 0):
        raise BenchError(f"lag found {counts}, not {(reader_count, stuck_count, 0)}")


def passed_on(spark: SparkSession, work: Path, folder: Path) -> list[float]:
    """The same rows, committed as they are."""
    table = Table(work, PASSED_ON)

    def take(rows: DataFrame, batch: int) -> None:
        found = cast(Any, folded(rows).toArrow())
        with table.begin({"passed on": batch + 1}) as load:
            cast(Any, pq).write_table(found, load.folder / "part.parquet", compression="zstd")
            load.commit({"job": "bench"}, row_count=found.num_rows)

    options = log_options([str(folder)], "stopped", 1)
    writer = spark.readStream.format("syncline").options(**options).load().writeStream
    writer = writer.foreachBatch(take).option("checkpointLocation", str(work / "checkpoint"))
    with _Triggers(spark) as triggers:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    return triggers.taken_ms


class _Triggers:
    """What each trigger took that had a batch, by Spark's own account."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        taken = self.taken_ms = list[float]()

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: object) -> None:  # noqa: N802
                pass

            def onQueryProgress(self, event: object) -> None:  # noqa: N802
                progress = cast(Any, event).progress
                if "addBatch" in progress.durationMs:
                    taken.append(float(progress.durationMs["triggerExecution"]))

            def onQueryIdle(self, event: object) -> None:  # noqa: N802
                pass

            def onQueryTerminated(self, event: object) -> None:  # noqa: N802
                pass

        self._spark = spark
        self._listener = Listener()

    def __enter__(self) -> "_Triggers":
        self._spark.streams.addListener(self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        # Spark tells its listeners a moment later.
        cast(Any, self._spark)._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
        self._spark.streams.removeListener(self._listener)
        if not self.taken_ms:
            raise BenchError("Spark did not say what its triggers took")


def write_log(folder: Path, document_count: int, round_count: int, seed: int) -> int:
    """A round a segment, more or less; returns how many readers stand still."""
    chance = random.Random(seed)
    size = max(limits.segment_bytes_min, document_count * BYTES_EACH // BLOCK_BYTES * BLOCK_BYTES)
    store = LogStore.open(
        str(folder),
        DiskFiles(),
        StoreOptions(is_durable=False, segment_bytes=size),
        now_ms=START_MS,
        random_bytes=chance.randbytes,
    )
    try:
        documents = [StreamId(chance.randbytes(24)) for _ in range(document_count)]
        readers = [number << 4 | Face.DOCUMENTS for number in range(document_count * READERS_EACH)]
        stuck = set(chance.sample(readers, len(readers) // STUCK_EACH))
        # Who stands still is behind somebody else.
        stuck -= set(readers[::READERS_EACH])
        store.note_event(encode_event(EventKind.STARTED, START_MS))
        for place, stream in enumerate(documents):
            store.create(stream, StreamKind.DOCUMENT, 0, START_MS)
            for reader in readers[READERS_EACH * place : READERS_EACH * (place + 1)]:
                store.note_event(
                    encode_event(EventKind.SUBSCRIBED, START_MS, stream, reader, first=1, last=1)
                )
            if place % _COMMIT_DOCUMENTS == 0:
                commit(store)
        for turn in range(round_count):
            _write_round(store, documents, readers, stuck, turn)
        commit(store)
        return len(stuck)
    finally:
        store.close()


def _write_round(
    store: LogStore, documents: list[StreamId], readers: list[int], stuck: set[int], turn: int
) -> None:
    now_ms = START_MS + ROUND_MS * turn
    first, last = UPDATES_EACH * turn + 1, UPDATES_EACH * (turn + 1)
    for place, stream in enumerate(documents):
        for _ in range(UPDATES_EACH):
            store.append(stream, BODY, now_ms)
        for reader in readers[READERS_EACH * place : READERS_EACH * (place + 1)]:
            store.note_event(encode_event(EventKind.DELIVERED, now_ms, stream, reader, first, last))
            if reader not in stuck:
                store.note_event(
                    encode_event(EventKind.ACKNOWLEDGED, now_ms, stream, reader, last=last)
                )
        for other in range(OTHERS_EACH):
            kind = EventKind.CONNECTED if other % 2 else EventKind.DISCONNECTED
            store.note_event(encode_event(kind, now_ms, session=place << 4 | Face.SMP))
        if place % _COMMIT_DOCUMENTS == 0:
            commit(store)
