"""BUS: queues, or notifiers, that a service does not want any more become nobody's.

- An id is looked at as it is by then: one that is not on record, or belongs to another, is left
  alone, and nobody is told which those were.
- A message that was handed over and not acknowledged stays in its queue, for whoever subscribes to
  it next. The session that let go of the queue hears nothing more of it; another one that speaks
  for the service is told that it has lost it.
- The answer is the set as it is durable then. Without room on the disk that is the set as it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from syncline.core.subscriptions import Effect
from syncline.errors import StorageError
from syncline.server.smp.calls import Call
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.faces import SessionService
from syncline.server.smp.openings import soks_of
from syncline.server.smp.parts import Parts
from syncline.server.smp.replies import RECORDS, Late, Reply
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.commands import Bus
from syncline.wire.smp.messages import Soks


class Dissociating:
    """See the module."""

    def __init__(self, parts: Parts, delivering: Delivering) -> None:
        self._parts = parts
        self._delivering = delivering

    def dissociate(self, call: Call, service: SessionService, command: Bus) -> Reply:
        """Raises StorageError; done again it goes on where it stopped."""
        let_go = (
            self._let_go_of_notifier
            if service.role is ServiceRole.NOTIFIER
            else self._let_go_of_queue
        )
        for each in command.ids:
            let_go(call, service.service_id, each)

        def make() -> Soks:
            return soks_of(self._parts.outside.records.digest(service.service_id))

        look = partial(self._look_again, service, command.ids)
        return Reply(Late(make), RECORDS, look, then_always=True)

    def _look_again(self, service: SessionService, ids: Sequence[bytes]) -> None:
        """At what is the service's all the same, since the disk had no room."""
        if service.role is ServiceRole.NOTIFIER:
            return
        for each in ids:
            record = self._parts.outside.records.queue(each)
            if record is not None and record.service_id == service.service_id:
                self._delivering.look(each)

    def _let_go_of_queue(self, call: Call, service_id: bytes, recipient_id: bytes) -> None:
        parts = self._parts
        record = parts.outside.records.queue(recipient_id)
        if record is None or record.service_id != service_id:
            return
        parts.book.change(record, replace(record, service_id=None))
        self._count()
        self._when_durable(
            recipient_id,
            partial(parts.deliveries.dissociated, recipient_id, service_id, by=call.number),
        )

    def _let_go_of_notifier(self, call: Call, service_id: bytes, notifier_id: bytes) -> None:
        parts = self._parts
        record = parts.outside.records.by_notifier(notifier_id)
        notifier = None if record is None else record.notifier
        if record is None or notifier is None or notifier.service_id != service_id:
            return
        parts.book.change(record, replace(record, notifier=replace(notifier, service_id=None)))
        self._count()
        self._when_durable(
            notifier_id,
            partial(parts.notifications.dissociated, notifier_id, service_id, by=call.number),
        )

    def _when_durable(self, entity_id: bytes, take: Callable[[], list[Effect]]) -> None:
        """Take it from whoever has it, and tell. Refused, it is the service's as before."""

        def settled(refusal: StorageError | None) -> None:
            if refusal is None:
                self._parts.connections.tell(take())

        self._parts.book.when_settled(entity_id, settled)

    def _count(self) -> None:
        self._parts.counters.associations_removed_count += 1
        self._parts.counters.dissociated_count += 1
