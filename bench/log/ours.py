"""Our store as the bench drives it: in process, with its upkeep on a thread beside it."""

import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import cast

from bench.support.processes import BenchError
from bench.support.workload import Message
from syncline.storage.base import Job, Store, StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.storage.log.store import LogStore
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId

_CREATED_TOGETHER = 1024
_UPKEEP_PAUSE_SECONDS = 0.02
# What a store gives out at once at most.
_JOB_COUNT_MAX = 2


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_ours(
    folder: Path, *, kind: str = "log", is_durable: bool = True, has_job_process: bool = True
) -> Store:
    return open_store(
        kind,
        str(folder),
        DiskFiles(),
        StoreOptions(is_durable=is_durable, has_job_process=has_job_process),
        now_ms=now_ms(),
        random_bytes=secrets.token_bytes,
    )


def as_stream(queue: bytes) -> StreamId:
    # Not wrapped: 24 bytes by construction, and this stands in measured loops.
    return cast(StreamId, queue)


def create_queues(store: Store, queues: Iterable[bytes]) -> None:
    source = iter(queues)
    while group := list(islice(source, _CREATED_TOGETHER)):
        for queue in group:
            store.create(as_stream(queue), StreamKind.QUEUE, 0, now_ms())
        commit(store)


class Upkeep:
    """Jobs on threads, as the server does them; call `turn` between batches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(_JOB_COUNT_MAX)
        self._running: list[tuple[Job, Future[object]]] = []
        self._next_turn = 0.0

    def turn(self) -> None:
        """Take over what is done and start what is due, if it is time to look; never waits."""
        now = time.perf_counter()
        if now >= self._next_turn:
            self._next_turn = now + _UPKEEP_PAUSE_SECONDS
            self._turn()

    def _turn(self) -> None:
        for job, result in [found for found in self._running if found[1].done()]:
            self._store.finish_job(job, result.result())
            self._running.remove((job, result))
        while (due := self._store.take_job()) is not None:
            self._running.append((due, self._threads.submit(self._store.run_job, due)))

    def finish(self) -> None:
        """Do everything that is due."""
        self._turn()
        while self._running:
            self._running[-1][1].result()
            self._turn()
        self._threads.shutdown()


class OurStore:
    """The log as an embedded store (bench.peers.embedded)."""

    def __init__(self, folder: Path, queues: Iterable[bytes], *, kind: str = "log") -> None:
        self.store = open_ours(folder, kind=kind)
        create_queues(self.store, queues)
        self._upkeep = Upkeep(self.store)
        # The head of each queue, as its reader knows it; peers are told theirs.
        self._first_of: dict[bytes, int] = {}
        # Files that are made ahead are there before the clock starts.
        self.settle()

    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        """Acknowledgements ride with the messages; alone, they are written as they are."""
        store = self.store
        if messages:
            staged = store.append_many(cast(Sequence[tuple[StreamId, bytes]], messages), now_ms())
            if len(staged) != len(messages):
                store.append(
                    as_stream(messages[len(staged)][0]), messages[len(staged)][1], now_ms()
                )
                raise BenchError("a message was refused without a reason")
        first_of, truncate_before = self._first_of, store.truncate_before
        for queue in acknowledged:
            first_of[queue] = first = first_of.get(queue, 1) + 1
            truncate_before(as_stream(queue), first)
        while (batch := store.take_batch(acknowledgements=not messages)) is not None:
            store.write_batch(batch)
            store.finish_batch(batch)
        self._upkeep.turn()

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        read, bytes_max = self.store.read, limits.read_bytes_max
        streams = cast(Sequence[StreamId], queues)
        return [read(stream, 0, 1, bytes_max)[0].payload for stream in streams]

    def can_settle(self) -> bool:
        """Whether `settle` leaves next to nothing in the log: a segment has just begun, and those
        before it are enough to be sealed, which is done two or more at a time."""
        if not isinstance(self.store, LogStore):
            return True
        facts = self.store.describe()
        begun_bytes = facts["log_end"] % facts["segment_bytes"]
        return begun_bytes < facts["segment_bytes"] // 32 and facts["live_segments"] != 2

    def settle(self) -> None:
        """Write what was held back and do the upkeep that is due."""
        commit(self.store)
        self._upkeep.finish()
        self._upkeep = Upkeep(self.store)

    def count(self) -> int:
        return sum(self.store.state(stream).unread_count for stream in self.store.streams())

    def close(self) -> None:
        self._upkeep.finish()
        self.store.close()
