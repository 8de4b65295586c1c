"""All the documents of one client, and the one connection that they share.

    DIALING --connected--> GREETING --welcomed--> UP
       ^  \\                    |                  |
       |   +-----lost---------+------lost--------+
       |                      v
       +----time has come-- WAITING          OFFLINE, CLOSED: until told to go online

The shell carries messages and time to it, sends what a step returns, and keeps the connection as
`link` says: it dials in DIALING, and has none in WAITING, OFFLINE and CLOSED.

- Waits grow as in docs/formats/sync.md, and start anew after a connection that lasted `STEADY_MS`.
- A connection was of use if it lasted so long or a document went live on it. One that was not is
  an attempt in vain, welcomed or not; so is one that ends because of what we said, since the same
  would be said again. Attempts in vain are counted since the last connection that was of use.
- Of several subscriptions asked for under one name, only the answer to the last one counts.
- Changes that are not stored outlive the closing of their document; who opens it again sends them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from syncline.core import backoff
from syncline.core.folds import Fold
from syncline.core.replica import HELD_COUNT_MAX, Phase, Reaction, Replica
from syncline.core.send_buffer import SendBuffer
from syncline.errors import LimitExceededError
from syncline.values.json_value import Json
from syncline.values.kinds import Kind
from syncline.values.replica import (
    Body,
    Complaint,
    DocumentStatus,
    FromRouter,
    Hello,
    LinkStatus,
    LinkTurned,
    Refusal,
    Stalled,
    Subscribe,
    Subscribed,
    ToApplication,
    ToRouter,
    Unsubscribe,
)

ATTEMPT_COUNT_MAX = 10
DOCUMENT_COUNT_MAX = 1_024
# A welcome costs a router little, and what ends the connection may only come after it: the first
# subscription, or the first change. So it takes time to tell that a connection works.
STEADY_MS = 10_000

# The router ended the connection for good: dialing again would end the same way.
FINAL_CODES = frozenset({"displaced", "unauthorized", "version"})
# It ended it for no fault of ours.
BLAMELESS_CODES = frozenset({"", "going_away", "slow"})


class Link(Enum):
    DIALING = auto()
    GREETING = auto()
    UP = auto()
    WAITING = auto()
    OFFLINE = auto()
    CLOSED = auto()


_LINK_STATUS = {
    Link.UP: LinkStatus.ONLINE,
    Link.OFFLINE: LinkStatus.OFFLINE,
    Link.CLOSED: LinkStatus.CLOSED,
}


@dataclass(frozen=True, slots=True)
class Send:
    """One message for the router. `document` is empty for what concerns none."""

    message: ToRouter | Hello
    document: str = ""
    kind: Kind = Kind.JSON


@dataclass(frozen=True, slots=True)
class Tell:
    """One event for the application of a document, or of the client if it is empty."""

    event: ToApplication | LinkTurned
    document: str = ""


@dataclass(slots=True)
class Step:
    """What is to be done now, in this order."""

    sends: list[Send] = field(default_factory=list[Send])
    tells: list[Tell] = field(default_factory=list[Tell])


class Replicas:
    """See the module. Times are milliseconds of any clock that does not go back."""

    def __init__(
        self,
        client: str,
        *,
        attempt_count_max: int = ATTEMPT_COUNT_MAX,
        held_count_max: int = HELD_COUNT_MAX,
        chance: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.link = Link.DIALING
        self._client = client
        self._attempt_count_max = attempt_count_max
        self._held_count_max = held_count_max
        self._chance = chance
        self._replicas: dict[str, tuple[Kind, Replica]] = {}
        self._buffers: dict[tuple[str, Kind], SendBuffer] = {}
        # Subscriptions asked for on this connection and not answered, by document.
        self._asked: dict[str, int] = {}
        self._dial_due_ms: int | None = None
        self._wait_count = 0
        self._failure_count = 0
        self._is_blamed = False
        # Of this connection: when it was welcomed, and whether a document went live on it.
        self._up_since_ms = 0
        self._has_been_live = False
        self._step = Step()

    # -------------------------------------------------------------------------------------- looking

    @property
    def status(self) -> LinkStatus:
        return _LINK_STATUS.get(self.link, LinkStatus.CONNECTING)

    def replica(self, document: str) -> Replica:
        """Raises KeyError if it is not open."""
        return self._replicas[document][1]

    def document_status(self, document: str) -> DocumentStatus:
        if document not in self._replicas or self.link is Link.CLOSED:
            return DocumentStatus.CLOSED
        replica = self.replica(document)
        match replica.phase:
            case Phase.ENDED:
                return DocumentStatus.CLOSED
            case Phase.LIVE:
                return DocumentStatus.LIVE
            case Phase.GIVEN_UP:
                return DocumentStatus.OFFLINE
            case _ if self.link is Link.OFFLINE:
                return DocumentStatus.OFFLINE
            case _:
                return DocumentStatus.EVICTED if replica.is_evicted else DocumentStatus.CONNECTING

    @property
    def next_tick_ms(self) -> int | None:
        """When `tick` has something to do at the latest."""
        return self.next_tick_ms_of(self._replicas)

    def next_tick_ms_of(self, documents: Iterable[str]) -> int | None:
        """The same for some documents and the connection, where a step concerned no others."""
        times = [
            self._replicas[name][1].next_tick_ms for name in documents if name in self._replicas
        ]
        times.append(self._dial_due_ms)
        return min((time for time in times if time is not None), default=None)

    # ------------------------------------------------------------------------------------ documents

    def open(self, document: str, kind: Kind, fold: Fold, now_ms: int) -> Step:
        """Raises LimitExceededError for one document too many, ValueError for one that is open."""
        if document in self._replicas:
            raise ValueError(f"the document {document!r} is open already; close it first")
        if len(self._buffers) >= DOCUMENT_COUNT_MAX:
            self._forget_idle_buffers()
        if len(self._buffers) >= DOCUMENT_COUNT_MAX:
            raise LimitExceededError(
                "the number of documents that are open or have unsaved changes",
                len(self._buffers) + 1,
                DOCUMENT_COUNT_MAX,
            )
        replica = Replica(
            self._client,
            fold,
            self._buffers.setdefault((document, kind), SendBuffer()),
            held_count_max=self._held_count_max,
            chance=self._chance,
        )
        self._replicas[document] = kind, replica
        if self.link is Link.UP:
            self._take(document, kind, replica.connected(now_ms))
        return self._taken()

    def close(self, document: str) -> Step:
        """Nothing of it is wanted any more."""
        kind, replica = self._replicas.pop(document)
        self._take(document, kind, replica.close())
        return self._taken()

    def change(self, document: str, mutation: Body, now_ms: int) -> tuple[int, Step]:
        """Raises as `Replica.change` does."""
        kind, replica = self._replicas[document]
        number, reaction = replica.change(mutation, now_ms)
        self._take(document, kind, reaction)
        return number, self._taken()

    def show_presence(self, document: str, state: Json) -> Step:
        kind, replica = self._replicas[document]
        self._take(document, kind, replica.show_presence(state))
        return self._taken()

    # ----------------------------------------------------------------------------------- connection

    def connected(self) -> Step:
        """The attempt succeeded."""
        assert self.link is Link.DIALING
        self.link = Link.GREETING
        self._step.sends.append(Send(Hello()))
        return self._taken()

    def welcomed(self, restored: Iterable[str], now_ms: int) -> Step:
        """The router greets back; it has kept the subscriptions of `restored`."""
        assert self.link is Link.GREETING
        self._turn(Link.UP)
        self._up_since_ms = now_ms
        self._has_been_live = False
        kept = set(restored)
        for document, (kind, replica) in list(self._replicas.items()):
            is_kept = document in kept
            if is_kept:
                self._asked[document] = 1
            self._take(document, kind, replica.connected(now_ms, restored=is_kept))
        return self._taken()

    def lost(self, now_ms: int, code: str = "", message: str = "") -> Step:
        """The attempt failed or the connection is gone; `code`: the reason that the router gave."""
        self._asked.clear()
        self._count_end(now_ms, is_blamed=code not in BLAMELESS_CODES and code not in FINAL_CODES)
        if code in FINAL_CODES:
            self._rest(Link.CLOSED, code, message)
        elif self._failure_count >= self._attempt_count_max:
            self._rest(Link.OFFLINE, code if self._is_blamed else "", message)
        else:
            for document, (kind, replica) in self._replicas.items():
                self._take(document, kind, replica.dropped())
            self._turn(Link.WAITING, code if self._is_blamed else "", message)
            self._dial_due_ms = now_ms + backoff.delay_ms(self._wait_count, self._chance())
            self._wait_count += 1
        return self._taken()

    def go_online(self, now_ms: int) -> Step:
        """Try now, whatever was given up before."""
        if self.link in (Link.WAITING, Link.OFFLINE, Link.CLOSED):
            self._failure_count = 0
            self._wait_count = 0
            self._dial_due_ms = None
            self._turn(Link.DIALING)
        elif self.link is Link.UP:
            for document, (kind, replica) in self._replicas.items():
                if replica.phase is Phase.GIVEN_UP:
                    self._take(document, kind, replica.connected(now_ms))
        return self._taken()

    def go_offline(self) -> Step:
        """Stop trying; the connection is to be closed."""
        self._asked.clear()
        self._rest(Link.OFFLINE, "", "")
        return self._taken()

    def end(self) -> Step:
        """Nobody carries anything any more."""
        self._asked.clear()
        self._rest(Link.CLOSED, "", "")
        return self._taken()

    def tick(self, now_ms: int) -> Step:
        """Time has passed."""
        if self._dial_due_ms is not None and now_ms >= self._dial_due_ms:
            self._dial_due_ms = None
            self.link = Link.DIALING
        for document, (kind, replica) in list(self._replicas.items()):
            self._take(document, kind, replica.tick(now_ms))
        return self._taken()

    # ------------------------------------------------------------------------------------- messages

    def kind_of(self, document: str) -> Kind | None:
        """None if it is not open: what is said about it is of no interest."""
        found = self._replicas.get(document)
        return found[0] if found else None

    def receive(self, document: str, message: FromRouter, now_ms: int) -> Step:
        """What the router says about one document."""
        if self._answers_the_last(document, message):
            kind, replica = self._replicas[document]
            if isinstance(message, Subscribed) and message.kind is not kind:
                self._step.sends.append(Send(Unsubscribe(message.epoch), document, kind))
                message = Refusal("kind", f"the document is of kind {message.kind}, not {kind}")
            self._take(document, kind, replica.receive(message, now_ms))
            self._has_been_live = self._has_been_live or replica.phase is Phase.LIVE
        return self._taken()

    def complain(self, code: str, message: str) -> Step:
        """The router objects to something that concerns no document."""
        self._step.tells.append(Tell(Complaint(code, message)))
        return self._taken()

    def _answers_the_last(self, document: str, message: FromRouter) -> bool:
        """Whether the replica is to see it. Counts the answers to subscriptions."""
        is_open = document in self._replicas
        asked = self._asked.get(document, 0)
        if isinstance(message, Subscribed):
            if asked == 0 and not is_open:
                # Kept for us by the router, and nobody here wants it.
                self._step.sends.append(Send(Unsubscribe(message.epoch), document, message.kind))
                return False
        elif not _refuses_subscription(message):
            return is_open and asked == 0
        elif asked == 0:
            return is_open
        self._asked[document] = max(0, asked - 1)
        return is_open and asked <= 1

    # -------------------------------------------------------------------------------------- helpers

    def _count_end(self, now_ms: int, *, is_blamed: bool) -> None:
        was_up = self.link is Link.UP
        was_steady = was_up and now_ms - self._up_since_ms >= STEADY_MS
        was_of_use = was_steady or (was_up and self._has_been_live)
        # Blamed again, it is most likely for the same, however far we came in between.
        counts_anew = not (is_blamed and self._is_blamed)
        if was_of_use and counts_anew:
            self._failure_count = 0
        if was_steady and counts_anew:
            self._wait_count = 0
        if is_blamed or not was_of_use:
            self._failure_count += 1
        self._is_blamed = is_blamed

    def _take(self, document: str, kind: Kind, reaction: Reaction) -> None:
        for message in reaction.sends:
            if isinstance(message, Subscribe):
                self._asked[document] = self._asked.get(document, 0) + 1
            self._step.sends.append(Send(message, document, kind))
        self._step.tells += [Tell(event, document) for event in reaction.tells]

    def _taken(self) -> Step:
        step, self._step = self._step, Step()
        return step

    def _turn(self, link: Link, code: str = "", message: str = "") -> None:
        before = self.status
        self.link = link
        if self.status is not before or code:
            self._step.tells.append(Tell(LinkTurned(self.status, code, message)))

    def _rest(self, link: Link, code: str, message: str) -> None:
        """No more attempts. Whoever comes back from there starts with the full state."""
        self._dial_due_ms = None
        for document, (kind, replica) in self._replicas.items():
            self._take(document, kind, replica.went_offline())
        self._turn(link, code, message)

    def _forget_idle_buffers(self) -> None:
        """Of closed documents without work. Their clocks are known to the router."""
        for key, buffer in list(self._buffers.items()):
            if key[0] not in self._replicas and not len(buffer):
                del self._buffers[key]


def _refuses_subscription(message: FromRouter) -> bool:
    return isinstance(message, Refusal) and message.clock is None and message.code != "unexpected"


def is_stalled(step: Step) -> bool:
    """The router does not answer: the connection is to be closed, and is lost."""
    return any(isinstance(tell.event, Stalled) for tell in step.tells)
