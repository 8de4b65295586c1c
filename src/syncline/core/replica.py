"""A client's copy of one document: everything of "What a client does" in docs/formats/sync.md.

    AWAY ---connected---> ASKED --subscribed--> AWAITING --state--> LIVE
                            |                                        ^
                            +-----------subscribed, resumed----------+

    PAUSED   connected, and asks again after a while
    AWAY     no connection
    GIVEN_UP asked in vain too often: waits to be told to try again
    ENDED    refused for good, or closed

Invariants, tried in any order of events by tests/property/test_replica.py:
- The base is exactly what the router has stored up to `applied`: mutations and own changes enter it
  one by one, at their place in the stream, or all at once with a state.
- Own changes lie on top of it from the change until their place is reached.
- What is not of the current epoch is ignored; before `subscribed` there is none.
- Only a prefix without gaps is acknowledged.
- Whatever is lost is noticed as a gap, and the state is asked for; asking is bounded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from syncline.core.folds import Fold
from syncline.core.pacing import ATTEMPT_COUNT_MAX, AckPacer, Patience
from syncline.core.send_buffer import SendBuffer
from syncline.errors import ProtocolError
from syncline.values.json_value import Json
from syncline.values.replica import (
    Acknowledge,
    Body,
    Changed,
    Complaint,
    Ended,
    Evicted,
    FromRouter,
    GaveUp,
    MutationMessage,
    Place,
    PresenceChanged,
    PresenceMessage,
    Receipt,
    Refusal,
    Rejected,
    SendMutation,
    SendPresence,
    Stalled,
    StateMessage,
    StateReplaced,
    Stored,
    Subscribe,
    Subscribed,
    ToApplication,
    ToRouter,
    Unsubscribe,
    Unsubscribed,
    WentLive,
)

# Messages that came before the state; a router sends no more than a window of them.
HELD_COUNT_MAX = 1_024

# Answers to a mutation that say nothing about the mutation itself: it was sent under a subscription
# that had just ended. It is sent again under the next one.
_OF_THE_EPOCH = "unexpected"


class Phase(Enum):
    AWAY = auto()
    ASKED = auto()
    AWAITING = auto()
    LIVE = auto()
    PAUSED = auto()
    GIVEN_UP = auto()
    ENDED = auto()


# No message of the router means anything to these.
_DEAF = (Phase.AWAY, Phase.GIVEN_UP, Phase.ENDED)


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a step wants done: messages to send in this order, and what the application is told."""

    sends: tuple[ToRouter, ...] = ()
    tells: tuple[ToApplication, ...] = ()


class Replica:
    """See the module. Times are milliseconds of any clock that does not go back."""

    def __init__(
        self,
        client: str,
        fold: Fold,
        buffer: SendBuffer | None = None,
        *,
        attempt_count_max: int = ATTEMPT_COUNT_MAX,
        held_count_max: int = HELD_COUNT_MAX,
        chance: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.phase = Phase.AWAY
        self.epoch: int | None = None
        # The base holds everything up to here; None: there is no base yet.
        self.applied: int | None = None
        self.may_write: bool | None = None
        self.present: Mapping[str, Json] = {}
        # Its place in the stream was given up, and it is on its way back.
        self.is_evicted = False
        self._held: list[MutationMessage | Receipt] = []
        self._held_count_max = held_count_max
        self._held_is_cut = False
        self._client = client
        self._fold = fold
        self._buffer = SendBuffer() if buffer is None else buffer
        self._incarnation = ""
        # Nothing below this epoch is new on this connection.
        self._epoch_floor = -1
        # What the router had stored of ours, and how much in all, when it took our subscription.
        self._covered_clock = 0
        self._covered_seq = 0
        self._needs_state = False
        self._own_presence: Json = None
        self._acks = AckPacer()
        self._patience = Patience(attempt_count_max)
        self._chance = chance
        self._sends: list[ToRouter] = []
        self._tells: list[ToApplication] = []

    @property
    def state(self) -> Body:
        """What the router has, with own changes on top. Not to be changed."""
        return self._fold.visible(self._buffer.mutations())

    @property
    def unsaved_count(self) -> int:
        """Own changes that are not known to be stored."""
        return self._buffer.unsaved_count

    @property
    def unsaved_clocks(self) -> list[int]:
        """Their clocks, oldest first. 0: not sent yet."""
        return self._buffer.unsaved_clocks

    @property
    def next_tick_ms(self) -> int | None:
        """When `tick` has something to do at the latest."""
        times = (self._acks.due_ms, self._patience.due_ms, self._buffer.deadline_ms)
        return min((time for time in times if time is not None), default=None)

    # ---------------------------------------------------------------------- what the shell reports

    def connected(self, now_ms: int, *, restored: bool = False) -> Reaction:
        """A connection is up. `restored`: the router kept the subscription and tells so itself."""
        if self.phase is not Phase.ENDED:
            self._leave_epoch()
            self._epoch_floor = -1
            self._patience.renew()
            if restored:
                self._await_answer(Phase.ASKED, now_ms)
            else:
                self._ask(now_ms)
        return self._reaction()

    def dropped(self) -> Reaction:
        """The connection is gone. Own changes stay, and so does the base."""
        if self.phase is not Phase.ENDED:
            self._leave_epoch()
            self.phase = Phase.AWAY
            self._patience.rest()
        return self._reaction()

    def went_offline(self) -> Reaction:
        """Trying again was given up: whoever comes back from there starts with the full state."""
        self._needs_state = True
        return self.dropped()

    def change(self, mutation: Body, now_ms: int) -> tuple[int, Reaction]:
        """Make an own change; it shows at once. Its number is what it is called when it is stored.

        Raises MalformedMessageError or LimitExceededError for what cannot be a mutation, and
        LimitExceededError when too many changes wait already.
        """
        self._fold.check(mutation)
        number = self._buffer.add(mutation)
        self._send_ready(now_ms)
        return number, self._reaction()

    def show_presence(self, state: Json) -> Reaction:
        """Show others a small state; None takes it away."""
        self._own_presence = state
        if self.epoch is not None:
            self._sends.append(SendPresence(self.epoch, state))
        return self._reaction()

    def close(self) -> Reaction:
        """Nothing of this document is wanted any more."""
        if self.phase in (Phase.ASKED, Phase.AWAITING, Phase.LIVE):
            self._sends.append(Unsubscribe(self.epoch))
        self._end("closed", "the document was closed")
        return self._reaction()

    def tick(self, now_ms: int) -> Reaction:
        """Time has passed."""
        if self._acks.due_ms is not None and now_ms >= self._acks.due_ms:
            self._acknowledge()
        if self._patience.due_ms is not None and now_ms >= self._patience.due_ms:
            if self.phase is Phase.PAUSED:
                self._ask(now_ms)
            else:
                self._stall("the router did not answer a subscription")
        for entry in self._buffer.take_overdue(now_ms):
            assert self.epoch is not None
            self._sends.append(SendMutation(self.epoch, entry.clock, entry.mutation))
        if self._buffer.is_exhausted and self.epoch is not None:
            self._stall("the router did not acknowledge a change")
        return self._reaction()

    def receive(self, message: FromRouter, now_ms: int) -> Reaction:
        """Take a message of the router."""
        if self.phase in _DEAF:
            return Reaction()
        try:
            match message:
                case Subscribed():
                    if message.epoch > self._epoch_floor:
                        self._begin_epoch(message, now_ms)
                case Refusal():
                    self._refused(message, now_ms)
                case _:
                    if message.epoch == self.epoch:
                        self._receive_of_epoch(message, now_ms)
        except ProtocolError as error:
            # A body that does not fit the kind. It would come again: this document ends here.
            self._sends.append(Unsubscribe(self.epoch))
            self._end("malformed", str(error))
        return self._reaction()

    def _receive_of_epoch(
        self,
        message: StateMessage
        | MutationMessage
        | Receipt
        | PresenceMessage
        | Unsubscribed
        | Evicted,
        now_ms: int,
    ) -> None:
        match message:
            case StateMessage():
                self._take_state(message, now_ms)
            case MutationMessage() | Receipt():
                self._take_next(message, now_ms)
            case PresenceMessage():
                self._take_presence(message)
            case Unsubscribed():
                self._unsubscribed(message, now_ms)
            case Evicted():
                self.is_evicted = True
                self._needs_state = True
                self._ask_again(now_ms, "the router gave up our place again and again")
            case _:
                assert_never(message)

    # ------------------------------------------------------------------------------- subscriptions

    def _ask(self, now_ms: int) -> None:
        have = None
        if self.applied is not None and not self._needs_state:
            have = Place(self._incarnation, self.applied)
        self._sends.append(Subscribe(have))
        self._await_answer(Phase.ASKED, now_ms)

    def _await_answer(self, phase: Phase, now_ms: int) -> None:
        self.phase = phase
        self._patience.await_answer(now_ms)

    def _ask_again(self, now_ms: int, reason: str, *, at_once: bool = True) -> None:
        """Subscribe again, the first time at once where that may help, later after a pause."""
        self._leave_epoch()
        if self._patience.is_exhausted:
            self._give_up(reason)
        elif at_once and self._patience.is_fresh:
            self._patience.count()
            self._ask(now_ms)
        else:
            self.phase = Phase.PAUSED
            self._patience.pause(now_ms, self._chance())
            self._patience.count()

    def _begin_epoch(self, message: Subscribed, now_ms: int) -> None:
        self._leave_epoch()
        self._epoch_floor = message.epoch
        if message.resumed and not self._can_resume(message):
            # What follows our base is of no use without one.
            self._needs_state = True
            self._ask_again(now_ms, "the router resumes what we do not have")
            return
        self.epoch = message.epoch
        self.may_write = message.may_write
        if message.incarnation != self._incarnation:
            self._buffer.forget_stored()
        self._covered_clock, self._covered_seq = message.clock, message.seq
        for entry in self._buffer.rewind(message.clock):
            self._tells.append(Stored(entry.number, entry.clock, message.seq))
        if message.resumed:
            self._go_live(now_ms)
        else:
            self._incarnation = message.incarnation
            self._await_answer(Phase.AWAITING, now_ms)
        self._send_ready(now_ms)
        if self._own_presence is not None:
            self._sends.append(SendPresence(message.epoch, self._own_presence))

    def _can_resume(self, message: Subscribed) -> bool:
        return (
            self.applied is not None
            and not self._needs_state
            and message.incarnation == self._incarnation
            and self.applied <= message.seq
        )

    def _go_live(self, now_ms: int) -> None:
        self.phase = Phase.LIVE
        self.is_evicted = False
        self._patience.rest()
        self._tells.append(WentLive(bool(self.may_write)))
        self._settle_covered(now_ms)

    def _leave_epoch(self) -> None:
        self.epoch = None
        self._held.clear()
        self._held_is_cut = False
        self._acks.reset()
        self._buffer.deadline_ms = None
        if self.present:
            self.present = {}
            self._tells.append(PresenceChanged({}))

    def _give_up(self, reason: str) -> None:
        self.phase = Phase.GIVEN_UP
        self._patience.rest()
        self._needs_state = True
        self._tells.append(GaveUp(reason))

    def _stall(self, reason: str) -> None:
        self._leave_epoch()
        self.phase = Phase.AWAY
        self._patience.rest()
        self._tells.append(Stalled(reason))

    def _end(self, code: str, message: str) -> None:
        self._leave_epoch()
        self.phase = Phase.ENDED
        self._patience.rest()
        self._tells.append(Ended(code, message))

    def _unsubscribed(self, message: Unsubscribed, now_ms: int) -> None:
        if message.code is None or message.retriable:
            # Not asked for by us: closing ends the replica, and it would not hear of this.
            self._ask_again(now_ms, message.message or "unsubscribed", at_once=False)
        else:
            self._end(message.code, message.message)

    def _refused(self, message: Refusal, now_ms: int) -> None:
        if message.clock is not None:
            self._mutation_refused(message, message.clock, now_ms)
        elif message.code == _OF_THE_EPOCH or self.phase is not Phase.ASKED:
            # About presence or an acknowledgement that crossed the end of its epoch.
            self._tells.append(Complaint(message.code, message.message))
        elif message.retriable:
            self._ask_again(now_ms, message.message, at_once=False)
        else:
            self._end(message.code, message.message)

    # ---------------------------------------------------------------------------------- the stream

    def _take_state(self, message: StateMessage, now_ms: int) -> None:
        if self.phase is not Phase.AWAITING:
            return  # Sent again: everything in it came on the stream.
        self._fold.reset(message.state)
        self.applied = message.seq
        self._needs_state = False
        self._go_live(now_ms)
        self._tells.append(StateReplaced(message.seq, self.state))
        if message.seq:
            self._acks.owe(now_ms)
        held, self._held = self._held, []
        is_cut, self._held_is_cut = self._held_is_cut, False
        for each in held:
            if self.epoch == each.epoch:  # A gap among them ends the epoch.
                self._take_next(each, now_ms)
        if is_cut and self.epoch is not None:
            self._take_gap(now_ms)

    def _take_next(self, message: MutationMessage | Receipt, now_ms: int) -> None:
        if self.phase is Phase.AWAITING:
            self._hold(message)
            return
        assert self.applied is not None
        if message.seq > self.applied + 1:
            self._take_gap(now_ms)
        elif message.seq <= self.applied:
            self._take_known(message, now_ms)
        elif isinstance(message, MutationMessage):
            self._take_mutation(message, now_ms)
        else:
            self._take_own(message, now_ms)

    def _hold(self, message: MutationMessage | Receipt) -> None:
        """Once one did not fit, none after it may be kept: there would be a gap."""
        self._held_is_cut = self._held_is_cut or len(self._held) >= self._held_count_max
        if not self._held_is_cut:
            self._held.append(message)

    def _take_gap(self, now_ms: int) -> None:
        """What was lost is unknown, and so is why: the whole state is asked for."""
        self._needs_state = True
        self._ask_again(now_ms, "the router left something out again and again")

    def _take_known(self, message: MutationMessage | Receipt, now_ms: int) -> None:
        if isinstance(message, Receipt):
            self._confirm(message.clock, message.seq, now_ms)
        else:
            # It was sent again, so our acknowledgement did not arrive.
            self._acks.owe(now_ms)

    def _take_mutation(self, message: MutationMessage, now_ms: int) -> None:
        self._fold.apply(message.mutation)
        self.applied = message.seq
        self._patience.renew()
        self._tells.append(Changed(message.seq, message.client, message.mutation))
        if message.client == self._client:
            # A router gives nobody its own back. Should one do so, it is in the base now.
            self._confirm(message.clock, message.seq, now_ms)
        self._note_applied(now_ms)
        self._settle_covered(now_ms)

    def _take_own(self, message: Receipt, now_ms: int) -> None:
        """An own change at its place in the stream: it moves from the top into the base."""
        entry = self._buffer.find(message.clock)
        if entry is None:
            # Written by an earlier run under our client id: we do not know what it says.
            self._needs_state = True
            self._ask_again(now_ms, "the router has changes of ours that we do not know")
            return
        self._fold.apply(entry.mutation)
        self.applied = message.seq
        self._patience.renew()
        self._confirm(message.clock, message.seq, now_ms)
        self._note_applied(now_ms)
        self._settle_covered(now_ms)

    def _note_applied(self, now_ms: int) -> None:
        """Soon, or now if it is much, the router is told."""
        if self._acks.count(now_ms):
            self._acknowledge()

    def _acknowledge(self) -> None:
        assert self.epoch is not None
        assert self.applied is not None
        self._sends.append(Acknowledge(self.epoch, self.applied))
        self._acks.reset()

    # --------------------------------------------------------------------------------- own changes

    def _send_ready(self, now_ms: int) -> None:
        if self.epoch is None:
            return
        for entry in self._buffer.take_ready(now_ms):
            self._sends.append(SendMutation(self.epoch, entry.clock, entry.mutation))

    def _confirm(self, clock: int, seq: int, now_ms: int) -> None:
        for entry in self._buffer.confirm(clock, now_ms):
            self._tells.append(Stored(entry.number, entry.clock, seq))
        self._send_ready(now_ms)

    def _settle_covered(self, now_ms: int) -> None:
        """What was stored before we subscribed is in the base once that reaches so far."""
        if self._covered_clock and self.applied is not None and self.applied >= self._covered_seq:
            clock, self._covered_clock = self._covered_clock, 0
            self._confirm(clock, self._covered_seq, now_ms)

    def _mutation_refused(self, message: Refusal, clock: int, now_ms: int) -> None:
        if message.code == _OF_THE_EPOCH or message.retriable:
            if self.epoch is not None:
                self._ask_again(now_ms, message.message)
            return
        entry = self._buffer.refuse(clock, now_ms)
        if entry is not None:
            self._tells.append(Rejected(entry.number, clock, message.code, message.message))
            self._send_ready(now_ms)

    def _take_presence(self, message: PresenceMessage) -> None:
        states = {**self.present, **message.states}
        self.present = {
            client: state
            for client, state in states.items()
            if state is not None and client != self._client
        }
        self._tells.append(PresenceChanged(self.present))

    def _reaction(self) -> Reaction:
        reaction = Reaction(tuple(self._sends), tuple(self._tells))
        self._sends.clear()
        self._tells.clear()
        return reaction
