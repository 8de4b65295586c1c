"""Who reads which queue: one session each, or the session that speaks for the queue's service.

A *reader* is where the messages of a queue go. There are two kinds. A session reads the queues that
it subscribed to one by one; and the session that last subscribed for a service reads all queues
associated with it. Which service a queue belongs to is on record and comes in with each call, so an
associated queue costs nothing here, and a million of them cost nothing either. Messages and
notifications both work like this: for notifications, read *notifier* where this says *queue*.

Invariants:
- A queue has one reader: the owner of its service if it has one, else its own subscriber.
- Who loses a queue, or a service, is told so, unless it did that itself or is gone.
- With a queue or a service goes everything that its reader had of it, in the same step.
- What a session leaves behind when it goes is nothing, and nothing of others goes with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar


@dataclass(frozen=True, slots=True)
class Ended:
    """Told to a session: that queue is read elsewhere."""

    session: int
    queue: bytes


@dataclass(frozen=True, slots=True)
class ServiceEnded:
    """Told to a session: another one speaks for the service, or the service is gone."""

    session: int
    service: bytes


@dataclass(frozen=True, slots=True)
class Deleted:
    """Told to a session: that queue does not exist any more."""

    session: int
    queue: bytes


Effect: TypeAlias = Ended | ServiceEnded | Deleted


class Reader:
    """One session, as the reader of its own queues or of those of a service."""

    __slots__ = ("due", "queues", "service", "session")

    def __init__(self, session: int, service: bytes | None) -> None:
        self.session = session
        self.service = service
        # Subscribed to one by one. Those of a service are on record, not here.
        self.queues: set[bytes] = set()
        # In order: what has something for the session that it could not take when it came.
        self.due: dict[bytes, None] = {}

    def release(self, queue: bytes) -> None:
        """Nothing of that queue is kept for it any longer."""
        self.queues.discard(queue)
        self.due.pop(queue, None)

    def renew(self, queue: bytes) -> None:
        """It subscribes to a queue that it may read already: what it was sent may come again."""


R = TypeVar("R", bound=Reader)


@dataclass(slots=True)
class Session(Generic[R]):
    own: R | None = None
    service: R | None = None
    is_paused: bool = False

    def readers(self) -> Iterator[R]:
        if self.service is not None:
            yield self.service
        if self.own is not None:
            yield self.own


class Subscriptions(Generic[R]):
    """See the module. `session` is a number that the shell gives, and never gives again."""

    def __init__(self, reader: type[R]) -> None:
        self._reader = reader
        self._sessions: dict[int, Session[R]] = {}
        self._subscribers: dict[bytes, R] = {}
        self._owners: dict[bytes, R] = {}

    # Coming and going.

    def connect(self, session: int) -> None:
        assert session not in self._sessions, "a number is given once"
        self._sessions[session] = Session()

    def disconnect(self, session: int) -> None:
        gone = self._sessions.pop(session, None)
        if gone is None:
            return
        for reader in gone.readers():
            if reader.service is not None:
                del self._owners[reader.service]
            for queue in reader.queues:
                del self._subscribers[queue]

    def pause(self, session: int) -> None:
        """It cannot take more for now; what comes for it is due."""
        if (state := self._sessions.get(session)) is not None:
            state.is_paused = True

    # Subscribing.

    def subscribe(
        self, session: int, queue: bytes, service: bytes | None, *, former: bytes | None = None
    ) -> list[Effect]:
        """Register, before anybody looks at what waits in the queue.

        `service`: what the queue is associated with from now on, which is the service of the
        session; `former`: what it was associated with until now. A session that is gone is not
        registered, but what became of the association is told all the same.
        """
        reader, effects = self._reader_for(session, service)
        if former is not None and former != service:
            effects += self._taken_from(self._owners.get(former), queue, session)
        if reader is not None or service is not None:
            effects += self._taken_from(self._subscribers.pop(queue, None), queue, session)
        if reader is not None:
            reader.renew(queue)
            if service is None:
                reader.queues.add(queue)
                self._subscribers[queue] = reader
        return effects

    def deleted(
        self, queue: bytes, service: bytes | None, *, by: int | None = None
    ) -> list[Effect]:
        """The queue is gone, or blocked. `by`: the session that did it, which need not be told."""
        reader = self.reader_of(queue, service)
        self.forget(queue, service)
        if reader is None or reader.session == by:
            return []
        return [Deleted(reader.session, queue)]

    def associated(self, queue: bytes, service: bytes) -> list[Effect]:
        """The queue was nobody's and is the service's from now on, and no session asked for that.

        Who had subscribed to it has lost it. Whoever speaks for the service reads it: look.
        """
        return self._taken_from(self._subscribers.pop(queue, None), queue, None)

    def dissociated(self, queue: bytes, service: bytes, *, by: int | None = None) -> list[Effect]:
        """The queue is nobody's from now on. `by`: the session that did it on the service's behalf.

        Another session that speaks for the service has lost it.
        """
        return self._taken_from(self._owners.get(service), queue, by)

    def forget(self, queue: bytes, service: bytes | None) -> None:
        """Nobody reads it any longer, and nobody has to be told."""
        for reader in (self.reader_of(queue, service), self._subscribers.pop(queue, None)):
            if reader is not None:
                reader.release(queue)

    def unsubscribe(self, session: int, queue: bytes) -> None:
        """It is not the session's own after all. Nothing happens if it is another's by now."""
        reader = self._subscribers.get(queue)
        if reader is not None and reader.session == session:
            del self._subscribers[queue]
            reader.release(queue)

    def service_deleted(self, service: bytes) -> list[Effect]:
        """With the service all its associations are gone."""
        return self._displaced(service)

    # Looking.

    def reader_of(self, queue: bytes, service: bytes | None) -> R | None:
        return self._subscribers.get(queue) if service is None else self._owners.get(service)

    def is_subscribed(self, session: int, queue: bytes, service: bytes | None) -> bool:
        reader = self.reader_of(queue, service)
        return reader is not None and reader.session == session

    def has_subscriptions(self, session: int) -> bool:
        state = self._sessions.get(session)
        return state is not None and any(
            reader.queues or reader.service is not None for reader in state.readers()
        )

    def is_paused(self, session: int) -> bool:
        state = self._sessions.get(session)
        return state is not None and state.is_paused

    @property
    def queue_count(self) -> int:
        """Queues that are subscribed to one by one."""
        return len(self._subscribers)

    @property
    def service_count(self) -> int:
        """Services that a session speaks for."""
        return len(self._owners)

    # Steps.

    def _reader_for(self, session: int, service: bytes | None) -> tuple[R | None, list[Effect]]:
        """Where a session reads from now on, and who is displaced by that."""
        state = self._sessions.get(session)
        if state is None:
            return None, []
        if service is None:
            state.own = state.own or self._reader(session, None)
            return state.own, []
        if state.service is not None:
            assert state.service.service == service, "a session speaks for one service"
            return state.service, []
        effects = self._displaced(service)
        reader = state.service = self._owners[service] = self._reader(session, service)
        return reader, effects

    def _displaced(self, service: bytes) -> list[Effect]:
        """Nobody speaks for the service now. What was with its owner goes with the reader."""
        owner = self._owners.pop(service, None)
        if owner is None:
            return []
        self._sessions[owner.session].service = None
        return [ServiceEnded(owner.session, service)]

    def _taken_from(self, reader: R | None, queue: bytes, by: int | None) -> list[Effect]:
        if reader is None:
            return []
        reader.release(queue)
        return [] if reader.session == by else [Ended(reader.session, queue)]
