"""Changes staged over what is durable: what is allowed, and how records look from above.

Shared by every backend that keeps its records elsewhere than in memory. A backend brings `Durable`,
which looks at what is committed, and writes the layers that it takes from here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from syncline.errors import (
    LimitExceededError,
    QueueExistsError,
    ServiceMismatchError,
    StoreBusyError,
    UnknownQueueError,
)
from syncline.storage.records.base import RecordCounts, service_count_max
from syncline.storage.records.cache import RecordCache
from syncline.storage.records.layers import Layer, Layers
from syncline.storage.records.operations import (
    CreateQueue,
    CreateService,
    DeleteQueue,
    DeleteService,
    ForgetDeleted,
    Operation,
    RotateService,
    UpdateQueue,
    check_ids,
    operation_bytes,
)
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord, ServiceRecord, ServiceRole

# Services that are asked for with every association.
_KNOWN_SERVICE_COUNT_MAX: Final = 1_024


class Durable(Protocol):
    """Looks at what is committed."""

    def queue(self, recipient_id: bytes) -> QueueRecord | None: ...

    def by_sender(self, sender_id: bytes) -> QueueRecord | None: ...

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None: ...

    def by_link(self, link_id: bytes) -> QueueRecord | None: ...

    def service(self, service_id: bytes) -> ServiceRecord | None: ...

    def service_by_fingerprint(self, fingerprint: bytes) -> ServiceRecord | None: ...

    def has_any(self, ids: Mapping[str, bytes]) -> bool:
        """Whether one of these is taken: a `queue`, `deleted`, `sender`, `notifier` or `link`."""
        ...

    def counts(self) -> RecordCounts: ...


class StagedRecords:
    """Looking and writing as `storage.records.base.Records` says."""

    def __init__(self, durable: Durable, cache_bytes_max: int) -> None:
        self._durable = durable
        self._layers = Layers()
        self._cache = RecordCache(cache_bytes_max)
        self._known_services: dict[bytes, ServiceRecord] = {}

    # Looking.

    def queue(self, recipient_id: bytes) -> QueueRecord | None:
        if self._layers.are_empty and (found := self._cache.queue(recipient_id)) is not None:
            # Nearly always (bench: queues).
            return found
        return self._layers.queue(recipient_id, self._durable_queue)

    def by_sender(self, sender_id: bytes) -> QueueRecord | None:
        layers = self._layers
        if layers.are_empty and (found := self._cache.by_sender(sender_id)) is not None:
            return found
        for layer in (layers.staged, layers.taken):
            if layer is not None and sender_id in layer.senders:
                return self._of(layer.senders[sender_id])
        found = self._cache.by_sender(sender_id)
        return self._shown(found or self._kept(self._durable.by_sender(sender_id)))

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None:
        layers = self._layers
        for layer in (layers.staged, layers.taken):
            if layer is not None and notifier_id in layer.notifiers:
                return self._of(layer.notifiers[notifier_id])
        found = self._cache.by_notifier(notifier_id)
        return self._shown(found or self._kept(self._durable.by_notifier(notifier_id)))

    def by_link(self, link_id: bytes) -> QueueRecord | None:
        layers = self._layers
        for layer in (layers.staged, layers.taken):
            if layer is not None and link_id in layer.links:
                return self._of(layer.links[link_id])
        found = self._cache.by_link(link_id)
        return self._shown(found or self._kept(self._durable.by_link(link_id)))

    def service(self, service_id: bytes) -> ServiceRecord | None:
        return self._layers.service(service_id, self._durable_service)

    def service_by_fingerprint(self, fingerprint: bytes) -> ServiceRecord | None:
        layers = self._layers
        for layer in (layers.staged, layers.taken):
            if layer is not None and fingerprint in layer.fingerprints:
                service_id = layer.fingerprints[fingerprint]
                return None if service_id is None else self.service(service_id)
        return self._durable.service_by_fingerprint(fingerprint)

    # Writing.

    def create_queue(self, record: QueueRecord) -> None:
        check_ids(record)
        if self._is_taken(record, None):
            raise QueueExistsError(str(record.recipient_id))
        self._check_services(record, None)
        self._stage(CreateQueue(record))

    def update_queue(self, record: QueueRecord) -> None:
        check_ids(record)
        before = self._find(record.recipient_id)
        if record.sender_id != before.sender_id:
            raise ValueError("a queue keeps its sender id")
        if record == before:
            return
        if self._is_taken(record, before):
            raise QueueExistsError(str(record.recipient_id))
        self._check_services(record, before)
        self._stage(UpdateQueue(before, record))

    def delete_queue(self, recipient_id: bytes) -> None:
        self._stage(DeleteQueue(self._find(recipient_id)))

    def forget_deleted(self, recipient_ids: Iterable[bytes]) -> None:
        if ids := tuple(map(StreamId, recipient_ids)):
            self._stage(ForgetDeleted(ids))

    def create_service(self, record: ServiceRecord) -> None:
        if self.service(record.service_id) is not None:
            raise ServiceMismatchError("there is a service with this id")
        self._check_fingerprint(record.fingerprint)
        count = self._durable.counts().service_count + len(self._layers.staged.services)
        if count >= service_count_max:
            raise LimitExceededError("the number of services", count + 1, service_count_max)
        self._stage(CreateService(record))

    def rotate_service(self, service_id: bytes, chain: Sequence[bytes], fingerprint: bytes) -> None:
        before = self._find_service(service_id)
        if fingerprint != before.fingerprint:
            self._check_fingerprint(fingerprint)
        record = replace(before, chain=tuple(chain), fingerprint=fingerprint)
        self._stage(RotateService(before, record))

    def delete_service(self, service_id: bytes) -> None:
        self._stage(DeleteService(self._find_service(service_id)))

    def _stage(self, operation: Operation) -> None:
        byte_count = operation_bytes(operation)
        waiting_bytes = self._layers.waiting_bytes + byte_count
        if waiting_bytes > limits.waiting_bytes_max:
            raise StoreBusyError(waiting_bytes, limits.waiting_bytes_max)
        self._layers.stage(operation, byte_count)

    # What is allowed.

    def _find(self, recipient_id: bytes) -> QueueRecord:
        found = self.queue(recipient_id)
        if found is None:
            raise UnknownQueueError(str(StreamId(recipient_id)))
        return found

    def _find_service(self, service_id: bytes) -> ServiceRecord:
        found = self.service(service_id)
        if found is None:
            raise ServiceMismatchError("there is no such service")
        return found

    def _is_taken(self, record: QueueRecord, before: QueueRecord | None) -> bool:
        """Whether an id that it did not have before is somebody's."""
        unknown: dict[str, bytes] = {}
        for kind, key in _new_ids(record, before).items():
            is_taken = self._layers.is_taken(kind, key)
            if is_taken:
                return True
            # One that a layer knows to be free need not be free below it.
            if is_taken is None:
                unknown[kind] = key
        return self._durable.has_any(unknown)

    def _check_services(self, record: QueueRecord, before: QueueRecord | None) -> None:
        old = None if before is None else before.service_id
        self._check_service(record.service_id, old, ServiceRole.MESSAGING)
        old = None if before is None else before.notifier_service_id
        self._check_service(record.notifier_service_id, old, ServiceRole.NOTIFIER)

    def _check_service(self, new: bytes | None, old: bytes | None, role: ServiceRole) -> None:
        if new is None or new == old:
            return
        if self._find_service(new).role is not role:
            raise ServiceMismatchError(f"that service does not have the role {role}")

    def _check_fingerprint(self, fingerprint: bytes) -> None:
        if self.service_by_fingerprint(fingerprint) is not None:
            raise ServiceMismatchError("another service has this certificate")

    # Below the layers.

    def _of(self, recipient_id: StreamId | None) -> QueueRecord | None:
        return None if recipient_id is None else self.queue(recipient_id)

    def _shown(self, record: QueueRecord | None) -> QueueRecord | None:
        """A record from below both layers, as it shows above them."""
        layers = self._layers
        return layers.from_below(layers.from_below(record, layers.taken), layers.staged)

    def _durable_queue(self, recipient_id: bytes) -> QueueRecord | None:
        found = self._cache.queue(recipient_id)
        return found or self._kept(self._durable.queue(recipient_id))

    def _kept(self, record: QueueRecord | None) -> QueueRecord | None:
        if record is not None:
            self._cache.put(record)
        return record

    def _durable_service(self, service_id: bytes) -> ServiceRecord | None:
        found = self._known_services.get(service_id) or self._durable.service(service_id)
        if found is not None:
            if len(self._known_services) >= _KNOWN_SERVICE_COUNT_MAX:
                self._known_services.clear()
            self._known_services[service_id] = found
        return found

    def _take_over(self, layer: Layer) -> None:
        """What the layer holds is durable: the cache must know no less."""
        if layer.cleared:
            self._cache.clear()
        for recipient_id, record in layer.queues.items():
            if record is None:
                self._cache.drop(recipient_id)
            else:
                self._cache.put(record)
        for service_id in layer.services:
            self._known_services.pop(service_id, None)


def _new_ids(record: QueueRecord, before: QueueRecord | None) -> dict[str, bytes]:
    """Ids that it did not have before, by what they are."""
    ids: dict[str, bytes] = {}
    if before is None:
        recipient_id = record.recipient_id
        ids = {"queue": recipient_id, "deleted": recipient_id, "sender": record.sender_id}
    notifier_id, link_id = record.notifier_id, record.link_id
    if notifier_id is not None and (before is None or notifier_id != before.notifier_id):
        ids["notifier"] = notifier_id
    if link_id is not None and (before is None or link_id != before.link_id):
        ids["link"] = link_id
    return ids
