"""Power cuts and kills before every call of random scenarios, on a file system that forgets.

A failure names its seed and the line that runs it again:

    SYNCLINE_CRASH_SEED=log:17 python -m pytest tests/crash/test_simulated_crash.py -k every_call
"""

import os
from functools import partial
from itertools import count
from random import Random

import pytest

from syncline.testing.files import SimulatedFiles
from syncline.testing.observation import observe
from syncline.testing.oracle import Oracle
from syncline.testing.workload import Workload
from tests.crash.endurance import Endurance
from tests.crash.subjects import ARCHIVED, open_subject, oracle_for
from tests.crash.sweep import LONG, Sweep

SEED_VARIABLE = "SYNCLINE_CRASH_SEED"
# How many scenarios for each store, and how many of them one test runs.
SEED_COUNTS = {"log": 1000, "journal": 20, "tiny": 20}
SEEDS_PER_TEST = {"log": 20, "journal": 4, "tiny": 20}
LONG_SEED_COUNTS = {"log": 20_000, "journal": 1_000}
LONG_SEEDS_PER_TEST = {"log": 1000, "journal": 100}
ENDURANCE_SEED_COUNTS = {"log": 120, "journal": 90, "tiny": 6}
SEEDS_PER_ENDURANCE_TEST = {"log": 20, "journal": 15, "tiny": 6}


def chunks(
    counts: dict[str, int], sizes: dict[str, int], first: int = 0
) -> list[tuple[str, range]]:
    return [
        (kind, range(start, min(start + sizes[kind], first + count)))
        for kind, count in counts.items()
        for start in range(first, first + count, sizes[kind])
    ]


def chosen_seeds() -> list[tuple[str, range]]:
    """The seed in the environment, or all of them."""
    chosen = os.environ.get(SEED_VARIABLE)
    if chosen is None:
        return chunks(SEED_COUNTS, SEEDS_PER_TEST)
    kind, seed, *_ = chosen.split(":")
    return [(kind, range(int(seed), int(seed) + 1))]


def chosen_crash() -> int | None:
    parts = os.environ.get(SEED_VARIABLE, "").split(":")
    return int(parts[2]) if len(parts) > 2 else None


def named(value: object) -> str:
    return f"{value.start}-{value.stop - 1}" if isinstance(value, range) else str(value)


@pytest.mark.parametrize("kind", ["log", ARCHIVED])
def test_long_work_breaks_no_promise_while_there_is_no_crash(kind: str) -> None:
    for seed in range(20):
        files, oracle, numbers = SimulatedFiles(), oracle_for(kind), count()
        workload = Workload(
            lambda: open_subject(kind, files, seed=f"{seed}:{next(numbers)}"),  # noqa: B023
            oracle,
            Random(f"{kind}:{seed}"),
            LONG.shape,
        )
        workload.run(LONG.step_count)
        workload.owner.do_jobs()
        workload.owner.commit()
        assert oracle.violations(observe(workload.owner.store)) == [], f"seed {seed}"


def sweep_all(kind: str, seeds: range) -> int:
    """Sweep each scenario; the number of crashes. Fails with the first thing found."""
    crash_count = 0
    for seed in seeds:
        sweep = Sweep(kind, seed, only_crash=chosen_crash()).run()
        assert not sweep.findings, str(sweep.findings[0])
        crash_count += sweep.crash_count
    return crash_count


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "seeds"), chosen_seeds(), ids=named)
def test_nothing_acknowledged_is_lost_at_every_call(kind: str, seeds: range) -> None:
    assert sweep_all(kind, seeds) >= 5 * len(seeds)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "seeds"), chunks(LONG_SEED_COUNTS, LONG_SEEDS_PER_TEST, 10_000), ids=named
)
def test_nothing_acknowledged_is_lost_at_any_call_of_many_scenarios(
    kind: str, seeds: range
) -> None:
    assert sweep_all(kind, seeds) >= 5 * len(seeds)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "seeds"), chunks(ENDURANCE_SEED_COUNTS, SEEDS_PER_ENDURANCE_TEST), ids=named
)
def test_a_data_folder_lives_through_one_crash_after_another(kind: str, seeds: range) -> None:
    for seed in seeds:
        endurance = Endurance(kind, seed)
        found = endurance.run(round_count=15, step_count=60)
        assert not found, f"{kind}, seed {seed}, crash {endurance.crash_count}:\n" + "\n".join(
            map(str, found)
        )
        assert endurance.crash_count >= 15


def test_a_folder_in_the_making_that_is_killed_and_then_loses_power_is_still_ours() -> None:
    """The name of its FORMAT was in the page cache alone when the second start found it."""
    assert Sweep("journal", 10_480, only_crash=8).run().findings == []


@pytest.mark.parametrize("seed", range(10))
def test_the_memory_store_keeps_what_is_finished_after_every_step(seed: int) -> None:
    for step_count in range(40):
        files = SimulatedFiles()
        oracle = Oracle()
        open_memory = partial(open_subject, "memory", files)
        Workload(open_memory, oracle, Random(seed)).run(step_count)
        # Its disk lives as long as the files; to be dropped is the only crash it knows.
        assert oracle.violations(observe(open_memory())) == []


# Each of these breaks a promise. A suite that does not notice proves nothing.
BROKEN = [
    ("tiny", frozenset({"sync"})),
    ("tiny", frozenset({"sync_folder"})),
    ("early", frozenset[str]()),
    ("blind", frozenset[str]()),
    ("hasty", frozenset[str]()),
    ("trusting", frozenset[str]()),
    ("log", frozenset({"sync"})),
    ("log", frozenset({"sync_folder"})),
    ("journal", frozenset({"sync"})),
    ("journal", frozenset({"sync_folder"})),
]


@pytest.mark.parametrize(("kind", "ignored"), BROKEN)
def test_a_store_that_breaks_a_promise_is_caught(kind: str, ignored: frozenset[str]) -> None:
    for seed in range(60):
        sweep = Sweep(kind, seed, SimulatedFiles(ignored_calls=ignored)).run()
        if sweep.findings:
            return
    pytest.fail(f"{kind} without {sorted(ignored)} passed for sound")
