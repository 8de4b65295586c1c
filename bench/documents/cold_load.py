"""A long document on a server that was just started: how long until the first client has it."""

import time
from pathlib import Path
from statistics import median

from bench.documents.links import Collector, Door
from bench.documents.playing import CLIENT, Pump, Result, Task, until
from bench.documents.servers import DocumentServer, running
from bench.documents.setting import HOCUSPOCUS, Y_WEBSOCKET, Setting, play
from bench.documents.updates import ranges_of, read_updates, text_of, typed_text
from bench.support.figures import Figure, as_text, at_most_ratio, values_table
from bench.support.processes import BenchError, cpu_seconds

_PART = "cold load"
_DOCUMENT = "long"
_FILL_SECONDS_MAX = 300
_FILL_WINDOW = 512
_LOAD_SECONDS_MAX = 120
# Hocuspocus stores two seconds after the last change, the stock y-websocket server when it comes
# to it: a server has stored everything when it has nothing left to do.
_STORED_AFTER_SECONDS = 4
_STORED_SECONDS_MAX = 120
_AT_REST_CPU = 0.02


# ------------------------------------------------------------------------- what the generator does


async def fill(door: Door, task: Task) -> Result:
    """Write a long document; done when a reader has it, and the server has said so if it does."""
    updates = read_updates(Path(task["updates_file"]))
    writer = await door.open_writer(task["document"])
    frames = [writer.framing.update(update) for update in updates]
    pump = Pump(writer, frames, task["window"], 1)
    reader = await door.open_reader(task["document"], pump.delivered)
    pump.turn()
    await until(
        lambda: reader.update_count == len(frames),
        f"not all of {len(frames)} updates were relayed",
        task["seconds_max"],
    )
    reader.close()
    writer.close()
    return {"update_count": len(frames)}


async def load(door: Door, task: Task) -> Result:
    """When the first client of a server that has just been started has the whole document."""
    expected: int = task["update_count"]
    pid: int = task["pid"]
    collector = Collector(door.framing(task["document"]))
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    await door.open(task["document"], collector)
    # The stock y-websocket server says that there is nothing, and sends it when it has read it.
    looked_at = clock = 0

    def is_complete() -> bool:
        nonlocal looked_at, clock
        while looked_at < len(collector.updates) and clock < expected:
            ends = [end for _, _, end in ranges_of(collector.updates[looked_at][1])]
            clock, looked_at = max(clock, *ends, 0), looked_at + 1
        return clock >= expected

    await until(is_complete, f"{expected} updates did not come back", _LOAD_SECONDS_MAX)
    seconds = collector.updates[looked_at - 1][0] - began
    cpu = cpu_seconds(pid) - cpu
    if text_of([update for _, update in collector.updates]) != typed_text(CLIENT, expected):
        raise BenchError("the document came back with another text than was written")
    return {"seconds": seconds, "cpu_seconds": cpu}


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    count = setting.plan.cold_update_count
    peers = [HOCUSPOCUS, Y_WEBSOCKET]
    results = setting.rounds(_PART, peers, lambda server: _run(setting, server))
    keys = ("seconds", "seconds_from_start", "cpu_seconds")
    rows = [
        [name, *(as_text(median(one[key] for one in each) * 1e3) for key in keys)]
        for name, each in results.items()
    ]
    header = ["server", "ms from connecting", "ms from starting the server", "CPU ms of the load"]
    title = f"Cold load of a document with {count:,} updates"
    setting.console.print(values_table(title, header, rows))
    what = f"cold load of a document with {count:,} updates"
    return [
        setting.compare(
            _PART,
            results,
            "seconds",
            f"{what}, seconds from connecting",
            HOCUSPOCUS,
            at_most_ratio("<= 0.5 x Hocuspocus", 0.5),
        ),
        setting.compare(_PART, results, "cpu_seconds", f"{what}, CPU seconds", HOCUSPOCUS, None),
        setting.compare(
            _PART,
            results,
            "seconds_from_start",
            f"{what}, seconds from starting the server",
            HOCUSPOCUS,
            None,
        ),
    ]


def _run(setting: Setting, server: DocumentServer) -> Result:
    count = setting.plan.cold_update_count
    with setting.fresh_folder() as folder:
        _fill(server, folder, setting.typed_file(count))
        with running(server, folder / "data", folder / "log") as found:
            ready_seconds = time.perf_counter() - found.started_at
            result = play(
                found,
                "load",
                document=_DOCUMENT,
                update_count=count,
            )
        # Without the start of the generator, which lies between the two.
        result["seconds_from_start"] = ready_seconds + result["seconds"]
        return result


def _fill(server: DocumentServer, folder: Path, updates_file: Path) -> None:
    with running(server, folder / "data", folder / "log") as found:
        play(
            found,
            "fill",
            document=_DOCUMENT,
            updates_file=str(updates_file),
            window=_FILL_WINDOW,
            seconds_max=_FILL_SECONDS_MAX,
        )
        time.sleep(_STORED_AFTER_SECONDS)
        _wait_until_at_rest(found.process.pid)


def _wait_until_at_rest(pid: int) -> None:
    deadline = time.monotonic() + _STORED_SECONDS_MAX
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(1)
        if cpu_seconds(pid) - before < _AT_REST_CPU:
            return
    raise BenchError(f"the server was still busy {_STORED_SECONDS_MAX} s after the last update")
