"""What is staged, laid over what is durable: found by every id at once, let go of as a whole.

There are two layers at most: the batch that was taken and is not finished, and what was staged
since. A layer is a batch in the making, and becomes one by being taken.

- A layer knows the last state of every id that it touches: whose it is, or that it is free.
- An operation on a queue notes all ids of that queue, so an id that no layer knows leads to a queue
  that no layer knows.
- With a service go its associations, also those of queues that are not in the layer: `cleared`
  holds such services, and whoever finds a record below the layer takes them off it.
- A layer whose `failure` is set is not written: it was refused, or is told of one that was.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from syncline.errors import StorageError
from syncline.storage.records.operations import (
    CreateQueue,
    CreateService,
    DeleteQueue,
    DeleteService,
    ForgetDeleted,
    Operation,
    RotateService,
    Touched,
    UpdateQueue,
)
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord, ServiceRecord


class Layer:
    """A `Batch`: operations in order, and where they lead."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        # Services that were gone in the layer below when something was staged here.
        self.relied_services: set[bytes] = set()
        self.byte_count = 0
        self.failure: StorageError | None = None
        self.is_written = False
        # None: gone, or free.
        self.queues: dict[bytes, QueueRecord | None] = {}
        self.senders: dict[bytes, StreamId | None] = {}
        self.notifiers: dict[bytes, StreamId | None] = {}
        self.links: dict[bytes, StreamId | None] = {}
        self.services: dict[bytes, ServiceRecord | None] = {}
        self.fingerprints: dict[bytes, bytes | None] = {}
        # Whether the id is among the deleted ones.
        self.deleted: dict[bytes, bool] = {}
        self.cleared: set[bytes] = set()
        self.ids: dict[str, Mapping[bytes, object]] = {
            "queue": self.queues,
            "deleted": self.deleted,
            "sender": self.senders,
            "notifier": self.notifiers,
            "link": self.links,
        }

    @property
    def record_count(self) -> int:
        return len(self.operations)

    @property
    def touched(self) -> Touched:
        return Touched(self.operations, self.relied_services)

    def add(self, operation: Operation, byte_count: int) -> None:
        self.operations.append(operation)
        self.byte_count += byte_count
        match operation:
            case CreateQueue(record=record):
                self._place(record)
            case UpdateQueue(before=before, record=record):
                self._free_ids(before)
                self._place(record)
            case DeleteQueue(before=before):
                self._free_ids(before)
                self.queues[before.recipient_id] = None
                self.deleted[before.recipient_id] = True
            case ForgetDeleted(recipient_ids=ids):
                self.deleted.update(dict.fromkeys(ids, False))
            case CreateService(record=service):
                self._place_service(service)
            case RotateService(before=old, record=service):
                self.fingerprints[old.fingerprint] = None
                self._place_service(service)
            case DeleteService(before=service):
                self.fingerprints[service.fingerprint] = None
                self.services[service.service_id] = None
                self._clear(service.service_id)
            case _:
                assert_never(operation)

    def _place(self, record: QueueRecord) -> None:
        recipient_id = record.recipient_id
        self.queues[recipient_id] = record
        self.senders[record.sender_id] = recipient_id
        if record.notifier_id is not None:
            self.notifiers[record.notifier_id] = recipient_id
        if record.link_id is not None:
            self.links[record.link_id] = recipient_id

    def _free_ids(self, record: QueueRecord) -> None:
        self.senders[record.sender_id] = None
        if record.notifier_id is not None:
            self.notifiers[record.notifier_id] = None
        if record.link_id is not None:
            self.links[record.link_id] = None

    def _place_service(self, record: ServiceRecord) -> None:
        self.services[record.service_id] = record
        self.fingerprints[record.fingerprint] = record.service_id

    def _clear(self, service_id: bytes) -> None:
        self.cleared.add(service_id)
        gone = frozenset((service_id,))
        for recipient_id, record in self.queues.items():
            if record is not None:
                self.queues[recipient_id] = without_services(record, gone)


def without_services(record: QueueRecord, gone: frozenset[bytes] | set[bytes]) -> QueueRecord:
    """The same record if it has none of them."""
    if record.service_id in gone:
        record = replace(record, service_id=None)
    notifier = record.notifier
    if notifier is not None and notifier.service_id in gone:
        record = replace(record, notifier=replace(notifier, service_id=None))
    return record


class Layers:
    """The taken layer below, the staged one above it."""

    def __init__(self) -> None:
        self.staged = Layer()
        self.taken: Layer | None = None

    @property
    def are_empty(self) -> bool:
        return self.taken is None and not self.staged.operations

    @property
    def waiting_bytes(self) -> int:
        return self.staged.byte_count + (self.taken.byte_count if self.taken else 0)

    def stage(self, operation: Operation, byte_count: int) -> None:
        if self.taken is not None and self.taken.cleared:
            # It may have been decided on a record that had lost its service by this.
            self.staged.relied_services |= self.taken.cleared
        self.staged.add(operation, byte_count)

    def take(self) -> Layer | None:
        if self.taken is not None:
            raise ValueError("the batch taken before is not finished")
        if not self.staged.operations and self.staged.failure is None:
            return None
        self.taken, self.staged = self.staged, Layer()
        return self.taken

    def let_go(self) -> None:
        """Of the taken layer: it is below now, or it failed and counts as never staged."""
        assert self.taken is not None
        failed, self.taken = self.taken, None
        if failed.failure is not None and self.staged.touched.depends_on(failed.touched):
            # Nothing of it shows from now on. Whoever waits for it is told by the next batch, which
            # fails, and with it all that is staged until it is taken.
            self.staged = Layer()
            self.staged.failure = failed.failure

    # Looking. Below a layer that does not know an id, `found_below` is asked.

    def queue(
        self, recipient_id: bytes, found_below: Callable[[bytes], QueueRecord | None]
    ) -> QueueRecord | None:
        staged, taken = self.staged, self.taken
        if recipient_id in staged.queues:
            return staged.queues[recipient_id]
        if taken is not None and recipient_id in taken.queues:
            record = taken.queues[recipient_id]
        else:
            record = self.from_below(found_below(recipient_id), taken)
        return self.from_below(record, staged)

    def is_taken(self, kind: str, key: bytes) -> bool | None:
        """Whether somebody has an id; None if no layer knows."""
        for layer in (self.staged, self.taken):
            if layer is not None and key in layer.ids[kind]:
                return layer.ids[kind][key] not in (None, False)
        return None

    @staticmethod
    def from_below(record: QueueRecord | None, layer: Layer | None) -> QueueRecord | None:
        """How a record that was found below `layer` shows above it."""
        if record is None or layer is None or not layer.cleared:
            return record
        return without_services(record, layer.cleared)

    def service(
        self, service_id: bytes, found_below: Callable[[bytes], ServiceRecord | None]
    ) -> ServiceRecord | None:
        for layer in (self.staged, self.taken):
            if layer is not None and service_id in layer.services:
                return layer.services[service_id]
        return found_below(service_id)
