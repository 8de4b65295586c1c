"""Every state that an id can be in, and what may and may not be done with it then."""

from itertools import product

import pytest

from syncline.client.smp.repair_plan import (
    Action,
    Answer,
    Effect,
    Known,
    Side,
    action_for,
    effect_of,
)

UNKNOWN = None
STATES = [UNKNOWN, *(Known(*flags) for flags in product((False, True), repeat=3))]


@pytest.mark.parametrize(
    ("known", "action"),
    [
        (UNKNOWN, Action.RELEASE),
        (Known(is_wanted=False, is_associated=False), Action.RELEASE),
        (Known(is_wanted=False, is_associated=False, has_ended=True), Action.RELEASE),
        (Known(is_wanted=True, is_associated=False), Action.KEEP),
        (Known(is_wanted=True, is_associated=False, has_ended=True), Action.NOTHING),
        *((known, Action.NOTHING) for known in STATES if known and known.is_associated),
    ],
)
def test_what_only_the_router_has(known: Known | None, action: Action) -> None:
    assert action_for(Side.ROUTER, known) is action


@pytest.mark.parametrize(
    ("known", "action"),
    [
        (UNKNOWN, Action.NOTHING),
        *((known, Action.NOTHING) for known in STATES if known and not known.is_associated),
        *(
            (known, Action.ASSOCIATE if known.is_wanted else Action.DROP)
            for known in STATES
            if known and known.is_associated
        ),
    ],
)
def test_what_only_we_have(known: Known | None, action: Action) -> None:
    assert action_for(Side.AGENT, known) is action


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("known", STATES)
def test_rules_hold_in_every_state(side: Side, known: Known | None) -> None:
    action = action_for(side, known)
    is_wanted = known is not None and known.is_wanted
    if action is Action.RELEASE:
        assert not is_wanted, "what is wanted is not let go of"
    if action is Action.ASSOCIATE:
        assert is_wanted, "what is gone or not wanted is not associated again"
        assert side is Side.AGENT
    if action is Action.KEEP:
        assert known is not None
        assert is_wanted
        assert not known.has_ended, "what another connection has taken is not taken back"
    if action in (Action.RELEASE, Action.KEEP):
        assert side is Side.ROUTER
        assert known is None or not known.is_associated
    if action is Action.DROP:
        assert side is Side.AGENT
        assert not is_wanted


@pytest.mark.parametrize(
    ("answer", "effect"),
    [
        (Answer.ASSOCIATED, Effect()),
        (Answer.ALONE, Effect(is_dissociated=True)),
        (Answer.REFUSED, Effect(is_dissociated=True, is_told=True)),
        (Answer.LATER, Effect(is_dissociated=True, is_told=True, waits=True)),
        (Answer.NONE, Effect()),
    ],
)
def test_what_an_answer_makes_of_an_id(answer: Answer, effect: Effect) -> None:
    assert effect_of(answer) == effect


@pytest.mark.parametrize(
    "side_and_known", [pair for pair in product(Side, STATES) if pair[1] is not None]
)
def test_what_was_done_leaves_nothing_to_do(side_and_known: tuple[Side, Known]) -> None:
    """Once an action has had its effect on both sides, both have the id or none has it."""
    side, known = side_and_known
    has_router, has_agent = side is Side.ROUTER, known.is_associated
    if has_router == has_agent:
        return  # The list is old: nothing is left to do.
    match action_for(side, known):
        case Action.KEEP:
            has_agent = True
        case Action.DROP:
            has_agent = False
        case Action.ASSOCIATE:
            has_router = True
        case Action.RELEASE:
            has_router = False
        case Action.NOTHING:
            # It ended: the router does not have it any more.
            assert known.has_ended
            has_router = False
    assert has_router == has_agent
