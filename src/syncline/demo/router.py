"""A router in a process of its own, that can be stopped, killed, and started again where it was.

- It listens on loopback, on ports that were free at its first start and stay the same.
- Nothing of the caller's own settings reaches it.
- Whoever leaves the block of `running` leaves no process behind, for whatever reason.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import msgspec

from syncline.errors import LinkLostError
from syncline.server.settings import ENVIRONMENT_PREFIX

STOP_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 30.0

# Small files of the log, so that some are full after a minute; and nobody mends digests meanwhile.
SETTINGS: Final = {
    "store.segment_bytes": "65536",
    "store.free_bytes_min": "0",
    "audit.events": "true",
    "smp.walk_hours": "0",
    "log.format": "json",
}


class _Announcement(msgspec.Struct):
    """What a router says once it serves."""

    url: str
    smp: str


class RouterProcess:
    """See the module. `start` before anything else."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """`folder` by its whole path; the one above it has to be there."""
        self.folder = folder
        self.url = ""
        self.smp_address = ""
        self._settings = SETTINGS | dict(settings or {})
        self._http_port = "0"
        self._smp_port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, folder: Path | None = None) -> None:
        """On another folder from now on, if one is given. Raises LinkLostError."""
        assert self._process is None, "one router at a time"
        self.folder = folder or self.folder
        self._process = self._launched()
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise LinkLostError(f"the router did not start; {self._log_path} says why")
        said = msgspec.json.decode(line, type=_Announcement)
        self.url, self.smp_address = said.url.rstrip("/"), said.smp
        self._http_port = self.url.rpartition(":")[2]
        self._smp_port = said.smp.rpartition(":")[2]

    @property
    def _log_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def _launched(self) -> "subprocess.Popen[bytes]":
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                self._command(),
                cwd=self.folder.parent,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is ours to hear; we stop the router ourselves.
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        words = [sys.executable, "-m", "syncline", "serve", "--json"]
        words += ["--data", str(self.folder)]
        words += ["--port", self._http_port, "--smp-port", self._smp_port]
        for name, value in self._settings.items():
            words += ["--set", f"{name}={value}"]
        return words

    def _environment(self) -> dict[str, str]:
        own = {n: v for n, v in os.environ.items() if not n.startswith(ENVIRONMENT_PREFIX)}
        # Whatever `syncline.toml` lies about here is not for this router.
        return own | {f"{ENVIRONMENT_PREFIX}CONFIG": os.devnull}

    async def stop(self) -> None:
        """As an operator would: it takes leave of everybody. Raises LinkLostError if it fails."""
        code = await self._end(signal.SIGTERM)
        if code:
            raise LinkLostError(f"the router ended with code {code}")

    async def kill(self) -> None:
        """Like a crash of the machine, but for what the operating system has taken over."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None, "there is no router"
        process.send_signal(number)
        try:
            code = await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise LinkLostError(f"the router did not end in {STOP_SECONDS:.0f} s") from error
        self._forget()
        return code

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    async def get(self, path: str) -> dict[str, Any]:
        """What the operator's API answers."""
        return await asyncio.to_thread(self._asked, Request(self.url + path))

    async def back_up(self, target: Path) -> None:
        """While it serves; `target` by its whole path. Raises LinkLostError if it ends early."""
        body = msgspec.json.encode({"folder": str(target)})
        headers = {"content-type": "application/json"}
        request = Request(f"{self.url}/api/backup", body, headers, method="POST")
        last = await asyncio.to_thread(self._asked, request)
        if not last.get("done"):
            raise LinkLostError(f"the backup ended early: {last}")

    def _asked(self, request: Request) -> dict[str, Any]:
        """The last line of the answer."""
        with urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            lines: list[bytes] = answer.read().splitlines()
        return msgspec.json.decode(lines[-1], type=dict[str, Any])

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["RouterProcess"]:
        """Started, and gone at the end, unless it was stopped before."""
        try:
            await self.start()
            yield self
        finally:
            # Not asked nicely: whoever wants that has called `stop`.
            self._forget()
