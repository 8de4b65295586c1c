"""Drift between client and router, and its repair, in every order of events (specs/Drift.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
The naive forms, which repair what was different some time ago, take away what is in use.
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
    "Converged",
    "Mended",
    "Delivered",
    "LiveKept",
    "NotBroughtBack",
    "NotTakenBack",
    "Succeeds",
    "InStore",
]
# Each rule, and what breaks without it.
RULES_ALONE = {
    "Recheck": "LiveKept",
    "KeepKnown": "LiveKept",
    "SettleFirst": "LiveKept",
    "InOrder": "Succeeds",
    "WantedOnly": "NotBroughtBack",
    "LeaveTaken": "NotTakenBack",
    "RemoveUnknown": "Converged",
    "DropRefused": "Succeeds",
    "FinalOnly": "Delivered",
    "CheckLists": "Converged",
    "AnsweredFirst": "Converged",
    "Verify": "Converged",
    "CountIds": "Mended",
}
# This one is for those who hold commands back instead of looking again.
RULES_HELD = {"HoldToEnd": "LiveKept"}


@dataclass(frozen=True)
class Bounds:
    ids: int
    # Of the ids, those that are there at the start.
    live: int
    changes: int
    faults: int
    rounds: int = 2
    holds: bool = False

    def constants(self, *left_out: set[str]) -> dict[str, Constant]:
        return {
            "Ids": model_values("pqr"[: self.ids]),
            "Live": model_values("pqr"[: self.live]),
            "MaxChanges": self.changes,
            "MaxFaults": self.faults,
            "MaxRounds": self.rounds,
            "Holds": self.holds,
            "Variants": variants(*(sorted(rules) for rules in left_out)),
        }


ONE_QUEUE = Bounds(1, 0, 3, 2)
ONE_QUEUE_HELD = Bounds(1, 0, 3, 2, holds=True)
STATES = {
    ONE_QUEUE: 7_289,
    Bounds(2, 1, 2, 1): 10_675,
}
STATES_LONG: dict[Bounds, int] = {
    ONE_QUEUE_HELD: 2_157,
    Bounds(1, 1, 3, 2, 3): 8_641,
    Bounds(2, 1, 2, 2): 102_881,
    Bounds(2, 2, 2, 2): 159_711,
    Bounds(2, 0, 2, 2): 50_266,
    Bounds(2, 1, 3, 1): 31_013,
    Bounds(3, 1, 1, 2): 36_294,
    Bounds(2, 1, 2, 2, holds=True): 19_896,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bounds", STATES)
def test_with_every_rule_kept_every_invariant_holds(tmp_path: Path, bounds: Bounds) -> None:
    checked = check(tmp_path, "Drift", bounds.constants(set()), invariants=INVARIANTS)
    assert checked.holds_over == STATES[bounds]


@pytest.mark.timeout(120)
def test_without_any_one_rule_an_invariant_breaks(tmp_path: Path) -> None:
    constants = ONE_QUEUE.constants(*({rule} for rule in RULES_ALONE))
    checked = check(tmp_path, "Drift", constants, constraint="Report")
    assert checked.reported == {frozenset({rule}): name for rule, name in RULES_ALONE.items()}


# ----------------------------------------------------------------------------------- naive forms


@pytest.mark.timeout(120)
def test_repairing_what_was_different_takes_a_new_queue_away(tmp_path: Path) -> None:
    naive = ONE_QUEUE.constants({"Recheck"})
    checked = check(tmp_path, "Drift", naive, invariants=["LiveKept"])
    assert checked.broken == "LiveKept"
    # The list comes before the answer that brings the new queue, the repair is sent after it.
    assert checked.trace == (
        *("Create", "Serve", "Begin", "Serve", "Take", "Take"),
        *("Fix", "Serve"),
    )


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("rule", "invariant", "trace"),
    [
        # The same, and the repair is sent before the answer comes.
        ("SettleFirst", "LiveKept", ("Create", "Serve", "Begin", "Serve", "Take", "Fix", "Serve")),
        # Two ids with the same hash: nothing seems to be different.
        (
            "CheckLists",
            "Converged",
            ("Create", "Serve", "Break", "Begin", "Serve", "Mislead", "Take", "Compare"),
        ),
        # A subscription that nobody answered in time.
        (
            "Verify",
            "Converged",
            (
                *("Create", "Serve", "Take", "RestoreRouter"),
                *("Begin", "Serve", "Take", "Fix", "Refuse", "Compare"),
            ),
        ),
        # The application takes its deletion back, and its subscription overtakes the removal.
        (
            "InOrder",
            "LiveKept",
            (
                *("Create", "Serve", "TakeAway", "Take", "Begin", "Serve", "Take", "Fix"),
                *("Delete", "Serve", "Take", "Break", "Begin", "Serve", "Take", "Fix"),
                *("Want", "Subscribe", "Serve", "Serve"),
            ),
        ),
    ],
)
def test_each_naive_form_has_its_way_to_break(
    tmp_path: Path, rule: str, invariant: str, trace: tuple[str, ...]
) -> None:
    checked = check(tmp_path, "Drift", ONE_QUEUE.constants({rule}), invariants=[invariant])
    assert (checked.broken, checked.trace) == (invariant, trace)


# ------------------------------------------------------------------------------- holding commands


@pytest.mark.long
@pytest.mark.timeout(120)
def test_holding_commands_protects_what_the_application_does_meanwhile(tmp_path: Path) -> None:
    held = ONE_QUEUE_HELD.constants({"Recheck"})
    others = [name for name in INVARIANTS if name != "NotTakenBack"]
    assert check(tmp_path, "Drift", held, invariants=others).holds_over == 2_633


@pytest.mark.long
@pytest.mark.timeout(120)
def test_holding_commands_does_not_see_what_others_do_meanwhile(tmp_path: Path) -> None:
    held = ONE_QUEUE_HELD.constants({"Recheck"})
    checked = check(tmp_path, "Drift", held, invariants=["NotTakenBack"])
    assert checked.broken == "NotTakenBack"


@pytest.mark.timeout(120)
def test_letting_commands_go_before_the_repairs_are_made_is_as_not_holding_them(
    tmp_path: Path,
) -> None:
    naive = ONE_QUEUE_HELD.constants({"Recheck", *RULES_HELD})
    checked = check(tmp_path, "Drift", naive, invariants=["LiveKept"])
    assert checked.broken == "LiveKept"


# ------------------------------------------------------------------------------------------ long


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bounds", STATES_LONG)
def test_every_invariant_holds_over_more_queues_changes_and_faults(
    tmp_path: Path, bounds: Bounds
) -> None:
    constants = bounds.constants(set())
    checked = check(tmp_path, "Drift", constants, invariants=INVARIANTS, is_large=True)
    assert checked.holds_over == STATES_LONG[bounds]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("bounds", "states"),
    [(Bounds(1, 0, 2, 1), 663), (Bounds(1, 1, 2, 2), 4_747), (Bounds(2, 1, 1, 1), 1_156)],
)
def test_a_repair_ends_and_in_the_end_all_that_is_wanted_delivers(
    tmp_path: Path, bounds: Bounds, states: int
) -> None:
    constants = bounds.constants(set())
    checked = check(
        tmp_path, "Drift", constants, specification="FairSpec", properties=["Ends", "Heals"]
    )
    assert checked.holds_over == states


# ------------------------------------------------------------------------------------------ page


def test_every_switch_of_the_spec_is_tested_and_on_the_page() -> None:
    rules = RULES_ALONE | RULES_HELD
    assert switches("Drift") == set(rules)
    assert rules_on_page("Drift") == rules


def test_the_page_tells_the_states() -> None:
    assert states_on_page("Drift") == {*STATES.values(), *STATES_LONG.values()}
