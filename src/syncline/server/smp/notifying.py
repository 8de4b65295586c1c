"""Notifications: somebody who cannot read a queue is told that something has come.

- NKEY gives a queue a notifier, with an id, a key and a secret of its own; NDEL takes it away.
- NSUB, and NSUBS for all notifiers of a service, say where notifications go.
- A notification names the message, for the recipient's eyes alone. It waits in memory until
  somebody can take it; losing one loses no message.

Notifications that come in one turn of the loop go out together: a block holds eighty.
"""

import asyncio
from dataclasses import replace
from functools import partial

import msgspec

from syncline.core.notifications import Notification
from syncline.server.smp.calls import Call
from syncline.server.smp.connections import NO_ID
from syncline.server.smp.creating import Creating
from syncline.server.smp.faces import Answer
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import check_not_blocked
from syncline.server.smp.replies import ORDER, RECORDS, Reply, behind_others
from syncline.server.smp.taking_over import take_over
from syncline.values.ids import StreamId
from syncline.values.queue_records import NotifierRecord, QueueRecord
from syncline.wire.smp import bodies, failures
from syncline.wire.smp.boxes import NONCE_BYTES, SecretBox
from syncline.wire.smp.commands import NotifierKeys
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Nmsg, Ok, Sok

_OK = Ok()
# Handed to a session at a time; then it is asked whether it can take more.
_AT_ONCE = 256


class Notice(msgspec.Struct, frozen=True):
    """A notification on its way: it goes out once its message is durable."""

    notifier_id: bytes
    notification: Notification


class Notifying:
    """See the module."""

    def __init__(self, parts: Parts, creating: Creating) -> None:
        self._parts = parts
        self._creating = creating
        # Sessions that have something due at the end of this turn of the loop.
        self._due: set[int] = set()

    # Credentials.

    def set_keys(self, call: Call, record: QueueRecord, keys: NotifierKeys) -> Reply:
        """A notifier, in place of the last one. Raises FailureError, StorageError."""
        check_not_blocked(record)
        notifier, nid = self._creating.make_notifier(keys)
        assert nid is not None
        self._parts.book.change(record, replace(record, notifier=notifier))
        return Reply(nid, RECORDS, partial(self._forget, call.number, record.notifier))

    def remove_keys(self, call: Call, record: QueueRecord) -> Reply:
        check_not_blocked(record)
        if record.notifier is None:
            return Reply(_OK)
        self._parts.book.change(record, replace(record, notifier=None))
        return Reply(_OK, RECORDS, partial(self._forget, call.number, record.notifier))

    def _forget(self, by: int, notifier: NotifierRecord | None) -> None:
        if notifier is not None:
            self._parts.connections.add_effects(
                self._parts.notifications.deleted(notifier.notifier_id, notifier.service_id, by=by)
            )

    # Subscribing.

    def subscribe(self, call: Call, record: QueueRecord) -> Reply:
        """The four cases of a session and an association. Raises StorageError."""
        notifier, service = record.notifier, call.service_id
        if notifier is None:
            raise FailureError(failures.AUTH)
        former = notifier.service_id
        counters = self._parts.counters
        if former != service:
            after = replace(record, notifier=replace(notifier, service_id=service))
            self._parts.book.change(record, after)
        counters.count_association(former, service)
        counters.notifier_subscribed_count += 1
        take_over(
            self._parts,
            self._parts.notifications,
            call.number,
            notifier.notifier_id,
            service,
            former,
        )
        is_moved = former != service
        waits_for = RECORDS | ORDER if is_moved else behind_others(call.connection)
        return Reply(Sok(service), waits_for, partial(self.flush_soon, call.number))

    # Notifications.

    def notice(self, notifier: NotifierRecord, message_id: bytes, now_ms: int) -> Notice:
        nonce = self._parts.outside.random_bytes(NONCE_BYTES)
        metadata = bodies.seal_notification(
            SecretBox(notifier.secret), nonce, bodies.Notification(message_id, now_ms // 1_000)
        )
        return Notice(notifier.notifier_id, Notification(nonce, metadata))

    def notify(self, queue: StreamId, notice: Notice) -> None:
        """The message is durable; its notifier may have changed since, or be gone."""
        outside = self._parts.outside
        record = outside.records.queue(queue)
        notifier = None if record is None else record.notifier
        if notifier is None or notifier.notifier_id != notice.notifier_id:
            return
        if self._parts.book.is_moving(notifier.notifier_id):
            again = partial(self.notify, queue, notice)
            self._parts.book.when_settled(notifier.notifier_id, lambda _: again())
            return
        number = self._parts.notifications.notify(
            notifier.notifier_id, notifier.service_id, notice.notification, outside.steady_ms()
        )
        if number is not None:
            self.flush_soon(number)

    def flush_soon(self, number: int) -> None:
        """Hand over what is due to a session, at the end of this turn."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.add(number)

    def resume(self, number: int) -> None:
        """The session can take more."""
        self._parts.notifications.resume(number)
        self.flush_soon(number)

    def _flush(self) -> None:
        due, self._due = self._due, set()
        for number in due:
            connection = self._parts.connections.get(number)
            if connection is None:
                continue
            while taken := self._parts.notifications.take_due(number, _AT_ONCE):
                self._parts.counters.notified_count += len(taken)
                answers = [
                    Answer(NO_ID, notifier_id, Nmsg(each.nonce, each.metadata))
                    for notifier_id, each in taken
                ]
                self._parts.connections.send(connection, answers)
