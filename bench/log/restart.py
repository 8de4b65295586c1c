"""Restart after kill -9, and what a million idle queues cost: memory, files, disk."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.log.setting import Setting
from bench.support.device import forget_cached
from bench.support.figures import Figure, as_text, at_most, at_most_ratio, values_table
from bench.support.processes import (
    ROOT,
    BenchError,
    child_environment,
    kill,
    run_worker,
)
from bench.support.rounds import alternate, median_ratio
from syncline.storage.log.format import SLOT_BYTES, TABLE_HEADER_BYTES

_MODULE = "bench.log.restart_worker"
_FILL_SECONDS_MAX = 1_800
# The log's own segments: made once, used again and again, however many queues there are.
_LOG_FOLDER = "wal"
_TABLE_FOLDER = "table"

Result = dict[str, float]


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    few, many = plan.restart_queue_count_few, plan.restart_queue_count
    with setting.fresh_folder() as first, setting.fresh_folder() as second:
        for folder, count in ((first, few), (second, many)):
            setting.doing(f"filling {count:,} queues")
            _fill_and_kill(folder, count, plan.restart_message_count, setting)
        opened = _open_rounds(setting, {few: first, many: second})
    with setting.fresh_folder() as first, setting.fresh_folder() as second:
        idle: dict[int, Result] = {}
        for folder, count in ((first, few), (second, many)):
            setting.doing(f"creating {count:,} idle queues")
            _fill_and_kill(folder, count, 0, setting)
            idle[count] = _open(folder, count, 0, setting, rests=True)
            idle[count]["disk_bytes"] = _disk_bytes(folder)
            idle[count]["occupied_bytes"] = _occupied_bytes(folder)
    import_seconds = _import_seconds()
    _print(setting, opened, idle, import_seconds)
    setting.details["restart"] = opened
    setting.details["idle queues"] = {str(count): result for count, result in idle.items()}
    return [
        *_restart_figures(opened, few, many, plan.restart_message_count),
        *_idle_figures(idle[few], idle[many], few, many),
    ]


def _task(
    folder: Path, queue_count: int, message_count: int, setting: Setting
) -> dict[str, object]:
    return {
        "folder": str(folder),
        "queue_count": queue_count,
        "message_count": message_count,
        "body_bytes": setting.plan.restart_body_bytes,
        "tail_count": setting.plan.restart_tail_count,
    }


def _fill_and_kill(folder: Path, queue_count: int, message_count: int, setting: Setting) -> Result:
    task = {"task": "fill", **_task(folder, queue_count, message_count, setting)}
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE, json.dumps(task)],
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"{task} ended early")
        result: Result = json.loads(line)
        return result
    finally:
        kill(process)
        process.stdout.close()


def _open(
    folder: Path, queue_count: int, message_count: int, setting: Setting, **options: bool
) -> Result:
    task = {"task": "open", **_task(folder, queue_count, message_count, setting)}
    result: Result = run_worker(_MODULE, {**task, **options})
    return result


def _open_rounds(setting: Setting, folders: dict[int, Path]) -> dict[str, list[Result]]:
    message_count = setting.plan.restart_message_count

    def open_once(count: int, is_cold: bool) -> Result:
        if is_cold:
            forget_cached(folders[count])
        return _open(folders[count], count, message_count, setting)

    contestants = {
        f"{count} {'cold' if is_cold else 'warm'}": lambda count=count, is_cold=is_cold: open_once(
            count, is_cold
        )
        for count in folders
        for is_cold in (False, True)
    }
    opened = alternate(
        setting.plan.restart_round_count,
        contestants,
        on_turn=lambda name: setting.doing(f"restart, queues: {name}"),
    )
    setting.doing("looking for every message")
    for count, folder in folders.items():
        opened[f"{count} check"] = [_open(folder, count, message_count, setting, counts_lost=True)]
    return opened


def _import_seconds() -> float:
    """Interpreter start and imports, which no data folder changes."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import syncline.storage.opening"],
        cwd=ROOT,
        env=child_environment(),
        check=True,
    )
    return time.perf_counter() - began


def _disk_bytes(folder: Path) -> int:
    """Blocks on the disk without the log's segments, whose size does not follow the queues."""
    return sum(
        path.stat().st_blocks * 512
        for path in folder.rglob("*")
        if path.is_file() and _LOG_FOLDER not in path.relative_to(folder).parts
    )


def _occupied_bytes(folder: Path) -> int:
    """Bytes of slots that are not empty: what the queues take of the mapped table."""
    empty = bytes(SLOT_BYTES)
    slots = 0
    for path in (folder / _TABLE_FOLDER).iterdir():
        data = path.read_bytes()[TABLE_HEADER_BYTES:]
        starts = range(0, len(data), SLOT_BYTES)
        slots += sum(data[start : start + SLOT_BYTES] != empty for start in starts)
    return slots * SLOT_BYTES


def _print(
    setting: Setting,
    opened: dict[str, list[Result]],
    idle: dict[int, Result],
    import_seconds: float,
) -> None:
    rows = [
        [f"{name.split()[0]} queues, {name.split()[1]}", as_text(_seconds(results) * 1e3)]
        for name, results in opened.items()
        if not name.endswith("check")
    ]
    rows.append(["interpreter and imports", as_text(import_seconds * 1e3)])
    title = f"Restart after kill -9, {setting.plan.restart_message_count:,} messages of 100 B"
    setting.console.print(values_table(title, ["to the first message read", "ms"], rows))
    keys = ("mapped_bytes", "anonymous_bytes", "resident_bytes", "heap_blocks", "disk_bytes")
    setting.console.print(
        values_table(
            "A store of idle queues, opened and at rest",
            ["queues", *(key.replace("_", " ") for key in keys), "open files"],
            [
                [
                    f"{count:,}",
                    *(as_text(result[key]) for key in keys),
                    as_text(result["open_file_count"]),
                ]
                for count, result in idle.items()
            ],
        )
    )


def _seconds(results: list[Result]) -> float:
    return median(result["seconds"] for result in results)


def _restart_figures(
    opened: dict[str, list[Result]], few: int, many: int, message_count: int
) -> list[Figure]:
    what = f"{many:,} queues, {message_count:,} messages"
    figures = [
        Figure(
            f"restart after kill -9 to the first read, seconds, {what}, {state}",
            _seconds(opened[f"{many} {state}"]),
            bar=at_most("<= 0.5 s plus interpreter start", 0.5),
        )
        for state in ("warm", "cold")
    ]
    ours = [result["seconds"] for result in opened[f"{many} warm"]]
    base = [result["seconds"] for result in opened[f"{few} warm"]]
    figures.append(
        Figure(
            f"restart of {many:,} queues against {few:,}, seconds, warm",
            median(ours),
            f"ours with {few:,} queues",
            median(base),
            median_ratio(ours, base),
            at_most_ratio(f"<= 1.2 x of {few:,} queues", 1.2),
        )
    )
    lost = sum(result["lost_count"] for n in (few, many) for result in opened[f"{n} check"])
    figures.append(
        Figure(
            f"acknowledged messages lost by kill -9, {what}",
            lost,
            bar=at_most("0 lost", 0),
            note="the crash suite has the power cuts",
        )
    )
    return figures


def _idle_figures(fewer: Result, more: Result, few: int, many: int) -> list[Figure]:
    def each(key: str) -> float:
        return (more[key] - fewer[key]) / (many - few)

    return [
        Figure(
            f"mapped bytes per idle queue, {many:,} queues",
            more["occupied_bytes"] / many,
            bar=at_most("<= 64 B mapped", 64),
            note=f"with the empty slots {more['mapped_bytes'] / many:.0f} B",
        ),
        Figure(
            f"heap objects per idle queue, {many:,} queues",
            max(0.0, round(each("heap_blocks"), 3)),
            bar=at_most("no heap object", 0.001),
            note=f"{each('anonymous_bytes'):.1f} B of anonymous memory",
        ),
        Figure(f"open files, {many:,} queues", more["open_file_count"], bar=at_most("<= 80", 80)),
        Figure(
            f"disk bytes per idle queue, {many:,} queues",
            more["disk_bytes"] / many,
            bar=at_most("<= 128 B", 128),
            note="without the log's segments, a fixed number of bytes",
        ),
    ]
