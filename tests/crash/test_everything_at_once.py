"""Merges beside sealing, a growing table, backups, an archive, jobs whose process dies or that find
no room, restarts and power cuts: on a log so small that they meet within some two hundred steps."""

from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.base import Job
from syncline.storage.log import expiry, jobs, manifest, merging, run_writer, runs, sealing, upkeep
from syncline.storage.log.jobs import LogJob, LogResult
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import observe
from syncline.testing.oracle import Oracle
from syncline.testing.workload import Workload, WorkloadShape
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.records import Record
from tests.crash.subjects import FOLDER

SEGMENT_BYTES = 8_192
STEP_COUNT = 250
SEEDS_PER_TEST = 8


@pytest.fixture(autouse=True)
def tiny_log(monkeypatch: pytest.MonkeyPatch, small_log: None) -> None:
    """Still smaller than elsewhere: a few runs are merged, a few rows looked at at a time."""
    monkeypatch.setattr(limits, "segment_bytes_min", SEGMENT_BYTES)
    monkeypatch.setattr(limits, "run_count_max", 4)
    # Nobody waits for jobs that go on by chance: whoever did would keep acknowledgements back.
    monkeypatch.setattr(limits, "live_segment_count_max", 1_000)
    monkeypatch.setattr(limits, "recent_bytes_max", 4_096)
    monkeypatch.setattr(jobs, "MERGE_FAN_IN", 2)
    monkeypatch.setattr(jobs, "_TIER_BYTES", 4_000)
    monkeypatch.setattr(upkeep, "_MEASURE_AT", 0.05)
    monkeypatch.setattr(manifest, "_ROTATE_BYTES", 3_000)
    monkeypatch.setattr(expiry, "_READ_TOGETHER", 2)
    for module in (merging, runs):
        monkeypatch.setattr(module, "_CHUNK_ROWS", 2)
    for module in (run_writer, sealing):
        monkeypatch.setattr(module, "WRITE_BYTES", 640)


class Gone(BaseException):
    """The process of a job has died."""


class Process:
    """Does jobs in place of a process of its own, and dies over some of them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.files = SimulatedFiles()

    def run(self, job: LogJob) -> LogResult:
        if self._random.random() < 0.3:
            self.files.before_call = self._death(self._random.randint(1, 60))
            try:
                return jobs.run(self.files, job)
            except Gone:
                pass
            finally:
                self.files.before_call = None
        if self._random.random() < 0.1:
            self.files.before_call = self._shortage(self._random.randint(1, 4))
        try:
            return jobs.run(self.files, job)
        finally:
            self.files.before_call = None

    def _death(self, call_count: int) -> Callable[[str], None]:
        """From so many calls on, each fails: a process that died does not tidy up."""
        end = self.files.call_count + call_count

        def die(call: str) -> None:
            if self.files.call_count >= end:
                raise Gone(call)

        return die

    def _shortage(self, call_count: int) -> Callable[[str], None]:
        """With the call of this number that needs room, the disk is full."""
        left = [call_count]

        def refuse(call: str) -> None:
            left[0] -= call in ("create", "link", "write")
            if left[0] == 0:
                left[0] = -1
                raise StoreFullError("the disk")

        return refuse

    def close(self) -> None:
        pass


class Story:
    """A store, its owner, and what comes in between. It is the history of both: see `staged`."""

    def __init__(self, random: Random, process: Process) -> None:
        self.random = random
        self.files = SimulatedFiles(tears_words=random.random() < 0.3)
        self._process = process
        self._oracle = Oracle()
        # What a backup may hold: all that was durable when it began, and any of what came later.
        self._backup_oracle: Oracle | None = None
        self._copying: Generator[int] | None = None
        self._backup_count = self._opening_count = 0
        self._under_way: list[Job] = []
        self._results: dict[int, object] = {}
        self._archive_bytes = random.choice((0, 3)) * SEGMENT_BYTES
        shape = WorkloadShape(random.choice((3, 40)), 300, 3_000, random.choice((0.1, 0.6)))
        self._workload = Workload(self._open, self, random, shape)
        self._owner = self._workload.owner

    # Of the owner's doings.

    def staged(self, record: Record) -> None:
        for oracle in self._oracles():
            oracle.staged(record)

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        for oracle in self._oracles():
            oracle.marker_staged(stream, now_ms)

    def batch_taken(self, *, acknowledgements: bool) -> None:
        self._oracle.batch_taken(acknowledgements=acknowledgements)

    def batch_finished(self) -> None:
        self._oracle.batch_finished()

    def _oracles(self) -> list[Oracle]:
        return [self._oracle, *([self._backup_oracle] if self._backup_oracle else [])]

    # What happens.

    def run(self) -> None:
        for _ in range(STEP_COUNT):
            try:
                self._step()
            except (SimulatedCrashError, DeviceError):
                self._recover()

    def _step(self) -> None:
        way = self.random.random()
        if way < 0.45:
            self._owner.clock.advance(self.random.randrange(50))
            self._workload.stage_one()
        elif way < 0.62:
            self._workload.commit(acknowledgements=self.random.random() < 0.7)
        elif way < 0.82:
            self._move_some_job()
        elif way < 0.84:
            self._owner.expire(self.random.randrange(1_000))
        elif way < 0.86:
            self._look()
        elif way < 0.95:
            self._move_backup()
        elif way < 0.96:
            self._reopen()
        elif way < 0.98:
            self.files.crash_after(self.random.randint(1, 100))
        elif way < 0.985:
            self.files.fail("sync", self.random.randint(1, 5))
        else:
            self._recover()

    def _move_some_job(self) -> None:
        """Take the next one, or run or finish any of those that were taken."""
        job = self._owner.store.take_job() if self.random.random() < 0.5 else None
        if job is not None:
            self._under_way.append(job)
        elif self._under_way:
            job = self.random.choice(self._under_way)
            if id(job) in self._results:
                self._under_way.remove(job)
                self._owner.store.finish_job(job, self._results.pop(id(job)))
            else:
                self._run(job)

    def _run(self, job: Job) -> None:
        try:
            self._results[id(job)] = self._owner.store.run_job(job)
        except StoreFullError:
            self._under_way.remove(job)

    def _look(self) -> None:
        self._owner.commit()
        assert self._oracle.violations(observe(self._owner.store)) == []

    def _move_backup(self) -> None:
        if self._copying is None:
            self._owner.commit()
            self._backup_count += 1
            self._backup_oracle = deepcopy(self._oracle)
            self._copying = self._backed_up(f"/backup{self._backup_count}")
        for _ in range(self.random.choice((1, 3, 50))):
            if next(self._copying, None) is None:
                self._copying = self._backup_oracle = None
                return

    def _backed_up(self, folder: str) -> Generator[int]:
        """Whoever is told that it is done finds it after a power cut."""
        store = self._owner.store
        assert isinstance(store, LogStore)
        yield from store.backup(folder)
        copy = self._opened(self.files.crash(self.random), folder)
        assert self._backup_oracle is not None
        assert self._backup_oracle.violations(observe(copy)) == []

    def _reopen(self) -> None:
        self._let_go()
        self._owner.reopen()
        self._look()

    def _recover(self) -> None:
        self._let_go()
        crash = self.files.kill if self.random.random() < 0.3 else self.files.crash
        self.files = crash(self.random)
        store = self._open()
        seen = observe(store)
        assert self._oracle.violations(seen) == []
        self._oracle.adopt(seen)
        self._owner.resume(store)

    def _let_go(self) -> None:
        """Of what goes on beside the owner."""
        self._under_way, self._results = [], {}
        if self._copying is not None:
            self._copying.close()
        self._copying = self._backup_oracle = None

    def _open(self) -> LogStore:
        self._process.files = self.files
        return self._opened(self.files, FOLDER)

    def _opened(self, files: SimulatedFiles, folder: str) -> LogStore:
        self._opening_count += 1
        options = StoreOptions(segment_bytes=SEGMENT_BYTES, has_job_process=True)
        options = replace(options, archive_bytes_max=self._archive_bytes)
        chance = Random(self._opening_count).randbytes
        return LogStore.open(folder, files, options, now_ms=1, random_bytes=chance)


@pytest.mark.parametrize("first_seed", range(0, 5 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_no_promise_is_broken(monkeypatch: pytest.MonkeyPatch, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        random = Random(f"everything {seed}")
        process = Process(random)
        monkeypatch.setattr(upkeep, "_job_process", partial(_same, process))
        Story(random, process).run()


def _same(process: Process, *, is_kept: bool = True) -> Process:
    """Long merges are done by the same one."""
    return process
