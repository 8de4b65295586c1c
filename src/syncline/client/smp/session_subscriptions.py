"""What one user has subscribed to at one router, across its connections there. Pure.

Each connection has a session id of its own. An answer counts only if it came over the connection
that is the current one: after a reconnect, a late answer of the old session says nothing about the
new one.

What always holds:
- A queue is in one of `pending`, `active` and `removed` at most.
- Nothing is active without a current session.
- Queues of the service are not in `active`: the service subscription stands for all of them.
- What was active and lost its session is pending.
- What ended, failed or was deleted is not pending again unless it is wanted anew.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

NO_HASH = bytes(16)
# Why queues are no longer subscribed, for whoever looks into it: the newest so many.
REMOVED_COUNT_MAX = 1_000
# Ends that are remembered while somebody repairs.
ENDED_COUNT_MAX = 10_000


def hash_of(id_: bytes) -> bytes:
    """The share of one id in the hash of a set."""
    return hashlib.md5(id_, usedforsecurity=False).digest()


def combined(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(16)


@dataclass(frozen=True, slots=True)
class ServiceSub:
    """A bulk subscription: all queues of a service, by their count and hash."""

    service_id: bytes
    count: int = 0
    ids_hash: bytes = NO_HASH

    def with_queues(self, ids: Iterable[bytes]) -> "ServiceSub":
        count, ids_hash = self.count, self.ids_hash
        for each in ids:
            count, ids_hash = count + 1, combined(ids_hash, hash_of(each))
        return replace(self, count=count, ids_hash=ids_hash)


@dataclass(frozen=True, slots=True)
class Demoted:
    """What was active until now."""

    queues: tuple[bytes, ...] = ()
    service: ServiceSub | None = None


class SessionSubscriptions:
    """See the module."""

    def __init__(self) -> None:
        self.session_id: bytes | None = None
        # In the order in which they were wanted.
        self._pending: dict[bytes, None] = {}
        self._active: set[bytes] = set()
        self._removed: dict[bytes, str] = {}
        # Since `watch_ends`; None: more than are kept.
        self._ends: set[bytes] | None = set()
        self.pending_service: ServiceSub | None = None
        self.active_service: ServiceSub | None = None

    # ------------------------------------------------------------------------------------ looking

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def active_count(self) -> int:
        return len(self._active)

    def is_pending(self, queue: bytes) -> bool:
        return queue in self._pending

    def is_active(self, queue: bytes) -> bool:
        """Subscribed by itself. False for a queue of the service: ask `active_service` as well."""
        return queue in self._active

    def why_removed(self, queue: bytes) -> str | None:
        return self._removed.get(queue)

    def has_ended(self, queue: bytes) -> bool:
        """Since `watch_ends`. If there were too many to remember: yes."""
        return self._ends is None or queue in self._ends

    def next_pending(self, count: int) -> list[bytes]:
        """The first ones that wait; they stay pending until they are answered."""
        return [queue for queue, _ in zip(self._pending, range(count), strict=False)]

    # ------------------------------------------------------------------------------------- wanting

    def want(self, queues: Iterable[bytes]) -> None:
        """To be subscribed. One that is active stays so, and is not asked for again."""
        for queue in queues:
            if queue not in self._active:
                self._removed.pop(queue, None)
                self._pending[queue] = None

    def want_again(self, queues: Iterable[bytes]) -> None:
        """To be subscribed once more on this session, so that what is owed is delivered again."""
        for queue in queues:
            self._active.discard(queue)
            self._removed.pop(queue, None)
            self._pending[queue] = None

    def want_service(self, sub: ServiceSub) -> None:
        self.pending_service = sub

    # ------------------------------------------------------------------------------------ sessions

    def connected(self, session_id: bytes) -> Demoted:
        """A new connection is the current one. Whatever an older one had is pending."""
        if session_id == self.session_id:
            return Demoted()
        demoted = self._demote()
        self.session_id = session_id
        return demoted

    def disconnected(self, session_id: bytes) -> Demoted:
        """A connection has ended. One that is not the current one took nothing with it."""
        if session_id != self.session_id:
            return Demoted()
        demoted = self._demote()
        self.session_id = None
        return demoted

    # ------------------------------------------------------------------------------------- answers

    def subscribed(self, session_id: bytes, queues: Iterable[bytes]) -> tuple[bytes, ...]:
        """Answered, without a service. Returns those that are active now and were not."""
        if session_id != self.session_id:
            return ()
        found = tuple(queue for queue in queues if queue in self._pending)
        for queue in found:
            del self._pending[queue]
            self._active.add(queue)
        return found

    def created(self, session_id: bytes, queue: bytes) -> bool:
        """A new queue, subscribed as it was made. If its session has ended meanwhile it waits."""
        if session_id != self.session_id:
            self._pending[queue] = None
            return False
        self._active.add(queue)
        return True

    def associated(
        self,
        session_id: bytes,
        service_id: bytes,
        queues: Iterable[bytes],
        joined: Iterable[bytes],
    ) -> tuple[bytes, ...]:
        """Answered with the own service: the service subscription stands for them from now on.

        `joined` are those that did not belong to the service before, which alone make it grow.
        Returns those that waited for this answer.
        """
        if session_id != self.session_id:
            return ()
        answered = tuple(queues)
        found = tuple(queue for queue in answered if queue in self._pending)
        self._active.difference_update(answered)
        for queue in found:
            del self._pending[queue]
        sub = self.active_service
        if sub is None or sub.service_id != service_id:
            sub = ServiceSub(service_id)
        self.active_service = sub.with_queues(joined)
        return found

    def service_subscribed(self, session_id: bytes, sub: ServiceSub) -> bool:
        """The bulk subscription is answered. False: by a session that is no longer the current one;
        then it stays pending."""
        if session_id != self.session_id:
            return False
        self.pending_service = None
        self.active_service = sub
        return True

    # ---------------------------------------------------------------------------------------- ends

    def failed(self, queue: bytes, reason: str) -> None:
        """For good: asking again would not help."""
        self._remove(queue, reason)

    def watch_ends(self) -> None:
        """From here on, `has_ended` tells which have."""
        self._ends = set()

    def ended(self, queue: bytes) -> None:
        """Another connection has it. Taking it back is for the application to decide."""
        self._remove(queue, "ended")
        if self._ends is not None and len(self._ends) < ENDED_COUNT_MAX:
            self._ends.add(queue)
        elif not self.has_ended(queue):
            self._ends = None

    def forgotten(self, queue: bytes) -> None:
        self._pending.pop(queue, None)
        self._active.discard(queue)
        self._removed.pop(queue, None)

    def service_ended(self, session_id: bytes) -> ServiceSub | None:
        """The whole service is elsewhere. Returns what it was; None for a session that is not the
        current one, whose end is no news."""
        if session_id != self.session_id:
            return None
        ended = self.active_service or self.pending_service
        self.active_service = self.pending_service = None
        return ended

    def service_lost(self) -> None:
        """There is no service any more, or it has nothing: its queues stand for themselves."""
        self.active_service = self.pending_service = None

    # ------------------------------------------------------------------------------------- helpers

    def _demote(self) -> Demoted:
        demoted = Demoted(tuple(sorted(self._active)), self.active_service)
        self._pending.update(dict.fromkeys(demoted.queues))
        self._active.clear()
        if self.active_service is not None and self.pending_service is None:
            self.pending_service = self.active_service
        self.active_service = None
        return demoted

    def _remove(self, queue: bytes, reason: str) -> None:
        self._pending.pop(queue, None)
        self._active.discard(queue)
        self._removed.pop(queue, None)
        self._removed[queue] = reason
        if len(self._removed) > REMOVED_COUNT_MAX:
            del self._removed[next(iter(self._removed))]
