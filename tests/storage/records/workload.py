"""Batches that touch everything, each known by its number, to judge by what a crash leaves.

Batch `number` is the same whenever it is staged, and needs the batches before it. So the records
after any number of batches are known, and records that equal none of these hold half a batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from syncline.storage.files import DiskFiles
from syncline.storage.records.base import RecordCounts, Records, commit
from syncline.storage.records.memory import MemoryRecords
from syncline.values.digests import SetDigest
from syncline.values.ids import StreamId
from syncline.values.queue_records import LinkRecord, QueueRecord, ServiceRecord, ServiceRole
from tests.storage.records.under_test import (
    fingerprint,
    link_id,
    notifier,
    queue,
    queue_id,
    service,
    service_id,
)

QUEUES_PER_BATCH = 4
# A queue lives for so many batches.
LIFE = 5
SERVICE_LIFE = 6


def stage(records: Records, number: int) -> None:
    """Stage batch `number`."""
    _change_services(records, number)
    for each in range(QUEUES_PER_BATCH):
        records.create_queue(_new_queue(number, each))
    for age in range(1, LIFE):
        if number >= age:
            _change_queues(records, number, age)
    if number >= LIFE:
        for each in range(QUEUES_PER_BATCH):
            records.delete_queue(_queue_id(number - LIFE, each))
    if number >= LIFE + 2:
        records.forget_deleted(_queue_id(number - LIFE - 2, each) for each in (0, 1, 2))


def _queue_id(number: int, each: int) -> StreamId:
    return queue_id(number * QUEUES_PER_BATCH + each)


def _messaging(number: int) -> bytes:
    return service_id(2 * (number // SERVICE_LIFE))


def _notifying(number: int) -> bytes:
    return service_id(2 * (number // SERVICE_LIFE) + 1)


def _change_services(records: Records, number: int) -> None:
    """Every few batches two new ones; those before the last are deleted with what they have."""
    generation, age = divmod(number, SERVICE_LIFE)
    if age == 0:
        records.create_service(service(2 * generation))
        records.create_service(service(2 * generation + 1, ServiceRole.NOTIFIER))
    if age == 2:
        records.rotate_service(_messaging(number), [b"leaf %d" % number], fingerprint(-number - 1))
    if age == 1 and generation > 0:
        records.delete_service(service_id(2 * generation - 2))
        records.delete_service(service_id(2 * generation - 1))


def _new_queue(number: int, each: int) -> QueueRecord:
    unique = number * QUEUES_PER_BATCH + each
    match each:
        case 0:
            return queue(unique)
        case 1:
            return queue(unique, service_id=_messaging(number))
        case 2:
            return queue(unique, notifier=notifier(unique, _notifying(number)))
        case _:
            return queue(
                unique,
                service_id=_messaging(number),
                notifier=notifier(unique, _notifying(number)),
                link=LinkRecord(link_id(unique), b"fixed" * 100, b"user" * 400),
            )


def _change_queues(records: Records, number: int, age: int) -> None:
    """The queues of an earlier batch: each goes through every kind of change in its life."""
    plain, messaging, notified, whole = (
        found
        for each in range(QUEUES_PER_BATCH)
        if (found := records.queue(_queue_id(number - age, each))) is not None
    )
    now, then = _messaging(number), _notifying(number)
    other = number * QUEUES_PER_BATCH + 1_000_000
    assert notified.notifier is not None
    match age:
        case 1:
            records.update_queue(replace(plain, service_id=now, used_day=number))
            records.update_queue(replace(messaging, sender_key=b"secured"))
            # Another key of the same notifier, another notifier at the same service.
            records.update_queue(replace(notified, notifier=replace(notified.notifier, key=b"new")))
            records.update_queue(
                replace(whole, notifier=notifier(other, whole.notifier_service_id))
            )
        case 2:
            records.update_queue(replace(plain, service_id=None))
            records.update_queue(replace(messaging, notifier=notifier(other + 1, then)))
            records.update_queue(
                replace(notified, notifier=replace(notified.notifier, service_id=None))
            )
            records.update_queue(replace(whole, notifier=None))
        case 3:
            records.update_queue(replace(plain, link=LinkRecord(link_id(other), b"", b"late")))
            records.update_queue(replace(messaging, service_id=now))
            records.update_queue(
                replace(notified, notifier=replace(notified.notifier, service_id=then))
            )
        case _:
            records.update_queue(replace(plain, service_id=now, notifier=notifier(other + 2, then)))
            records.update_queue(replace(messaging, notifier=None))
            records.update_queue(
                replace(whole, service_id=now, notifier=notifier(other + 3, then), link=None)
            )


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is durable after some batches."""

    queues: tuple[QueueRecord, ...]
    services: tuple[ServiceRecord, ...]
    digests: tuple[SetDigest, ...]
    pages: tuple[tuple[bytes, ...], ...]
    deleted: tuple[StreamId, ...]
    counts: RecordCounts


def contents(records: Records, batch_count: int) -> Contents:
    """For records that hold at most so many batches, with nothing staged."""
    queues = map(records.queue, map(queue_id, range(batch_count * QUEUES_PER_BATCH)))
    services = records.services()
    ids = [each.service_id for each in services]
    return Contents(
        tuple(each for each in queues if each is not None),
        tuple(services),
        tuple(map(records.digest, ids)),
        tuple(tuple(records.page(each, None, 1_000)) for each in ids),
        tuple(sorted(records.deleted_queues(1_000))),
        records.counts(),
    )


def expected_contents(batch_count: int) -> list[Contents]:
    """After none, one, two … batches, as the reference has it."""
    records = MemoryRecords.open("workload", DiskFiles())
    found = [contents(records, batch_count)]
    for number in range(batch_count):
        stage(records, number)
        commit(records)
        found.append(contents(records, batch_count))
    return found


def run(records: Records, numbers: Iterable[int]) -> None:
    for number in numbers:
        stage(records, number)
        commit(records)
