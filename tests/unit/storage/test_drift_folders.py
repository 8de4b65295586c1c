"""Two data folders: how their services differ, and the second made like the first."""

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from syncline.core.reconciliation.initiator import Mode
from syncline.errors import CorruptionError, ForeignFolderError, StoreLockedError
from syncline.storage.drift.folders import (
    FolderRepairer,
    ServiceDrift,
    ServiceRepair,
    compare_service,
    looked_into,
    worked_on,
)
from syncline.storage.files import DiskFiles
from syncline.storage.folder import LOCK_NAME
from syncline.storage.records.base import Records, commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.digests import digest_of
from syncline.values.queue_records import ServiceRole
from tests.storage.records.under_test import (
    notifier,
    notifier_id,
    queue,
    queue_id,
    service,
    service_id,
)

FILES = DiskFiles()
MINE, OTHER = service_id(1), service_id(2)
NOTIFIER = service_id(3)


def made(folder: Path, fill: Callable[[Records], None]) -> str:
    folder.mkdir()
    with changed(str(folder)) as records:
        fill(records)
    return str(folder)


@contextmanager
def changed(folder: str) -> Iterator[Records]:
    with closing(SqliteRecords.open(folder, FILES)) as records:
        yield records
        commit(records)


def fill_first(records: Records) -> None:
    """Ten queues: 0 to 5 belong to one service, 6 to another, the others to none."""
    records.create_service(service(1))
    records.create_service(service(2))
    records.create_service(service(3, ServiceRole.NOTIFIER))
    for number in range(10):
        owner = MINE if number < 6 else OTHER if number == 6 else None
        follower = NOTIFIER if number < 3 else None
        records.create_queue(queue(number, service_id=owner, notifier=notifier(number, follower)))


@pytest.fixture
def first(tmp_path: Path) -> str:
    return made(tmp_path / "first", fill_first)


@pytest.fixture
def second(tmp_path: Path, first: str) -> str:
    """As the first, to begin with."""
    return made(tmp_path / "second", fill_first)


def compared(first: str, second: str, mode: Mode = Mode.SKETCH) -> dict[bytes, ServiceDrift]:
    with looked_into(first, FILES) as mine, looked_into(second, FILES) as theirs:
        services = mine.services().keys() | theirs.services().keys()
        return {
            each: compare_service(mine, theirs, each, secrets.token_bytes, mode)
            for each in services
        }


def repaired(first: str, second: str, *, is_dry: bool = False) -> dict[bytes, ServiceRepair]:
    drifts = compared(first, second)
    wanted = [each for each in sorted(drifts) if not drifts[each].is_equal]
    with looked_into(first, FILES) as mine:
        if is_dry:
            with looked_into(second, FILES) as theirs:
                repairer = FolderRepairer(theirs, None)
                return {each: repairer.repair(mine.service(each), drifts[each]) for each in wanted}
        with worked_on(second, FILES) as (theirs, records):
            found: dict[bytes, ServiceRepair] = {}
            for each in wanted:
                drift = compare_service(mine, theirs, each, secrets.token_bytes)
                found[each] = FolderRepairer(theirs, records).repair(mine.service(each), drift)
            return found


def ids_of(folder: str, service: bytes) -> list[bytes]:
    with looked_into(folder, FILES) as records, records.ids_of(service) as ids:
        return [row.tobytes() for rows in ids.iterate(b"", b"\xff" * 25) for row in rows]


def files_of(folder: str) -> dict[str, bytes]:
    # Whoever holds the lock writes its number there.
    return {
        path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != LOCK_NAME
    }


def test_folders_with_the_same_associations_are_equal(first: str, second: str) -> None:
    found = compared(first, second)
    assert set(found) == {MINE, OTHER, NOTIFIER}
    assert all(each.is_equal for each in found.values())
    # Nothing had to be asked.
    assert [each.comparison.traffic.round_trips for each in found.values()] == [0, 0, 0]


@pytest.mark.parametrize("mode", Mode)
def test_what_only_one_folder_has_is_found(first: str, second: str, mode: Mode) -> None:
    with changed(second) as records:
        records.update_queue(queue(0, notifier=notifier(0, NOTIFIER)))
        records.update_queue(queue(9, service_id=MINE, notifier=notifier(9, NOTIFIER)))
    found = compared(first, second, mode)
    mine, following = found[MINE].comparison, found[NOTIFIER].comparison
    assert (mine.only_first, mine.only_second) == (queue_id(0), queue_id(9))
    # A notifier service has notifier ids.
    assert (following.only_first, following.only_second) == (b"", notifier_id(9))
    assert found[OTHER].is_equal
    assert mine.traffic.round_trips >= 1
    assert mine.traffic.asked_bytes > 0
    assert mine.traffic.answered_bytes > 24


def test_the_second_folder_is_made_like_the_first(first: str, second: str) -> None:
    with changed(second) as records:
        # Lost, gained, moved to another service and from it.
        records.update_queue(queue(0, notifier=notifier(0)))
        records.update_queue(queue(9, service_id=MINE, notifier=notifier(9, NOTIFIER)))
        records.update_queue(queue(1, service_id=OTHER, notifier=notifier(1, NOTIFIER)))
        records.update_queue(queue(6, service_id=MINE, notifier=notifier(6)))
    planned = repaired(first, second, is_dry=True)
    assert planned[MINE] == ServiceRepair(2, 2)
    assert planned[NOTIFIER] == ServiceRepair(1, 1)
    done = repaired(first, second)
    assert done[NOTIFIER] == ServiceRepair(1, 1)
    assert sum(each.associated_count for each in done.values()) == 4
    assert all(each.is_equal for each in compared(first, second).values())
    with closing(SqliteRecords.open(second, FILES)) as records:
        assert records.queue(queue_id(0)) == queue(
            0, service_id=MINE, notifier=notifier(0, NOTIFIER)
        )
        assert records.digest(MINE).count == 6
        # Written as a router writes it: the digest that is kept has followed.
        expected = digest_of(queue_id(number) for number in range(6))
        assert records.digest(MINE).xor_md5 == expected.xor_md5
        assert records.digest(MINE).sum128 == expected.sum128
        assert records.verify_digests() == []


def test_a_queue_that_does_not_exist_there_cannot_be_repaired(first: str, second: str) -> None:
    with changed(second) as records:
        records.delete_queue(queue_id(2))
        records.delete_queue(queue_id(3))
        records.update_queue(queue(4, notifier=notifier(4)))
    absent = b"".join(sorted((queue_id(2), queue_id(3))))
    assert repaired(first, second, is_dry=True)[MINE] == ServiceRepair(1, 0, absent)
    done = repaired(first, second)
    assert done[MINE] == ServiceRepair(1, 0, absent)
    assert done[MINE].absent_count == 2
    assert done[NOTIFIER].absent == notifier_id(2)
    assert compared(first, second)[MINE].comparison.only_first == absent


def test_an_association_that_changed_since_stays(first: str, second: str) -> None:
    with changed(second) as records:
        records.update_queue(queue(9, service_id=MINE, notifier=notifier(9)))
    drift = compared(first, second)[MINE]
    assert drift.comparison.only_second == queue_id(9)
    with changed(second) as records:
        records.update_queue(queue(9, service_id=OTHER, notifier=notifier(9)))
    with worked_on(second, FILES) as (theirs, records):
        done = FolderRepairer(theirs, records).repair(service(1), drift)
        assert done == ServiceRepair()
        found = records.queue(queue_id(9))
        assert found is not None
        assert found.service_id == OTHER


def test_a_service_that_is_missing_is_made(first: str, second: str) -> None:
    with changed(second) as records:
        records.delete_service(OTHER)
    assert compared(first, second)[OTHER].second_role is None
    expected = ServiceRepair(1, is_service_made=True)
    assert repaired(first, second, is_dry=True)[OTHER] == expected
    assert not compared(first, second)[OTHER].is_equal
    assert repaired(first, second)[OTHER] == expected
    assert compared(first, second)[OTHER].is_equal


def test_an_empty_service_that_is_missing_is_drift(first: str, second: str) -> None:
    with changed(first) as records:
        records.create_service(service(4))
    assert compared(first, second)[service_id(4)].comparison.is_equal
    assert not compared(first, second)[service_id(4)].is_equal


def test_a_service_whose_certificate_is_known_there_is_not_made(first: str, second: str) -> None:
    with changed(second) as records:
        records.delete_service(OTHER)
        commit(records)
        known = service(2)
        records.create_service(
            type(known)(service_id(7), known.role, known.chain, known.fingerprint)
        )
    done = repaired(first, second)
    assert done[OTHER].refusal == "its certificate is that of another service in the second folder"
    # What the first folder does not know is left alone.
    assert done[service_id(7)].refusal is not None
    with looked_into(second, FILES) as records:
        assert OTHER not in records.services()
        assert service_id(7) in records.services()


def test_associations_of_a_service_that_only_the_second_knows_stay(first: str, second: str) -> None:
    with changed(second) as records:
        records.create_service(service(8))
        records.update_queue(queue(9, service_id=service_id(8), notifier=notifier(9)))
    done = repaired(first, second)[service_id(8)]
    assert done == ServiceRepair(refusal=done.refusal)
    assert ids_of(second, service_id(8)) == [queue_id(9)]


def test_a_service_with_another_role_is_left_alone(first: str, second: str) -> None:
    with changed(second) as records:
        records.delete_service(OTHER)
        commit(records)
        records.create_service(service(2, ServiceRole.NOTIFIER))
    assert repaired(first, second)[OTHER].refusal == "it has another role in the second folder"


def damage_digest(folder: str) -> None:
    with closing(sqlite3.connect(f"{folder}/{FILE_NAME}")) as connection:
        # Not the part that sets are compared by: plain SMP peers are told another.
        connection.execute(
            "UPDATE digests SET md5_low = md5_low + 1 WHERE service ="
            " (SELECT number FROM services WHERE service_id = ?)",
            (MINE,),
        )
        connection.commit()


def test_a_digest_that_is_not_that_of_its_ids_is_found_and_repaired(
    first: str, second: str
) -> None:
    damage_digest(second)
    drift = compared(first, second)[MINE]
    assert drift.comparison.is_equal
    assert (drift.is_equal, drift.is_first_digest_wrong, drift.is_second_digest_wrong) == (
        False,
        False,
        True,
    )
    assert repaired(first, second, is_dry=True)[MINE] == ServiceRepair(is_digest_repaired=True)
    assert compared(first, second)[MINE].is_second_digest_wrong
    assert repaired(first, second)[MINE] == ServiceRepair(is_digest_repaired=True)
    assert compared(first, second)[MINE].is_equal
    # The first folder is only looked at.
    damage_digest(first)
    repaired(first, second)
    left = compared(first, second)[MINE]
    assert (left.is_equal, left.is_first_digest_wrong) == (False, True)


def test_looking_leaves_a_folder_as_it_is(first: str, second: str) -> None:
    with changed(second) as records:
        records.update_queue(queue(0, notifier=notifier(0)))
    before = files_of(first), files_of(second)
    compared(first, second)
    repaired(first, second, is_dry=True)
    assert (files_of(first), files_of(second)) == before


def test_a_wal_that_was_left_behind_is_read_and_stays(
    first: str, second: str, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    left.mkdir()
    with changed(second) as records:
        records.update_queue(queue(0, notifier=notifier(0)))
        commit(records)
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            (left / name).write_bytes((Path(second) / name).read_bytes())
    before = files_of(str(left))
    assert compared(first, str(left))[MINE].comparison.only_first == queue_id(0)
    assert files_of(str(left)) == before


def test_a_folder_that_a_router_works_on_can_be_looked_at(first: str, second: str) -> None:
    lock = FILES.lock(f"{second}/{LOCK_NAME}")
    try:
        with changed(second) as records:
            with looked_into(second, FILES) as looked:
                assert looked.is_worked_on
            # Nothing that the router needs has gone with us.
            records.update_queue(queue(0, notifier=notifier(0)))
            commit(records)
            assert compared(first, second)[MINE].comparison.only_first == queue_id(0)
            records.update_queue(queue(0, service_id=MINE, notifier=notifier(0, NOTIFIER)))
            commit(records)
            assert compared(first, second)[MINE].is_equal
        with pytest.raises(StoreLockedError), worked_on(second, FILES):
            pass
    finally:
        lock.release()
    with looked_into(second, FILES) as looked:
        assert not looked.is_worked_on
        # No router starts meanwhile.
        with pytest.raises(StoreLockedError):
            FILES.lock(f"{second}/{LOCK_NAME}")
    FILES.lock(f"{second}/{LOCK_NAME}").release()


def test_a_router_that_begins_to_write_is_not_overlooked(first: str, second: str) -> None:
    lock = FILES.lock(f"{second}/{LOCK_NAME}")
    try:
        # It has not opened its records yet, so there is no WAL.
        with (
            looked_into(first, FILES) as mine,
            looked_into(second, FILES) as theirs,
            changed(second) as records,
        ):
            records.update_queue(queue(0, notifier=notifier(0)))
            commit(records)
            drift = compare_service(mine, theirs, MINE, secrets.token_bytes)
        assert drift.comparison.only_first == queue_id(0)
        assert not drift.is_second_digest_wrong
    finally:
        lock.release()


def test_a_repair_of_many_goes_in_batches(first: str, second: str) -> None:
    for folder, owner in ((first, MINE), (second, None)):
        with changed(folder) as records:
            for number in range(100, 800):
                records.create_queue(queue(number, service_id=owner))
    drift = compared(first, second)[MINE]
    batch_counts: list[int] = []
    with worked_on(second, FILES) as (theirs, records):
        take = records.take_batch

        def counted() -> object:
            batch = take()
            if batch is not None:
                batch_counts.append(batch.record_count)
            return batch

        records.take_batch = counted  # type: ignore[assignment, method-assign]
        followed: list[int] = []
        done = FolderRepairer(theirs, records).repair(service(1), drift, followed.append)
    assert done == ServiceRepair(700)
    assert batch_counts == [256, 256, 188]
    assert sum(followed) == 700


def test_a_folder_without_records_is_told(first: str, tmp_path: Path) -> None:
    for name, text, error in (("none", None, ForeignFolderError), ("empty", b"", CorruptionError)):
        folder = tmp_path / name
        folder.mkdir()
        if text is not None:
            (folder / FILE_NAME).write_bytes(text)
        with pytest.raises(error), looked_into(str(folder), FILES):
            pass
        assert sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME) == (
            [] if text is None else [FILE_NAME]
        )
