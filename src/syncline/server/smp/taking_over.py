"""A session takes a queue, or a notifier, for itself or for its service; who had it is told.

What it belongs to is on record. So whoever had it keeps it until the change is durable, and for
good if the records refuse it; meanwhile nobody is handed anything of it (`Book.is_moving`).

Which session speaks for a service is on no record, and changes at once.
"""

from collections.abc import Callable

from syncline.core.deliveries import Deliveries
from syncline.core.notifications import Notifications
from syncline.core.subscriptions import Effect
from syncline.errors import StorageError
from syncline.server.smp.connections import NO_ID
from syncline.server.smp.parts import Parts

Reading = Deliveries | Notifications


def take_over(
    parts: Parts,
    reading: Reading,
    number: int,
    entity_id: bytes,
    service: bytes | None,
    former: bytes | None,
    kept: Callable[[], object] = lambda: None,
) -> None:
    """Behind the change of the record, if there is one. `kept`: it is whose it was, look again."""
    if not parts.book.is_moving(entity_id):
        parts.connections.add_effects(reading.subscribe(number, entity_id, service, former=former))
        return
    if service is not None:
        parts.connections.add_effects(reading.subscribe(number, NO_ID, service))

    def settled(refusal: StorageError | None) -> None:
        if refusal is None:
            parts.connections.tell(_take(reading, number, entity_id, service, former))
        else:
            kept()

    parts.book.when_settled(entity_id, settled)


def _take(
    reading: Reading, number: int, entity_id: bytes, service: bytes | None, former: bytes | None
) -> list[Effect]:
    if former == service and reading.is_subscribed(number, entity_id, service):
        # It asked twice before anything was handed over: once is enough.
        return []
    if service is None or reading.is_subscribed(number, NO_ID, service):
        return reading.subscribe(number, entity_id, service, former=former)
    # Another session speaks for the service by now, or none does. It is the service's all the same.
    effects = reading.associated(entity_id, service)
    if former is not None and former != service:
        effects += reading.dissociated(entity_id, former, by=number)
    return effects
