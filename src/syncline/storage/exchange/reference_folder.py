"""Folders of the reference router: a journal per queue, five parts to a path.

    <root>/ab/cd/ef/gh/<24 characters>/
        queue_state.<id>.log         its last line is the state; with `.bak` behind it, the truth
        messages.<journal id>.log    the read journal, and the write journal if it is another one

Read by its own rules where those lose nothing that can be kept:

- An interim backup replaces the state file: a crash hit the router while it was compacting.
- Of the state file the last 512 bytes are read. If the last line does not parse, the one before
  counts.
- What stands in a journal beyond the recorded position was never acknowledged, and is left.
- A missing journal costs what was in it. Without a usable state every whole line of the journals is
  taken: a message that was read may come again, none is lost.
- A line that is no message is counted and skipped; the queue goes on behind it.
- A queue that could not be written to stays so: its quota marker comes last, made anew if it is
  lost.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from syncline.errors import ForeignFolderError
from syncline.storage.base import Entry, EntryKind, Snapshot, Store, StreamKind
from syncline.storage.exchange.reference import (
    ReferenceMessage,
    ReferenceState,
    parse_reference_message,
    parse_reference_state,
    reference_payload,
)
from syncline.storage.exchange.report import ExchangeReport, Progress, no_progress
from syncline.storage.exchange.transfer import StreamHead, copy_all
from syncline.storage.files import File, Files
from syncline.storage.journal.folders import walk
from syncline.storage.journal.format import MESSAGE_LINE_BYTES_MAX
from syncline.storage.journal.layout import ROOT_NAME, Layout
from syncline.storage.journal.scan import BadLine, lines
from syncline.values import limits
from syncline.values.ids import StreamId

REFERENCE_LAYOUT: Final = Layout(4, 2)
_STATE_TAIL_BYTES: Final = 512
_INTERIM_SUFFIX: Final = ".bak"

PayloadOf = Callable[[ReferenceMessage], bytes]


def import_reference_journals(
    source_folder: str,
    target: Store,
    files: Files,
    *,
    now_ms: int,
    quota: int = limits.queue_quota_default,
    payload_of: PayloadOf = reference_payload,
    progress: Progress = no_progress,
) -> ExchangeReport:
    """Bring every queue of the reference router's message folder into an empty store.

    `source_folder` is that folder or the one it lies in; it is not changed. The router must not be
    running. Raises ForeignFolderError if it holds no journal, ConfigError for a target in use.
    """
    root = find_reference_root(source_folder, files)
    if root is None:
        raise ForeignFolderError(source_folder, "it holds no journal of the reference router")
    report = ExchangeReport()
    source = ReferenceSource(root, files, report, quota, payload_of)
    copy_all(source, target, report, now_ms, progress)
    return report


def find_reference_root(folder: str, files: Files) -> str | None:
    """The folder of the journals: this one, or `messages` in it."""
    for root in (folder, f"{folder}/{ROOT_NAME}"):
        if next(_queues(root, files), None) is not None:
            return root
    return None


def _queues(root: str, files: Files) -> Iterator[tuple[StreamId, str, list[str]]]:
    """Queues that have a state or a journal, with their folders and what is in them."""
    for stream in walk(files, root, REFERENCE_LAYOUT):
        folder = f"{root}/{REFERENCE_LAYOUT.path(stream)}"
        try:
            names = files.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if any(name.startswith((f"queue_state.{stream}.log", "messages.")) for name in names):
            yield stream, folder, names


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Part of a journal: the bytes that hold unread messages."""

    path: str
    start: int
    end: int | None


@dataclass(slots=True)
class _Queue:
    stream: StreamId
    stretches: list[_Stretch] = field(default_factory=list[_Stretch])
    is_blocked: bool = False
    flaws: list[str] = field(default_factory=list[str])
    # None: nobody knows how many there should be.
    expected_count: int | None = None


class ReferenceSource:
    """See the module. One queue is looked at at a time."""

    def __init__(
        self,
        root: str,
        files: Files,
        report: ExchangeReport,
        quota: int,
        payload_of: PayloadOf,
    ) -> None:
        self._root = root
        self._files = files
        self._report = report
        self._quota = quota
        self._payload_of = payload_of
        self._queue: _Queue | None = None

    def heads(self) -> Iterator[StreamHead]:
        for stream, folder, names in _queues(self._root, self._files):
            self._queue = queue = _QueueFolder(stream, folder, names, self._files).queue()
            message_count = self._count(queue)
            yield StreamHead(
                stream,
                StreamKind.QUEUE,
                self._quota,
                1,
                is_blocked=queue.is_blocked,
                message_count=message_count,
            )

    def _count(self, queue: _Queue) -> int:
        """Go through the lines once: how many are messages, and is the queue full?"""
        message_count = marker_count = skipped_count = 0
        ends_with_marker = False
        for message in self._messages(queue):
            if message is None:
                skipped_count += 1
                continue
            ends_with_marker = message.is_quota
            marker_count += message.is_quota
            message_count += not message.is_quota
        found_count = message_count + marker_count
        queue.is_blocked = ends_with_marker or (queue.is_blocked and found_count > 0)
        # A marker has one place, the end; a queue that went on behind one was read up to there.
        skipped_count += marker_count - ends_with_marker
        if skipped_count:
            queue.flaws.append(f"{skipped_count} lines are no messages")
            self._report.skipped_line_count += skipped_count
        if queue.expected_count is not None and found_count < queue.expected_count:
            lost_count = queue.expected_count - found_count
            queue.flaws.append(f"{lost_count} messages are missing")
            self._report.lost_entry_count += lost_count
        return message_count

    def entries(self, stream: StreamId) -> Iterator[Entry]:
        """Messages in order, numbered from 1; a marker at the end if the queue is full."""
        queue = self._current(stream)
        seq = 0
        time_ms = 0
        for message in self._messages(queue):
            if message is None:
                continue
            time_ms = message.time_ms
            if not message.is_quota:
                seq += 1
                yield Entry(seq, time_ms, self._payload_of(message))
        if queue.is_blocked:
            yield Entry(seq + 1, time_ms, b"", EntryKind.QUOTA_MARKER)

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        return None

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return {}

    def flaws(self, stream: StreamId) -> list[str]:
        return self._current(stream).flaws

    def file_flaws(self) -> Mapping[str, list[str]]:
        # Every file belongs to a queue.
        return {}

    def _messages(self, queue: _Queue) -> Iterator[ReferenceMessage | None]:
        """What the lines say; None for one that is no message."""
        for stretch in queue.stretches:
            file = self._files.open(stretch.path, writable=False)
            try:
                yield from _read_stretch(file, stretch)
            finally:
                file.close()

    def _current(self, stream: StreamId) -> _Queue:
        assert self._queue is not None, "a stream is read after its head"
        assert self._queue.stream == stream, "streams are read one after the other"
        return self._queue


def _read_stretch(file: File, stretch: _Stretch) -> Iterator[ReferenceMessage | None]:
    for item in lines(file, stretch.start, MESSAGE_LINE_BYTES_MAX):
        offset = item.offset if isinstance(item, BadLine) else item[0]
        if stretch.end is not None and offset >= stretch.end:
            return
        if isinstance(item, BadLine):
            yield None
            continue
        message = parse_reference_message(item[1][:-1])
        too_long = message is not None and len(message.body) > limits.entry_bytes_max - 512
        yield None if too_long else message


class _QueueFolder:
    """What one folder of the reference router says of its queue."""

    def __init__(self, stream: StreamId, folder: str, names: list[str], files: Files) -> None:
        self._stream = stream
        self._folder = folder
        self._names = names
        self._files = files
        self._found = _Queue(stream)

    def queue(self) -> _Queue:
        state = self._state()
        if state is None:
            self._take_everything()
        elif state.size > 0:
            self._found.expected_count = state.size
            # Writing opens again once a queue is empty, so an empty one is never blocked.
            self._found.is_blocked = not state.can_write
            self._take_unread(state)
        return self._found

    def _state(self) -> ReferenceState | None:
        """The last line, or the one before; the interim backup first."""
        name = f"queue_state.{self._stream}.log"
        if name + _INTERIM_SUFFIX in self._names:
            name += _INTERIM_SUFFIX
        if name not in self._names:
            self._found.flaws.append("its state file is missing")
            return None
        file = self._files.open(f"{self._folder}/{name}", writable=False)
        try:
            start = max(0, file.size() - _STATE_TAIL_BYTES)
            tail = file.read(start, _STATE_TAIL_BYTES)
        finally:
            file.close()
        found = tail.removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(reversed(found[-2:])):
            state = parse_reference_state(line)
            if state is not None:
                if number:
                    self._found.flaws.append("its last state line is unreadable")
                return state
        self._found.flaws.append("its state is unreadable, all that is there was taken")
        return None

    def _take_unread(self, state: ReferenceState) -> None:
        read, write = state.read, state.write
        if state.has_one_file:
            self._take(read.journal_id, read.byte_position, write.byte_position)
            return
        self._take(read.journal_id, read.byte_position, read.byte_count)
        self._take(write.journal_id, 0, write.byte_position)

    def _take(self, journal_id: str, start: int, end: int) -> None:
        if start == end:
            return
        name = f"messages.{journal_id}.log"
        if name not in self._names:
            self._found.flaws.append(f"{name} is missing")
            return
        path = f"{self._folder}/{name}"
        if self._size(path) < end:
            self._found.flaws.append(f"{name} ends before its recorded position")
        self._found.stretches.append(_Stretch(path, start, end))

    def _take_everything(self) -> None:
        journals = [
            f"{self._folder}/{name}"
            for name in self._names
            if name.startswith("messages.") and name.endswith(".log")
        ]
        self._found.stretches = [
            _Stretch(path, 0, None) for path in sorted(journals, key=self._first_time_ms)
        ]

    def _first_time_ms(self, path: str) -> int:
        file = self._files.open(path, writable=False)
        try:
            for message in _read_stretch(file, _Stretch(path, 0, None)):
                if message is not None:
                    return message.time_ms
        finally:
            file.close()
        return 0

    def _size(self, path: str) -> int:
        file = self._files.open(path, writable=False)
        try:
            return file.size()
        finally:
            file.close()
