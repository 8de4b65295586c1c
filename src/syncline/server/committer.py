"""The one place where writes become durable and whoever waits for that is told.

A shell stages writes on the store and leaves a callback here. The callback is called, in the event
loop, once everything staged before it is durable and visible, and never earlier.

    stage, when_durable   any number in one turn of the loop
    join_batches, ask     the same for a shell that stages all the time: it is asked for its
                          callback when a batch is taken, so that it leaves one for many writes
    take_batch            at the end of that turn, or when the last batch is finished; a turn or two
                          later where several write, each when told of the last (`Pace`)
    write_batch           on the thread, or in the loop while small and quick
    finish_batch          in the loop, then the callbacks, in the order in which they came

There is no timer: a batch holds what came while the one before it was written, and what comes in
turns of the loop that follow one another without a pause.

Invariants, checked over all interleavings by tests/model/test_committer_model.py:
- Told that it is durable implies durable: no batch tells a waiter of what was staged after it.
- At most one batch is taken and not finished.
- Waiters are told in the order in which they came, each once.
- After a failed device nobody is told that anything is durable, ever again.
- A waiter that went away changes nothing: the batch is written all the same.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from syncline.errors import StorageError, StoreFullError
from syncline.server.batch_thread import BatchThread, Written
from syncline.server.pace import COMPANY_BYTES_MAX, Pace
from syncline.server.waiters import Told, Waiters
from syncline.storage.base import Batch, Commits
from syncline.values import limits


@dataclass(slots=True)
class CommitterStats:
    """Counters since the start."""

    batch_count: int = 0
    inline_batch_count: int = 0
    refused_batch_count: int = 0
    record_count: int = 0
    byte_count: int = 0
    write_seconds: float = 0.0


@runtime_checkable
class CutsBatches(Protocol):
    """A store that closes a batch at a size; the others take all that is staged.

    It takes the oldest first. `waiting_bytes` counts everything staged but acknowledgements, and
    `held_back_count` the streams whose acknowledgement no batch has taken: with little room, or
    with closed batches before it, a batch may not take them all even if asked to. Such a store
    refuses while staging; what it refuses while writing is fatal, as nobody could say whom it hit.
    """

    batch_bytes_max: int

    @property
    def held_back_count(self) -> int: ...


class _BatchWriter(Protocol):
    def write(self, batch: Batch, written: Written) -> None: ...

    def close(self) -> None: ...


class _Loop(Protocol):
    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class Committer:
    """See the module. Every method is called in the event loop of the store's owner."""

    def __init__(
        self,
        store: Commits,
        loop: _Loop,
        writer: _BatchWriter,
        clock_seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stats = CommitterStats()
        self.pace = Pace()
        # Why nothing is made durable any more; the process has to end.
        self.failure: StorageError | None = None
        self._store = store
        self._cutting = store if isinstance(store, CutsBatches) else None
        assert self._cutting or not hasattr(store, "batch_bytes_max"), "it cuts without saying so"
        self._loop = loop
        self._writer = writer
        self._clock_seconds = clock_seconds
        self._waiters = Waiters()
        self._wants_flush = False
        self._joining: list[Callable[[], Told | None]] = []
        # One of those has staged something and wants it written.
        self._is_asked = False
        self._tell_next: Callable[[], None] | None = None
        # A start is scheduled or a batch is in flight.
        self._is_busy = False
        # What the last turn found staged, while the next batch waits for company, and until when.
        self._gathered_bytes = 0
        self._gathers_until = 0.0
        self._taken_count = 0
        # How far the disk is: bytes for a store that cuts batches, batches for the others.
        self._reached = 0
        self._progress = asyncio.Event()
        # An event of its own: who only waits for the end must not be woken by every batch.
        self._has_failed = asyncio.Event()
        self._limit_batches()

    @classmethod
    def on_thread(cls, store: Commits) -> "Committer":
        """The real thing: for the running loop, with a thread of its own."""
        loop = asyncio.get_running_loop()
        return cls(store, loop, BatchThread(store, loop, time.perf_counter))

    # Waiting.

    def when_durable(self, told: Told, *, acknowledgements: bool = False) -> None:
        """Call `told` once all that is staged now is durable.

        Acknowledgements need not be, unless asked for: they are written when there is room.
        `told` must not raise and must not wait.
        """
        if acknowledgements:
            self._waiters.add_for_acknowledgements(told)
        else:
            self._add(told)
        self._wake()

    def _add(self, told: Told) -> None:
        if self._cutting is None:
            self._waiters.add(told, self._taken_count + 1)
        else:
            self._waiters.add(told, self._reached + self._store.waiting_bytes)

    def join_batches(self, joins: Callable[[], Told | None]) -> None:
        """Call `joins` before each batch is taken; what it returns, if anything, is a waiter."""
        self._joining.append(joins)

    def ask(self) -> None:
        """Have what is staged written; whoever joins batches leaves a waiter when that begins."""
        self._is_asked = True
        self._wake()

    def tell_next_batch(self, told: Callable[[], None]) -> None:
        """Call it once, when the next batch is finished."""
        self._tell_next = told

    async def durable(self, *, acknowledgements: bool = False) -> None:
        """Wait until all that is staged now is durable.

        Raises StorageError if it will not be. Whoever is cancelled here only stops waiting.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(failure: StorageError | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self.when_durable(told, acknowledgements=acknowledgements)
        await future

    async def room(self, byte_count: int = 0) -> None:
        """Wait until `byte_count` more bytes may be staged.

        Stage them before waiting for anything else, or somebody else has the room.
        """
        bytes_max = limits.waiting_bytes_max - min(byte_count, limits.waiting_bytes_max)
        while self._store.waiting_bytes > bytes_max:
            if self.failure is not None:
                raise self.failure
            self.flush()
            await self._progress.wait()

    async def failed(self) -> StorageError:
        """Wait for the failure that ends the process."""
        await self._has_failed.wait()
        assert self.failure is not None
        return self.failure

    @property
    def is_idle(self) -> bool:
        """Nothing that anybody waits for is on its way to the disk."""
        return not self._is_busy and not self._waiters

    def flush(self) -> None:
        """Have everything written that is staged, held back acknowledgements too; nobody waits."""
        self._wants_flush = True
        self._wake()

    async def close(self) -> None:
        """Make everything staged durable and let go of the thread. Raises StorageError."""
        try:
            await self.durable(acknowledgements=True)
        finally:
            self._writer.close()

    # Committing.

    def _wake(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            company_seconds = self.pace.company_seconds
            if company_seconds:
                self._gathered_bytes = 0
                self._gathers_until = self._clock_seconds() + company_seconds
                self._loop.call_soon(self._gather)
            else:
                self._loop.call_soon(self._start)

    def _gather(self) -> None:
        """Start at the end of the first turn that brought nothing more, or when it is time."""
        waiting_bytes = self._store.waiting_bytes
        if (
            self._gathered_bytes < waiting_bytes < COMPANY_BYTES_MAX
            and self._clock_seconds() < self._gathers_until
        ):
            self._gathered_bytes = waiting_bytes
            self._loop.call_soon(self._gather)
        else:
            self._start()

    def _start(self) -> None:
        """Take what is staged; the end of the turn in which the first write came, or a later."""
        try:
            batch = self._take()
        except StorageError as error:
            self._stop(error)
            return
        except BaseException:
            self._stop(_internal_error())
            raise
        if batch is None:
            self._nothing_taken()
            return
        self._taken_count += 1
        self._place_acknowledgements()
        if self.pace.writes_inline(batch.byte_count):
            self._write_inline(batch)
        else:
            self._writer.write(
                batch, lambda seconds, failure: self._written(batch, seconds, failure)
            )

    def _take(self) -> Batch | None:
        """Who joins batches does so first: it may have staged something, and may wait for it."""
        self._is_asked = False
        for joins in self._joining:
            if (told := joins()) is not None:
                self._add(told)
        wants_acknowledgements = self._wants_flush or self._waiters.want_acknowledgements
        self._wants_flush = False
        if self.failure is not None:
            raise self.failure
        return self._store.take_batch(acknowledgements=wants_acknowledgements)

    def _place_acknowledgements(self) -> None:
        if self._cutting is None:
            self._waiters.place(self._taken_count)
        elif not self._cutting.held_back_count:
            # All of them are in some batch by now, though maybe in one behind this one.
            self._waiters.place(self._reached + self._store.waiting_bytes)

    def _nothing_taken(self) -> None:
        """What they wait for was in a batch before; unless there was no room for it in any."""
        self._place_acknowledgements()
        told = [*self._waiters.pop_writes(), *self._waiters.pop_placed()]
        if full := self._waiters.pop_unplaced():
            self._tell(full, StoreFullError("the log", "it has no room for acknowledgements"))
        self._tell_and_turn_over(told, None)

    def _write_inline(self, batch: Batch) -> None:
        started = self._clock_seconds()
        failure: StorageError | None = None
        try:
            self._store.write_batch(batch)
        except StorageError as error:
            failure = error
        except BaseException:
            self._stop(_internal_error())
            raise
        self.stats.inline_batch_count += 1
        self._written(batch, self._clock_seconds() - started, failure)

    def _written(self, batch: Batch, seconds: float, failure: StorageError | None) -> None:
        if failure is not None and not self._is_passing(failure):
            self._stop(failure)
            return
        try:
            self._finish(batch, seconds, failure)
        except StorageError as error:
            self._stop(error)
            return
        except BaseException:
            self._stop(_internal_error())
            raise
        self._tell_and_turn_over(self._waiters.pop_reached(self._reached), failure)

    def _is_passing(self, failure: StorageError) -> bool:
        """Only this batch is hit, and all who wait for it are known."""
        return isinstance(failure, StoreFullError) and self._cutting is None

    def _finish(self, batch: Batch, seconds: float, failure: StorageError | None) -> None:
        # Read before finishing: a batch need not keep its facts afterwards.
        byte_count, record_count = batch.byte_count, batch.record_count
        waiting_bytes = self._store.waiting_bytes
        self._store.finish_batch(batch)
        if self._cutting is None:
            self._reached = self._taken_count
        else:
            self._reached += waiting_bytes - self._store.waiting_bytes
        if failure is None:
            self._count(byte_count, record_count, seconds)
        else:
            self.stats.refused_batch_count += 1

    def _count(self, byte_count: int, record_count: int, seconds: float) -> None:
        self.stats.batch_count += 1
        self.stats.record_count += record_count
        self.stats.byte_count += byte_count
        self.stats.write_seconds += seconds
        self.pace.learn(byte_count, record_count, seconds)
        self._limit_batches()
        if self._tell_next is not None:
            tell, self._tell_next = self._tell_next, None
            tell()

    def _limit_batches(self) -> None:
        if self._cutting is not None:
            self._cutting.batch_bytes_max = self.pace.batch_bytes_max

    def _tell_and_turn_over(self, waiting: Sequence[Told], failure: StorageError | None) -> None:
        try:
            self._tell(waiting, failure)
        finally:
            self._turn_over()

    def _turn_over(self) -> None:
        self._progress.set()
        self._progress.clear()
        # What the callbacks have just staged joins: the start waits for the end of the turn.
        self._is_busy = False
        if self._waiters or self._wants_flush or self._is_asked:
            self._wake()

    def _stop(self, failure: StorageError) -> None:
        """Nobody knows what is on the disk. Nothing is acknowledged from here on."""
        self.failure = failure
        self._has_failed.set()
        waiters = self._waiters
        told = [*waiters.pop_writes(), *waiters.pop_placed(), *waiters.pop_unplaced()]
        self._tell_and_turn_over(told, failure)

    def _tell(self, waiting: Sequence[Told], failure: StorageError | None) -> None:
        told_count = 0
        try:
            for told in waiting:
                told_count += 1
                told(failure)
        finally:
            # A callback raised, which is a mistake: those behind it must not pay for it.
            if rest := waiting[told_count:]:
                self._loop.call_soon(lambda: self._tell(rest, failure))


def _internal_error() -> StorageError:
    return StorageError(
        "writing stopped on an internal error; nothing unsaved was acknowledged. "
        "Start again: the log is replayed"
    )
