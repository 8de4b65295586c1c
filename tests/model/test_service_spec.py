"""A service, its queues and those who speak for it, in every order of events (specs/Service.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
With four of them off it has the form of the router of the protocol's authors, and shows its holes.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.model.checker import (
    Constant,
    check,
    model_values,
    rules_on_page,
    states_on_page,
    switches,
    variants,
)

INVARIANTS = [
    "NoLoss",
    "OneHolder",
    "Answerable",
    "NoStuck",
    "Known",
    "NoDoubleSend",
    "QuietAfterEnds",
    "AllsLast",
]
# Each rule, and what breaks without it.
RULES = {
    "RegisterFirst": "NoStuck",
    "OneSlot": "NoDoubleSend",
    "OfferNext": "NoStuck",
    "AckHolder": "NoLoss",
    "FoldStops": "QuietAfterEnds",
    "ClearOnEnds": "OneHolder",
    "ClearOnDrop": "OneHolder",
    "DropBySession": "Known",
    "TakeBack": "Known",
    "AllsAtEnd": "AllsLast",
}
REFERENCE = {"RegisterFirst", "FoldStops", "AckHolder", "TakeBack"}


@dataclass(frozen=True)
class Bounds:
    sessions: int
    queues: int
    messages: int
    asks: int

    def constants(self, *left_out: set[str]) -> dict[str, Constant]:
        return {
            "Sessions": model_values("abc"[: self.sessions]),
            "Queues": model_values("pq"[: self.queues]),
            "MaxMessages": self.messages,
            "MaxAsks": self.asks,
            "Variants": variants(*(sorted(rules) for rules in left_out)),
        }


ONE_QUEUE = Bounds(2, 1, 2, 3)
STATES = {Bounds(2, 2, 2, 2): 15_259}
STATES_LONG = {
    Bounds(2, 2, 2, 3): 58_154,
    Bounds(3, 1, 2, 3): 44_337,
    Bounds(2, 1, 3, 3): 12_918,
    Bounds(2, 2, 3, 2): 65_145,
    Bounds(3, 2, 1, 3): 48_067,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bounds", STATES)
def test_with_every_rule_kept_every_invariant_holds(tmp_path: Path, bounds: Bounds) -> None:
    checked = check(tmp_path, "Service", bounds.constants(set()), invariants=INVARIANTS)
    assert checked.holds_over == STATES[bounds]


@pytest.mark.timeout(120)
def test_without_any_one_rule_an_invariant_breaks(tmp_path: Path) -> None:
    constants = ONE_QUEUE.constants(*({rule} for rule in RULES))
    checked = check(tmp_path, "Service", constants, constraint="Report")
    assert checked.reported == {frozenset({rule}): name for rule, name in RULES.items()}


# ------------------------------------------------------------------------- the reference's form


@pytest.mark.timeout(120)
def test_looking_before_registering_loses_a_wake_up(tmp_path: Path) -> None:
    reference = ONE_QUEUE.constants(REFERENCE)
    checked = check(tmp_path, "Service", reference, invariants=["NoStuck"])
    assert checked.broken == "NoStuck"
    # It looked and saw nothing; a message came, and nobody was registered; then it was.
    assert checked.trace == ("Subs", "Send", "RegisterLate")


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("invariant", "trace"),
    [
        # The fold of the displaced session goes on, and sends.
        (
            "QuietAfterEnds",
            ("Send", "Subs", "RegisterLate", "Subs", "RegisterLate", "FoldStep"),
        ),
        # Both the old and the new session acknowledge one message, and another one goes for it.
        (
            "NoLoss",
            ("Subs", "RegisterLate", "Send", "Sub", "RegisterLate", "Send", "Take", "Take"),
        ),
        # The displaced session subscribes again, is answered, and gets nothing.
        ("Known", ("Subs", "RegisterLate", "Subs", "RegisterLate", "Subs")),
    ],
)
def test_the_reference_router_has_other_holes(
    tmp_path: Path, invariant: str, trace: tuple[str, ...]
) -> None:
    reference = ONE_QUEUE.constants(REFERENCE)
    checked = check(tmp_path, "Service", reference, invariants=[invariant])
    assert (checked.broken, checked.trace) == (invariant, trace)


# -------------------------------------------------------------------------------------- long


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bounds", STATES_LONG)
def test_every_invariant_holds_over_more_sessions_queues_and_messages(
    tmp_path: Path, bounds: Bounds
) -> None:
    constants = bounds.constants(set())
    checked = check(tmp_path, "Service", constants, invariants=INVARIANTS, is_large=True)
    assert checked.holds_over == STATES_LONG[bounds]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_waits_for_an_owner_that_stays_is_taken(tmp_path: Path) -> None:
    constants = Bounds(2, 1, 2, 2).constants(set())
    checked = check(tmp_path, "Service", constants, specification="FairSpec", properties=["Drains"])
    assert checked.holds_over == 2_356


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_came_between_looking_and_registering_is_never_taken(tmp_path: Path) -> None:
    constants = Bounds(1, 1, 1, 1).constants({"RegisterFirst"})
    checked = check(tmp_path, "Service", constants, specification="FairSpec", properties=["Drains"])
    assert checked.broken == "a property"


# -------------------------------------------------------------------------------------- page


def test_every_switch_of_the_spec_is_tested_and_on_the_page() -> None:
    assert switches("Service") == set(RULES)
    assert rules_on_page("Service") == RULES


def test_the_page_tells_the_states() -> None:
    assert states_on_page("Service") == {*STATES.values(), *STATES_LONG.values()}
