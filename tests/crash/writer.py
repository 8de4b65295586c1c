"""A program whose processes work on a real store until they are stopped: by a signal or the disk.

Each does random work, drawn from a seed, and tells of it as `reports` has it. Exit codes: 0 when
all steps are done, 3 with a sentence on standard error when the store gives up, 1 with a traceback
for what should not happen.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from random import Random
from traceback import print_exc
from typing import Any, NoReturn

from syncline.errors import StorageError, StoreFullError
from syncline.storage.base import Store
from syncline.storage.files import DiskFiles, Files
from syncline.storage.log import opening, sealing, table, upkeep
from syncline.testing.clock import START_MS
from syncline.testing.owner import StoreOwner
from syncline.testing.workload import Workload, WorkloadShape
from tests.crash.conftest import ADOPTED_SHARE, SLOT_COUNT
from tests.crash.flawed_files import DeafFiles
from tests.crash.reports import EarlyReporter, Reporter
from tests.crash.subjects import SMALL, open_subject
from tests.storage.process_files import ProcessFiles

STORE_FAILED = 3
HOUR_MS = 60 * 60 * 1000
# Nobody waits for a writer that was forgotten.
SECONDS_MAX = 120
# A descriptor that no process has.
_NO_FILE = 1 << 30

# What stores import only once they need it. Here before a fault can hit the import itself.
LATE_MODULES = (
    "syncline.storage.log.liveness",
    "syncline.storage.log.merging",
    "syncline.storage.log.sealing",
    "syncline.storage.log.worker",
)

# Syncs nothing; does not hear that a sync failed.
FLAWED_FILES: dict[str, Callable[[], Files]] = {"unsynced": ProcessFiles, "deaf": DeafFiles}

# Fills segments and the table within a few hundred steps.
SHAPE = WorkloadShape(stream_count=80, large_share=0.15)


@dataclass(frozen=True, slots=True)
class Work:
    """`flaw` makes the writer break its promise: `early`, or one of FLAWED_FILES."""

    kind: str
    folder: str
    report: str
    seed: int = 0
    # Each round of work on a folder starts an hour after the one before.
    round_number: int = 0
    step_count: int = 1_000_000
    has_job_process: bool = False
    flaw: str = ""


def nothing() -> None:
    pass


class PatientOwner(StoreOwner):
    """Goes on when there is no room for a batch or a job."""

    def __init__(self, open_store: Callable[[], Store], reporter: Reporter, store: Store) -> None:
        super().__init__(lambda: store, reporter)
        self._open_store = open_store
        self._reporter = reporter
        # Only a store that cuts batches may leave some out.
        reporter.held_back_count = lambda: getattr(self.store, "held_back_count", 0)

    def commit(
        self,
        *,
        acknowledgements: bool = True,
        while_writing: Callable[[], None] = nothing,
        before_finishing: Callable[[], None] = nothing,
    ) -> None:
        if hasattr(self.store, "held_back_count"):
            # It cuts batches, and refuses none of them.
            super().commit(
                acknowledgements=acknowledgements,
                while_writing=while_writing,
                before_finishing=before_finishing,
            )
            return
        self._reporter.batch_taken(acknowledgements=acknowledgements)
        batch = self.store.take_batch(acknowledgements=acknowledgements)
        if batch is not None:
            while_writing()
            try:
                self.store.write_batch(batch)
            except StoreFullError:
                self._take_back()
                return
            before_finishing()
            self.store.finish_batch(batch)
        self._reporter.batch_finished()

    def move_job(self) -> None:
        try:
            super().move_job()
        except StoreFullError:
            self.refused_count += 1

    def do_jobs(self) -> None:
        try:
            super().do_jobs()
        except StoreFullError:
            self.refused_count += 1

    def reopen(self) -> None:
        closed = self.store
        try:
            super().reopen()
        except StoreFullError:
            # Closing in order found no room, but closed.
            self._reporter.batch_refused()
            self.resume(self._open_store())
        if getattr(closed, "held_back_count", 0):
            for stream in sorted(self.alive):
                self._reporter.first_found(stream, self.store.state(stream).first)

    def _take_back(self) -> None:
        """Everything staged is gone, and the batch after it is refused as well: let that pass."""
        self.refused_count += 1
        self._reporter.batch_refused()
        batch = self.store.take_batch()
        if batch is not None:
            with suppress(StoreFullError):
                self.store.write_batch(batch)
                self.store.finish_batch(batch)
        self.alive = set(self.store.streams())


def run(work: Work, shape: WorkloadShape = SHAPE) -> None:
    """Work until all steps are done. Raises StorageError."""
    reporter = EarlyReporter(work.report) if work.flaw == "early" else Reporter(work.report)
    files = FLAWED_FILES.get(work.flaw, DiskFiles)()
    options = replace(SMALL, has_job_process=work.has_job_process)
    now_ms = START_MS + work.round_number * HOUR_MS
    open_store = partial(
        open_subject, work.kind, files, work.folder, options, seed=work.seed, now_ms=now_ms
    )
    reporter.opening()
    # The same streams in every round.
    random = Random("streams")
    workload = Workload(open_store, reporter, random, shape)
    owner = PatientOwner(open_store, reporter, workload.owner.store)
    owner.clock.step_to(now_ms)
    workload.owner = owner
    random.seed(work.seed)
    workload.run(work.step_count)
    owner.commit()
    owner.store.close()
    reporter.closed()


def run_to_exit(work: Work, shape: WorkloadShape = SHAPE) -> int:
    """Work and return the exit code."""
    try:
        run(work, shape)
    except StorageError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return STORE_FAILED
    return 0


def use_small_log() -> None:
    """What the fixture of this folder does for the tests."""
    for module in (table, opening):
        setattr(module, "CAPACITY_MIN", SLOT_COUNT)  # noqa: B010 it is a constant elsewhere
    setattr(sealing, "ADOPTED_SHARE", ADOPTED_SHARE)  # noqa: B010 so is this
    setattr(upkeep, "LONG_MERGE_SEGMENTS", 0)  # noqa: B010 and this


# ---- As a program ----


def burn(call: str, count: int) -> None:
    """Make a system call `count` times in vain: whoever counts them is moved on by as many."""
    for _ in range(count):
        with suppress(OSError):
            _CALLS_IN_VAIN[call]()


_CALLS_IN_VAIN: dict[str, Callable[[], object]] = {
    "sync": lambda: os.fdatasync(_NO_FILE),
    "sync_folder": lambda: os.fsync(_NO_FILE),
    "write": lambda: os.pwritev(_NO_FILE, [b""], 0),
    "truncate": lambda: os.ftruncate(_NO_FILE, 0),
    "open": lambda: os.open("", os.O_RDONLY),
    "rename": lambda: os.rename("", ""),
    "remove": lambda: os.unlink(""),
}


def _live(order: dict[str, Any]) -> NoReturn:
    """The life of a forked writer."""
    os.setsid()
    # However it hangs, it ends.
    signal.alarm(SECONDS_MAX)
    work = Work(**order["work"])
    errors = os.open(f"{work.report}.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, sys.stderr.fileno())
    code = 1
    try:
        shape = WorkloadShape(**order.get("shape", {})) if "shape" in order else SHAPE
        burn(order.get("burnt_call", "open"), order.get("burnt_count", 0))
        code = run_to_exit(work, shape)
    except BaseException:  # noqa: BLE001 it is the end of the process
        print_exc()
    sys.stderr.flush()
    # Without tidying up: what a store left open is its business.
    os._exit(code)


def main() -> None:
    """Fork a writer for each order that comes in, and tell how it ended when asked.

    So a test pays for the start of Python once. Orders and answers are lines of JSON:

        {"work": {...}}  ->  {"process_id": 17}
        {"ended": 17}    ->  {"code": -9}
    """
    use_small_log()
    for name in LATE_MODULES:
        import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            process_id = os.fork()
            if process_id == 0:
                _live(order)
            answer = {"process_id": process_id}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
