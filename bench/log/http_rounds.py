"""Our HTTP API over the socket: reported without a bar, it is the operator's API."""

import contextlib
import http.client
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.log.plan import KB
from bench.log.setting import Setting
from bench.support.processes import (
    BenchError,
    free_port,
    run_worker,
    start,
    stop,
    wait_until_listening,
)
from bench.support.servers import Server

_QUEUE_COUNT = 256
_CONNECTIONS = 64
_READY_SECONDS_MAX = 60


@contextlib.contextmanager
def router(folder: Path) -> Iterator[Server]:
    """The real one, as `syncline serve` starts it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder.parent / "router.log"
    process = start(
        [str(Path(sys.executable).parent / "syncline"), "serve"],
        log=log,
        environment={
            "SYNCLINE_STORE_FOLDER": str(folder),
            "SYNCLINE_HTTP_PORT": str(port),
            "SYNCLINE_SMP_ENABLED": "false",
        },
    )
    try:
        wait_until_listening(process, port, log)
        _wait_until_ready(port)
        yield Server("syncline serve", port, process.pid)
    finally:
        stop(process)


def _wait_until_ready(port: int) -> None:
    """It listens while it recovers, and says so."""
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        time.sleep(0.02)
    raise BenchError(f"the router is not ready after {_READY_SECONDS_MAX} s")


def measure_http(setting: Setting) -> list[dict[str, float]]:
    """One run a round; empty where the command is not installed."""
    if not os.access(Path(sys.executable).parent / "syncline", os.X_OK):
        setting.console.print("[yellow]The HTTP API is left out: `syncline` is not installed[/]")
        return []
    results: list[dict[str, float]] = []
    for _ in range(setting.plan.round_count):
        setting.doing("appends through the HTTP API")
        with setting.fresh_folder() as folder, router(folder) as server:
            task = {
                "port": server.port,
                "server_pid": server.pid,
                "connections": _CONNECTIONS,
                "message_count": setting.plan.http_count,
                "queue_count": _QUEUE_COUNT,
                "body_bytes": 1 * KB,
            }
            results.append(run_worker("bench.log.http_client", task))
    return results
