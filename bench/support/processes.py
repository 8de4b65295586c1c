"""Child processes of a bench: start, wait until they listen, count their CPU, end them by id."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A measurement could not be made; the sentence says why."""


def child_environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def run_worker(module: str, task: Mapping[str, object], *, seconds_max: float = 900) -> Any:
    """Run `python -m module` with a task as JSON, in a fresh process; return its last line."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, json.dumps(task)],
            cwd=ROOT,
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{task} was not done after {seconds_max:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BenchError(f"{task} failed: {lines[-1]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def start(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=child_environment() | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def stop(process: subprocess.Popen[bytes], *, seconds_max: float = 20) -> None:
    """Ask first; a process that does not listen is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(seconds_max)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until_listening(
    process: subprocess.Popen[bytes], port: int, log: Path, *, seconds_max: float = 20
) -> None:
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    tail = log.read_text(errors="replace")[-2000:]
    raise BenchError(f"{process.args!r} does not listen on port {port}: {tail}")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its ended children and its living descendants."""
    return sum(_cpu_of_one(each) for each in list(family(pid)))


def _cpu_of_one(pid: int) -> float:
    """Living threads to the nanosecond, ended children to the tick."""
    nanoseconds = ticks = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
        # After the name, which stands in brackets and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[13]) + int(fields[14])
    return nanoseconds / 1e9 + ticks / _TICKS_PER_SECOND


def own_cpu_seconds() -> float:
    """The same for this process, with its ended threads."""
    ended = os.times()
    living = sum(cpu_seconds(child) for child in _children(os.getpid()))
    return time.process_time() + ended.children_user + ended.children_system + living


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for child in _children(pid):
        yield from family(child)


def _children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, thread.read_text().split())
