"""Everything compared with everything while a router serves, and what is wrong set right."""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeVar
from unittest import mock

import pytest

from syncline.errors import CorruptionError, StorageError
from syncline.storage.records import sqlite_checks, sqlite_reports
from syncline.storage.records.base import RecordCounts
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite_connection import transaction
from syncline.storage.records.sqlite_reports import count_records, examine
from syncline.storage.set_digests import run_out
from syncline.values.queue_records import ServiceRole
from tests.storage.records.under_test import (
    FILES,
    RecordsUnderTest,
    notifier,
    queue,
    queue_id,
    service,
    service_id,
)
from tests.storage.records.workload import run

BATCH_COUNT = 9
Result = TypeVar("Result")


def damage(stored: RecordsUnderTest, *texts: str) -> None:
    """By hand, as with a tool beside the router."""
    with closing(sqlite3.connect(stored.folder / FILE_NAME, isolation_level=None)) as connection:
        for text in texts:
            connection.execute(text)


def counted(steps: Generator[int, None, Result]) -> tuple[list[int], Result]:
    """What the steps yielded and what came at the end."""
    found: list[int] = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return found, end.value


def test_a_set_is_walked_in_steps_that_add_up(under_test: RecordsUnderTest) -> None:
    run(under_test.records, range(BATCH_COUNT))
    records = under_test.records
    assert records.service_ids() == [each.service_id for each in records.services()]
    for each in records.service_ids():
        steps, mismatch = counted(records.walk_digest(each))
        assert sum(steps) == records.digest(each).count > 0
        assert mismatch is None
    assert counted(records.walk_digest(service_id(999)))[1] is None


def test_a_walk_is_of_one_moment(stored: RecordsUnderTest) -> None:
    """A change meanwhile is no mismatch, and a digest that was wrong at its start is one."""
    records = stored.records
    records.create_service(service(1))
    for number in range(50):
        records.create_queue(queue(number, service_id=service_id(1)))
    stored.commit()
    steps = records.walk_digest(service_id(1))
    next(steps)
    for number in range(25):
        records.delete_queue(queue_id(number))
        records.create_queue(queue(100 + number, service_id=service_id(1)))
        stored.commit()
    yielded, mismatch = counted(steps)
    assert sum(yielded) <= 50
    assert mismatch is None

    damage(stored, "UPDATE digests SET count = 7")
    steps = records.walk_digest(service_id(1))
    next(steps)
    assert records.repair_digest(service_id(1)) is not None
    _, mismatch = counted(steps)
    assert mismatch is not None
    assert mismatch.kept is not None
    assert (mismatch.kept.count, mismatch.found.count) == (7, 50)


def test_a_walk_that_is_left_lets_go_of_its_moment(stored: RecordsUnderTest) -> None:
    run(stored.records, range(BATCH_COUNT))
    steps = stored.records.walk_digest(stored.records.service_ids()[0])
    next(steps)
    run(stored.records, range(BATCH_COUNT, BATCH_COUNT + 1))
    with closing(sqlite3.connect(stored.folder / FILE_NAME)) as connection:
        connection.execute("PRAGMA busy_timeout = 0")
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 1
        steps.close()
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


@pytest.mark.parametrize("repairs", [False, True])
def test_nothing_is_wrong_where_nothing_is(under_test: RecordsUnderTest, repairs: bool) -> None:
    run(under_test.records, range(BATCH_COUNT))
    records = under_test.records
    before = {each: records.digest(each) for each in records.service_ids()}
    steps, report = counted(records.check(repairs=repairs))
    assert sum(steps) == sum(digest.count for digest in before.values())
    assert report.is_whole
    assert report.is_left_whole
    assert report.kept_counts == report.found_counts == records.counts()
    assert {each: records.digest(each) for each in records.service_ids()} == before


def test_what_is_wrong_is_told_and_stays_unless_it_is_to_be_repaired(
    stored: RecordsUnderTest,
) -> None:
    run(stored.records, range(BATCH_COUNT))
    records = stored.records
    right = records.counts()
    damage(stored, "UPDATE digests SET md5_low = 1", "UPDATE totals SET queues = 3, deleted = 1")
    for _ in range(2):
        report = run_out(records.check())
        assert not report.is_whole
        assert not report.is_left_whole
        assert [each.service_id for each in report.mismatches] == records.service_ids()
        assert report.kept_counts == replace(right, queue_count=3, deleted_count=1)
        assert report.found_counts == right
    report = run_out(records.check(repairs=True))
    assert not report.is_whole
    assert report.is_left_whole
    assert len(report.mismatches) == len(records.service_ids())
    assert run_out(records.check()).is_whole
    assert records.counts() == right


def test_counters_are_repaired_while_others_write(stored: RecordsUnderTest) -> None:
    """They are counted, then others write, and what was wrong is taken off."""
    records = stored.records
    for number in range(5):
        records.create_queue(queue(number))
    stored.commit()
    damage(stored, "UPDATE totals SET queues = 70")

    @contextmanager
    def late(connection: sqlite3.Connection) -> Generator[None]:
        for number in range(5, 8):
            records.create_queue(queue(number, notifier=notifier(number)))
        records.delete_queue(queue_id(0))
        stored.commit()
        with transaction(connection):
            yield

    with mock.patch.object(sqlite_checks, "transaction", late):
        report = run_out(records.check(repairs=True))
    assert report.kept_counts == RecordCounts(queue_count=70)
    assert records.counts() == RecordCounts(queue_count=7, notifier_count=3, deleted_count=1)


def test_a_check_can_be_stopped_at_any_time(
    stored: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(stored.records, range(BATCH_COUNT))
    monkeypatch.setattr(sqlite_reports, "_STEPS_AT_ONCE", 10)
    is_stopped = threading.Event()
    steps = stored.records.check(is_stopped=is_stopped.is_set)
    next(steps)
    is_stopped.set()
    with pytest.raises(StorageError, match="stopped"):
        counted(steps)
    assert run_out(stored.records.check()).is_whole


def break_pages(stored: RecordsUnderTest, table: str) -> None:
    """All pages of a table or an index, but its first."""
    stored.records.close()
    path = stored.folder / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        pages = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)
        ).fetchall()
    data = bytearray(path.read_bytes())
    for (page,) in pages:
        data[(page - 1) * 4096 : (page - 1) * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)


def filled(stored: RecordsUnderTest, count: int = 300) -> None:
    stored.records.create_service(service(1))
    stored.records.create_service(service(2, ServiceRole.NOTIFIER))
    for number in range(count):
        stored.records.create_queue(queue(number, service_id=service_id(1)))
    stored.commit()


def has_dbstat() -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT 1 FROM dbstat").fetchall()
        except sqlite3.OperationalError:
            return False
    return True


@pytest.mark.skipif(not has_dbstat(), reason="this SQLite does not tell of its pages")
@pytest.mark.parametrize("table", ["queues", "queues_service"])
def test_damage_is_told_and_nothing_is_repaired_from_it(
    stored: RecordsUnderTest, table: str
) -> None:
    filled(stored)
    digest = stored.records.digest(service_id(1))
    break_pages(stored, table)
    report = examine(str(stored.folder), str(stored.folder / FILE_NAME), FILES)
    assert report.damage
    assert not report.is_whole
    stored.records = stored.open()
    report = run_out(stored.records.check(repairs=True))
    assert report.damage
    assert not report.is_repaired
    assert not report.is_left_whole
    assert stored.records.digest(service_id(1)) == digest


def test_a_file_without_tables_is_damaged(stored: RecordsUnderTest) -> None:
    empty = stored.folder / "empty"
    empty.mkdir()
    (empty / FILE_NAME).touch()
    for look in (examine, count_records):
        with pytest.raises(CorruptionError, match="it is empty"):
            look(str(empty), str(empty / FILE_NAME), FILES)
