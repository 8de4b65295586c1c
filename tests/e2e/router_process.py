"""A real router in a process of its own, on a free port and a folder of the test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

COMMAND = (sys.executable, "-m", "syncline")
STOP_SECONDS = 30


def environment(**settings: str) -> dict[str, str]:
    """Ours, without settings that the person who runs the tests may have.

    Several routers run at a time, so SMP gets a free port too.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SYNCLINE_")}
    return kept | {"SYNCLINE_SMP_PORT": "0"} | settings


def run_cli(
    *arguments: str | Path, cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    return _run(*COMMAND, *map(str, arguments), cwd=cwd, **settings)


# Root may write anywhere; without its capabilities it is a user like any other.
_WITHOUT_POWERS = """
import ctypes, os
from syncline.cli import main
if os.getuid() == 0:
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0
main()
"""


def run_without_powers(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-c", _WITHOUT_POWERS, *map(str, arguments))


def _run(
    *command: str, cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        check=False,
    )


class RouterProcess:
    command: tuple[str, ...] = COMMAND

    def __init__(self, folder: Path, *arguments: str, **settings: str) -> None:
        self.folder = folder
        self.errors = folder.with_name(f"{folder.name}.stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [
                    *self.command,
                    "serve",
                    "--data",
                    str(folder),
                    "--port",
                    "0",
                    "--json",
                    *arguments,
                ],
                env=environment(**settings),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the router did not start: {self.errors.read_text()}"
        self.announcement = json.loads(line)
        self.url: str = self.announcement["url"].rstrip("/")
        self.client = httpx.Client(base_url=self.url, timeout=STOP_SECONDS)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()

    # What tests do all the time.

    def create(self, quota: int = 0) -> str:
        answer = self.client.post("/api/queues", json={"quota": quota})
        assert answer.status_code == 201, answer.text
        queue: str = answer.json()["queue"]
        return queue

    def append(self, queue: str, body: bytes) -> int:
        answer = self.client.post(f"/api/queues/{queue}/messages", content=body)
        assert answer.status_code == 201, answer.text
        seq: int = answer.json()["seq"]
        return seq

    def seqs(self, queue: str) -> list[int]:
        found: list[int] = []
        while True:
            query = {"from": found[-1] + 1 if found else 0, "count": 1_000}
            answer = self.client.get(f"/api/queues/{queue}/messages", params=query).json()
            if not answer["messages"]:
                return found
            found += [message["seq"] for message in answer["messages"]]


@contextmanager
def running(folder: Path, *arguments: str, **settings: str) -> Iterator[RouterProcess]:
    router = RouterProcess(folder, *arguments, **settings)
    try:
        yield router
    finally:
        router.close()
