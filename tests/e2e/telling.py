"""Run a command with a deadline; one that is stuck tells where, before it is ended.

Of Spark there are several processes, and any of them may be the one that does not go on.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.support.processes import family

_DUMP_SECONDS = 2


def run_telling(
    command: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Raises AssertionError with the stacks of all its processes if it takes longer."""
    process = subprocess.Popen(
        command,
        # With this, SIGABRT makes a Python write down what its threads are at.
        env={**environment, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _make_tell(process.pid)
        out, errors = process.communicate(timeout=30)
        raise AssertionError(f"{seconds} s were not enough:\n{out}\n{errors}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _make_tell(pid: int) -> None:
    """The youngest first: who hears of a child's end goes on and is somewhere else."""
    everybody = list(family(pid))
    virtual_machines = [each for each in everybody if _name(each) == "java"]
    for each in virtual_machines:
        _signal(each, signal.SIGQUIT)
    time.sleep(_DUMP_SECONDS)
    for each in reversed(everybody):
        if each not in virtual_machines:
            _signal(each, signal.SIGABRT)
    time.sleep(_DUMP_SECONDS)
    for each in everybody:
        _signal(each, signal.SIGKILL)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
