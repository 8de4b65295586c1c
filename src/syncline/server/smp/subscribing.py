"""SUB, GET and ACK: a recipient reads its queue, one message at a time.

Subscribing meets four cases, by who speaks and what is on record:

    session       queue of          what becomes of it
    service S     S                 nothing changes
    service S     none, another     it is S's from now on; the other is told
    plain         a service         it is nobody's from now on; the service is told
    plain         none              nothing changes

An association is on record for good, and so it is told once that is durable: to the session that
asked for it, and to whoever has lost the queue by it. If it is refused nobody has. The reader is
registered before anybody looks for messages, so that none slips by between the two.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from syncline.errors import LimitExceededError, UnknownQueueError
from syncline.server.smp.book import day_of
from syncline.server.smp.calls import Call
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import check_not_blocked
from syncline.server.smp.replies import ORDER, RECORDS, Reply, behind_others
from syncline.server.smp.taking_over import take_over
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord
from syncline.wire.smp import failures
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Msg, Ok, Sok

_OK = Ok()


class Subscribing:
    """See the module. Every method raises FailureError or StorageError."""

    def __init__(self, parts: Parts, delivering: Delivering) -> None:
        self._parts = parts
        self._delivering = delivering

    def subscribe(self, call: Call, record: QueueRecord) -> Reply:
        check_not_blocked(record)
        parts, queue = self._parts, record.recipient_id
        if parts.deliveries.is_get_only(call.number, queue):
            raise FailureError(failures.PROHIBITED)
        service, former = call.service_id, record.service_id
        now_ms = parts.outside.clock_ms()
        if is_moved := former != service:
            parts.book.change(record, replace(record, service_id=service, used_day=day_of(now_ms)))
        else:
            parts.book.touch(record, now_ms)
        parts.counters.count_association(former, service)
        parts.counters.subscribed_count += 1
        if parts.outside.events is not None:
            parts.outside.events.subscribed(queue, call.number, self._first_wanted(queue))
        look = partial(self._delivering.look, queue)
        take_over(parts, parts.deliveries, call.number, queue, service, former, kept=look)
        waits_for = RECORDS | ORDER if is_moved else behind_others(call.connection)
        return Reply(Sok(service), waits_for, look)

    def get(self, call: Call, record: QueueRecord) -> Reply:
        """The first message, without a subscription and without disturbing that of another."""
        check_not_blocked(record)
        parts, queue = self._parts, record.recipient_id
        if not parts.deliveries.get(call.number, queue, record.service_id):
            raise FailureError(failures.PROHIBITED)
        head = self._delivering.head(record)
        if head is None:
            return Reply(_OK)
        held = parts.deliveries.held(call.number, queue)
        parts.deliveries.got(call.number, queue, head.seq, head.message_id)
        if parts.outside.events is not None:
            if held is not None and held.seq == head.seq:
                parts.outside.events.sent_again(queue, call.number, head.seq, head.seq)
            parts.outside.events.delivered(queue, call.number, head.seq, head.seq)
        parts.counters.fetched_count += 1
        return Reply(self._delivering.message(record, head))

    def acknowledge(self, call: Call, record: QueueRecord, message_id: bytes) -> Reply:
        """Let go of the message that this session has, and answer with the next one.

        It is not waited for until that is durable: after a crash the message comes once more.
        """
        check_not_blocked(record)
        if not message_id:
            return self._repeat(call, record)
        parts, queue = self._parts, record.recipient_id
        done = parts.deliveries.acknowledge(call.number, queue, message_id)
        if done is None:
            raise FailureError(failures.NO_MSG)
        # It may be gone already: expired, fetched and acknowledged by another, or with its stream.
        with suppress(UnknownQueueError, LimitExceededError):
            parts.outside.store.truncate_before(queue, done.seq + 1)
        parts.counters.received_count += 1
        if parts.outside.events is not None:
            parts.outside.events.acknowledged(queue, call.number, done.seq)
        following = None if done.is_get else self._delivering.next_for(call.number, record)
        return Reply(_OK if following is None else following)

    def _repeat(self, call: Call, record: QueueRecord) -> Reply:
        """No message is named: what the session has is handed over again."""
        queue = record.recipient_id
        held = self._parts.deliveries.held(call.number, queue)
        if held is None:
            raise FailureError(failures.NO_MSG)
        head = self._delivering.head(record)
        message: Msg | Ok = _OK
        if head is not None and head.message_id == held.message_id:
            message = self._delivering.message(record, head)
            if self._parts.outside.events is not None:
                self._parts.outside.events.sent_again(queue, call.number, head.seq, head.seq)
                self._parts.outside.events.delivered(queue, call.number, head.seq, head.seq)
        return Reply(message)

    def _first_wanted(self, queue: StreamId) -> int:
        """The lowest sequence that nobody has acknowledged."""
        try:
            return self._parts.outside.store.state(queue).first
        except UnknownQueueError:
            # Nobody has sent anything yet.
            return 1
