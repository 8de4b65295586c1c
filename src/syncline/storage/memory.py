"""The reference backend: the contract of `storage.base` in the simplest code that keeps it.

The other backends are checked against this one, command by command, so where the contract leaves a
question open the answer is here. It touches no file. Its "disk" lives as long as the `files` it was
opened with: closing the store, or dropping it as a crash would, and opening the same folder again
finds what was durable.

- A staged stream is one `_Stream`; whatever is below `visible_next` of it was in a finished batch.
- A batch is an image of each stream it changes, so it holds the new `first` of every one of them.
- An image replaces the stream on the disk: writing a batch twice is the same as writing it once.
- A deleted stream and its successor of the same name are two objects and share nothing.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from weakref import WeakKeyDictionary

from syncline.errors import (
    LimitExceededError,
    QueueExistsError,
    QuotaExceededError,
    StoreBusyError,
    StoreLockedError,
    UnknownQueueError,
)
from syncline.storage.base import (
    Batch,
    Damage,
    Entry,
    EntryKind,
    Job,
    Snapshot,
    StoreStats,
    StreamKind,
    StreamState,
    commit,
)
from syncline.storage.files import Files
from syncline.storage.many import append_each, read_each_head, truncate_each
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId


@dataclass(slots=True)
class _Stream:
    kind: StreamKind
    quota: int
    first: int = 1
    next: int = 1
    visible_next: int = 1
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    snapshot: Snapshot | None = None
    visible_snapshot: Snapshot | None = None
    cursors: dict[bytes, int] = field(default_factory=dict[bytes, int])

    @property
    def unread_count(self) -> int:
        return self.next - self.first

    @property
    def is_blocked(self) -> bool:
        # Nothing is appended behind a marker before the queue is empty, so it is always the last.
        return self.first < self.next and self.entries[self.next - 1].kind is EntryKind.QUOTA_MARKER

    def append(self, payload: bytes, now_ms: int, kind: EntryKind) -> int:
        seq = self.next
        self.entries[seq] = Entry(seq, now_ms, payload, kind)
        self.next = seq + 1
        return seq

    def truncate_before(self, seq: int) -> None:
        for gone in range(self.first, seq):
            del self.entries[gone]
        self.first = seq

    def image(self) -> "_Stream":
        """A copy as it will be found on the disk: with all of it visible."""
        return dataclasses.replace(
            self,
            entries=dict(self.entries),
            cursors=dict(self.cursors),
            visible_next=self.next,
            visible_snapshot=self.snapshot,
        )


@dataclass(slots=True)
class _Disk:
    """What survives: the images of written batches. The last to open it owns it."""

    streams: dict[StreamId, _Stream] = field(default_factory=dict[StreamId, _Stream])
    claim: object = None


_disks: WeakKeyDictionary[Files, dict[str, _Disk]] = WeakKeyDictionary()


@dataclass(slots=True)
class _Change:
    """What is staged for one stream."""

    record_count: int = 0
    byte_count: int = 0
    waits_for_disk: bool = False


@dataclass(frozen=True, slots=True)
class _ImageBatch:
    # None: the stream is deleted.
    images: Mapping[StreamId, _Stream | None]
    # Each stream as the owner knows it, with what becomes visible of it.
    visible: Sequence[tuple[_Stream, int, Snapshot | None]]
    byte_count: int
    record_count: int


class MemoryStore:
    """See the module, and `storage.base.Store` for each method."""

    def __init__(self, folder: str, disk: _Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._claim = disk.claim = object()
        self._streams = {stream: found.image() for stream, found in disk.streams.items()}
        self._changes: dict[StreamId, _Change] = {}
        self._taken: _ImageBatch | None = None
        self._committed_batch_count = 0
        self._committed_record_count = 0

    @classmethod
    def open(
        cls,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> Self:
        """Find what `folder` held with the same `files`. Options, time and chance change nothing.

        A store that was open on it is cut off: it can stage, and writes nothing any more.
        """
        disk = _disks.setdefault(files, {}).setdefault(folder, _Disk())
        return cls(folder, disk)

    # Writing.

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        if quota < 0:
            raise ValueError(f"a quota is 0 (none) or more, not {quota}")
        if quota and kind is StreamKind.DOCUMENT:
            raise ValueError("a document has no quota")
        _check_limit("the quota of a queue", quota, limits.queue_quota_max)
        if stream in self._streams:
            raise QueueExistsError(str(stream))
        self._streams[stream] = _Stream(kind, quota)
        self._stage(stream)

    def delete(self, stream: StreamId) -> None:
        self._find(stream)
        del self._streams[stream]
        self._stage(stream)

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        return append_each(self, messages, now_ms)

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int:
        return truncate_each(self, positions)

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]:
        return read_each_head(self, streams)

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        found = self._find(stream)
        _check_limit("an entry in bytes", len(payload), limits.entry_bytes_max)
        _check_limit("a sequence", found.next, limits.sequence_max)
        _check_limit(
            "the number of unread entries", found.unread_count + 1, limits.unread_count_max
        )
        if found.is_blocked:
            raise QuotaExceededError(str(stream), found.quota)
        if found.quota and found.unread_count >= found.quota:
            found.append(b"", now_ms, EntryKind.QUOTA_MARKER)
            self._stage(stream)
            raise QuotaExceededError(str(stream), found.quota)
        self._check_room(len(payload))
        seq = found.append(bytes(payload), now_ms, EntryKind.MESSAGE)
        self._stage(stream, len(payload))
        return seq

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        found = self._find(stream)
        _check_limit("a position", seq, found.next)
        if seq > found.first:
            found.truncate_before(seq)
            self._stage(stream, waits_for_disk=False)

    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        found = self._find(stream)
        _check_limit("a snapshot in bytes", len(payload), limits.snapshot_bytes_max)
        covered = found.snapshot.up_to_seq if found.snapshot else 0
        if not covered <= up_to_seq < found.next:
            raise ValueError(f"a snapshot covers {covered} to {found.next - 1}, not {up_to_seq}")
        self._check_room(len(payload))
        found.snapshot = Snapshot(up_to_seq, now_ms, bytes(payload))
        self._stage(stream, len(payload))

    def move_cursor(self, stream: StreamId, name: bytes, seq: int) -> None:
        found = self._find(stream)
        _check_limit("a cursor name in bytes", len(name), limits.cursor_name_bytes_max)
        _check_limit("a position", seq, found.next)
        if seq < 0:
            raise ValueError(f"a position is 0 or more, not {seq}")
        now = found.cursors.get(name)
        if now is None:
            _check_limit(
                "the number of cursors", len(found.cursors) + 1, limits.cursors_per_stream_max
            )
        elif seq < now:
            raise ValueError(f"the cursor is at {now}; drop it before it goes back to {seq}")
        found.cursors[bytes(name)] = seq
        self._stage(stream)

    def drop_cursor(self, stream: StreamId, name: bytes) -> None:
        if self._find(stream).cursors.pop(name, None) is not None:
            self._stage(stream)

    # Looking.

    def state(self, stream: StreamId) -> StreamState:
        found = self._find(stream)
        return StreamState(found.kind, found.first, found.next, found.quota, found.is_blocked)

    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        found = self._find(stream)
        count_max = min(count_max, limits.read_count_max)
        bytes_left = min(bytes_max, limits.read_bytes_max)
        entries: list[Entry] = []
        for seq in range(max(from_seq, found.first), found.visible_next):
            entry = found.entries[seq]
            bytes_left -= len(entry.payload)
            if len(entries) == count_max or (entries and bytes_left < 0):
                break
            entries.append(entry)
        return entries

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        return self._find(stream).visible_snapshot

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return dict(self._find(stream).cursors)

    def streams(self) -> Iterator[StreamId]:
        return iter(list(self._streams))

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        taken = self._changes
        deferred_count = sum(not change.waits_for_disk for change in taken.values())
        if not acknowledgements and deferred_count <= limits.deferred_ack_count_max:
            taken = {stream: change for stream, change in taken.items() if change.waits_for_disk}
        if not taken:
            return None
        self._changes = {
            stream: change for stream, change in self._changes.items() if stream not in taken
        }
        known = {stream: self._streams.get(stream) for stream in taken}
        self._taken = _ImageBatch(
            {stream: found and found.image() for stream, found in known.items()},
            [(found, found.next, found.snapshot) for found in known.values() if found],
            sum(change.byte_count for change in taken.values()),
            sum(change.record_count for change in taken.values()),
        )
        return self._taken

    def write_batch(self, batch: Batch) -> None:
        if not isinstance(batch, _ImageBatch) or batch is not self._taken:
            raise ValueError("only the batch that was taken last can be written")
        if self._disk.claim is not self._claim:
            raise StoreLockedError(self._folder)
        for stream, image in batch.images.items():
            if image is None:
                self._disk.streams.pop(stream, None)
            else:
                self._disk.streams[stream] = image

    def finish_batch(self, batch: Batch) -> None:
        if not isinstance(batch, _ImageBatch) or batch is not self._taken:
            raise ValueError("only the batch that was taken last can be finished")
        for found, next_seq, snapshot in batch.visible:
            found.visible_next = next_seq
            found.visible_snapshot = snapshot
        self._taken = None
        self._committed_batch_count += 1
        self._committed_record_count += batch.record_count

    @property
    def waiting_bytes(self) -> int:
        taken = self._taken.byte_count if self._taken else 0
        return taken + sum(change.byte_count for change in self._changes.values())

    # Upkeep.

    def expire_before(self, time_ms: int, count_max: int) -> int:
        count = 0
        for stream, found in self._streams.items():
            # The updates of a document are let go of by whoever has taken its snapshot.
            if found.kind is not StreamKind.QUEUE:
                continue
            seq = found.first
            while (
                count < count_max
                and seq < found.visible_next
                and found.entries[seq].time_ms < time_ms
                and found.entries[seq].kind is EntryKind.MESSAGE
            ):
                seq += 1
                count += 1
            self.truncate_before(stream, seq)
        return count

    def take_job(self) -> Job | None:
        return None

    def run_job(self, job: Job) -> object:
        raise ValueError(f"this store has no jobs, not even {job.name}")

    def finish_job(self, job: Job, result: object) -> None:
        raise ValueError(f"this store has no jobs, not even {job.name}")

    def scrub(self, bytes_max: int) -> int:
        return 0

    def damage(self) -> Sequence[Damage]:
        return ()

    def stats(self) -> StoreStats:
        return StoreStats(
            stream_count=len(self._streams),
            disk_bytes=0,
            file_count=0,
            committed_batch_count=self._committed_batch_count,
            committed_record_count=self._committed_record_count,
            torn_tail_count=0,
            damage_count=0,
        )

    def close(self) -> None:
        if self._disk.claim is not self._claim:
            return
        if self._taken is not None:
            self.write_batch(self._taken)
            self.finish_batch(self._taken)
        commit(self)
        self._disk.claim = None

    def _find(self, stream: StreamId) -> _Stream:
        found = self._streams.get(stream)
        if found is None:
            raise UnknownQueueError(str(stream))
        return found

    def _stage(self, stream: StreamId, byte_count: int = 0, *, waits_for_disk: bool = True) -> None:
        change = self._changes.setdefault(stream, _Change())
        change.record_count += 1
        change.byte_count += byte_count
        change.waits_for_disk |= waits_for_disk

    def _check_room(self, byte_count: int) -> None:
        waiting_bytes = self.waiting_bytes + byte_count
        if waiting_bytes > limits.waiting_bytes_max:
            raise StoreBusyError(waiting_bytes, limits.waiting_bytes_max)


def _check_limit(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise LimitExceededError(what, value, limit)
