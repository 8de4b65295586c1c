"""The servers under test: how each starts, where a document is, how it speaks.

Another server is one more class here.
"""

import contextlib
import http.client
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from bench.documents.installing import cache_folder, peer_script, why_no_npm_peers
from bench.support.processes import BenchError, free_port, start, stop, wait_until_listening

_READY_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Launch:
    command: list[str]
    environment: dict[str, str]


Style = Literal["plain", "hocuspocus", "bare"]
Sign = Literal["status", "relay"]


class DocumentServer(Protocol):
    name: ClassVar[str]
    # How frames look: bench.documents.framing.
    style: ClassVar[Style]
    # What tells an author that an update is safe: the server's word, or that others have it.
    acknowledged_by: ClassVar[Sign]

    def why_missing(self) -> str | None: ...

    def launch(self, port: int, folder: Path | None) -> Launch:
        """With a folder it keeps documents there; without, in memory if it can."""
        ...

    def url(self, port: int) -> str:
        """With `{document}` where the name goes."""
        ...

    def wait_until_ready(self, port: int) -> None:
        """Once it listens."""
        ...


class Syncline:
    """Our router. There is no mode without a disk: it is durable in every part of the bench."""

    name: ClassVar[str] = "Syncline"
    style: ClassVar[Style] = "plain"
    acknowledged_by: ClassVar[Sign] = "relay"

    def why_missing(self) -> str | None:
        return None if os.access(self._program, os.X_OK) else "`syncline` is not installed"

    @property
    def _program(self) -> Path:
        return Path(sys.executable).parent / "syncline"

    def launch(self, port: int, folder: Path | None) -> Launch:
        assert folder is not None
        # Limits against one peer that takes too much: the generator is one peer, playing thousands.
        # The servers of others have no such limits.
        environment = {
            "SYNCLINE_STORE_FOLDER": str(folder),
            "SYNCLINE_HTTP_PORT": str(port),
            "SYNCLINE_SMP_ENABLED": "false",
            "SYNCLINE_WEBSOCKET_CONNECTION_COUNT_MAX": "100000",
            "SYNCLINE_WEBSOCKET_CONNECTIONS_PER_ADDRESS_MAX": "100000",
            "SYNCLINE_WEBSOCKET_MESSAGES_PER_SECOND": "1000000",
            "SYNCLINE_WEBSOCKET_BYTES_PER_SECOND": str(1 << 30),
        }
        return Launch([str(self._program), "serve"], environment)

    def url(self, port: int) -> str:
        return f"ws://127.0.0.1:{port}/yjs/{{document}}"

    def wait_until_ready(self, port: int) -> None:
        """It listens while it recovers, and says so."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while time.monotonic() < deadline:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == http.client.OK:
                    return
            time.sleep(0.01)
        raise BenchError(f"the router is not ready after {_READY_SECONDS_MAX} s")


class Hocuspocus:
    name: ClassVar[str] = "Hocuspocus"
    style: ClassVar[Style] = "hocuspocus"
    acknowledged_by: ClassVar[Sign] = "status"

    def why_missing(self) -> str | None:
        return why_no_npm_peers()

    def launch(self, port: int, folder: Path | None) -> Launch:
        environment = {"PORT": str(port), "NODE_ENV": "production"}
        if folder is not None:
            environment["FOLDER"] = str(folder)
        return Launch(["node", str(peer_script("hocuspocus.mjs"))], environment)

    def url(self, port: int) -> str:
        return f"ws://127.0.0.1:{port}/"

    def wait_until_ready(self, port: int) -> None:
        pass


class YWebsocket:
    """The stock server of y-websocket, with its LevelDB where documents are to be kept."""

    name: ClassVar[str] = "y-websocket server"
    style: ClassVar[Style] = "plain"
    acknowledged_by: ClassVar[Sign] = "relay"

    def why_missing(self) -> str | None:
        return why_no_npm_peers()

    def launch(self, port: int, folder: Path | None) -> Launch:
        environment = {"HOST": "127.0.0.1", "PORT": str(port), "NODE_ENV": "production"}
        if folder is not None:
            environment["YPERSISTENCE"] = str(folder)
        script = cache_folder() / "node_modules" / "@y" / "websocket-server" / "src" / "server.js"
        return Launch(["node", str(script)], environment)

    def url(self, port: int) -> str:
        return f"ws://127.0.0.1:{port}/{{document}}"

    def wait_until_ready(self, port: int) -> None:
        pass


class PycrdtWebsocket:
    name: ClassVar[str] = "pycrdt-websocket"
    style: ClassVar[Style] = "plain"
    acknowledged_by: ClassVar[Sign] = "relay"

    def why_missing(self) -> str | None:
        found = importlib.util.find_spec("pycrdt.websocket")
        return None if found else "the Python package pycrdt-websocket is not installed"

    def launch(self, port: int, folder: Path | None) -> Launch:
        assert folder is None
        return Launch([sys.executable, "-m", "bench.documents.pycrdt_server", str(port)], {})

    def url(self, port: int) -> str:
        return f"ws://127.0.0.1:{port}/{{document}}"

    def wait_until_ready(self, port: int) -> None:
        pass


class BareRelay:
    """A relay without documents (bench.documents.relay)."""

    name: ClassVar[str] = "bare relay"
    style: ClassVar[Style] = "bare"
    acknowledged_by: ClassVar[Sign] = "relay"

    def why_missing(self) -> str | None:
        return None

    def launch(self, port: int, folder: Path | None) -> Launch:
        return Launch([sys.executable, "-m", "bench.documents.relay", str(port)], {})

    def url(self, port: int) -> str:
        return f"ws://127.0.0.1:{port}/{{document}}"

    def wait_until_ready(self, port: int) -> None:
        pass


SERVERS: dict[str, DocumentServer] = {
    server.name: server
    for server in (Syncline(), Hocuspocus(), YWebsocket(), PycrdtWebsocket(), BareRelay())
}


@dataclass(frozen=True, slots=True)
class Running:
    server: DocumentServer
    port: int
    process: subprocess.Popen[bytes]
    started_at: float

    def task(self) -> dict[str, object]:
        """What the generator has to know of it."""
        return {
            "url": self.server.url(self.port),
            "style": self.server.style,
            "pid": self.process.pid,
        }


def start_server(server: DocumentServer, folder: Path | None, log: Path) -> Running:
    port = free_port()
    launch = server.launch(port, folder)
    started_at = time.perf_counter()
    process = start(launch.command, log=log, environment=launch.environment)
    try:
        wait_until_listening(process, port, log)
        server.wait_until_ready(port)
    except BaseException:
        stop(process)
        raise
    return Running(server, port, process, started_at)


@contextlib.contextmanager
def running(server: DocumentServer, folder: Path | None, log: Path) -> Iterator[Running]:
    found = start_server(server, folder, log)
    try:
        yield found
    finally:
        stop(found.process)
