"""One scenario, crashed before each of its calls that change the file system.

The scenario runs once. Before each such call the file system is crashed aside, a store is recovered
from what is left, and the oracle compares it with what was acknowledged up to then. So a scenario
with n calls costs n recoveries, not n runs.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from traceback import format_exc

from syncline.storage.base import Store, StreamKind, commit
from syncline.testing.files import CHANGING_CALLS, SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import Observation, observe
from syncline.testing.oracle import Oracle, Violation
from syncline.testing.workload import Workload, WorkloadShape
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.records import AppendEntry, CreateStream
from tests.crash.subjects import open_subject, oracle_for

# Of so many crashes one is looked at further: recovered again, crashed in recovery, worked with.
THOROUGH_EVERY = 8
KILL_SHARE = 0.2
# Making a folder is the same each time, so its calls are crashed in one of so many scenarios.
OPENING_EVERY = 20


@dataclass(frozen=True, slots=True)
class Scenario:
    step_count: int
    shape: WorkloadShape


_PLAIN = Scenario(25, WorkloadShape())
# Fills segments, so that they are sealed and merged.
_LARGE = Scenario(40, WorkloadShape(large_share=0.5, large_bytes_max=30_000))
# Fills the table, so that it grows, with streams that are deleted and created again.
_MANY_SHAPE = WorkloadShape(stream_count=40, small_bytes_max=50, large_share=0.0)
_MANY = Scenario(35, _MANY_SHAPE)
LONG = Scenario(120, WorkloadShape(large_share=0.7, large_bytes_max=30_000))
_GROWING = Scenario(120, replace(_MANY_SHAPE, stream_count=150))
_SCENARIOS = (
    *(_PLAIN, _LARGE, _MANY, _PLAIN, _LARGE, _MANY, _PLAIN, _LARGE, _PLAIN, LONG),
    *(_PLAIN, _LARGE, _MANY, _PLAIN, _LARGE, _MANY, _PLAIN, _LARGE, _PLAIN, _GROWING),
)
# A journal has a folder for each queue: there a long scenario costs much and adds nothing new.
_JOURNAL_SCENARIOS = (_PLAIN, _LARGE, _PLAIN, _MANY)


def scenario_of(kind: str, seed: int) -> Scenario:
    scenarios = _JOURNAL_SCENARIOS if kind == "journal" else _SCENARIOS
    return scenarios[seed % len(scenarios)]


class _BrokenStoreError(Exception):
    """Closing in order lost something: there is nothing to go on with."""


@dataclass(slots=True)
class Finding:
    """A crash after which the store broke its promises."""

    kind: str
    seed: int
    crash: int
    violations: list[Violation]

    def __str__(self) -> str:
        lines = "\n  ".join(map(str, self.violations[:10]))
        return (
            f"store {self.kind}, seed {self.seed}, crash {self.crash}:\n  {lines}\n"
            f"again: SYNCLINE_CRASH_SEED={self.kind}:{self.seed}:{self.crash} "
            "python -m pytest tests/crash/test_simulated_crash.py -k every_call"
        )


@dataclass(slots=True)
class Sweep:
    """`only_crash` looks at one crash alone, to find out why."""

    kind: str
    seed: int
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    only_crash: int | None = None
    oracle: Oracle = field(init=False)
    crash_count: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    _opening_count: int = 0

    def __post_init__(self) -> None:
        self.oracle = oracle_for(self.kind)

    def run(self, scenario: Scenario | None = None) -> "Sweep":
        """Run the scenario of this seed, or another one."""
        scenario = scenario or scenario_of(self.kind, self.seed)
        random = Random(f"{self.kind}:{self.seed}")
        if self.seed % OPENING_EVERY == 0:
            self.files.before_call = self._before_call
        with suppress(_BrokenStoreError):
            workload = Workload(self._open, self.oracle, random, scenario.shape)
            self.files.before_call = self._before_call
            workload.run(scenario.step_count)
            self._crash()
        self.files.before_call = None
        return self

    def _open(self) -> Store:
        """Open the store on which the scenario runs; closed in order, it has lost nothing."""
        self._opening_count += 1
        seed = f"{self.seed}:{self._opening_count}"
        store = open_subject(self.kind, self.files, seed=seed)
        found = self.oracle.violations(observe(store))
        if found:
            self.findings.append(Finding(self.kind, self.seed, self.crash_count, found))
            raise _BrokenStoreError
        return store

    def _before_call(self, call: str) -> None:
        if call in CHANGING_CALLS:
            self._crash()

    def _crash(self) -> None:
        self.crash_count += 1
        if self.only_crash in (None, self.crash_count):
            numbers = count()
            seed = f"{self.seed}:{self.crash_count}"
            found = check_crash(
                self.files,
                self.oracle,
                lambda files: open_subject(self.kind, files, seed=f"{seed}:{next(numbers)}"),
                seed,
                is_thorough=self.crash_count % THOROUGH_EVERY == 0,
            )
            if found:
                self.findings.append(Finding(self.kind, self.seed, self.crash_count, found))


def check_crash(
    files: SimulatedFiles,
    oracle: Oracle,
    open_store: Callable[[SimulatedFiles], Store],
    seed: str,
    *,
    is_thorough: bool,
) -> list[Violation]:
    """Crash, recover, and say what is wrong with the result."""
    random = Random(seed)
    is_kill = random.random() < KILL_SHARE
    after = files.kill(random) if is_kill else files.crash(random)
    twin = after.kill(random) if is_thorough else after
    try:
        store = open_store(after)
        seen = observe(store)
        found = oracle.violations(seen)
        if is_thorough and not found:
            found += _recover_again(after, seen, oracle.fresh(), open_store, random)
            found += _crash_in_recovery(twin, after.call_count, oracle, open_store, random)
            found += _go_on(after, store, seen, oracle.fresh(), open_store, random)
    except Exception:  # noqa: BLE001 whatever keeps a store from opening is what we look for
        return [Violation("closed", None, format_exc(limit=-6))]
    return found


def _recover_again(
    files: SimulatedFiles,
    seen: Observation,
    oracle: Oracle,
    open_store: Callable[[SimulatedFiles], Store],
    random: Random,
) -> list[Violation]:
    """What a recovered store has shown must still be there after one more power cut."""
    again = observe(open_store(files.crash(random)))
    if (again.streams, again.damage) == (seen.streams, seen.damage):
        return []
    oracle.adopt(seen)
    text = f"recovered twice: {seen.streams}, then {again.streams}"
    return oracle.violations(again) or [Violation("changed", None, text[:3000])]


def _crash_in_recovery(
    files: SimulatedFiles,
    call_count: int,
    oracle: Oracle,
    open_store: Callable[[SimulatedFiles], Store],
    random: Random,
) -> list[Violation]:
    files.crash_after(random.randint(1, call_count))
    with suppress(SimulatedCrashError):
        open_store(files)
    after = files.kill(random) if random.random() < KILL_SHARE else files.crash(random)
    return oracle.violations(observe(open_store(after)))


def _go_on(
    files: SimulatedFiles,
    store: Store,
    seen: Observation,
    oracle: Oracle,
    open_store: Callable[[SimulatedFiles], Store],
    random: Random,
) -> list[Violation]:
    """The recovered store takes new work, and keeps it through the next power cut."""
    oracle.adopt(seen)
    record = CreateStream(StreamId(random.randbytes(STREAM_ID_BYTES)), StreamKind.QUEUE, 0, 1)
    store.create(record.stream, record.kind, record.quota, record.now_ms)
    oracle.staged(record)
    open_streams = [stream for stream, view in seen.streams.items() if view.state.quota == 0]
    for stream in (*open_streams, record.stream):
        entry = AppendEntry(stream, random.randbytes(200), 2)
        store.append(stream, entry.payload, entry.now_ms)
        oracle.staged(entry)
    oracle.batch_taken(acknowledgements=True)
    commit(store)
    oracle.batch_finished()
    found = oracle.violations(observe(store))
    return found or oracle.violations(observe(open_store(files.crash(random))))
