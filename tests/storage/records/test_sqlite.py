"""The file itself: made, found damaged, copied, checked, and refused by its device."""

import asyncio
import random
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from syncline.errors import (
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    StoreFullError,
    StoreHeldError,
    StoreLockedError,
)
from syncline.server.committer import Committer
from syncline.storage.files import DiskFiles, File
from syncline.storage.records import (
    rows,
    schema,
    sqlite,
    sqlite_checks,
    sqlite_connection,
    staging,
)
from syncline.storage.records.base import RecordCounts, RecordsOptions
from syncline.storage.records.operations import Operation
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_checks import page_select, repair_counts
from syncline.storage.records.sqlite_connection import storage_error
from syncline.storage.records.sqlite_copies import copy_records
from syncline.storage.records.sqlite_reports import examine
from syncline.storage.records.sqlite_writes import BatchWriter
from syncline.values.digests import digest_of
from syncline.values.queue_records import ServiceRole
from tests.crash.mounting import mounted_memory, why_no_mounting
from tests.storage.records.under_test import (
    FILES,
    RecordsUnderTest,
    copied,
    drop,
    notifier,
    queue,
    queue_id,
    service,
    service_id,
    sqlite_error,
    whole_queue,
)
from tests.storage.records.workload import contents, run

BATCH_COUNT = 8


def path_of(under_test: RecordsUnderTest) -> str:
    return str(under_test.folder / FILE_NAME)


def change_file(under_test: RecordsUnderTest, *statements: str) -> None:
    """By hand, with the records closed."""
    under_test.records.close()
    with closing(sqlite3.connect(path_of(under_test), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# --------------------------------------------------------------------------------- opening


def test_a_file_that_was_emptied_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Taken for a new one, it would let every key of every queue go without a word."""
    SqliteRecords.open(str(tmp_path), FILES).close()
    (tmp_path / FILE_NAME).write_bytes(b"")
    with pytest.raises(CorruptionError, match="it is empty"):
        SqliteRecords.open(str(tmp_path), FILES)
    assert (tmp_path / FILE_NAME).read_bytes() == b""


class CutShort(DiskFiles):
    """The process ends just before a name is given."""

    def rename(self, source: str, target: str) -> None:
        raise KeyboardInterrupt


def test_a_first_start_that_is_cut_short_leaves_a_draft_that_the_next_one_makes_anew(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        SqliteRecords.open(str(tmp_path), CutShort())
    [draft] = tmp_path.iterdir()
    assert draft.name == "records.sqlite.new"
    draft.write_bytes(b"torn")
    (tmp_path / "records.sqlite.new-wal").write_bytes(b"torn as well")
    records = SqliteRecords.open(str(tmp_path), FILES)
    assert records.counts() == RecordCounts()
    records.close()
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


def test_only_the_owner_may_read_the_file(stored: RecordsUnderTest) -> None:
    stored.records.create_queue(queue(1))
    stored.commit()
    names = sorted(path.name for path in stored.folder.iterdir())
    assert names == [FILE_NAME, f"{FILE_NAME}-shm", f"{FILE_NAME}-wal"]
    for path in stored.folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_name_is_durable_before_anything_is(tmp_path: Path) -> None:
    synced: list[str] = []

    class WatchedFiles(DiskFiles):
        def sync_folder(self, path: str) -> None:
            assert (Path(path) / FILE_NAME).stat().st_size > 0
            synced.append(path)
            super().sync_folder(path)

    SqliteRecords.open(str(tmp_path), WatchedFiles()).close()
    assert synced == [str(tmp_path)]


def test_a_closed_file_is_one_file(stored: RecordsUnderTest) -> None:
    stored.records.create_queue(queue(1))
    stored.records.close()
    assert [path.name for path in stored.folder.iterdir()] == [FILE_NAME]
    stored.records = stored.open()


def test_commits_are_synced(stored: RecordsUnderTest) -> None:
    writing = stored.sqlite._writing
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_checkpoint_brings_the_wal_into_the_file(
    stored: RecordsUnderTest, tmp_path: Path
) -> None:
    run(stored.records, range(BATCH_COUNT))
    expected = contents(stored.records, BATCH_COUNT)
    thread = threading.Thread(target=stored.records.checkpoint)
    thread.start()
    thread.join()
    left = copied(stored.folder, tmp_path / "left")
    (left / f"{FILE_NAME}-wal").unlink()
    with closing(SqliteRecords.open(str(left), FILES)) as found:
        assert contents(found, BATCH_COUNT) == expected
    # The next batch begins the WAL anew, so it does not grow.
    size = (stored.folder / f"{FILE_NAME}-wal").stat().st_size
    stored.records.create_queue(queue(900_000))
    stored.commit()
    assert (stored.folder / f"{FILE_NAME}-wal").stat().st_size == size


def test_the_wal_is_brought_in_while_batches_are_written(stored: RecordsUnderTest) -> None:
    for number in range(6_000):
        stored.records.create_queue(queue(number))
        if number % 40 == 0:
            stored.commit()
    stored.commit()
    frame_bytes = 4096 + 24
    size = (stored.folder / f"{FILE_NAME}-wal").stat().st_size
    assert size < 3 * 4_096 * frame_bytes
    assert Path(path_of(stored)).stat().st_size > 500_000


def test_a_later_version_is_left_alone(stored: RecordsUnderTest) -> None:
    later = len(schema.MIGRATIONS) + 1
    change_file(stored, f"PRAGMA user_version = {later}")
    before = Path(path_of(stored)).read_bytes()
    with pytest.raises(NewerFormatError) as refused:
        stored.open()
    assert (refused.value.found, refused.value.known) == (later, later - 1)
    with pytest.raises(NewerFormatError):
        examine(str(stored.folder), path_of(stored), FILES)
    assert Path(path_of(stored)).read_bytes() == before
    change_file_back(stored)


def change_file_back(stored: RecordsUnderTest) -> None:
    with closing(sqlite3.connect(path_of(stored), isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
    stored.records = stored.open()


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE music (title TEXT)")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ForeignFolderError, match="not written by Syncline"):
        SqliteRecords.open(str(tmp_path), FILES)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("music",)]
    assert len(before) == len((tmp_path / FILE_NAME).read_bytes())


def test_bytes_that_are_no_database_are_damage(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"records" * 1_000)
    with pytest.raises(CorruptionError, match="file is not a database") as damaged:
        SqliteRecords.open(str(tmp_path), FILES)
    assert damaged.value.file == str(tmp_path / FILE_NAME)


def test_a_wal_without_its_file_is_not_thrown_away(tmp_path: Path) -> None:
    wal = tmp_path / f"{FILE_NAME}-wal"
    wal.write_bytes(b"all there is")
    with pytest.raises(CorruptionError, match="WAL"):
        SqliteRecords.open(str(tmp_path), FILES)
    assert wal.read_bytes() == b"all there is"


def test_a_damaged_page_is_reported_where_it_is_met(
    stored: RecordsUnderTest, tmp_path: Path
) -> None:
    for number in range(200):
        stored.records.create_queue(queue(number))
    stored.reopen()
    damaged = copied(stored.folder, tmp_path / "damaged") / FILE_NAME
    data = bytearray(damaged.read_bytes())
    # All but the first page, where the schema begins.
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    damaged.write_bytes(data)
    with pytest.raises(CorruptionError, match="malformed") as found:
        examine(str(damaged.parent), str(damaged), FILES)
    assert found.value.file == str(damaged)
    with pytest.raises(CorruptionError, match="malformed"):
        look_at_all(damaged.parent)


def look_at_all(folder: Path) -> None:
    records = SqliteRecords.open(str(folder), FILES)
    try:
        for number in range(200):
            records.queue(queue_id(number))
    finally:
        drop(records)


def test_what_an_older_version_wrote_is_brought_up_to_date(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.records.create_queue(queue(1))
    stored.records.close()
    later = (
        *schema.MIGRATIONS,
        ("ALTER TABLE queues ADD COLUMN colour TEXT", "UPDATE queues SET colour = 'blue'"),
        ("CREATE TABLE colours (name TEXT) STRICT",),
    )
    monkeypatch.setattr(schema, "MIGRATIONS", later)
    stored.records = stored.open()
    assert stored.records.queue(queue_id(1)) == queue(1)
    writing = stored.sqlite._writing
    assert writing.execute("SELECT colour FROM queues").fetchall() == [("blue",)]
    assert writing.execute("SELECT * FROM colours").fetchall() == []
    assert writing.execute("PRAGMA user_version").fetchone() == (len(later),)


def test_half_a_step_to_a_later_version_is_none(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.records.create_queue(queue(1))
    stored.records.close()
    broken = (*schema.MIGRATIONS, ("CREATE TABLE colours (name TEXT)", "CREATE NONSENSE"))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", broken)
        with pytest.raises(sqlite3.OperationalError):
            stored.open()
    stored.records = stored.open()
    assert stored.records.queue(queue_id(1)) == queue(1)
    tables = stored.sqlite._writing.execute("SELECT name FROM sqlite_schema").fetchall()
    assert ("colours",) not in tables


# ------------------------------------------------------------------------------ its device


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (sqlite3.SQLITE_FULL, "SQLITE_FULL", StoreFullError),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "SQLITE_IOERR_SHMSIZE", StoreFullError),
        (sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC", DeviceError),
        (sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE", DeviceError),
        (sqlite3.SQLITE_IOERR, "SQLITE_IOERR", DeviceError),
        (sqlite3.SQLITE_NOMEM, "SQLITE_NOMEM", DeviceError),
        (sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT", CorruptionError),
        (sqlite3.SQLITE_NOTADB, "SQLITE_NOTADB", CorruptionError),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, "SQLITE_CONSTRAINT_UNIQUE", CorruptionError),
        (sqlite3.SQLITE_BUSY, "SQLITE_BUSY", StoreLockedError),
        (sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN", StorageError),
        (sqlite3.SQLITE_READONLY, "SQLITE_READONLY", StorageError),
    ],
)
def test_what_sqlite_says_is_said_in_our_words(
    code: int, name: str, kind: type[StorageError]
) -> None:
    found = storage_error(sqlite_error(code, name), "records.sqlite", "writing")
    assert type(found) is kind
    assert "records.sqlite" in str(found)


def test_our_own_mistakes_stay_what_they_are() -> None:
    mistake = sqlite3.ProgrammingError("wrong number of values")
    assert storage_error(mistake, "x", "writing") is mistake
    wrong = sqlite_error(sqlite3.SQLITE_ERROR, "SQLITE_ERROR")
    assert storage_error(wrong, "x", "writing") is wrong


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[None]:
    class Failing(BatchWriter):
        def run(self, operations: Iterable[Operation]) -> None:
            super().run(operations)
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "BatchWriter", Failing)
        yield


def test_after_a_failed_device_nothing_is_written_again(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = stored.records
    records.create_queue(queue(1))
    batch = records.take_batch()
    assert batch is not None
    gone = sqlite_error(sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC")
    with failing(monkeypatch, gone), pytest.raises(DeviceError, match="ioerr_fsync"):
        records.write_batch(batch)
    with pytest.raises(DeviceError):
        records.write_batch(batch)
    records.close()
    stored.records = stored.open()
    assert stored.records.queue(queue_id(1)) is None


def test_rows_that_are_missing_are_damage(stored: RecordsUnderTest) -> None:
    stored.records.create_queue(queue(1))
    stored.commit()
    stored.sqlite._writing.execute("DELETE FROM queues")
    stored.records.update_queue(queue(1, used_day=1))
    with pytest.raises(CorruptionError, match="1 rows were to change and 0 were there"):
        stored.commit()


def test_a_service_that_is_missing_is_damage(stored: RecordsUnderTest) -> None:
    stored.records.create_service(service(1))
    stored.commit()
    assert stored.records.service(service_id(1)) is not None
    stored.records.create_queue(queue(1, service_id=service_id(1)))
    stored.sqlite._writing.execute("DELETE FROM services")
    with pytest.raises(CorruptionError, match="missing"):
        stored.commit()


def fill_up(stored: RecordsUnderTest) -> tuple[int, int]:
    """Create until there is no room; how many batches were taken, and how many refused."""
    taken = refused = 0
    number = 1_000
    while refused < 3 and taken < 2_000:
        for _ in range(5):
            stored.records.create_queue(whole_queue(number, None, None))
            number += 1
        try:
            stored.commit()
            taken += 1
        except StoreFullError:
            refused += 1
    return taken, refused


def test_a_file_that_may_not_grow_refuses_batches_and_keeps_the_rest(
    stored: RecordsUnderTest,
) -> None:
    run(stored.records, range(BATCH_COUNT))
    before = contents(stored.records, BATCH_COUNT)
    stored.sqlite._writing.execute("PRAGMA max_page_count = 150").fetchone()
    taken, refused = fill_up(stored)
    assert refused == 3
    assert stored.records.counts().queue_count == before.counts.queue_count + 5 * taken
    stored.records.update_queue(replace(before.queues[0], used_day=77))
    stored.commit()
    stored.sqlite._writing.execute("PRAGMA max_page_count = 100000").fetchone()
    assert fill_up_some(stored) == 5
    stored.reopen()
    found = stored.records.queue(before.queues[0].recipient_id)
    assert found == replace(before.queues[0], used_day=77)
    assert stored.records.verify_digests() == []


def fill_up_some(stored: RecordsUnderTest) -> int:
    for number in range(5):
        stored.records.create_queue(whole_queue(number + 900_000, None, None))
    stored.commit()
    return sum(stored.records.queue(queue_id(number + 900_000)) is not None for number in range(5))


@pytest.mark.timeout(60)
def test_a_full_disk_refuses_batches_and_writing_goes_on_by_itself(tmp_path: Path) -> None:
    reason = why_no_mounting()
    if reason is not None:
        pytest.skip(reason)
    with mounted_memory(tmp_path / "disk", 3 << 20) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(1 << 20))
        stored = RecordsUnderTest("sqlite", disk / "data")
        run(stored.records, range(BATCH_COUNT))
        before = contents(stored.records, BATCH_COUNT)
        taken, refused = fill_up(stored)
        assert refused == 3
        assert taken > 3
        assert contents(stored.records, BATCH_COUNT).queues == before.queues
        assert stored.records.counts().queue_count == before.counts.queue_count + 5 * taken
        filler.unlink()
        assert fill_up_some(stored) == 5
        stored.reopen()
        assert stored.records.counts().queue_count == before.counts.queue_count + 5 * taken + 5
        assert stored.records.verify_digests() == []
        stored.end()


def test_a_limit_on_files_is_a_failed_device_or_a_full_one(stored: RecordsUnderTest) -> None:
    """The system has a third word for it, which SQLite takes for a failure."""
    run(stored.records, range(2))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (stored.folder / f"{FILE_NAME}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10_000, before[1]))
    try:
        with pytest.raises((DeviceError, StoreFullError)):
            fill_up(stored)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    stored.crash()
    assert stored.records.verify_digests() == []


# ------------------------------------------------------------------------- digests by hand

DAMAGE: dict[str, str] = {
    "count": "UPDATE digests SET count = count + 1",
    "one hash": "UPDATE digests SET md5_low = md5_low + 1",
    "the sum alone, as of an id that was added three times": (
        "UPDATE digests SET sum_0 = sum_0 + 2"
    ),
    "the row": "DELETE FROM digests",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_wrong_digest_is_found_and_set_right(stored: RecordsUnderTest, damage: str) -> None:
    run(stored.records, range(BATCH_COUNT))
    before = {
        each.service_id: stored.records.digest(each.service_id)
        for each in stored.records.services()
    }
    assert stored.records.repair_digests() == []
    change_file(stored, DAMAGE[damage])
    stored.records = stored.open()

    wrong = stored.records.verify_digests()
    assert {each.service_id for each in wrong} == set(before)
    for each in wrong:
        assert each.kept != each.found
        assert replace(each.found, version=0) == replace(before[each.service_id], version=0)
        assert (each.kept is None) == (damage == "the row")
        record = stored.records.service(each.service_id)
        assert record is not None
        assert each.role is record.role
    assert stored.records.repair_digests() == wrong
    assert stored.records.verify_digests() == []
    for service_number, digest in before.items():
        found = stored.records.digest(service_number)
        # Whoever remembers the version learns that something has happened.
        expected = 1 if damage == "the row" else digest.version + 1
        assert found == replace(digest, version=expected)
    # And it is kept from there on.
    run(stored.records, range(BATCH_COUNT, BATCH_COUNT + 4))
    assert stored.records.verify_digests() == []


def test_repairs_and_batches_do_not_get_in_the_way_of_one_another(
    stored: RecordsUnderTest,
) -> None:
    stored.records.create_service(service(1))
    stored.records.create_queue(queue(900, service_id=service_id(1)))
    stored.commit()
    stored.sqlite._writing.execute("UPDATE digests SET count = count + 1")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(stored.records.repair_digests()))
    thread.start()
    for number in range(10):
        stored.records.create_queue(queue(number, service_id=service_id(1)))
        stored.commit()
    thread.join()
    assert len(found) == 1
    assert stored.records.verify_digests() == []
    assert stored.records.digest(service_id(1)).count == 11


def test_wrong_counters_are_set_right(stored: RecordsUnderTest) -> None:
    run(stored.records, range(BATCH_COUNT))
    before = stored.records.counts()
    stored.sqlite._writing.execute("UPDATE totals SET queues = 7, links = links + 1")
    with closing(sqlite3.connect(path_of(stored), isolation_level=None)) as connection:
        kept, found = repair_counts(connection)
    assert kept.queue_count == 7
    assert found == before == stored.records.counts()


def test_a_sum_of_hashes_wraps_around() -> None:
    """Two thirds of all sums of three hashes pass 2 ** 128."""
    ids = [random.Random(number).randbytes(24) for number in range(50)]
    total = digest_of(ids)
    row = rows.digest_to_row(total)
    assert rows.digest_from_row(row) == total
    # The parts may have gone below zero or far above 32 bits on their way.
    count, *hashes, third, second, first, zeroth, version = row
    shifted = (
        count,
        *hashes,
        third - 5,
        second + (5 << 32),
        first - 1,
        zeroth + (1 << 32),
        version,
    )
    assert rows.digest_from_row(shifted) == total


# --------------------------------------------------------------------------------- looking


@pytest.mark.parametrize("role", ServiceRole)
def test_a_page_is_read_from_an_index_alone(stored: RecordsUnderTest, role: ServiceRole) -> None:
    plan = stored.sqlite._writing.execute(
        f"EXPLAIN QUERY PLAN {page_select(role)}", (1, b"", 9)
    ).fetchall()
    assert len(plan) == 1
    name = "queues_notifier_service" if role is ServiceRole.NOTIFIER else "queues_service"
    assert f"USING COVERING INDEX {name}" in plan[0][3]


@pytest.mark.parametrize("column", ["recipient_id", "sender_id", "notifier_id", "link_id"])
def test_a_queue_is_found_through_an_index(stored: RecordsUnderTest, column: str) -> None:
    text = f"EXPLAIN QUERY PLAN {rows.QUEUE_SELECT} WHERE {column} = ?"
    plan = stored.sqlite._writing.execute(text, (bytes(24),)).fetchall()
    assert not [step for step in plan if "SCAN" in step[3]]


def test_counts_need_no_scan(stored: RecordsUnderTest) -> None:
    text = f"EXPLAIN QUERY PLAN {sqlite_checks.COUNTS_SELECT}"
    plan = stored.sqlite._writing.execute(text).fetchall()
    assert [step[3] for step in plan] == ["SCAN totals"]


def test_memory_is_bounded_however_much_is_looked_at(tmp_path: Path) -> None:
    options = RecordsOptions(cache_bytes_max=20 * 1024)
    stored = RecordsUnderTest("sqlite", tmp_path / "data", options)
    for number in range(100):
        stored.records.create_queue(queue(number))
    stored.commit()
    for number in range(100):
        assert stored.records.queue(queue_id(number)) == queue(number)
    assert len(stored.sqlite._cache) <= 20
    assert stored.sqlite._cache.byte_count <= 20 * 1024
    stored.end()


def test_data_of_a_link_goes_with_it(stored: RecordsUnderTest) -> None:
    for number in range(3):
        stored.records.create_queue(whole_queue(number, None, None))
    stored.commit()
    stored.records.update_queue(replace(whole_queue(0, None, None), link=None))
    stored.records.delete_queue(queue_id(1))
    stored.commit()
    (count,) = stored.sqlite._writing.execute("SELECT count(*) FROM links").fetchone()
    assert count == 1


def test_services_that_are_kept_in_memory_are_few(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_KNOWN_SERVICE_COUNT_MAX", 3)
    for number in range(8):
        stored.records.create_service(service(number))
    stored.commit()
    for number in range(8):
        assert stored.records.service(service_id(number)) == service(number)
        assert len(stored.sqlite._known_services) <= 3


def test_examining_leaves_the_folder_as_it_is(stored: RecordsUnderTest, tmp_path: Path) -> None:
    run(stored.records, range(BATCH_COUNT))
    left = copied(stored.folder, tmp_path / "left")
    before = {path.name: path.read_bytes() for path in left.iterdir()}
    assert f"{FILE_NAME}-wal" in before
    report = examine(str(left), str(left / FILE_NAME), FILES)
    assert report.is_whole
    assert report.kept_counts == report.found_counts == stored.records.counts()
    assert {path.name: path.read_bytes() for path in left.iterdir()} == before

    stored.records.close()
    closed = copied(stored.folder, tmp_path / "closed")
    before = {path.name: path.read_bytes() for path in closed.iterdir()}
    assert list(before) == [FILE_NAME]
    assert examine(str(closed), str(closed / FILE_NAME), FILES) == report
    assert {path.name: path.read_bytes() for path in closed.iterdir()} == before
    stored.records = stored.open()


def test_examining_finds_what_is_wrong(stored: RecordsUnderTest) -> None:
    run(stored.records, range(BATCH_COUNT))
    change_file(
        stored,
        "UPDATE digests SET count = count + 1",
        "UPDATE totals SET queues = queues + 1",
    )
    report = examine(str(stored.folder), path_of(stored), FILES)
    assert not report.is_whole
    assert report.kept_counts is not None
    assert report.found_counts is not None
    assert len(report.mismatches) == report.found_counts.service_count > 0
    assert report.kept_counts.queue_count == report.found_counts.queue_count + 1
    assert report.damage == ()
    stored.records = stored.open()


# --------------------------------------------------------------------------------- copying


def test_a_copy_is_made_while_others_write(stored: RecordsUnderTest, tmp_path: Path) -> None:
    run(stored.records, range(BATCH_COUNT))
    before = contents(stored.records, BATCH_COUNT + 30)
    target = tmp_path / "copy"
    target.mkdir()
    steps = stored.sqlite.backup(str(target))
    copied_bytes: list[int] = []
    thread = threading.Thread(target=lambda: copied_bytes.extend(steps))
    stored.records.create_queue(queue(900_000))
    thread.start()
    run(stored.records, range(BATCH_COUNT, BATCH_COUNT + 30))
    thread.join()
    assert sum(copied_bytes) == (target / FILE_NAME).stat().st_size
    assert [path.name for path in target.iterdir()] == [FILE_NAME]
    assert (target / FILE_NAME).stat().st_mode & 0o777 == 0o600

    report = examine(str(target), str(target / FILE_NAME), FILES)
    assert report.is_whole, "as of one moment"
    copy = SqliteRecords.open(str(target), FILES)
    assert copy.queue(queue_id(900_000)) is not None or contents(copy, BATCH_COUNT + 30) == before
    copy.create_queue(queue(900_001))
    copy.close()


def test_a_copy_is_on_the_device_when_it_is_done(stored: RecordsUnderTest, tmp_path: Path) -> None:
    synced: list[str] = []

    class WatchedFile:
        def __init__(self, file: File) -> None:
            self._file = file

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

        def sync(self) -> None:
            assert self._file.size() > 0
            synced.append(self._file.path)
            self._file.sync()

    class WatchedFiles(DiskFiles):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
            return cast("File", WatchedFile(super().open(path, create=create, writable=writable)))

        def sync_folder(self, path: str) -> None:
            synced.append(path)
            super().sync_folder(path)

    run(stored.records, range(2))
    target = tmp_path / "copy"
    target.mkdir()
    list(copy_records(str(stored.folder), str(target), WatchedFiles()))
    assert synced == [str(target / FILE_NAME), str(target)]


def test_a_copy_needs_a_place_without_records(stored: RecordsUnderTest, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    list(stored.sqlite.backup(str(target)))
    with pytest.raises(ValueError, match="is there already"):
        list(stored.sqlite.backup(str(target)))


def test_a_folder_without_records_has_nothing_to_copy(tmp_path: Path) -> None:
    stored = RecordsUnderTest("sqlite", tmp_path / "data")
    stored.records.close()
    (tmp_path / "data" / FILE_NAME).unlink()
    (tmp_path / "copy").mkdir()
    assert list(stored.sqlite.backup(str(tmp_path / "copy"))) == []
    assert list((tmp_path / "copy").iterdir()) == []


# ------------------------------------------------------------------------------- committer


async def test_a_committer_writes_records_like_a_store(stored: RecordsUnderTest) -> None:
    committer = Committer.on_thread(stored.records)
    try:
        for number in range(20):
            stored.records.create_queue(queue(number))
            await committer.durable()
            assert stored.records.counts().queue_count == number + 1
        assert committer.stats.batch_count == 20
    finally:
        await committer.close()


async def test_a_committer_refuses_what_found_no_room_and_goes_on(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer.on_thread(stored.records)
    full = sqlite_error(sqlite3.SQLITE_FULL, "SQLITE_FULL")
    try:
        with failing(monkeypatch, full):
            stored.records.create_queue(queue(1))
            with pytest.raises(StoreFullError):
                await committer.durable()
        assert committer.failure is None
        assert stored.records.queue(queue_id(1)) is None
        stored.records.create_queue(queue(1))
        await committer.durable()
        assert stored.records.counts().queue_count == 1
    finally:
        await committer.close()


async def test_a_file_that_another_process_writes_to_refuses_batches_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "_BUSY_SECONDS", 0.05)
    records = SqliteRecords.open(str(tmp_path), DiskFiles())
    committer = Committer.on_thread(records)
    try:
        with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            records.create_queue(queue(1))
            with pytest.raises(StoreHeldError):
                await committer.durable()
        assert committer.failure is None
        assert records.queue(queue_id(1)) is None
        records.create_queue(queue(1))
        await committer.durable()
        assert records.counts().queue_count == 1
    finally:
        await committer.close()
        records.close()


async def test_a_committer_tells_those_who_built_on_what_found_no_room(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is staged while the first is written, and fails with it."""
    committer = Committer.on_thread(stored.records)
    started, release = threading.Event(), threading.Event()

    class Slow(BatchWriter):
        def run(self, operations: Iterable[Operation]) -> None:
            super().run(operations)
            started.set()
            assert release.wait(10)
            raise sqlite_error(sqlite3.SQLITE_FULL, "SQLITE_FULL")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "BatchWriter", Slow)
            stored.records.create_queue(queue(1))
            first = asyncio.ensure_future(committer.durable())
            assert await asyncio.to_thread(started.wait, 10)
            stored.records.update_queue(queue(1, used_day=5))
            second = asyncio.ensure_future(committer.durable())
            await asyncio.sleep(0)
            release.set()
            told = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in told] == [StoreFullError, StoreFullError]
        stored.records.create_queue(queue(1))
        await committer.durable()
        assert stored.records.queue(queue_id(1)) == queue(1)
    finally:
        await committer.close()


# -------------------------------------------------------------------------------- loops


MANY: dict[str, Callable[[RecordsUnderTest], object]] = {
    "services": lambda stored: stored.records.services(),
    "pages": lambda stored: stored.records.page(service_id(0), None, 1 << 40),
    "deleted": lambda stored: stored.records.deleted_queues(1 << 40),
}


@pytest.mark.parametrize("what", MANY)
def test_one_answer_is_bounded(
    stored: RecordsUnderTest, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def rows_of(text: str, *values: object) -> list[object]:
        asked.append((text, *values))
        return [(1, "M")] if "role" in text and "chain" not in text else []

    monkeypatch.setattr(stored.sqlite._reading, "_rows", rows_of)
    MANY[what](stored)
    text, *values = asked[-1]
    assert isinstance(text, str)
    assert "LIMIT" in text
    assert not [each for each in values if isinstance(each, int) and each > 65_536]


def test_a_notifier_without_a_service_is_in_no_set(stored: RecordsUnderTest) -> None:
    stored.records.create_service(service(1, ServiceRole.NOTIFIER))
    stored.records.create_queue(queue(1, notifier=notifier(1)))
    stored.commit()
    assert stored.records.digest(service_id(1)).count == 0
