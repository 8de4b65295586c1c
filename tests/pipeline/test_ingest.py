"""`ingest`: every record once, what is missing with it, nothing that breaks an expectation."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.cli import keeping
from syncline.errors import (
    CommitConflictError,
    ExpectationError,
    ForeignFolderError,
    PipelineError,
)
from syncline.pipeline.frames import read_version, write_rows
from syncline.pipeline.jobs import ingest as job
from syncline.pipeline.jobs.ingest import ends_of, ingest, source_name
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.sources.folders import Tail, look_at, segment_path
from syncline.pipeline.sources.rows import Unread
from syncline.pipeline.tables import LOG_NAME, Load, Table
from syncline.storage.base import StreamKind, commit
from syncline.storage.documents import encode_entry
from syncline.storage.files import DiskFiles
from syncline.storage.life import log_id, read_lives
from syncline.values.events import EventKind, author_number, encode_event
from tests.pipeline.log_rows import COMPARED, Row
from tests.pipeline.routers import Router, busy_router, stream_id
from tests.pipeline.test_log_source import overwrite, rows_read


def rows_of_table(spark: SparkSession, tables: Path, version: int | None = None) -> list[Row]:
    found = Table(tables, EVENTS).version(version)
    rows = read_version(spark, EVENTS, found).select(*COMPARED).collect()
    plain = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in rows]
    return sorted(plain, key=lambda row: (row[0], row[1]))


def test_each_run_adds_what_is_new_and_the_same_again_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = busy_router(tmp_path / "data")
    tables = tmp_path / "tables"
    first = ingest(spark, tables, [router.folder])
    assert first.version == 1
    assert first.row_count == len(rows_read(router.folder))
    assert (first.damage_count, first.gap_count, first.torn_count) == (0, 0, 0)
    assert rows_of_table(spark, tables) == rows_read(router.folder)
    assert ingest(spark, tables, [router.folder]).version is None

    router.append(1, 200, 300)
    second = ingest(spark, tables, [router.folder], tail=Tail.DURABLE)
    assert second.version == 2
    assert second.starts == first.ends
    everything = rows_read(router.folder, tail=Tail.DURABLE)
    assert rows_of_table(spark, tables) == everything
    assert rows_of_table(spark, tables, 1) == everything[: first.row_count]
    lineage = Table(tables, EVENTS).lineage(2)
    assert lineage["inputs"] == {"starts": second.starts, "ends": second.ends}
    assert lineage["row_count"] == second.row_count
    # Without the tail the log ends earlier than the table: nothing comes twice.
    assert ingest(spark, tables, [router.folder]).version is None
    router.stop()


def test_what_could_not_be_read_lands_as_rows_and_too_much_of_it_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    overwrite(segment_path(router.folder, 3), 4096 * 2 + 200, b"\xff" * 20)
    Path(segment_path(router.folder, 2)).unlink()
    tables = tmp_path / "tables"
    with pytest.raises(ExpectationError, match="damage"):
        ingest(spark, tables, [router.folder], damage_count_max=0)
    assert Table(tables, EVENTS).version().row_count == 0
    report = ingest(spark, tables, [router.folder])
    assert (report.damage_count, report.gap_count) == (1, 1)
    rows = rows_of_table(spark, tables)
    assert [row[2] for row in rows if row[2] < 0 and row[1] == 0] == [Unread.GAP, Unread.DAMAGE]
    assert rows == sorted(rows_read(router.folder), key=lambda row: (row[0], row[1]))


def test_a_run_that_another_overtook_lands_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    tables = tmp_path / "tables"
    write = write_rows

    def overtaken(*arguments: Any, **named: Any) -> object:
        found = write(*arguments, **named)
        monkeypatch.setattr(job, "write_rows", write)
        ingest(spark, tables, [router.folder])
        return found

    monkeypatch.setattr(job, "write_rows", overtaken)
    with pytest.raises(CommitConflictError):
        ingest(spark, tables, [router.folder])
    assert rows_of_table(spark, tables) == rows_read(router.folder)
    store = router.store_id.hex()
    assert Table(tables, EVENTS).progress(source_name(store)) == 7 * 65_536


def test_a_run_that_another_overtook_before_it_began_to_read_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    tables, begin = tmp_path / "tables", Table.begin
    ends = ends_of([router.folder])

    def overtaken(table: Table, progress: dict[str, int]) -> object:
        """Another one, that could read less of the log, lands after this one has looked."""
        monkeypatch.setattr(Table, "begin", begin)
        with Table(tables, EVENTS).begin({source_name(log): ends[log] for log in ends}) as load:
            load.commit({})
        return table.begin(progress)

    monkeypatch.setattr(Table, "begin", overtaken)
    with pytest.raises(CommitConflictError):
        ingest(cast(SparkSession, None), tables, [router.folder], tail=Tail.STOPPED)
    assert Table(tables, EVENTS).version().number == 1


@pytest.mark.parametrize("tail", list(Tail))
def test_a_log_that_went_back_is_told(tmp_path: Path, tail: Tail) -> None:
    router = Router(tmp_path / "data")
    router.create(1)
    router.append(1, 50)
    router.stop()
    shutil.copytree(router.folder, tmp_path / "copied")
    keeping.backup(tmp_path / "backup", folder=tmp_path / "data", is_json=True)
    router.start()
    router.append(1, 50)
    router.stop()
    tables = tmp_path / "tables"
    progress = ends_of([router.folder], Tail.STOPPED)
    with Table(tables, EVENTS).begin({source_name(log): progress[log] for log in progress}) as load:
        load.commit({})
    # There is nothing for Spark to do in any of these.
    for folder in (router.folder, str(tmp_path / "backup")):
        assert ingest(cast(SparkSession, None), tables, [folder], tail=tail).version is None
    shutil.rmtree(router.folder)
    shutil.copytree(tmp_path / "copied", router.folder)
    with pytest.raises(PipelineError, match="put back to an earlier state"):
        ingest(cast(SparkSession, None), tables, [router.folder], tail=tail)


def test_a_wrong_folder_stops_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ForeignFolderError):
        ingest(spark, tmp_path / "tables", [str(tmp_path / "nowhere")])
    assert not (tmp_path / "tables").exists()


def test_days_are_skipped_and_reading_one_shuffles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    tables = tmp_path / "tables"
    ingest(spark, tables, [router.folder])
    events = Table(tables, EVENTS).version()
    one_day = events.skipping("day", "2023-12-09", "2023-12-09")
    assert 0 < len(one_day.files) < len(events.files)
    frame = read_version(spark, EVENTS, one_day)
    chosen = frame.where(F.col("stream") == F.lit(bytes(stream_id(1))))
    assert "Exchange" not in chosen._jdf.queryExecution().executedPlan().toString()
    assert {str(row.day) for row in chosen.select("day").distinct().collect()} == {"2023-12-09"}


def test_nothing_is_shuffled_on_the_way_to_the_table(spark: SparkSession, tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    ingest(spark, tmp_path / "tables", [router.folder])
    # What Spark has carried out, not what was asked of it.
    done: Any = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [done.apply(index).physicalPlanDescription() for index in range(done.size())]
    writes = [plan for plan in plans if "InsertIntoHadoopFsRelation" in plan]
    assert "BatchScan syncline" in writes[-1]
    assert "Sort" in writes[-1]
    assert "Exchange" not in writes[-1], writes[-1]


def test_a_restored_folder_goes_on_as_another_log_and_lets_go_of_its_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    router = Router(tmp_path / "data", archive_bytes_max=1 << 30)
    router.create(1)
    router.append(1, 300, 500)
    ingest(spark, tables, [router.folder])
    router.append(1, 200, 500)
    router.seal()
    router.stop()
    keeping.backup(tmp_path / "copy", folder=tmp_path / "data", is_json=True)
    # Seen by somebody, and undone by the restore.
    router.start()
    router.append(1, 100, 500)
    router.stop()
    ingest(spark, tables, [router.folder], tail=Tail.STOPPED)
    keeping.restore(tmp_path / "copy", tmp_path / "back", is_json=True)
    second = Router(tmp_path / "back", 2, archive_bytes_max=1 << 30)
    second.append(1, 300, 500)
    second.seal()
    report = ingest(spark, tables, [second.folder], tail=Tail.DURABLE)
    assert report.gap_count == 0
    (life,) = read_lives(second.files, second.folder)
    before, after = router.store_id.hex(), log_id(router.store_id, (life,)).hex()
    # Of the log before, the table has more than the backup has.
    assert report.starts[before] == report.ends[before] > life.branch
    assert report.starts[after] == 0
    found = read_version(spark, EVENTS, Table(tables, EVENTS).version())
    assert found.groupBy("store", "position", "part").count().where("count > 1").count() == 0
    seqs = {
        row.store.hex(): (row.first, row.last, row.rows)
        for row in found.where("kind = 1")
        .groupBy("store")
        .agg(F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("rows"))
        .collect()
    }
    durable = seqs[after][1]
    assert seqs == {before: (1, 600, 600), after: (501, durable, durable - 500)}
    assert durable > 750
    # Everything of both logs up to there is in the table: the archive may go.
    confirmed = int((tmp_path / "back" / "archive" / "CONFIRMED").read_text())
    assert confirmed == look_at(second.folder, second.files).closed[-1]
    second.stop()


def test_authors_are_the_numbers_that_spark_makes_of_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = ["", "a", "y-0123456789abcdef", "ärger~9", "x" * 255]
    router = Router(tmp_path / "data")
    router.create(1, kind=StreamKind.DOCUMENT)
    for clock, name in enumerate(names):
        router.store.append(stream_id(1), encode_entry(name, clock, b"{}"), router.now_ms)
    router.store.append(stream_id(1), b"\x02 of a later version", router.now_ms)
    commit(router.store)
    router.stop()
    found = spark.read.format("syncline").option("tail", "stopped").load(router.folder)
    rows = found.where("kind = 1").orderBy("seq").select("detail").collect()
    wanted = spark.createDataFrame([(name,) for name in names], "name string").select(
        F.xxhash64(F.col("name").cast("binary")).alias("detail")
    )
    assert [row.detail for row in rows] == [*(row.detail for row in wanted.collect()), None]
    assert [row.detail for row in rows][:-1] == [author_number(name) for name in names]
    assert any(row.detail < 0 for row in rows[:-1])


def test_a_router_lets_go_of_its_archive_once_ingest_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = Router(tmp_path / "data", archive_bytes_max=1 << 30)
    router.create(1)
    session = encode_event(EventKind.DELIVERED, router.now_ms, stream_id(1), 7, 1, 3, 9)
    for _ in range(4):
        router.append(1, 100, 500)
        router.store.note_event(session)
        router.seal()
    archive = tmp_path / "data" / "archive"
    archived = sorted(path.name for path in archive.glob("*.wal"))
    assert len(archived) >= 4
    tables = tmp_path / "tables"
    left = ingest(spark, tables, [router.folder], confirms=False)
    assert left.gap_count == 0
    assert not (archive / "CONFIRMED").exists()
    # What was loaded before is confirmed as well: the last time may have ended in between.
    assert ingest(spark, tables, [router.folder]).version is None
    last = look_at(router.folder, DiskFiles()).closed[-1]
    assert (archive / "CONFIRMED").read_text() == f"{last}\n"
    rows = rows_of_table(spark, tables)
    seqs = [row[5] for row in rows if row[2] == 1]
    assert seqs == list(range(1, len(seqs) + 1))
    (event, *_) = [row for row in rows if row[2] == 10 and row[11] == EventKind.DELIVERED]
    assert (event[4], event[5], event[12:15]) == (stream_id(1), 3, (7, 1, 9))
    router.append(1, 10)
    router.seal()
    assert not set(archived) & {path.name for path in archive.glob("*.wal")}
    router.stop()


def test_nothing_is_confirmed_that_did_not_land(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(tmp_path / "data", archive_bytes_max=1 << 30)
    router.create(1)
    router.append(1, 300, 500)
    router.seal()
    router.stop()

    def refused(load: Load, *_: object, **__: object) -> int:
        raise CommitConflictError(load.table.spec.name, load.based_on)

    monkeypatch.setattr(Load, "commit", refused)
    with pytest.raises(CommitConflictError):
        ingest(spark, tmp_path / "tables", [router.folder])
    assert not (tmp_path / "data" / "archive" / "CONFIRMED").exists()


def test_a_commit_that_a_crash_left_is_on_the_disk_before_it_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(tmp_path / "data", archive_bytes_max=1 << 30)
    router.create(1)
    router.append(1, 300, 500)
    router.seal()
    router.stop()
    tables, confirmed = tmp_path / "tables", tmp_path / "data" / "archive" / "CONFIRMED"
    progress = {source_name(log): end for log, end in ends_of([router.folder]).items()}
    synced: list[Path] = []

    def note(descriptor: int) -> None:
        if not confirmed.exists():
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    def crash(step: str) -> None:
        if step == "committed":
            raise RuntimeError

    with (
        pytest.raises(RuntimeError),
        Table(tables, EVENTS, crash).begin(progress) as load,
    ):
        load.commit({})
    monkeypatch.setattr("os.fsync", note)
    # All of it is in the table: there is nothing for Spark to do.
    ingest(cast(SparkSession, None), tables, [router.folder])
    assert confirmed.exists()
    log = tables / EVENTS.name / LOG_NAME
    assert {log, log / f"{1:020d}.json"} <= set(synced)
