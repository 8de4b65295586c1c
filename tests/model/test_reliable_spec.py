"""Storing once, delivering all and cutting off the rest over a bad network (specs/Reliable.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
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

INVARIANTS = ["TrackerTrue", "NoLoss", "Durable", "Stored", "Once"]
# Each rule, and what breaks without it.
RULES = {
    "Dedupe": "Once",
    "ClockOrder": "Stored",
    "PrefixAck": "TrackerTrue",
    "AckEpoch": "NoLoss",
    "CutAtMinimum": "NoLoss",
    "CutAtSnapshot": "Durable",
    "SnapshotOnDisk": "Durable",
    "PinFirst": "NoLoss",
    "StateAfterEviction": "NoLoss",
}
# This one is about what happens in the end, not about what never does.
LIVENESS_RULES = {"SendAgain": "Arrives"}


@dataclass(frozen=True)
class Bounds:
    readers: int
    clocks: int
    seqs: int
    epochs: int

    def constants(self, *left_out: set[str], may_lose: bool = False) -> dict[str, Constant]:
        return {
            "Readers": model_values("rst"[: self.readers]),
            "MaxClock": self.clocks,
            "MaxSeq": self.seqs,
            "MaxEpoch": self.epochs,
            "MayLose": may_lose,
            "Variants": variants(*(sorted(rules) for rules in left_out)),
        }


STATES = {Bounds(1, 2, 2, 2): 8_612}
STATES_LONG = {
    Bounds(2, 2, 2, 1): 24_932,
    Bounds(2, 1, 1, 2): 48_918,
    Bounds(1, 2, 2, 3): 53_574,
    Bounds(1, 3, 3, 2): 77_110,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bounds", STATES)
def test_with_every_rule_kept_every_invariant_holds(tmp_path: Path, bounds: Bounds) -> None:
    checked = check(tmp_path, "Reliable", bounds.constants(set()), invariants=INVARIANTS)
    assert checked.holds_over == STATES[bounds]


@pytest.mark.timeout(120)
def test_without_any_one_rule_an_invariant_breaks(tmp_path: Path) -> None:
    # One seq more than there are clocks, so that something can be stored twice.
    constants = Bounds(1, 2, 3, 2).constants(*({rule} for rule in RULES))
    checked = check(tmp_path, "Reliable", constants, constraint="Report")
    assert checked.reported == {frozenset({rule}): name for rule, name in RULES.items()}


@pytest.mark.long
@pytest.mark.timeout(120)
def test_acknowledging_what_just_came_loses_what_came_not(tmp_path: Path) -> None:
    naive = Bounds(1, 2, 2, 1).constants({"PrefixAck"})
    checked = check(tmp_path, "Reliable", naive, invariants=["NoLoss"])
    assert checked.broken == "NoLoss"
    # Entry 2 came and was acknowledged, entry 1 did not and is needed no more.
    assert checked.trace.count("TakeMutation") == 2
    assert checked.trace.count("TakeEntry") == 1
    assert checked.trace[-1] == "TakeAck"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bounds", STATES_LONG)
def test_every_invariant_holds_over_more_readers_and_epochs(tmp_path: Path, bounds: Bounds) -> None:
    constants = bounds.constants(set())
    checked = check(tmp_path, "Reliable", constants, invariants=INVARIANTS, is_large=True)
    assert checked.holds_over == STATES_LONG[bounds]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_sent_again_arrives(tmp_path: Path) -> None:
    constants = Bounds(1, 2, 2, 1).constants(set(), may_lose=True)
    checked = check(
        tmp_path, "Reliable", constants, specification="FairSpec", properties=["Arrives"]
    )
    assert checked.holds_over == 2_130


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_lost_and_not_sent_again_never_arrives(tmp_path: Path) -> None:
    constants = Bounds(1, 1, 1, 1).constants({"SendAgain"}, may_lose=True)
    checked = check(
        tmp_path, "Reliable", constants, specification="FairSpec", properties=["Arrives"]
    )
    assert checked.broken == "a property"


def test_every_switch_of_the_spec_is_tested_and_on_the_page() -> None:
    assert switches("Reliable") == set(RULES | LIVENESS_RULES)
    assert rules_on_page("Reliable") == RULES | LIVENESS_RULES


def test_the_page_tells_the_states() -> None:
    assert states_on_page("Reliable") == {*STATES.values(), *STATES_LONG.values()}
