"""Random work on a store, told to a history: what crash tests run while they pull the plug.

Everything is drawn from one `random.Random`. Each step is one of the things that an owner of a
store does: stage records, commit with or without acknowledgements, move a job on by one stage,
expire, scrub, close and open again. Records are staged while a batch is being written and while a
job runs, as the committer does it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from syncline.errors import QuotaExceededError, StoreFullError
from syncline.storage.applying import stage
from syncline.storage.base import Job, Store, StreamKind, run_jobs
from syncline.testing.clock import START_MS
from syncline.testing.oracle import History
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.records import (
    AppendEntry,
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    Record,
    TruncateStream,
)


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """How much of what. Sizes are in bytes; `large_share` of the entries are large."""

    stream_count: int = 5
    small_bytes_max: int = 300
    large_bytes_max: int = 20_000
    large_share: float = 0.12
    quotas: tuple[int, ...] = (0, 0, 3, 128)


class Workload:
    """Works on the store that `open_store` gives, and opens it again when it closed it."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        history: History,
        random: Random,
        shape: WorkloadShape | None = None,
    ) -> None:
        self._open_store = open_store
        self._history = history
        self._random = random
        self._shape = shape or WorkloadShape()
        self._streams = [
            StreamId(random.randbytes(STREAM_ID_BYTES)) for _ in range(self._shape.stream_count)
        ]
        self._counter = 0
        self._job: Job | None = None
        self._result: object = None
        self._has_result = False
        self.now_ms = START_MS
        # How often a write was refused for want of room; nothing was staged by it.
        self.refused_count = 0
        self.store = open_store()
        self._alive = set(self.store.streams())

    def run(self, step_count: int) -> None:
        for _ in range(step_count):
            self.step()

    def step(self) -> None:
        self.now_ms += self._random.randrange(50)
        way = self._random.random()
        if way < 0.66:
            self.stage_one()
        elif way < 0.82:
            self.commit()
        elif way < 0.87:
            self.commit(acknowledgements=False)
        elif way < 0.94:
            self.move_job()
        elif way < 0.96:
            self.expire()
        elif way < 0.97:
            self.store.scrub(10_000)
        elif way < 0.985:
            self.do_jobs()
        else:
            self.reopen()

    # Staging.

    def stage_one(self) -> None:
        """Stage a record that makes sense for some stream as it is now."""
        stream = self._random.choice(self._streams)
        if stream not in self._alive:
            self._create(stream)
            return
        way = self._random.random()
        if way < 0.60:
            self.append(stream)
        elif way < 0.80:
            self._acknowledge(stream)
        elif way < 0.84:
            self._stage(DeleteStream(stream))
            self._alive.discard(stream)
        elif way < 0.90:
            self._snapshot(stream)
        else:
            self._cursor(stream)

    def append(self, stream: StreamId) -> None:
        next_seq = self.store.state(stream).next
        record = AppendEntry(stream, self._payload(), self.now_ms)
        try:
            stage(self.store, record)
        except QuotaExceededError:
            if self.store.state(stream).next > next_seq:
                self._history.marker_staged(stream, self.now_ms)
        except StoreFullError:
            self.refused_count += 1
        else:
            self._history.staged(record)

    def expire(self) -> None:
        before = {stream: self.store.state(stream).first for stream in sorted(self._alive)}
        self.store.expire_before(self.now_ms - self._random.randrange(1000), 10)
        for stream, first in before.items():
            found = self.store.state(stream).first
            if found != first:
                self._history.staged(TruncateStream(stream, found))

    def _create(self, stream: StreamId) -> None:
        kind = self._random.choice((StreamKind.QUEUE, StreamKind.QUEUE, StreamKind.DOCUMENT))
        quota = self._random.choice(self._shape.quotas) if kind is StreamKind.QUEUE else 0
        if self._stage(CreateStream(stream, kind, quota, self.now_ms)):
            self._alive.add(stream)

    def _acknowledge(self, stream: StreamId) -> None:
        state = self.store.state(stream)
        seq = self._random.randint(state.first, state.next)
        if self._random.random() < 0.3:
            seq = state.next
        if seq > state.first:
            self._stage(TruncateStream(stream, seq))

    def _snapshot(self, stream: StreamId) -> None:
        state = self.store.state(stream)
        self._stage(PutSnapshot(stream, state.next - 1, self._payload(), self.now_ms))

    def _cursor(self, stream: StreamId) -> None:
        name = self._random.choice((b"a", b"b", b"a-longer-name"))
        now = self.store.cursors(stream).get(name)
        if now is not None and self._random.random() < 0.3:
            self._stage(DropCursor(stream, name))
            return
        self._stage(MoveCursor(stream, name, self._random.randint(now or 0, self._next(stream))))

    def _next(self, stream: StreamId) -> int:
        return self.store.state(stream).next

    def _stage(self, record: Record) -> bool:
        try:
            stage(self.store, record)
        except StoreFullError:
            self.refused_count += 1
            return False
        self._history.staged(record)
        return True

    def _payload(self) -> bytes:
        """Bytes that no other entry has."""
        self._counter += 1
        is_large = self._random.random() < self._shape.large_share
        size_max = self._shape.large_bytes_max if is_large else self._shape.small_bytes_max
        size = self._random.randint(0, size_max)
        return b"%d:" % self._counter + self._random.randbytes(size)

    # Committing and upkeep.

    def commit(self, *, acknowledgements: bool = True) -> None:
        """Make everything durable that is staged now; more is staged while the disk is busy."""
        self._history.batch_taken(acknowledgements=acknowledgements)
        more = self._random.choice((0, 0, 1, 2))
        # A store may cut what is staged into several batches, so the promise holds after the last.
        while (batch := self.store.take_batch(acknowledgements=acknowledgements)) is not None:
            self._stage_some(more)
            self.store.write_batch(batch)
            self._stage_some(more // 2)
            self.store.finish_batch(batch)
            more = 0
        self._history.batch_finished()

    def _stage_some(self, count: int) -> None:
        for _ in range(count):
            self.stage_one()

    def move_job(self) -> None:
        """Take the next job, or run the one that was taken, or hand over its result."""
        if self._job is None:
            self._job = self.store.take_job()
        elif not self._has_result:
            self._result = self.store.run_job(self._job)
            self._has_result = True
        else:
            self.store.finish_job(self._job, self._result)
            self._job, self._result, self._has_result = None, None, False

    def do_jobs(self) -> None:
        while self._job is not None:
            self.move_job()
        run_jobs(self.store)

    def reopen(self) -> None:
        """Close in order and open again."""
        while self._job is not None:
            self.move_job()
        self._history.batch_taken(acknowledgements=True)
        self.store.close()
        self._history.batch_finished()
        self.store = self._open_store()
        self._alive = set(self.store.streams())

    def resume(self, store: Store) -> None:
        """Go on with a store that was recovered."""
        self.store = store
        self._job, self._result, self._has_result = None, None, False
        self._alive = set(store.streams())
