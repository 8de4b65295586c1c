"""One document: its sequence, its subscribers, and what each of them still has to get.

There are no queues of pending updates. A subscription has a place in the stream, `sent`; what is
pending for it is what lies between that and `head`. So unsubscribing clears what is pending in the
same step, a slow reader costs nothing but its place, and sending again is moving `sent` back.

    acked <= sent <= head <= staged

- `staged`: the newest update that has a sequence; maybe not durable yet
- `head`: the newest durable one; nobody is sent anything above it
- `sent`: handed to the connection; `acked`: known to have arrived

Invariants, explored exhaustively by tests/model/test_document_core.py:
- Nothing is pending for a connection that is not subscribed.
- An author never gets its own update back: at its place it is told that it is stored.
- Every other subscriber gets every update above the point at which it joined, in order.
- Nothing above the place of a tracked connection, or above what the snapshot covers, is let go of.
- A mutation is stored once, however often it is sent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from syncline.core.tracker import LagRules, Offset, Timeline, is_too_far_behind, lag_ms
from syncline.errors import UnexpectedMessageError

# Sent and not acknowledged: what may have to be sent again.
WINDOW_UPDATE_COUNT = 1_024
# Clients whose clocks a document remembers; those that wrote last stay.
AUTHOR_COUNT_MAX = 1_024
# No sooner than this after the last sign of progress is anything sent again.
RESEND_MS = 5_000


@dataclass(slots=True)
class Subscription(Offset):
    """One connection's interest in one document."""

    connection: int
    author: str
    epoch: int
    sent: int
    # Without: the protocol has no acknowledgements, and handing over has to do.
    acknowledges: bool
    progress_ms: int
    # It has what its place says: it came with that, or has acknowledged since. Until then a state
    # is on its way to it that may never arrive.
    is_confirmed: bool
    parked_ms: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """`resumed`: the subscriber goes on from what it has; otherwise it needs the state at `seq`."""

    subscription: Subscription
    seq: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Repeated:
    """Known already. `seq` and `clock` are those of the newest mutation of its author."""

    clock: int
    seq: int


class Clocks:
    """The newest mutation of each author, so that one sent again is not stored again."""

    __slots__ = ("_newest",)

    def __init__(self, known: Iterable[tuple[str, int, int]] = ()) -> None:
        self._newest: dict[str, tuple[int, int]] = {}
        for author, clock, seq in known:
            self.note(author, clock, seq)

    def newest(self, author: str) -> tuple[int, int]:
        """Clock and sequence, both 0 if nothing is known of this author."""
        return self._newest.get(author, (0, 0))

    def note(self, author: str, clock: int, seq: int) -> None:
        self._newest.pop(author, None)
        self._newest[author] = (clock, seq)
        if len(self._newest) > AUTHOR_COUNT_MAX:
            del self._newest[next(iter(self._newest))]

    def up_to(self, seq: int) -> list[tuple[str, int, int]]:
        """Those whose newest mutation is covered, the latest writer last."""
        return [(author, *newest) for author, newest in self._newest.items() if newest[1] <= seq]


class Document:
    """See the module. The shell asks, carries out, and reports back."""

    __slots__ = (
        "_rules",
        "_timeline",
        "_window",
        "clocks",
        "first",
        "head",
        "parked",
        "snapshot_seq",
        "staged",
        "subscriptions",
    )

    def __init__(
        self,
        *,
        first: int = 1,
        head: int = 0,
        snapshot_seq: int = 0,
        clocks: Clocks | None = None,
        rules: LagRules | None = None,
        window: int = WINDOW_UPDATE_COUNT,
    ) -> None:
        # The lowest sequence that the stream still has.
        self.first = first
        self.head = head
        self.staged = head
        # Everything up to here is in a durable snapshot.
        self.snapshot_seq = snapshot_seq
        self.clocks = clocks or Clocks()
        self.subscriptions: dict[int, Subscription] = {}
        # Places kept for clients that are away, by author.
        self.parked: dict[str, Subscription] = {}
        self._rules = rules or LagRules()
        self._window = window
        self._timeline = Timeline()

    # Coming and going.

    def subscribe(
        self,
        connection: int,
        author: str,
        epoch: int,
        now_ms: int,
        *,
        have: int | None = None,
        acknowledges: bool = True,
    ) -> Joined:
        """Register, pinned at the place from which it is going to be sent.

        `have`: the subscriber has everything up to there. If what follows is gone, or if it claims
        what is not stored, it needs the state.
        """
        assert connection not in self.subscriptions, "a connection has one subscription a document"
        parked = self.parked.pop(author, None)
        if have is None and parked is not None and parked.is_confirmed:
            have = parked.acked
        resumed = have is not None and self.first - 1 <= have <= self.head
        place = have if resumed and have is not None else self.head
        subscription = Subscription(
            place,
            now_ms,
            connection,
            author,
            epoch,
            place,
            acknowledges,
            now_ms,
            is_confirmed=resumed,
        )
        self.subscriptions[connection] = subscription
        return Joined(subscription, place, resumed)

    def unsubscribe(self, connection: int) -> Subscription | None:
        """Forget it, and with it everything that was pending."""
        return self.subscriptions.pop(connection, None)

    def park(self, connection: int, now_ms: int) -> None:
        """The connection dropped; its client wants its place kept until it is back."""
        if (subscription := self.subscriptions.pop(connection, None)) is not None:
            subscription.sent = subscription.acked
            subscription.parked_ms = now_ms
            self.parked[subscription.author] = subscription

    def unpark(self, author: str) -> None:
        self.parked.pop(author, None)

    def unpark_before(self, time_ms: int) -> None:
        """Give up the places of those that are away since before then."""
        for author in [each.author for each in self.parked.values() if each.parked_ms < time_ms]:
            del self.parked[author]

    # Updates.

    def repeated(self, author: str, clock: int) -> Repeated | None:
        """Whether that mutation is known already. With clock 0 nothing ever is."""
        if not clock:
            return None
        newest_clock, newest_seq = self.clocks.newest(author)
        return Repeated(newest_clock, newest_seq) if clock <= newest_clock else None

    def stage(self, author: str, clock: int, seq: int) -> None:
        """The store has given a fresh mutation its place."""
        assert seq == self.staged + 1, "the sequence has no gaps"
        self.staged = seq
        if clock:
            self.clocks.note(author, clock, seq)

    def commit(self, up_to_seq: int, now_ms: int) -> None:
        """Everything up to `up_to_seq` is durable: it may be seen."""
        assert self.head <= up_to_seq <= self.staged
        if up_to_seq > self.head:
            self._timeline.add(self.head + 1, now_ms)
            self.head = up_to_seq
            if not self.subscriptions and not self.parked:
                self._timeline.forget_up_to(self.head)

    def pending(self, subscription: Subscription) -> range:
        """What may be handed to it now: durable, and within its window."""
        return range(subscription.sent + 1, min(self.head, subscription.acked + self._window) + 1)

    def handed_over(self, subscription: Subscription, up_to_seq: int, now_ms: int) -> None:
        if subscription.acked == subscription.sent:
            # It owed nothing: from now on it does, and the wait for its answer begins.
            subscription.progress_ms = now_ms
        subscription.sent = up_to_seq
        if not subscription.acknowledges:
            subscription.acked = up_to_seq

    @property
    def lowest_acked(self) -> int:
        """Who has acknowledged less has a full window before it has everything up to `head`."""
        return self.head - self._window

    def handed_to_head(self, subscriptions: Iterable[Subscription], now_ms: int) -> None:
        """`handed_over` up to `head`, for all who keep up (bench: documents)."""
        head = self.head
        for subscription in subscriptions:
            if subscription.acked == subscription.sent:
                subscription.progress_ms = now_ms
            subscription.sent = head
            if not subscription.acknowledges:
                subscription.acked = head

    def acknowledge(self, connection: int, epoch: int, seq: int, now_ms: int) -> bool:
        """Everything up to `seq` has arrived. Whether that moved its place.

        Raises UnexpectedMessageError for what does not exist yet. An acknowledgement of another
        subscription, and one that comes late, changes nothing.
        """
        subscription = self.subscriptions.get(connection)
        if subscription is None or subscription.epoch != epoch:
            return False
        # What it was not sent here it may have from the connection before, or from before it was
        # to be sent again.
        if seq > self.head:
            raise UnexpectedMessageError(f"acknowledged {seq}, but the newest is {self.head}")
        if seq < subscription.acked:
            return False
        subscription.is_confirmed = True
        if seq == subscription.acked:
            return False
        subscription.acked = seq
        subscription.sent = max(subscription.sent, seq)
        subscription.progress_ms = now_ms
        return True

    # Upkeep.

    def send_again(self, now_ms: int) -> list[tuple[Subscription, int]]:
        """Those that have not answered for a while go back to what they acknowledged.

        With each comes how far it had been sent before.
        """
        silent = [
            (each, each.sent)
            for each in self.subscriptions.values()
            if each.acked < each.sent and now_ms - each.progress_ms >= RESEND_MS
        ]
        for each, _ in silent:
            each.sent = each.acked
            each.progress_ms = now_ms
        return silent

    def lag_ms(self, subscription: Subscription, now_ms: int) -> int:
        return lag_ms(subscription, self.head, self._timeline, now_ms)

    def evict(self, now_ms: int) -> list[Subscription]:
        """Give up the places of those too far behind; the connected ones have to be told."""
        everybody = list(self._everybody())
        evicted = [
            each
            for each in everybody
            if is_too_far_behind(each, everybody, self.lag_ms(each, now_ms), self._rules)
        ]
        for each in evicted:
            if self.parked.get(each.author) is each:
                del self.parked[each.author]
            else:
                del self.subscriptions[each.connection]
        return evicted

    @property
    def floor(self) -> int:
        """Everything up to here may go: it is in the snapshot, and nobody has to get it."""
        lowest = min((each.acked for each in self._everybody()), default=self.snapshot_seq)
        return min(self.snapshot_seq, lowest)

    def snapshot_taken(self, up_to_seq: int) -> None:
        assert self.snapshot_seq <= up_to_seq <= self.head
        self.snapshot_seq = up_to_seq

    def truncated(self, up_to_seq: int) -> None:
        assert up_to_seq <= self.floor
        self.first = max(self.first, up_to_seq + 1)
        self._timeline.forget_up_to(up_to_seq)

    @property
    def is_restless(self) -> bool:
        """Somebody owes an acknowledgement, or a place is kept: time matters."""
        if self.parked:
            return True
        # A loop: it is asked after every batch (bench: documents).
        head = self.head
        for each in self.subscriptions.values():  # noqa: SIM110
            if each.acked < head:
                return True
        return False

    def _everybody(self) -> Iterator[Subscription]:
        yield from self.subscriptions.values()
        yield from self.parked.values()
