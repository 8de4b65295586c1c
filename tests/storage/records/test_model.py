"""Random operations on SQLite and on the reference side by side: nobody can tell them apart.

Batches are taken, written, refused and finished one step at a time, so that operations fall
between. After every batch each digest that is kept is the one of its set.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from syncline.core.reconciliation.sets import END, rows_between
from syncline.errors import StorageError, StoreFullError
from syncline.storage.base import Batch
from syncline.storage.records.base import Records
from syncline.values.queue_records import LinkRecord, QueueRecord, QueueStatus, ServiceRole
from syncline.values.reconciliation import Change
from tests.storage.records.under_test import (
    RecordsUnderTest,
    fingerprint,
    link_id,
    notifier,
    notifier_id,
    outcome,
    queue,
    queue_id,
    sender_id,
    service,
    service_id,
)

# Few of each, so that operations meet and can disturb one another.
QUEUES = range(5)
SERVICES = range(4)
OTHER_IDS = range(3)
ROLES = [ServiceRole.MESSAGING, ServiceRole.NOTIFIER, ServiceRole.MESSAGING, ServiceRole.NOTIFIER]

ANY_QUEUE = st.sampled_from(QUEUES)
ANY_SERVICE = st.sampled_from(SERVICES)
# Most of the time one that fits: a refusal teaches little.
ANY_MESSAGING = st.sampled_from([None, None, 0, 2, 0, 2, 1])
ANY_NOTIFIER_SERVICE = st.sampled_from([None, 1, 3, 1, 3, 0])
MAYBE_ID = st.one_of(st.none(), st.sampled_from(OTHER_IDS))

ALL_SERVICES = [service_id(number) for number in SERVICES]
Told = tuple[bytes, int, Sequence[Change]]

MEMORY = Path("/dev/shm")


def told_of(service: bytes, news: list[Told]) -> list[tuple[int, list[Change]]]:
    return [(version, list(changes)) for about, version, changes in news if about == service]


@st.composite
def any_record(draw: st.DrawFn) -> QueueRecord:
    number = draw(ANY_QUEUE)
    messaging, link = draw(ANY_MESSAGING), draw(MAYBE_ID)
    notified, notifying = draw(MAYBE_ID), draw(ANY_NOTIFIER_SERVICE)
    return queue(
        number,
        # Two queues want the same sender id.
        sender_id=sender_id(draw(st.sampled_from([number, number, number % 2]))),
        used_day=draw(st.integers(0, 3)),
        status=draw(st.sampled_from(QueueStatus)),
        service_id=None if messaging is None else service_id(messaging),
        link=None if link is None else LinkRecord(link_id(link), b"", b"x" * draw(ANY_QUEUE)),
        notifier=None
        if notified is None
        else notifier(notified, None if notifying is None else service_id(notifying)),
    )


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        where = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.tidy = tempfile.TemporaryDirectory(prefix="syncline-records-", dir=where)
        folder = Path(self.tidy.name)
        self.subject = RecordsUnderTest("sqlite", folder / "data")
        self.model = RecordsUnderTest("memory", folder / "model")
        # What is told of the sets, and the sets that it makes; newly opened, nobody follows.
        self.told: tuple[list[Told], list[Told]] = ([], [])
        self.sets: dict[bytes, set[bytes]] = {}
        self.follow()
        self.prepare()
        self.batches: tuple[Batch | None, Batch | None] | None = None
        self.is_written = False

    def prepare(self) -> None:
        """Nothing; a subclass breaks the subject here."""

    def follow(self) -> None:
        for under_test, told in zip((self.model, self.subject), self.told, strict=True):
            under_test.records.follow_sets(lambda *news, told=told: told.append(news))

    def both(self, act: Callable[[Records], object]) -> object:
        expected = outcome(act, self.model.records)
        found = outcome(act, self.subject.records)
        assert found == expected
        return found

    @initialize(is_durable=st.booleans())
    def begin_with_some(self, is_durable: bool) -> None:
        """Services of both roles, and queues that belong to them."""
        self.create_missing_services()
        for number, messaging, notifying in ((0, 0, 1), (1, 0, None), (2, 2, 3)):
            record = queue(number, service_id=service_id(messaging))
            if notifying is not None:
                record = replace(record, notifier=notifier(number, service_id(notifying)))
            self.create(record)
        if is_durable:
            self.commit()

    # Operations.

    @rule(record=any_record())
    def create(self, record: QueueRecord) -> None:
        self.both(lambda records: records.create_queue(record))

    @rule(record=any_record())
    def put(self, record: QueueRecord) -> None:
        """Whatever it takes: the queue is there afterwards unless an id is taken."""
        self.both(lambda records: records.forget_deleted([record.recipient_id]))
        if self.model.records.queue(record.recipient_id) is None:
            self.create(record)
        else:
            self.update(record)

    @rule(record=any_record())
    def update(self, record: QueueRecord) -> None:
        known = self.model.records.queue(record.recipient_id)
        if known is not None:
            record = replace(record, sender_id=known.sender_id)
        self.both(lambda records: records.update_queue(record))

    @rule(number=ANY_QUEUE, wanted=ANY_MESSAGING)
    def associate(self, number: int, wanted: int | None) -> None:
        known = self.model.records.queue(queue_id(number))
        if known is not None:
            into = None if wanted is None else service_id(wanted)
            self.both(lambda records: records.update_queue(replace(known, service_id=into)))

    @rule(number=ANY_QUEUE, wanted=ANY_NOTIFIER_SERVICE, notified=MAYBE_ID)
    def notify(self, number: int, wanted: int | None, notified: int | None) -> None:
        known = self.model.records.queue(queue_id(number))
        if known is not None:
            into = None if wanted is None else service_id(wanted)
            other = None if notified is None else notifier(notified, into)
            self.both(lambda records: records.update_queue(replace(known, notifier=other)))

    @rule(number=ANY_QUEUE)
    def delete(self, number: int) -> None:
        self.both(lambda records: records.delete_queue(queue_id(number)))

    @rule(numbers=st.lists(ANY_QUEUE, max_size=3))
    def forget(self, numbers: list[int]) -> None:
        self.both(lambda records: records.forget_deleted(map(queue_id, numbers)))

    @rule(number=ANY_SERVICE, print_number=ANY_SERVICE)
    def create_service(self, number: int, print_number: int) -> None:
        record = replace(service(number, ROLES[number]), fingerprint=fingerprint(print_number))
        self.both(lambda records: records.create_service(record))

    @rule()
    def create_missing_services(self) -> None:
        for number in SERVICES:
            self.create_service(number, number)

    @rule(number=ANY_SERVICE, print_number=ANY_SERVICE)
    def rotate(self, number: int, print_number: int) -> None:
        self.both(
            lambda records: records.rotate_service(
                service_id(number), [b"%d" % print_number], fingerprint(print_number)
            )
        )

    @rule(number=ANY_SERVICE)
    def delete_service(self, number: int) -> None:
        self.both(lambda records: records.delete_service(service_id(number)))

    # Committing, in one go or step by step.

    @precondition(lambda self: self.batches is None)
    @rule()
    def commit(self) -> None:
        self.take()
        self.write(is_full=False)
        self.finish()

    @precondition(lambda self: self.batches is not None)
    @rule()
    def end_batch(self) -> None:
        if not self.is_written:
            self.write(is_full=False)
        self.finish()

    @precondition(lambda self: self.batches is None)
    @rule()
    def take(self) -> None:
        batches = (self.model.records.take_batch(), self.subject.records.take_batch())
        assert (batches[0] is None) == (batches[1] is None)
        if batches[0] is not None and batches[1] is not None:
            assert batches[0].record_count == batches[1].record_count
            assert batches[0].byte_count == batches[1].byte_count
        self.batches = batches
        self.is_written = False

    @precondition(lambda self: self.batches is not None and not self.is_written)
    @rule(is_full=st.booleans())
    def write(self, is_full: bool) -> None:
        assert self.batches is not None
        outcomes = [
            self.written(under_test, batch, is_full)
            for under_test, batch in zip((self.model, self.subject), self.batches, strict=True)
        ]
        assert outcomes[0] == outcomes[1]
        self.is_written = True

    def written(self, under_test: RecordsUnderTest, batch: Batch | None, is_full: bool) -> bool:
        if batch is None:
            return True
        try:
            if is_full:
                under_test.write_failing(batch)
            else:
                under_test.records.write_batch(batch)
        except StoreFullError:
            return False
        return True

    @precondition(lambda self: self.batches is not None and self.is_written)
    @rule()
    def finish(self) -> None:
        assert self.batches is not None
        for under_test, batch in zip((self.model, self.subject), self.batches, strict=True):
            if batch is not None:
                under_test.records.finish_batch(batch)
        self.batches = None
        assert self.subject.records.verify_digests() == []
        self.check_what_was_told()

    def check_what_was_told(self) -> None:
        """The same by both, and each set is what it was with the changes made."""
        expected, found = ([told_of(each, news) for each in ALL_SERVICES] for news in self.told)
        assert found == expected
        for followed, version, changes in self.told[1]:
            ids = self.sets.setdefault(followed, set())
            if version == 0:
                ids.clear()
            for change in changes:
                assert (change.id in ids) is not change.is_added
                ids ^= {change.id}
            assert version in (0, self.version_of(followed))
        for each in ALL_SERVICES:
            with self.subject.records.read_set(each) as stored:
                rows = rows_between(stored, b"", END)
                assert {row.tobytes() for row in rows} == self.sets.get(each, set())
                assert stored.version() == self.version_of(each)
        self.told[0].clear()
        self.told[1].clear()

    def version_of(self, service: bytes) -> int:
        return self.model.records.digest(service).version

    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        if is_crash:
            self.model.crash()
            self.subject.crash()
        else:
            # A batch may be doomed by the one before it, and then closing says so.
            assert outcome(Records.close, self.model.records) == outcome(
                Records.close, self.subject.records
            )
            self.model.records, self.subject.records = self.model.open(), self.subject.open()
        self.batches = None
        for news in self.told:
            news.clear()
        self.sets = {each: set(self.model.records.page(each, None, 99)) for each in ALL_SERVICES}
        self.follow()

    # What must be the same, always.

    @invariant()
    def nobody_can_tell_them_apart(self) -> None:
        for number in QUEUES:
            self.both(lambda records: records.queue(queue_id(number)))  # noqa: B023
            self.both(lambda records: records.by_sender(sender_id(number)))  # noqa: B023
        for number in OTHER_IDS:
            self.both(lambda records: records.by_notifier(notifier_id(number)))  # noqa: B023
            self.both(lambda records: records.by_link(link_id(number)))  # noqa: B023
        for number in SERVICES:
            self.both(lambda records: records.service(service_id(number)))  # noqa: B023
            self.both(lambda records: records.service_by_fingerprint(fingerprint(number)))  # noqa: B023
            self.both(lambda records: records.digest(service_id(number)))  # noqa: B023
            self.both(lambda records: records.page(service_id(number), None, 9))  # noqa: B023
        self.both(lambda records: records.services())
        self.both(lambda records: sorted(records.deleted_queues(99)))
        self.both(lambda records: records.counts())
        self.both(lambda records: records.waiting_bytes)

    def teardown(self) -> None:
        self.subject.end()
        self.tidy.cleanup()


QUICK = settings(
    max_examples=30,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.timeout(300)
def test_sqlite_does_what_the_reference_does() -> None:
    run_state_machine_as_test(Comparison, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_sqlite_does_what_the_reference_does_at_length() -> None:
    run_state_machine_as_test(
        Comparison, settings=settings(QUICK, max_examples=3_000, stateful_step_count=80)
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("trigger", ["association_gone", "service_gone"])
def test_a_missing_trigger_is_noticed(trigger: str) -> None:
    class Broken(Comparison):
        def prepare(self) -> None:
            self.subject.sqlite._writing.execute(f"DROP TRIGGER {trigger}")

    with pytest.raises((AssertionError, StorageError)):
        run_state_machine_as_test(
            Broken,
            settings=settings(QUICK, max_examples=400, phases=[Phase.generate], database=None),
        )
