"""A reader that never reads: what it costs the server while others go on."""

import asyncio
import time
from statistics import median

from bench.documents.links import Door, Reader
from bench.documents.playing import CLIENT, Pump, Result, Task
from bench.documents.servers import DocumentServer, running
from bench.documents.setting import HOCUSPOCUS, Y_WEBSOCKET, Setting, play
from bench.documents.updates import replaced_updates
from bench.support.figures import Figure, as_text, at_most, values_table
from bench.support.memory import process_memory_bytes
from bench.support.processes import BenchError
from syncline.server.websocket import WebSocketLimits

_PART = "stuck reader"
_SECONDS_MAX = 300


# ------------------------------------------------------------------------- what the generator does


async def stuck(door: Door, task: Task) -> Result:
    """A reader that never reads, beside one that does: what it costs the server in memory."""
    pid, size = task["pid"], task["update_bytes"]
    updates = replaced_updates(CLIENT, task["total_bytes"] // size, size)
    writer = await door.open_writer("stuck")
    frames = [writer.framing.update(update) for update in updates]
    del updates
    pump = Pump(writer, frames, task["window"], 1)
    reader = await door.open_reader("stuck", pump.delivered)
    sleeper: Reader | None = None
    if task["has_stuck_reader"]:
        sleeper = await door.open_reader("stuck")
        sleeper.stop_reading()
    # Without the process that seals segments: it does so whoever reads, now or a little later.
    before = peak = process_memory_bytes(pid)
    pump.turn()
    deadline = time.perf_counter() + task["seconds_max"]
    while reader.update_count < len(frames):
        if time.perf_counter() > deadline:
            raise BenchError(f"{reader.update_count} of {len(frames)} updates were relayed in time")
        await asyncio.sleep(0.1)
        peak = max(peak, process_memory_bytes(pid))
    return {"growth_bytes": peak - before, "relayed_bytes": len(frames) * size}


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    total = setting.plan.stuck_total_bytes
    limit = WebSocketLimits().waiting_bytes_max
    peers = [HOCUSPOCUS, Y_WEBSOCKET]
    results = setting.rounds(_PART, peers, lambda server: _run(setting, server))
    keys = ("growth_bytes", "growth_bytes_without", "cost_bytes")
    rows = [
        [name, *(as_text(median(one[key] for one in each) / 1e6) for key in keys)]
        for name, each in results.items()
    ]
    header = ["server", "growth with it", "growth without", "difference"]
    title = f"A reader that never reads, {total / 1e6:.0f} MB relayed: memory in MB"
    setting.console.print(values_table(title, header, rows))
    return [
        setting.compare(
            _PART,
            results,
            "cost_bytes",
            f"bytes of memory for a reader that never reads, {total / 1e6:.0f} MB relayed",
            HOCUSPOCUS,
            at_most(f"<= its byte limit, {limit:,}", limit),
        )
    ]


def _run(setting: Setting, server: DocumentServer) -> Result:
    with_it, without = (_relay(setting, server, has_it) for has_it in (True, False))
    result = {**with_it, "growth_bytes_without": without["growth_bytes"]}
    result["cost_bytes"] = max(0, with_it["growth_bytes"] - without["growth_bytes"])
    return result


def _relay(setting: Setting, server: DocumentServer, has_stuck_reader: bool) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        keep = folder / "data" if server.name == setting.ours else None
        with running(server, keep, folder / "log") as found:
            return play(
                found,
                "stuck",
                has_stuck_reader=has_stuck_reader,
                total_bytes=plan.stuck_total_bytes,
                update_bytes=plan.stuck_update_bytes,
                window=plan.stuck_window,
                seconds_max=_SECONDS_MAX,
            )
