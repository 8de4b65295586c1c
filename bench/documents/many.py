"""Many documents with a few readers each: what a delivery costs when nothing can be merged."""

import asyncio
import time
from statistics import median

from bench.documents.links import Door, Reader, Writer
from bench.documents.playing import CLIENT, Meter, Result, Task, check_text, drain, open_readers
from bench.documents.servers import DocumentServer, running
from bench.documents.setting import HOCUSPOCUS, PYCRDT, Y_WEBSOCKET, Setting, play
from bench.documents.updates import typed_updates
from bench.support.figures import Figure, as_text, at_most_ratio, values_table

_PART = "many documents"


# ------------------------------------------------------------------------- what the generator does


async def many(door: Door, task: Task) -> Result:
    """Many documents, each with a writer and a few readers, one update after the other."""
    names = [f"many-{number}" for number in range(task["document_count"])]
    meter = Meter(task["pid"])
    per_document = task["warm_count"] + task["update_count"]
    made = {name: typed_updates(CLIENT + n, per_document) for n, name in enumerate(names)}
    writers: dict[str, Writer] = {}
    readers: dict[str, list[Reader]] = {}
    for name in names:
        writers[name] = await door.open_writer(name)
        readers[name] = await open_readers(door, name, task["reader_count"], meter.delivered)
    frames = [
        (writers[name], writers[name].framing.update(made[name][turn]))
        for turn in range(per_document)
        for name in names
    ]
    warm = task["warm_count"] * len(names)
    await _send_paced(frames[:warm], task["per_second"])
    everyone = [reader for group in readers.values() for reader in group]
    await drain(everyone, task["warm_count"])
    meter.start()
    await _send_paced(frames[warm:], task["per_second"])
    await drain(everyone, per_document)
    seconds = meter.seconds
    await asyncio.sleep(task["rest_seconds"])
    result = meter.result(seconds)
    for name in (names[0], names[-1]):
        await check_text(door, name, CLIENT + names.index(name), per_document)
    return result


async def _send_paced(frames: list[tuple[Writer, bytes]], per_second: float) -> None:
    began = time.perf_counter()
    for number, (writer, frame) in enumerate(frames):
        wait = began + number / per_second - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        writer.send(frame)


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    peers = [HOCUSPOCUS, Y_WEBSOCKET, PYCRDT]
    results = setting.rounds(_PART, peers, lambda server: _run(setting, server))
    rows = [
        [name, *(as_text(median(one[key] for one in each)) for key in ("cpu_us", "per_second"))]
        for name, each in results.items()
    ]
    what = f"{plan.document_count} documents x {plan.readers_each} readers"
    setting.console.print(values_table(what, ["server", "CPU us each", "deliveries/s"], rows))
    return [
        setting.compare(_PART, results, "cpu_us", f"server CPU us per delivery, {what}", peer, bar)
        for peer, bar in (
            (HOCUSPOCUS, at_most_ratio("<= 0.7 x Hocuspocus", 0.7)),
            (Y_WEBSOCKET, at_most_ratio("<= 1.0 x y-websocket server", 1.0)),
            (PYCRDT, None),
        )
    ]


def _run(setting: Setting, server: DocumentServer) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        keep = folder / "data" if server.name == setting.ours else None
        with running(server, keep, folder / "log") as found:
            return play(
                found,
                "many",
                document_count=plan.document_count,
                reader_count=plan.readers_each,
                warm_count=plan.many_warm_count,
                update_count=plan.many_update_count,
                per_second=plan.many_updates_per_second,
                rest_seconds=plan.rest_seconds,
            )
