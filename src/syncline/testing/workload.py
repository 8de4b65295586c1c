"""Random work on a store: what crash tests run while they pull the plug.

Everything is drawn from one `random.Random`. Each step is one of the things that an owner of a
store does: stage records, commit with or without acknowledgements, move a job on by one stage,
expire, scrub, close and open again. Records are staged while a batch is being written and while a
job runs, as the committer does it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from syncline.storage.base import Store, StreamKind
from syncline.testing.oracle import History
from syncline.testing.owner import StoreOwner
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.records import (
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    TruncateStream,
)


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """How much of what. `large_share` of the entries are large."""

    stream_count: int = 5
    small_bytes_max: int = 300
    large_bytes_max: int = 20_000
    large_share: float = 0.12
    quotas: tuple[int, ...] = (0, 0, 3, 128)
    cursor_names: tuple[bytes, ...] = (b"a", b"b", b"a-longer-name")


class Workload:
    """See the module."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        history: History,
        random: Random,
        shape: WorkloadShape | None = None,
    ) -> None:
        self._random = random
        self._shape = shape or WorkloadShape()
        self._streams = [
            StreamId(random.randbytes(STREAM_ID_BYTES)) for _ in range(self._shape.stream_count)
        ]
        self._counter = 0
        self.owner = StoreOwner(open_store, history)

    def run(self, step_count: int) -> None:
        for _ in range(step_count):
            self.step()

    def step(self) -> None:
        owner = self.owner
        owner.clock.advance(self._random.randrange(50))
        way = self._random.random()
        if way < 0.66:
            self.stage_one()
        elif way < 0.82:
            self.commit(acknowledgements=True)
        elif way < 0.87:
            self.commit(acknowledgements=False)
        elif way < 0.94:
            owner.move_job()
        elif way < 0.96:
            owner.expire(self._random.randrange(1000))
        elif way < 0.97:
            owner.store.scrub(10_000)
        elif way < 0.985:
            owner.do_jobs()
        else:
            owner.reopen()

    def commit(self, *, acknowledgements: bool) -> None:
        count = self._random.choice((0, 0, 1, 2))
        self.owner.commit(
            acknowledgements=acknowledgements,
            while_writing=lambda: self._stage_some(count),
            before_finishing=lambda: self._stage_some(count // 2),
        )

    def stage_one(self) -> None:
        """Stage a record that makes sense for some stream as it is now."""
        stream = self._random.choice(self._streams)
        if stream not in self.owner.alive:
            self._create(stream)
            return
        way = self._random.random()
        if way < 0.60:
            self.owner.append(stream, self._payload())
        elif way < 0.80:
            self._acknowledge(stream)
        elif way < 0.84:
            self.owner.stage(DeleteStream(stream))
        elif way < 0.90:
            up_to_seq = self.owner.state(stream).next - 1
            self.owner.stage(PutSnapshot(stream, up_to_seq, self._payload(), self.owner.clock()))
        else:
            self._cursor(stream)

    def _stage_some(self, count: int) -> None:
        for _ in range(count):
            self.stage_one()

    def _create(self, stream: StreamId) -> None:
        kind = self._random.choice((StreamKind.QUEUE, StreamKind.QUEUE, StreamKind.DOCUMENT))
        quota = self._random.choice(self._shape.quotas) if kind is StreamKind.QUEUE else 0
        self.owner.stage(CreateStream(stream, kind, quota, self.owner.clock()))

    def _acknowledge(self, stream: StreamId) -> None:
        state = self.owner.state(stream)
        end = self.owner.end_of_covered(stream)
        seq = self._random.randint(state.first, end)
        if self._random.random() < 0.3:
            seq = end
        if seq > state.first:
            self.owner.stage(TruncateStream(stream, seq))

    def _cursor(self, stream: StreamId) -> None:
        name = self._random.choice(self._shape.cursor_names)
        now = self.owner.store.cursors(stream).get(name)
        if now is not None and self._random.random() < 0.3:
            self.owner.stage(DropCursor(stream, name))
            return
        seq = self._random.randint(now or 0, self.owner.state(stream).next)
        self.owner.stage(MoveCursor(stream, name, seq))

    def _payload(self) -> bytes:
        """Bytes that no other entry has."""
        self._counter += 1
        is_large = self._random.random() < self._shape.large_share
        size_max = self._shape.large_bytes_max if is_large else self._shape.small_bytes_max
        size = self._random.randint(0, size_max)
        return b"%d:" % self._counter + self._random.randbytes(size)
