"""Sessions as the router keeps them: what each owes, and what goes out to whom in which order.

- Reading from a session pauses while too many of its commands are unanswered, and goes on when half
  of that is left.
- A session that cannot take more is paused for deliveries; answers to its commands still go out,
  since it is not read from meanwhile.
- What a session is told about its subscriptions keeps its order. An answer may have to wait for the
  records; so everything of this kind that comes behind it waits in the same lane. One that takes
  longer than that holds back the events and answers of this kind behind it until it is there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from syncline.core.deliveries import Deliveries
from syncline.core.notifications import Notifications
from syncline.core.subscriptions import Deleted, Effect, Ended, ServiceEnded
from syncline.errors import StorageError
from syncline.server.committer import Committer
from syncline.server.events import Events as EventLog
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.faces import Answer, SmpSession
from syncline.server.smp.options import SmpOptions
from syncline.values.digests import SetDigest
from syncline.wire.smp.messages import Deld, End, Ends
from syncline.wire.smp.transmissions import Damaged, Transmission

NO_ID = b""


class Connection:
    """One session, with what the router knows of it beyond the transport."""

    __slots__ = (
        "backlog",
        "held_back",
        "in_lane_count",
        "is_reading_paused",
        "number",
        "opened_ms",
        "resumed",
        "session",
        "slow_answer_count",
        "unanswered_bytes",
        "unanswered_count",
    )

    def __init__(self, session: SmpSession, opened_ms: int) -> None:
        self.session = session
        self.number = session.number
        self.opened_ms = opened_ms
        self.unanswered_count = 0
        self.unanswered_bytes = 0
        # What waits in the lane of the records.
        self.in_lane_count = 0
        # What comes behind answers that take longer than that, and how many such answers there are.
        self.held_back: list[Callable[[], None]] = []
        self.slow_answer_count = 0
        self.is_reading_paused = False
        # Transmissions behind one that waits for room; reading is paused meanwhile.
        self.backlog: deque[Transmission | Damaged] = deque()
        # Set for a moment whenever the session could take more, and when it is gone.
        self.resumed = asyncio.Event()

    def stir(self) -> None:
        """Wake whoever waits for the session to take more."""
        self.resumed.set()
        self.resumed.clear()


class Connections:
    """See the module. Every method is called in the event loop."""

    def __init__(
        self,
        deliveries: Deliveries,
        notifications: Notifications,
        records_committer: Committer,
        digest: Callable[[bytes], SetDigest],
        options: SmpOptions,
        counters: SmpCounters,
        events: EventLog | None = None,
    ) -> None:
        self._deliveries = deliveries
        self._log_of_events = events
        self._notifications = notifications
        self._records_committer = records_committer
        self._digest = digest
        self._options = options
        self._counters = counters
        self._by_number: dict[int, Connection] = {}
        # To be told at the end of the step, those for one session together.
        self._untold: dict[int, list[Effect]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Connection | None:
        return self._by_number.get(number)

    def all(self) -> Iterable[Connection]:
        return list(self._by_number.values())

    def open(self, session: SmpSession, now_ms: int) -> Connection:
        connection = self._by_number[session.number] = Connection(session, now_ms)
        self._deliveries.connect(session.number)
        self._notifications.connect(session.number)
        self._counters.opened_count += 1
        if self._log_of_events is not None:
            service = None if session.service is None else session.service.service_id
            self._log_of_events.connected(session.number, service)
        return connection

    def close(self, number: int) -> None:
        connection = self._by_number.pop(number, None)
        if connection is None:
            return
        self._deliveries.disconnect(number)
        self._notifications.disconnect(number)
        self._counters.closed_count += 1
        if self._log_of_events is not None:
            self._log_of_events.disconnected(number)
        connection.backlog.clear()
        connection.stir()

    # Sending.

    def send(self, connection: Connection, answers: Sequence[Answer]) -> None:
        connection.session.send(answers)
        if not connection.session.is_writable:
            self._deliveries.pause(connection.number)
            self._notifications.pause(connection.number)

    def send_in_lane(self, connection: Connection, answers: Callable[[], Sequence[Answer]]) -> None:
        """Behind everything that waits for the records; at once if nothing does."""
        if not connection.in_lane_count:
            self._send_event(connection, answers)
            return
        connection.in_lane_count += 1

        def told(failure: StorageError | None) -> None:
            connection.in_lane_count -= 1
            # Not if the device failed. If others' changes were refused, this is true all the same.
            if failure is None or self._records_committer.failure is None:
                self._send_event(connection, answers)

        self._records_committer.when_durable(told)

    def hold_back(self, connection: Connection) -> None:
        """An answer is not ready that what is told `in_order` must not overtake.

        `go_on` is called once.
        """
        connection.slow_answer_count += 1

    def go_on(self, connection: Connection) -> None:
        """It was sent."""
        connection.slow_answer_count -= 1
        while connection.held_back and not connection.slow_answer_count:
            connection.held_back.pop(0)()

    def in_order(self, connection: Connection, tell: Callable[[], None]) -> None:
        """Tell a session of its subscriptions: at once, or behind an answer that is not ready."""
        if connection.slow_answer_count:
            connection.held_back.append(tell)
        else:
            tell()

    def _send_event(self, connection: Connection, answers: Callable[[], Sequence[Answer]]) -> None:
        self.in_order(connection, lambda: self.send(connection, answers()))

    # Telling others what became of their subscriptions.

    def add_effects(self, effects: Iterable[Effect]) -> None:
        """They are told with the next `tell_effects`."""
        for effect in effects:
            self._untold.setdefault(effect.session, []).append(effect)
            self.note_effect(effect)

    def note_effect(self, effect: Effect) -> None:
        """In the log, for whoever checks it later."""
        log = self._log_of_events
        if log is None:
            return
        match effect:
            case Ended(queue=queue) | Deleted(queue=queue):
                log.unsubscribed(queue, effect.session)
            case ServiceEnded(service=service):
                log.displaced(service, effect.session)

    def tell_effects(self) -> None:
        if not self._untold:
            return
        untold, self._untold = self._untold, {}
        for number, effects in untold.items():
            connection = self._by_number.get(number)
            if connection is not None:
                self.send_in_lane(connection, partial(self._events, effects))

    def tell(self, effects: Iterable[Effect]) -> None:
        """Tell them now, as what has just become durable.

        What came before it in the lane has been told; what is there now came behind it.
        """
        for effect in effects:
            self.note_effect(effect)
            if (connection := self._by_number.get(effect.session)) is not None:
                self._send_event(connection, partial(self._events, (effect,)))

    def _events(self, effects: Sequence[Effect]) -> list[Answer]:
        return [self._event(effect) for effect in effects]

    def _event(self, effect: Effect) -> Answer:
        match effect:
            case Ended(queue=queue):
                self._counters.ended_count += 1
                return Answer(NO_ID, queue, End())
            case Deleted(queue=queue):
                return Answer(NO_ID, queue, Deld())
            case ServiceEnded(service=service):
                self._counters.displaced_count += 1
                digest = self._digest(service)
                return Answer(NO_ID, service, Ends(digest.count, digest.xor_md5))

    # Pacing.

    def hold(self, connection: Connection, count: int, byte_count: int) -> None:
        """So many commands more are unanswered."""
        connection.unanswered_count += count
        connection.unanswered_bytes += byte_count
        if (
            connection.unanswered_count > self._options.unanswered_count_max
            or connection.unanswered_bytes > self._options.unanswered_bytes_max
        ):
            self.pause_reading(connection)

    def let_go(self, connection: Connection, count: int, byte_count: int) -> None:
        connection.unanswered_count -= count
        connection.unanswered_bytes -= byte_count
        self.resume_reading(connection)

    def pause_reading(self, connection: Connection) -> None:
        if not connection.is_reading_paused:
            connection.is_reading_paused = True
            self._counters.reading_paused_count += 1
            connection.session.pause_reading()

    def resume_reading(self, connection: Connection) -> None:
        """Unless it still owes too much, or has commands left that wait for room."""
        if (
            connection.is_reading_paused
            and not connection.backlog
            and connection.unanswered_count <= self._options.unanswered_count_max // 2
            and connection.unanswered_bytes <= self._options.unanswered_bytes_max // 2
        ):
            connection.is_reading_paused = False
            connection.session.resume_reading()
