"""Clients from npm, each in a Node process of its own, driven over its standard input."""

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CLIENTS = Path(__file__).with_name("clients")
# Long enough for a loaded machine; nothing is asserted about how long it took.
WAIT_SECONDS = 60.0


def install(folder: Path, temporary: Path) -> None:
    """Install what the lock file of `folder` asks for, once for all test processes.

    `temporary` is a folder that they share.
    """
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is missing; install Node.js 20 or later")
    lock = temporary / f"npm-{folder.name}"
    deadline = time.monotonic() + 10 * WAIT_SECONDS
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            if (lock / "done").exists():
                return
            assert time.monotonic() < deadline, f"{lock} is never released"
            time.sleep(0.2)
    if not _is_installed(folder):
        subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True
        )
    (lock / "done").touch()


def _is_installed(folder: Path) -> bool:
    """Whether what is there is what the lock file asks for."""
    marker = folder / "node_modules" / ".package-lock.json"
    if not marker.exists():
        return False
    wanted = json.loads((folder / "package-lock.json").read_text())["packages"]
    found = json.loads(marker.read_text())["packages"]
    return all(
        found.get(name, {}).get("version") == package["version"]
        for name, package in wanted.items()
        if name and not package.get("optional")
    )


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One for all test processes of this run."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


class NpmClient:
    """See clients/driver.mjs and clients/anycable.mjs for what it can be told."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        script = "anycable.mjs" if kind == "anycable" else "driver.mjs"
        self._process = subprocess.Popen(
            ["node", script, kind, url, name],
            cwd=CLIENTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.events: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for(lambda: "ready" in self.events)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            if "event" in message:
                self.events.append(message["event"])
            else:
                self._answers.put(message)

    def say(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def insert(self, at: int, text: str) -> None:
        self.say(insert=[at, text])

    @property
    def text(self) -> str:
        self.say(text=True)
        text: str = self._answers.get(timeout=WAIT_SECONDS)["text"]
        return text

    @property
    def present(self) -> list[Any]:
        self.say(present=True)
        present: list[Any] = self._answers.get(timeout=WAIT_SECONDS)["present"]
        return present

    @property
    def offsets(self) -> list[int]:
        self.say(offsets=True)
        offsets: list[int] = self._answers.get(timeout=WAIT_SECONDS)["offsets"]
        return offsets

    def wait_for_event(self, event: str, count: int = 1) -> None:
        self.wait_for(lambda: self.events.count(event) >= count)

    def wait_for(self, condition: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self._process.poll() is None, f"the client ended: {self._errors()}"
            assert time.monotonic() < deadline, f"it never came: {self.events[-5:]}"
            time.sleep(0.02)

    def wait_for_text(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.text) != text:
            assert time.monotonic() < deadline, f"{found[:200]!r} never became {text[:200]!r}"
            time.sleep(0.02)

    def _errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def npm_clients(kind: str, url: str, name: str, count: int) -> Iterator[list[NpmClient]]:
    clients: list[NpmClient] = []
    try:
        for _ in range(count):
            clients.append(NpmClient(kind, url, name))  # noqa: PERF401  (closed below, one by one)
        yield clients
    finally:
        for client in clients:
            client.close()
