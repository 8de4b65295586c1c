"""One measurement of one store in a process of its own; the result is one line of JSON.

    python -m bench.log.worker '{"task": "append", "store": "RocksDB", "folder": …, …}'

A fresh process each time: no store meets the threads, the memory or the open files of another.
"""

import asyncio
import gc
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, TypeVar

import uvloop

from bench.log.bare_disk import BareDisk
from bench.log.ours import OurStore, as_stream, now_ms, open_ours
from bench.peers.catalogue import open_embedded
from bench.peers.embedded import EmbeddedStore
from bench.support.device import read_counters, sync_file_system
from bench.support.processes import BenchError, own_cpu_seconds
from bench.support.workload import Message, Workload, queue_id
from syncline.server.committer import Committer
from syncline.storage.base import Store, StreamKind, commit
from syncline.values.ids import StreamId

Task = Mapping[str, Any]
Result = dict[str, float]
Item = TypeVar("Item")

OURS = "Syncline"
BARE_DISK = "disk alone"

# Groups of messages between two looks at whether our store has segments to seal; and more messages
# than it takes, twice, until it has.
_SETTLING_STEP = 16
_SEALING_COUNT_MAX = 400_000


def open_contestant(task: Task, workload: Workload) -> EmbeddedStore:
    folder = Path(task["folder"])
    if task["store"] == BARE_DISK:
        return BareDisk(folder)
    if task["store"] == OURS:
        return OurStore(folder, workload.queue_ids, kind=task.get("kind", "log"))
    return open_embedded(task["store"], folder)


def timed(step: Callable[[Item], None], items: Sequence[Item]) -> tuple[list[float], float]:
    """Seconds of each step, and the CPU seconds of all."""
    # What the harness made must not cost the store a collection.
    gc.collect()
    gc.freeze()
    clock = time.perf_counter
    marks = [0.0] * (len(items) + 1)
    cpu_before = own_cpu_seconds()
    marks[0] = clock()
    for index, item in enumerate(items, 1):
        step(item)
        marks[index] = clock()
    cpu = own_cpu_seconds() - cpu_before
    return [after - before for before, after in pairwise(marks)], cpu


def summary(message_count: int, seconds: Sequence[float], cpu: float) -> Result:
    cut = quantiles(seconds, n=100) if len(seconds) > 1 else [seconds[0]] * 99
    return {
        "message_count": message_count,
        "per_second": message_count / sum(seconds),
        "cpu_us": cpu / message_count * 1e6,
        "p50_ms": cut[49] * 1e3,
        "p99_ms": cut[98] * 1e3,
    }


def check_count(found: int, expected: int) -> None:
    if found != expected:
        raise BenchError(f"{expected} messages should be stored, {found} are")


def append(task: Task) -> Result:
    """Durable appends, `in_flight` at a time."""
    workload = Workload.make(task["queue_count"], task["body_bytes"])
    batches = workload.batches(task["message_count"], task["in_flight"])
    store = open_contestant(task, workload)
    seconds, cpu = timed(store.write, batches)
    check_count(store.count(), task["message_count"])
    store.close()
    if task["store"] == OURS and task.get("kind", "log") != "memory":
        check_ours(task, batches)
    return summary(task["message_count"], seconds, cpu)


def check_ours(task: Task, batches: Sequence[Sequence[Message]]) -> None:
    """Open again: every message is there, in order, to the byte."""
    store = open_ours(Path(task["folder"]), kind=task.get("kind", "log"))
    expected: dict[bytes, list[bytes]] = {}
    for batch in batches:
        for queue, body in batch:
            expected.setdefault(queue, []).append(body)
    for queue, bodies in expected.items():
        found = [entry.payload for entry in store.read(as_stream(queue), 0, 1024, 16 << 20)]
        # One read is bounded by count and bytes; what it gives must be the beginning.
        if not found or found != bodies[: len(found)]:
            raise BenchError(f"queue {queue.hex()} did not come back as it was written")
        state = store.state(as_stream(queue))
        check_count(state.unread_count, len(bodies))
    store.close()


def append_by_producers(task: Task) -> Result:
    """Our store behind its committer: `in_flight` producers, each waiting for its own message."""
    workload = Workload.make(task["queue_count"], task["body_bytes"])
    producers = task["in_flight"]
    batches = workload.batches(task["message_count"], producers)
    ours = OurStore(Path(task["folder"]), workload.queue_ids, kind=task.get("kind", "log"))
    seconds, cpu = uvloop.run(_produce(ours, batches, producers))
    check_count(ours.count(), task["message_count"])
    ours.close()
    return summary(task["message_count"], [seconds], cpu)


async def _produce(
    ours: OurStore, batches: Sequence[Sequence[Message]], producers: int
) -> tuple[float, float]:
    store = ours.store
    committer = Committer.on_thread(store)

    async def produce(messages: Sequence[Message]) -> None:
        for queue, body in messages:
            store.append(as_stream(queue), body, now_ms())
            await committer.durable()

    shares = [
        [batch[index] for batch in batches if index < len(batch)] for index in range(producers)
    ]
    gc.collect()
    gc.freeze()
    cpu_before, began = own_cpu_seconds(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for share in shares:
            tasks.create_task(produce(share))
    seconds, cpu = time.perf_counter() - began, own_cpu_seconds() - cpu_before
    await committer.close()
    return seconds, cpu


def take(task: Task) -> Result:
    """Deliver and acknowledge, durable, `in_flight` different queues at a time."""
    workload = Workload.make(task["queue_count"], task["body_bytes"])
    chance = random.Random(5)
    chosen = [
        chance.sample(workload.queue_ids, task["in_flight"])
        for _ in range(task["message_count"] // task["in_flight"])
    ]
    store = open_contestant(task, workload)
    body = workload.bodies[0]
    fill = [(queue, body) for queues in chosen for queue in queues]
    for start in range(0, len(fill), 1024):
        store.write(fill[start : start + 1024])

    def deliver(queues: Sequence[bytes]) -> None:
        if len(store.read(queues)) != len(queues):
            raise BenchError("a message is missing")
        store.write((), queues)

    seconds, cpu = timed(deliver, chosen)
    check_count(store.count(), 0)
    store.close()
    return summary(len(fill), seconds, cpu)


def device_cost(task: Task) -> Result:
    """Flushes and device bytes of a message: nine queues in ten are read soon, one never.

    The first messages are not counted: they make the files that a store uses again later. Ours
    seals segments two or more at a time, so its count begins and ends right behind a sealing: each
    message is counted with its share of it, no more and no less.
    """
    workload = Workload.make(task["queue_count"], task["body_bytes"])
    in_flight = task["in_flight"]
    is_read = {queue: index % 10 != 0 for index, queue in enumerate(workload.queue_ids)}
    store = open_contestant(task, workload)
    unread: deque[bytes] = deque()
    longest = task["unmeasured"] + task["message_count"] + _SEALING_COUNT_MAX
    batches = iter(workload.batches(longest, in_flight))

    def step(batch: Sequence[Message]) -> None:
        lagging = max(0, len(unread) - task["lag"])
        store.write(batch, [unread.popleft() for _ in range(lagging)])
        unread.extend(queue for queue, _ in batch if is_read[queue])

    def run(message_count: int) -> tuple[int, list[float], float]:
        """At least so many, up to where what was written can be settled."""
        seconds, cpu = timed(step, list(islice(batches, message_count // in_flight)))
        while isinstance(store, OurStore) and not store.can_settle():
            more_seconds, more_cpu = timed(step, list(islice(batches, _SETTLING_STEP)))
            seconds, cpu = seconds + more_seconds, cpu + more_cpu
        if isinstance(store, OurStore):
            store.settle()
        # What was written to the page cache belongs to the messages that caused it.
        sync_file_system(Path(task["folder"]).parent)
        return len(seconds) * in_flight, seconds, cpu

    run(task["unmeasured"])
    before = read_counters(task["device"])
    count, seconds, cpu = run(task["message_count"])
    used = read_counters(task["device"]).since(before)
    store.close()
    return summary(count, seconds, cpu) | {
        "flushes": used.flush_count / count,
        "device_bytes": used.written_bytes / count,
    }


def create(task: Task) -> Result:
    """Durable creation of queues, `in_flight` at a time."""
    store: Store = open_ours(Path(task["folder"]), kind=task["kind"])
    count, in_flight = task["queue_count"], task["in_flight"]
    groups = [
        [as_stream(queue_id(index)) for index in range(start, min(start + in_flight, count))]
        for start in range(0, count, in_flight)
    ]

    def step(group: Sequence[StreamId]) -> None:
        for stream in group:
            store.create(stream, StreamKind.QUEUE, 128, now_ms())
        commit(store)

    seconds, cpu = timed(step, groups)
    check_count(store.stats().stream_count, count)
    store.close()
    return summary(count, seconds, cpu)


TASKS: dict[str, Callable[[Task], Result]] = {
    "append": append,
    "append_by_producers": append_by_producers,
    "take": take,
    "device_cost": device_cost,
    "create": create,
}

if __name__ == "__main__":
    asked: Task = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(TASKS[asked["task"]](asked)) + "\n")
