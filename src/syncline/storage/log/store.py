"""`LogStore`: every stream in one group-committed log, with a mapped table of what each stream is.

    append ──► staged batch ──► log segment ──(sealed)──► run ──(merged)──► run
                     └─ once durable ─► slot of the queue table

Invariants:
- A record is staged at the position it will have. Batches are written in order, one at a time.
- Slots change only after the batches that justify them are durable, and need not change at once:
  the live log knows better. They are up to date before a segment that knew better is sealed.
- `read` gives only what lies below `_durable_end`.
- Acknowledgements need no write of their own: they ride in the padding of later batches, and the
  next record of the same stream carries them anyway. A batch that begins a segment takes all.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from syncline.errors import (
    CorruptionError,
    DeviceError,
    LimitExceededError,
    QueueExistsError,
    QuotaExceededError,
    StorageError,
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
from syncline.storage.files import Files
from syncline.storage.log.backup import back_up
from syncline.storage.log.cursors import check_room_for_cursor, have_cursors_moved
from syncline.storage.log.expiry import end_of_old, expiry_candidates
from syncline.storage.log.format import (
    HAS_SNAPSHOT,
    IS_BLOCKED,
    IS_DOCUMENT,
    RECORD_HEADER_BYTES,
    SEQUENCE,
    RecordKind,
)
from syncline.storage.log.jobs import MergeResult
from syncline.storage.log.many import read_heads, truncate_many, unread_among
from syncline.storage.log.opening import OpenedLog, open_log
from syncline.storage.log.residents import Residents
from syncline.storage.log.scrubbing import Scrubber
from syncline.storage.log.snapshots import Snapshots
from syncline.storage.log.staging import StagedBatch, Stager
from syncline.storage.log.streams import LENGTH_BITS, LENGTH_MASK, LOST, OpenStream
from syncline.storage.log.table import LOAD_LIMIT
from syncline.storage.log.upkeep import Upkeep
from syncline.storage.many import read_head, truncate_each
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId

# With each finished batch: tails of the replay written to the table, slots brought up to date
# before a sealing, streams looked at for positions that are sealed by now, pages of a growing table
# copied. A little at a time, so that no batch waits.
_TAILS_PER_BATCH: Final = 256
_TAILS_AT_ONCE: Final = 2048
_SETTLED_PER_BATCH: Final = 64
SWEEP_PER_BATCH: Final = 128
_MOVED_PAGES_PER_BATCH: Final = 4
_MOVED_PAGES_AT_ONCE: Final = 256
_STRAY_SLOTS_PER_BATCH: Final = 1024
_STRAY_SLOTS_AT_ONCE: Final = 1 << 16
# Slots written in one go when upkeep needs the table to be up to date, while batches come and while
# none do: 4096 of them take some 16 ms, for which every connection waits.
_SAVED_BETWEEN_BATCHES: Final = 256
_SAVED_AT_ONCE: Final = 4096
# A plain number: arithmetic on a member of an enumeration costs more than all else in `append`.
_MESSAGE: Final = int(RecordKind.MESSAGE)


class LogStore:
    """The default engine. The contract is `storage.base.Store`, the rules are the module's."""

    def __init__(self, opened: OpenedLog, options: StoreOptions) -> None:
        self._opened = opened
        self._options = options
        self._manifest = opened.manifest
        self._segments = opened.segments
        self._table = opened.table
        self._runs = opened.runs
        self._damage = list(opened.replay.damage)
        self._durable_end = opened.replay.end
        # All places below are durable.
        self._durable_places = opened.replay.end << LENGTH_BITS
        self._taken: StagedBatch | None = None
        self._committed_batch_count = 0
        # When `take_job` was called last.
        self._batch_count_at_last_look = 0
        self._committed_record_count = 0
        self._entry_bytes_max = min(limits.entry_bytes_max, opened.segments.segment_bytes // 2)
        self._upkeep = Upkeep(opened, options)
        if self._upkeep.is_table_full:
            # The batch that filled it was durable, and the process ended before the table grew.
            try:
                self._upkeep.grow_now()
            except StoreFullError:
                if opened.table.used_count > LOAD_LIMIT * opened.table.capacity:
                    raise
        self._stager = Stager(
            opened.segments, opened.replay, self._upkeep.take_spare, opened.now_ms
        )
        self._residents = Residents(opened, self._report)
        self._by_id = self._residents.by_id
        self._scrubber = Scrubber(opened.runs, opened.table, self._report)
        self._snapshots = Snapshots(opened.segments, opened.runs, self._report)
        self.on_expired: Callable[[StreamId, int], None] | None = None
        self.history_clock_ms: Callable[[], int] = lambda: self._stager.time_ms

    @classmethod
    def open(
        cls,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Self:
        """Open the data folder, or make one. Replays the live log; `progress` hears of segments."""
        opened = open_log(folder, files, options, now_ms, random_bytes, progress)
        try:
            return cls(opened, options)
        except BaseException:
            opened.close()
            raise

    # ---- Writing ----

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        if not 0 <= quota <= limits.queue_quota_max:
            raise LimitExceededError("quota", quota, limits.queue_quota_max)
        if quota and kind is StreamKind.DOCUMENT:
            raise ValueError("a document has no quota")
        opened = self._residents.find(stream)
        if opened is None:
            opened = OpenStream(stream, -1)
        elif not opened.is_deleted:
            raise QueueExistsError(str(stream))
        self._upkeep.check_room_in_table()
        batch = self._stager.room(RECORD_HEADER_BYTES)
        opened.is_deleted = False
        opened.first = opened.next = 1
        opened.quota = quota
        opened.flags = IS_DOCUMENT if kind is StreamKind.DOCUMENT else 0
        self._residents.add(opened)
        place = batch.add(opened, RecordKind.CREATE, now_ms, b"")
        opened.born = place >> LENGTH_BITS
        batch.created_count += 1
        self._upkeep.staged_stream_count += 1

    def delete(self, stream: StreamId) -> None:
        opened = self._residents.load_to_delete(stream)
        batch = self._stager.room(RECORD_HEADER_BYTES)
        self._upkeep.count_dead(opened.log_base - opened.first)
        opened.positions.clear()
        opened.snapshot_places = ()
        opened.snapshot_seq = -1
        opened.cursors = None
        opened.flags = 0
        opened.first = opened.next
        opened.is_deleted = True
        self._stager.forget_deferred(opened)
        place = batch.add(opened, RecordKind.DELETE, self._stager.time_ms, b"")
        # Until that is durable its cursors are needed where they are.
        opened.cursor_position = place >> LENGTH_BITS
        batch.deleted_count += 1

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        opened = self._by_id.get(stream)
        if opened is None or opened.is_deleted:
            opened = self._residents.load(stream)
        size = len(payload)
        if size > self._entry_bytes_max:
            raise LimitExceededError("message bytes", size, self._entry_bytes_max)
        unread_count = opened.next - opened.first
        quota = opened.quota
        if quota and (unread_count >= quota or opened.flags & IS_BLOCKED):
            self._refuse_over_quota(opened, now_ms)
        if unread_count >= limits.unread_count_max:
            raise LimitExceededError("unread entries", unread_count + 1, limits.unread_count_max)
        return self._stager.append(opened, _MESSAGE, payload, now_ms)

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        return self._stager.append_many(
            messages, now_ms, self._by_id, self._load_or_none, self._entry_bytes_max
        )

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        opened = self._by_id.get(stream)
        if opened is None or opened.is_deleted:
            opened = self._residents.load(stream)
        next_seq, first = opened.next, opened.first
        if seq > next_seq:
            raise LimitExceededError("sequence", seq, next_seq)
        if seq <= first:
            return
        # What was sealed meanwhile is in a run.
        opened.forget_below(self._upkeep.live_start)
        base = next_seq - len(opened.positions)
        if base > first:
            self._upkeep.count_dead(min(seq, base) - first)
        self._stager.defer(opened)
        opened.move_first(seq)

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int:
        return truncate_many(
            positions,
            self._by_id,
            self._upkeep.live_start << LENGTH_BITS,
            self._stager.deferred,
            lambda stream, seq: truncate_each(self, ((stream, seq),)) == 1,
        )

    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        opened = self._residents.load(stream)
        if len(payload) > limits.snapshot_bytes_max:
            raise LimitExceededError("snapshot bytes", len(payload), limits.snapshot_bytes_max)
        if not 0 <= up_to_seq < opened.next:
            raise ValueError(f"a snapshot up to {up_to_seq} of entries up to {opened.next - 1}")
        last = self._snapshot_seq(opened)
        if up_to_seq < last:
            raise ValueError(f"a snapshot up to {up_to_seq} after one up to {last}")
        data = SEQUENCE.pack(up_to_seq) + payload
        batch = self._stager.room(RECORD_HEADER_BYTES + len(data))
        opened.flags |= HAS_SNAPSHOT
        opened.durable_snapshot_place(self._durable_end)
        place = batch.add(opened, RecordKind.SNAPSHOT, now_ms, data)
        opened.snapshot_places = (*opened.snapshot_places, place)
        opened.snapshot_seq = up_to_seq

    def move_cursor(self, stream: StreamId, name: bytes, seq: int) -> None:
        opened = self._residents.load(stream)
        if len(name) > limits.cursor_name_bytes_max:
            raise LimitExceededError("cursor name bytes", len(name), limits.cursor_name_bytes_max)
        if seq < 0:
            raise ValueError(f"a position is 0 or more, not {seq}")
        if seq > opened.next:
            raise LimitExceededError("sequence", seq, opened.next)
        cursors = opened.cursors if opened.cursors is not None else {}
        if name not in cursors:
            check_room_for_cursor(cursors, name, self._segments.segment_bytes)
        if seq < cursors.get(name, 0):
            raise ValueError(
                f"the cursor is at {cursors[name]}; drop it before it goes back to {seq}"
            )
        data = SEQUENCE.pack(seq) + name
        batch = self._stager.room(RECORD_HEADER_BYTES + len(data))
        place = batch.add(opened, RecordKind.CURSOR, self._stager.time_ms, data)
        cursors[name] = seq
        if not opened.cursors:
            opened.cursors = cursors
            opened.cursor_position = place >> LENGTH_BITS
        self._residents.with_cursors[opened] = None

    def drop_cursor(self, stream: StreamId, name: bytes) -> None:
        opened = self._residents.load(stream)
        if opened.cursors is None or name not in opened.cursors:
            return
        batch = self._stager.room(RECORD_HEADER_BYTES + len(name))
        batch.add(opened, RecordKind.DROP_CURSOR, self._stager.time_ms, name)
        del opened.cursors[name]

    def note_event(self, event: bytes) -> None:
        """One row of `values.events`: durable with a later batch, within seconds. Never refused."""
        self._stager.note(event)

    # ---- Looking ----

    def state(self, stream: StreamId) -> StreamState:
        return self._residents.seen(stream).state()

    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        opened = self._by_id.get(stream)
        if opened is None or opened.is_deleted:
            opened = self._residents.seen(stream)
        positions = opened.positions
        if positions and positions[0] >> LENGTH_BITS < self._upkeep.live_start:
            opened.forget_below(self._upkeep.live_start)
        seq = max(from_seq, opened.first)
        base = opened.next - len(positions)
        if seq == base and count_max == 1:
            # What most readers ask for; the same as below (bench: log).
            if not positions or positions[0] >= self._durable_places:
                return []
            entry = self._entry_at(opened, seq, positions[0])
            if entry is not None:
                return [entry]
        return self._read_many(opened, seq, base, count_max, bytes_max)

    def _read_many(
        self, opened: OpenStream, seq: int, base: int, count_max: int, bytes_max: int
    ) -> list[Entry]:
        count_max = min(count_max, limits.read_count_max)
        bytes_max = min(bytes_max, limits.read_bytes_max)
        entries: list[Entry] = []
        if seq < base and count_max > 0:
            entries, is_all = self._runs.entries(opened, seq, base, count_max, bytes_max)
            if not is_all:
                return entries
            seq = base
        size = sum([len(entry.payload) for entry in entries])
        # Once, unless some of them are lost.
        while len(entries) < count_max:
            places = opened.places(seq - base, count_max - len(entries))
            for place in places:
                size += place & LENGTH_MASK
                if place >= self._durable_places or (entries and size > bytes_max):
                    return entries
                entry = self._entry_at(opened, seq, place)
                if entry is not None:
                    entries.append(entry)
                seq += 1
            if not places:
                break
        return entries

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]:
        return read_heads(
            streams,
            self._by_id,
            self._segments.recent,
            self._upkeep.live_start << LENGTH_BITS,
            self._durable_places,
            lambda stream: read_head(self, stream),
        )

    def unread_among(self, streams: Sequence[bytes]) -> list[StreamId]:
        """Those that exist and have entries, staged ones too, in the order of their ids.

        Reads none of them and brings none into memory that is at rest: for a million at a time.
        """
        residents = self._residents
        return unread_among(
            streams, self._by_id, residents.tails, residents.find, self._table.with_entries
        )

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        opened = self._residents.seen(stream)
        if not opened.flags & HAS_SNAPSHOT:
            return None
        opened.forget_below(self._upkeep.live_start)
        return self._snapshots.newest(opened, self._durable_end)

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return dict(self._residents.seen(stream).cursors or {})

    def streams(self) -> Iterator[StreamId]:
        return self._residents.ids()

    # ---- Committing ----

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        self._taken = batch = self._stager.take(must_acknowledge=acknowledgements)
        if batch is not None:
            batch.is_kept = self._segments.recent.make_room(batch.position, batch.byte_count)
        return batch

    def write_batch(self, batch: Batch) -> None:
        assert isinstance(batch, StagedBatch)
        offset = batch.position % self._segments.segment_bytes
        try:
            file = self._segments.file_for(batch.position, batch.spare_path)
            if batch.is_kept:
                blocks = self._segments.recent.put(batch.position, batch.pieces)
                write = file.write_durably if self._options.is_durable else file.write
                write(offset, blocks)
            else:
                file.write(offset, batch.pieces)
                if self._options.is_durable:
                    file.sync()
        except StoreFullError as error:
            # Its blocks were written before, so this cannot be for want of room in the log alone.
            raise DeviceError(error.path, "writing", error.reason) from error

    def finish_batch(self, batch: Batch) -> None:
        assert isinstance(batch, StagedBatch)
        if batch is not self._taken:
            raise ValueError("only the batch that was taken last can be finished")
        self._taken = None
        self._stager.finish(batch)
        self._durable_end = self._upkeep.durable_end = batch.end
        self._durable_places = batch.end << LENGTH_BITS
        self._committed_batch_count += 1
        self._committed_record_count += batch.record_count
        table = self._table
        residents = self._residents
        table.used_count += batch.created_count - batch.deleted_count
        self._upkeep.staged_stream_count -= batch.created_count
        # Before the table may grow: a new generation begins with counts and position that agree.
        table.write_counts(batch.end)
        if table.load > LOAD_LIMIT:
            # By what a power cut left in it: no stream was created that it has no slot for.
            with suppress(StoreFullError):
                self._upkeep.grow_now()
        residents.finish(batch)
        # Work that is due but must not make a batch wait: a little of it each time.
        if residents.tails:
            residents.apply_tails(_TAILS_PER_BATCH)
        if residents.is_settling:
            # More than a batch adds: it must come to an end, however many streams there are.
            residents.settle_some(_SETTLED_PER_BATCH + 4 * len(batch.streams))
            self._stager.wants_images = residents.is_settling
        self._upkeep.move_slots(_MOVED_PAGES_PER_BATCH + len(batch.streams) // 16)
        residents.sweep(SWEEP_PER_BATCH, self._upkeep.live_start)
        table.bury_strays(_STRAY_SLOTS_PER_BATCH)

    @property
    def waiting_bytes(self) -> int:
        return self._stager.waiting_bytes

    @property
    def batch_bytes_max(self) -> int:
        """The committer may set it to what the disk takes in a few milliseconds."""
        return self._stager.batch_bytes_max

    @batch_bytes_max.setter
    def batch_bytes_max(self, value: int) -> None:
        self._stager.batch_bytes_max = value

    @property
    def held_back_count(self) -> int:
        """Streams whose acknowledgement no batch has taken yet."""
        return self._stager.deferred_count

    # ---- Upkeep ----

    def expire_before(self, time_ms: int, count_max: int) -> int:
        count = 0
        in_log = [stream for stream, opened in self._by_id.items() if opened.positions]
        in_log += self._residents.tails
        for stream in expiry_candidates(self._runs, in_log, time_ms):
            if count >= count_max:
                break
            try:
                opened = self._residents.find(stream)
            except CorruptionError as error:
                # Its age cannot be told; that of the others can.
                self._report(Damage(error.file, error.offset, error.reason, StreamId(stream)))
                continue
            if opened is not None and not opened.is_deleted and not opened.flags & IS_DOCUMENT:
                count += self._expire_queue(opened, time_ms, count_max - count)
        return count

    def take_job(self) -> Job | None:
        if self._upkeep.is_busy:
            return None
        self._upkeep.let_go_of_archived(self.history_clock_ms())
        self._residents.apply_tails(_TAILS_AT_ONCE)
        if self._residents.tails:
            # The table is not yet what the log says; more of them with the next call.
            return None
        self._table.bury_strays(_STRAY_SLOTS_AT_ONCE)
        if self._table.may_have_strays:
            # What is sealed or merged away must be judged by a table without them.
            return None
        residents = self._residents
        is_quiet = self._committed_batch_count == self._batch_count_at_last_look
        self._batch_count_at_last_look = self._committed_batch_count
        residents.settle(
            self._upkeep.seal_end, _SAVED_AT_ONCE if is_quiet else _SAVED_BETWEEN_BATCHES
        )
        if is_quiet:
            # No batch comes that would do it: a store at rest has one table, not two.
            self._upkeep.move_slots(_MOVED_PAGES_AT_ONCE)
        self._stager.wants_images = residents.is_settling
        seal_to = residents.settled_to
        if seal_to <= self._upkeep.live_start or not have_cursors_moved(
            residents.with_cursors, self._stager, self._durable_end, seal_to
        ):
            seal_to = 0
        return self._upkeep.take_job(
            seal_to=seal_to,
            save=lambda: residents.save_some(_SAVED_AT_ONCE),
            filled=self._stager.end % self._segments.segment_bytes / self._segments.segment_bytes,
        )

    def run_job(self, job: Job) -> object:
        return self._upkeep.run_job(job)

    def finish_job(self, job: Job, result: object) -> None:
        live_start = self._upkeep.live_start
        self._upkeep.finish_job(job, result)
        self._upkeep.let_go_of_archived(self.history_clock_ms())
        if self._upkeep.live_start != live_start:
            self._residents.start_sweep()

    def backup(self, folder: str) -> Generator[int]:
        """Copy the store as it is now into an empty folder, a stretch at a time: bytes copied.

        The owner goes on writing between the steps; what is durable at the first step is in it.
        """
        return back_up(self._opened, folder, lambda: self._durable_end, self._upkeep)

    def mend(self) -> Iterator[int]:
        """Write damaged runs anew, keeping what is readable; each step yields the bytes it wrote.

        What is damaged in the live log needs no mending: it is left out when its segment is sealed.
        """
        while (job := self._upkeep.take_mending()) is not None:
            result = self.run_job(job)
            self.finish_job(job, result)
            assert isinstance(result, MergeResult)
            yield result.run.file_bytes if result.run is not None else 0

    def describe(self) -> dict[str, int]:
        """What an operator wants to know of the engine itself."""
        state = self._manifest.state
        return {
            "epoch": state.epoch,
            "segment_bytes": state.segment_bytes,
            "live_segments": len(self._segments.numbers),
            "spare_segments": len(self._segments.spares) + len(self._segments.retired),
            "log_end": self._durable_end,
            "checkpoint": state.checkpoint,
            "runs": len(self._runs.names),
            "run_bytes": self._runs.file_bytes,
            "run_rows": sum(run.row_count for run in state.runs),
            "table_slots": self._table.capacity,
            "table_bytes": self._table.mapped_bytes,
            "streams_in_memory": len(self._by_id) + len(self._residents.tails),
            "deferred_acknowledgements": self._stager.deferred_count,
            "waiting_events": self._stager.waiting_event_count,
            "archived_segments": self._upkeep.archived_count,
            "archive_dropped_segments": self._upkeep.archive_dropped_count,
        }

    def scrub(self, bytes_max: int) -> int:
        return self._scrubber.scrub(bytes_max)

    def damage(self) -> Sequence[Damage]:
        return [*self._damage, *self._runs.damage, *self._upkeep.damage]

    def stats(self) -> StoreStats:
        segments = self._segments
        segment_count = len(segments.numbers) + len(segments.spares) + len(segments.retired)
        return StoreStats(
            stream_count=self._table.used_count,
            disk_bytes=segment_count * segments.segment_bytes
            + self._upkeep.archived_bytes
            + self._runs.file_bytes
            + self._table.mapped_bytes,
            file_count=segment_count
            + self._upkeep.archived_count
            + len(self._runs.names)
            + len(self._table.paths())
            + 4,
            committed_batch_count=self._committed_batch_count,
            committed_record_count=self._committed_record_count,
            torn_tail_count=self._opened.replay.torn_tail_count,
            damage_count=len(self._damage) + len(self._runs.damage) + len(self._upkeep.damage),
        )

    def close(self) -> None:
        """Make what is staged durable and let go of the folder."""
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        self._upkeep.begin_closing()
        commit(self)
        self._upkeep.close()
        self._opened.close()

    # ---- Inside ----

    def _refuse_over_quota(self, opened: OpenStream, now_ms: int) -> None:
        if not opened.flags & IS_BLOCKED:
            self._stager.room(RECORD_HEADER_BYTES)
            opened.flags |= IS_BLOCKED
            self._stager.append(opened, RecordKind.QUOTA_MARKER, b"", now_ms)
        raise QuotaExceededError(str(StreamId(opened.stream)), opened.quota)

    def _load_or_none(self, stream: bytes) -> OpenStream | None:
        try:
            return self._residents.load(stream)
        except (UnknownQueueError, StorageError):
            return None

    def _entry_at(self, opened: OpenStream, seq: int, place: int) -> Entry | None:
        if place == LOST:
            return None
        entry = self._segments.read_entry(place, opened.stream, seq)
        if entry is None:
            self._report_place(place, "an entry fails its checksum", StreamId(opened.stream), seq)
        return entry

    def _snapshot_seq(self, opened: OpenStream) -> int:
        """What the newest snapshot covers, staged or not; 0 if there is none."""
        if opened.snapshot_seq < 0:
            try:
                found = self.snapshot(StreamId(opened.stream))
            except CorruptionError:
                # Whatever it covered: a new one is what the document needs.
                found = None
            opened.snapshot_seq = found.up_to_seq if found is not None else 0
        return opened.snapshot_seq

    def _expire_queue(self, opened: OpenStream, time_ms: int, count_max: int) -> int:
        stream = StreamId(opened.stream)
        begin = opened.first
        seq = end_of_old(self.read, stream, begin, time_ms, count_max)
        self.truncate_before(stream, seq)
        if seq > begin and self.on_expired is not None:
            self.on_expired(stream, seq - 1)
        return seq - begin

    # ---- Damage ----

    def _report_place(
        self, place: int, reason: str, stream: StreamId, seq: int | None = None
    ) -> None:
        number, offset = divmod(place >> LENGTH_BITS, self._segments.segment_bytes)
        path = self._segments.path(number)
        self._report(Damage(path, offset, reason, stream, seq, 0 if seq is None else 1))

    def _report(self, damage: Damage) -> None:
        """Each place once, however often it is met."""
        if damage not in self._damage:
            self._damage.append(damage)
