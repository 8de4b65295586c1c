"""Kill -9 amid a stream of updates: how many of the acknowledged ones come back."""

import os
import signal

from bench.documents.links import Door
from bench.documents.playing import CLIENT, Result, Task, collected, until
from bench.documents.servers import DocumentServer, running, start_server
from bench.documents.setting import HOCUSPOCUS, Y_WEBSOCKET, Setting, play
from bench.documents.updates import text_of, typed_text, typed_updates
from bench.support.figures import Figure, at_most, values_table
from bench.support.processes import BenchError, stop

_PART = "kill"
_DOCUMENT = "kept"
_QUIET_SECONDS = 2.0


# ------------------------------------------------------------------------- what the generator does


async def kill(door: Door, task: Task) -> Result:
    """Kill the server amid a stream of updates, once enough of them are acknowledged."""
    updates = typed_updates(CLIENT, task["update_count"])
    writer = await door.open_writer(task["document"])
    reader = await door.open_reader(task["document"])
    by_status = task["acknowledged_by"] == "status"

    def acknowledged() -> int:
        return writer.status_count if by_status else reader.update_count

    for update in updates:
        writer.send_update(update)
    wanted = task["acknowledged_count"]
    # Looked at in every turn of the loop: the rest is still on its way.
    reason = f"not {wanted} updates acknowledged"
    await until(lambda: acknowledged() >= wanted, reason, 60, poll_seconds=0)
    os.kill(task["pid"], signal.SIGKILL)
    # What is on its way from the dead server was acknowledged too.
    await until(lambda: writer.is_lost and reader.is_lost, "the sockets stayed open", 20)
    return {"acknowledged_count": acknowledged(), "sent_count": len(updates)}


async def survivors(door: Door, task: Task) -> Result:
    """How much of the text a client of the restarted server gets."""
    text = text_of(await collected(door, task["document"], task["quiet_seconds"]))
    if text != typed_text(CLIENT, len(text)):
        raise BenchError("the document came back with another text than was written")
    return {"update_count": len(text)}


# ----------------------------------------------------------------------------- what is made of it


def measure(setting: Setting) -> list[Figure]:
    peers = [HOCUSPOCUS, Y_WEBSOCKET]
    results = setting.rounds(_PART, peers, lambda server: _run(setting, server))
    rows = [
        [
            name,
            " ".join(f"{one['acknowledged_count']}" for one in each),
            " ".join(f"{one['lost_count']}" for one in each),
        ]
        for name, each in results.items()
    ]
    header = ["server", "acknowledged, by round", "of those lost"]
    setting.console.print(values_table("Kill -9 amid a stream of updates", header, rows))
    count = setting.plan.kill_acknowledged_count
    return [
        setting.compare(
            _PART,
            results,
            "lost_count",
            f"acknowledged updates lost by kill -9, {count} acknowledged",
            peer,
            bar,
        )
        for peer, bar in ((HOCUSPOCUS, at_most("0 lost", 0)), (Y_WEBSOCKET, None))
    ]


def _run(setting: Setting, server: DocumentServer) -> Result:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        found = start_server(server, folder / "data", folder / "log")
        try:
            result = play(
                found,
                "kill",
                document=_DOCUMENT,
                acknowledged_by=server.acknowledged_by,
                acknowledged_count=plan.kill_acknowledged_count,
                update_count=plan.kill_sent_count,
            )
        finally:
            stop(found.process)
        with running(server, folder / "data", folder / "log") as found:
            back = play(found, "survivors", document=_DOCUMENT, quiet_seconds=_QUIET_SECONDS)
    result["lost_count"] = max(0, result["acknowledged_count"] - back["update_count"])
    return result
