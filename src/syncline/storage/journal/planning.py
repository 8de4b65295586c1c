"""What a batch will do to the files of one queue. Pure: it is carried out by `writer`.

- A message goes to the write file. If that is full and is the read file too, a new one is begun; so
  there are never more than two, however long a reader stays away.
- A queue that was emptied lets go of a message file that has grown; a small one is kept, since most
  queues are emptied after each message.
- The state line comes last. If queue.log has enough lines it is replaced instead of added to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from syncline.storage.journal.cursors import encode_cursors, is_mostly_history
from syncline.storage.journal.format import (
    QueueState,
    encode_message,
    encode_snapshot,
    encode_state,
)
from syncline.storage.journal.index import Place
from syncline.storage.journal.layout import (
    cursor_name,
    message_name,
    snapshot_file_id,
    snapshot_name,
)
from syncline.storage.journal.positions import advanced, named_files
from syncline.storage.journal.queue import OpenQueue, Staged
from syncline.storage.journal.state import FRESH_LINE_COUNT, fresh_lines
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId

# What an emptied queue may keep in its message file.
EMPTIED_FILE_BYTES_MAX: Final = 16 * 1024


class Action(Enum):
    CREATE = "create"
    CHANGE = "change"
    # In one step what was there is gone and a new queue of the same id begins.
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes for one file of a folder; at offset 0 the file is made."""

    name: str
    offset: int
    pieces: tuple[bytes, ...]

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """What to do in a queue's folder."""

    action: Action
    stream: StreamId
    folder: str
    writes: tuple[FileWrite, ...] = ()
    # Bytes for queue.log: behind what it has, or in place of it.
    log: bytes = b""
    log_offset: int = 0
    replaces_log: bool = False
    backs_up: bool = False
    # Wanted no more once the state line is durable. They need not exist.
    removes: tuple[str, ...] = ()
    # What a replaced queue leaves behind goes, but not these.
    keeps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A plan, and what the queue is once it was carried out."""

    plan: QueuePlan
    queue: OpenQueue
    state: QueueState
    log_line_count: int
    log_bytes: int
    cursor_line_count: int
    needs_newline: bool
    # Readers may hold on to them until the batch is finished.
    removes_late: tuple[str, ...]


class _Planner:
    def __init__(
        self,
        queue: OpenQueue,
        replaced: OpenQueue | None,
        options: StoreOptions,
        new_file_id: Callable[[], str],
    ) -> None:
        self.queue = queue
        self.state: QueueState = queue.state
        self.needs_newline = queue.needs_newline
        self._taken_names = named_files((replaced or queue).state)
        self.pieces: dict[str, tuple[int, list[bytes]]] = {}
        self.cursor_line_count = queue.cursor_line_count
        self._options = options
        self._new_file_id = new_file_id
        if replaced is not None and self._taken_names & named_files(self.state):
            # What is in that file is of the queue before, and must not be read as of this one.
            file_id = self.unused_file_id()
            self.state = replace(self.state, read_file=file_id, write_file=file_id)

    def unused_file_id(self) -> str:
        """Chance may repeat itself; a file in use must not be begun again."""
        while True:
            file_id = self._new_file_id()
            used = named_files(self.state) | self._taken_names
            if not used & {message_name(file_id), snapshot_name(file_id), cursor_name(file_id)}:
                return file_id

    def write(self, name: str, offset: int, data: bytes) -> None:
        self.pieces.setdefault(name, (offset, []))[1].append(data)

    def append_messages(self, staged: Staged) -> None:
        if self.needs_newline and staged.entries:
            self._append(b"\n")
            self.needs_newline = False
        for entry in staged.entries:
            state = self.state
            is_full = entry.seq - state.write_first >= self._options.file_message_count_max
            if is_full and state.has_one_file:
                self.begin_write_file(entry.seq)
            line = encode_message(self.queue.stream, entry)
            place = Place(entry.seq, self.state.write_byte, len(line), entry.time_ms, entry.kind)
            self._append(line)
            self.state = replace(self.state, next=entry.seq + 1)
            self.queue.index.append(place)

    def begin_write_file(self, write_first: int) -> None:
        self.needs_newline = False
        self.state = replace(
            self.state,
            write_file=self.unused_file_id(),
            write_first=write_first,
            write_byte=0,
            next=write_first,
        )

    def _append(self, data: bytes) -> None:
        state = self.state
        self.write(message_name(state.write_file), state.write_byte, data)
        self.state = replace(state, write_byte=state.write_byte + len(data))

    def advance(self, first: int) -> None:
        self.state = advanced(self.state, first, self.queue.index)
        is_emptied = first == self.state.next
        if is_emptied and self.state.write_byte > EMPTIED_FILE_BYTES_MAX:
            self.begin_write_file(first)
            self.state = advanced(self.state, first, self.queue.index)

    def put_snapshot(self, staged: Staged) -> None:
        if staged.snapshot is not None:
            file_id = self.unused_file_id()
            data = encode_snapshot(self.queue.stream, staged.snapshot)
            self.write(snapshot_name(file_id), 0, data)
            self.state = replace(
                self.state, snapshot_file=file_id, snapshot_seq=staged.snapshot.up_to_seq
            )

    def write_cursors(self, staged: Staged) -> None:
        if not staged.cursors:
            return
        state, cursors = self.state, self.queue.cursors
        line_count = self.cursor_line_count + len(staged.cursors)
        if not cursors:
            self.cursor_line_count = 0
            self.state = replace(state, cursor_file=None, cursor_byte=0)
        elif state.cursor_file is None or is_mostly_history(line_count, len(cursors)):
            file_id = self.unused_file_id()
            data = encode_cursors(self.queue.stream, cursors)
            self.write(cursor_name(file_id), 0, data)
            self.cursor_line_count = len(cursors)
            self.state = replace(state, cursor_file=file_id, cursor_byte=len(data))
        else:
            data = encode_cursors(self.queue.stream, staged.cursors)
            self.write(cursor_name(state.cursor_file), state.cursor_byte, data)
            self.cursor_line_count = line_count
            self.state = replace(state, cursor_byte=state.cursor_byte + len(data))

    def file_writes(self) -> tuple[FileWrite, ...]:
        """What was begun and read to its end in the same batch is not written at all."""
        named = named_files(self.state)
        return tuple(
            FileWrite(name, offset, tuple(pieces))
            for name, (offset, pieces) in self.pieces.items()
            if name in named
        )


def plan_change(
    queue: OpenQueue, folder: str, options: StoreOptions, new_file_id: Callable[[], str]
) -> PlannedChange:
    """Take what is staged for a queue. New entries are in its index from here on."""
    staged, queue.staged = queue.staged, Staged()
    planner = _Planner(queue, staged.replaced, options, new_file_id)
    planner.append_messages(staged)
    planner.advance(queue.first)
    planner.put_snapshot(staged)
    planner.write_cursors(staged)
    state = replace(planner.state, is_blocked=queue.is_blocked)
    action = _action(staged)
    replaces_log = staged.creates or queue.log_line_count >= options.state_line_count_max
    lines = (fresh_lines if replaces_log else encode_state)(queue.stream, state)
    gone = set[str]()
    if action is Action.CHANGE:
        gone = (named_files(queue.state) | set(queue.stale_names)) - named_files(state)
    late = {name for name in gone if snapshot_file_id(name) is not None}
    plan = QueuePlan(
        action,
        queue.stream,
        folder,
        planner.file_writes(),
        log=lines,
        log_offset=0 if replaces_log else queue.log_bytes,
        replaces_log=replaces_log,
        backs_up=action is Action.CHANGE and replaces_log and queue.log_bytes > 0,
        removes=tuple(sorted(gone - late)),
        keeps=frozenset(named_files(state)),
    )
    return PlannedChange(
        plan,
        queue,
        state,
        FRESH_LINE_COUNT if replaces_log else queue.log_line_count + 1,
        plan.log_offset + len(lines),
        planner.cursor_line_count,
        planner.needs_newline,
        tuple(sorted(late)),
    )


def finish_change(change: PlannedChange) -> None:
    """Make visible what is durable now."""
    queue = change.queue
    queue.state = change.state
    queue.log_line_count = change.log_line_count
    queue.log_bytes = change.log_bytes
    queue.cursor_line_count = change.cursor_line_count
    queue.needs_newline = change.needs_newline
    queue.stale_names = ()
    queue.index.truncate_before(change.state.first)


def _action(staged: Staged) -> Action:
    if staged.replaced is not None:
        return Action.REPLACE
    return Action.CREATE if staged.creates else Action.CHANGE
