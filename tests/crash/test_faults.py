"""Each system call of one scenario fails in turn: the store ends with a sentence or goes on.

`strace` injects the fault into the real calls of a real process. It counts calls from the start of
a process, at one fixed number; a writer that is to meet its n-th call makes as many in vain before
it begins. So all runs of a sweep share one `strace`.
"""

import re
import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.crash.reports import lines_of
from tests.crash.writer import STORE_FAILED, Work
from tests.crash.writer_process import Nursery, WriterProcess, check_folder, patient_oracle

# The system calls behind what a store does to its files. Which of several names one has depends on
# the machine; a question mark tells strace that it may not know it.
CALLS = {
    "sync": ("fdatasync",),
    "sync_folder": ("fsync",),
    "write": ("?pwritev", "?pwritev2"),
    "truncate": ("?ftruncate", "?ftruncate64"),
    "open": ("openat",),
    "rename": ("?rename", "?renameat", "?renameat2"),
    "remove": ("?unlink", "?unlinkat"),
}
OPERATIONS = {name.strip("?"): operation for operation, names in CALLS.items() for name in names}
# At which call of a process the fault sits: behind all that it makes by itself. Python opens many
# files while it starts.
CALL_NUMBERS = dict.fromkeys(CALLS, 500) | {"open": 3_000}
# A writer opens two files of its own before it opens the store: they are no part of the sweep.
FIRST_NUMBERS = dict.fromkeys(CALLS, 1) | {"open": 3}

# Which operations fail how, in the words of strace.
FAULTS = {
    "error=EIO": tuple(CALLS),
    "error=ENOSPC": ("write", "rename", "open"),
    "signal=KILL": tuple(CALLS),
}
# After these no store can go on behind its back, unless the file was being made and holds nothing.
FATAL = {("error=EIO", "sync"), ("error=EIO", "sync_folder"), ("error=EIO", "write")}

# Of each operation so many are chosen, evenly; the long suite takes them all.
RUNS_PER_OPERATION = 3
STEP_COUNT = 110
SEED = 3
SHAPE = {"stream_count": 60, "large_share": 0.4}

_LINE = re.compile(r"(?P<process_id>\d+) +(?P<call>\w+)\((?P<rest>.*)")


@cache
def why_no_strace() -> str | None:
    if shutil.which("strace") is None:
        return "strace not found"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False
    )
    return None if done.returncode == 0 else "tracing processes is not allowed here"


@contextmanager
def traced_nursery(trace: Path, *faults: str) -> Iterator[Nursery]:
    """Writers whose calls are written down in `trace`, and fail as `faults` say."""
    reason = why_no_strace()
    if reason is not None:
        pytest.skip(reason)
    calls = f"trace={','.join(name for names in CALLS.values() for name in names)},write"
    injected = [word for fault in faults for word in ("-e", f"inject={fault}")]
    with Nursery(
        *(
            "strace",
            "-f",
            "-qq",
            "-y",
            "-o",
            str(trace),
            "-e",
            calls,
            "-e",
            "signal=none",
            *injected,
        )
    ) as nursery:
        yield nursery


@dataclass(frozen=True, slots=True)
class TracedCall:
    operation: str
    is_injected: bool
    is_acknowledgement: bool
    # Of a file that is prepared for later, and holds nothing yet.
    is_on_spare: bool


def traced_calls(trace: Path) -> dict[int, list[TracedCall]]:
    """The calls of each process, in order."""
    found: dict[int, list[TracedCall]] = defaultdict(list)
    with trace.open(errors="replace") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match is not None:
                operation = OPERATIONS.get(match["call"], "report")
                is_acknowledgement = operation == "report" and '"finished' in match["rest"]
                calls = found[int(match["process_id"])]
                is_on_spare = "/wal/spare-" in match["rest"] or (
                    # Of the folder that the file is in, once it is whole.
                    operation == "sync_folder" and _was_on_spare(calls)
                )
                is_injected = "(INJECTED)" in line
                calls.append(TracedCall(operation, is_injected, is_acknowledgement, is_on_spare))
    return found


def _was_on_spare(calls: Sequence[TracedCall]) -> bool:
    """The last of them but for opening the folder."""
    return next((made.is_on_spare for made in reversed(calls) if made.operation != "open"), False)


class Sweep:
    """Runs the scenario of a kind of store in a folder of its own each time."""

    def __init__(self, folder: Path, kind: str, flaw: str = "") -> None:
        self._folder = folder
        self._kind = kind
        self._flaw = flaw
        self._run_count = 0

    def count_calls(self) -> Counter[str]:
        """How often the scenario makes each call when nothing fails."""
        trace = self._folder / "trace"
        work = self._work()
        with traced_nursery(trace) as nursery, nursery.start(work, shape=SHAPE) as writer:
            assert writer.wait() == 0, writer.errors
        assert lines_of(Path(work.report))[-1] == b"closed"
        return Counter(call.operation for call in traced_calls(trace)[writer.process_id])

    def run(self, nursery: Nursery, operation: str, number: int) -> tuple[Work, WriterProcess]:
        """The scenario with its `number`-th operation of a kind failing, counted from 1."""
        work = self._work()
        burnt_count = CALL_NUMBERS[operation] - number
        with nursery.start(
            work, shape=SHAPE, burnt_call=operation, burnt_count=burnt_count
        ) as writer:
            writer.wait()
        return work, writer

    def _work(self) -> Work:
        self._run_count += 1
        folder = self._folder / str(self._run_count)
        folder.mkdir()
        return Work(
            *(self._kind, str(folder / "data"), str(folder / "report")),
            seed=SEED,
            step_count=STEP_COUNT,
            flaw=self._flaw,
        )


def chosen(first: int, last: int, count_max: int | None) -> list[int]:
    """All numbers from `first` to `last`, or some that are evenly apart."""
    count = last - first + 1
    if count_max is None or count <= count_max:
        return list(range(first, last + 1))
    return sorted({first + step * (count - 1) // (count_max - 1) for step in range(count_max)})


def sweep_faults(folder: Path, kind: str, fault: str, runs_per_operation: int | None) -> None:
    sweep = Sweep(folder, kind)
    counts = sweep.count_calls()
    trace = folder / "trace"
    faults = [
        f"{','.join(CALLS[operation])}:{fault}:when={CALL_NUMBERS[operation]}"
        for operation in FAULTS[fault]
    ]
    runs: list[tuple[str, int, Work, WriterProcess]] = []
    with traced_nursery(trace, *faults) as nursery:
        for operation in FAULTS[fault]:
            assert 0 < counts[operation] < CALL_NUMBERS[operation], f"{operation}: {counts}"
            runs.extend(
                (operation, number, *sweep.run(nursery, operation, number))
                for number in chosen(
                    FIRST_NUMBERS[operation], counts[operation], runs_per_operation
                )
            )
    calls = traced_calls(trace)
    for operation, number, work, writer in runs:
        what = f"{kind}, {fault} at {operation} {number}: {writer.errors}"
        check_end(fault, operation, writer, calls[writer.process_id], what)
        found = check_folder(work, patient_oracle(kind))
        assert not found, f"{what}\n" + "\n".join(map(str, found[:10]))


def check_end(
    fault: str, operation: str, writer: WriterProcess, calls: list[TracedCall], what: str
) -> None:
    """The fault was met, and the process ended as it should."""
    if fault == "signal=KILL":
        assert writer.code == -signal.SIGKILL, what
        return
    assert "Traceback" not in writer.errors, what
    places = [index for index, made in enumerate(calls) if made.is_injected]
    assert len(places) == 1, what
    assert calls[places[0]].operation == operation, what
    if (fault, operation) in FATAL and not calls[places[0]].is_on_spare:
        assert writer.code == STORE_FAILED, what
        assert not any(made.is_acknowledgement for made in calls[places[0] :]), what
    else:
        assert writer.code in (0, STORE_FAILED), what
    # A sentence if it ended, and only then.
    assert bool(writer.errors.strip()) == (writer.code == STORE_FAILED), what


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["log", "journal"])
def test_a_failing_call_costs_nothing_acknowledged(
    quick_folder: Path, kind: str, fault: str
) -> None:
    sweep_faults(quick_folder, kind, fault, RUNS_PER_OPERATION)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["log", "journal"])
def test_no_failing_call_costs_anything_acknowledged(
    quick_folder: Path, kind: str, fault: str
) -> None:
    sweep_faults(quick_folder, kind, fault, None)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["log", "journal"])
def test_a_store_that_does_not_hear_of_a_failed_sync_is_caught(
    quick_folder: Path, kind: str
) -> None:
    sweep = Sweep(quick_folder, kind, flaw="deaf")
    trace = quick_folder / "trace"
    fault = f"fdatasync:error=EIO:when={CALL_NUMBERS['sync']}"
    with traced_nursery(trace, fault) as nursery:
        _, writer = sweep.run(nursery, "sync", 20)
    calls = traced_calls(trace)[writer.process_id]
    assert sum(call.is_injected for call in calls) == 1
    with pytest.raises(AssertionError):
        check_end("error=EIO", "sync", writer, calls, "caught")
