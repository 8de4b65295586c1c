"""What an agent makes of what a router says about its service. Pure.

After each connection the router has told the id of the service, or that there is none:

    stored    told      meaning
    none      none      nothing
    none      id        the first time: keep it
    id        same      as it was
    id        other     the router has lost its memory: no queue is associated any more
    id        none      it has no services (any more): every queue for itself

A bulk subscription is answered with count and hash of what the router has. Whatever is different
from what we have is drift, and drift is repaired, not just told.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from syncline.client.smp.session_subscriptions import ServiceSub, combined
from syncline.values.reconciliation import SetState
from syncline.wire.smp import failures
from syncline.wire.smp.failures import Failure


class ServiceChange(Enum):
    NONE = "none"
    FIRST = "first"
    SAME = "same"
    CHANGED = "changed"
    LOST = "lost"


def change_of(stored: bytes | None, told: bytes | None) -> ServiceChange:
    if told is None:
        return ServiceChange.NONE if stored is None else ServiceChange.LOST
    if stored is None:
        return ServiceChange.FIRST
    return ServiceChange.SAME if stored == told else ServiceChange.CHANGED


class DriftKind(StrEnum):
    # The router has none of the queues that it should have.
    LOST = "lost"
    COUNT = "count"
    # As many, but not the same ones; or one of the hashes is wrong.
    HASH = "hash"


@dataclass(frozen=True, slots=True)
class Drift:
    """`found` is what the router has. Its hash is ours where its version tells none."""

    kind: DriftKind
    expected: ServiceSub
    found: ServiceSub

    @property
    def difference(self) -> tuple[int, bytes]:
        """The same for the same queues in excess, whatever else both sides have in common."""
        count = self.found.count - self.expected.count
        return count, combined(self.found.ids_hash, self.expected.ids_hash)


def drift_of(
    expected: ServiceSub,
    count: int,
    ids_hash: bytes | None,
    state: SetState | None = None,
    found_state: SetState | None = None,
) -> Drift | None:
    """`ids_hash` is None before version 19; the states, ours and the one found, are known between
    Syncline peers. They tell what XOR alone hides: a digest that counted something twice."""
    found = ServiceSub(expected.service_id, count, ids_hash or expected.ids_hash)
    is_same = state is None or found_state is None or state.is_same_set(found_state)
    if found == expected and is_same:
        return None
    if count == 0:
        return Drift(DriftKind.LOST, expected, found)
    kind = DriftKind.HASH if count == expected.count else DriftKind.COUNT
    return Drift(kind, expected, found)


def is_refusal_of_service(failure: Failure) -> bool:
    """The router does not know us as a service, or no longer."""
    return failure in (failures.SERVICE, failures.BROKER_NO_SERVICE)


# The router may think otherwise later, without anybody doing anything about the queue.
_TEMPORARY = frozenset({"INTERNAL", "STORE", "EXPIRED", "QUOTA"})


def is_temporary(failure: Failure) -> bool:
    return failure.code in _TEMPORARY
