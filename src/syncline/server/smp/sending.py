"""SEND: a message is stored, its sender is told once that is durable, then its reader gets it.

- The stream of a queue is made with its first message: a queue without messages is a record only.
- A message waits until its queue is durable. If the records refused the queue, or a crash came in
  between, its stream would belong to nobody and stay for ever.
- A full queue takes a marker in place of the message that was one too many. The reader gets the
  marker after all messages before it, and knows that its sender was turned away.
- Old messages of the queue go when a new one comes; markers stay.
- The first message by a sender with a key ends the life of the queue's short link.
"""

from dataclasses import replace
from functools import partial

from syncline.errors import QuotaExceededError, StoreBusyError, UnknownQueueError
from syncline.server.smp.calls import Call
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.notifying import Notice, Notifying
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import check_not_blocked
from syncline.server.smp.replies import LOG, RECORDS, Reply
from syncline.storage.base import EntryKind, StreamKind
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueMode, QueueRecord, QueueStatus
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Send
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Err, Ok
from syncline.wire.smp.stored import MESSAGE_ID_BYTES, StoredMessage
from syncline.wire.smp.versions import body_bytes_max

_OK = Ok()
_QUOTA = Err(failures.QUOTA)
# Messages looked at in one go when some are too old.
_EXPIRED_AT_ONCE = 64


class Sending:
    """See the module."""

    def __init__(self, parts: Parts, delivering: Delivering, notifying: Notifying) -> None:
        self._parts = parts
        self._delivering = delivering
        self._notifying = notifying

    def send(self, call: Call, record: QueueRecord, command: Send) -> Reply:
        """Raises FailureError, StorageError; StoreBusyError before anything is staged of it."""
        check_not_blocked(record)
        if record.status is not QueueStatus.ACTIVE:
            raise FailureError(failures.AUTH)
        if len(command.body) > body_bytes_max(call.session.version):
            raise FailureError(failures.LARGE_MSG)
        outside = self._parts.outside
        if (shortage := outside.shortage()) is not None:
            raise shortage
        queue, now_ms = record.recipient_id, outside.clock_ms()
        if self._parts.book.is_new(queue):
            raise StoreBusyError(outside.records.waiting_bytes, limits.waiting_bytes_max)
        self.expire(queue, outside.cautious_ms())
        waits_for = LOG
        # Before the message is staged: if there is no room for this, nothing has happened yet.
        if record.link is not None and self._ends_link(call, record):
            self._parts.book.change(record, replace(record, link=None))
            waits_for = LOG | RECORDS
        else:
            self._parts.book.touch(record, now_ms)
        message_id = outside.random_bytes(MESSAGE_ID_BYTES)
        payload = StoredMessage(message_id, command.flags, command.body).encoded()
        try:
            self._append(queue, payload, now_ms)
        except QuotaExceededError:
            self._parts.counters.refused[failures.QUOTA.code] += 1
            # The first refusal left a marker that the reader must get.
            marked = partial(self._delivering.look, queue)
            return Reply(_QUOTA, waits_for, marked, then_always=True)
        self._parts.counters.sent_count += 1
        notice: Notice | None = None
        if record.notifier is not None and command.wants_notification:
            notice = self._notifying.notice(record.notifier, message_id, now_ms)
        # The message is stored whatever becomes of the record: its reader gets it.
        arrived = partial(self._arrived, queue, notice)
        return Reply(_OK, waits_for, arrived, then_always=True)

    def expire(self, queue: StreamId, now_ms: int) -> None:
        """Let go of messages past their age, the oldest first, up to a marker."""
        age_ms = self._parts.outside.options.expire_after_ms
        if not age_ms:
            return
        count_max = 1
        while True:
            expired = self._expired(queue, now_ms - age_ms, count_max)
            if not expired:
                return
            self._parts.counters.expired_count += len(expired)
            self._parts.outside.store.truncate_before(queue, expired[-1] + 1)
            if self._parts.outside.events is not None:
                self._parts.outside.events.expired(queue, expired[-1])
            count_max = _EXPIRED_AT_ONCE

    def _expired(self, queue: StreamId, before_ms: int, count_max: int) -> list[int]:
        """The first sequences of a queue that are too old, if any are."""
        try:
            entries = self._parts.outside.store.read(queue, 0, count_max, limits.read_bytes_max)
        except UnknownQueueError:
            return []
        expired: list[int] = []
        for entry in entries:
            if entry.time_ms >= before_ms or entry.kind is EntryKind.QUOTA_MARKER:
                break
            expired.append(entry.seq)
        return expired

    def _append(self, queue: StreamId, payload: bytes, now_ms: int) -> None:
        store = self._parts.outside.store
        try:
            store.append(queue, payload, now_ms)
        except UnknownQueueError:
            store.create(queue, StreamKind.QUEUE, self._parts.outside.options.quota, now_ms)
            store.append(queue, payload, now_ms)

    def _ends_link(self, call: Call, record: QueueRecord) -> bool:
        """The sender has what the link led to. That of a contact address is for everybody."""
        return record.mode is QueueMode.MESSAGING and bool(call.transmission.authorization)

    def _arrived(self, queue: StreamId, notice: Notice | None) -> None:
        self._delivering.look(queue)
        if notice is not None:
            self._notifying.notify(queue, notice)
