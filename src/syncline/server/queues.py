"""Queues over a store: stage, wait until it is durable, answer.

Every face that works with queues comes through here, so that all keep the same rules:
- Nothing is answered before it is durable. A caller that goes away changes nothing.
- A reader that waits is registered before it looks, so no message slips by between the two.
- Producers wait for room and for upkeep that is behind, and are refused when the disk is nearly
  full; readers never are.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from syncline.core import queue
from syncline.core.queue import QueueView, ReadRequest
from syncline.errors import (
    QuotaExceededError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    SynclineError,
)
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.server.listing import Page, page_of
from syncline.storage.applying import stage
from syncline.storage.base import Entry, Store, StreamKind, StreamState
from syncline.values import limits
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.records import AppendEntry, CreateStream, DeleteStream, Record

# How long a producer waits for upkeep that is behind before it is told to come again.
BUSY_SECONDS_MAX = 10.0
# Requests have no session that could be told apart: in events all of them are this one.
SESSION = 1


@dataclass(slots=True)
class _OnItsWay:
    """Messages of one queue between staging and the disk."""

    first: int
    last: int = 0


class Queues:
    """See the module. Every method raises UnknownQueueError for a queue that does not exist."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        clock_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        quota_default: int = limits.queue_quota_default,
        events: Events | None = None,
    ) -> None:
        # Why new messages are refused for now; reading and acknowledging free space and go on.
        self.shortage: StoreFullError | None = None
        self._store = store
        self._committer = committer
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._quota_default = quota_default
        self._events = events
        # Set while a producer waits for upkeep; whoever does the upkeep calls `relieve`.
        self.pressure = asyncio.Event()
        self._relief = asyncio.Event()
        # Staged and not durable: no reader can have seen it. Bounded by what waits for the disk.
        self._on_their_way: dict[StreamId, _OnItsWay] = {}
        # Bounded by the number of connections: each waits for one queue at a time.
        self._arrivals: dict[StreamId, set[asyncio.Event]] = {}
        self._is_draining = False

    async def create(self, stream: StreamId | None, quota: int | None) -> StreamId:
        """Raises QueueExistsError, MalformedMessageError, StoreFullError."""
        checked = queue.checked_quota(self._quota_default if quota is None else quota)
        self._check_space()
        stream = stream or StreamId(self._random_bytes(STREAM_ID_BYTES))
        await self._stage_patiently(
            CreateStream(stream, StreamKind.QUEUE, checked, self._clock_ms())
        )
        await self._committer.durable()
        return stream

    async def delete(self, stream: StreamId) -> None:
        self._stage(DeleteStream(stream))
        self._on_their_way.pop(stream, None)
        # Readers that wait learn that there is nothing left to wait for.
        self._wake(stream)
        await self._committer.durable()

    async def append(self, stream: StreamId, payload: bytes) -> int:
        """Return the sequence of the message once it is durable.

        Raises QuotaExceededError, LimitExceededError, StoreFullError, StoreBusyError.
        """
        self._check_space()
        await self._committer.room(len(payload))
        seq = await self._append(stream, payload)
        self._expect_arrival(stream, seq)
        await self._committer.durable()
        return seq

    async def append_many(
        self, stream: StreamId, payloads: Sequence[bytes]
    ) -> tuple[int, int, SynclineError | None]:
        """Append side by side, up to the first refusal; all that was taken is durable on return.

        Return the first sequence, how many were taken, and why the next one was not.
        """
        self._check_space()
        await self._committer.room(sum(map(len, payloads)))
        first_seq, last_seq = 0, 0
        refusal: SynclineError | None = None
        try:
            for payload in payloads:
                last_seq = await self._append(stream, payload, after=last_seq)
                first_seq = first_seq or last_seq
        except SynclineError as error:
            refusal = error
        finally:
            # Even if the caller goes away in the middle: what it staged is on its way.
            if first_seq:
                self._expect_arrival(stream, last_seq)
        if not first_seq:
            return 0, 0, refusal
        await self._committer.durable()
        return first_seq, last_seq - first_seq + 1, refusal

    async def read(
        self, stream: StreamId, request: ReadRequest, wait_seconds: float = 0.0
    ) -> list[Entry]:
        """Durable messages, in order. With none there, wait for one for so long."""
        found = await self._read(stream, request, wait_seconds)
        if self._events is not None:
            for first, last in _ranges(found):
                self._events.delivered(stream, SESSION, first, last)
        return found

    async def _read(
        self, stream: StreamId, request: ReadRequest, wait_seconds: float
    ) -> list[Entry]:
        if wait_seconds <= 0:
            return self._look(stream, request)
        with self._expecting(stream) as arrival:
            try:
                async with asyncio.timeout(wait_seconds):
                    while not (found := self._look(stream, request)) and not self._is_draining:
                        arrival.clear()
                        await arrival.wait()
            except TimeoutError:
                return []
            return found

    async def acknowledge(self, stream: StreamId, seq: int) -> int:
        """Let go of everything up to `seq`; return the first sequence still wanted.

        Raises MalformedMessageError, UnexpectedMessageError.
        """
        state = self._store.state(stream)
        on_its_way = self._on_their_way.get(stream)
        durable_next = state.next if on_its_way is None else on_its_way.first
        outcome = queue.acknowledge(QueueView(stream, state.first, durable_next), seq)
        for record in outcome.writes:
            self._stage(record)
        if self._events is not None and outcome.writes:
            self._events.acknowledged(stream, SESSION, seq)
        await self._committer.durable(acknowledgements=True)
        (acknowledged,) = outcome.sends
        return acknowledged.first

    def state(self, stream: StreamId) -> StreamState:
        return self._store.state(stream)

    async def page(self, after: StreamId | None, count: int) -> Page:
        """The next `count` queues in the order of their ids."""
        return await page_of(self._store, StreamKind.QUEUE, after, count)

    @property
    def waiting_reader_count(self) -> int:
        return sum(map(len, self._arrivals.values()))

    def relieve(self) -> None:
        """Some upkeep is done: producers that wait for it may try again."""
        self.pressure.clear()
        self._relief.set()
        self._relief.clear()

    def drain(self) -> None:
        """Send waiting readers home: the router is about to stop."""
        self._is_draining = True
        for stream in list(self._arrivals):
            self._wake(stream)

    # Writing.

    def _stage(self, record: Record) -> int | None:
        return stage(self._store, record)

    async def _stage_patiently(
        self, record: Record, is_late: Callable[[], bool] = bool
    ) -> int | None:
        """Stage; with the store busy wait for upkeep, for a while. Raises StoreBusyError."""
        try:
            return self._stage(record)
        except StoreBusyError as busy:
            refusal = busy
        with suppress(TimeoutError):
            async with asyncio.timeout(BUSY_SECONDS_MAX):
                await self._wait_for_relief()
                while not is_late():
                    with suppress(StoreBusyError):
                        return self._stage(record)
                    await self._wait_for_relief()
        raise refusal

    async def _wait_for_relief(self) -> None:
        self.pressure.set()
        await self._relief.wait()

    async def _append(self, stream: StreamId, payload: bytes, after: int = 0) -> int:
        """Append; with `after` only right behind that sequence."""

        def is_late() -> bool:
            return after > 0 and self._store.state(stream).next != after + 1

        record = AppendEntry(stream, payload, self._clock_ms())
        try:
            seq = await self._stage_patiently(record, is_late)
        except QuotaExceededError:
            # The first refusal left a marker that the reader must get.
            self._expect_arrival(stream, 0)
            raise
        assert seq is not None
        on_its_way = self._on_their_way.setdefault(stream, _OnItsWay(seq))
        on_its_way.last = seq
        return seq

    def _expect_arrival(self, stream: StreamId, last_seq: int) -> None:
        """Wake readers once it is durable, whether or not the sender still waits for that."""
        self._committer.when_durable(partial(self._arrived, stream, last_seq))

    def _arrived(self, stream: StreamId, last_seq: int, failure: StorageError | None) -> None:
        on_its_way = self._on_their_way.get(stream)
        if on_its_way is not None and last_seq:
            on_its_way.first = last_seq + 1
            if failure is not None or last_seq >= on_its_way.last:
                del self._on_their_way[stream]
        if failure is None:
            self._wake(stream)

    def _check_space(self) -> None:
        if self.shortage is not None:
            raise self.shortage

    # Reading.

    def _look(self, stream: StreamId, request: ReadRequest) -> list[Entry]:
        return self._store.read(stream, request.from_seq, request.count_max, request.bytes_max)

    @contextmanager
    def _expecting(self, stream: StreamId) -> Generator[asyncio.Event]:
        arrival = asyncio.Event()
        self._arrivals.setdefault(stream, set()).add(arrival)
        try:
            yield arrival
        finally:
            waiting = self._arrivals[stream]
            waiting.discard(arrival)
            if not waiting:
                del self._arrivals[stream]

    def _wake(self, stream: StreamId) -> None:
        for arrival in self._arrivals.get(stream, ()):
            arrival.set()


def _ranges(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """First and last sequence of each stretch without gaps: what is damaged is left out."""
    start = 0
    for place, entry in enumerate(entries):
        if place + 1 == len(entries) or entries[place + 1].seq != entry.seq + 1:
            yield entries[start].seq, entry.seq
            start = place + 1
