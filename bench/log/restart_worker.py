"""The two processes of a restart: one that fills a store until it is killed, one that opens it.

    python -m bench.log.restart_worker '{"task": "fill" or "open", "folder": …, …}'

Messages are made without waiting for the disk, for speed: a killed process leaves the page cache
behind, so nothing is lost by that. The tail of the log is left long on purpose: the last messages
are appended without upkeep, as after a burst.
"""

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.log.ours import as_stream, create_queues, now_ms, open_ours
from bench.support.workload import queue_id
from syncline.storage.base import Store, commit, run_jobs
from syncline.values import limits
from syncline.values.ids import StreamId

Task = Mapping[str, Any]

_BATCH_COUNT = 2048
# Spreads consecutive messages over all queues; no queue count of ours shares a factor with it.
_STRIDE = 7_368_787
_RESTING_BATCHES_MAX = 20_000
_RESTING_BATCHES_LOOK = 1_024
_JOB_MODULES = ("syncline.storage.log.sealing", "syncline.storage.log.merging")


def say(result: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def expected_count(index: int, queue_count: int, message_count: int) -> int:
    """How many messages a queue gets: all of them in turn, the first ones one more."""
    share, rest = divmod(message_count, queue_count)
    # Message n goes to queue n * stride mod queue_count; the last, incomplete turn reaches `rest`.
    turn = index * pow(_STRIDE, -1, queue_count) % queue_count
    return share + (turn < rest)


def body(number: int, body_bytes: int) -> bytes:
    return number.to_bytes(8, "big") * (body_bytes // 8) + b"\0" * (body_bytes % 8)


def fill(task: Task) -> None:
    """Fill, say so, and wait to be killed."""
    blocks_before = sys.getallocatedblocks()
    store = open_ours(Path(task["folder"]), is_durable=False, has_job_process=False)
    queue_count, message_count = task["queue_count"], task["message_count"]
    began = time.perf_counter()
    create_queues(store, _making_room(store, queue_count))
    run_jobs(store)
    created = time.perf_counter()
    if message_count:
        _append_all(store, queue_count, message_count, task["body_bytes"], task["tail_count"])
    result: dict[str, object] = {
        "create_seconds": created - began,
        "append_seconds": time.perf_counter() - created,
        "heap_blocks": sys.getallocatedblocks() - blocks_before,
    }
    say(result | memory())
    # Bounded: whoever started this kills it, or it ends by itself.
    time.sleep(600)


def _making_room(store: Store, queue_count: int) -> Iterator[bytes]:
    for index in range(queue_count):
        if index % 65_536 == 0:
            run_jobs(store)
        yield queue_id(index)


def _append_all(
    store: Store, queue_count: int, message_count: int, body_bytes: int, tail_count: int
) -> None:
    streams = [as_stream(queue_id(index)) for index in range(queue_count)]
    append, time_ms = store.append, now_ms()
    for start in range(0, message_count, _BATCH_COUNT):
        for number in range(start, min(start + _BATCH_COUNT, message_count)):
            append(streams[number * _STRIDE % queue_count], body(number, body_bytes), time_ms)
        commit(store)
        if start < message_count - tail_count:
            run_jobs(store)


def open_again(task: Task) -> None:
    """From the call of `open` to the first message read; then what a restart left in memory."""
    queue_count, message_count = task["queue_count"], task["message_count"]
    if task.get("rests"):
        # What a job would load on its way is the program's, not the queues'.
        for name in _JOB_MODULES:
            importlib.import_module(name)
    blocks_before, memory_before = sys.getallocatedblocks(), memory()
    began = time.perf_counter()
    store = open_ours(Path(task["folder"]), is_durable=not task.get("rests"), has_job_process=False)
    opened = time.perf_counter()
    first = as_stream(queue_id(queue_count // 2))
    entries = store.read(first, 0, 1, limits.read_bytes_max)
    ended = time.perf_counter()
    if bool(entries) != bool(message_count):
        raise SystemExit("the first read did not find its message")
    if task.get("rests"):
        rest(store, first, task["folder"])
    result: dict[str, object] = {
        "seconds": ended - began,
        "open_seconds": opened - began,
        "heap_blocks": sys.getallocatedblocks() - blocks_before,
        "mapped_bytes": mapped_bytes(task["folder"]),
    }
    after = memory()
    result |= {name: after[name] - memory_before[name] for name in after}
    result["open_file_count"] = len(os.listdir("/proc/self/fd")) - 1
    if task.get("counts_lost"):
        result["lost_count"] = lost_count(store, queue_count, message_count)
        result["stream_count"] = store.stats().stream_count
    say(result)
    sys.stdout.flush()
    # Without closing: the next one to open finds the store as the kill has left it.
    os._exit(0)


def rest(store: Store, stream: StreamId, folder: str) -> None:
    """Until what the restart left to do is done: a little of it is done with every batch."""
    before: tuple[int, int] | None = None
    for turn in range(1, _RESTING_BATCHES_MAX):
        store.truncate_before(stream, store.append(stream, b"", now_ms()) + 1)
        commit(store)
        # Twice, as a router looks again when nothing comes.
        run_jobs(store)
        run_jobs(store)
        if turn % _RESTING_BATCHES_LOOK == 0:
            gc.collect()
            now = (sys.getallocatedblocks() // 1000, mapped_bytes(folder))
            if now == before:
                return
            before = now


def lost_count(store: Store, queue_count: int, message_count: int) -> int:
    """Messages that were acknowledged to the producer and are not in their queue."""
    lost = 0
    for index in range(queue_count):
        unread_count = store.state(as_stream(queue_id(index))).unread_count
        lost += max(0, expected_count(index, queue_count, message_count) - unread_count)
    return lost


def memory() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "anonymous_bytes": int(fields["RssAnon"].split()[0]) * 1024,
        "resident_bytes": int(fields["VmRSS"].split()[0]) * 1024,
    }


def mapped_bytes(folder: str) -> int:
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if folder in line:
            start, end = line.split()[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total


if __name__ == "__main__":
    asked: Task = json.loads(sys.argv[1])
    {"fill": fill, "open": open_again}[asked["task"]](asked)
