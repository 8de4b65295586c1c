"""Sets of services: read at one moment, followed change by change, their digests repaired."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from syncline.core.reconciliation.sets import END, IdSet, RangeDigest, rows_between, state_of
from syncline.errors import CorruptionError, StorageError, StoreFullError
from syncline.storage.records import sqlite, sqlite_checks, sqlite_sets
from syncline.storage.records.base import Records, commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite_connection import connect_reader, transaction
from syncline.values.digests import SetDigest, digest_of
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import Change
from tests.storage.records.under_test import (
    RecordsUnderTest,
    notifier,
    notifier_id,
    queue,
    queue_id,
    service,
    service_id,
    sqlite_error,
)
from tests.storage.records.workload import run, stage

MESSAGING, OTHER, NOTIFYING = service_id(1), service_id(2), service_id(3)
BATCH_COUNT = 14
EDGES = (b"\0", b"\xff")


def with_services(under_test: RecordsUnderTest) -> Records:
    records = under_test.records
    records.create_service(service(1))
    records.create_service(service(2))
    records.create_service(service(3, ServiceRole.NOTIFIER))
    under_test.commit()
    return records


def ids_of(found: IdSet) -> list[bytes]:
    rows = rows_between(found, b"", END)
    return [row.tobytes() for row in rows]


def as_range(digest: SetDigest) -> RangeDigest:
    xor, total = int.from_bytes(digest.xor_xxh3, "big"), int.from_bytes(digest.sum128, "big")
    return RangeDigest(digest.count, xor, total)


class Follower:
    """Plays the changes back, and remembers the set of each version that it was told of."""

    def __init__(self, records: Records) -> None:
        self.told: list[tuple[bytes, int, tuple[Change, ...]]] = []
        self.sets: dict[bytes, dict[int, frozenset[bytes]]] = {}
        self.threads: set[int] = set()
        records.follow_sets(self)

    def __call__(self, service: bytes, version: int, changes: Sequence[Change]) -> None:
        self.told.append((service, version, tuple(changes)))
        self.threads.add(threading.get_ident())
        if not changes:
            if version == 0:
                self.sets.pop(service, None)
            else:
                # A repaired digest: another version of the same set.
                known = self.sets.setdefault(service, {0: frozenset()})
                known[version] = known[max(known)]
            return
        known = self.sets.setdefault(service, {0: frozenset()})
        for step, change in enumerate(changes, version - len(changes) + 1):
            before = known[step - 1]
            assert (change.id in before) is not change.is_added
            known[step] = before ^ {change.id}


# ----------------------------------------------------------------------------------- reading


def test_a_set_is_read_with_its_version_and_counted_by_its_ids(
    under_test: RecordsUnderTest,
) -> None:
    run(under_test.records, range(BATCH_COUNT))
    records = under_test.records
    sizes: list[int] = []
    for each in records.services():
        expected = records.page(each.service_id, None, 1_000)
        digest = records.digest(each.service_id)
        with records.read_set(each.service_id) as found:
            assert ids_of(found) == expected
            assert found.size() == len(expected)
            assert found.version() == digest.version
            assert found.digest(b"", END) == as_range(digest)
            assert found.lower_bound(b"") == expected[0]
            assert found.lower_bound(expected[0] + b"\0") == expected[1]
        sizes.append(len(expected))
    assert min(sizes) > 2


def test_a_set_of_nobody_is_empty(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_service(service(4))
    records.create_queue(queue(1, service_id=service_id(4)))
    for unknown in (service_id(4), service_id(5), MESSAGING):
        with records.read_set(unknown) as found:
            assert (found.size(), found.version(), ids_of(found)) == (0, 0, [])
            assert found.digest(b"", END) == RangeDigest(0, 0, 0)
            assert found.lower_bound(b"") is None


def test_only_what_is_durable_is_in_the_set(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=MESSAGING))
    with records.read_set(MESSAGING) as found:
        assert ids_of(found) == []
    batch = records.take_batch()
    assert batch is not None
    with records.read_set(MESSAGING) as found:
        assert ids_of(found) == []
    records.write_batch(batch)
    records.finish_batch(batch)
    with records.read_set(MESSAGING) as found:
        assert ids_of(found) == [queue_id(1)]


def test_a_set_is_of_one_moment_while_others_write(under_test: RecordsUnderTest) -> None:
    """Read on one thread, piece by piece; between any two of them a batch is finished."""
    records = with_services(under_test)
    for number in range(20):
        records.create_queue(queue(number, service_id=MESSAGING))
    under_test.commit()
    before, digest = records.page(MESSAGING, None, 100), records.digest(MESSAGING)
    wanted, written = threading.Semaphore(0), threading.Semaphore(0)
    seen: list[tuple[list[bytes], int, int, RangeDigest]] = []

    def read() -> None:
        with records.read_set(MESSAGING) as found:
            for _ in range(6):
                wanted.release()
                assert written.acquire(timeout=15)
                seen.append((ids_of(found), found.size(), found.version(), found.digest(b"", END)))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(6):
        assert wanted.acquire(timeout=15)
        records.delete_queue(queue_id(number))
        records.create_queue(queue(100 + number, service_id=MESSAGING))
        under_test.commit()
        written.release()
    thread.join()
    assert seen == [(before, 20, digest.version, as_range(digest))] * 6
    with records.read_set(MESSAGING) as found:
        assert ids_of(found) == records.page(MESSAGING, None, 100) != before
        assert found.version() == digest.version + 12


def test_a_set_may_be_handed_to_another_thread(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=MESSAGING))
    under_test.commit()
    found: list[object] = []
    with records.read_set(MESSAGING) as ids:
        thread = threading.Thread(target=lambda: found.append(state_of(ids)))
        thread.start()
        thread.join()
        assert found == [state_of(ids)]


def test_a_set_is_read_whatever_its_digest_says(stored: RecordsUnderTest) -> None:
    records = with_services(stored)
    for number in range(5):
        records.create_queue(queue(number, service_id=MESSAGING))
    stored.commit()
    stored.sqlite._writing.execute("UPDATE digests SET count = 77, xxh3_low = 5, sum_1 = 3")
    with records.read_set(MESSAGING) as found:
        expected = digest_of(map(queue_id, range(5)))
        assert found.digest(b"", END) == as_range(expected)
        assert (found.size(), found.version()) == (5, 5)
    stored.sqlite._writing.execute("DELETE FROM digests")
    with records.read_set(MESSAGING) as found:
        assert (found.size(), found.version()) == (5, 0)


def test_every_id_is_in_the_digest_that_is_computed(stored: RecordsUnderTest) -> None:
    """Also the first and the last ones, and those beside the edges of what is read at once."""
    records = with_services(stored)
    heads = {0, 1, 255, 256, 0x7FFF, 0x8000, 0xFEFF, 0xFF00, 0xFFFE, 0xFFFF}
    ids = [StreamId(head.to_bytes(2, "big") + fill * 22) for head in heads for fill in EDGES]
    for number, id_ in enumerate(ids):
        records.create_queue(queue(number, recipient_id=id_, service_id=MESSAGING))
    stored.commit()
    assert records.recompute(MESSAGING) == digest_of(ids, len(ids)) == records.digest(MESSAGING)
    assert records.verify_digests() == []


@pytest.mark.parametrize(
    "name", ["a?mode=memory", "per%cent", "with #", "space d", "ünï", "file:x"]
)
def test_any_name_of_a_folder_will_do(tmp_path: Path, name: str) -> None:
    under_test = RecordsUnderTest("sqlite", tmp_path / name)
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=MESSAGING))
    under_test.commit()
    with records.read_set(MESSAGING) as found:
        assert ids_of(found) == [queue_id(1)]
    under_test.end()


@pytest.fixture
def connections(stored: RecordsUnderTest) -> Iterator[list[sqlite3.Connection]]:
    """All that are opened from now on to read."""
    opened: list[sqlite3.Connection] = []

    def connect(path: str, page_cache_bytes: int) -> sqlite3.Connection:
        opened.append(connect_reader(path, page_cache_bytes))
        return opened[-1]

    with mock.patch.object(sqlite, "connect_reader", connect):
        yield opened


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_reading_ends_with_its_connection_closed(
    stored: RecordsUnderTest, connections: list[sqlite3.Connection]
) -> None:
    records = with_services(stored)
    with records.read_set(MESSAGING) as found:
        assert not is_closed(connections[-1])
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connections[-1].execute("DELETE FROM digests")
    with pytest.raises(ZeroDivisionError), records.read_set(MESSAGING) as found:
        assert found.size() // 0
    with (
        mock.patch.object(sqlite_sets, "kept_digest", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
        records.read_set(MESSAGING),
    ):
        pass
    assert len(connections) == 3
    assert all(map(is_closed, connections))


def test_a_damaged_set_is_reported_by_its_file(
    stored: RecordsUnderTest, connections: list[sqlite3.Connection]
) -> None:
    records = with_services(stored)
    records.create_queue(queue(1, service_id=MESSAGING))
    stored.commit()
    with records.read_set(MESSAGING) as found:
        mock_error = sqlite3.DatabaseError("malformed")
        mock_error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with pytest.raises(CorruptionError) as caught, records.read_set(MESSAGING):
        raise mock_error
    assert caught.value.file.endswith(FILE_NAME)
    with closing(sqlite3.connect(stored.folder / FILE_NAME, isolation_level=None)) as damaging:
        damaging.execute("PRAGMA ignore_check_constraints = ON")
        damaging.create_function("md5_high", 1, lambda _: 0)
        for name in ("md5_high", "md5_low", "xxh3_high", "xxh3_low"):
            damaging.create_function(name, 1, lambda _: 0)
        damaging.execute("UPDATE queues SET recipient_id = x'0102'")
    with pytest.raises(CorruptionError) as caught, records.read_set(MESSAGING) as found:
        ids_of(found)
    assert caught.value.file.endswith(FILE_NAME)
    assert all(map(is_closed, connections))


def test_a_set_is_read_through_its_index_alone(stored: RecordsUnderTest) -> None:
    connection = stored.sqlite._writing
    for role, index in (
        (ServiceRole.MESSAGING, "queues_service"),
        (ServiceRole.NOTIFIER, "queues_notifier_service"),
    ):
        ids = sqlite_sets.numbered_set(connection, 1, role, "path")
        texts: list[str] = []
        connection.set_trace_callback(texts.append)
        list(ids.iterate(b"\x10", b"\x20"))
        ids.size()
        ids.lower_bound(b"\x10")
        connection.set_trace_callback(None)
        assert len(texts) == 3
        for text in texts:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {text}").fetchall()
            assert len(plan) == 1, plan
            assert f"USING COVERING INDEX {index} " in plan[0][-1]


# --------------------------------------------------------------------------------- following


def test_a_finished_batch_is_told_change_by_change(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=MESSAGING))
    under_test.commit()
    follower = Follower(records)
    follower.sets[MESSAGING] = {1: frozenset({queue_id(1)})}

    records.create_queue(queue(2, service_id=MESSAGING, notifier=notifier(2, NOTIFYING)))
    records.create_queue(queue(3))
    records.update_queue(queue(1, service_id=OTHER))
    records.update_queue(
        queue(2, service_id=MESSAGING, notifier=notifier(5, NOTIFYING), used_day=3)
    )
    records.delete_queue(queue_id(2))
    batch = records.take_batch()
    assert batch is not None
    records.write_batch(batch)
    assert follower.told == []
    records.finish_batch(batch)
    assert sorted(follower.told) == sorted(
        [
            (
                MESSAGING,
                4,
                (
                    Change(True, queue_id(2)),
                    Change(False, queue_id(1)),
                    Change(False, queue_id(2)),
                ),
            ),
            (OTHER, 1, (Change(True, queue_id(1)),)),
            (
                NOTIFYING,
                4,
                (
                    Change(True, notifier_id(2)),
                    Change(False, notifier_id(2)),
                    Change(True, notifier_id(5)),
                    Change(False, notifier_id(5)),
                ),
            ),
        ]
    )
    assert follower.threads == {threading.get_ident()}


def test_a_batch_that_leaves_the_sets_alone_tells_nothing(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=MESSAGING, notifier=notifier(1, NOTIFYING)))
    under_test.commit()
    follower = Follower(records)
    records.create_queue(queue(2, notifier=notifier(2)))
    records.update_queue(
        queue(
            1,
            service_id=MESSAGING,
            sender_key=b"secured",
            notifier=replace(notifier(1, NOTIFYING), key=b"other"),
        )
    )
    records.delete_queue(queue_id(2))
    records.forget_deleted([queue_id(2)])
    records.create_service(service(7))
    records.rotate_service(OTHER, [b"new"], b"other print")
    with mock.patch.object(sqlite, "kept_version", side_effect=AssertionError):
        under_test.commit()
    assert follower.told == []


def test_a_service_that_is_deleted_is_told_with_what_came_after(
    under_test: RecordsUnderTest,
) -> None:
    records = with_services(under_test)
    for number in range(3):
        records.create_queue(queue(number, service_id=MESSAGING))
    under_test.commit()
    follower = Follower(records)
    records.create_queue(queue(3, service_id=MESSAGING))
    records.delete_service(MESSAGING)
    # The queue has lost its service, so this is no change of a set.
    records.update_queue(queue(0, used_day=9))
    records.delete_queue(queue_id(1))
    under_test.commit()
    assert follower.told == [(MESSAGING, 0, ())]

    follower.told.clear()
    records.create_service(service(1))
    records.create_queue(queue(5, service_id=MESSAGING))
    records.delete_service(MESSAGING)
    records.create_service(service(1))
    records.create_queue(queue(6, service_id=MESSAGING))
    under_test.commit()
    assert follower.told == [(MESSAGING, 0, ()), (MESSAGING, 1, (Change(True, queue_id(6)),))]


def test_a_batch_that_is_taken_back_tells_nothing(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    follower = Follower(records)
    records.create_queue(queue(1, service_id=MESSAGING))
    batch = records.take_batch()
    assert batch is not None
    # It needs the one before, and fails with it; the other one stays.
    records.update_queue(queue(1, service_id=OTHER))
    with pytest.raises(StoreFullError):
        under_test.write_failing(batch)
    records.finish_batch(batch)
    with pytest.raises(StoreFullError):
        under_test.commit()
    assert follower.told == []
    records.create_queue(queue(2, service_id=MESSAGING))
    under_test.commit()
    assert follower.told == [(MESSAGING, 1, (Change(True, queue_id(2)),))]


def test_a_batch_that_fails_at_its_very_end_tells_nothing(stored: RecordsUnderTest) -> None:
    @contextmanager
    def failing(connection: sqlite3.Connection) -> Iterator[None]:
        with transaction(connection):
            yield
            raise sqlite_error(sqlite3.SQLITE_FULL, "SQLITE_FULL")

    records = with_services(stored)
    follower = Follower(records)
    records.create_queue(queue(1, service_id=MESSAGING))
    with mock.patch.object(sqlite, "transaction", failing), pytest.raises(StoreFullError):
        stored.commit()
    records.create_queue(queue(2, service_id=OTHER))
    stored.commit()
    assert follower.told == [(OTHER, 1, (Change(True, queue_id(2)),))]


def test_changes_make_each_set_from_any_version_before(under_test: RecordsUnderTest) -> None:
    """Services come, are changed in every way and go, with what they have."""
    records = under_test.records
    follower = Follower(records)
    for number in range(BATCH_COUNT):
        stage(records, number)
        under_test.commit()
        services = {each.service_id for each in records.services()}
        assert follower.sets.keys() == {each for each in services if records.digest(each).version}
        for followed, sets in follower.sets.items():
            newest = max(sets)
            assert newest == records.digest(followed).version
            with records.read_set(followed) as found:
                assert sets[newest] == set(ids_of(found))
                assert found.version() == newest
            assert sorted(sets) == list(range(newest + 1))
    assert any(followed not in services for followed, _, _ in follower.told)


def test_whoever_no_longer_follows_is_told_nothing(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    follower = Follower(records)
    records.follow_sets(None)
    records.create_queue(queue(1, service_id=MESSAGING))
    under_test.commit()
    assert follower.told == []
    records.follow_sets(follower)
    under_test.commit()
    assert follower.told == []


def test_without_its_digest_a_set_has_no_versions(stored: RecordsUnderTest) -> None:
    records = with_services(stored)
    follower = Follower(records)
    stored.sqlite._writing.execute("DELETE FROM digests")
    records.create_queue(queue(1, service_id=MESSAGING))
    stored.commit()
    assert follower.told == [(MESSAGING, 0, ())]


# --------------------------------------------------------------------------------- repairing


def damage(stored: RecordsUnderTest, text: str, *values: object) -> None:
    """By hand, as with a tool beside the router."""
    with closing(sqlite3.connect(stored.folder / FILE_NAME, isolation_level=None)) as connection:
        connection.execute(text, values)


def test_one_digest_is_repaired_and_others_are_left(stored: RecordsUnderTest) -> None:
    records = with_services(stored)
    for number in range(4):
        records.create_queue(queue(number, service_id=(MESSAGING, OTHER)[number % 2]))
    stored.commit()
    right = records.digest(MESSAGING)
    assert records.repair_digest(MESSAGING) is None
    assert records.repair_digest(service_id(9)) is None
    damage(stored, "UPDATE digests SET count = count + 3, md5_high = 1, sum_2 = sum_2 - 9")
    wrong = records.digest(MESSAGING)
    found = records.repair_digest(MESSAGING)
    assert found is not None
    assert (found.service_id, found.role) == (MESSAGING, ServiceRole.MESSAGING)
    assert (found.kept, found.found) == (wrong, right)
    assert records.digest(MESSAGING) == replace(right, version=right.version + 1)
    assert {each.service_id for each in records.verify_digests()} == {OTHER, NOTIFYING}
    stored.crash()
    assert stored.records.digest(MESSAGING) == replace(right, version=right.version + 1)


@pytest.mark.parametrize("text", ["UPDATE digests SET count = 9, sum_0 = 7", "DELETE FROM digests"])
def test_what_changes_while_a_digest_is_repaired_is_in_it(
    stored: RecordsUnderTest, text: str
) -> None:
    """The set is read, then others write, then what was wrong is taken off."""
    records = with_services(stored)
    for number in range(6):
        records.create_queue(queue(number, service_id=MESSAGING))
    stored.commit()
    damage(stored, text)

    def take_off(connection: sqlite3.Connection, error: object) -> int | None:
        records.delete_queue(queue_id(0))
        records.create_queue(queue(7, service_id=MESSAGING))
        # Who repairs holds the order of commits, and this writes in its name.
        stored.sqlite._tidings.order.release()
        stored.commit()
        stored.sqlite._tidings.order.acquire()
        return original(connection, error)  # type: ignore[arg-type]

    original = sqlite_checks.take_off
    with mock.patch.object(sqlite_checks, "take_off", take_off):
        assert records.repair_digest(MESSAGING) is not None
    assert MESSAGING not in {each.service_id for each in records.verify_digests()}
    assert records.digest(MESSAGING).count == 6


def test_a_service_that_is_made_anew_while_it_is_repaired_is_left_alone(
    stored: RecordsUnderTest,
) -> None:
    records = with_services(stored)
    for number in range(6):
        records.create_queue(queue(number, service_id=MESSAGING))
    stored.commit()
    damage(stored, "UPDATE digests SET count = 9")

    def take_off(connection: sqlite3.Connection, error: object) -> int | None:
        records.delete_service(MESSAGING)
        records.create_service(service(1))
        stored.sqlite._tidings.order.release()
        stored.commit()
        stored.sqlite._tidings.order.acquire()
        return original(connection, error)  # type: ignore[arg-type]

    original = sqlite_checks.take_off
    with mock.patch.object(sqlite_checks, "take_off", take_off):
        assert records.repair_digest(MESSAGING) is None
    assert MESSAGING not in {each.service_id for each in records.verify_digests()}


def test_two_repairs_of_one_digest_are_one(stored: RecordsUnderTest) -> None:
    records = with_services(stored)
    for number in range(6):
        records.create_queue(queue(number, service_id=MESSAGING))
    stored.commit()
    damage(stored, "UPDATE digests SET count = count + 1 WHERE count > 0")
    found: list[object] = []
    both_read = threading.Barrier(2)

    def find_wrong(connection: sqlite3.Connection, service_id: bytes, path: str) -> object:
        wrong = original(connection, service_id, path)
        # Both come here at once only if they do not wait for one another.
        with pytest.raises(threading.BrokenBarrierError):
            both_read.wait(timeout=0.2)
        return wrong

    original = sqlite_checks.find_wrong
    with mock.patch.object(sqlite_checks, "find_wrong", find_wrong):
        threads = [
            threading.Thread(target=lambda: found.append(records.repair_digest(MESSAGING)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(each is None for each in found) == [False, True]
    assert records.verify_digests() == []


def test_a_repair_is_told_in_its_place_among_the_batches(stored: RecordsUnderTest) -> None:
    records = with_services(stored)
    follower = Follower(records)
    records.create_queue(queue(1, service_id=MESSAGING))
    stored.commit()
    damage(stored, "UPDATE digests SET count = 5 WHERE count = 1")

    records.create_queue(queue(2, service_id=MESSAGING))
    batch = records.take_batch()
    assert batch is not None
    thread = threading.Thread(target=records.repair_digest, args=(MESSAGING,))
    thread.start()
    thread.join()
    assert len(follower.told) == 1
    records.write_batch(batch)
    records.finish_batch(batch)
    records.create_queue(queue(3, service_id=MESSAGING))
    batch = records.take_batch()
    assert batch is not None
    records.write_batch(batch)
    damage(stored, "UPDATE digests SET count = 1 WHERE count = 3")
    assert records.repair_digest(MESSAGING) is not None
    records.finish_batch(batch)
    assert follower.told == [
        (MESSAGING, 1, (Change(True, queue_id(1)),)),
        (MESSAGING, 2, ()),
        (MESSAGING, 3, (Change(True, queue_id(2)),)),
        (MESSAGING, 4, (Change(True, queue_id(3)),)),
        (MESSAGING, 5, ()),
    ]
    assert follower.sets[MESSAGING][5] == {queue_id(1), queue_id(2), queue_id(3)}
    assert records.digest(MESSAGING).version == 5


def test_repairs_go_on_while_others_write_and_read(stored: RecordsUnderTest) -> None:
    """Damage, repairs and batches all at once: nothing is lost, and what is told fits."""
    records = with_services(stored)
    follower = Follower(records)
    follower.sets[MESSAGING] = {0: frozenset()}
    stop = threading.Event()
    failures: list[BaseException] = []
    repaired: list[object] = []

    def repair() -> None:
        try:
            while not stop.is_set():
                damage(stored, "UPDATE digests SET sum_0 = sum_0 + 5, md5_low = 3")
                repaired.append(records.repair_digest(MESSAGING))
        except (StorageError, sqlite3.Error, AssertionError) as error:
            failures.append(error)

    thread = threading.Thread(target=repair)
    thread.start()
    for number in range(60):
        records.create_queue(queue(number, service_id=MESSAGING))
        commit(records)
        with records.read_set(MESSAGING) as found:
            assert found.size() == len(ids_of(found)) == number + 1
    stop.set()
    thread.join()
    assert failures == []
    assert repaired
    assert None not in repaired
    assert records.repair_digest(MESSAGING) is None
    records.delete_queue(queue_id(0))
    commit(records)
    sets = follower.sets[MESSAGING]
    assert max(sets) == records.digest(MESSAGING).version == 61 + len(repaired)
    assert sets[max(sets)] == set(records.page(MESSAGING, None, 99))
