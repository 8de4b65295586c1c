"""Deliveries, explored: every interleaving of what clients, disk, folds and slow readers may do.

In each setting all states are visited, and in each of them is checked that nothing is lost, stuck,
sent twice or sent to somebody who was told that it is over, and that ALLS keeps its word. A broken
rule is reported with the shortest sequence of steps that leads to it. The number of states is part
of the test: if it changes, the protocol has changed.
"""

from dataclasses import replace
from random import Random

import pytest

from syncline.core.deliveries import Acknowledged, Deliveries, Fold, MessageReader
from syncline.core.subscriptions import Effect, Ended
from syncline.values import limits
from tests.model.delivery_parts import Setting, Step
from tests.model.delivery_rules import check, explore
from tests.model.delivery_world import begin

# Some walk through thousands of states.
pytestmark = pytest.mark.timeout(120)

S, P = True, False  # a session of the service, a plain one; likewise queues

TAKEOVER = Setting((S, S), (S, S), messages=1, subscriptions=2, connections=0, backlog=1)
MIXED = Setting((S, P), (S,), messages=2, subscriptions=3, connections=0, stages=True)
RECONNECT = Setting((S, S), (S,), messages=2, subscriptions=2, connections=1)
PLAIN = Setting((P, P), (P,), messages=2, subscriptions=3, connections=1, lose=1)
FETCHED = Setting((P, P), (P,), messages=2, subscriptions=2, connections=0, get=2, expire=1)
DELETED = Setting((S, P), (S, P), messages=1, subscriptions=2, connections=0, delete=1, dissolve=1)
SLOW = Setting((S,), (S, S), messages=1, subscriptions=1, connections=0, backlog=1, pause=2)
SLOW_TAKEOVER = Setting(
    (S, S), (S, S), messages=0, subscriptions=2, connections=0, backlog=1, pause=1
)
LET_GO = Setting(
    (S, S), (S, S), messages=1, subscriptions=2, connections=0, backlog=1, pause=1, bus=1
)
OPERATED = Setting((S, P), (P,), messages=1, subscriptions=2, connections=0, backlog=1, operate=2)
SLOW_PLAIN = Setting((P, P), (P,), messages=2, subscriptions=2, connections=0, pause=1, expire=1)


@pytest.fixture(autouse=True)
def narrow_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue is remembered to be due, the next is one too many."""
    monkeypatch.setattr(limits, "service_due_count_max", 1)
    monkeypatch.setattr(limits, "due_page_count", 1)


@pytest.mark.parametrize(
    ("setting", "states"),
    [
        pytest.param(TAKEOVER, 13_199, id="takeover"),
        pytest.param(MIXED, 4_088, id="mixed"),
        pytest.param(RECONNECT, 6_317, id="reconnect"),
        pytest.param(PLAIN, 5_561, id="plain"),
        pytest.param(FETCHED, 4_726, id="fetched"),
        pytest.param(DELETED, 9_685, id="deleted"),
        pytest.param(SLOW, 1_864, id="slow"),
        pytest.param(SLOW_TAKEOVER, 6_286, id="slow takeover"),
        pytest.param(SLOW_PLAIN, 1_472, id="slow plain"),
        pytest.param(replace(LET_GO, associated=(S,)), 40_746, id="let go"),
        pytest.param(replace(OPERATED, pause=1), 19_986, id="operated"),
    ],
)
def test_no_order_of_steps_breaks_a_rule(setting: Setting, states: int) -> None:
    assert explore(setting) == states


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        pytest.param(replace(TAKEOVER, messages=2), 72_787, id="takeover"),
        pytest.param(replace(TAKEOVER, subscriptions=3), 340_807, id="taken back"),
        pytest.param(replace(MIXED, services=(S, S, P), stages=False), 41_814, id="three"),
        pytest.param(replace(RECONNECT, connections=2, subscriptions=3), 89_401, id="reconnect"),
        pytest.param(replace(PLAIN, associated=(P, P)), 36_733, id="plain"),
        pytest.param(
            replace(FETCHED, services=(S, P), associated=(S,), pause=1), 107_010, id="fetched"
        ),
        pytest.param(replace(DELETED, services=(S, S, P)), 38_670, id="deleted"),
        pytest.param(replace(SLOW, subscriptions=2, connections=1), 35_068, id="slow"),
        pytest.param(replace(SLOW_TAKEOVER, messages=1), 82_002, id="slow takeover"),
        pytest.param(replace(LET_GO, messages=0), 85_192, id="let go"),
        pytest.param(replace(OPERATED, services=(S, S, P), pause=1), 108_982, id="operated"),
    ],
)
def test_no_order_of_steps_breaks_a_rule_further_on(setting: Setting, states: int) -> None:
    assert explore(setting) == states


@pytest.mark.parametrize("seed", range(20))
def test_long_walks_through_everything_break_no_rule(seed: int) -> None:
    """More sessions, queues and kinds of steps than all orders of them can be tried of."""
    random = Random(seed)
    setting = Setting(
        (S, S, P, P),
        (S, S, P),
        messages=20,
        subscriptions=20,
        connections=6,
        get=6,
        lose=3,
        delete=1,
        bus=4,
        operate=6,
        expire=3,
        pause=6,
        dissolve=random.randrange(2),
        stages=True,
    )
    here = begin(setting)
    path: list[Step] = []
    while steps := list(here.steps()):
        path.append(random.choice(steps))
        try:
            here.take_step(path[-1])
            check(here)
        except AssertionError as error:
            raise AssertionError(f"{error}; after {path}") from error
        if len(path) == 400:
            break


# ------------------------------------------------------------------------- each rule, broken once


class OffersWhatIsOutstanding(Deliveries):
    """Fold and live path do not share a slot."""

    def wants(self, queue: bytes, service: bytes | None) -> bool:
        return self.reader_of(queue, service) is not None

    def offer(self, queue: bytes, service: bytes | None, seq: int, message_id: bytes) -> int | None:
        if (reader := self.reader_of(queue, service)) is not None:
            reader.held.pop(queue, None)
        return super().offer(queue, service, seq, message_id)


class AcceptsAnyAcknowledgement(Deliveries):
    """From whomever and of whatever: it counts for the message that is outstanding."""

    def acknowledge(self, session: int, queue: bytes, message_id: bytes) -> Acknowledged | None:
        for state in self._sessions.values():
            for reader in state.readers():
                if queue in reader.held:
                    return Acknowledged(reader.held.pop(queue).seq, is_get=False)
        return None


class KeepsTheMessageOfADisplacedSession(Deliveries):
    """What was with a session stays with it when another one speaks for the service."""

    def _displaced(self, service: bytes) -> list[Effect]:
        owner = self._owners.get(service)
        effects = super()._displaced(service)
        if owner is not None:
            self._sessions[owner.session].own = owner
        return effects


class LetsTheFoldOfADisplacedSessionGoOn(Deliveries):
    def fold_is_current(self, fold: Fold) -> bool:
        return True

    def fold_ended(self, fold: Fold) -> bool:
        super().fold_ended(fold)
        return True


class TakesOverWithoutAFold(Deliveries):
    """As if the one before had been sent everything."""

    def _reader_for(
        self, session: int, service: bytes | None
    ) -> tuple[MessageReader | None, list[Effect]]:
        reader, effects = super()._reader_for(session, service)
        if reader is not None and effects:
            reader.has_folded = True
        return reader, effects


class MovesAPlainQueueWithoutItsMessage(Deliveries):
    def _taken_from(
        self, reader: MessageReader | None, queue: bytes, by: int | None
    ) -> list[Effect]:
        held = dict(reader.held) if reader is not None else {}
        effects = super()._taken_from(reader, queue, by)
        if reader is not None:
            reader.held = held
        return effects


class IgnoresTheFormerService(Deliveries):
    """A plain session takes an associated queue, and the service's session does not learn it."""

    def subscribe(
        self, session: int, queue: bytes, service: bytes | None, *, former: bytes | None = None
    ) -> list[Effect]:
        return super().subscribe(session, queue, service)


class DoesNotSendAgainToWhoSubscribesAgain(Deliveries):
    def subscribe(
        self, session: int, queue: bytes, service: bytes | None, *, former: bytes | None = None
    ) -> list[Effect]:
        own = self._sessions[session].own
        if own is not None and queue in own.queues:
            return []
        return super().subscribe(session, queue, service, former=former)


class TakesTheNewcomerAway(Deliveries):
    """A session that is gone takes with it what it once had."""

    def disconnect(self, session: int) -> None:
        super().disconnect(session)
        for service in list(self._owners):
            self._displaced(service)


class ForgetsWhatCameForASlowSession(Deliveries):
    def wants(self, queue: bytes, service: bytes | None) -> bool:
        reader = self.reader_of(queue, service)
        return reader is not None and not self.is_paused(reader.session)


class RemembersTheLastThatIsDue(Deliveries):
    """More is due than is remembered, and nobody goes through the queues again."""

    def _recovery(self, reader: MessageReader | None) -> Fold | None:
        if reader is not None:
            reader.is_lapsed = False
        return None


class RecoversWithoutAlls(Deliveries):
    def _recovery(self, reader: MessageReader | None) -> Fold | None:
        if reader is None or not reader.is_lapsed:
            return None
        reader.is_lapsed = False
        return self._begin_fold(reader, says_alls=False)


class SaysAllsWhileSomethingIsDue(Deliveries):
    def fold_ended(self, fold: Fold) -> bool:
        self._owners[fold.service].fold = None
        return True


class RefusesALateAcknowledgement(Deliveries):
    """Of a message that somebody else fetched meanwhile."""

    def acknowledge(self, session: int, queue: bytes, message_id: bytes) -> Acknowledged | None:
        acknowledged = super().acknowledge(session, queue, message_id)
        if acknowledged is not None and acknowledged.is_get:
            for reader in self._subscribers.values():
                reader.held.pop(queue, None)
        return acknowledged


class EndsTheSubscriptionOfWhoFetchesElsewhere(Deliveries):
    def got(self, session: int, queue: bytes, seq: int, message_id: bytes) -> None:
        super().got(session, queue, seq, message_id)
        self.forget(queue, None)


class KeepsWhatWasDeleted(Deliveries):
    def forget(self, queue: bytes, service: bytes | None) -> None:
        pass


class ForgetsToTellWhoReads(Deliveries):
    def deleted(
        self, queue: bytes, service: bytes | None, *, by: int | None = None
    ) -> list[Effect]:
        super().deleted(queue, service, by=by)
        return []


class KeepsWhatWasLetGoOf(Deliveries):
    def dissociated(self, queue: bytes, service: bytes, *, by: int | None = None) -> list[Effect]:
        owner = self._owners.get(service)
        return [] if owner is None or owner.session == by else [Ended(owner.session, queue)]


class ForgetsToTellWhoSpeaksForTheService(Deliveries):
    def dissociated(self, queue: bytes, service: bytes, *, by: int | None = None) -> list[Effect]:
        super().dissociated(queue, service, by=by)
        return []


class KeepsWhatWasGivenAway(Deliveries):
    """Whoever had subscribed is told, and the message stays there."""

    def associated(self, queue: bytes, service: bytes) -> list[Effect]:
        reader = self._subscribers.get(queue)
        return [] if reader is None else [Ended(reader.session, queue)]


class ForgetsToTellWhoHadSubscribed(Deliveries):
    def associated(self, queue: bytes, service: bytes) -> list[Effect]:
        super().associated(queue, service)
        return []


class AllowsSubscribingWhereItFetched(Deliveries):
    def is_get_only(self, session: int, queue: bytes) -> bool:
        return False


class AllowsFetchingWhereItSubscribed(Deliveries):
    def get(self, session: int, queue: bytes, service: bytes | None) -> bool:
        return super().get(session, queue, b"another service")


LOSS = "nothing is lost"
STUCK = "nothing is stuck"
TWICE = "no message twice"
QUIET = "quiet after"
ALONE = "with the queue's reader alone"
KNOWN = "who reads a queue knows"
ANSWERABLE = "can be acknowledged"


@pytest.mark.parametrize(
    ("broken", "setting", "rule"),
    [
        (OffersWhatIsOutstanding, TAKEOVER, TWICE),
        (AcceptsAnyAcknowledgement, RECONNECT, LOSS),
        (KeepsTheMessageOfADisplacedSession, TAKEOVER, ALONE),
        (LetsTheFoldOfADisplacedSessionGoOn, TAKEOVER, "none after ENDS"),
        (TakesOverWithoutAFold, TAKEOVER, STUCK),
        (MovesAPlainQueueWithoutItsMessage, PLAIN, ALONE),
        (IgnoresTheFormerService, MIXED, "who loses a queue is told"),
        (DoesNotSendAgainToWhoSubscribesAgain, PLAIN, ANSWERABLE),
        (TakesTheNewcomerAway, RECONNECT, KNOWN),
        (ForgetsWhatCameForASlowSession, SLOW_PLAIN, STUCK),
        (RemembersTheLastThatIsDue, SLOW, STUCK),
        (RecoversWithoutAlls, SLOW, "ALLS in every case"),
        (SaysAllsWhileSomethingIsDue, SLOW, "ALLS after all"),
        (RefusesALateAcknowledgement, FETCHED, STUCK),
        (EndsTheSubscriptionOfWhoFetchesElsewhere, FETCHED, KNOWN),
        (AllowsSubscribingWhereItFetched, FETCHED, "SUB and GET exclude"),
        (AllowsFetchingWhereItSubscribed, FETCHED, "GET is prohibited"),
        (KeepsWhatWasDeleted, DELETED, ALONE),
        (ForgetsToTellWhoReads, DELETED, "is told"),
        (KeepsWhatWasLetGoOf, LET_GO, ALONE),
        (ForgetsToTellWhoSpeaksForTheService, LET_GO, "is told"),
        (KeepsWhatWasGivenAway, OPERATED, KNOWN),
        (ForgetsToTellWhoHadSubscribed, OPERATED, "is told"),
        (KeepsWhatWasLetGoOf, OPERATED, ALONE),
        (ForgetsToTellWhoSpeaksForTheService, OPERATED, "is told"),
    ],
)
def test_a_broken_rule_is_found(broken: type[Deliveries], setting: Setting, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        explore(setting, broken)


def test_who_looks_before_it_registers_misses_a_message() -> None:
    with pytest.raises(AssertionError, match=STUCK):
        explore(replace(PLAIN, looks_after_registering=False))
