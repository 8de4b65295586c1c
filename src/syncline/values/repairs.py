"""Repairs of associations: an id becomes a service's, or stops being one of its ids.

An id is that of a queue for a messaging service, and that of a notifier for a notifier service.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord, ServiceRole


class Action(StrEnum):
    ASSOCIATE = "associate"
    DISSOCIATE = "dissociate"


@dataclass(frozen=True, slots=True)
class Repair:
    """Make an id part of the set of a service, or take it out of it."""

    action: Action
    service: StreamId
    role: ServiceRole
    id: StreamId


class State(StrEnum):
    """What became of a repair, or would: it is done, it was so already, or it cannot be done."""

    DONE = "done"
    ALREADY = "already"
    REFUSED = "refused"


class Reason(StrEnum):
    """Why a repair is refused."""

    UNKNOWN_SERVICE = "unknown_service"
    UNKNOWN_ID = "unknown_id"
    OTHER_ROLE = "other_role"
    OTHER_SERVICE = "other_service"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason stands beside a refusal, and there alone."""

    state: State
    reason: Reason | None = None


def service_of(record: QueueRecord, role: ServiceRole) -> bytes | None:
    """What the queue, or its notifier, belongs to."""
    return record.notifier_service_id if role is ServiceRole.NOTIFIER else record.service_id


def with_service(record: QueueRecord, role: ServiceRole, service_id: bytes | None) -> QueueRecord:
    """The same with another service, or with none."""
    if role is not ServiceRole.NOTIFIER:
        return replace(record, service_id=service_id)
    assert record.notifier is not None, "it was found by its notifier"
    return replace(record, notifier=replace(record.notifier, service_id=service_id))
