"""One data folder through many crashes: what recovery leaves behind is what the next one meets.

A crash is the power that goes, a process that is killed, or one that ends because a sync failed
(the tiny store does not know of that). What comes up again is looked at before its upkeep, or after
it.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from traceback import format_exc

from syncline.errors import DeviceError
from syncline.storage.base import Store, run_jobs
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import observe
from syncline.testing.oracle import Oracle, Violation
from syncline.testing.workload import Workload, WorkloadShape
from tests.crash.subjects import TINY_STORES, open_subject, oracle_for, small_options

# Some of each; entries so large that a segment is full after a few; streams enough for a table.
SHAPES = (
    WorkloadShape(),
    WorkloadShape(large_share=0.8, large_bytes_max=30_000),
    WorkloadShape(stream_count=60, small_bytes_max=50, large_share=0.02),
)
KILL_SHARE = 0.3
CRASH_IN_RECOVERY_SHARE = 0.2
FAILED_SYNC_SHARE = 0.2
UPKEEP_FIRST_SHARE = 0.5


@dataclass(slots=True)
class Endurance:
    """A store that is crashed somewhere in each round, recovered, and worked with again."""

    kind: str
    seed: int
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    oracle: Oracle = field(init=False)
    crash_count: int = 0
    options: StoreOptions = field(init=False)
    _opening_count: int = 0

    def __post_init__(self) -> None:
        self.oracle = oracle_for(self.kind)
        self.options = small_options(Random(f"{self.kind}:{self.seed}:options"))

    def run(self, round_count: int, step_count: int) -> list[Violation]:
        """What went wrong, in the first round in which something did."""
        random = Random(f"{self.kind}:{self.seed}:endurance")
        shape = SHAPES[self.seed % len(SHAPES)]
        workload = Workload(self._open, self.oracle, random, shape)
        for _ in range(round_count):
            # The call at which it stops may lie behind the last step: then nothing is under way.
            if self.kind not in TINY_STORES and random.random() < FAILED_SYNC_SHARE:
                self.files.fail("sync", random.randint(1, step_count))
            else:
                self.files.crash_after(random.randint(1, 4 * step_count))
            with suppress(SimulatedCrashError, DeviceError):
                workload.run(step_count)
            try:
                store = self._recover(random)
                if random.random() < UPKEEP_FIRST_SHARE:
                    run_jobs(store)
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
        seed = f"{self.seed}:{self._opening_count}"
        return open_subject(self.kind, self.files, options=self.options, seed=seed)

    def _recover(self, random: Random) -> Store:
        self._crash(random)
        while random.random() < CRASH_IN_RECOVERY_SHARE:
            self.files.crash_after(random.randint(1, 60))
            with suppress(SimulatedCrashError):
                run_jobs(self._open())
            self._crash(random)
        return self._open()

    def _crash(self, random: Random) -> None:
        self.crash_count += 1
        is_kill = random.random() < KILL_SHARE
        self.files = self.files.kill(random) if is_kill else self.files.crash(random)
