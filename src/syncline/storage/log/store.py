"""`LogStore`: every stream in one group-committed log, with a mapped table of what each stream is.

    append ──► staged batch ──► log segment ──(sealed)──► run ──(merged)──► run
                     └─ once durable ─► slot of the queue table

Invariants:
- A record is staged at the position it will have. Batches are written in order, one at a time.
- Slots change only in `finish_batch`, after the batch that justifies them is durable; their images are
  made when the batch is closed, so nothing staged later gets in.
- `read` gives only what lies below `_durable_end`.
- Acknowledgements need no write of their own: they ride in the padding of later batches, and the next
  record of the same stream carries them anyway.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Self

from syncline.errors import (
    CorruptionError,
    DeviceError,
    LimitExceededError,
    QueueExistsError,
    QuotaExceededError,
    StorageError,
    StoreBusyError,
    StoreFullError,
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
from syncline.storage.log.backup import back_up
from syncline.storage.log.expiry import expiry_candidates
from syncline.storage.log.format import (
    ACK_ROW_BYTES,
    BATCH_HEADER_BYTES,
    HAS_SNAPSHOT,
    IS_BLOCKED,
    IS_DOCUMENT,
    RECORD_HEADER_BYTES,
    SEQUENCE,
    SLOT_DELETED,
    SLOT_STATE_OFFSET,
    RecordKind,
    encode_cursors,
)
from syncline.storage.log.opening import OpenedLog, open_log
from syncline.storage.log.scrubbing import Scrubber
from syncline.storage.log.staging import StagedBatch
from syncline.storage.log.streams import LENGTH_BITS, LENGTH_MASK, LOST, OpenStream, Tail
from syncline.storage.log.table import LOAD_LIMIT
from syncline.storage.log.upkeep import Upkeep
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import STREAM_ID_BYTES, StreamId

# Streams kept in memory though idle, so that a busy one is not looked up again for each message.
_IDLE_STREAMS_MAX: Final = 65_536
# Tails of the replay written to the table with each finished batch, and streams looked at for
# positions that are sealed by now: a little at a time, so that no batch waits long.
_TAILS_PER_BATCH: Final = 256
_SWEEP_PER_BATCH: Final = 128
_MOVED_PAGES_PER_BATCH: Final = 4
_WALK_SLOTS: Final = 4096
_EXPIRY_BYTES: Final = 1 << 20


class LogStore:
    """The default engine. See `storage.base.Store` for the contract and the module for the rules."""

    def __init__(self, opened: OpenedLog, options: StoreOptions) -> None:
        self._opened = opened
        self._options = options
        self._manifest = opened.manifest
        self._segments = opened.segments
        self._table = opened.table
        self._runs = opened.runs
        self._tails = opened.replay.tails
        self._damage = list(opened.replay.damage)
        self._chain = opened.replay.chain
        self._chain_before = opened.replay.chain_before
        self._end = opened.replay.end
        self._durable_end = self._end
        self._segment_record_count = opened.replay.record_count_in_last
        # The time of records that come without one: never behind what callers said last.
        self._time_ms = opened.now_ms
        self._entry_bytes_max = min(limits.entry_bytes_max, opened.segments.segment_bytes // 2)

        self._open: dict[bytes, OpenStream] = {}
        self._with_cursors: dict[OpenStream, None] = {}
        self._deferred: dict[OpenStream, None] = {}
        self._sweep: Iterator[OpenStream] = iter(())
        self._batch: StagedBatch | None = None
        self._closed: deque[StagedBatch] = deque()
        self._taken: StagedBatch | None = None
        self._closed_bytes = 0
        self._committed_batch_count = 0
        self._committed_record_count = 0
        # The committer may set it to what the disk takes in a few milliseconds.
        self.batch_bytes_max = limits.batch_bytes_default
        self._upkeep = Upkeep(opened, options, self._chain_before)
        self._scrubber = Scrubber(opened.runs, opened.table, self._report)
        for stream, tail in list(self._tails.items()):
            if tail.cursors:
                self._find(stream)

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
        return cls(open_log(folder, files, options, now_ms, random_bytes, progress), options)

    # ---- Writing ----

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        if not 0 <= quota <= limits.queue_quota_max:
            raise LimitExceededError("quota", quota, limits.queue_quota_max)
        if quota and kind is StreamKind.DOCUMENT:
            raise ValueError("a document has no quota")
        opened = self._find(stream)
        if opened is None:
            opened = OpenStream(stream, -1)
        elif not opened.is_deleted:
            raise QueueExistsError(str(stream))
        batch = self._batch_with_room(RECORD_HEADER_BYTES)
        opened.is_deleted = False
        opened.first = opened.next = 1
        opened.quota = quota
        opened.flags = IS_DOCUMENT if kind is StreamKind.DOCUMENT else 0
        self._open[stream] = opened
        place = batch.add(opened, RecordKind.CREATE, now_ms, b"")
        opened.born = place >> LENGTH_BITS
        batch.stream_count_change += 1

    def delete(self, stream: StreamId) -> None:
        opened = self._load(stream)
        batch = self._batch_with_room(RECORD_HEADER_BYTES)
        self._upkeep.count_dead(opened.log_base - opened.first)
        opened.positions.clear()
        opened.snapshot_place = 0
        opened.cursors = None
        opened.flags = 0
        opened.first = opened.next
        opened.is_deleted = True
        self._with_cursors.pop(opened, None)
        self._forget_deferred(opened)
        batch.add(opened, RecordKind.DELETE, self._time_ms, b"")
        batch.stream_count_change -= 1

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        opened = self._open.get(stream)
        if opened is None or opened.is_deleted:
            opened = self._load(stream)
        size = len(payload)
        if size > self._entry_bytes_max:
            raise LimitExceededError("message bytes", size, self._entry_bytes_max)
        unread_count = opened.next - opened.first
        quota = opened.quota
        if quota and (unread_count >= quota or opened.flags & IS_BLOCKED):
            self._refuse_over_quota(opened, now_ms)
        if unread_count >= limits.unread_count_max:
            raise LimitExceededError("unread entries", unread_count + 1, limits.unread_count_max)
        return self._append_entry(opened, RecordKind.MESSAGE, payload, now_ms)

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        opened = self._open.get(stream)
        if opened is None or opened.is_deleted:
            opened = self._load(stream)
        if seq > opened.next:
            raise LimitExceededError("sequence", seq, opened.next)
        if seq <= opened.first:
            return
        in_runs = opened.log_base - opened.first
        if in_runs > 0:
            self._upkeep.count_dead(min(seq, opened.log_base) - opened.first)
        opened.move_first(seq)
        opened.has_deferred_ack = True
        self._deferred[opened] = None

    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        opened = self._load(stream)
        if len(payload) > limits.snapshot_bytes_max:
            raise LimitExceededError("snapshot bytes", len(payload), limits.snapshot_bytes_max)
        if not 0 <= up_to_seq < opened.next:
            raise ValueError(f"a snapshot up to {up_to_seq} of entries up to {opened.next - 1}")
        last = self._snapshot_seq(opened)
        if up_to_seq < last:
            raise ValueError(f"a snapshot up to {up_to_seq} after one up to {last}")
        data = SEQUENCE.pack(up_to_seq) + payload
        batch = self._batch_with_room(RECORD_HEADER_BYTES + len(data))
        opened.flags |= HAS_SNAPSHOT
        if opened.snapshot_place >> LENGTH_BITS < self._durable_end:
            opened.durable_snapshot_place = opened.snapshot_place
        opened.snapshot_place = batch.add(opened, RecordKind.SNAPSHOT, now_ms, data)
        opened.snapshot_seq = up_to_seq

    def move_cursor(self, stream: StreamId, name: bytes, seq: int) -> None:
        opened = self._load(stream)
        if len(name) > limits.cursor_name_bytes_max:
            raise LimitExceededError("cursor name bytes", len(name), limits.cursor_name_bytes_max)
        if seq < 0:
            raise ValueError(f"a position is 0 or more, not {seq}")
        if seq > opened.next:
            raise LimitExceededError("sequence", seq, opened.next)
        cursors = opened.cursors if opened.cursors is not None else {}
        if name not in cursors and len(cursors) >= limits.cursors_per_stream_max:
            raise LimitExceededError("cursors", len(cursors) + 1, limits.cursors_per_stream_max)
        if seq < cursors.get(name, 0):
            raise ValueError(f"the cursor is at {cursors[name]}; drop it before it goes back")
        data = SEQUENCE.pack(seq) + name
        batch = self._batch_with_room(RECORD_HEADER_BYTES + len(data))
        place = batch.add(opened, RecordKind.CURSOR, self._time_ms, data)
        cursors[name] = seq
        if not opened.cursors:
            opened.cursors = cursors
            opened.cursor_position = place >> LENGTH_BITS
        self._with_cursors[opened] = None

    def drop_cursor(self, stream: StreamId, name: bytes) -> None:
        opened = self._load(stream)
        if opened.cursors is None or name not in opened.cursors:
            return
        batch = self._batch_with_room(RECORD_HEADER_BYTES + len(name))
        batch.add(opened, RecordKind.DROP_CURSOR, self._time_ms, name)
        del opened.cursors[name]

    # ---- Looking ----

    def state(self, stream: StreamId) -> StreamState:
        return self._load(stream).state()

    def read(
        self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int
    ) -> list[Entry]:
        opened = self._load(stream)
        opened.forget_below(self._upkeep.live_start)
        count_max = min(count_max, limits.read_count_max)
        bytes_max = min(bytes_max, limits.read_bytes_max)
        seq = max(from_seq, opened.first)
        base = opened.log_base
        entries: list[Entry] = []
        if seq < base and count_max > 0:
            entries, is_all = self._runs.entries(opened, seq, base, count_max, bytes_max)
            if not is_all:
                return entries
            seq = base
        size = sum(len(entry.payload) for entry in entries)
        for place in islice(opened.positions, seq - base, None):
            if len(entries) >= count_max or place >> LENGTH_BITS >= self._durable_end:
                break
            size += place & LENGTH_MASK
            if entries and size > bytes_max:
                break
            entry = self._entry_at(opened, seq, place)
            if entry is not None:
                entries.append(entry)
            seq += 1
        return entries

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        opened = self._load(stream)
        if not opened.flags & HAS_SNAPSHOT:
            return None
        opened.forget_below(self._upkeep.live_start)
        place = opened.snapshot_place
        if place >> LENGTH_BITS >= self._durable_end:
            place = opened.durable_snapshot_place
        if not place:
            return self._runs.snapshot(opened)
        record = self._segments.read(place)
        if record is None:
            self._report_place(place, "a snapshot fails its checksum", stream)
            return None
        (up_to_seq,) = SEQUENCE.unpack_from(record.payload)
        return Snapshot(up_to_seq, record.time_ms, record.payload[SEQUENCE.size :])

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return dict(self._load(stream).cursors or {})

    def streams(self) -> Iterator[StreamId]:
        """Every stream. Streams created or deleted meanwhile may or may not be among them."""
        seen: set[bytes] = set()
        for opened in list(self._open.values()):
            seen.add(opened.stream)
            if not opened.is_deleted:
                yield StreamId(opened.stream)
        for stream in list(self._tails):
            if stream not in seen:
                seen.add(stream)
                if self._find(stream) is not None:
                    yield StreamId(stream)
        for image in self._table.used_images(_WALK_SLOTS):
            if image[:STREAM_ID_BYTES] not in seen:
                yield StreamId(image[:STREAM_ID_BYTES])

    # ---- Committing ----

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        if not self._closed:
            self._stage_acknowledgements(must_all=acknowledgements)
            if self._batch is None:
                return None
            self._close_batch()
        self._taken = self._closed.popleft()
        return self._taken

    def write_batch(self, batch: Batch) -> None:
        assert isinstance(batch, StagedBatch)
        file = self._segments.file_for(batch.position, batch.spare_path)
        offset = batch.position % self._segments.segment_bytes
        try:
            file.write(offset, batch.write_pieces())
        except StoreFullError as error:
            # Its blocks were written before, so this cannot be for want of room in the log alone.
            raise DeviceError(error.path, "writing", error.reason) from error
        if self._options.is_durable:
            file.sync()

    def finish_batch(self, batch: Batch) -> None:
        assert isinstance(batch, StagedBatch)
        if batch is not self._taken:
            raise ValueError("only the batch that was taken last can be finished")
        self._taken = None
        self._closed_bytes -= batch.byte_count
        self._durable_end = batch.end
        self._committed_batch_count += 1
        self._committed_record_count += batch.record_count
        table = self._table
        table.used_count += batch.stream_count_change
        if table.load > LOAD_LIMIT:
            self._upkeep.grow_now()
        for opened, image in batch.images:
            self._write_slot(opened, image)
            opened.pending_count -= 1
            if opened.is_idle and (opened.is_deleted or len(self._open) > _IDLE_STREAMS_MAX):
                self._open.pop(opened.stream, None)
        table.write_counts(batch.end)
        self._upkeep.durable_end = batch.end
        self._do_a_little(len(batch.images))

    @property
    def waiting_bytes(self) -> int:
        staged = self._batch.byte_count if self._batch is not None else 0
        return self._closed_bytes + staged

    # ---- Upkeep ----

    def expire_before(self, time_ms: int, count_max: int) -> int:
        count = 0
        with_entries = [stream for stream, opened in self._open.items() if opened.positions]
        for stream in expiry_candidates(self._runs, [*with_entries, *self._tails], time_ms):
            if count >= count_max:
                break
            opened = self._find(stream)
            if opened is not None and not opened.is_deleted and not opened.flags & IS_DOCUMENT:
                count += self._expire_queue(opened, time_ms, count_max - count)
        return count

    def take_job(self) -> Job | None:
        if self._upkeep.is_busy:
            return None
        self._apply_tails(len(self._tails))
        return self._upkeep.take_job(
            can_seal=self._have_cursors_moved(),
            filled=self._end % self._segments.segment_bytes / self._segments.segment_bytes,
        )

    def run_job(self, job: Job) -> object:
        return self._upkeep.run_job(job)

    def finish_job(self, job: Job, result: object) -> None:
        self._upkeep.finish_job(job, result)
        self._sweep = iter(list(self._open.values()))

    def backup(self, folder: str) -> Iterator[int]:
        """Copy the store as it is now into an empty folder, a stretch at a time: bytes copied.

        The owner goes on writing between the steps; what is durable at the first step is in it.
        """
        return back_up(self._opened, folder, lambda: self._durable_end, self._upkeep)

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
            "streams_in_memory": len(self._open) + len(self._tails),
            "deferred_acknowledgements": len(self._deferred),
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
            + self._runs.file_bytes
            + self._table.mapped_bytes,
            file_count=segment_count + len(self._runs.names) + len(self._table.paths()) + 4,
            committed_batch_count=self._committed_batch_count,
            committed_record_count=self._committed_record_count,
            torn_tail_count=self._opened.replay.torn_tail_count,
            damage_count=len(self._damage) + len(self._runs.damage) + len(self._upkeep.damage),
        )

    def close(self) -> None:
        """Make what is staged durable and let go of the folder."""
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        commit(self)
        self._upkeep.close()
        self._runs.close()
        self._table.close()
        self._segments.close()
        self._manifest.close()
        self._opened.lock.release()

    # ---- Staging ----

    def _append_entry(
        self, opened: OpenStream, kind: RecordKind, payload: bytes, now_ms: int
    ) -> int:
        batch = self._batch
        if batch is None or batch.length + len(payload) + RECORD_HEADER_BYTES > batch.length_max:
            batch = self._batch_with_room(len(payload) + RECORD_HEADER_BYTES)
        seq = opened.next
        opened.next = seq + 1
        opened.positions.append(batch.add(opened, kind, now_ms, payload))
        if opened.has_deferred_ack:
            self._forget_deferred(opened)
        return seq

    def _refuse_over_quota(self, opened: OpenStream, now_ms: int) -> None:
        if not opened.flags & IS_BLOCKED:
            self._batch_with_room(RECORD_HEADER_BYTES)
            opened.flags |= IS_BLOCKED
            self._append_entry(opened, RecordKind.QUOTA_MARKER, b"", now_ms)
        raise QuotaExceededError(str(StreamId(opened.stream)), opened.quota)

    def _forget_deferred(self, opened: OpenStream) -> None:
        """A record with the whole image of the stream makes its row needless."""
        self._deferred.pop(opened, None)
        opened.has_deferred_ack = False

    def _batch_with_room(self, size: int) -> StagedBatch:
        """The open batch, or a new one, that takes `size` more bytes of records."""
        batch = self._batch
        if batch is not None:
            if batch.length + size <= batch.length_max:
                return batch
            self._close_batch()
        if self.waiting_bytes > limits.waiting_bytes_max:
            raise StoreBusyError(self.waiting_bytes, limits.waiting_bytes_max)
        position = self._end
        segment_bytes = self._segments.segment_bytes
        is_open = self._segments.is_open(position // segment_bytes)
        room = segment_bytes - position % segment_bytes if is_open else 0
        spare_path = ""
        if room < BATCH_HEADER_BYTES + size or self._is_segment_full_of_records():
            spare_path = self._take_spare(size)
            position += -position % segment_bytes if not is_open else room
            room = segment_bytes
            self._chain_before[position // segment_bytes] = self._chain
            self._segment_record_count = 0
        length_max = min(max(self.batch_bytes_max, size), room - BATCH_HEADER_BYTES)
        self._batch = StagedBatch(position, self._segments.epoch, length_max, spare_path)
        return self._batch

    def _is_segment_full_of_records(self) -> bool:
        return self._segment_record_count >= limits.segment_record_count_max

    def _take_spare(self, size: int) -> str:
        """A prepared file for the next segment. Raises StoreFullError or StoreBusyError."""
        segment_bytes = self._segments.segment_bytes
        if BATCH_HEADER_BYTES + size > segment_bytes:
            raise LimitExceededError("record bytes", size, segment_bytes - BATCH_HEADER_BYTES)
        return self._upkeep.take_spare()

    def _close_batch(self) -> None:
        batch = self._batch
        assert batch is not None
        self._batch = None
        self._chain = batch.close(self._chain, self._time_ms)
        self._end = batch.end
        self._segment_record_count += batch.record_count
        self._closed_bytes += batch.byte_count
        self._closed.append(batch)

    def _stage_acknowledgements(self, *, must_all: bool) -> None:
        """Put deferred acknowledgements where they cost nothing; all of them if they must go."""
        waiting = len(self._deferred)
        if not waiting:
            return
        must_all = must_all or waiting > limits.deferred_ack_count_max
        batch = self._batch
        if batch is None:
            if not must_all:
                return
            try:
                batch = self._batch_with_room(RECORD_HEADER_BYTES + ACK_ROW_BYTES)
            except StorageError:
                # No room in the log: they wait. Losing them means delivering again, no more.
                return
        free = batch.length_max - batch.length
        count = min(waiting, batch.ack_row_room(free if must_all else min(free, batch.padding)))
        if count:
            streams = list(islice(self._deferred, count))
            for opened in streams:
                self._forget_deferred(opened)
            batch.add_acknowledgements(streams, self._time_ms)

    # ---- Streams in memory ----

    def _find(self, stream: bytes) -> OpenStream | None:
        """The stream, brought into memory; None if it does not exist. Deleted ones may be given."""
        opened = self._open.get(stream)
        if opened is not None:
            return opened
        tail = self._tails.pop(stream, None)
        index = self._table.find(stream)
        if tail is None:
            if index < 0:
                return None
            slot = self._table.read(index)
            if slot.state == SLOT_DELETED:
                return None
            opened = OpenStream(stream, index)
            opened.born, opened.first, opened.next = slot.born, slot.first, slot.next
            opened.quota, opened.flags = slot.quota, slot.flags
        else:
            opened = self._open_tail(stream, index, tail)
            if opened.is_deleted:
                return None
        self._open[opened.stream] = opened
        if opened.cursors:
            self._with_cursors[opened] = None
        return opened

    def _open_tail(self, stream: bytes, index: int, tail: Tail) -> OpenStream:
        slot = None
        if index >= 0:
            try:
                slot = self._table.read(index)
            except CorruptionError:
                # A torn slot: the log since the checkpoint holds the whole image of it.
                slot = None
        opened, missing = tail.open(stream, index, slot)
        if missing:
            self._report(
                Damage(
                    self._segments.path(tail.applied // self._segments.segment_bytes),
                    tail.applied % self._segments.segment_bytes,
                    "entries behind this one are missing",
                    StreamId(stream),
                    opened.next - missing,
                    missing,
                )
            )
        # The replayed log is durable, so the slot may follow it at once.
        self._write_slot(opened, opened.image(self._durable_end))
        return opened

    def _load(self, stream: StreamId) -> OpenStream:
        opened = self._find(stream)
        if opened is None or opened.is_deleted:
            raise UnknownQueueError(str(StreamId(stream)))
        return opened

    def _write_slot(self, opened: OpenStream, image: bytes) -> None:
        table = self._table
        is_deleted = image[SLOT_STATE_OFFSET] == SLOT_DELETED
        if opened.slot < 0 or opened.slot_generation != table.generation_number:
            opened.slot = table.find(opened.stream)
            if opened.slot < 0:
                if is_deleted:
                    return
                opened.slot = table.place(opened.stream)
            elif table.is_deleted(opened.slot):
                table.deleted_count -= 1
            opened.slot_generation = table.generation_number
        table.deleted_count += is_deleted
        table.write(opened.slot, image)

    def _entry_at(self, opened: OpenStream, seq: int, place: int) -> Entry | None:
        if place == LOST:
            return None
        record = self._segments.read(place)
        if record is None or record.stream != opened.stream or record.last_seq != seq:
            self._report_place(place, "an entry fails its checksum", StreamId(opened.stream), seq)
            return None
        return Entry(seq, record.time_ms, record.payload, EntryKind(record.kind))

    def _snapshot_seq(self, opened: OpenStream) -> int:
        """What the newest snapshot covers, staged or not; 0 if there is none."""
        if opened.snapshot_seq < 0:
            found = self.snapshot(StreamId(opened.stream))
            opened.snapshot_seq = found.up_to_seq if found is not None else 0
        return opened.snapshot_seq

    # ---- A little at a time ----

    def _do_a_little(self, changed_count: int) -> None:
        """Work that is due but must not make a batch wait."""
        if self._tails:
            self._apply_tails(_TAILS_PER_BATCH)
        self._upkeep.move_slots(_MOVED_PAGES_PER_BATCH + changed_count // 16)
        live_start = self._upkeep.live_start
        for opened in islice(self._sweep, _SWEEP_PER_BATCH):
            opened.forget_below(live_start)
            if opened.is_idle and len(self._open) > _IDLE_STREAMS_MAX:
                self._open.pop(opened.stream, None)

    def _apply_tails(self, count: int) -> None:
        """Bring replayed streams into the table; those with entries in the log stay in memory."""
        for stream in list(islice(self._tails, count)):
            opened = self._find(stream)
            if opened is not None and opened.is_idle:
                del self._open[stream]

    def _have_cursors_moved(self) -> bool:
        """Whether no cursor needs a segment that is to be sealed.

        Cursors never go to runs: all those of a stream are written to the log anew before the
        segment that holds them is let go of.
        """
        seal_end = self._upkeep.seal_end
        have_moved = True
        for opened in list(self._with_cursors):
            if not opened.cursors:
                del self._with_cursors[opened]
            elif opened.cursor_position < seal_end:
                data = encode_cursors(opened.cursors)
                try:
                    batch = self._batch_with_room(RECORD_HEADER_BYTES + len(data))
                except StorageError:
                    return False
                place = batch.add(opened, RecordKind.CURSORS, self._time_ms, data)
                opened.cursor_position = place >> LENGTH_BITS
            have_moved = have_moved and opened.cursor_position < self._durable_end
        return have_moved

    def _expire_queue(self, opened: OpenStream, time_ms: int, count_max: int) -> int:
        stream = StreamId(opened.stream)
        begin = seq = opened.first
        while seq - begin < count_max:
            entries = self.read(stream, seq, min(count_max - (seq - begin), 64), _EXPIRY_BYTES)
            old = 0
            for entry in entries:
                if entry.time_ms >= time_ms or entry.kind is not EntryKind.MESSAGE:
                    break
                seq = entry.seq + 1
                old += 1
            if not entries or old < len(entries):
                break
        self.truncate_before(stream, seq)
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
