"""`syncline pipeline`: one verb a job, one session for all of them."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from syncline.cli import pipeline_documents
from syncline.cli.main import app
from syncline.errors import ConfigError, ForeignFolderError, TableError
from syncline.pipeline import session
from syncline.pipeline.progress import told_of_progress
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from tests.pipeline.record_folders import RecordsFolder
from tests.pipeline.routers import Router, busy_router
from tests.storage.records.under_test import queue, service, service_id


@pytest.fixture
def verbs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The verbs, on the session that is there."""

    @contextmanager
    def opened(
        work_folder: Path, *, master: str, settings: dict[str, str]
    ) -> Iterator[SparkSession]:
        assert work_folder.is_dir()
        assert (master, settings) == ("local[*]", {})
        yield spark

    monkeypatch.setattr(session, "open_session", opened)
    return CliRunner()


def test_run_does_all_jobs_and_says_what_they_found(verbs: CliRunner, tmp_path: Path) -> None:
    router = busy_router(tmp_path / "router")
    router.stop()
    records = SqliteRecords.open(router.folder, DiskFiles())
    records.create_service(service(1))
    for number in range(20):
        records.create_queue(queue(number, service_id=service_id(1)))
    commit(records)
    records.close()
    wanted = RecordsFolder(tmp_path / "wanted", 2)
    wanted.add(*range(1, 22))
    wanted.stop()
    tables, plan = str(tmp_path / "tables"), tmp_path / "plan.jsonl"
    words = ["pipeline", "run", router.folder, "--tables", tables, "--tail", "stopped"]
    page = tmp_path / "report.html"
    words += ["--wanted", wanted.folder, "--plan", str(plan), "--out", str(page), "--json"]
    ran = verbs.invoke(app, words, catch_exceptions=False)
    assert ran.exit_code == 1, "the sets differ"
    found = json.loads(ran.stdout)
    assert found["ingest"]["version"] == 1
    assert found["ingest"]["row_count"] == 504
    digests = found[f"digest {router.folder}"]
    assert (digests["id_count"], digests["mismatch_count"]) == (20, 0)
    # Of queues, 0 is extra and 20 and 21 are missing; of notifiers, all seven are.
    assert (found["reconcile"]["missing_count"], found["reconcile"]["extra_count"]) == (9, 1)
    assert len(plan.read_text().splitlines()) == 1 + 10
    again = json.loads(verbs.invoke(app, words, catch_exceptions=False).stdout)
    assert again["ingest"]["version"] is None
    jobs = (f"digest {router.folder}", "reconcile", "audit", "compact", "gc-plan")
    assert [again[job]["is_new"] for job in jobs] == [False] * len(jobs)
    assert again["lag"]["row_count"] == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")

    said = verbs.invoke(app, ["pipeline", "lineage", "events@1", "--tables", tables, "--json"])
    assert json.loads(said.stdout)["job"] == "ingest"
    with pytest.raises(TableError, match="there is no such table"):
        verbs.invoke(
            app, ["pipeline", "lineage", "evens", "--tables", tables], catch_exceptions=False
        )
    with pytest.raises(ConfigError, match="names no version"):
        verbs.invoke(
            app, ["pipeline", "lineage", "events@x", "--tables", tables], catch_exceptions=False
        )
    differs = verbs.invoke(
        app, ["pipeline", "reconcile", router.folder, wanted.folder, "--tables", tables]
    )
    assert differs.exit_code == 1
    assert "missing_count" in differs.stdout


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "open_session", never)


def test_a_wrong_folder_is_told_before_spark_is_started(
    without_spark: None, tmp_path: Path
) -> None:
    with pytest.raises(ForeignFolderError):
        CliRunner().invoke(
            app, ["pipeline", "ingest", str(tmp_path / "nowhere")], catch_exceptions=False
        )


@pytest.mark.parametrize(
    "words",
    [
        "pipeline ingest ROUTER --tables /proc/nope",
        "pipeline digest some --tables /proc/nope",
        "pipeline ingest ROUTER --tables /tmp/a%41",
        "pipeline lag ROUTER --tables tables --checkpoint /proc/nope",
        "pipeline reconcile one two --tables tables --plan /nonexistent/p",
        "pipeline reconcile one two --tables tables --plan .",
        "pipeline run ROUTER --tables /proc/nope",
        "pipeline run ROUTER --tables tables --wanted some --plan /proc/p",
        "pipeline run ROUTER --tables tables --out /proc/x.html",
        "pipeline report --tables tables --out /proc/x.html",
        "demo --folder /proc/x",
    ],
)
def test_a_place_that_takes_nothing_is_told_before_any_work_is_done(
    without_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    router = Router(tmp_path / "router")
    router.stop()
    place = words.split()[-1]
    with pytest.raises(ConfigError, match=rf"^{re.escape(place)} (cannot be written|is no place)"):
        CliRunner().invoke(
            app, words.replace("ROUTER", router.folder).split(), catch_exceptions=False
        )
    assert [path.name for path in tmp_path.iterdir()] == ["router"]


@pytest.mark.parametrize("verb", ["run", "ingest", "lag"])
def test_a_tail_that_there_is_not_is_told_with_those_that_there_are(
    without_spark: None, tmp_path: Path, verb: str
) -> None:
    words = ["pipeline", verb, str(tmp_path), "--tail", "bogus"]
    with pytest.raises(ConfigError, match=r"'bogus' .* take none, durable, stopped"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_plan_of_nothing_is_refused(without_spark: None, tmp_path: Path) -> None:
    router = Router(tmp_path / "router")
    router.stop()
    words = ["pipeline", "run", router.folder, "--tables", str(tmp_path / "tables")]
    words += ["--plan", str(tmp_path / "plan"), "--out", str(tmp_path / "page.html")]
    with pytest.raises(ConfigError, match="--wanted"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_what_is_no_setting_of_spark_is_refused(tmp_path: Path) -> None:
    words = ["pipeline", "digest", "some", "--tables", str(tmp_path), "--set", "memory=1g"]
    with pytest.raises(ConfigError, match="memory=1g"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_router_to_compare_with_is_named_by_its_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named: list[tuple[str, ...]] = []

    class Client:
        def __init__(self, *words: str) -> None:
            named.append(words)
            raise ConfigError("that is enough")

    monkeypatch.setattr(pipeline_documents, "RouterClient", Client)
    words = ["pipeline", "compact", "--tables", str(tmp_path), "--check", "http://router"]
    with pytest.raises(ConfigError):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert named == [("http://router", "--check")]


def test_progress_tells_of_tasks_and_ends_with_the_job(spark: SparkSession) -> None:
    def slowly(batches):  # type: ignore[no-untyped-def]
        import time

        for batch in batches:
            time.sleep(0.5)
            yield batch

    told: list[tuple[int, int]] = []
    with told_of_progress(spark, lambda done, total: told.append((done, total))):
        spark.range(0, 4, 1, 4).mapInArrow(slowly, "id long").collect()
    assert told
    assert all(done <= total == 4 for done, total in told)
    heard = len(told)
    spark.range(0, 4, 1, 4).mapInArrow(slowly, "id long").collect()
    assert len(told) == heard
