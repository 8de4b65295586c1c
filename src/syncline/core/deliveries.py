"""Which message is with whom: one of each queue at a time, until it is acknowledged.

Pure bookkeeping: messages are known by their sequence and id, bodies stay with the shell. Whatever
happens to a queue (somebody subscribes, a message has become durable, one is acknowledged, a fold
comes by, a slow session can take more) ends in the same way: the shell looks at the first durable
message and *offers* it. There is one slot a queue, so whoever offers first fills it, and every
later offer finds it full. And a reader is registered before anybody looks, so that no message slips
by between the two.

    SUB       subscribe, look, offer
    SEND      durable: if wants: look, offer
    ACK       acknowledge, truncate, look, offer: the answer is that message, or OK
    SUBS      subscribe_service; then, page by page of the service's queues: look, offer
    drained   resume: look at each queue that is due, offer; begin the fold if there is one

A *fold* goes through the queues of a service in the order of their ids. It is current until another
session speaks for the service, its own session goes, or the service does; then it has to stop.

A session that cannot take more is paused. What is offered to it meanwhile is *due*: its queue is
remembered. Plain subscribers have no more queues due than they subscribed to; of a service
`service_due_count_max` are remembered, and beyond that it *lapses*: all its queues have to be gone
through again.

Invariants, explored exhaustively by tests/model/test_deliveries_core.py:
- What is outstanding is with the queue's reader. Nobody else can acknowledge it.
- A waiting message of a queue that is read is outstanding, due, or ahead of a fold.
- Nothing is offered twice to a session unless it subscribes once more or lost the queue in between.
- A fold is over once everything that waited when it began was offered.
"""

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from syncline.core.subscriptions import Effect, Reader, Subscriptions
from syncline.values import limits


class Outstanding(NamedTuple):
    """A message that was handed over and not acknowledged."""

    seq: int
    message_id: bytes


@dataclass(frozen=True, slots=True)
class Fold:
    """A walk through the queues of a service, for one session. Its number is never used again."""

    number: int
    session: int
    service: bytes
    # At its end the session is told that it has everything. Not if it only catches up.
    says_alls: bool


@dataclass(frozen=True, slots=True)
class Subscribed:
    """`fold`: it has to be begun now. None: the session was subscribed already."""

    fold: Fold | None
    effects: tuple[Effect, ...]

    @property
    def is_new(self) -> bool:
        return self.fold is not None


class Acknowledged(NamedTuple):
    """`seq`: it and everything below may go. `is_get`: do not answer with the next message."""

    seq: int
    is_get: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """Queues to look at, and a fold to begin if more were missed than could be remembered."""

    due: tuple[bytes, ...]
    fold: Fold | None


@dataclass(frozen=True, slots=True)
class SessionView:
    """For people: what a session reads, and what is with it."""

    queue_count: int
    service: bytes | None
    outstanding_count: int
    due_count: int
    is_paused: bool
    is_folding: bool


class MessageReader(Reader):
    __slots__ = ("fold", "has_folded", "held", "is_lapsed")

    def __init__(self, session: int, service: bytes | None) -> None:
        super().__init__(session, service)
        self.held: dict[bytes, Outstanding] = {}
        self.fold: Fold | None = None
        # It asked for all queues of its service: asking again changes nothing.
        self.has_folded = False
        # More was due than is remembered.
        self.is_lapsed = False

    def release(self, queue: bytes) -> None:
        super().release(queue)
        self.held.pop(queue, None)

    def renew(self, queue: bytes) -> None:
        self.held.pop(queue, None)

    def postpone(self, queue: bytes) -> None:
        if self.is_lapsed or queue in self.due:
            return
        if self.service is not None and len(self.due) >= limits.service_due_count_max:
            self.is_lapsed = True
            self.due.clear()
        else:
            self.due[queue] = None


class Deliveries(Subscriptions[MessageReader]):
    """See the module. The shell asks, carries out, and reports back."""

    def __init__(self) -> None:
        super().__init__(MessageReader)
        # What each session fetched with GET. The mark stays when the message is acknowledged.
        self._fetched: dict[int, dict[bytes, Outstanding | None]] = {}
        self._fold_count = 0

    def disconnect(self, session: int) -> None:
        super().disconnect(session)
        self._fetched.pop(session, None)

    # Bulk subscription.

    def subscribe_service(self, session: int, service: bytes) -> Subscribed:
        """Speak for the service from now on; with a fold the first time, and after losing it."""
        reader, effects = self._reader_for(session, service)
        if reader is None or reader.has_folded:
            return Subscribed(None, tuple(effects))
        reader.has_folded = True
        return Subscribed(self._begin_fold(reader, says_alls=True), tuple(effects))

    def fold_is_current(self, fold: Fold) -> bool:
        """Whether to go on with it. To be asked before each page and each look."""
        owner = self._owners.get(fold.service)
        return owner is not None and owner.fold is fold

    def fold_ended(self, fold: Fold) -> bool:
        """Every page was gone through. Whether that is the end of it.

        False: it is not current, or something that it met is due. Then ask again, if it is still
        current, when the session has resumed.
        """
        if not self.fold_is_current(fold):
            return False
        owner = self._owners[fold.service]
        if owner.due or owner.is_lapsed:
            return False
        owner.fold = None
        return True

    # Messages.

    def wants(self, queue: bytes, service: bytes | None) -> bool:
        """Whether it is worth looking: the queue's first message would be given out, or be due."""
        reader = self.reader_of(queue, service)
        if reader is None or queue in reader.held:
            return False
        if not self._sessions[reader.session].is_paused:
            return True
        return not reader.is_lapsed and queue not in reader.due

    def offer(self, queue: bytes, service: bytes | None, seq: int, message_id: bytes) -> int | None:
        """The first durable message of a queue: the session that it is handed to.

        None: nobody reads the queue, its reader has not acknowledged the last one, or cannot take
        more for now; then it is due.
        """
        reader = self.reader_of(queue, service)
        if reader is None or queue in reader.held:
            return None
        if self._sessions[reader.session].is_paused:
            reader.postpone(queue)
            return None
        reader.due.pop(queue, None)
        reader.held[queue] = Outstanding(seq, message_id)
        return reader.session

    def acknowledge(self, session: int, queue: bytes, message_id: bytes) -> Acknowledged | None:
        """None: that message is not with this session.

        Whether the message still exists does not matter: it may have expired, or somebody else may
        have fetched it. The slot is free, and what comes next can be offered.
        """
        state = self._sessions.get(session)
        if state is None:
            return None
        for reader in state.readers():
            held = reader.held.get(queue)
            if held is not None and held.message_id == message_id:
                del reader.held[queue]
                return Acknowledged(held.seq, is_get=False)
        fetched = self._fetched.get(session, {}).get(queue)
        if fetched is None or fetched.message_id != message_id:
            return None
        self._fetched[session][queue] = None
        return Acknowledged(fetched.seq, is_get=True)

    def held(self, session: int, queue: bytes) -> Outstanding | None:
        """The message of that queue that is with the session, as its subscriber or by GET."""
        state = self._sessions.get(session)
        for reader in state.readers() if state is not None else ():
            if queue in reader.held:
                return reader.held[queue]
        return self._fetched.get(session, {}).get(queue)

    # Fetching without a subscription.

    def is_get_only(self, session: int, queue: bytes) -> bool:
        """The session has used GET here: it may not subscribe to this queue."""
        return queue in self._fetched.get(session, {})

    def get(self, session: int, queue: bytes, service: bytes | None) -> bool:
        """Mark the queue as fetched from. False: prohibited, the session is subscribed to it.

        Subscriptions of others are not disturbed.
        """
        if self.is_subscribed(session, queue, service) or session not in self._sessions:
            return False
        marks = self._fetched.setdefault(session, {})
        marks.setdefault(queue, None)
        if len(marks) > limits.fetched_queue_count_max:
            # The oldest mark goes: an acknowledgement of that message comes to nothing.
            del marks[next(iter(marks))]
        return True

    def got(self, session: int, queue: bytes, seq: int, message_id: bytes) -> None:
        """What GET answered. The same message comes again until it is acknowledged."""
        self._fetched[session][queue] = Outstanding(seq, message_id)

    # Slow sessions.

    def resume(self, session: int) -> Resumed:
        """It can take more. At most `due_page_count` queues at a time: ask until nothing is due."""
        state = self._sessions.get(session)
        if state is None:
            return Resumed((), None)
        state.is_paused = False
        due: list[bytes] = []
        for reader in state.readers():
            page = list(islice(reader.due, limits.due_page_count - len(due)))
            for queue in page:
                del reader.due[queue]
            due += page
        return Resumed(tuple(due), self._recovery(state.service))

    def view(self, session: int) -> SessionView | None:
        state = self._sessions.get(session)
        if state is None:
            return None
        readers = list(state.readers())
        return SessionView(
            queue_count=sum(len(reader.queues) for reader in readers),
            service=state.service.service if state.service else None,
            outstanding_count=sum(len(reader.held) for reader in readers),
            due_count=sum(len(reader.due) for reader in readers),
            is_paused=state.is_paused,
            is_folding=state.service is not None and state.service.fold is not None,
        )

    # Steps.

    def _begin_fold(self, reader: MessageReader, *, says_alls: bool) -> Fold:
        assert reader.service is not None
        self._fold_count += 1
        reader.fold = Fold(self._fold_count, reader.session, reader.service, says_alls)
        return reader.fold

    def _recovery(self, reader: MessageReader | None) -> Fold | None:
        """A new fold for a reader that lapsed. One that was on its way stops and hands on ALLS."""
        if reader is None or not reader.is_lapsed:
            return None
        reader.is_lapsed = False
        return self._begin_fold(reader, says_alls=reader.fold is not None and reader.fold.says_alls)
