"""Who is notified of new messages, and what waits until somebody can be.

Subscriptions of notifiers move as those of queues do (`syncline.core.subscriptions`). There is no
acknowledgement: a notification that was handed over is forgotten. One for which there is no
subscriber, or whose subscriber cannot take more, waits in memory: some per notifier, some of all
notifiers together, none longer than a day. A new notification then takes the place of an old one,
since the oldest says least.

Invariants:
- The notifications of a notifier are given out in order, each to one session.
- What waits for a notifier that has a subscriber is due there.
- With the credentials of a notifier goes what waits for it.
"""

from collections import deque
from dataclasses import dataclass

from syncline.core.subscriptions import Effect, Reader, Subscriptions
from syncline.values import limits


@dataclass(frozen=True, slots=True)
class Notification:
    """As it goes out: which message, and when, for the recipient's eyes only."""

    nonce: bytes
    metadata: bytes


@dataclass(frozen=True, slots=True)
class NotifiersSubscribed:
    """`is_new`: the session did not speak for this service before."""

    is_new: bool
    effects: tuple[Effect, ...]


class Waiting:
    """What waits for one notifier, the oldest first."""

    __slots__ = ("items", "service")

    def __init__(self) -> None:
        self.items: deque[tuple[int, Notification]] = deque()
        self.service: bytes | None = None


class Notifications(Subscriptions[Reader]):
    """See the module. The `queue` of an effect is the notifier."""

    def __init__(self) -> None:
        super().__init__(Reader)
        # In order: who has waited longest first.
        self._waiting: dict[bytes, Waiting] = {}
        # Of each service the notifiers for which something waits.
        self._waiting_of: dict[bytes, dict[bytes, None]] = {}
        self.waiting_count = 0
        # Those that had to go before anybody came for them.
        self.dropped_count = 0

    # Subscribing. What waits is due at once, and taken by `take_due`.

    def subscribe(
        self, session: int, queue: bytes, service: bytes | None, *, former: bytes | None = None
    ) -> list[Effect]:
        effects = super().subscribe(session, queue, service, former=former)
        if (waiting := self._waiting.get(queue)) is not None:
            self._associate(queue, waiting, service)
            self._make_due(queue, service)
        return effects

    def subscribe_service(self, session: int, service: bytes) -> NotifiersSubscribed:
        """Speak for the service from now on."""
        was_subscribed = service in self._owners and self._owners[service].session == session
        reader, effects = self._reader_for(session, service)
        return NotifiersSubscribed(reader is not None and not was_subscribed, tuple(effects))

    def deleted(
        self, queue: bytes, service: bytes | None, *, by: int | None = None
    ) -> list[Effect]:
        self._drop(queue)
        return super().deleted(queue, service, by=by)

    def associated(self, queue: bytes, service: bytes) -> list[Effect]:
        effects = super().associated(queue, service)
        if (waiting := self._waiting.get(queue)) is not None:
            self._associate(queue, waiting, service)
            self._make_due(queue, service)
        return effects

    def dissociated(self, queue: bytes, service: bytes, *, by: int | None = None) -> list[Effect]:
        if (waiting := self._waiting.get(queue)) is not None:
            self._associate(queue, waiting, None)
        return super().dissociated(queue, service, by=by)

    def forget(self, queue: bytes, service: bytes | None) -> None:
        super().forget(queue, service)
        if (waiting := self._waiting.get(queue)) is not None:
            self._associate(queue, waiting, None)

    def service_deleted(self, service: bytes) -> list[Effect]:
        for notifier in list(self._waiting_of.get(service, ())):
            self._associate(notifier, self._waiting[notifier], None)
        return super().service_deleted(service)

    # Notifications.

    def notify(
        self, notifier: bytes, service: bytes | None, notification: Notification, now_ms: int
    ) -> int | None:
        """Keep it until it is taken. The session that can take it now, or None."""
        self._keep(notifier, service, notification, now_ms)
        reader = self._make_due(notifier, service)
        return None if reader is None or self.is_paused(reader.session) else reader.session

    def resume(self, session: int) -> None:
        """It can take more: ask `take_due`."""
        if (state := self._sessions.get(session)) is not None:
            state.is_paused = False

    def take_due(self, session: int, count_max: int) -> list[tuple[bytes, Notification]]:
        """What has to be handed to this session now. Ask until nothing comes."""
        state = self._sessions.get(session)
        taken: list[tuple[bytes, Notification]] = []
        if state is None or state.is_paused:
            return taken
        for reader in state.readers():
            while reader.due and len(taken) < count_max:
                notifier = next(iter(reader.due))
                taken.append((notifier, self._pop_oldest(notifier)))
        return taken

    def expire(self, now_ms: int) -> int:
        """Drop what has waited for a day; how many those were."""
        before = self.dropped_count
        for notifier, waiting in list(self._waiting.items()):
            while waiting.items and now_ms - waiting.items[0][0] > limits.notification_ms_max:
                self._drop_oldest(notifier)
        return self.dropped_count - before

    # Steps.

    def _reader_for(
        self, session: int, service: bytes | None
    ) -> tuple[Reader | None, list[Effect]]:
        owner = None if service is None else self._owners.get(service)
        reader, effects = super()._reader_for(session, service)
        if service is not None and reader is not None and reader is not owner:
            # Whatever made it speak for the service: what waits for any of its notifiers is due.
            reader.due.update(self._waiting_of.get(service, {}))
        return reader, effects

    def _keep(
        self, notifier: bytes, service: bytes | None, notification: Notification, now_ms: int
    ) -> None:
        waiting = self._waiting.get(notifier)
        if waiting is not None and len(waiting.items) >= limits.notifications_per_notifier_max:
            self._drop_oldest(notifier)
        elif self.waiting_count >= limits.notification_count_max:
            self._drop_oldest(next(iter(self._waiting)))
        # It may just have lost its last one, and its place.
        waiting = self._waiting.setdefault(notifier, Waiting())
        waiting.items.append((now_ms, notification))
        self.waiting_count += 1
        self._associate(notifier, waiting, service)

    def _make_due(self, notifier: bytes, service: bytes | None) -> Reader | None:
        reader = self.reader_of(notifier, service)
        if reader is not None:
            reader.due[notifier] = None
        return reader

    def _associate(self, notifier: bytes, waiting: Waiting, service: bytes | None) -> None:
        if service == waiting.service:
            return
        self._dissociate(notifier, waiting)
        waiting.service = service
        if service is not None:
            self._waiting_of.setdefault(service, {})[notifier] = None

    def _dissociate(self, notifier: bytes, waiting: Waiting) -> None:
        """Nobody is to take it, and its service does not name it any longer."""
        if (reader := self.reader_of(notifier, waiting.service)) is not None:
            reader.due.pop(notifier, None)
        if waiting.service is not None:
            of_service = self._waiting_of[waiting.service]
            del of_service[notifier]
            if not of_service:
                del self._waiting_of[waiting.service]

    def _pop_oldest(self, notifier: bytes) -> Notification:
        waiting = self._waiting[notifier]
        _, notification = waiting.items.popleft()
        self.waiting_count -= 1
        if not waiting.items:
            self._dissociate(notifier, waiting)
            del self._waiting[notifier]
        return notification

    def _drop_oldest(self, notifier: bytes) -> None:
        self._pop_oldest(notifier)
        self.dropped_count += 1

    def _drop(self, notifier: bytes) -> None:
        while notifier in self._waiting:
            self._pop_oldest(notifier)
