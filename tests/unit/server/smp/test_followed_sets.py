"""Sets that are followed are at each version what a scan would find, or are read anew."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.reconciliation.kept import CELL_COUNT_DEFAULT
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import IdSet, Snapshot, frozen, hash_bytes, sketch_hashes
from syncline.kernels.xxh3 import salted
from syncline.server.smp import followed_sets
from syncline.server.smp.followed_sets import (
    ROW_BYTES,
    FollowedLimits,
    FollowedSets,
    OutOfStepError,
)
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import Records, commit
from syncline.storage.records.memory import MemoryRecords
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.ids import StreamId
from syncline.values.queue_records import (
    NotifierRecord,
    QueueMode,
    QueueRecord,
    ServiceRecord,
    ServiceRole,
)
from syncline.values.reconciliation import Change, Fetch, Fetched, ListIds, Listing, Open, Prefixes

SERVICE, OTHER = b"S" * 24, b"O" * 24
EVERYTHING = Prefixes(0, (0,))
IDS = [bytes([number * 5 % 256, number]) + bytes(22) for number in range(200)]


class Sets:
    """In place of the records: sets that change when told to, and say so when told to."""

    def __init__(self) -> None:
        self.sets: dict[bytes, set[bytes]] = {SERVICE: set(IDS[:100]), OTHER: set(IDS[50:150])}
        self.versions = {SERVICE: 7, OTHER: 7}
        self.untold: list[tuple[bytes, int, Sequence[Change]]] = []
        self.while_reading: Callable[[], None] = lambda: None

    @contextmanager
    def read_set(self, service_id: bytes) -> Generator[IdSet]:
        yield self.snapshot(service_id)
        self.while_reading()

    def snapshot(self, service_id: bytes) -> Snapshot:
        return Snapshot(b"".join(self.sets[service_id]), self.versions[service_id])

    def flip(self, service_id: bytes, *ids: bytes) -> None:
        """One batch: each id comes if it was not there, and goes if it was."""
        changes: list[Change] = []
        members = self.sets[service_id]
        for each in ids:
            changes.append(Change(each not in members, each))
            members ^= {each}
        self.versions[service_id] += len(ids)
        self.untold.append((service_id, self.versions[service_id], changes))


class Followed:
    def __init__(self, set_count_max: int = 8, bytes_max: int = 1 << 20) -> None:
        self.records = Sets()
        limits = FollowedLimits(set_count_max, bytes_max, idle_ms_max=1_000)
        records: Any = self.records
        self.sets = FollowedSets(records, b"k" * 32, limits)

    def tell(self) -> None:
        for news in self.records.untold:
            self.sets.tell(*news)
        self.records.untold.clear()

    def ask(self, service_id: bytes = SERVICE, now_ms: int = 0) -> Responder:
        version = self.records.versions[service_id]
        found = self.sets.set_of(service_id, version, now_ms)
        self.sets.keep_bounds(now_ms)
        return found.responder

    def scanned(self, service_id: bytes = SERVICE) -> Responder:
        return Responder(self.records.snapshot(service_id), self.sets.salt_of(service_id))


flips = st.lists(
    st.tuples(
        st.sampled_from([SERVICE, OTHER]), st.lists(st.sampled_from(IDS), min_size=1, max_size=30)
    ),
    max_size=8,
)


@settings(max_examples=30, deadline=None)
@given(flips, flips, st.booleans(), st.booleans())
def test_a_kept_opening_is_the_one_that_a_scan_gives(
    before: list[tuple[bytes, list[bytes]]],
    after: list[tuple[bytes, list[bytes]]],
    drops_rows: bool,
    tells_late: bool,
) -> None:
    made = Followed()
    for each in (SERVICE, OTHER):
        made.ask(each)
    for service_id, ids in before:
        made.records.flip(service_id, *ids)
    if drops_rows:
        for each in (SERVICE, OTHER):
            made.sets.set_of(each, 0, 0).drop_rows()
    if not tells_late:
        made.tell()
    for service_id, ids in after:
        made.records.flip(service_id, *ids)
    if tells_late:
        # The ids were read anew before it was told what had changed.
        for each in (SERVICE, OTHER):
            made.ask(each)
    made.tell()
    scan_count = made.sets.scan_count
    for each in (SERVICE, OTHER):
        for cell_count in (0, 8, CELL_COUNT_DEFAULT):
            assert made.ask(each).opening(cell_count) == made.scanned(each).opening(cell_count)
    if not tells_late:
        assert made.sets.scan_count == scan_count == 2
    for each in (SERVICE, OTHER):
        request = ListIds(0, EVERYTHING)
        try:
            assert made.ask(each).answer(request) == made.scanned(each).answer(request)
        except OutOfStepError:
            pytest.fail("what was read is what was followed")


def test_an_opening_needs_the_ids_once() -> None:
    made = Followed()
    made.ask().opening(8)
    for each in IDS[80:120]:
        made.records.flip(SERVICE, each)
    made.tell()
    assert made.ask().opening(8) == made.scanned().opening(8)
    assert made.ask().answer(Open(b"anothers", 8)) == made.scanned().answer(Open(b"anothers", 8))
    assert made.sets.scan_count == 1


def test_what_was_not_told_is_read() -> None:
    made = Followed()
    made.ask()
    made.records.flip(SERVICE, IDS[0])
    assert made.ask().opening(8) == made.scanned().opening(8)
    assert made.sets.scan_count == 2
    # Told late: it is in the set already.
    made.tell()
    made.records.flip(SERVICE, IDS[0])
    made.tell()
    assert made.ask().opening(8) == made.scanned().opening(8)
    assert made.sets.scan_count == 2


def test_a_version_that_does_not_fit_ends_it() -> None:
    made = Followed()
    made.ask()
    made.records.flip(SERVICE, IDS[0])
    made.records.untold.clear()
    made.records.flip(SERVICE, IDS[1])
    made.tell()
    made.sets.catch_up()
    assert made.sets.set_count == 0
    assert made.ask().opening(8) == made.scanned().opening(8)


def test_a_deleted_service_is_not_followed() -> None:
    made = Followed()
    made.ask()
    made.sets.tell(SERVICE, 0, ())
    made.sets.catch_up()
    assert made.sets.set_count == 0


def test_a_repaired_digest_moves_the_version_and_nothing_else() -> None:
    made = Followed()
    made.ask().answer(ListIds(0, EVERYTHING))
    made.records.versions[SERVICE] += 1
    made.records.untold.append((SERVICE, made.records.versions[SERVICE], ()))
    made.tell()
    assert made.ask().opening(8) == made.scanned().opening(8)
    made.records.flip(SERVICE, IDS[3])
    made.tell()
    assert made.ask().opening(8) == made.scanned().opening(8)
    assert made.ask().answer(ListIds(0, EVERYTHING)) == made.scanned().answer(
        ListIds(0, EVERYTHING)
    )
    assert made.sets.scan_count == 1


def test_changes_while_the_ids_are_read_are_not_lost() -> None:
    made = Followed()

    def change() -> None:
        made.records.while_reading = lambda: None
        made.records.flip(SERVICE, IDS[0], IDS[150])
        made.tell()

    made.records.while_reading = change
    assert made.sets.set_of(SERVICE, 7, 0).version() == 7
    assert made.ask().opening(8) == made.scanned().opening(8)
    assert made.sets.scan_count == 1


def test_a_fetch_is_answered_with_the_changes_since() -> None:
    made = Followed()
    opening = made.ask().opening(8)
    made.records.flip(SERVICE, IDS[0], IDS[150])
    made.tell()
    wanted = hash_bytes(sketch_hashes(salted(IDS[20], opening.salt)))
    answer = made.ask().answer(Fetch(opening.state.version, opening.salt, wanted))
    assert isinstance(answer, Fetched)
    assert answer.changes == (Change(False, IDS[0]), Change(True, IDS[150]))
    assert answer.ids == IDS[20]
    assert answer.state == made.scanned().opening(0).state


def test_ids_that_are_others_than_were_followed_are_noticed() -> None:
    made = Followed()
    made.ask()
    made.sets.set_of(SERVICE, 0, 0).drop_rows()
    # By hand, past every rule.
    made.records.sets[SERVICE].discard(IDS[5])
    with pytest.raises(OutOfStepError):
        made.ask().answer(ListIds(0, EVERYTHING))
    answer = made.sets.read_anew(SERVICE).responder.answer(ListIds(0, EVERYTHING))
    assert isinstance(answer, Listing)
    assert IDS[5] not in answer.ids


# -------------------------------------------------------------------------------- with real records

Q = 12
steps = st.lists(
    st.tuples(
        st.sampled_from(["move", "move", "notifier", "delete", "commit", "ask"]),
        st.integers(0, Q - 1),
        st.integers(0, 2),
    ),
    max_size=25,
)


def some_id(kind: int, number: int) -> bytes:
    return bytes([number * 21 % 256, kind, number]) + bytes(21)


def step(records: Records, what: str, number: int, service: bytes | None, role: int) -> None:
    """One change of a queue, as the router makes them."""
    before = records.queue(some_id(0, number))
    record = before or QueueRecord(
        StreamId(some_id(0, number)), (b"k",), bytes(32), some_id(1, number), QueueMode.MESSAGING
    )
    match what:
        case "move" if role == 0:
            record = replace(record, service_id=service)
        case "move" | "notifier":
            # A new notifier of the same queue has another id, in the same set.
            kind = 2 if what == "move" else 3 + number % 2
            made = NotifierRecord(some_id(kind, number), b"k", bytes(32), service)
            record = replace(record, notifier=made)
        case _:
            if before is not None:
                records.delete_queue(before.recipient_id)
                records.forget_deleted([before.recipient_id])
                commit(records)
            return
    (records.create_queue if before is None else records.update_queue)(record)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=20, deadline=None)
@given(walk=steps)
def test_what_records_tell_makes_the_set_that_they_hold(
    kind: str, walk: list[tuple[str, int, int]]
) -> None:
    with TemporaryDirectory() as folder:
        files = DiskFiles()
        records: Records = (
            MemoryRecords.open(folder, files)
            if kind == "memory"
            else SqliteRecords.open(folder, files)
        )
        services = {SERVICE: ServiceRole.MESSAGING, OTHER: ServiceRole.NOTIFIER}
        for service_id, role in services.items():
            records.create_service(ServiceRecord(service_id, role, (b"c",), service_id * 2))
        commit(records)
        sets = FollowedSets(records, b"k" * 32, FollowedLimits(4, 1 << 20, 1_000))
        records.follow_sets(sets.tell)
        for what, number, choice in [("ask", 0, 0), *walk, ("commit", 0, 0), ("ask", 0, 0)]:
            if what == "commit":
                commit(records)
            elif what == "ask":
                for service_id in services:
                    version = records.digest(service_id).version
                    found = sets.set_of(service_id, version, 0)
                    with records.read_set(service_id) as ids:
                        scanned = Responder(frozen(ids), sets.salt_of(service_id)).opening(60)
                    assert found.responder.opening(60) == scanned
            elif choice < 2:
                is_notifier = what == "notifier" or choice == 1
                target = None if number % 3 == 0 else OTHER if is_notifier else SERVICE
                step(records, what, number, target, choice)
        # All of it was followed: nothing was read but once.
        assert sets.scan_count == 2
        records.close()


# ----------------------------------------------------------------------------------------- bounds


def test_ids_go_when_nobody_asks_and_the_sketch_stays() -> None:
    made = Followed()
    made.ask(now_ms=0)
    assert made.sets.row_bytes == 100 * ROW_BYTES
    made.sets.tidy(1_000)
    assert made.sets.row_bytes == 100 * ROW_BYTES
    before = made.ask(now_ms=0)
    made.sets.tidy(1_001)
    assert made.sets.row_bytes == 0
    # With the ids goes what was derived from them.
    assert made.sets.set_of(SERVICE, 0, 1_001).responder is not before
    assert made.ask(now_ms=1_001).opening(8) == made.scanned().opening(8)
    assert made.sets.scan_count == 1
    made.ask(now_ms=1_001).answer(ListIds(0, EVERYTHING))
    assert made.sets.scan_count == 2


def test_ids_are_bounded_by_bytes_and_the_last_asked_about_stay() -> None:
    made = Followed(bytes_max=150 * ROW_BYTES)
    made.ask(SERVICE)
    made.ask(OTHER)
    assert made.sets.row_bytes == 100 * ROW_BYTES
    assert made.sets.set_of(OTHER, 0, 0).row_bytes
    assert not made.sets.set_of(SERVICE, 0, 0).row_bytes
    # One that is too large by itself stays as long as it is asked about.
    small = Followed(bytes_max=1)
    small.ask(SERVICE)
    assert small.sets.row_bytes == 100 * ROW_BYTES


def test_so_many_sets_are_followed_and_no_more() -> None:
    made = Followed(set_count_max=1)
    made.ask(SERVICE)
    made.ask(OTHER)
    assert made.sets.set_count == 1
    made.records.flip(SERVICE, IDS[0])
    made.tell()
    assert not made.sets.has_much_told
    assert made.ask(SERVICE).opening(8) == made.scanned(SERVICE).opening(8)


def test_what_is_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_sets, "_TOLD_COUNT_DUE", 10)
    monkeypatch.setattr(followed_sets, "_TOLD_COUNT_MAX", 100)
    made = Followed()
    made.ask()
    made.records.flip(SERVICE, *IDS[:10])
    made.tell()
    assert made.sets.has_much_told
    made.sets.catch_up()
    assert not made.sets.has_much_told
    for _ in range(20):
        made.records.flip(SERVICE, *IDS[:10])
    made.tell()
    made.sets.catch_up()
    assert made.sets.set_count == 0
    assert made.ask().opening(8) == made.scanned().opening(8)
    made.records.flip(SERVICE, IDS[0])
    made.tell()
    assert made.ask().opening(8) == made.scanned().opening(8)


def test_many_changes_are_not_carried_over_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_sets, "_LAG_COUNT_MAX", 10)
    made = Followed()
    made.ask()
    made.records.flip(SERVICE, *IDS[:11])
    made.tell()
    made.sets.catch_up()
    assert made.sets.row_bytes == 0
    request = ListIds(0, EVERYTHING)
    assert made.ask().answer(request) == made.scanned().answer(request)


def test_it_is_behind_until_it_is_told() -> None:
    made = Followed()
    assert not made.sets.is_behind(SERVICE, 7)
    made.ask()
    assert not made.sets.is_behind(SERVICE, 7)
    assert made.sets.is_behind(SERVICE, 8)
    made.records.flip(SERVICE, IDS[0])
    made.tell()
    assert not made.sets.is_behind(SERVICE, 8)


def test_each_set_has_a_salt_of_its_own() -> None:
    made = Followed()
    assert made.sets.salt_of(SERVICE) != made.sets.salt_of(OTHER)
    records: Any = made.records
    other = FollowedSets(records, b"x" * 32, FollowedLimits(1, 1, 1))
    assert other.salt_of(SERVICE) != made.sets.salt_of(SERVICE)
