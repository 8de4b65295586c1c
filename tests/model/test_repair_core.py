"""The decisions of a repair, explored: every order of what client, router and others may do.

In all states is checked that nothing in use is let go of, nothing that is to go or that others took
is brought back, and that a repair that nobody disturbed ends with equal sets and everything wanted
delivered. The number of states is the one that the model checker finds in specs/Drift.tla: the code
decides as the specification does.
"""

from dataclasses import replace

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
from tests.model.repair_world import Bounds, Rules, explore
from tests.model.test_drift_spec import STATES, STATES_LONG
from tests.model.test_drift_spec import Bounds as SpecBounds

# Some walk through thousands of states.
pytestmark = pytest.mark.timeout(120)

ONE_QUEUE = Bounds(1, 0, 3, 2)


def bounds_of(spec: SpecBounds) -> Bounds:
    return Bounds(spec.ids, spec.live, spec.changes, spec.faults, spec.rounds)


@pytest.mark.parametrize("bounds", STATES)
def test_no_order_of_steps_breaks_a_rule(bounds: SpecBounds) -> None:
    assert explore(bounds_of(bounds)) == STATES[bounds]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bounds", [each for each in STATES_LONG if not each.holds])
def test_no_order_of_steps_breaks_a_rule_further_on(bounds: SpecBounds) -> None:
    assert explore(bounds_of(bounds)) == STATES_LONG[bounds]


# ------------------------------------------------------------------------- each rule, broken once


def lets_go_of_what_is_not_associated_yet(side: Side, known: Known | None) -> Action:
    action = action_for(side, known)
    return Action.RELEASE if action is Action.KEEP else action


def keeps_what_has_ended(side: Side, known: Known | None) -> Action:
    return action_for(side, known and replace(known, has_ended=False))


def associates_what_is_not_wanted(side: Side, known: Known | None) -> Action:
    return action_for(side, known and replace(known, is_wanted=True))


def leaves_what_is_unknown(side: Side, known: Known | None) -> Action:
    return Action.NOTHING if known is None else action_for(side, known)


def believes_the_router(side: Side, known: Known | None) -> Action:
    """What it has is kept, what it does not have is given up: nothing is ever sent."""
    if known is None:
        return Action.NOTHING
    return Action.KEEP if side is Side.ROUTER else Action.DROP


def keeps_what_is_refused(answer: Answer) -> Effect:
    effect = effect_of(answer)
    return replace(effect, is_dissociated=False) if answer is Answer.REFUSED else effect


def takes_not_now_for_never(answer: Answer) -> Effect:
    return effect_of(Answer.REFUSED if answer is Answer.LATER else answer)


LIVE = "what is in use is not let go of"
UNWANTED = "what is to go is not brought back"
TAKEN = "what others took is left to them"
EQUAL = "both have the same"
DELIVERED = "what is wanted delivers"
SUCCEEDS = "undisturbed, it succeeds"


@pytest.mark.parametrize(
    ("rules", "broken"),
    [
        (Rules(decide=lets_go_of_what_is_not_associated_yet), LIVE),
        (Rules(decide=keeps_what_has_ended), TAKEN),
        (Rules(decide=associates_what_is_not_wanted), UNWANTED),
        (Rules(decide=leaves_what_is_unknown), EQUAL),
        (Rules(decide=believes_the_router), EQUAL),
        (Rules(understand=keeps_what_is_refused), SUCCEEDS),
        (Rules(understand=takes_not_now_for_never), DELIVERED),
        (Rules(looks_again=False), LIVE),
        (Rules(waits_for_creations=False), LIVE),
        (Rules(checks_lists=False), EQUAL),
        (Rules(waits_for_answers=False), EQUAL),
        (Rules(verifies=False), EQUAL),
    ],
)
def test_a_broken_rule_is_found(rules: Rules, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        explore(ONE_QUEUE, rules)
