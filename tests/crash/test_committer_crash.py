"""The committer over real stores, cut off anywhere: what somebody was told is there afterwards.

Acknowledgements are the hard part: a store may hold them back, put them into a later batch, or let
the next message of the same queue carry them, and whoever waits for one must not be told too early.
"""

from collections.abc import Callable
from random import Random

import pytest

from syncline.errors import StorageError, StoreBusyError
from syncline.server.committer import Committer
from syncline.storage.base import Store, StreamKind, run_jobs
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.model.test_committer_model import ManualLoop

QUEUES = [StreamId(bytes([number]) * 24) for number in range(1, 5)]
# Small segments: batches are cut at their ends, and several wait for the disk at a time.
OPTIONS = StoreOptions(segment_bytes=64 * 1024)
SEEDS = range(80)


def open_on(files: SimulatedFiles, kind: str, random: Random) -> Store:
    return open_store(kind, "/data", files, OPTIONS, now_ms=1, random_bytes=random.randbytes)


class HandWriter:
    """Holds one batch until it is told to write it, and reports in a later turn."""

    def __init__(self, store: Store, loop: ManualLoop) -> None:
        self._store = store
        self._loop = loop
        self.handed: list[Callable[[], None]] = []

    def write(self, batch: object, written: Callable[[float, StorageError | None], None]) -> None:
        def carry_out() -> None:
            self._store.write_batch(batch)  # type: ignore[arg-type]
            self._loop.call_soon(lambda: written(0.1, None))

        self.handed.append(carry_out)

    def close(self) -> None: ...


class Run:
    """Random producers and readers over one store, and what each of them was told."""

    def __init__(self, kind: str, seed: int, committer_class: type[Committer]) -> None:
        self.random = Random(seed)
        self.files = SimulatedFiles()
        self.store = open_on(self.files, kind, self.random)
        self.loop = ManualLoop()
        self.writer = HandWriter(self.store, self.loop)
        self.committer = committer_class(self.store, self.loop, self.writer, lambda: 0.0)
        self.payloads: dict[tuple[StreamId, int], bytes] = {}
        self.told_messages: set[tuple[StreamId, int]] = set()
        self.told_firsts: dict[StreamId, int] = {}
        for queue in QUEUES:
            self.store.create(queue, StreamKind.QUEUE, 0, 1)
        self.committer.when_durable(lambda failure: None)
        for _ in range(10):
            self.turn()
            self.write()

    def append(self) -> None:
        queue = self.random.choice(QUEUES)
        payload = self.random.randbytes(self.random.choice([1, 100, 5_000, 20_000]))
        try:
            seq = self.store.append(queue, payload, 2)
        except StoreBusyError:
            run_jobs(self.store)
            return
        self.payloads[queue, seq] = payload
        self.committer.when_durable(
            lambda failure: self.told_messages.add((queue, seq)) if failure is None else None
        )

    def acknowledge(self) -> None:
        queue = self.random.choice(QUEUES)
        state = self.store.state(queue)
        if state.first == state.next:
            return
        first = self.random.randint(state.first + 1, state.next)
        self.store.truncate_before(queue, first)
        if self.random.random() < 0.5:
            self.committer.when_durable(
                lambda failure: self._told_first(queue, first, failure), acknowledgements=True
            )

    def _told_first(self, queue: StreamId, first: int, failure: StorageError | None) -> None:
        if failure is None:
            self.told_firsts[queue] = max(first, self.told_firsts.get(queue, 1))

    def turn(self) -> None:
        if self.loop.callbacks:
            self.loop.callbacks.popleft()()

    def write(self) -> None:
        if self.writer.handed:
            self.writer.handed.pop()()

    def go_on(self, step_count: int) -> None:
        moves = [self.append] * 4 + [self.acknowledge] * 2 + [self.turn] * 3 + [self.write]
        for _ in range(step_count):
            self.random.choice(moves)()
            if self.random.random() < 0.01:
                run_jobs(self.store)

    def check_after_crash(self, kind: str) -> None:
        recovered = open_on(self.files.crash(self.random), kind, self.random)
        for queue in QUEUES:
            state = recovered.state(queue)
            assert state.first >= self.told_firsts.get(queue, 1), "told of an acknowledgement"
            found = {entry.seq: entry.payload for entry in recovered.read(queue, 0, 1_000, 1 << 24)}
            for told_queue, seq in self.told_messages:
                if told_queue == queue and seq >= max(state.first, self.store.state(queue).first):
                    assert found.get(seq) == self.payloads[queue, seq], "told of a message"


@pytest.mark.parametrize("kind", ["log", "journal"])
def test_what_somebody_was_told_survives_a_crash_anywhere(kind: str) -> None:
    told_count = 0
    for seed in SEEDS:
        run = Run(kind, seed, Committer)
        run.go_on(run.random.randint(10, 250))
        try:
            run.check_after_crash(kind)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        told_count += len(run.told_messages) + len(run.told_firsts)
    assert told_count > 10 * len(SEEDS), "too little happened"


class TellsOfAcknowledgementsWithWrites(Committer):
    """Broken on purpose: an acknowledgement counts as written with the next batch."""

    def when_durable(
        self, told: Callable[[StorageError | None], None], *, acknowledgements: bool = False
    ) -> None:
        super().when_durable(told)


class PlacesTooEarly(Committer):
    """Broken on purpose: acknowledgements count as taken though the store held some back."""

    def _place_acknowledgements(self) -> None:
        self._waiters.place(self._reached + 1)


@pytest.mark.parametrize("broken", [TellsOfAcknowledgementsWithWrites, PlacesTooEarly])
def test_a_broken_committer_is_caught(broken: type[Committer]) -> None:
    def crash_all() -> None:
        for seed in SEEDS:
            run = Run("log", seed, broken)
            run.go_on(run.random.randint(10, 250))
            run.check_after_crash("log")

    with pytest.raises(AssertionError, match="told of an acknowledgement"):
        crash_all()
