"""What the parties of a queue may do to it beside sending, receiving and links.

- KEY, SKEY: who may send from now on. The same key again changes nothing, another is refused.
- RKEY: who may act for the recipient; for contact addresses alone.
- OFF: takes no more messages; those it has are delivered. There is no way back.
- DEL: gone, with its messages. Readers elsewhere are told.
- QUE: what is known of it, to find out why something does not work.

A queue that an operator has blocked can still be switched off and deleted; nothing else.
"""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import msgspec

from syncline.errors import UnknownQueueError
from syncline.server.smp.calls import Call
from syncline.server.smp.delivering import Delivering, Head
from syncline.server.smp.erasing import Erasing
from syncline.server.smp.parts import Parts
from syncline.server.smp.replies import RECORDS, Reply
from syncline.values.queue_records import QueueMode, QueueRecord, QueueStatus
from syncline.wire.smp import failures
from syncline.wire.smp.bodies import QuotaReached
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import PublicKey
from syncline.wire.smp.messages import Info, Ok

_OK = Ok()


def check_not_blocked(record: QueueRecord) -> None:
    if record.block is not None:
        raise FailureError(failures.blocked(record.block.reason, record.block.ttl_seconds))


class QueueCommands:
    """See the module. Every method raises FailureError or StorageError."""

    def __init__(self, parts: Parts, delivering: Delivering, erasing: Erasing) -> None:
        self._parts = parts
        self._delivering = delivering
        self._erasing = erasing

    def secure(self, record: QueueRecord, key: PublicKey) -> Reply:
        """By the recipient, whatever the queue is for."""
        check_not_blocked(record)
        return Reply(_OK, self.set_sender_key(record, key))

    def secure_by_sender(self, record: QueueRecord, key: PublicKey) -> Reply:
        check_not_blocked(record)
        if record.mode is not QueueMode.MESSAGING:
            raise FailureError(failures.AUTH)
        return Reply(_OK, self.set_sender_key(record, key))

    def set_sender_key(self, record: QueueRecord, key: PublicKey) -> int:
        """Once, or with the same key again; what the answer has to wait for."""
        if record.sender_key is None:
            self._parts.book.change(record, replace(record, sender_key=key.encoded))
            self._parts.counters.secured_count += 1
            return RECORDS
        if record.sender_key != key.encoded:
            raise FailureError(failures.AUTH)
        return 0

    def set_recipient_keys(self, record: QueueRecord, keys: Sequence[PublicKey]) -> Reply:
        check_not_blocked(record)
        if record.mode is not QueueMode.CONTACT:
            raise FailureError(failures.AUTH)
        if len(keys) > self._parts.outside.options.recipient_key_count_max:
            raise FailureError(failures.SYNTAX)
        encoded = tuple(dict.fromkeys(key.encoded for key in keys))
        self._parts.book.change(record, replace(record, recipient_keys=encoded))
        return Reply(_OK, RECORDS)

    def suspend(self, record: QueueRecord) -> Reply:
        if record.status is QueueStatus.OFF:
            return Reply(_OK)
        # A block stays: lifting it must not switch the queue on again.
        self._parts.book.change(record, replace(record, status=QueueStatus.OFF))
        self._parts.counters.suspended_count += 1
        return Reply(_OK, RECORDS)

    def delete(self, call: Call, record: QueueRecord) -> Reply:
        self.take_away(record)
        finish = partial(self.finish_deletion, record, call.number)
        return Reply(_OK, RECORDS, finish, then_always=True)

    def take_away(self, record: QueueRecord) -> None:
        """Stage the deletion: from now on nobody finds the queue. `finish_deletion` follows."""
        self._parts.book.delete(record)
        self._parts.counters.deleted_count += 1

    def finish_deletion(self, record: QueueRecord, by: int | None) -> None:
        """It is durable: tell its readers. Or it was refused: then they have their queue still."""
        if self._parts.outside.records.queue(record.recipient_id) is not None:
            # What has come meanwhile found nobody.
            self._delivering.look(record.recipient_id)
            return
        effects = self._parts.deliveries.deleted(record.recipient_id, record.service_id, by=by)
        if (notifier := record.notifier) is not None:
            effects += self._parts.notifications.deleted(
                notifier.notifier_id, notifier.service_id, by=by
            )
        self._parts.connections.add_effects(effects)
        self._erasing.erase(record.recipient_id)

    # Looking.

    def describe(self, call: Call, record: QueueRecord) -> Reply:
        check_not_blocked(record)
        facts: dict[str, object] = {
            "qiSnd": record.sender_key is not None,
            "qiNtf": record.notifier is not None,
            "qiSize": self._unread_count(record),
        }
        if (subscription := self._subscription(call, record)) is not None:
            facts["qiSub"] = subscription
        if (head := self._delivering.head(record)) is not None:
            facts["qiMsg"] = _message_facts(head)
        return Reply(Info(msgspec.json.encode(facts)))

    def _unread_count(self, record: QueueRecord) -> int:
        try:
            return self._parts.outside.store.state(record.recipient_id).unread_count
        except UnknownQueueError:
            return 0

    def _subscription(self, call: Call, record: QueueRecord) -> dict[str, str] | None:
        """What this session has of the queue. There are no delivery threads here to speak of."""
        deliveries, queue = self._parts.deliveries, record.recipient_id
        if deliveries.is_get_only(call.number, queue):
            facts = {"qSubThread": "prohibitSub"}
        elif deliveries.is_subscribed(call.number, queue, record.service_id):
            facts = {"qSubThread": "noSub"}
        else:
            return None
        if (held := deliveries.held(call.number, queue)) is not None:
            facts["qDelivered"] = urlsafe_b64encode(held.message_id).decode()
        return facts


def _message_facts(head: Head) -> dict[str, str]:
    time = datetime.fromtimestamp(head.entry.time_ms // 1_000, UTC)
    return {
        "msgId": urlsafe_b64encode(head.message_id).decode(),
        "msgTs": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "msgType": "quota" if isinstance(head.content, QuotaReached) else "message",
    }
