"""A Redis of our own: append-only file, fsync before every reply, in a folder that goes away."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.support.processes import free_port, start, stop, wait_until_listening
from bench.support.servers import Server


def missing() -> str | None:
    """What to install, or None."""
    for tool, package in (
        ("redis-server", "redis-server"),
        ("redis-benchmark", "redis-tools"),
    ):
        if shutil.which(tool) is None:
            return f"{tool} not found: install the distribution's package {package}"
    return None


def version() -> str:
    words = subprocess.run(
        ["redis-server", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    return next((word.removeprefix("v=") for word in words if word.startswith("v=")), "unknown")


@contextlib.contextmanager
def redis_always(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "server.log"
    process = start(
        [
            "redis-server",
            *("--port", str(port)),
            *("--bind", "127.0.0.1"),
            *("--dir", str(folder)),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            # No snapshot and no rewrite in the middle of a round.
            *("--save", ""),
            *("--auto-aof-rewrite-percentage", "0"),
        ],
        log=log,
    )
    try:
        wait_until_listening(process, port, log)
        yield Server("Redis", port, process.pid)
    finally:
        stop(process)
