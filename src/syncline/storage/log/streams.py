"""What the store keeps in memory of a stream, and how it comes from slot and log.

A stream has an `OpenStream` only while something of it is staged or in the live log; an idle one
is 64 bytes of the table and no object. `Tail` is what replay found of a stream: positions of its
entries in the live log and its last image. It becomes an `OpenStream` when the stream is first
used, or when the store gets round to it: a start does not wait for a hundred thousand lookups.
"""

from collections import deque
from typing import Final

from syncline.storage.base import StreamKind, StreamState
from syncline.storage.log.format import (
    HAS_SNAPSHOT,
    IS_BLOCKED,
    IS_DOCUMENT,
    SLOT_DELETED,
    SLOT_USED,
    UNREAD_BITS,
    UNREAD_MASK,
    Slot,
    encode_slot,
)
from syncline.values import limits

# A place in the log packs the position of a record and the length of its payload into one number.
LENGTH_BITS: Final = 24
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
# Stands for an entry that was lost to damage: no record has position 0.
LOST: Final = 0
# So many places of a stream are always a list. More may be a deque, which lets go of its first at
# no cost; one for each stream would take seven times the memory of a short list.
SHORT_PLACE_COUNT: Final = 512
_LONG_PLACE_COUNT: Final = 2 * SHORT_PLACE_COUNT
# More lost entries in a row than this are not kept one by one.
LOST_COUNT_MAX: Final = 1 << 16

SLOT_FLAGS: Final = HAS_SNAPSHOT | IS_BLOCKED | IS_DOCUMENT


class OpenStream:
    """A stream in memory. `positions` are the places of its last entries, without gap."""

    __slots__ = (
        "born",
        "cursor_position",
        "cursors",
        "first",
        "flags",
        "has_deferred_ack",
        "is_deleted",
        "is_unsaved",
        "logged_first",
        "logged_flags",
        "next",
        "positions",
        "quota",
        "saved_to",
        "slot",
        "slot_generation",
        "snapshot_places",
        "snapshot_seq",
        "staged_to",
        "stream",
    )

    def __init__(self, stream: bytes, slot: int) -> None:
        self.stream = stream
        # Index of its slot, and in which generation of the table; -1 if not known.
        self.slot = slot
        self.slot_generation = -1
        self.flags = 0
        self.first = 1
        self.next = 1
        self.quota = 0
        self.born = 0
        self.is_deleted = False
        self.positions: list[int] | deque[int] = []
        # Places of snapshots in the live log, oldest first: the newest that is durable counts,
        # those behind it are staged. Empty if it is in a run or there is none.
        self.snapshot_places: tuple[int, ...] = ()
        # What the newest snapshot covers; -1 until it was looked up.
        self.snapshot_seq = -1
        self.cursors: dict[bytes, int] | None = None
        # Lowest position of a record that the cursors need.
        self.cursor_position = 0
        self.has_deferred_ack = False
        # What the log says while an acknowledgement is deferred: the slot must not be ahead of it.
        self.logged_first = 1
        self.logged_flags = 0
        # Whether records, staged or durable, changed it since its slot was written, and up to which
        # position of the log the slot is true.
        self.is_unsaved = False
        self.saved_to = 0
        # Position of its last record, staged or durable: what tells whether a batch holds one.
        self.staged_to = 0

    @property
    def log_base(self) -> int:
        """Sequence of the first entry in `positions`; entries below are in runs."""
        return self.next - len(self.positions)

    def is_idle(self, durable_end: int) -> bool:
        """Nothing is known of it that the table does not know, or can be told."""
        return not (
            self.positions
            or self.staged_to >= durable_end
            or self.has_deferred_ack
            or self.snapshot_places
            or self.cursors
        )

    def state(self) -> StreamState:
        kind = StreamKind.DOCUMENT if self.flags & IS_DOCUMENT else StreamKind.QUEUE
        return StreamState(kind, self.first, self.next, self.quota, bool(self.flags & IS_BLOCKED))

    def move_first(self, seq: int) -> None:
        """Let go of entries below `seq`, which lies between `first` and `next`."""
        self.first = seq
        next_seq = self.next
        self.drop_places(len(self.positions) - (next_seq - seq))
        if seq == next_seq:
            self.flags &= ~IS_BLOCKED

    def places(self, start: int, count: int) -> list[int]:
        """Up to so many of `positions`, from the one at `start` on."""
        positions = self.positions
        if isinstance(positions, list):
            return positions[start : start + count]
        return [positions[index] for index in range(start, min(start + count, len(positions)))]

    def drop_places(self, count: int) -> None:
        """Forget the first of `positions`; none if `count` is below 1."""
        if count <= 0:
            return
        positions = self.positions
        if isinstance(positions, list):
            if len(positions) - count <= _LONG_PLACE_COUNT:
                del positions[:count]
                return
            self.positions = positions = deque(positions)
        for _ in range(count):
            positions.popleft()
        if len(positions) <= SHORT_PLACE_COUNT:
            self.positions = list(positions)

    def forget_below(self, position: int) -> None:
        """Entries below this log position are in runs by now."""
        lowest = position << LENGTH_BITS
        count = 0
        for place in self.positions:
            if place >= lowest:
                break
            count += 1
        self.drop_places(count)
        if self.snapshot_places and self.snapshot_places[0] < lowest:
            self.snapshot_places = tuple(p for p in self.snapshot_places if p >= lowest)

    def durable_snapshot_place(self, durable_end: int) -> int:
        """Place of the newest durable snapshot in the live log, or 0; older ones are forgotten."""
        highest = durable_end << LENGTH_BITS
        durable = [place for place in self.snapshot_places if place < highest]
        if len(durable) > 1:
            self.snapshot_places = self.snapshot_places[len(durable) - 1 :]
        return durable[-1] if durable else 0

    def note_logged(self) -> None:
        """All that is known of the stream now is staged for the log, or in it."""
        self.logged_first = self.first
        self.logged_flags = self.flags

    def image(self, applied: int) -> bytes:
        """The slot as the log has it, justified by records below `applied`."""
        if self.is_deleted:
            return encode_slot(self.stream, 0, 0, 0, applied, 0, 0, SLOT_DELETED)
        # A deferred acknowledgement is not in the log yet: the slot must not be ahead of it.
        is_ahead = self.has_deferred_ack
        return encode_slot(
            self.stream,
            self.born,
            self.logged_first if is_ahead else self.first,
            self.next,
            applied,
            self.quota,
            self.logged_flags if is_ahead else self.flags,
            SLOT_USED,
        )


class Tail:
    """What the live log says of one stream."""

    __slots__ = (
        "applied",
        "born",
        "cursor_position",
        "cursors",
        "is_deleted",
        "kind",
        "last_unread",
        "log_next",
        "positions",
        "quota",
        "snapshot_place",
    )

    def __init__(self) -> None:
        self.positions: list[int] = []
        # Sequence behind the last of `positions`.
        self.log_next = 0
        self.last_unread = 0
        # -1 until a record with the whole image was seen: rows of acknowledgements lack it.
        self.kind = -1
        self.quota = 0
        self.applied = 0
        self.born = 0
        self.is_deleted = False
        self.snapshot_place = 0
        self.cursors: dict[bytes, int] | None = None
        self.cursor_position = 0

    @property
    def has_no_image(self) -> bool:
        """Acknowledgements are all that the log has of it."""
        return self.kind < 0

    def begin_anew(self) -> None:
        """The stream was created or deleted: what came before concerns another of the same id."""
        self.positions = []
        self.log_next = 0
        self.snapshot_place = 0
        self.cursors = None
        self.cursor_position = 0

    def add_entry(self, seq: int, place: int) -> int:
        """Take an entry in; return how many before it are missing."""
        missing = seq - self.log_next if self.positions else 0
        if missing < 0 or missing > LOST_COUNT_MAX:
            # Records in between are lost with the reason for the jump; what follows counts.
            self.positions = []
            missing = max(missing, 0)
        elif missing:
            self.positions.extend([LOST] * missing)
        self.positions.append(place)
        self.log_next = seq + 1
        return missing

    def open(self, stream: bytes, index: int, slot: Slot | None) -> tuple[OpenStream, int]:
        """The stream as slot and log together say; and how many entries at its end are missing."""
        opened = OpenStream(stream, index)
        is_slot_newer = slot is not None and slot.applied >= self.applied
        if slot is not None and slot.state == SLOT_USED:
            opened.born, opened.quota, opened.flags = slot.born, slot.quota, slot.flags
            opened.first, opened.next = slot.first, slot.next
        if is_slot_newer:
            opened.is_deleted = slot is not None and slot.state == SLOT_DELETED
        else:
            self._apply_image(opened, slot)
        missing_count = 0
        if self.positions and not opened.is_deleted:
            missing_count = opened.next - self.log_next
            if missing_count < 0 or missing_count > LOST_COUNT_MAX:
                self.positions = []
            else:
                self.positions.extend([LOST] * missing_count)
            opened.positions = self.positions
            opened.move_first(opened.first)
        if not opened.is_deleted:
            opened.snapshot_places = (self.snapshot_place,) if self.snapshot_place else ()
            opened.cursors = self.cursors
            opened.cursor_position = self.cursor_position
        return opened, max(missing_count, 0)

    def _apply_image(self, opened: OpenStream, slot: Slot | None) -> None:
        opened.is_deleted = self.is_deleted
        opened.next = (self.last_unread >> UNREAD_BITS) + 1
        # Not below 1, whatever the record says: numbers from disk are not trusted.
        opened.first = max(1, opened.next - (self.last_unread & UNREAD_MASK))
        if not self.has_no_image:
            opened.flags = self.kind & SLOT_FLAGS
            opened.quota = self.quota
        elif slot is None or slot.state != SLOT_USED:
            # Only acknowledgements are left of it and its slot is unreadable.
            opened.quota = limits.queue_quota_default
        if opened.first == opened.next:
            opened.flags &= ~IS_BLOCKED
        if self.born:
            opened.born = self.born
