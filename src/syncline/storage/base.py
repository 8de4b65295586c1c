"""What every message store offers: streams of entries, made durable in batches.

A *stream* is a queue (messages of one reader, with a quota) or the updates of a document. Its
entries have a gap-free sequence from 1. `first` is the lowest sequence still wanted, `next` the
one the next entry gets; whatever is below `first` is gone. An acknowledgement and a truncation are
the same thing: `first` moves up, and never down.

How a write becomes durable, the same for each backend:

    store.append(...)            staged: `state` shows it, `read` does not
    batch = store.take_batch()   the owner closes what is staged
    store.write_batch(batch)     blocks on the disk; the only call allowed on another thread
    store.finish_batch(batch)    the owner makes it visible

One owner calls everything but `write_batch`, and at most one taken batch is unfinished at a time.
Batches are finished in the order in which they were taken.

Promises that the conformance and crash suites check on every backend:
- What a finished batch holds survives a crash. What no batch held may be lost, never half of it
  seen.
- Entries of a stream come back in order, whole, without gap, repetition or invention.
- Only appends, snapshots, creations and deletions wait for the disk. An acknowledgement may be
  written later (`take_batch(acknowledgements=False)`): losing one means a redelivery, which
  at-least-once allows.
- Damage costs the damaged entries, is reported with its stream, and never stops another stream.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from syncline.values.ids import StreamId

# The kind of a stream is part of a record, so it lives with the values; stores speak of it as
# theirs.
from syncline.values.records import StreamKind as StreamKind


class EntryKind(IntEnum):
    """What an entry holds. A quota marker tells the reader that its sender was turned away."""

    MESSAGE = 1
    QUOTA_MARKER = 2


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry as it was appended. A struct: many are made in a blink (bench: log)."""

    seq: int
    time_ms: int
    payload: bytes
    kind: EntryKind = EntryKind.MESSAGE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folded state of a document up to and including `up_to_seq`."""

    up_to_seq: int
    time_ms: int
    payload: bytes


class StreamState(msgspec.Struct, frozen=True, gc=False):
    """As staged: what the next command will meet."""

    kind: StreamKind
    first: int
    next: int
    quota: int  # 0: none
    is_blocked: bool  # a quota marker waits; appends are refused until the queue is empty

    @property
    def unread_count(self) -> int:
        return self.next - self.first


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place. `stream` and the lost sequences are None where they cannot be known."""

    file: str
    offset: int
    reason: str
    stream: StreamId | None = None
    first_lost_seq: int | None = None
    lost_count: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters, never the result of a scan."""

    stream_count: int
    disk_bytes: int
    file_count: int
    committed_batch_count: int
    committed_record_count: int
    torn_tail_count: int
    damage_count: int
    # False while a store counts its streams and files: then these are those it has met so far, and
    # to look at one that it has not met takes long.
    is_counted: bool = True


class Batch(Protocol):
    """Writes that become durable together."""

    @property
    def byte_count(self) -> int: ...

    @property
    def record_count(self) -> int: ...


class Commits(Protocol):
    """What a committer needs of a store; see `Store` for each."""

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None: ...

    def write_batch(self, batch: Batch) -> None: ...

    def finish_batch(self, batch: Batch) -> None: ...

    @property
    def waiting_bytes(self) -> int: ...


class Job(Protocol):
    """Upkeep that may run outside the owner's process: sealing, merging, preparing files."""

    name: ClassVar[str]


@runtime_checkable
class NotesEvents(Protocol):
    """A store that keeps what happened beside what was stored."""

    def note_event(self, event: bytes) -> None:
        """One row of `values.events`: durable with a later batch, within seconds. Never refused."""
        ...


@runtime_checkable
class TellsExpiry(Protocol):
    """A store that says which entries `expire_before` has let go of."""

    on_expired: Callable[[StreamId, int], None] | None
    """Called with the stream and its last sequence that is gone by that."""


@runtime_checkable
class KeepsHistory(Protocol):
    """A store that keeps what it does not need any more, for a while."""

    history_clock_ms: Callable[[], int]
    """The time by which that is too old."""


class Store(Protocol):
    """See the module. Raises UnknownQueueError for a stream that does not exist."""

    # Writing: staged at once, durable with the batch.

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        """Raises QueueExistsError. A deleted stream may be created anew; it starts at 1."""
        ...

    def delete(self, stream: StreamId) -> None: ...

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        """Stage an entry and return its sequence.

        Raises QuotaExceededError on a full queue; the first time, a quota marker is staged in place
        of the message. The queue takes messages again once its reader has emptied it.
        Raises LimitExceededError, StoreFullError or StoreBusyError; then nothing was staged.
        """
        ...

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        """Stage messages in order, up to the first that is refused; the sequences of those staged.

        Fewer sequences than messages: the next message would be refused, and `append` says why.
        """
        ...

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        """Let go of every entry below `seq`. A position already passed changes nothing.

        A document that has a snapshot lets go of no more than that covers: a store may take it for
        lost if it does not reach the first entry that is left. Raises LimitExceededError for a
        position above `next`.
        """
        ...

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int:
        """`truncate_before` for each, up to the first that is refused; how many were not."""
        ...

    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        """Replace the snapshot. It must cover no less than the last one and nothing to come."""
        ...

    def move_cursor(self, stream: StreamId, name: bytes, seq: int) -> None:
        """Set the absolute position of a reader; it goes back only by dropping it first.

        Raises LimitExceededError for a position above `next` and for a cursor too many, ValueError
        for one that goes back.
        """
        ...

    def drop_cursor(self, stream: StreamId, name: bytes) -> None: ...

    # Looking.

    def state(self, stream: StreamId) -> StreamState: ...

    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Durable entries from `max(from_seq, first)` on, in order; at least one if there is one.

        `first` as staged: what was let go of is not given out again. `bytes_max` counts payloads;
        both limits are cut to `limits.read_count_max` and `limits.read_bytes_max`.
        A damaged entry is left out, reported by `damage`, and stays until truncated.
        """
        ...

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]:
        """What `read` gives of each, from its first entry on and one; None if that is nothing.

        A stream that does not exist has none either.
        """
        ...

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        """The newest durable one; if that is damaged, an older one that is left.

        Raises CorruptionError if none can be read.
        """
        ...

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        """As staged."""
        ...

    def streams(self) -> Iterator[StreamId]:
        """As staged, in no order.

        May be walked while the store is worked on: streams that are created or deleted meanwhile
        may or may not be among them, and one may come twice.
        """
        ...

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        """Close what is staged, or the oldest part of it; None if nothing waits for the disk.

        With `acknowledgements=False` those that would make the write larger stay back, up to
        `limits.deferred_ack_count_max` of them.
        """
        ...

    def write_batch(self, batch: Batch) -> None:
        """Raises DeviceError: fatal, the store must be opened anew."""
        ...

    def finish_batch(self, batch: Batch) -> None: ...

    @property
    def waiting_bytes(self) -> int:
        """Staged or taken, not yet finished."""
        ...

    # Upkeep.

    def expire_before(self, time_ms: int, count_max: int) -> int:
        """Stage the truncation of entries older than `time_ms`, at most `count_max`; how many.

        Quota markers do not expire: they tell the reader something. The updates of a document do
        not either: they go when its snapshot covers them.
        """
        ...

    def take_job(self) -> Job | None:
        """The next piece of upkeep, or None if nothing is due, or nothing beside what is under way.

        Two at most are under way. One whose `run_job` raised is not any more: it is due again.
        """
        ...

    def run_job(self, job: Job) -> object:
        """Do it, here and now, without touching the store's memory: any thread may run it."""
        ...

    def finish_job(self, job: Job, result: object) -> None:
        """Take the result over; by the owner."""
        ...

    def scrub(self, bytes_max: int) -> int:
        """Check the next stretch of what is sealed; the bytes read, 0 at the end of a round."""
        ...

    def damage(self) -> Sequence[Damage]: ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None:
        """Make what is staged durable and let go of the folder."""
        ...


def commit(store: Store) -> None:
    """Make everything staged durable and visible, here and now. For tools and tests."""
    while (batch := store.take_batch()) is not None:
        store.write_batch(batch)
        store.finish_batch(batch)


def run_jobs(store: Store) -> int:
    """Do all the upkeep that is due, here and now; return how many jobs that were."""
    count = 0
    while (job := store.take_job()) is not None:
        store.finish_job(job, store.run_job(job))
        count += 1
    return count
