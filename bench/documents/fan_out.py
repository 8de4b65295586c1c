"""One document, many readers: deliveries per CPU second at full load, latency at a steady rate."""

import asyncio
import contextlib
import time
from pathlib import Path
from statistics import median

from bench.documents.links import Door
from bench.documents.playing import (
    CLIENT,
    Meter,
    Pump,
    Result,
    Task,
    check_text,
    drain,
    open_readers,
    until,
)
from bench.documents.servers import DocumentServer, running
from bench.documents.setting import BARE, HOCUSPOCUS, PYCRDT, Y_WEBSOCKET, Results, Setting, play
from bench.documents.updates import read_updates, typed_updates
from bench.support.figures import (
    Figure,
    as_text,
    at_least_ratio,
    at_most,
    at_most_ratio,
    values_table,
)
from bench.support.processes import BenchError

_PART = "fan-out"
_LIGHT = "fan-out, small window"
_PACED = "steady rate"
_RATE = "per_cpu_second"
_MERGED = "updates_per_frame"
_P50_MS_MAX = 1.5
_P99_MS_MAX = 4.0
_RELAY_RATIO_MAX = 2
_WARM_SECONDS_MAX = 5


# ------------------------------------------------------------------------- what the generator does


async def fan_out(door: Door, task: Task) -> Result:
    """One writer that never waits longer than its window, many readers."""
    updates = read_updates(Path(task["updates_file"]))
    writer = await door.open_writer("fan-out")
    frames = [writer.framing.update(update) for update in updates]
    pump = Pump(writer, frames, task["window"], task["reader_count"])
    meter = Meter(task["pid"])

    def delivered(client: int, first: int, end: int) -> None:
        meter.delivery_count += end - first
        pump.delivered(client, first, end)

    readers = await open_readers(door, "fan-out", task["reader_count"], delivered)
    pump.turn()
    await _warm(pump, task["warm_count"], task["warm_seconds"])
    if pump.emptied.is_set():
        raise BenchError(f"{len(frames)} updates did not last until the server was warm")
    meter.start()
    frames_before = sum(reader.frame_count for reader in readers)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(task["seconds"]):
            await pump.emptied.wait()
    pump.stop()
    await drain(readers, pump.sent)
    seconds = meter.seconds
    frame_count = sum(reader.frame_count for reader in readers) - frames_before
    # What was put off is paid for as well.
    await asyncio.sleep(task["rest_seconds"])
    result = meter.result(seconds)
    result[_MERGED] = result["delivery_count"] / frame_count
    await check_text(door, "fan-out", CLIENT, pump.sent)
    return result


async def _warm(pump: Pump, count: int, seconds: float) -> None:
    """A second, and until enough went through for a compiler to have seen it all."""
    await asyncio.sleep(seconds)
    with contextlib.suppress(BenchError):
        await until(lambda: pump.sent >= count, "still cold", _WARM_SECONDS_MAX)


async def paced(door: Door, task: Task) -> Result:
    """One writer at a steady rate: how long until a reader has it."""
    updates = typed_updates(CLIENT, task["update_count"])
    sent_at: list[float] = []
    latencies: list[float] = []

    def delivered(client: int, first: int, end: int) -> None:
        now = time.perf_counter()
        latencies.extend(now - sent_at[clock] for clock in range(first, end))

    writer = await door.open_writer("paced")
    frames = [writer.framing.update(update) for update in updates]
    readers = await open_readers(door, "paced", task["reader_count"], delivered)
    began = time.perf_counter()
    for number, frame in enumerate(frames):
        await asyncio.sleep(max(0.0, began + number / task["per_second"] - time.perf_counter()))
        sent_at.append(time.perf_counter())
        writer.send(frame)
    await drain(readers, len(frames))
    await check_text(door, "paced", CLIENT, len(frames))
    ignored = task["warm_count"] * task["reader_count"]
    latencies = sorted(latencies[ignored:])
    return {
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
        "delivery_count": len(latencies),
    }


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    everyone = [HOCUSPOCUS, Y_WEBSOCKET, PYCRDT, BARE]
    full = setting.rounds(
        _PART, everyone, lambda server: _run_full(setting, server, plan.fan_out_window)
    )
    light = setting.rounds(
        _LIGHT,
        [HOCUSPOCUS, Y_WEBSOCKET],
        lambda server: _run_full(setting, server, plan.fan_out_window_small),
    )
    steady = setting.rounds(_PACED, everyone, lambda server: _run_paced(setting, server))
    _print(setting, full, light, steady)
    name = f"deliveries per server CPU second, {plan.reader_count} readers"
    barred = (
        (HOCUSPOCUS, at_least_ratio(">= 1.0 x Hocuspocus", 1.0)),
        (Y_WEBSOCKET, at_least_ratio(">= 6 x y-websocket server", 6)),
        (PYCRDT, None),
    )
    light_name = f"{name}, {plan.fan_out_window_small} under way"
    return [
        *(setting.compare(_PART, full, _RATE, name, peer, bar) for peer, bar in barred),
        *(
            setting.compare(_LIGHT, light, _RATE, light_name, peer, None)
            for peer in (HOCUSPOCUS, Y_WEBSOCKET)
        ),
        *_latency_figures(setting, steady),
    ]


def _run_full(setting: Setting, server: DocumentServer, window: int) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        keep = folder / "data" if server.name == setting.ours else None
        with running(server, keep, folder / "log") as found:
            return play(
                found,
                "fan_out",
                reader_count=plan.reader_count,
                updates_file=str(setting.typed_file(plan.fan_out_update_count)),
                window=window,
                warm_count=plan.fan_out_warm_count,
                warm_seconds=plan.fan_out_warm_seconds,
                seconds=plan.fan_out_seconds,
                rest_seconds=plan.rest_seconds,
            )


def _run_paced(setting: Setting, server: DocumentServer) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        keep = folder / "data" if server.name == setting.ours else None
        with running(server, keep, folder / "log") as found:
            return play(
                found,
                "paced",
                reader_count=plan.reader_count,
                update_count=plan.paced_update_count,
                warm_count=plan.paced_warm_count,
                per_second=plan.paced_updates_per_second,
            )


def _latency_figures(setting: Setting, steady: Results) -> list[Figure]:
    """Both quantiles meet their limit, or both meet the relay: not one by one."""
    plan = setting.plan
    rate = plan.paced_updates_per_second * plan.reader_count

    def ours(key: str) -> float:
        return float(median(result[key] for result in steady[setting.ours]))

    is_absolute = setting.ours in steady and (
        ours("p50_ms") <= _P50_MS_MAX and ours("p99_ms") <= _P99_MS_MAX
    )
    figures: list[Figure] = []
    for key, limit in (("p50_ms", _P50_MS_MAX), ("p99_ms", _P99_MS_MAX)):
        text = f"<= {limit:g} ms, or both <= {_RELAY_RATIO_MAX} x the bare relay"
        bar = at_most(text, limit) if is_absolute else at_most_ratio(text, _RELAY_RATIO_MAX)
        name = f"{key[:3]} of a delivery in ms, {rate:,.0f} deliveries/s"
        figures.append(setting.compare(_PACED, steady, key, name, BARE, bar))
    return figures


def _print(setting: Setting, full: Results, light: Results, steady: Results) -> None:
    def value(results: Results, name: str, key: str) -> str:
        found = [result[key] for result in results.get(name, [])]
        return as_text(median(found) if found else None)

    plan = setting.plan
    for results, window in ((full, plan.fan_out_window), (light, plan.fan_out_window_small)):
        rows = [
            [name, *(value(results, name, key) for key in (_RATE, "per_second", _MERGED))]
            for name in results
        ]
        header = ["server", "deliveries per CPU s", "per s", "updates per frame"]
        title = f"Fan-out, {plan.reader_count} readers, {window} updates under way"
        setting.console.print(values_table(title, header, rows))
    rows = [[name, *(value(steady, name, key) for key in ("p50_ms", "p99_ms"))] for name in steady]
    title = f"{plan.reader_count} readers, {plan.paced_updates_per_second:g} updates/s"
    setting.console.print(values_table(title, ["server", "p50 ms", "p99 ms"], rows))
