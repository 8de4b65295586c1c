"""`redis-benchmark`, the C client of the Redis project, against any server that speaks RESP."""

import csv
import io
import random
import subprocess
from dataclasses import dataclass

from bench.support.processes import BenchError
from bench.support.servers import Server

# 24 characters with the twelve digits that redis-benchmark puts in: as long as our queue ids.
KEY_PREFIX = b"queue-000000"


@dataclass(frozen=True, slots=True)
class SocketResult:
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def body_of(size: int) -> bytes:
    """Random bytes without a zero: the client would end the argument there."""
    return random.Random(4).randbytes(size).replace(b"\0", b"\1")


def key(index: int) -> bytes:
    return KEY_PREFIX + b"%012d" % index


def append_messages(
    server: Server, *, count: int, connections: int, pipelined: int, queues: int, body: bytes
) -> SocketResult:
    """XADD `count` messages to random queues. Every reply comes after the sync."""
    cpu_before = server.cpu_seconds()
    done = subprocess.run(
        [
            "redis-benchmark",
            *("-h", "127.0.0.1", "-p", str(server.port)),
            *("-c", str(connections), "-P", str(pipelined), "-n", str(count)),
            *("-r", str(queues), "--csv", "-x"),
            *("XADD", f"{KEY_PREFIX.decode()}__rand_int__", "*", "f"),
        ],
        input=body,
        capture_output=True,
        timeout=600,
        check=False,
    )
    cpu = server.cpu_seconds() - cpu_before
    if done.returncode != 0:
        raise BenchError(f"redis-benchmark against {server.name}: {done.stderr.decode()[-500:]}")
    # The first line says that CONFIG was refused where the server has none.
    text = done.stdout.decode()
    rows = list(csv.DictReader(io.StringIO(text[text.index('"test"') :])))
    row = rows[0]
    return SocketResult(
        float(row["rps"]),
        float(row["p50_latency_ms"]),
        float(row["p99_latency_ms"]),
        cpu / count * 1e6,
    )
