"""`lag`: how far the readers of documents are behind, as a stream over the logs of routers.

Spark cuts the logs into batches, reads them in its workers and remembers how far it has come. What
is worth folding comes to the driver, where `pipeline.lag_state` asks the router's own rules; rows
for `consumer_health` are committed once for each batch, whatever is repeated.

Why not a stateful operator of Spark: its aggregates speak only of keys that have changed, and a
reader falls behind by doing nothing; and what they keep of readers that are gone never goes.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.core.tracker import LagRules
from syncline.errors import CommitConflictError, SynclineError
from syncline.pipeline.arrow import batch_of_rows, without
from syncline.pipeline.expectations import Observed
from syncline.pipeline.frames import lineage_of
from syncline.pipeline.lag_checkpoint import LagCheckpoint
from syncline.pipeline.lag_state import EVENTS, KINDS, HealthCounts, HealthRow, LogRow
from syncline.pipeline.schemas import CONSUMER_HEALTH
from syncline.pipeline.sources.folders import Tail, look_at
from syncline.pipeline.sources.rows import DAY_MS
from syncline.pipeline.sources.source import FORMAT, SourceOptions, available
from syncline.pipeline.tables import Load, Table
from syncline.storage.files import DiskFiles
from syncline.values.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# About how much of a log a batch reads: what is folded of it comes to the driver at once.
BATCH_BYTES: Final = 64 * MIB
# A reader of which there is nothing new but numbers has a row so often, by the time of its log.
ROW_MS: Final = 10_000
TRIGGER_SECONDS: Final = 1.0
_COMMIT_COUNT_MAX: Final = 5
_PERIOD_S: Final = 0.1
_MESSAGE: Final = 1
_EVENT: Final = 10
_IS_DOCUMENT: Final = 0x80

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LagReport:
    """`version` is the newest that has rows of this run, None if it had nothing to tell.

    Readers are those that there are now: how many, and how many of them each rule would give up;
    of the unknown, a stretch of the log is missing in which they may have left.
    """

    batch_count: int
    row_count: int
    consumer_count: int
    relative_count: int
    absolute_count: int
    version: int | None
    unknown_count: int


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One batch, once it has landed."""

    batch: int
    row_count: int
    counts: HealthCounts


OnBatch = Callable[[BatchFacts], None]


class _StoppingError(Exception):
    """The batch comes again when the stream goes on."""


def log_options(
    folders: Sequence[str], tail: str, batch_bytes: int = BATCH_BYTES
) -> dict[str, str]:
    return {
        "paths": json.dumps(list(folders)),
        "tail": tail,
        "columns": ",".join(LogRow._fields),
        "batch_bytes": str(batch_bytes),
    }


def check_folders(folders: Sequence[str], tail: str = Tail.NONE) -> None:
    """Raises what the folders are at fault of."""
    available(SourceOptions.of(log_options(folders, tail)))


def checkpoint_folder(tables: Path) -> Path:
    """Where `lag` keeps how far it is, if nothing else is said: beside the tables."""
    return tables / "checkpoints" / "lag"


def folded(rows: DataFrame) -> DataFrame:
    """Of the rows of logs, those that the state of readers depends on."""
    kind, flags = F.col("kind"), F.col("flags")
    is_event = (kind == _EVENT) & F.col("event").isin(*map(int, EVENTS))
    # A row of a run does not say what it is of.
    is_update = (kind == _MESSAGE) & (flags.isNull() | (flags.bitwiseAND(_IS_DOCUMENT) != 0))
    is_other = kind.isin(*(each for each in KINDS if each not in (_EVENT, _MESSAGE)))
    return rows.select(*LogRow._fields).where(is_event | is_update | is_other)


class LagSink:
    """What is done with a batch; Spark calls `take`, one batch after another."""

    def __init__(
        self,
        tables: Path,
        checkpoint: Path,
        options: Mapping[str, str],
        rules: LagRules,
        row_ms: int,
        on_batch: OnBatch,
        on_step: OnStep,
    ) -> None:
        self._table = Table(tables, CONSUMER_HEALTH, on_step)
        self._on_step = on_step
        self._on_batch = on_batch
        self._options = SourceOptions.of(dict(options))
        self._stream_folder = checkpoint / "stream"
        self._checkpoint = LagCheckpoint(checkpoint / "state", rules, row_ms)
        self._lock = Lock()
        self._is_stopped = False
        self.batch_count = 0
        self.row_count = 0
        self.version: int | None = None
        self.counts: HealthCounts | None = None
        # Of ours: through Spark it would come back as pages of text.
        self.error: SynclineError | None = None

    @property
    def stream_folder(self) -> Path:
        return self._stream_folder

    def take(self, rows: DataFrame, batch: int) -> None:
        with self._lock:
            if self._is_stopped:
                raise _StoppingError
            try:
                self._take(rows, batch)
            except SynclineError as error:
                self.error = error
                raise

    def stop(self, query: "StreamingQuery") -> None:
        """After the batch that is being worked on, if any; none is begun any more.

        Without the lock: Spark waits for a batch that would wait for it.
        """
        with self._lock:
            self._is_stopped = True
        query.stop()

    def counts_after(self, query: "StreamingQuery") -> HealthCounts:
        """As of the last batch, of this run or an earlier one."""
        if self.counts is not None:
            return self.counts
        last = self._last_batch()
        if last is None:
            return HealthCounts(0, 0, 0, 0)
        return self._checkpoint.before(str(query.id), last + 1).counts()

    def _take(self, rows: DataFrame, batch: int) -> None:
        query = self._query()
        state = self._checkpoint.before(query, batch)
        found, newest_ms = collected(rows, logs_in(self._options.folders))
        told = state.fold(found, newest_ms)
        self._checkpoint.save(query, batch, state)
        self._on_step("saved")
        row_count = self._commit(query, batch, told)
        self.batch_count += 1
        self.row_count += row_count
        self.counts = state.counts()
        self._on_batch(BatchFacts(batch, row_count, self.counts))

    def _commit(self, query: str, batch: int, told: Sequence[HealthRow]) -> int:
        """How many rows have landed now; none if the batch had landed before."""
        if not told:
            return 0
        for attempt in range(_COMMIT_COUNT_MAX):
            # From 1: nothing at all is 0.
            with self._table.begin({f"lag/{query}": batch + 1}) as load:
                if load.is_done:
                    self.version = load.based_on
                    return 0
                write_health(load, batch, told)
                inputs = {"query": query, "batch": batch}
                lineage = lineage_of("lag", inputs, Observed(len(told), {}))
                try:
                    self.version = load.commit(lineage, row_count=len(told))
                except CommitConflictError:
                    # Another query has committed; what is told here does not depend on it.
                    if attempt == _COMMIT_COUNT_MAX - 1:
                        raise
                else:
                    return len(told)
        raise AssertionError("the last attempt raises")

    def _query(self) -> str:
        """The name that Spark has given the stream, for as long as its checkpoint is there."""
        text = (self._stream_folder / "metadata").read_text(encoding="utf-8")
        return str(json.loads(text)["id"])

    def _last_batch(self) -> int | None:
        names = [path.name for path in (self._stream_folder / "commits").glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=None)


def logs_in(folders: Sequence[str]) -> set[bytes]:
    """The ids of the logs that these folders hold parts of."""
    files = DiskFiles()
    return {part.log_id for folder in folders for part in look_at(folder, files).parts}


def collected(rows: DataFrame, logs: Iterable[bytes]) -> tuple[list[LogRow], dict[bytes, int]]:
    """What is folded, in the order of each log, and the newest time of each, by its id.

    `logs` are the ids that there may be. Times are taken in the same pass, of all rows.
    """
    times = [
        F.max(F.when(F.col("store") == F.lit(log), F.col("time_ms"))).alias(log.hex())
        for log in sorted(logs)
    ]
    observation = Observation()
    watched = rows.observe(observation, *times) if times else rows
    table = cast(Any, folded(watched).toArrow())
    table = table.sort_by([(name, "ascending") for name in ("store", "position", "part")])
    columns = [column.to_pylist() for column in table.columns]
    found = list(map(LogRow._make, zip(*columns, strict=True)))
    newest = cast(dict[str, int | None], observation.get) if times else {}
    return found, {
        bytes.fromhex(log): time_ms for log, time_ms in newest.items() if time_ms is not None
    }


def write_health(load: Load, batch: int, told: Sequence[HealthRow]) -> None:
    schema = without(CONSUMER_HEALTH.schema, ["day"])
    by_day: dict[int, list[tuple[object, ...]]] = {}
    for row in told:
        by_day.setdefault(row.as_of_ms // DAY_MS, []).append((batch, *row))
    for day, rows in by_day.items():
        date = datetime.fromtimestamp(day * DAY_MS / 1_000, UTC).date()
        folder = load.folder / f"day={date.isoformat()}"
        folder.mkdir()
        table = pa.Table.from_batches([batch_of_rows(rows, schema)])
        cast(Any, pq).write_table(table, folder / "part-00000.parquet", compression="zstd")


def lag(
    spark: SparkSession,
    tables: Path,
    folders: Sequence[str],
    *,
    tail: str = Tail.NONE,
    checkpoint: Path | None = None,
    follow_seconds: float | None = None,
    trigger_seconds: float = TRIGGER_SECONDS,
    rules: LagRules | None = None,
    row_ms: int = ROW_MS,
    batch_bytes: int = BATCH_BYTES,
    is_over: Event | None = None,
    on_batch: OnBatch = lambda _: None,
    on_step: OnStep = lambda _: None,
) -> LagReport:
    """All that is there now; with `follow_seconds` also what comes in that time, or till `is_over`.

    Raises what the folders are at fault of, PipelineError, CommitConflictError. `on_step` hears of
    every step of a batch, before the next: tests stop there.
    """
    check_folders(folders, tail)
    options = log_options(folders, tail, batch_bytes)
    place = checkpoint or checkpoint_folder(tables)
    sink = LagSink(tables, place, options, rules or LagRules(), row_ms, on_batch, on_step)
    writer = (
        spark.readStream.format(FORMAT)
        .options(**options)
        .load()
        .writeStream.foreachBatch(sink.take)
        .option("checkpointLocation", str(sink.stream_folder))
    )
    if follow_seconds is None:
        query = writer.trigger(availableNow=True).start()
    else:
        period = f"{max(1, round(trigger_seconds * 1_000))} milliseconds"
        query = writer.trigger(processingTime=period).start()
    try:
        _wait(query, follow_seconds, is_over or Event())
        if query.isActive:
            sink.stop(query)
        elif (failed := query.exception()) is not None:
            raise sink.error or failed
    finally:
        if query.isActive:
            query.stop()
    counts = sink.counts_after(query)
    return LagReport(
        sink.batch_count,
        sink.row_count,
        counts.consumer_count,
        counts.relative_count,
        counts.absolute_count,
        sink.version,
        counts.unknown_count,
    )


def _wait(query: "StreamingQuery", seconds: float | None, is_over: Event) -> None:
    """Until it has ended, the time is up, or somebody says so."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    while query.isActive and time.monotonic() < end:
        if is_over.wait(_PERIOD_S):
            return
