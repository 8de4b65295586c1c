"""The journal store: a folder of files per queue, safe against crashes at every step.

- A queue is opened when it is first asked for; a start reads none. Open queues and open files are
  bounded, and those with something staged stay open.
- Everything that a batch does to the files is decided by the owner when it is taken, and carried
  out by `writer`, which touches nothing of this object's memory.
- A batch that meets a full disk is refused as a whole: `write_batch` raises StoreFullError and
  leaves the files as they were. With it goes everything staged since it was taken, because
  sequences were given out that build on it: the next batch is refused too, so that whoever waits
  for it learns. Acknowledgements stay staged. Reads go on, and so does writing once there is room.
- Appends are refused before that, as long as the free space is known to be too small.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from syncline.errors import (
    DeviceError,
    QueueExistsError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    UnknownQueueError,
)
from syncline.storage.base import (
    Batch,
    Damage,
    Entry,
    Job,
    Snapshot,
    StoreStats,
    StreamKind,
    StreamState,
    commit,
)
from syncline.storage.files import Files, Lock
from syncline.storage.folder import claim_folder
from syncline.storage.journal.batch import JournalBatch
from syncline.storage.journal.damage import DamageBook
from syncline.storage.journal.entries import EntryReader
from syncline.storage.journal.folders import DiskUse, FolderTree, remove_files
from syncline.storage.journal.format import (
    FILE_ID_BYTES,
    FORMAT_VERSION,
    QueueState,
    encode_file_id,
)
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.layout import Layout
from syncline.storage.journal.patrol import ExpiryRound, ScrubRound
from syncline.storage.journal.planning import Action, QueuePlan, finish_change, plan_change
from syncline.storage.journal.queue import ENTRY_COST_BYTES, OpenQueue, check_limit, check_time
from syncline.storage.journal.queues import OpenQueues
from syncline.storage.journal.start import (
    CleanMark,
    leave_clean_mark,
    prepare_root,
    take_clean_mark,
)
from syncline.storage.journal.upkeep import Census, Sweeper, SweepJob, SweepResult
from syncline.storage.journal.writer import BatchWriter
from syncline.storage.many import append_each, read_each_head, truncate_each
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId

STORE_KIND: Final = "journal"
# Left free by appends, so that acknowledgements can still be written; they make room.
_RESERVE_BYTES: Final = 64 * 1024
# A body is written in base64: four bytes for three.
_GROWTH: Final = 4 / 3
_ROOM_BATCH_COUNT: Final = 64


class JournalStore:
    """See the module, and `storage.base.Store` for each method."""

    def __init__(
        self,
        folder: str,
        files: Files,
        options: StoreOptions,
        lock: Lock,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Use `open`. The folder is claimed; this brings it in order."""
        layout = Layout(options.path_fragment_count, options.path_fragment_characters)
        self._folder = folder
        self._files = files
        self._options = options
        self._lock: Lock | None = lock
        self._random_bytes = random_bytes
        self._now_ms = now_ms
        root = prepare_root(folder, files, layout)
        mark = take_clean_mark(folder, files)
        tag = self._new_file_id()
        self._tree = FolderTree(root, layout, files, is_durable=options.is_durable)
        self._pool = HandlePool(files, options.open_file_count_max)
        self._book = DamageBook()
        self._queues = OpenQueues(
            files,
            self._pool,
            self._tree,
            self._book,
            self._new_file_id,
            options.open_queue_count_max,
            self._is_in_batch,
        )
        self._writer = BatchWriter(files, self._pool, self._tree, tag, options)
        self._sweeper = Sweeper(files, root, layout, options, tag)
        self._expiry = ExpiryRound(self._tree, self._find)
        self._scrubbing = ScrubRound(self._tree, self._find, self._reader)
        self._census = self._start_census(mark, root)
        # Staged to be deleted, as the disk has them.
        self._deleted: dict[StreamId, OpenQueue] = {}
        self._taken: JournalBatch | None = None
        self._staged_bytes = 0
        # The next batch is refused: it builds on one that was.
        self._refusal: StoreFullError | None = None
        # Nobody knows what is on the disk; the store has to be opened anew.
        self._failure: StorageError | None = None
        self._room_bytes = 0
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
        """Open or make the store in `folder`.

        With other path settings than before, every queue is moved first. Raises what `claim_folder`
        raises, and CorruptionError if the LAYOUT file cannot be read.
        """
        _, lock = claim_folder(folder, files, STORE_KIND, FORMAT_VERSION, random_bytes)
        try:
            return cls(folder, files, options, lock, now_ms=now_ms, random_bytes=random_bytes)
        except BaseException:
            lock.release()
            raise

    def _start_census(self, mark: CleanMark | None, root: str) -> Census:
        if mark is not None:
            use = DiskUse(mark.byte_count, mark.file_count)
            return Census(self._tree.layout, mark.stream_count, use, mark.swept_ms)
        # Whatever is there may not be on the device yet, and has to be counted.
        census = Census(self._tree.layout, 0, DiskUse(), self._now_ms)
        names = self._files.list(root)
        census.start_counting(names)
        self._tree.is_suspect = bool(names)
        return census

    # Writing.

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        self.create_at(stream, kind, quota, 1, now_ms)

    def create_at(
        self, stream: StreamId, kind: StreamKind, quota: int, first: int, now_ms: int
    ) -> None:
        """Create a stream that is counted from `first` on: one that was elsewhere before."""
        if quota < 0:
            raise ValueError(f"a quota is 0 (none) or more, not {quota}")
        if quota and kind is StreamKind.DOCUMENT:
            raise ValueError("a document has no quota")
        if first < 1:
            raise ValueError(f"sequences start at 1, not {first}")
        check_limit("the quota of a queue", quota, limits.queue_quota_max)
        check_limit("a sequence", first, limits.sequence_max)
        check_time(now_ms)
        self._settle()
        if self._exists(stream):
            raise QueueExistsError(str(stream))
        self._check_room(ENTRY_COST_BYTES)
        self._now_ms = max(self._now_ms, now_ms)
        file_id = self._new_file_id()
        state = QueueState(
            *(file_id, first, 0), *(file_id, first, 0), first, first, kind, quota, False
        )
        queue = OpenQueue(stream, state)
        queue.staged.creates = True
        queue.staged.replaced = self._deleted.pop(stream, None)
        queue.staged.add(ENTRY_COST_BYTES)
        self._queues.put(queue)
        self._note_change(queue, 0)
        self._census.note(stream, is_there=True)

    def delete(self, stream: StreamId) -> None:
        queue = self._find(stream)
        self._queues.drop(stream)
        self._staged_bytes -= queue.staged.byte_count
        on_disk = queue.staged.replaced if queue.staged.creates else queue
        if on_disk is not None:
            self._deleted[stream] = on_disk
        self._census.note(stream, is_there=False)

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        return append_each(self, messages, now_ms)

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int:
        return truncate_each(self, positions)

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]:
        return read_each_head(self, streams)

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        queue = self._find(stream)
        staged_bytes = queue.staged.byte_count
        try:
            queue.check_append(payload, now_ms)
            self._check_room(len(payload) + ENTRY_COST_BYTES)
            self._now_ms = max(self._now_ms, now_ms)
            seq = queue.next
            queue.append(Entry(seq, now_ms, bytes(payload)))
        finally:
            # A refusal for the quota may have staged a marker.
            self._note_change(queue, staged_bytes)
        return seq

    def append_entry(self, stream: StreamId, entry: Entry) -> None:
        """Append an entry as it is, for a stream that is restored: with its sequence and its kind.

        Sequences grow; one that is left out counts as lost.
        """
        queue = self._find(stream)
        if entry.seq < queue.next:
            raise ValueError(f"the next sequence is {queue.next}, not {entry.seq}")
        check_limit("an entry in bytes", len(entry.payload), limits.entry_bytes_max)
        check_limit("a sequence", entry.seq, limits.sequence_max)
        check_time(entry.time_ms)
        self._check_room(len(entry.payload) + ENTRY_COST_BYTES)
        staged_bytes = queue.staged.byte_count
        queue.append(entry)
        self._note_change(queue, staged_bytes)

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        queue = self._find(stream)
        queue.truncate_before(seq)
        self._note_change(queue, queue.staged.byte_count)

    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        queue = self._find(stream)
        queue.check_snapshot(up_to_seq, payload, now_ms)
        self._check_room(len(payload) + ENTRY_COST_BYTES)
        self._now_ms = max(self._now_ms, now_ms)
        staged_bytes = queue.staged.byte_count
        queue.put_snapshot(Snapshot(up_to_seq, now_ms, bytes(payload)))
        self._note_change(queue, staged_bytes)

    def move_cursor(self, stream: StreamId, name: bytes, seq: int) -> None:
        queue = self._find(stream)
        staged_bytes = queue.staged.byte_count
        queue.move_cursor(name, seq)
        self._note_change(queue, staged_bytes)

    def drop_cursor(self, stream: StreamId, name: bytes) -> None:
        queue = self._find(stream)
        staged_bytes = queue.staged.byte_count
        queue.drop_cursor(name)
        self._note_change(queue, staged_bytes)

    # Looking.

    def state(self, stream: StreamId) -> StreamState:
        return self._find(stream).stream_state()

    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        return self._reader(self._find(stream)).read(from_seq, count_max, bytes_max)

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        return self._reader(self._find(stream)).snapshot()

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return dict(self._find(stream).cursors)

    def streams(self) -> Iterator[StreamId]:
        self._settle()
        made = {stream for stream, queue in self._queues.changed.items() if queue.staged.creates}
        if self._taken is not None:
            made |= {stream for stream in self._taken.created if self._queues.get(stream)}
        yield from sorted(made)
        for stream in self._tree.streams():
            if stream not in made and (self._queues.get(stream) or not self._is_gone(stream)):
                yield stream

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        self._settle()
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        if self._refusal is not None:
            return self._take_refused()
        changed = self._queues.changed
        deferred_count = sum(not queue.staged.waits_for_disk for queue in changed.values())
        if acknowledgements or deferred_count > limits.deferred_ack_count_max:
            queues = list(changed.values())
        else:
            queues = [queue for queue in changed.values() if queue.staged.waits_for_disk]
        if not queues and not self._deleted:
            return None
        byte_count = sum(queue.staged.byte_count for queue in queues)
        record_count = sum(queue.staged.record_count for queue in queues) + len(self._deleted)
        deletions = [
            QueuePlan(Action.DELETE, stream, self._tree.folder(stream)) for stream in self._deleted
        ]
        changes = [
            plan_change(queue, self._tree.folder(queue.stream), self._options, self._new_file_id)
            for queue in queues
        ]
        for queue in queues:
            del changed[queue.stream]
        self._deleted = {}
        self._staged_bytes -= byte_count
        self._taken = JournalBatch(deletions, changes, byte_count, record_count, self._now_ms)
        return self._taken

    def _take_refused(self) -> JournalBatch:
        """A batch of nothing, for those to be told who wait for what was staged."""
        refused = JournalBatch([], [], self._staged_bytes, 0, self._now_ms, self._refusal)
        self._take_back(refused)
        self._refusal = None
        self._taken = refused
        return refused

    def write_batch(self, batch: Batch) -> None:
        """Raises StoreFullError: nothing of it is done, and `finish_batch` takes it back.

        Raises DeviceError: fatal, the store must be opened anew.
        """
        if isinstance(batch, JournalBatch) and batch.refusal is not None:
            # It may have been taken back by now, if something was staged since it was taken.
            raise batch.refusal
        if not isinstance(batch, JournalBatch) or batch is not self._taken:
            raise ValueError("only the batch that was taken last can be written")
        if self._failure is not None:
            raise self._failure
        if batch.use is not None:
            return
        try:
            batch.use = self._writer.write(batch.plans, batch.now_ms)
        except StoreFullError as error:
            batch.refusal = error
            raise
        except DeviceError as error:
            self._failure = error
            raise

    def finish_batch(self, batch: Batch) -> None:
        if isinstance(batch, JournalBatch) and batch.refusal is not None:
            self._settle()
            return
        if not isinstance(batch, JournalBatch) or batch is not self._taken:
            raise ValueError("only the batch that was taken last can be finished")
        if batch.use is None:
            raise ValueError("a batch is written before it is finished")
        for change in batch.changes:
            finish_change(change)
            for name in change.removes_late:
                self._pool.forget_file(f"{change.plan.folder}/{name}")
            # Not synced: a file that comes back is named by nobody, and removed when it is met.
            freed = remove_files(self._files, change.plan.folder, change.removes_late)
            batch.use.add(-freed.byte_count, -freed.file_count)
        self._taken = None
        self._census.add(batch.use)
        self._room_bytes -= max(0, batch.use.byte_count)
        self._committed_batch_count += 1
        self._committed_record_count += batch.record_count
        if self._committed_batch_count % _ROOM_BATCH_COUNT == 0:
            self._room_bytes = 0
        self._queues.close_unused()

    def _settle(self) -> None:
        """Take back a batch that the disk had no room for, and what was staged since."""
        batch = self._taken
        if batch is None or batch.refusal is None:
            return
        self._taken = None
        if batch.plans:
            staged = self._queues.changed.values()
            if self._deleted or any(queue.staged.waits_for_disk for queue in staged):
                self._refusal = batch.refusal
            self._take_back(batch)

    def _take_back(self, batch: JournalBatch) -> None:
        """Forget a batch and all that is staged, but for what was read."""
        staged = list(self._queues.changed.values())
        read_to: dict[StreamId, int] = {}
        for queue in dict.fromkeys([*(change.queue for change in batch.changes), *staged]):
            self._queues.drop(queue.stream)
            if queue.staged.creates or queue.stream in batch.created:
                self._census.note(queue.stream, is_there=False)
            else:
                read_to[queue.stream] = queue.first
        back = [*self._deleted, *batch.deleted, *batch.replaced]
        for stream in [*back, *(queue.stream for queue in staged if queue.staged.replaced)]:
            self._census.note(stream, is_there=True)
        self._deleted = {}
        self._staged_bytes = 0
        self._room_bytes = 0
        for stream, first in read_to.items():
            found = self._queues.load(stream)
            if found is not None:
                found.truncate_before(min(first, found.next))
                self._note_change(found, 0)

    @property
    def waiting_bytes(self) -> int:
        return self._staged_bytes + (self._taken.byte_count if self._taken else 0)

    # Upkeep.

    def expire_before(self, time_ms: int, count_max: int) -> int:
        total = 0
        for queue, seq, count in self._expiry.due(time_ms, count_max):
            queue.truncate_before(seq)
            self._note_change(queue, queue.staged.byte_count)
            total += count
        self._queues.close_unused()
        return total

    def take_job(self) -> Job | None:
        if self._census.is_round_due(self._now_ms):
            self._census.start_round(self._files.list(self._tree.root))
        return self._census.take_job(self._now_ms, self._staged_presence())

    def run_job(self, job: Job) -> object:
        if not isinstance(job, SweepJob):
            raise ValueError(f"this store has no job {job.name}")
        try:
            return self._sweeper.run(job)
        except BaseException:
            self._census.give_back(job)
            raise

    def finish_job(self, job: Job, result: object) -> None:
        if not isinstance(job, SweepJob) or not isinstance(result, SweepResult):
            raise ValueError(f"this store has no job {job.name}")
        self._census.finish_job(job, result)
        if self._census.is_counted:
            # All that an earlier process may have left unsynced has been synced by the sweep.
            self._tree.is_suspect = False

    def scrub(self, bytes_max: int) -> int:
        self._settle()
        byte_count = self._scrubbing.scrub(bytes_max)
        self._queues.close_unused()
        return byte_count

    def damage(self) -> Sequence[Damage]:
        return self._book.damage

    def stats(self) -> StoreStats:
        """Counters. After a process that did not end in order, those of streams, bytes and files
        grow to their true values while the first sweep goes through the folders."""
        return StoreStats(
            stream_count=self._census.stream_count,
            disk_bytes=self._census.use.byte_count,
            file_count=self._census.use.file_count,
            committed_batch_count=self._committed_batch_count,
            committed_record_count=self._committed_record_count,
            torn_tail_count=self._book.torn_tail_count,
            damage_count=self._book.damage_count,
            is_counted=self._census.is_counted,
        )

    def close(self) -> None:
        if self._lock is None:
            return
        try:
            if self._failure is None:
                self._finish_all()
        finally:
            self._pool.close()
            self._lock.release()
            self._lock = None

    def _finish_all(self) -> None:
        if self._taken is not None and self._taken.refusal is None:
            self.write_batch(self._taken)
            self.finish_batch(self._taken)
        commit(self)
        if self._census.is_counted and self._options.is_durable:
            census = self._census
            mark = CleanMark(
                census.stream_count,
                max(0, census.use.byte_count),
                max(0, census.use.file_count),
                census.swept_ms,
            )
            # Without it the next start counts for itself: no reason for a full disk to be one.
            with suppress(StoreFullError):
                leave_clean_mark(self._folder, self._files, mark)

    # Finding.

    def _find(self, stream: StreamId) -> OpenQueue:
        self._settle()
        queue = self._queues.get(stream)
        if queue is None and not self._is_gone(stream):
            queue = self._queues.load(stream)
        if queue is None:
            raise UnknownQueueError(str(stream))
        return queue

    def _exists(self, stream: StreamId) -> bool:
        if self._queues.get(stream) is not None:
            return True
        folder = self._tree.folder(stream)
        self._tree.settle(folder)
        return not self._is_gone(stream) and self._files.exists(folder)

    def _is_gone(self, stream: StreamId) -> bool:
        """Is it deleted, though the disk may still have it?"""
        return stream in self._deleted or (
            self._taken is not None and stream in self._taken.deleted
        )

    def _reader(self, queue: OpenQueue) -> EntryReader:
        folder = self._tree.folder(queue.stream)
        return EntryReader(queue, folder, self._pool, lambda found: self._book.add([found]))

    def _is_in_batch(self, stream: StreamId) -> bool:
        return self._taken is not None and stream in self._taken.changed

    # Noting.

    def _note_change(self, queue: OpenQueue, staged_bytes_before: int) -> None:
        if queue.is_changed:
            self._queues.changed[queue.stream] = queue
            self._staged_bytes += queue.staged.byte_count - staged_bytes_before

    def _staged_presence(self) -> dict[StreamId, bool]:
        """Which queues will be there, of those that the disk may know otherwise."""
        presence = dict.fromkeys(self._deleted, False)
        if self._taken is not None:
            presence |= dict.fromkeys(self._taken.deleted, False)
            presence |= dict.fromkeys(self._taken.created, True)
        for stream, queue in self._queues.changed.items():
            if queue.staged.creates:
                presence[stream] = True
        return presence | dict.fromkeys(self._deleted, False)

    def _new_file_id(self) -> str:
        return encode_file_id(self._random_bytes(FILE_ID_BYTES))

    def _check_room(self, byte_count: int) -> None:
        waiting_bytes = self.waiting_bytes + byte_count
        if waiting_bytes > limits.waiting_bytes_max:
            raise StoreBusyError(waiting_bytes, limits.waiting_bytes_max)
        wanted_bytes = int(waiting_bytes * _GROWTH) + _RESERVE_BYTES
        if wanted_bytes > self._room_bytes:
            self._room_bytes = self._files.free_bytes(self._folder)
            if wanted_bytes > self._room_bytes:
                raise StoreFullError(self._folder)
