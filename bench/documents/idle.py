"""Open documents at rest: what each keeps in memory, and whether silence costs anything."""

import asyncio
import time
from statistics import median

from bench.documents.links import Door, Link, TryAgainError, Writer
from bench.documents.playing import CLIENT, Result, Task
from bench.documents.servers import DocumentServer, running
from bench.documents.setting import HOCUSPOCUS, Y_WEBSOCKET, Setting, play
from bench.documents.updates import typed_updates
from bench.support.figures import Figure, as_text, at_most, values_table
from bench.support.memory import memory_bytes
from bench.support.processes import BenchError, cpu_seconds

_PART = "idle"
_OPENING_AT_ONCE = 50
_ATTEMPTS_MAX = 8
_BYTES_MAX = 20 * 1024
# Zero, as far as a counter of CPU time can tell: a thousandth of one core.
_CPU_MS_PER_SECOND_MAX = 1.0


# ------------------------------------------------------------------------- what the generator does


async def idle(door: Door, task: Task) -> Result:
    """Many documents with one client each, and silence."""
    pid, count, few = task["pid"], task["document_count"], task["base_count"]
    update = typed_updates(CLIENT, 1)[0]
    links: list[Link] = []
    await asyncio.sleep(task["settle_seconds"])
    empty_cpu = await _cpu_of_silence(pid, task["empty_seconds"])
    memory: dict[int, int] = {}
    refused_count = 0
    for goal in (few, count):
        refused_count += await _open_idle(door, links, goal, update)
        await asyncio.sleep(task["settle_seconds"])
        memory[goal] = memory_bytes(pid)
    await asyncio.sleep(task["rest_seconds"])
    quiet_cpu = await _cpu_of_silence(pid, task["quiet_seconds"])
    cpu = await _cpu_of_silence(pid, task["silence_seconds"])
    lost = [link.goodbye for link in links if link.is_lost]
    if lost:
        raise BenchError(f"the server closed {len(lost)} idle connections: {lost[0]}")
    return {
        "bytes_each": (memory[count] - memory[few]) / (count - few),
        "quiet_cpu_ms_per_second": quiet_cpu * 1e3,
        "cpu_ms_per_second": cpu * 1e3,
        "empty_cpu_ms_per_second": empty_cpu * 1e3,
        "memory_bytes": memory[count],
        "refused_count": refused_count,
    }


async def _open_idle(door: Door, links: list[Link], goal: int, update: bytes) -> int:
    """Each document gets one update, so that there is one to keep open. Returns refusals."""
    refused_count = 0

    async def open_one(number: int) -> Writer:
        nonlocal refused_count
        for attempt in range(_ATTEMPTS_MAX):
            try:
                writer = await door.open_writer(f"idle-{number}")
            except TryAgainError:
                refused_count += 1
                # As clients of y-websocket do it.
                await asyncio.sleep(min(0.1 * 2**attempt, 2.5))
            else:
                writer.send_update(update)
                return writer
        raise BenchError(f"the server refused a connection {_ATTEMPTS_MAX} times")

    while len(links) < goal:
        numbers = range(len(links), min(len(links) + _OPENING_AT_ONCE, goal))
        links += await asyncio.gather(*map(open_one, numbers))
    return refused_count


async def _cpu_of_silence(pid: int, seconds: float) -> float:
    before, began = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    count = setting.plan.idle_count
    peers = [HOCUSPOCUS, Y_WEBSOCKET]
    results = setting.rounds(_PART, peers, lambda server: _run(setting, server))
    keys = (
        "bytes_each",
        "memory_bytes",
        "quiet_cpu_ms_per_second",
        "cpu_ms_per_second",
        "empty_cpu_ms_per_second",
        "refused_count",
    )
    rows = [
        [name, *(as_text(median(one[key] for one in each)) for key in keys)]
        for name, each in results.items()
    ]
    header = [
        "server",
        "bytes each",
        "bytes in all",
        "CPU ms/s",
        "with heartbeats",
        "without documents",
        "refusals",
    ]
    title = f"{count:,} open idle documents, one client each"
    setting.console.print(values_table(title, header, rows))
    return [
        setting.compare(
            _PART,
            results,
            "bytes_each",
            f"bytes per open idle document with one client, {count:,} documents",
            HOCUSPOCUS,
            at_most("<= 20 KB", _BYTES_MAX),
        ),
        setting.compare(
            _PART,
            results,
            "quiet_cpu_ms_per_second",
            f"CPU ms per second of silence, {count:,} open documents",
            HOCUSPOCUS,
            at_most("zero (< 1 ms per second)", _CPU_MS_PER_SECOND_MAX),
        ),
        setting.compare(
            _PART,
            results,
            "cpu_ms_per_second",
            f"the same with the heartbeats of {count:,} connections",
            HOCUSPOCUS,
            None,
        ),
    ]


def _run(setting: Setting, server: DocumentServer) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        keep = folder / "data" if server.name == setting.ours else None
        with running(server, keep, folder / "log") as found:
            return play(
                found,
                "idle",
                document_count=plan.idle_count,
                base_count=plan.idle_base_count,
                settle_seconds=plan.idle_settle_seconds,
                rest_seconds=plan.idle_rest_seconds,
                quiet_seconds=plan.idle_quiet_seconds,
                silence_seconds=plan.idle_silence_seconds,
                empty_seconds=plan.idle_empty_seconds,
            )
