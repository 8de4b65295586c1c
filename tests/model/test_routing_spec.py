"""Who gets what of a document, in every order of events (specs/Routing.tla, specs/Sending.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.model.checker import (
    Checked,
    Constant,
    check,
    model_values,
    rules_on_page,
    states_on_page,
    switches,
    variants,
)

INVARIANTS = [
    "NoStalePending",
    "AuthorExcluded",
    "NoRegression",
    "Prefix",
    "NoGap",
    "NoLoss",
    "Left",
    "Kept",
    "Once",
]
# Each rule, and what breaks without it.
RULES_IN_BAND = {
    "ClearOnUnsubscribe": "NoStalePending",
    "ExcludeAuthor": "AuthorExcluded",
    "CheckEpoch": "NoLoss",
    "OnePoint": "Prefix",
    "EndAnyEpoch": "Left",
    "KeepUntilAcked": "Kept",
}
# These are needed where the state does not travel with the mutations.
RULES_SPLIT = {
    "SeqFilter": "NoRegression",
    "HoldBack": "NoLoss",
    "SubscribeFirst": "NoLoss",
}
# This one has a test of its own, which looks at the way to the broken state as well.
RULES_TRACED = {"AckInBand": "NoLoss"}
SPLIT = "StateInBand"
PATHS: dict[str, list[set[str]]] = {
    "in band": [set()],
    "split": [{SPLIT}],
    "either": [set(), {SPLIT}],
}


@dataclass(frozen=True)
class Bounds:
    clients: int
    mutations: int
    epochs: int

    def constants(self, *left_out: set[str]) -> dict[str, Constant]:
        return {
            "Clients": model_values("abc"[: self.clients]),
            "MaxMutations": self.mutations,
            "MaxEpoch": self.epochs,
            "Variants": variants(*(sorted(rules) for rules in left_out)),
        }


ONE_EACH = Bounds(2, 1, 1)
MANY_MUTATIONS = Bounds(2, 2, 1)
MANY_EPOCHS = Bounds(2, 1, 2)
STATES = {
    (MANY_MUTATIONS, "in band"): 5_004,
    (Bounds(1, 2, 3), "either"): 3_259,
}
STATES_LONG = {
    (MANY_EPOCHS, "in band"): 22_164,
    (Bounds(2, 2, 2), "in band"): 178_156,
    (Bounds(3, 1, 1), "in band"): 27_822,
    (MANY_MUTATIONS, "split"): 10_729,
    (MANY_EPOCHS, "split"): 83_932,
}


def search(folder: Path, bounds: Bounds, path: str, *, is_large: bool = False) -> Checked:
    constants = bounds.constants(*PATHS[path])
    return check(folder, "Routing", constants, invariants=INVARIANTS, is_large=is_large)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("bounds", "path"), STATES)
def test_with_every_rule_kept_every_invariant_holds(
    tmp_path: Path, bounds: Bounds, path: str
) -> None:
    assert search(tmp_path, bounds, path).holds_over == STATES[bounds, path]


@pytest.mark.timeout(120)
def test_without_any_one_rule_an_invariant_breaks(tmp_path: Path) -> None:
    constants = MANY_EPOCHS.constants(*({rule} for rule in RULES_IN_BAND))
    checked = check(tmp_path, "Routing", constants, constraint="Report")
    assert checked.reported == {frozenset({rule}): name for rule, name in RULES_IN_BAND.items()}


@pytest.mark.timeout(120)
def test_a_state_on_another_path_needs_rules_of_its_own(tmp_path: Path) -> None:
    constants = MANY_MUTATIONS.constants(*({SPLIT, rule} for rule in RULES_SPLIT))
    checked = check(tmp_path, "Routing", constants, constraint="Report")
    assert checked.reported == {
        frozenset({SPLIT, rule}): name for rule, name in RULES_SPLIT.items()
    }


# --------------------------------------------------------------------------- the naive forms


@pytest.mark.timeout(120)
def test_naive_unsubscribe_leaves_stale_pending(tmp_path: Path) -> None:
    constants: dict[str, Constant] = {
        "Clients": model_values("ab"),
        "Documents": model_values("d"),
        "ClearOnUnsubscribe": False,
    }
    checked = check(tmp_path, "Sending", constants, invariants=["NoStalePending"])
    assert checked.broken == "NoStalePending"
    assert checked.trace == ("Subscribe", "Subscribe", "Mutate", "Unsubscribe")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_naive_initial_sync_goes_back(tmp_path: Path) -> None:
    naive = MANY_MUTATIONS.constants({SPLIT, "SeqFilter"})
    checked = check(tmp_path, "Routing", naive, invariants=["NoRegression"])
    assert checked.broken == "NoRegression"
    # A late mutation was held back, and applied over a state that has it already.
    assert checked.trace[-2:] == ("Receive", "ReceiveAside")


@pytest.mark.timeout(120)
def test_filter_loses_updates_if_the_author_learns_its_number_aside(tmp_path: Path) -> None:
    naive = MANY_MUTATIONS.constants({"AckInBand"})
    # An invariant over numbers alone does not see it.
    checked = check(tmp_path, "Routing", naive, invariants=["NumbersAgree", "NoLoss"])
    assert checked.broken == "NoLoss"
    # The author learns its own number; then the mutation before it comes, and is dropped.
    assert checked.trace[-2:] == ("ReceiveAside", "Receive")


# -------------------------------------------------------------------------------------- long


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("bounds", "path"), STATES_LONG)
def test_every_invariant_holds_over_more_clients_mutations_and_epochs(
    tmp_path: Path, bounds: Bounds, path: str
) -> None:
    assert search(tmp_path, bounds, path, is_large=True).holds_over == STATES_LONG[bounds, path]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_in_band_the_sequence_filter_is_only_a_defence(tmp_path: Path) -> None:
    constants = MANY_MUTATIONS.constants({"SeqFilter"})
    checked = check(tmp_path, "Routing", constants, invariants=INVARIANTS)
    assert checked.holds_over == STATES[MANY_MUTATIONS, "in band"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_numbers_agree_even_where_updates_are_lost(tmp_path: Path) -> None:
    naive = MANY_MUTATIONS.constants({"AckInBand"})
    checked = check(tmp_path, "Routing", naive, invariants=["NumbersAgree"])
    assert checked.holds_over == 5_086


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("left_out", "distinct"), [(set[str](), 772), ({SPLIT}, 1_497)], ids=["in band", "split"]
)
def test_whoever_waits_for_a_state_gets_it(
    tmp_path: Path, left_out: set[str], distinct: int
) -> None:
    constants = ONE_EACH.constants(left_out)
    checked = check(
        tmp_path, "Routing", constants, specification="FairSpec", properties=["Answered"]
    )
    assert checked.holds_over == distinct


def sending(clients: str, documents: str) -> dict[str, Constant]:
    return {
        "Clients": model_values(clients),
        "Documents": model_values(documents),
        "ClearOnUnsubscribe": True,
    }


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("clients", "documents", "distinct"), [("ab", "x", 9), ("abc", "x", 27), ("ab", "xy", 81)]
)
def test_pending_is_resolved_if_sending_is_fair_to_each_pair(
    tmp_path: Path, clients: str, documents: str, distinct: int
) -> None:
    checked = check(
        tmp_path,
        "Sending",
        sending(clients, documents),
        specification="FairSpec",
        invariants=["NoStalePending"],
        properties=["Resolved"],
    )
    assert checked.holds_over == distinct


@pytest.mark.long
@pytest.mark.timeout(300)
def test_sending_something_to_somebody_starves_a_client(tmp_path: Path) -> None:
    checked = check(
        tmp_path,
        "Sending",
        sending("ab", "x"),
        specification="LooseSpec",
        properties=["Resolved"],
    )
    assert checked.broken == "a property"


# -------------------------------------------------------------------------------------- page


def test_every_switch_of_the_spec_is_tested_and_on_the_page() -> None:
    rules = RULES_IN_BAND | RULES_SPLIT | RULES_TRACED
    assert switches("Routing") == set(rules) | {SPLIT}
    assert rules_on_page("Routing") == rules


def test_the_page_tells_the_states() -> None:
    assert states_on_page("Routing") == {*STATES.values(), *STATES_LONG.values()}
