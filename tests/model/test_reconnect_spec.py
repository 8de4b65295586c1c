"""What dropped connections leave behind, under each policy (specs/Reconnect.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.model.checker import (
    Constant,
    check,
    rules_on_page,
    states_on_page,
    switches,
    texts,
    variants,
)

INVARIANTS = ["NoStalePending", "Prefix", "NoGap", "NoLoss", "Kept", "Once"]
POLICIES = ("clean", "intent", "resume")
# Each rule, and what breaks without it.
RULES_ALWAYS = {
    "ClearOnDrop": "NoStalePending",
    "DropByConnection": "NoLoss",
    "DisplacedIsUnread": "NoStalePending",
    "ClockOnSubscribed": "Once",
}
# Wherever a subscription may go on where another ended.
RULES_GOING_ON = {"GapMeansState": "NoLoss", "KeepUntilPlaced": "Prefix"}
# Where the router keeps the offset, and where the client says it.
RULES_KEPT = {"OffsetIsAcknowledged": "NoLoss"}
RULES_OFFERED = {"CheckIncarnation": "Prefix"}


@dataclass(frozen=True)
class Bounds:
    own: int
    others: int
    connections: int
    incarnations: int
    policies: tuple[str, ...]
    # Whether the client says in `subscribe` how far it is: "FALSE", "TRUE" or both are tried.
    offers: str

    def constants(self, *left_out: set[str]) -> dict[str, Constant]:
        return {
            "MaxOwn": self.own,
            "MaxOthers": self.others,
            "MaxConnections": self.connections,
            "MaxIncarnation": self.incarnations,
            "Policies": texts(self.policies),
            "Offers": f"{{{self.offers}}}",
            "Variants": variants(*(sorted(rules) for rules in left_out)),
        }


STATES = {Bounds(1, 1, 2, 1, POLICIES, "TRUE"): 11_688}
STATES_LONG = {
    Bounds(2, 2, 2, 1, POLICIES, "TRUE"): 244_041,
    Bounds(1, 1, 3, 1, ("resume",), "FALSE"): 20_658,
    Bounds(1, 2, 2, 2, ("clean",), "TRUE"): 28_539,
    Bounds(1, 1, 2, 1, ("clean",), "FALSE"): 3_020,
    Bounds(1, 1, 2, 2, POLICIES, "FALSE, TRUE"): 55_466,
}


def first_broken(folder: Path, bounds: Bounds, rules: dict[str, str]) -> dict[str, str]:
    constants = bounds.constants(*({rule} for rule in rules))
    reported = check(folder, "Reconnect", constants, constraint="Report").reported
    return {rule: name for left_out, name in reported.items() for rule in left_out}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bounds", STATES)
def test_with_every_rule_kept_every_policy_holds(tmp_path: Path, bounds: Bounds) -> None:
    checked = check(tmp_path, "Reconnect", bounds.constants(set()), invariants=INVARIANTS)
    assert checked.holds_over == STATES[bounds]


@pytest.mark.timeout(120)
def test_without_any_one_rule_resuming_breaks(tmp_path: Path) -> None:
    rules = RULES_ALWAYS | RULES_GOING_ON | RULES_KEPT
    assert first_broken(tmp_path, Bounds(1, 1, 2, 1, ("resume",), "FALSE"), rules) == rules


@pytest.mark.timeout(120)
def test_what_a_client_offers_of_another_incarnation_means_nothing(tmp_path: Path) -> None:
    bounds = Bounds(0, 2, 2, 2, ("clean",), "TRUE")
    assert first_broken(tmp_path, bounds, RULES_OFFERED) == RULES_OFFERED


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "offers", "rules"),
    [
        ("clean", "FALSE", RULES_ALWAYS),
        ("clean", "TRUE", RULES_ALWAYS | RULES_GOING_ON),
        ("intent", "FALSE", RULES_ALWAYS),
    ],
)
def test_every_policy_needs_its_rules(
    tmp_path: Path, policy: str, offers: str, rules: dict[str, str]
) -> None:
    assert first_broken(tmp_path, Bounds(1, 1, 2, 1, (policy,), offers), rules) == rules


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bounds", STATES_LONG)
def test_every_policy_holds_over_more_mutations_and_connections(
    tmp_path: Path, bounds: Bounds
) -> None:
    constants = bounds.constants(set())
    checked = check(tmp_path, "Reconnect", constants, invariants=INVARIANTS, is_large=True)
    assert checked.holds_over == STATES_LONG[bounds]


def test_every_switch_of_the_spec_is_tested_and_on_the_page() -> None:
    rules = RULES_ALWAYS | RULES_GOING_ON | RULES_KEPT | RULES_OFFERED
    assert switches("Reconnect") == set(rules)
    assert rules_on_page("Reconnect") == rules


def test_the_page_tells_the_states() -> None:
    assert states_on_page("Reconnect") == {*STATES.values(), *STATES_LONG.values()}
