"""A router in a process of its own, for as long as one measurement takes."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.support.processes import BenchError, start, stop

_START_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True)
class RunningRouter:
    address: str
    process: subprocess.Popen[bytes]
    # From the start of the process until it served.
    start_seconds: float

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def running_router(
    folder: Path, *, profile: Path | None = None, **settings: object
) -> Iterator[RunningRouter]:
    """Settings by name, as `smp_quota=1000`; `profile` is where it notes its CPU time, if asked."""
    log = folder.with_name(f"{folder.name}.log")
    given = {f"SYNCLINE_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {
        "SYNCLINE_STORE_FOLDER": str(folder),
        "SYNCLINE_HTTP_PORT": "0",
        "SYNCLINE_SMP_PORT": "0",
        "SYNCLINE_LOG_LEVEL": "error",
        **given,
    }
    # Routers before this one on the same folder have announced themselves too.
    log.unlink(missing_ok=True)
    began = time.perf_counter()
    program = ["syncline"] if profile is None else ["bench.queues.profiled", str(profile)]
    command = [sys.executable, "-m", *program, "serve", "--json"]
    process = start(command, log=log, environment=environment)
    try:
        address = _announced(process, log)
        yield RunningRouter(address, process, time.perf_counter() - began)
    finally:
        stop(process, seconds_max=60)


def _announced(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if '"smp":' in line:
                address: str = json.loads(line)["smp"]
                return address
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise BenchError(f"the router does not serve: {log.read_text(errors='replace')[-2000:]}")
