"""Queues, services and their associations: looked for, created, changed, deleted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from syncline.errors import (
    LimitExceededError,
    QueueExistsError,
    ServiceMismatchError,
    StoreBusyError,
    StoreFullError,
    UnknownQueueError,
)
from syncline.storage.records import base, memory, operations, staging
from syncline.storage.records.base import RecordCounts, Records
from syncline.values import limits
from syncline.values.digests import EMPTY_DIGEST, digest_of
from syncline.values.queue_records import (
    BlockReason,
    LinkRecord,
    QueueRecord,
    QueueStatus,
    ServiceRole,
)
from tests.storage.records.under_test import (
    RecordsUnderTest,
    fingerprint,
    link_id,
    notifier,
    notifier_id,
    queue,
    queue_id,
    sender_id,
    service,
    service_id,
    some_id,
    whole_queue,
)

NOTIFIER = ServiceRole.NOTIFIER


def with_services(under_test: RecordsUnderTest) -> Records:
    """Two messaging services, 1 and 2, and two notifier services, 3 and 4."""
    records = under_test.records
    for number in (1, 2):
        records.create_service(service(number))
    for number in (3, 4):
        records.create_service(service(number, NOTIFIER))
    under_test.commit()
    return records


# ------------------------------------------------------------------------------- queues


def test_a_record_comes_back_whole_by_each_of_its_ids(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    whole, plain = whole_queue(1, service_id(1), service_id(3)), queue(2)
    records.create_queue(whole)
    records.create_queue(plain)

    def check(records: Records) -> None:
        assert records.queue(queue_id(1)) == whole
        assert records.by_sender(sender_id(1)) == whole
        assert records.by_notifier(notifier_id(1)) == whole
        assert records.by_link(link_id(1)) == whole
        assert records.queue(queue_id(2)) == records.by_sender(sender_id(2)) == plain
        assert records.queue(queue_id(3)) is records.by_sender(sender_id(3)) is None
        assert records.by_notifier(notifier_id(2)) is records.by_link(link_id(2)) is None

    check(records)
    under_test.commit()
    check(records)
    under_test.reopen()
    check(under_test.records)
    under_test.reopen()
    assert under_test.records.by_link(link_id(1)) == whole
    assert under_test.records.by_notifier(notifier_id(1)) == whole


def test_ids_of_one_kind_are_not_found_as_another(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(whole_queue(1, None, None))
    under_test.commit()
    assert records.queue(sender_id(1)) is None
    assert records.by_sender(queue_id(1)) is None
    assert records.by_notifier(link_id(1)) is None
    assert records.by_link(notifier_id(1)) is None


CLASHES = {
    "recipient": queue(1, sender_id=sender_id(9)),
    "sender": queue(9, sender_id=sender_id(1)),
    "notifier": queue(9, notifier=notifier(1)),
    "link": queue(9, link=LinkRecord(link_id(1), b"", b"")),
}


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("shared", CLASHES)
def test_an_id_is_given_out_once(
    under_test: RecordsUnderTest, shared: str, is_durable: bool
) -> None:
    records, first = under_test.records, whole_queue(1, None, None)
    records.create_queue(first)
    if is_durable:
        under_test.commit()
    with pytest.raises(QueueExistsError):
        records.create_queue(CLASHES[shared])
    assert records.queue(queue_id(9)) is None
    assert records.queue(queue_id(1)) == first
    under_test.commit()
    assert records.counts() == RecordCounts(1, 1, 1)


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("shared", ["notifier", "link"])
def test_an_update_takes_no_id_of_another_queue(
    under_test: RecordsUnderTest, shared: str, is_durable: bool
) -> None:
    records = under_test.records
    records.create_queue(whole_queue(1, None, None))
    records.create_queue(queue(9))
    if is_durable:
        under_test.commit()
    with pytest.raises(QueueExistsError):
        records.update_queue(CLASHES[shared])
    assert records.queue(queue_id(9)) == queue(9)


@pytest.mark.parametrize("is_durable", [False, True])
def test_an_id_that_was_let_go_of_may_be_taken(
    under_test: RecordsUnderTest, is_durable: bool
) -> None:
    records = under_test.records
    records.create_queue(whole_queue(1, None, None))
    records.create_queue(queue(2))
    if is_durable:
        under_test.commit()
    records.update_queue(replace(whole_queue(1, None, None), notifier=None, link=None))
    taker = queue(2, notifier=notifier(1), link=LinkRecord(link_id(1), b"f", b"u"))
    records.update_queue(taker)
    assert records.by_notifier(notifier_id(1)) == records.by_link(link_id(1)) == taker
    under_test.commit()
    assert records.by_notifier(notifier_id(1)) == records.by_link(link_id(1)) == taker
    under_test.reopen()
    assert under_test.records.by_link(link_id(1)) == taker


CHANGES: dict[str, QueueRecord] = {
    "nothing": queue(1),
    "keys": queue(1, recipient_keys=(b"another", b"and one more")),
    "sender key": queue(1, sender_key=b"secured"),
    "off": queue(1, status=QueueStatus.OFF),
    "blocked": queue(1, status=QueueStatus.BLOCKED, block=BlockReason("content", None)),
    "day": queue(1, used_day=20_500),
    "service": queue(1, service_id=service_id(1)),
    "notifier": queue(1, notifier=notifier(1)),
    "notifier and service": queue(1, notifier=notifier(1, service_id(3))),
    "link": queue(1, link=LinkRecord(link_id(1), b"fixed", b"user")),
    "link with other data": queue(1, link=LinkRecord(link_id(1), b"fixed", b"changed" * 999)),
    "everything": whole_queue(1, service_id(2), service_id(4)),
}


@pytest.mark.parametrize("now", CHANGES)
@pytest.mark.parametrize("before", ["nothing", "notifier and service", "link", "everything"])
@pytest.mark.parametrize("is_durable", [False, True])
def test_an_update_changes_what_it_says_and_nothing_else(
    under_test: RecordsUnderTest, before: str, now: str, is_durable: bool
) -> None:
    records = with_services(under_test)
    records.create_queue(CHANGES[before])
    records.create_queue(queue(2))
    if is_durable:
        under_test.commit()
    records.update_queue(CHANGES[now])
    assert records.queue(queue_id(1)) == CHANGES[now]
    under_test.commit()
    assert records.queue(queue_id(1)) == CHANGES[now]
    under_test.reopen()
    assert under_test.records.queue(queue_id(1)) == CHANGES[now]
    assert under_test.records.queue(queue_id(2)) == queue(2)


def test_a_queue_keeps_its_sender_id(under_test: RecordsUnderTest) -> None:
    under_test.records.create_queue(queue(1))
    with pytest.raises(ValueError, match="sender id"):
        under_test.records.update_queue(queue(1, sender_id=sender_id(2)))


@pytest.mark.parametrize(
    "record",
    [
        queue(1, sender_id=b"short"),
        queue(1, notifier=replace(notifier(1), notifier_id=bytes(25))),
        queue(1, link=LinkRecord(b"", b"", b"")),
    ],
)
def test_an_id_of_another_length_is_a_mistake(
    under_test: RecordsUnderTest, record: QueueRecord
) -> None:
    with pytest.raises(ValueError, match="24 bytes"):
        under_test.records.create_queue(record)
    assert under_test.records.take_batch() is None


UNKNOWN: dict[str, Callable[[Records], object]] = {
    "update": lambda records: records.update_queue(queue(1)),
    "delete": lambda records: records.delete_queue(queue_id(1)),
}


@pytest.mark.parametrize("method", UNKNOWN)
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_queue_that_is_not_there_can_neither_change_nor_go(
    under_test: RecordsUnderTest, method: str, is_durable: bool
) -> None:
    with pytest.raises(UnknownQueueError) as refused:
        UNKNOWN[method](under_test.records)
    assert refused.value.stream == str(queue_id(1))
    under_test.records.create_queue(queue(1))
    if is_durable:
        under_test.commit()
    under_test.records.delete_queue(queue_id(1))
    with pytest.raises(UnknownQueueError):
        UNKNOWN[method](under_test.records)


def test_a_deleted_queue_is_found_by_none_of_its_ids(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(whole_queue(1, None, None))
    under_test.commit()
    assert records.by_sender(sender_id(1)) is not None
    records.delete_queue(queue_id(1))

    def check(records: Records) -> None:
        assert records.queue(queue_id(1)) is records.by_sender(sender_id(1)) is None
        assert records.by_notifier(notifier_id(1)) is records.by_link(link_id(1)) is None

    check(records)
    under_test.commit()
    check(records)
    under_test.reopen()
    check(under_test.records)


# --------------------------------------------------------------------------- deleted queues


def test_a_deleted_id_stays_taken_until_it_is_forgotten(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(queue(1))
    under_test.commit()
    records.delete_queue(queue_id(1))
    with pytest.raises(QueueExistsError):
        records.create_queue(queue(1))
    under_test.commit()
    with pytest.raises(QueueExistsError):
        records.create_queue(queue(1))
    # Its other ids are free at once.
    records.create_queue(queue(2, sender_id=sender_id(1)))
    records.delete_queue(queue_id(2))
    assert records.deleted_queues(9) == [queue_id(1)]
    records.forget_deleted([queue_id(1)])
    records.create_queue(queue(1))
    under_test.commit()
    assert records.deleted_queues(9) == [queue_id(2)]
    assert records.queue(queue_id(1)) == queue(1)


def test_deleted_queues_are_known_after_a_restart(under_test: RecordsUnderTest) -> None:
    for number in range(5):
        under_test.records.create_queue(queue(number))
    under_test.commit()
    for number in range(4):
        under_test.records.delete_queue(queue_id(number))
    under_test.commit()
    under_test.reopen()
    records = under_test.records
    assert set(records.deleted_queues(9)) == {queue_id(number) for number in range(4)}
    assert len(records.deleted_queues(3)) == 3
    records.forget_deleted([queue_id(0), queue_id(1), queue_id(4), queue_id(77)])
    records.forget_deleted([])
    assert len(records.deleted_queues(9)) == 4, "what is only staged is not forgotten yet"
    under_test.commit()
    assert set(records.deleted_queues(9)) == {queue_id(2), queue_id(3)}
    assert records.queue(queue_id(4)) == queue(4)
    assert records.counts().deleted_count == 2


# ------------------------------------------------------------------------------- services


def test_a_service_is_found_by_id_and_by_certificate(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_service(service(1))
    for _ in range(2):
        assert records.service(service_id(1)) == service(1)
        assert records.service_by_fingerprint(fingerprint(1)) == service(1)
        assert records.service(service_id(2)) is None
        assert records.service_by_fingerprint(fingerprint(2)) is None
        under_test.commit()
    under_test.reopen()
    assert under_test.records.service_by_fingerprint(fingerprint(1)) == service(1)
    assert under_test.records.service(service_id(1)) == service(1)
    assert under_test.records.services() == [service(1)]


def test_services_are_listed_once_they_are_durable(under_test: RecordsUnderTest) -> None:
    for number in (2, 1):
        under_test.records.create_service(service(number))
    assert under_test.records.services() == []
    under_test.commit()
    listed = under_test.records.services()
    assert sorted(listed, key=lambda each: each.service_id) == listed
    assert {each.service_id for each in listed} == {service_id(1), service_id(2)}


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_service_has_its_id_and_its_certificate_alone(
    under_test: RecordsUnderTest, is_durable: bool
) -> None:
    records = under_test.records
    records.create_service(service(1))
    records.create_service(service(2))
    if is_durable:
        under_test.commit()
    with pytest.raises(ServiceMismatchError):
        records.create_service(replace(service(3), service_id=service_id(1)))
    with pytest.raises(ServiceMismatchError):
        records.create_service(replace(service(3), fingerprint=fingerprint(1)))
    with pytest.raises(ServiceMismatchError):
        records.rotate_service(service_id(2), [b"leaf"], fingerprint(1))
    assert records.service(service_id(2)) == service(2)


def test_other_certificates_keep_the_associations(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1, service_id=service_id(1)))
    under_test.commit()
    digest = records.digest(service_id(1))
    records.rotate_service(service_id(1), [b"new leaf", b"new identity"], fingerprint(77))
    records.rotate_service(service_id(2), [b"renewed leaf"], fingerprint(2))
    rotated = replace(service(1), chain=(b"new leaf", b"new identity"), fingerprint=fingerprint(77))
    for _ in range(2):
        assert records.service(service_id(1)) == rotated
        assert records.service_by_fingerprint(fingerprint(77)) == rotated
        assert records.service_by_fingerprint(fingerprint(1)) is None
        assert records.service(service_id(2)) == replace(service(2), chain=(b"renewed leaf",))
        under_test.commit()
    assert records.queue(queue_id(1)) == queue(1, service_id=service_id(1))
    assert records.digest(service_id(1)) == digest
    # The old certificate may be another service's now.
    records.create_service(replace(service(9), fingerprint=fingerprint(1)))
    under_test.reopen()
    found = under_test.records.service_by_fingerprint(fingerprint(1))
    assert found is not None
    assert found.service_id == service_id(9)


@pytest.mark.parametrize("is_durable", [False, True])
def test_with_a_service_go_its_associations(under_test: RecordsUnderTest, is_durable: bool) -> None:
    records = with_services(under_test)
    records.create_queue(whole_queue(1, service_id(1), service_id(3)))
    records.create_queue(queue(2, service_id=service_id(2)))
    records.create_queue(queue(3, service_id=service_id(1)))
    if is_durable:
        under_test.commit()
    assert records.queue(queue_id(1)) is not None
    records.delete_service(service_id(1))
    records.delete_service(service_id(3))
    for _ in range(2):
        assert records.queue(queue_id(1)) == whole_queue(1, None, None)
        assert records.by_sender(sender_id(1)) == whole_queue(1, None, None)
        assert records.queue(queue_id(2)) == queue(2, service_id=service_id(2))
        assert records.queue(queue_id(3)) == queue(3)
        assert records.service(service_id(1)) is None
        assert records.service_by_fingerprint(fingerprint(1)) is None
        under_test.commit()
    assert records.digest(service_id(1)) == records.digest(service_id(3)) == EMPTY_DIGEST
    assert records.page(service_id(1), None, 9) == []
    assert records.counts() == RecordCounts(3, 1, 1, 1, 0, 2)
    under_test.reopen()
    assert under_test.records.queue(queue_id(1)) == whole_queue(1, None, None)


def test_a_service_that_comes_back_under_its_old_id_has_nothing(
    under_test: RecordsUnderTest,
) -> None:
    records = with_services(under_test)
    for number in (1, 2):
        records.create_queue(queue(number, service_id=service_id(1)))
    under_test.commit()
    records.delete_service(service_id(1))
    records.create_service(service(1))
    records.update_queue(queue(2, service_id=service_id(1)))
    for _ in range(2):
        assert records.queue(queue_id(1)) == queue(1)
        assert records.queue(queue_id(2)) == queue(2, service_id=service_id(1))
        under_test.commit()
    assert records.digest(service_id(1)) == digest_of([queue_id(2)], 1)


MISMATCHES = {
    "unknown": queue(1, service_id=service_id(99)),
    "a notifier service for messages": queue(1, service_id=service_id(3)),
    "a messaging service for notifications": queue(1, notifier=notifier(1, service_id(1))),
    "a proxy": queue(1, service_id=service_id(5)),
}


@pytest.mark.parametrize("association", MISMATCHES)
def test_a_queue_goes_only_to_a_service_of_the_right_role(
    under_test: RecordsUnderTest, association: str
) -> None:
    records = with_services(under_test)
    records.create_service(service(5, ServiceRole.PROXY))
    with pytest.raises(ServiceMismatchError):
        records.create_queue(MISMATCHES[association])
    records.create_queue(queue(1))
    with pytest.raises(ServiceMismatchError):
        records.update_queue(MISMATCHES[association])
    records.delete_service(service_id(1))
    with pytest.raises(ServiceMismatchError):
        records.update_queue(queue(1, service_id=service_id(1)))
    assert records.queue(queue_id(1)) == queue(1)


def test_a_service_that_is_not_there_can_neither_change_nor_go(
    under_test: RecordsUnderTest,
) -> None:
    with pytest.raises(ServiceMismatchError):
        under_test.records.rotate_service(service_id(1), [b"leaf"], fingerprint(1))
    with pytest.raises(ServiceMismatchError):
        under_test.records.delete_service(service_id(1))
    assert under_test.records.take_batch() is None


# -------------------------------------------------------------------------------- digests


def test_a_digest_is_that_of_the_recipient_ids(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    assert records.digest(service_id(1)) == EMPTY_DIGEST
    for number in range(10):
        records.create_queue(queue(number, service_id=service_id(1 + number % 2)))
    assert records.digest(service_id(1)) == EMPTY_DIGEST, "staged is not durable"
    assert records.page(service_id(1), None, 99) == []
    under_test.commit()
    for parity in (0, 1):
        members = sorted(queue_id(number) for number in range(parity, 10, 2))
        assert records.digest(service_id(1 + parity)) == digest_of(members, 5)
        assert records.recompute(service_id(1 + parity)) == digest_of(members, 5)
        assert records.page(service_id(1 + parity), None, 99) == members


def test_a_digest_of_a_notifier_service_is_that_of_the_notifier_ids(
    under_test: RecordsUnderTest,
) -> None:
    records = with_services(under_test)
    for number in range(3):
        records.create_queue(whole_queue(number, service_id(1), service_id(3)))
    under_test.commit()
    members = sorted(notifier_id(number) for number in range(3))
    assert records.digest(service_id(3)) == digest_of(members, 3)
    assert records.page(service_id(3), None, 99) == members
    # Another notifier of the same queue: one id goes and one comes.
    records.update_queue(
        replace(whole_queue(0, service_id(1), None), notifier=notifier(7, service_id(3)))
    )
    under_test.commit()
    members = sorted([notifier_id(7), *map(notifier_id, (1, 2))])
    assert records.digest(service_id(3)) == digest_of(members, 5)
    assert records.digest(service_id(1)).version == 3, "that set has not changed"


CHANGES_OF_SET: dict[str, tuple[QueueRecord | None, list[int], int]] = {
    "nothing that matters": (queue(1, service_id=service_id(1), used_day=1), [1, 2], 2),
    "leaves": (queue(1), [2], 3),
    "goes to another": (queue(1, service_id=service_id(2)), [2], 3),
    "is deleted": (None, [2], 3),
    "gets a notifier": (queue(1, service_id=service_id(1), notifier=notifier(1)), [1, 2], 2),
}


@pytest.mark.parametrize("change", CHANGES_OF_SET)
def test_a_digest_changes_only_with_its_set(under_test: RecordsUnderTest, change: str) -> None:
    records = with_services(under_test)
    for number in (1, 2):
        records.create_queue(queue(number, service_id=service_id(1)))
    under_test.commit()
    record, numbers, version = CHANGES_OF_SET[change]
    if record is None:
        records.delete_queue(queue_id(1))
    else:
        records.update_queue(record)
    under_test.commit()
    assert records.digest(service_id(1)) == digest_of(map(queue_id, numbers), version)


def test_pages_follow_one_another(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    for number in range(25):
        records.create_queue(queue(number, service_id=service_id(1)))
    under_test.commit()
    members = sorted(map(queue_id, range(25)))
    found: list[bytes] = []
    while page := records.page(service_id(1), found[-1] if found else None, 7):
        assert len(page) <= 7
        found += page
    assert found == members
    # An id that has left, or never was, marks a place all the same.
    records.delete_queue(members[6])
    under_test.commit()
    assert records.page(service_id(1), members[6], 2) == members[7:9]
    assert records.page(service_id(1), bytes(24), 1) == members[:1]
    assert records.page(service_id(1), b"\xff" * 24, 1) == []
    assert records.page(service_id(99), None, 9) == []
    assert records.digest(service_id(99)) == records.recompute(service_id(99)) == EMPTY_DIGEST


def test_counts_come_from_what_is_durable(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(whole_queue(1, service_id(1), service_id(3)))
    records.create_queue(queue(2, service_id=service_id(1)))
    records.create_queue(queue(3, notifier=notifier(3)))
    assert records.counts() == RecordCounts(service_count=4)
    under_test.commit()
    assert records.counts() == RecordCounts(3, 2, 1, 2, 1, 4, 0)
    records.update_queue(queue(1, sender_id=sender_id(1)))
    records.delete_queue(queue_id(2))
    under_test.commit()
    assert records.counts() == RecordCounts(2, 1, 0, 0, 0, 4, 1)


# --------------------------------------------------------------------------------- batches


def test_what_is_not_finished_is_not_lost_from_sight(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(queue(1))
    batch = records.take_batch()
    assert batch is not None
    assert batch.record_count == 1
    assert records.waiting_bytes == batch.byte_count > 0
    records.create_queue(queue(2))
    records.update_queue(queue(1, used_day=7))
    with pytest.raises(ValueError, match="not finished"):
        records.take_batch()
    assert records.queue(queue_id(1)) == queue(1, used_day=7)
    records.write_batch(batch)
    assert records.queue(queue_id(1)) == queue(1, used_day=7)
    assert records.counts().queue_count == 1
    records.finish_batch(batch)
    assert records.queue(queue_id(1)) == records.by_sender(sender_id(1)) == queue(1, used_day=7)
    under_test.crash()
    assert under_test.records.queue(queue_id(1)) == queue(1)
    assert under_test.records.queue(queue_id(2)) is None


def test_nothing_staged_is_no_batch(under_test: RecordsUnderTest) -> None:
    assert under_test.records.take_batch() is None
    under_test.records.create_queue(queue(1))
    under_test.records.update_queue(queue(1))
    under_test.commit()
    under_test.records.update_queue(queue(1))
    assert under_test.records.take_batch() is None, "it is as it was"
    assert under_test.records.waiting_bytes == 0


def test_only_the_batch_that_was_taken_can_be_written(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(queue(1))
    batch = records.take_batch()
    assert batch is not None
    with pytest.raises(ValueError, match="after it was written"):
        records.finish_batch(batch)
    records.write_batch(batch)
    records.finish_batch(batch)
    with pytest.raises(ValueError, match="taken last"):
        records.write_batch(batch)
    with pytest.raises(ValueError, match="taken last"):
        records.finish_batch(batch)


def test_closing_makes_durable_what_is_staged(under_test: RecordsUnderTest) -> None:
    records = under_test.records
    records.create_queue(queue(1))
    assert records.take_batch() is not None
    records.create_queue(queue(2))
    under_test.reopen()
    assert under_test.records.queue(queue_id(1)) == queue(1)
    assert under_test.records.queue(queue_id(2)) == queue(2)
    batch_owner = under_test.records
    batch_owner.create_queue(queue(3))
    batch = batch_owner.take_batch()
    assert batch is not None
    batch_owner.write_batch(batch)
    under_test.reopen()
    assert under_test.records.queue(queue_id(3)) == queue(3)


def test_a_refused_batch_was_never_staged(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    kept = whole_queue(1, service_id(1), service_id(3))
    records.create_queue(kept)
    under_test.commit()
    digest = records.digest(service_id(1))

    records.create_queue(queue(2, service_id=service_id(1)))
    records.update_queue(replace(kept, notifier=None, link=None, used_day=1))
    records.delete_service(service_id(2))
    records.create_service(service(9))
    batch = records.take_batch()
    assert batch is not None
    with pytest.raises(StoreFullError):
        under_test.write_failing(batch)
    records.finish_batch(batch)

    assert records.queue(queue_id(1)) == records.by_link(link_id(1)) == kept
    assert records.by_notifier(notifier_id(1)) == kept
    assert records.queue(queue_id(2)) is records.by_sender(sender_id(2)) is None
    assert records.service(service_id(2)) == service(2)
    assert records.service(service_id(9)) is None
    assert records.digest(service_id(1)) == digest
    assert records.waiting_bytes == 0
    assert records.take_batch() is None
    # And then there is room again.
    records.create_queue(queue(2, service_id=service_id(1)))
    under_test.commit()
    assert records.digest(service_id(1)).count == 2


def fail_below(
    under_test: RecordsUnderTest,
    below: Callable[[Records], None],
    above: Callable[[Records], None],
) -> None:
    """A batch fails while something is staged on top of it."""
    records = under_test.records
    below(records)
    batch = records.take_batch()
    assert batch is not None
    above(records)
    with pytest.raises(StoreFullError):
        under_test.write_failing(batch)
    records.finish_batch(batch)


DEPENDENT: dict[str, tuple[Callable[[Records], None], Callable[[Records], None]]] = {
    "a change of a queue that never was": (
        lambda records: records.create_queue(queue(5)),
        lambda records: records.update_queue(queue(5, used_day=1)),
    ),
    "a change on top of a change": (
        lambda records: records.update_queue(queue(1, sender_key=b"secured")),
        lambda records: records.update_queue(queue(1, sender_key=b"secured", used_day=1)),
    ),
    "an id that was not let go of": (
        lambda records: records.delete_queue(queue_id(1)),
        lambda records: records.create_queue(queue(5, sender_id=sender_id(1))),
    ),
    "a queue of a service that never was": (
        lambda records: records.create_service(service(9)),
        lambda records: records.create_queue(queue(5, service_id=service_id(9))),
    ),
    "a queue that keeps its service": (
        lambda records: records.delete_service(service_id(1)),
        lambda records: records.update_queue(queue(2, used_day=1)),
    ),
    "a certificate that was not let go of": (
        lambda records: records.rotate_service(service_id(1), [b"x"], fingerprint(50)),
        lambda records: records.create_service(replace(service(9), fingerprint=fingerprint(1))),
    ),
    "a notifier that was not let go of": (
        lambda records: records.update_queue(queue(4)),
        lambda records: records.update_queue(queue(1, notifier=notifier(4))),
    ),
    "a link that was not let go of": (
        lambda records: records.update_queue(queue(4)),
        lambda records: records.update_queue(queue(1, link=LinkRecord(link_id(4), b"", b""))),
    ),
    "an id that was not forgotten": (
        lambda records: records.forget_deleted([queue_id(3)]),
        lambda records: records.create_queue(queue(3)),
    ),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_what_builds_on_a_refused_batch_fails_with_it(
    under_test: RecordsUnderTest, case: str
) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1))
    records.create_queue(queue(2, service_id=service_id(1)))
    records.create_queue(queue(3))
    records.create_queue(
        queue(4, notifier=notifier(4), link=LinkRecord(link_id(4), b"fixed", b"user"))
    )
    under_test.commit()
    records.delete_queue(queue_id(3))
    under_test.commit()
    fail_below(under_test, *DEPENDENT[case])

    # Whoever waits for it is told by the next batch; nothing of it shows any more.
    assert records.queue(queue_id(1)) == records.by_sender(sender_id(1)) == queue(1)
    assert records.queue(queue_id(2)) == queue(2, service_id=service_id(1))
    assert records.queue(queue_id(5)) is None
    assert records.service(service_id(9)) is None
    records.create_queue(queue(7))
    batch = records.take_batch()
    assert batch is not None
    with pytest.raises(StoreFullError):
        records.write_batch(batch)
    records.finish_batch(batch)
    assert records.queue(queue_id(7)) is None, "it was told that it failed, so it has"
    assert records.take_batch() is None
    records.create_queue(queue(7))
    under_test.reopen()
    assert under_test.records.queue(queue_id(7)) == queue(7)


def test_what_has_nothing_to_do_with_a_refused_batch_stays(under_test: RecordsUnderTest) -> None:
    records = with_services(under_test)
    records.create_queue(queue(1))
    under_test.commit()

    def below(records: Records) -> None:
        records.create_queue(queue(2, service_id=service_id(1)))
        records.update_queue(queue(1, service_id=service_id(1)))

    def above(records: Records) -> None:
        records.create_queue(queue(3, service_id=service_id(1)))
        records.delete_service(service_id(2))
        records.create_queue(queue(4))

    fail_below(under_test, below, above)
    assert records.queue(queue_id(1)) == queue(1)
    assert records.queue(queue_id(2)) is None
    assert records.queue(queue_id(3)) == queue(3, service_id=service_id(1))
    under_test.commit()
    assert records.page(service_id(1), None, 9) == [queue_id(3)]
    under_test.reopen()
    assert under_test.records.queue(queue_id(4)) == queue(4)
    assert under_test.records.service(service_id(2)) is None


def test_what_was_staged_over_two_refused_batches_is_written_once_there_is_room(
    under_test: RecordsUnderTest,
) -> None:
    records = under_test.records
    # The second batch fails with the first, whether or not there is room for it.
    fail_below(
        under_test,
        lambda records: records.create_queue(queue(1)),
        lambda records: records.update_queue(queue(1, used_day=1)),
    )
    # All that the first batch had is free, also while the second is not finished.
    fail_below(under_test, lambda _: None, lambda records: records.create_queue(queue(1)))
    assert records.queue(queue_id(1)) == queue(1)
    under_test.commit()
    under_test.reopen()
    assert under_test.records.queue(queue_id(1)) == queue(1)


# ---------------------------------------------------------------------------------- bounds


def test_a_record_has_a_largest_size(under_test: RecordsUnderTest) -> None:
    too_large = bytes(base.record_bytes_max)
    with pytest.raises(LimitExceededError):
        under_test.records.create_queue(queue(1, link=LinkRecord(link_id(1), b"", too_large)))
    with pytest.raises(LimitExceededError):
        under_test.records.create_service(replace(service(1), chain=(too_large,)))
    assert under_test.records.take_batch() is None


def test_no_more_is_staged_than_may_wait(
    under_test: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "waiting_bytes_max", 2_000)
    records = under_test.records
    staged = 0
    while records.waiting_bytes < 1_800:
        records.create_queue(queue(staged))
        staged += 1
    with pytest.raises(StoreBusyError):
        records.create_queue(queue(staged))
    assert records.waiting_bytes <= 2_000
    assert records.queue(queue_id(staged)) is None, "what is refused is not there"
    batch = records.take_batch()
    assert batch is not None
    with pytest.raises(StoreBusyError):
        records.create_queue(queue(staged))
    records.write_batch(batch)
    records.finish_batch(batch)
    records.create_queue(queue(staged))


def test_there_is_a_largest_number_of_services(
    under_test: RecordsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (staging, memory):
        monkeypatch.setattr(module, "service_count_max", 2)
    under_test.records.create_service(service(1))
    under_test.commit()
    under_test.records.create_service(service(2))
    with pytest.raises(LimitExceededError):
        under_test.records.create_service(service(3))


def test_a_repeated_look_shows_nothing_secret() -> None:
    shown = repr(whole_queue(1, None, None))
    assert repr(some_id("secret", 1)[:4])[2:-1] not in shown
    assert "notifier secret" not in shown


def test_operations_have_a_size_that_follows_their_records() -> None:
    small, large = queue(1), queue(1, link=LinkRecord(link_id(1), bytes(1_000), bytes(500)))
    difference = operations.queue_bytes(large) - operations.queue_bytes(small)
    assert difference == 1_500
