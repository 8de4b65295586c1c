"""The changes that can be staged, each with what it touches.

An operation holds the record as its stager saw it and as it shall be, so writing needs no decision
any more. What it touches tells whether it may stay when the batch below it has failed:

- it *writes* the ids that it gives out, changes or frees;
- it *relies* on the services that its records name or named, and does not change them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from syncline.errors import LimitExceededError
from syncline.storage.records.base import record_bytes_max
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.queue_records import QueueRecord, ServiceRecord

# What every row takes, keys and lengths and indexes.
_ROW_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class CreateQueue:
    record: QueueRecord


@dataclass(frozen=True, slots=True)
class UpdateQueue:
    before: QueueRecord
    record: QueueRecord


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    before: QueueRecord


@dataclass(frozen=True, slots=True)
class ForgetDeleted:
    recipient_ids: tuple[StreamId, ...]


@dataclass(frozen=True, slots=True)
class CreateService:
    record: ServiceRecord


@dataclass(frozen=True, slots=True)
class RotateService:
    before: ServiceRecord
    record: ServiceRecord


@dataclass(frozen=True, slots=True)
class DeleteService:
    before: ServiceRecord


Operation = (
    CreateQueue
    | UpdateQueue
    | DeleteQueue
    | ForgetDeleted
    | CreateService
    | RotateService
    | DeleteService
)


class Touched:
    """What some operations touch, all together. Names are ids behind a letter for their kind."""

    __slots__ = ("relied", "written")

    def __init__(self, operations: Iterable[Operation], relied_services: Iterable[bytes]) -> None:
        self.written: set[bytes] = set()
        self.relied = {b"v" + each for each in relied_services}
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        match operation:
            case CreateQueue(record=record) | DeleteQueue(before=record):
                self._add_queue(record)
            case UpdateQueue(before=before, record=record):
                self._add_queue(before)
                self._add_queue(record)
            case ForgetDeleted(recipient_ids=ids):
                self.written.update(b"r" + each for each in ids)
            case CreateService(record=service) | DeleteService(before=service):
                self._add_service(service)
            case RotateService(before=old, record=service):
                self._add_service(old)
                self._add_service(service)
            case _:
                assert_never(operation)

    def depends_on(self, failed: "Touched") -> bool:
        """Whether these operations could have gone otherwise without the failed ones."""
        return not (
            self.written.isdisjoint(failed.written) and self.relied.isdisjoint(failed.written)
        )

    def _add_queue(self, record: QueueRecord) -> None:
        written = self.written
        written.add(b"r" + record.recipient_id)
        written.add(b"s" + record.sender_id)
        if record.link_id is not None:
            written.add(b"l" + record.link_id)
        if record.notifier_id is not None:
            written.add(b"n" + record.notifier_id)
        for service_id in (record.service_id, record.notifier_service_id):
            if service_id is not None:
                self.relied.add(b"v" + service_id)

    def _add_service(self, record: ServiceRecord) -> None:
        self.written.add(b"v" + record.service_id)
        self.written.add(b"f" + record.fingerprint)


def operation_bytes(operation: Operation) -> int:
    """About how much it will write."""
    match operation:
        case CreateQueue(record=record) | UpdateQueue(record=record):
            return queue_bytes(record)
        case CreateService(record=service) | RotateService(record=service):
            return service_bytes(service)
        case ForgetDeleted(recipient_ids=ids):
            return STREAM_ID_BYTES * len(ids)
        case DeleteQueue() | DeleteService():
            return _ROW_BYTES
        case _:
            assert_never(operation)


def queue_bytes(record: QueueRecord) -> int:
    """Raises LimitExceededError for a record that is too large."""
    size = _ROW_BYTES + len(record.secret) + sum(map(len, record.recipient_keys))
    if record.sender_key is not None:
        size += len(record.sender_key)
    if record.link is not None:
        size += len(record.link.fixed) + len(record.link.user)
    if record.notifier is not None:
        size += len(record.notifier.key) + len(record.notifier.secret)
    if record.block is not None:
        size += len(record.block.reason)
    return _checked(size)


def service_bytes(record: ServiceRecord) -> int:
    """Raises LimitExceededError for a record that is too large."""
    return _checked(_ROW_BYTES + sum(map(len, record.chain)))


def _checked(size: int) -> int:
    if size > record_bytes_max:
        raise LimitExceededError("a record in bytes", size, record_bytes_max)
    return size


def check_ids(record: QueueRecord) -> None:
    """Raises ValueError: whoever makes a record has checked what came from outside."""
    ids = (record.recipient_id, record.sender_id, record.notifier_id, record.link_id)
    if any(each is not None and len(each) != STREAM_ID_BYTES for each in ids):
        raise ValueError(f"an id has {STREAM_ID_BYTES} bytes")
