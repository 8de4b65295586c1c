"""One open queue: as the disk has it, and as it is staged. Pure.

- `state` is the last that was made durable; the index has where its unread entries are.
- `first`, `next`, `is_blocked` and `cursors` are as staged: what the next command meets.
- What is staged is in `staged`, and moves into a batch when that is taken.
- An entry of the index can be read once it is below `state.next`.
"""

from dataclasses import dataclass, field

from syncline.errors import LimitExceededError, QuotaExceededError
from syncline.storage.base import Entry, EntryKind, Snapshot, StreamState
from syncline.storage.journal.format import NUMBER_MAX, QueueState
from syncline.storage.journal.index import EntryIndex
from syncline.storage.journal.recovery import Recovered
from syncline.values import limits
from syncline.values.ids import StreamId

# What an entry costs beside its payload while it waits: its numbers and its share of a state line.
ENTRY_COST_BYTES = 128


@dataclass(slots=True)
class Staged:
    """What waits for the next batch."""

    # Make the queue; what the disk has under its id, if it has anything, is replaced.
    creates: bool = False
    replaced: "OpenQueue | None" = None
    entries: list[Entry] = field(default_factory=list[Entry])
    snapshot: Snapshot | None = None
    # None: dropped.
    cursors: dict[bytes, int | None] = field(default_factory=dict[bytes, int | None])
    record_count: int = 0
    byte_count: int = 0
    waits_for_disk: bool = False

    def add(self, byte_count: int = 0, *, waits_for_disk: bool = True) -> None:
        self.record_count += 1
        self.byte_count += byte_count
        self.waits_for_disk |= waits_for_disk


class OpenQueue:
    """See the module."""

    __slots__ = (
        "covered_seq",
        "cursor_line_count",
        "cursors",
        "first",
        "index",
        "is_blocked",
        "log_bytes",
        "log_line_count",
        "needs_newline",
        "next",
        "staged",
        "stale_names",
        "state",
        "stream",
    )

    def __init__(self, stream: StreamId, state: QueueState) -> None:
        self.stream = stream
        self.state = state
        self.index = EntryIndex()
        self.first = state.first
        self.next = state.next
        self.is_blocked = state.is_blocked
        self.covered_seq = state.snapshot_seq
        self.cursors: dict[bytes, int] = {}
        self.cursor_line_count = 0
        self.log_line_count = 0
        self.log_bytes = 0
        self.needs_newline = False
        self.stale_names: tuple[str, ...] = ()
        self.staged = Staged()

    @classmethod
    def recovered(cls, stream: StreamId, found: Recovered) -> "OpenQueue":
        queue = cls(stream, found.state)
        queue.index = found.index
        queue.cursors = found.cursors.positions
        queue.cursor_line_count = found.cursors.line_count
        # A queue.log that ends in something unreadable is not written behind but replaced.
        queue.log_line_count = found.log.line_count if found.log.is_certain else NUMBER_MAX
        queue.log_bytes = found.log.size
        queue.needs_newline = found.needs_newline
        queue.stale_names = found.stale_names
        return queue

    @property
    def is_changed(self) -> bool:
        return self.staged.record_count > 0

    @property
    def unread_count(self) -> int:
        return self.next - self.first

    def stream_state(self) -> StreamState:
        return StreamState(
            self.state.kind, self.first, self.next, self.state.quota, self.is_blocked
        )

    def check_append(self, payload: bytes, now_ms: int) -> None:
        """Raises LimitExceededError or QuotaExceededError; the first of those stages a marker."""
        check_limit("an entry in bytes", len(payload), limits.entry_bytes_max)
        check_limit("a sequence", self.next, limits.sequence_max)
        check_limit("the number of unread entries", self.unread_count + 1, limits.unread_count_max)
        check_time(now_ms)
        quota = self.state.quota
        if not self.is_blocked and not (quota and self.unread_count >= quota):
            return
        if not self.is_blocked:
            self.append(Entry(self.next, now_ms, b"", EntryKind.QUOTA_MARKER))
        raise QuotaExceededError(str(self.stream), quota)

    def append(self, entry: Entry) -> None:
        self.staged.entries.append(entry)
        self.staged.add(len(entry.payload) + ENTRY_COST_BYTES)
        self.next = entry.seq + 1
        self.is_blocked = entry.kind is EntryKind.QUOTA_MARKER

    def truncate_before(self, seq: int) -> None:
        check_limit("a position", seq, self.next)
        if seq > self.first:
            self.first = seq
            self.is_blocked = self.is_blocked and seq < self.next
            self.staged.add(waits_for_disk=False)

    def check_snapshot(self, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        check_limit("a snapshot in bytes", len(payload), limits.snapshot_bytes_max)
        check_time(now_ms)
        if not self.covered_seq <= up_to_seq < self.next:
            raise ValueError(
                f"a snapshot covers {self.covered_seq} to {self.next - 1}, not {up_to_seq}"
            )

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.staged.snapshot = snapshot
        self.staged.add(len(snapshot.payload) + ENTRY_COST_BYTES)
        self.covered_seq = snapshot.up_to_seq

    def move_cursor(self, name: bytes, seq: int) -> None:
        check_limit("a cursor name in bytes", len(name), limits.cursor_name_bytes_max)
        check_limit("a position", seq, self.next)
        if seq < 0:
            raise ValueError(f"a position is 0 or more, not {seq}")
        now = self.cursors.get(name)
        if now is None:
            count = len(self.cursors) + 1
            check_limit("the number of cursors", count, limits.cursors_per_stream_max)
        elif seq < now:
            raise ValueError(f"the cursor is at {now}; drop it before it goes back to {seq}")
        self.cursors[bytes(name)] = seq
        self._stage_cursor(bytes(name), seq)

    def drop_cursor(self, name: bytes) -> None:
        if self.cursors.pop(name, None) is not None:
            self._stage_cursor(bytes(name), None)

    def _stage_cursor(self, name: bytes, seq: int | None) -> None:
        self.staged.cursors[name] = seq
        self.staged.add(len(name) + ENTRY_COST_BYTES)


def check_limit(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise LimitExceededError(what, value, limit)


def check_time(now_ms: int) -> None:
    if not 0 <= now_ms <= NUMBER_MAX:
        raise ValueError(f"a time is in milliseconds since 1970, not {now_ms}")
