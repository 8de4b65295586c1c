"""One data folder through many crashes: what recovery leaves behind is what the next one meets."""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from traceback import format_exc

from syncline.storage.base import Store
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import observe
from syncline.testing.oracle import Oracle, Violation
from syncline.testing.workload import Workload, WorkloadShape
from tests.crash.subjects import open_subject, oracle_for

# Some of each; entries so large that a segment is full after a few; streams enough for a table.
SHAPES = (
    WorkloadShape(),
    WorkloadShape(large_share=0.8, large_bytes_max=30_000),
    WorkloadShape(stream_count=60, small_bytes_max=50, large_share=0.02),
)
KILL_SHARE = 0.3
CRASH_IN_RECOVERY_SHARE = 0.2


@dataclass(slots=True)
class Endurance:
    """A store that is crashed somewhere in each round, recovered, and worked with again."""

    kind: str
    seed: int
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    oracle: Oracle = field(init=False)
    crash_count: int = 0
    _opening_count: int = 0

    def __post_init__(self) -> None:
        self.oracle = oracle_for(self.kind)

    def run(self, round_count: int, step_count: int) -> list[Violation]:
        """What went wrong, in the first round in which something did."""
        random = Random(f"{self.kind}:{self.seed}:endurance")
        shape = SHAPES[self.seed % len(SHAPES)]
        workload = Workload(self._open, self.oracle, random, shape)
        for _ in range(round_count):
            # The call at which it stops may lie behind the last step: then nothing is under way.
            self.files.crash_after(random.randint(1, 4 * step_count))
            with suppress(SimulatedCrashError):
                workload.run(step_count)
            try:
                store = self._recover(random)
                seen = observe(store)
            except Exception:  # noqa: BLE001 whatever keeps a store from opening is a finding
                return [Violation("closed", None, format_exc(limit=-6))]
            found = self.oracle.violations(seen)
            if found:
                return found
            self.oracle.adopt(seen)
            workload.owner.resume(store)
        return []

    def _open(self) -> Store:
        self._opening_count += 1
        return open_subject(self.kind, self.files, seed=f"{self.seed}:{self._opening_count}")

    def _recover(self, random: Random) -> Store:
        self._crash(random)
        while random.random() < CRASH_IN_RECOVERY_SHARE:
            self.files.crash_after(random.randint(1, 60))
            with suppress(SimulatedCrashError):
                self._open()
            self._crash(random)
        return self._open()

    def _crash(self, random: Random) -> None:
        self.crash_count += 1
        is_kill = random.random() < KILL_SHARE
        self.files = self.files.kill(random) if is_kill else self.files.crash(random)
