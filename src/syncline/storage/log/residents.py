"""The streams that are in memory, and how a stream gets in and out.

In: when it is first changed, from its slot in the table, or used, from what replay found of it.
Out: once idle, when more are in memory than are worth keeping. An idle stream is 64 bytes of the
table and no object.

Slots follow the log at leisure. A stream whose slot is behind is *unsaved*, and stays in memory
until it is saved: when it is let go of, or before a segment that holds its last records is sealed.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from syncline.errors import CorruptionError, UnknownQueueError
from syncline.storage.base import Damage
from syncline.storage.log.format import SLOT_DELETED, SLOT_STATE_OFFSET, SLOT_USED
from syncline.storage.log.opening import OpenedLog
from syncline.storage.log.staging import StagedBatch
from syncline.storage.log.streams import OpenStream, Tail
from syncline.values.ids import STREAM_ID_BYTES, StreamId

# Kept though idle, so that a busy stream is not looked up again for each message.
IDLE_STREAMS_MAX: Final = 65_536
_WALK_SLOTS: Final = 4096


class Residents:
    """All streams in memory, by id."""

    def __init__(self, opened: OpenedLog, report: Callable[[Damage], None]) -> None:
        self._table = opened.table
        self._segments = opened.segments
        self._report = report
        # The log is durable up to here: slots may follow it.
        self._durable_end = opened.replay.end
        self._unsaved: dict[OpenStream, None] = {}
        self._settling: deque[OpenStream] = deque()
        self._settling_to = 0
        self.is_settling = False
        # The table is true for all records below.
        self.settled_to = 0
        self._sweep: Iterator[OpenStream] = iter(())
        self.tails = opened.replay.tails
        self.by_id: dict[bytes, OpenStream] = {}
        self.with_cursors: dict[OpenStream, None] = {}
        self.tails.report = report

    def find(self, stream: bytes) -> OpenStream | None:
        """The stream, brought into memory; None if there is none.

        One that is deleted but whose deletion is not finished is found, marked as deleted.
        Raises CorruptionError if its slot is damaged and the log does not know better.
        """
        opened = self.by_id.get(stream) or self.look(stream)
        if opened is not None:
            self.by_id[opened.stream] = opened
        return opened

    def look(self, stream: bytes) -> OpenStream | None:
        """As `find`, for whoever changes nothing: one at rest stays out of memory, so that a look
        at each of a million does not fill it."""
        opened = self.by_id.get(stream)
        if opened is not None:
            return opened
        tail = self.tails.pop(stream)
        index = self._table.find(stream)
        if tail is not None:
            opened = self._open_tail(stream, index, tail)
            if opened.is_deleted:
                return None
            self.by_id[stream] = opened
            if opened.cursors:
                self.with_cursors[opened] = None
            return opened
        if index < 0:
            return None
        slot = self._table.read(index)
        if slot.state == SLOT_DELETED:
            return None
        opened = OpenStream(stream, index)
        opened.slot_generation = self._table.generation_number
        opened.born, opened.first, opened.next = slot.born, slot.first, slot.next
        opened.quota, opened.flags = slot.quota, slot.flags
        return opened

    def load(self, stream: bytes) -> OpenStream:
        """The stream, in memory. Raises UnknownQueueError."""
        return _known(stream, self.find(stream))

    def seen(self, stream: bytes) -> OpenStream:
        """The stream, as `look` gives it. Raises UnknownQueueError."""
        return _known(stream, self.look(stream))

    def load_to_delete(self, stream: bytes) -> OpenStream:
        """As `load`. Of a stream whose slot is damaged its name is enough for that, and nothing
        else is known of it."""
        try:
            return self.load(stream)
        except CorruptionError:
            opened = OpenStream(stream, self._table.find(stream))
            opened.slot_generation = self._table.generation_number
            self.add(opened)
            return opened

    def add(self, opened: OpenStream) -> None:
        self.by_id[opened.stream] = opened

    def ids(self) -> Iterator[StreamId]:
        """Every stream. Streams created or deleted meanwhile may or may not be among them."""
        seen: set[bytes] = set()
        for opened in list(self.by_id.values()):
            seen.add(opened.stream)
            if not opened.is_deleted:
                yield StreamId(opened.stream)
        for stream in list(self.tails):
            if stream not in seen:
                seen.add(stream)
                if self.find(stream) is not None:
                    yield StreamId(stream)
        for image in self._table.used_images(_WALK_SLOTS):
            if image[:STREAM_ID_BYTES] not in seen:
                yield StreamId(image[:STREAM_ID_BYTES])

    def finish(self, batch: StagedBatch) -> None:
        """A batch is durable: slots of its streams may change, streams that are done with may go.

        Slots need not change at once, for the log knows better: a stream is saved when it is let go
        of, and all are before a segment that they need is sealed. A busy stream is thus saved once
        for many messages (bench: log).
        """
        self._durable_end = batch.end
        self._unsaved |= dict.fromkeys(batch.newly_unsaved)
        if batch.deleted_count or len(self.by_id) > IDLE_STREAMS_MAX:
            for opened in batch.streams:
                self.let_go(opened)
        for opened, image in batch.images:
            self.write_slot(opened, image)
            opened.saved_to = batch.end

    def save_some(self, count: int) -> bool:
        """Write the slots of so many streams; True once no stream is left that could be saved."""
        durable_end = self._durable_end
        for opened in list(islice(self._unsaved, count)):
            if opened.staged_to < durable_end:
                self._save(opened)
            else:
                # To the back: it must not keep those behind it from their turn.
                del self._unsaved[opened]
                self._unsaved[opened] = None
        return all(opened.staged_to >= durable_end for opened in islice(self._unsaved, count))

    def settle(self, position: int, count: int) -> None:
        """Bring the table up to date with all records below `position`, so many slots at a time.

        It is once `settled_to` says so. A stream with a record in every batch is never seen at
        rest: while `is_settling`, batches have to carry the images of the slots they change.
        """
        if not self.is_settling:
            if position <= self.settled_to:
                return
            self.is_settling = True
            self._settling_to = position
            self._settling = deque(self._unsaved)
        self.settle_some(count)

    def settle_some(self, count: int) -> None:
        """Go on with what `settle` has begun."""
        for _ in range(min(count, len(self._settling))):
            opened = self._settling.popleft()
            if not opened.is_unsaved or opened.saved_to >= self._settling_to:
                continue
            if opened.staged_to >= self._durable_end:
                self._settling.append(opened)
            else:
                self._save(opened)
        if not self._settling:
            self.is_settling = False
            self.settled_to = self._settling_to

    def _save(self, opened: OpenStream) -> None:
        """Write the slot of a stream at rest: all that is known of it is durable."""
        self.write_slot(opened, opened.image(self._durable_end))
        opened.saved_to = self._durable_end
        opened.is_unsaved = False
        self._unsaved.pop(opened, None)

    def write_slot(self, opened: OpenStream, image: bytes) -> None:
        """Bring the table up to date with a record that is durable."""
        table = self._table
        is_deleted = image[SLOT_STATE_OFFSET] == SLOT_DELETED
        if (
            opened.slot < 0
            or opened.slot_generation != table.generation_number
            # It was deleted in between, and another stream has its slot.
            or not table.holds(opened.slot, opened.stream)
        ):
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

    def let_go(self, opened: OpenStream) -> None:
        """Forget a stream that has nothing left but its slot, if there are many or it is gone."""
        if not (opened.is_deleted or len(self.by_id) > IDLE_STREAMS_MAX):
            return
        if self.by_id.get(opened.stream) is not opened:
            # It is gone; there may be another of the same id by now.
            return
        if opened.is_idle(self._durable_end):
            if opened.is_unsaved:
                self._save(opened)
            self.by_id.pop(opened.stream, None)

    def apply_tails(self, count: int) -> None:
        """Bring replayed streams into the table; those with entries in the log stay in memory."""
        for stream in list(islice(self.tails, count)):
            opened = self.find(stream)
            if opened is None or opened.is_unsaved:
                continue
            if opened.is_idle(self._durable_end):
                del self.by_id[stream]

    def start_sweep(self) -> None:
        """Segments were sealed: positions in them are to be forgotten, a few streams at a time."""
        self._sweep = iter(list(self.by_id.values()))

    def sweep(self, count: int, live_start: int) -> None:
        for opened in islice(self._sweep, count):
            opened.forget_below(live_start)
            self.let_go(opened)

    def _open_tail(self, stream: bytes, index: int, tail: Tail) -> OpenStream:
        slot = None
        if index >= 0:
            try:
                slot = self._table.read(index)
            except CorruptionError:
                # A torn slot: the log since the checkpoint holds the whole image of it.
                slot = None
        opened, missing = tail.open(stream, index, slot)
        if index >= 0:
            opened.slot_generation = self._table.generation_number
        if tail.has_no_image and (slot is None or slot.state != SLOT_USED):
            reason = (
                "a slot cannot be found or fails its check, and the log does not say what it was"
            )
            self._report(Damage(*self._table.where(index), reason, StreamId(stream)))
        if missing:
            number, offset = divmod(tail.applied, self._segments.segment_bytes)
            self._report(
                Damage(
                    self._segments.path(number),
                    offset,
                    "entries behind this one are missing",
                    StreamId(stream),
                    opened.next - missing,
                    missing,
                )
            )
        self.write_slot(opened, opened.image(self._durable_end))
        return opened


def _known(stream: bytes, opened: OpenStream | None) -> OpenStream:
    if opened is None or opened.is_deleted:
        raise UnknownQueueError(str(StreamId(stream)))
    return opened
