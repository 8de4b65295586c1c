"""`lag` over logs that a store has written: each batch lands once, whatever happens in between."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from syncline.cli.pipeline_lag import lag as lag_verb
from syncline.cli.pipeline_lag import until_signalled
from syncline.core.tracker import LagRules
from syncline.errors import ConfigError, ForeignFolderError
from syncline.pipeline import session as session_of_spark
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.lag import (
    BatchFacts,
    LagReport,
    checkpoint_folder,
    lag,
)
from syncline.pipeline.schemas import CONSUMER_HEALTH
from syncline.pipeline.tables import Table
from syncline.storage.base import StreamKind, commit
from syncline.values.events import EventKind, encode_event
from tests.pipeline.lag_histories import session
from tests.pipeline.routers import START_MS, Router, stream_id


class Documents(Router):
    """A router with documents 1 and 2, and readers whose coming and going is noted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.create(1, 2, kind=StreamKind.DOCUMENT)
        self.note(EventKind.STARTED)

    def go_on(self) -> None:
        """After a stop."""
        self.store = self._open()

    def note(
        self, kind: EventKind, number: int = 0, who: int = 0, first: int = 0, seq: int = 0
    ) -> None:
        stream = stream_id(number) if number else bytes(24)
        self.store.note_event(encode_event(kind, self.now_ms, stream, who, first, seq))

    def update(self, number: int, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self.store.append(stream_id(number), b"update", self.now_ms)
        commit(self.store)

    def two_readers(self) -> None:
        """Of document 1: the first keeps up, the second stands still."""
        for who in (1, 2):
            self.note(EventKind.SUBSCRIBED, 1, session(who), 1, 1)
        self.update(1)
        self.note(EventKind.ACKNOWLEDGED, 1, session(1), seq=1)


def health(spark: SparkSession, tables: Path) -> list[dict[str, Any]]:
    version = Table(tables, CONSUMER_HEALTH).version()
    rows = rows_of(read_version(spark, CONSUMER_HEALTH, version).toArrow())
    return sorted(rows, key=lambda row: (row["batch"], row["session"]))


def seen(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, int, str]]:
    return [
        (row["batch"], row["session"] >> 4, row["acked_seq"], row["head_seq"], row["rule"])
        for row in rows
    ]


def test_lag_tells_who_would_be_given_up_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = Documents(tmp_path / "data")
    router.two_readers()
    router.update(2, after_ms=31_000)
    router.stop()
    tables, facts = tmp_path / "tables", list[BatchFacts]()
    found = lag(spark, tables, [router.folder], tail="stopped", on_batch=facts.append)
    assert found == LagReport(1, 2, 2, 1, 0, 1, 0)
    assert [(each.batch, each.row_count) for each in facts] == [(0, 2)]
    rows = health(spark, tables)
    assert seen(rows) == [(0, 1, 1, 1, "healthy"), (0, 2, 0, 1, "relative")]
    assert {row["as_of_ms"] for row in rows} == {START_MS + 31_000}
    assert [row["lag_ms"] for row in rows] == [0, 31_000]
    lineage = Table(tables, CONSUMER_HEALTH).lineage(1)
    assert (lineage["job"], lineage["inputs"]["batch"], lineage["row_count"]) == ("lag", 0, 2)
    # Nothing new: the same readers, and no rows.
    assert lag(spark, tables, [router.folder], tail="stopped") == LagReport(0, 0, 2, 1, 0, None, 0)

    # A queue's message tells the time as well; after a restart all readers are gone.
    router.go_on()
    router.create(7)
    router.now_ms += 1_800_000
    router.append(7, 1)
    router.stop()
    assert lag(spark, tables, [router.folder], tail="stopped") == LagReport(1, 1, 2, 0, 1, 2, 0)
    router.go_on()
    router.note(EventKind.STARTED)
    router.append(7, 1)
    router.stop()
    assert lag(spark, tables, [router.folder], tail="stopped") == LagReport(1, 2, 0, 0, 0, 3, 0)
    assert seen(health(spark, tables))[2:] == [
        (1, 2, 0, 1, "absolute"),
        (2, 1, 1, 1, "gone"),
        (2, 2, 0, 1, "gone"),
    ]


def test_a_batch_that_is_repeated_after_a_crash_lands_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = Documents(tmp_path / "data")
    router.two_readers()
    router.stop()
    tables = tmp_path / "tables"
    lag(spark, tables, [router.folder], tail="stopped", row_ms=0)
    router.go_on()
    router.update(1, after_ms=31_000)
    router.stop()

    class CrashError(Exception):
        pass

    # With the state written and no rows; then with the rows, and Spark does not know.
    for last_step, landed_count in (("saved", 2), ("committed", 4)):

        def crash(reached: str, last_step: str = last_step) -> None:
            if reached == last_step:
                raise CrashError

        with pytest.raises(Exception, match="CrashError"):
            lag(spark, tables, [router.folder], tail="stopped", row_ms=0, on_step=crash)
        assert Table(tables, CONSUMER_HEALTH).version().row_count == landed_count
    found = lag(spark, tables, [router.folder], tail="stopped", row_ms=0)
    assert (found.batch_count, found.row_count, found.relative_count) == (1, 0, 1)
    assert seen(health(spark, tables)) == [
        (0, 1, 1, 1, "healthy"),
        (0, 2, 0, 1, "healthy"),
        (1, 1, 1, 2, "healthy"),
        (1, 2, 0, 2, "relative"),
    ]


def test_lag_follows_a_log_until_it_is_told_to_stop(spark: SparkSession, tmp_path: Path) -> None:
    router = Documents(tmp_path / "data")
    router.two_readers()
    router.update(2)
    is_over = threading.Event()
    batches: list[BatchFacts] = []

    def on_batch(facts: BatchFacts) -> None:
        batches.append(facts)
        if len(batches) == 1:
            router.update(2, after_ms=2_000)
            # Behind the last batch: that one is not read yet.
            router.update(2)
            router.update(2)
        else:
            is_over.set()

    found = lag(
        spark,
        tmp_path / "tables",
        [router.folder],
        tail="durable",
        follow_seconds=120,
        trigger_seconds=0.1,
        rules=LagRules(1_000, 60_000),
        is_over=is_over,
        on_batch=on_batch,
    )
    router.stop()
    assert found.batch_count == len(batches) >= 2
    assert batches[-1].counts.relative_count == found.relative_count == 1
    last = seen(health(spark, tmp_path / "tables"))[-1]
    assert last[1:] == (2, 0, 1, "relative")
    assert not spark.streams.active


def test_the_verb_says_what_it_found_and_fails_if_a_reader_would_be_given_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def opened(work_folder: Path, **_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session_of_spark, "open_session", opened)
    verbs = typer.Typer()
    verbs.command()(lag_verb)
    router = Documents(tmp_path / "data")
    router.two_readers()
    router.update(2, after_ms=2_000)
    router.stop()
    words = [router.folder, "--tables", str(tmp_path / "tables"), "--tail", "stopped", "--json"]
    ran = CliRunner().invoke(verbs, words, catch_exceptions=False)
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["consumer_count"] == 2
    words += ["--checkpoint", str(tmp_path / "other"), "--relative-ms", "1000"]
    ran = CliRunner().invoke(verbs, words, catch_exceptions=False)
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["relative_count"] == 1
    # Nothing that Spark has begun is needed to see this.
    monkeypatch.setattr(session_of_spark, "open_session", None)
    with pytest.raises(ForeignFolderError):
        CliRunner().invoke(verbs, [str(tmp_path / "nowhere")], catch_exceptions=False)
    with pytest.raises(ConfigError, match="followed"):
        CliRunner().invoke(verbs, [*words, "--follow"], catch_exceptions=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_following_without_breaking_it_off(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with until_signalled(is_wanted=True) as is_over:
        signal.raise_signal(number)
        assert is_over.is_set()
    assert signal.getsignal(number) is before


def test_a_wrong_folder_is_told_before_anything_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(ForeignFolderError):
        lag(spark, tmp_path / "tables", [str(tmp_path / "nothing")])
    assert not checkpoint_folder(tmp_path / "tables").exists()
