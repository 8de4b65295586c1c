"""Builds batches: records get their position when staged, headers and slot images when closed."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from syncline.errors import LimitExceededError, StorageError, StoreBusyError
from syncline.storage.log.format import (
    ACK_ROW,
    ACK_ROW_BYTES,
    BATCH_HEADER_BYTES,
    BLOCK_BYTES,
    CRC,
    IS_BLOCKED,
    NO_STREAM,
    QUOTA_BITS,
    RECORD_BODY,
    RECORD_HEADER_BYTES,
    UNREAD_BITS,
    RecordKind,
    checksum_seed,
    crc32c_extend,
    encode_batch_header,
)
from syncline.storage.log.recovery import Replay
from syncline.storage.log.scan import Chain
from syncline.storage.log.segments import Segments
from syncline.storage.log.streams import LENGTH_BITS, OpenStream
from syncline.values import limits
from syncline.values.events import EVENT_ROW_BYTES, EventKind, encode_event

_pack_body = RECORD_BODY.pack
_pack_crc = CRC.pack
_pack_row = ACK_ROW.pack
# A plain number: arithmetic on a member of an enumeration costs more than all else here.
_MESSAGE = int(RecordKind.MESSAGE)
# The shifts below are these constants, written out.
assert (UNREAD_BITS, QUOTA_BITS, LENGTH_BITS) == (24, 16, 24)

# Below this mean size of a piece one joined write costs less than a long list of pieces.
_JOIN_PIECE_BYTES = 2048


@dataclass(slots=True, eq=False)
class StagedBatch:
    """Records of one write. The owner fills and closes it, then another thread may write it."""

    position: int
    epoch: int
    tag: int
    # Bytes of records that may be added before the segment or the cap ends.
    length_max: int
    # Prepared file that becomes this batch's segment; empty if the segment is there already.
    spare_path: str = ""
    length: int = 0
    record_count: int = 0
    pieces: list[bytes] = field(default_factory=list[bytes])
    streams: list[OpenStream] = field(default_factory=list[OpenStream])
    # Those of them whose slot was true until then.
    newly_unsaved: list[OpenStream] = field(default_factory=list[OpenStream])
    # Streams created and deleted.
    created_count: int = 0
    deleted_count: int = 0
    chain: Chain | None = None
    # Slots of streams that are too busy to be saved between two batches.
    images: list[tuple[OpenStream, bytes]] = field(default_factory=list[tuple[OpenStream, bytes]])
    # It has a place in `RecentLog`.
    is_kept: bool = False
    # What `checksum_seed` makes of epoch and tag.
    seed_key: int = field(init=False)

    def __post_init__(self) -> None:
        self.seed_key = checksum_seed(0, self.epoch ^ self.tag)

    @property
    def byte_count(self) -> int:
        """What the write will take on disk, whole blocks."""
        return -(-(BATCH_HEADER_BYTES + self.length) // BLOCK_BYTES) * BLOCK_BYTES

    @property
    def end(self) -> int:
        return self.position + self.byte_count

    @property
    def padding(self) -> int:
        return self.byte_count - BATCH_HEADER_BYTES - self.length

    def add(self, opened: OpenStream, kind: int, now_ms: int, payload: bytes) -> int:
        """Stage a record with the image of its stream as it is now; return its place."""
        length = len(payload)
        position = self.position + BATCH_HEADER_BYTES + self.length
        next_seq = opened.next
        body = _pack_body(
            (kind | opened.flags) << 24 | length,
            opened.stream,
            (next_seq - 1) << 24 | (next_seq - opened.first),
            now_ms << 16 | opened.quota,
        )
        seed = (position ^ (position >> 32) * 0x9E3779B1 ^ self.seed_key) & 0xFFFF_FFFF
        crc = crc32c_extend(crc32c_extend(seed, body), payload)
        self.pieces.append(_pack_crc(crc) + body)
        self.pieces.append(payload)
        self.record_count += 1
        self.length += RECORD_HEADER_BYTES + length
        if opened.staged_to < self.position:
            self.streams.append(opened)
            if not opened.is_unsaved:
                opened.is_unsaved = True
                self.newly_unsaved.append(opened)
        opened.staged_to = position
        if opened.has_deferred_ack:
            opened.note_logged()
        return position << 24 | length

    def take_in(self, end: int, record_count: int) -> None:
        """So many records were added to `pieces` and `streams`, up to position `end`."""
        self.length = end - self.position - BATCH_HEADER_BYTES
        self.record_count += record_count

    def add_acknowledgements(self, streams: list[OpenStream], now_ms: int) -> None:
        """Stage rows for streams whose `first` moved."""
        position = self.position + BATCH_HEADER_BYTES + self.length
        batch_start = self.position
        rows: list[bytes] = []
        for opened in streams:
            next_seq = opened.next
            rows.append(_pack_row(opened.stream, (next_seq - 1) << 24 | (next_seq - opened.first)))
            if opened.staged_to < batch_start:
                self.streams.append(opened)
                if not opened.is_unsaved:
                    opened.is_unsaved = True
                    self.newly_unsaved.append(opened)
            opened.staged_to = position
        self._add_rows(RecordKind.ACKNOWLEDGEMENTS, rows, now_ms)

    def add_events(self, rows: Sequence[bytes], now_ms: int) -> None:
        self._add_rows(RecordKind.EVENTS, rows, now_ms)

    def _add_rows(self, kind: RecordKind, rows: Sequence[bytes], now_ms: int) -> None:
        """A record that names no stream itself."""
        position = self.position + BATCH_HEADER_BYTES + self.length
        payload = b"".join(rows)
        body = RECORD_BODY.pack(kind << 24 | len(payload), NO_STREAM, 0, now_ms << QUOTA_BITS)
        crc = crc32c_extend(
            crc32c_extend(checksum_seed(position, self.epoch ^ self.tag), body), payload
        )
        self.pieces.append(CRC.pack(crc) + body)
        self.pieces.append(payload)
        self.record_count += 1
        self.length += RECORD_HEADER_BYTES + len(payload)

    def close(self, after: Chain, time_ms: int, *, has_images: bool) -> Chain:
        """Nothing more is added: make the header and, if wanted, the images of touched slots."""
        number = after.number + 1
        if self.length // len(self.pieces) < _JOIN_PIECE_BYTES:
            self.pieces = [b"".join(self.pieces)]
        header, crc = encode_batch_header(
            self.epoch,
            number,
            self.position,
            time_ms,
            self.record_count,
            self.pieces,
            after.crc,
            self.tag,
        )
        self.pieces.insert(0, header)
        # Whole blocks: no block has to be read before it is written, and old remains are covered.
        if self.padding:
            self.pieces.append(bytes(self.padding))
        if has_images:
            end = self.end
            self.images = [(opened, opened.image(end)) for opened in self.streams]
        self.chain = Chain(number, crc, self.epoch)
        return self.chain


class Stager:
    """The end of the log as it will be: the open batch and those that are closed, in order."""

    def __init__(
        self, segments: Segments, replay: Replay, take_spare: Callable[[], str], now_ms: int
    ) -> None:
        self._segments = segments
        self._take_spare = take_spare
        self._chain = replay.chain
        self._batch: StagedBatch | None = None
        self._closed: deque[StagedBatch] = deque()
        self._closed_bytes = 0
        self._segment_record_count = replay.record_count_in_last
        # Acknowledgements that are held back go out when a segment begins: those before it may be
        # sealed from then on, and what is not acknowledged in the log is copied to a run.
        self._begins_segment = False
        # The highest segment that has a file, or a spare set aside for it.
        self._last_segment = max(segments.numbers, default=0)
        # Streams whose acknowledgement no batch has taken.
        self.deferred: dict[OpenStream, None] = {}
        # The batch before the first of each live segment.
        self.chain_before = replay.chain_before
        # Events that no batch has taken, in order, and how many were left out behind them.
        self._events: list[bytes] = []
        self._dropped_event_count = 0
        self.end = replay.end
        # The time of records that come without one: what callers said last.
        self.time_ms = now_ms
        self.batch_bytes_max = limits.batch_bytes_default
        # Whether batches carry the images of the slots they change; see `Residents.settle`.
        self.wants_images = False

    @property
    def waiting_bytes(self) -> int:
        staged = self._batch.byte_count if self._batch is not None else 0
        return self._closed_bytes + staged

    @property
    def deferred_count(self) -> int:
        return len(self.deferred)

    def room(self, size: int) -> StagedBatch:
        """The open batch, or a new one, that takes `size` more bytes of records.

        Raises LimitExceededError, StoreFullError or StoreBusyError; then nothing is staged.
        """
        batch = self._batch
        if batch is not None:
            if batch.length + size <= batch.length_max:
                return batch
            self._close()
        waiting = self._closed_bytes
        allowed = limits.waiting_bytes_max - waiting - BATCH_HEADER_BYTES
        if waiting and allowed < size:
            raise StoreBusyError(waiting, limits.waiting_bytes_max)
        segment_bytes = self._segments.segment_bytes
        position = self.end
        is_begun = position // segment_bytes <= self._last_segment
        room = segment_bytes - position % segment_bytes if is_begun else 0
        spare_path = ""
        if room < BATCH_HEADER_BYTES + size or self._is_segment_full_of_records():
            if BATCH_HEADER_BYTES + size > segment_bytes:
                raise LimitExceededError("record bytes", size, segment_bytes - BATCH_HEADER_BYTES)
            spare_path = self._take_spare()
            position += room
            room = segment_bytes
            self._last_segment = position // segment_bytes
            self.chain_before[self._last_segment] = self._chain
            self._segment_record_count = 0
            self._begins_segment = True
        length_max = min(max(min(self.batch_bytes_max, allowed), size), room - BATCH_HEADER_BYTES)
        self._batch = StagedBatch(
            position, self._segments.epoch, self._segments.tag, length_max, spare_path
        )
        return self._batch

    def append(self, opened: OpenStream, kind: int, payload: bytes, now_ms: int) -> int:
        """Stage an entry and return its sequence."""
        size = len(payload) + RECORD_HEADER_BYTES
        batch = self._batch
        if batch is None or batch.length + size > batch.length_max:
            batch = self.room(size)
        self.time_ms = now_ms
        seq = opened.next
        opened.next = seq + 1
        opened.positions.append(batch.add(opened, kind, now_ms, payload))
        if opened.has_deferred_ack:
            self.forget_deferred(opened)
        return seq

    def append_many(
        self,
        messages: Iterable[tuple[bytes, bytes]],
        now_ms: int,
        by_id: Mapping[bytes, OpenStream],
        load: Callable[[bytes], OpenStream | None],
        length_max: int,
    ) -> list[int]:
        """Stage messages in order, up to the first that is refused; the sequences of those staged.

        `append` with its checks, spelled out and with everything at hand that stays the same from
        one message to the next: it runs once for each message (bench: log).
        """
        self.time_ms = now_ms
        time_bits = now_ms << 16
        unread_max = limits.unread_count_max
        get = by_id.get
        seqs: list[int] = []
        batch: StagedBatch | None = None
        batch_start = position = end = seed = staged_count = 0
        pieces: list[bytes] = []
        streams: list[OpenStream] = []
        newly_unsaved: list[OpenStream] = []
        try:
            for stream, payload in messages:
                opened = get(stream)
                if (opened is None or opened.is_deleted) and (opened := load(stream)) is None:
                    break
                length = len(payload)
                flags = opened.flags
                quota = opened.quota
                seq = opened.next
                unread_count = seq - opened.first
                if (
                    (quota and (unread_count >= quota or flags & IS_BLOCKED))
                    or length > length_max
                    or unread_count >= unread_max
                ):
                    break
                if position + RECORD_HEADER_BYTES + length > end:
                    if batch is not None:
                        batch.take_in(position, len(seqs) - staged_count)
                        batch = None
                    try:
                        batch = self.room(RECORD_HEADER_BYTES + length)
                    except (StorageError, LimitExceededError):
                        break
                    staged_count = len(seqs)
                    batch_start = batch.position
                    position = batch_start + BATCH_HEADER_BYTES + batch.length
                    end = batch_start + BATCH_HEADER_BYTES + batch.length_max
                    # As `checksum_seed`, as long as the upper half of the position is the same.
                    seed = (position >> 32) * 0x9E3779B1 & 0xFFFF_FFFF ^ batch.seed_key
                    end = min(end, (position | 0xFFFF_FFFF) + 1)
                    pieces, streams = batch.pieces, batch.streams
                    newly_unsaved = batch.newly_unsaved
                body = _pack_body(
                    (_MESSAGE | flags) << 24 | length,
                    stream,
                    seq << 24 | unread_count + 1,
                    time_bits | quota,
                )
                if length < _JOIN_PIECE_BYTES:
                    # One copy costs less than a second checksum.
                    body += payload
                    crc = crc32c_extend(position & 0xFFFF_FFFF ^ seed, body)
                    pieces += (_pack_crc(crc), body)
                else:
                    crc = crc32c_extend(crc32c_extend(position & 0xFFFF_FFFF ^ seed, body), payload)
                    pieces += (_pack_crc(crc) + body, payload)
                opened.next = seq + 1
                if opened.staged_to < batch_start:
                    streams.append(opened)
                    if not opened.is_unsaved:
                        opened.is_unsaved = True
                        newly_unsaved.append(opened)
                opened.staged_to = position
                if opened.has_deferred_ack:
                    opened.note_logged()
                    self.forget_deferred(opened)
                opened.positions.append(position << 24 | length)
                seqs.append(seq)
                position += RECORD_HEADER_BYTES + length
        finally:
            if batch is not None:
                batch.take_in(position, len(seqs) - staged_count)
        return seqs

    def defer(self, opened: OpenStream) -> None:
        """Its `first` is about to move: that is written when it costs nothing, or must be."""
        if not opened.has_deferred_ack:
            opened.note_logged()
            opened.has_deferred_ack = True
        self.deferred[opened] = None

    def forget_deferred(self, opened: OpenStream) -> None:
        """A record with the whole image of the stream makes its row needless."""
        self.deferred.pop(opened, None)
        opened.has_deferred_ack = False

    @property
    def waiting_event_count(self) -> int:
        return len(self._events)

    def note(self, event: bytes) -> None:
        """It goes with the next batch. If too many wait, it is left out, and that is noted."""
        if self._dropped_event_count or len(self._events) >= limits.waiting_event_count_max:
            self._dropped_event_count += 1
        else:
            self._events.append(event)

    def take(self, *, must_acknowledge: bool) -> StagedBatch | None:
        """The next batch to write, closed; None if nothing waits for the disk."""
        if self._events:
            self._make_room_for_events(must_all=must_acknowledge)
        # If they are waited for, they join what is staged even while closed batches go first.
        if must_acknowledge or not self._closed:
            self._stage_acknowledgements(must_all=must_acknowledge)
        if not self._closed:
            if self._batch is None:
                return None
            self._close()
        return self._closed.popleft()

    def finish(self, batch: StagedBatch) -> None:
        self._closed_bytes -= batch.byte_count

    def _is_segment_full_of_records(self) -> bool:
        return self._segment_record_count >= limits.segment_record_count_max

    def _close(self) -> None:
        batch = self._batch
        assert batch is not None
        self._batch = None
        if self._events:
            self._stage_events(batch)
        self._chain = batch.close(self._chain, self.time_ms, has_images=self.wants_images)
        self.end = batch.end
        self._segment_record_count += batch.record_count
        self._closed_bytes += batch.byte_count
        self._closed.append(batch)

    def _make_room_for_events(self, *, must_all: bool) -> None:
        """They need a batch of their own only if nothing else is written for long."""
        is_due = must_all or len(self._events) >= limits.event_batch_count
        if self._batch is None and not self._closed and is_due:
            # Without room in the log they wait, and in the end are left out.
            with suppress(StorageError):
                self.room(RECORD_HEADER_BYTES + EVENT_ROW_BYTES)

    def _stage_events(self, batch: StagedBatch) -> None:
        """As many as fit. They stand behind all else in the batch: what they tell of is durable no
        later than they are, and what others did because of it comes in a later batch."""
        free = batch.length_max - batch.length - RECORD_HEADER_BYTES
        count = min(len(self._events), max(0, free // EVENT_ROW_BYTES))
        if not count:
            return
        rows = self._events[:count]
        del self._events[:count]
        if self._dropped_event_count and not self._events:
            self._events.append(
                encode_event(EventKind.DROPPED, self.time_ms, first=self._dropped_event_count)
            )
            self._dropped_event_count = 0
        batch.add_events(rows, self.time_ms)

    def _stage_acknowledgements(self, *, must_all: bool) -> None:
        """Put deferred acknowledgements where they cost nothing; all of them if they must go."""
        waiting = len(self.deferred)
        if not waiting:
            return
        must_all = (
            must_all
            or waiting > limits.deferred_ack_count_max
            or (self._begins_segment and self._batch is not None)
        )
        self._begins_segment = False
        batch = self._batch
        if batch is None:
            if not must_all:
                return
            try:
                batch = self.room(RECORD_HEADER_BYTES + ACK_ROW_BYTES)
            except StorageError:
                # No room in the log: they wait. Losing them means delivering again, no more.
                return
        free = batch.length_max - batch.length
        count = min(waiting, ack_row_room(free if must_all else min(free, batch.padding)))
        if count:
            streams = list(islice(self.deferred, count))
            batch.add_acknowledgements(streams, self.time_ms)
            for opened in streams:
                del self.deferred[opened]
                opened.has_deferred_ack = False


def ack_row_room(length: int) -> int:
    """How many rows of acknowledgements fit into `length` bytes."""
    return max(0, (length - RECORD_HEADER_BYTES) // ACK_ROW_BYTES)
