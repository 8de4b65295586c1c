"""Messages on their way from the store to whoever reads their queue.

A queue is looked at whenever there may be something new for its reader: it subscribed, a message
has become durable, one was acknowledged, a fold came by, a slow session can take more. Looking
reads the first durable message and offers it; `core.deliveries` decides who gets it.

Bodies are encrypted to the recipient when they are handed over, not before: what lies on the disk
is what the sender sent, and a message that nobody reads costs nothing here.
"""

from collections.abc import Callable

import msgspec

from syncline.core.deliveries import Fold
from syncline.errors import MalformedMessageError, StorageError, UnknownQueueError
from syncline.server.smp.connections import NO_ID, Connection
from syncline.server.smp.faces import Answer
from syncline.server.smp.parts import Parts
from syncline.storage.base import Entry, EntryKind
from syncline.values.events import Reason
from syncline.values.ids import StreamId
from syncline.values.limits import read_bytes_max
from syncline.values.queue_records import QueueRecord
from syncline.wire.smp.bodies import QuotaReached, Received, ReceivedMessage, seal_received
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.messages import Msg
from syncline.wire.smp.stored import StoredMessage, marker_id


class Head(msgspec.Struct, frozen=True):
    """The first durable message of a queue."""

    entry: Entry
    message_id: bytes
    content: Received

    @property
    def seq(self) -> int:
        return self.entry.seq


class Delivering:
    """See the module."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.outside.store
        self._records = parts.outside.records
        self._deliveries = parts.deliveries
        self._events = parts.outside.events
        # Set by whoever folds: a session that missed too much is taken through its queues anew.
        self.begin_fold: Callable[[Connection, Fold], None] = lambda connection, fold: None

    def look(self, queue: bytes) -> bool:
        """Hand the first message of a queue to its reader, if it has one; whether it did.

        What cannot be read is reported: nobody waits for an answer to this.
        """
        try:
            record = self._records.queue(queue)
            return record is not None and self.look_at(record)
        except StorageError as error:
            self._parts.outside.log.error(
                "a message cannot be read", reason=str(error), queue=str(StreamId(queue))
            )
            return False

    def look_after(self, number: int, queue: bytes, service: bytes | None) -> None:
        """Look, behind the creation that the session subscribed with, whatever became of that."""
        record = self._records.queue(queue)
        if record is None or record.service_id != service:
            self._deliveries.unsubscribe(number, queue)
        self.look(queue)

    def look_at(self, record: QueueRecord) -> bool:
        """As `look`. Raises StorageError for what cannot be read."""
        queue, service = record.recipient_id, record.service_id
        if not self._is_wanted(record):
            return False
        head = self.head(record)
        if head is None:
            return False
        number = self._deliveries.offer(queue, service, head.seq, head.message_id)
        connection = None if number is None else self._parts.connections.get(number)
        if connection is None:
            return False
        if self._events is not None:
            self._events.delivered(queue, connection.number, head.seq, head.seq)
        answer = Answer(NO_ID, queue, self.message(record, head))
        self._parts.connections.send(connection, (answer,))
        return True

    def next_for(self, number: int, record: QueueRecord) -> Msg | None:
        """What a session that has just acknowledged gets in return. Raises StorageError."""
        queue, service = record.recipient_id, record.service_id
        if not self._is_wanted(record):
            return None
        head = self.head(record)
        if head is None:
            return None
        if self._deliveries.offer(queue, service, head.seq, head.message_id) != number:
            # It cannot take more for now: the message is due, and comes by itself.
            return None
        if self._events is not None:
            self._events.delivered(queue, number, head.seq, head.seq)
        return self.message(record, head)

    def _is_wanted(self, record: QueueRecord) -> bool:
        queue = record.recipient_id
        return (
            record.block is None
            and self._deliveries.wants(queue, record.service_id)
            and not self._parts.book.is_moving(queue)
        )

    def head(self, record: QueueRecord) -> Head | None:
        """Raises StorageError."""
        while True:
            try:
                entries = self._store.read(record.recipient_id, 0, 1, read_bytes_max)
            except UnknownQueueError:
                # Nobody has sent anything yet.
                return None
            if not entries:
                return None
            try:
                return _head(record, entries[0])
            except MalformedMessageError as error:
                self._drop(record, entries[0], error)

    def message(self, record: QueueRecord, head: Head) -> Msg:
        self._parts.counters.delivered_count += 1
        body = seal_received(SecretBox(record.secret), head.message_id, head.content)
        return Msg(head.message_id, body)

    # Slow sessions.

    def resume(self, connection: Connection) -> None:
        """The session can take more: hand over what is due, as long as it can."""
        while connection.session.is_writable:
            resumed = self._deliveries.resume(connection.number)
            for queue in resumed.due:
                self.look(queue)
            if resumed.fold is not None:
                self.begin_fold(connection, resumed.fold)
            if not resumed.due:
                break
        connection.stir()

    def _drop(self, record: QueueRecord, entry: Entry, error: MalformedMessageError) -> None:
        """It was put into the stream by something else, and would stand in the way for ever."""
        self._parts.outside.log.warning(
            "an entry that is no message was dropped",
            reason=str(error),
            queue=str(record.recipient_id),
        )
        self._store.truncate_before(record.recipient_id, entry.seq + 1)
        if self._events is not None:
            self._events.expired(record.recipient_id, entry.seq, Reason.NO_MESSAGE)


def _head(record: QueueRecord, entry: Entry) -> Head:
    time_s = entry.time_ms // 1_000
    if entry.kind is EntryKind.QUOTA_MARKER:
        message_id = marker_id(record.secret, entry.seq, entry.time_ms)
        return Head(entry, message_id, QuotaReached(time_s))
    stored = StoredMessage.decode(entry.payload)
    return Head(entry, stored.message_id, ReceivedMessage(time_s, stored.flags, stored.body))
