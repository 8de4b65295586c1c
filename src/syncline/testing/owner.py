"""Does to a store what its owner does, and tells a history what was staged and what is durable.

A write refused for want of room is counted, and work goes on; a crash and a failing device pass
through.
"""

from collections.abc import Callable

from syncline.errors import QuotaExceededError, StoreBusyError, StoreFullError
from syncline.storage.applying import stage
from syncline.storage.base import Store, StreamKind, StreamState
from syncline.testing.clock import ManualClock
from syncline.testing.jobs import JobSteps
from syncline.testing.oracle import History
from syncline.values.ids import StreamId
from syncline.values.records import AppendEntry, CreateStream, DeleteStream, Record, TruncateStream


def _nothing() -> None:
    pass


class StoreOwner:
    """Works on the store that `open_store` gives, and opens it again when it closed it."""

    def __init__(self, open_store: Callable[[], Store], history: History) -> None:
        self._open_store = open_store
        self._history = history
        self._appends_many = False
        self.clock = ManualClock()
        # Writes that found no room; nothing was staged by them.
        self.refused_count = 0
        self.store = open_store()
        self._jobs = JobSteps(self.store)
        self.alive = set(self.store.streams())

    def state(self, stream: StreamId) -> StreamState:
        return self.store.state(stream)

    def end_of_covered(self, stream: StreamId) -> int:
        """Up to which sequence the stream may be truncated: a document, no further than its durable
        snapshot covers."""
        state = self.state(stream)
        if state.kind is not StreamKind.DOCUMENT:
            return state.next
        snapshot = self.store.snapshot(stream)
        return state.first if snapshot is None else max(state.first, snapshot.up_to_seq + 1)

    # Staging.

    def stage(self, record: Record) -> bool:
        """False if it was refused."""
        try:
            stage(self.store, record)
        except (StoreFullError, StoreBusyError):
            self.refused_count += 1
            return False
        self._history.staged(record)
        if isinstance(record, CreateStream):
            self.alive.add(record.stream)
        elif isinstance(record, DeleteStream):
            self.alive.discard(record.stream)
        return True

    def append(self, stream: StreamId, payload: bytes) -> None:
        """Append, or meet the quota."""
        next_seq = self.state(stream).next
        record = AppendEntry(stream, payload, self.clock())
        self._appends_many = not self._appends_many
        # Every other one goes the way of many at once; if refused there, it asks for the reason.
        if self._appends_many and self.store.append_many([(stream, payload)], record.now_ms):
            self._history.staged(record)
            return
        try:
            self.stage(record)
        except QuotaExceededError:
            if self.state(stream).next > next_seq:
                self._history.marker_staged(stream, self.clock())

    def expire(self, age_ms: int) -> None:
        before = {stream: self.state(stream).first for stream in sorted(self.alive)}
        self.store.expire_before(self.clock() - age_ms, 10)
        for stream, first in before.items():
            found = self.state(stream).first
            if found != first:
                self._history.staged(TruncateStream(stream, found))

    # Committing and upkeep.

    def commit(
        self,
        *,
        acknowledgements: bool = True,
        while_writing: Callable[[], None] = _nothing,
        before_finishing: Callable[[], None] = _nothing,
    ) -> None:
        """Make everything durable that is staged now; more may be staged while the disk is busy."""
        self._history.batch_taken(acknowledgements=acknowledgements)
        # A store may cut what is staged into several batches, so the promise holds after the last.
        while (batch := self.store.take_batch(acknowledgements=acknowledgements)) is not None:
            while_writing()
            self.store.write_batch(batch)
            before_finishing()
            self.store.finish_batch(batch)
            while_writing = before_finishing = _nothing
        self._history.batch_finished()

    def move_job(self) -> None:
        """Take the next job, or run the one that was taken, or hand over its result."""
        self._jobs.step()

    def do_jobs(self) -> None:
        self._jobs.finish_all()

    def reopen(self) -> None:
        """Close in order and open again."""
        self._jobs.finish()
        self._history.batch_taken(acknowledgements=True)
        self.store.close()
        self._history.batch_finished()
        self.resume(self._open_store())

    def resume(self, store: Store) -> None:
        """Go on with a store that was opened anew."""
        self.store = store
        self._jobs = JobSteps(store)
        self.alive = set(store.streams())
