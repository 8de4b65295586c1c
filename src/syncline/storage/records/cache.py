"""Records of queues that were looked at lately, found by each of their ids, bounded by bytes."""

from collections import OrderedDict
from typing import Final

from syncline.storage.records.base import record_bytes_usual
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord


class RecordCache:
    """Forgets what was not asked for the longest. Every record here has all of its ids here."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self._byte_count = 0
        self._records: OrderedDict[bytes, QueueRecord] = OrderedDict()
        self._senders: dict[bytes, StreamId] = {}
        self._notifiers: dict[bytes, StreamId] = {}
        self._links: dict[bytes, StreamId] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def byte_count(self) -> int:
        return self._byte_count

    def queue(self, recipient_id: bytes) -> QueueRecord | None:
        record = self._records.get(recipient_id)
        if record is not None:
            self._records.move_to_end(recipient_id)
        return record

    def by_sender(self, sender_id: bytes) -> QueueRecord | None:
        found = self._senders.get(sender_id)
        return None if found is None else self.queue(found)

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None:
        found = self._notifiers.get(notifier_id)
        return None if found is None else self.queue(found)

    def by_link(self, link_id: bytes) -> QueueRecord | None:
        found = self._links.get(link_id)
        return None if found is None else self.queue(found)

    def put(self, record: QueueRecord) -> None:
        recipient_id = record.recipient_id
        self.drop(recipient_id)
        self._records[recipient_id] = record
        self._senders[record.sender_id] = recipient_id
        if record.notifier_id is not None:
            self._notifiers[record.notifier_id] = recipient_id
        if record.link_id is not None:
            self._links[record.link_id] = recipient_id
        self._byte_count += _weight(record)
        while self._byte_count > self._bytes_max:
            self.drop(next(iter(self._records)))

    def drop(self, recipient_id: bytes) -> None:
        record = self._records.pop(recipient_id, None)
        if record is None:
            return
        self._byte_count -= _weight(record)
        _forget(self._senders, record.sender_id, recipient_id)
        if record.notifier_id is not None:
            _forget(self._notifiers, record.notifier_id, recipient_id)
        if record.link_id is not None:
            _forget(self._links, record.link_id, recipient_id)

    def clear(self) -> None:
        self._byte_count = 0
        for each in (self._records, self._senders, self._notifiers, self._links):
            each.clear()


def _forget(ids: dict[bytes, StreamId], key: bytes, recipient_id: bytes) -> None:
    # It may be another queue's by now.
    if ids.get(key) == recipient_id:
        del ids[key]


def _weight(record: QueueRecord) -> int:
    link = record.link
    return record_bytes_usual + (len(link.fixed) + len(link.user) if link is not None else 0)
