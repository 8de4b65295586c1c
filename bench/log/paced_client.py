"""Sends messages at a steady rate that nobody reads, in a process of its own.

Each connection has one message under way. The time of a message counts from when it was due, not
from when it could be sent: whoever keeps a sender waiting is charged for all that should have come
meanwhile.

    python -m bench.log.paced_client '{"port": …, "rate": …, "seconds": …, …}'
"""

import asyncio
import json
import random
import sys
import time
from typing import Any

import uvloop

from bench.log.resp import request
from bench.support.redis_benchmark import key

_REPLY_BYTES_MAX = 1 << 16


async def send(
    port: int, number: int, task: dict[str, Any], body: bytes, seconds: list[float]
) -> None:
    """One connection, until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_REPLY_BYTES_MAX)
    chance = random.Random(number)
    clock = time.perf_counter
    period = task["connections"] / task["rate"]
    due = clock() + chance.random() * period
    end = clock() + task["seconds"]
    while due < end:
        if (pause := due - clock()) > 0:
            await asyncio.sleep(pause)
        queue = key(chance.randrange(task["queue_count"]))
        writer.write(request(b"XADD", queue, b"*", b"f", body))
        length = await reader.readline()
        if not length.startswith(b"$"):
            raise ConnectionError(f"unexpected reply {length!r}")
        await reader.readline()
        seconds.append(clock() - due)
        due += period
    writer.close()


async def main(task: dict[str, Any]) -> dict[str, float]:
    body = random.Random(4).randbytes(task["body_bytes"])
    seconds: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(task["connections"]):
            tasks.create_task(send(task["port"], number, task, body, seconds))
    seconds.sort()
    return {
        "message_count": len(seconds),
        "p50_ms": seconds[len(seconds) // 2] * 1e3,
        "p99_ms": seconds[len(seconds) * 99 // 100] * 1e3,
        "longest_ms": seconds[-1] * 1e3,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(main(json.loads(sys.argv[1])))) + "\n")
