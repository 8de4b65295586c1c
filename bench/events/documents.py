"""An update of a document, handed to many readers, with a row of events for each of them."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.documents.playing import CLIENT
from bench.documents.servers import Running, Syncline
from bench.documents.setting import play
from bench.documents.updates import typed_updates, write_updates
from bench.events.setting import Setting
from bench.support.figures import Figure
from bench.support.processes import free_port, start, stop, wait_until_listening

# Others may keep the machine busy.
_START_SECONDS_MAX = 120


@contextlib.contextmanager
def _running(folder: Path, is_on: bool) -> Iterator[Running]:
    router, port, log = Syncline(), free_port(), folder / "log"
    launch = router.launch(port, folder / "data")
    environment = launch.environment | {"SYNCLINE_AUDIT_EVENTS": str(is_on)}
    began = time.perf_counter()
    process = start(launch.command, log=log, environment=environment)
    try:
        wait_until_listening(process, port, log, seconds_max=_START_SECONDS_MAX)
        router.wait_until_ready(port)
        yield Running(router, port, process, began)
    finally:
        stop(process)


def measure(setting: Setting) -> list[Figure]:
    with setting.fresh_folder() as folder:
        updates = folder / "updates"
        setting.status.update("making updates")
        write_updates(typed_updates(CLIENT, setting.plan.update_count), updates)
        return [
            setting.compare(
                f"a delivery, {setting.plan.reader_count} readers, {window} under way",
                partial(_delivery, setting, updates, window),
            )
            for window in setting.plan.windows
        ]


def _delivery(setting: Setting, updates: Path, window: int, is_on: bool) -> float:
    plan = setting.plan
    with setting.fresh_folder() as folder, _running(folder, is_on) as found:
        result = play(
            found,
            "fan_out",
            reader_count=plan.reader_count,
            updates_file=str(updates),
            window=window,
            warm_count=plan.warm_count,
            warm_seconds=plan.warm_seconds,
            seconds=plan.seconds,
            rest_seconds=plan.rest_seconds,
        )
        return float(1 / result["per_cpu_second"])
