"""One file of JSON lines with every stream of a store, for anybody to read.

    {"type":"syncline-messages","version":1}
    {"type":"stream","id":"…","kind":"queue","quota":128,"first":57,"blocked":false,"messages":1}
    {"type":"entry","stream":"…","seq":57,"time_ms":1700,"kind":"message","body":"aGVsbG8="}
    {"type":"snapshot","stream":"…","up_to_seq":56,"time_ms":1700,"body":"e30="}
    {"type":"cursor","stream":"…","name":"cmVhZGVy","seq":57}
    {"type":"end","streams":1,"entries":1}

What belongs to a stream follows its line and names it, so that an unreadable stream line does not
give its entries to the stream before. Bodies and names are base64. The last line tells a whole file
from one that was cut or lacks lines: it counts the streams and the entries before it. `messages`
counts the entries to come that are messages, at most, and exactly where `blocked` is true.
"""

from typing import Annotated, Final, Literal

import msgspec

from syncline.errors import ConfigError, MalformedMessageError, UnknownQueueError
from syncline.storage.base import Entry, EntryKind, Snapshot, Store, StreamKind
from syncline.storage.exchange.report import ExchangeReport, Progress, no_progress
from syncline.storage.exchange.transfer import (
    StoreSource,
    StreamHead,
    StreamWriter,
    require_empty,
)
from syncline.storage.files import File, Files
from syncline.storage.journal.scan import BadLine, lines
from syncline.values import limits
from syncline.values.ids import StreamId

FORMAT_VERSION: Final = 1
_LINE_BYTES_MAX: Final = limits.snapshot_bytes_max * 4 // 3 + 1024
_WRITE_BYTES: Final = 1024 * 1024
# A name that a line gives may be of any length; a report shows this much of it.
_SHOWN_NAME_CHARACTERS: Final = 64
_KINDS: Final = {"queue": StreamKind.QUEUE, "document": StreamKind.DOCUMENT}

_Position = Annotated[int, msgspec.Meta(ge=0, le=limits.sequence_max)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=limits.time_ms_max)]


class _Line(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    pass


class _Start(_Line, tag="syncline-messages", frozen=True):
    version: int


class _Stream(_Line, tag="stream", frozen=True):
    id: str
    kind: Literal["queue", "document"]
    quota: Annotated[int, msgspec.Meta(ge=0, le=limits.queue_quota_max)]
    first: Annotated[int, msgspec.Meta(ge=1, le=limits.sequence_max)]
    blocked: bool
    messages: Annotated[int, msgspec.Meta(ge=0, le=limits.sequence_max)]


class _Entry(_Line, tag="entry", frozen=True):
    stream: str
    seq: Annotated[int, msgspec.Meta(ge=1, le=limits.sequence_max)]
    time_ms: _Time
    kind: Literal["message", "quota"]
    body: bytes


class _Snapshot(_Line, tag="snapshot", frozen=True):
    stream: str
    up_to_seq: _Position
    time_ms: _Time
    body: bytes


class _Cursor(_Line, tag="cursor", frozen=True):
    stream: str
    name: bytes
    seq: _Position


class _End(_Line, tag="end", frozen=True):
    streams: _Position
    entries: _Position


_AnyLine = _Start | _Stream | _Entry | _Snapshot | _Cursor | _End
_DECODER: Final = msgspec.json.Decoder[_AnyLine](_AnyLine)
_ENCODER: Final = msgspec.json.Encoder()


def export_messages(
    store: Store, path: str, files: Files, *, progress: Progress = no_progress
) -> ExchangeReport:
    """Write all that is durable in a store to a new file.

    Raises ConfigError if it exists, or has no folder to be in.
    """
    draft = f"{path}.part"
    for name in (path, draft):
        if files.exists(name):
            raise ConfigError(f"{name} exists already; export to a new file or remove it first")
    report = ExchangeReport()
    folder = path.rpartition("/")[0] or "."
    try:
        file = files.open(draft, create=True)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} cannot be written: there is no folder {folder}; make that first"
        ) from error
    try:
        _write_all(StoreSource(store, report), _Output(file), report, progress)
        file.sync()
    finally:
        file.close()
    files.rename(draft, path)
    files.sync_folder(folder)
    progress(report)
    return report


class _Output:
    """Gathers lines and writes them in large pieces."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._offset = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def put(self, line: _AnyLine) -> bool:
        """Take a line; was that enough for a write?"""
        data = _ENCODER.encode(line) + b"\n"
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes < _WRITE_BYTES:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        self._file.write(self._offset, self._waiting)
        self._offset += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0


def _write_all(
    source: StoreSource, output: _Output, report: ExchangeReport, progress: Progress
) -> None:
    output.put(_Start(FORMAT_VERSION))
    for head in source.heads():
        name = str(head.stream)
        output.put(
            _Stream(
                name,
                "queue" if head.kind is StreamKind.QUEUE else "document",
                head.quota,
                head.first,
                head.is_blocked,
                head.message_count,
            )
        )
        for entry in source.entries(head.stream):
            is_marker = entry.kind is EntryKind.QUOTA_MARKER
            kind: Literal["message", "quota"] = "quota" if is_marker else "message"
            report.entry_count += 1
            report.byte_count += len(entry.payload)
            if output.put(_Entry(name, entry.seq, entry.time_ms, kind, entry.payload)):
                progress(report)
        snapshot = source.snapshot(head.stream)
        if snapshot is not None:
            output.put(_Snapshot(name, snapshot.up_to_seq, snapshot.time_ms, snapshot.payload))
            report.byte_count += len(snapshot.payload)
        for cursor, seq in source.cursors(head.stream).items():
            output.put(_Cursor(name, cursor, seq))
        report.stream_count += 1
        report.add_damage(name, source.flaws(head.stream))
    for file, flaws in source.file_flaws().items():
        report.add_file_damage(file, flaws)
    output.put(_End(report.stream_count, report.entry_count))
    output.flush()


def import_messages(
    path: str,
    target: Store,
    files: Files,
    *,
    now_ms: int,
    progress: Progress = no_progress,
) -> ExchangeReport:
    """Bring every stream of such a file into an empty store.

    Lines that cannot be used are counted and skipped. Raises ConfigError for a file that is missing
    or not of this kind, and for a target in use.
    """
    require_empty(target)
    report = ExchangeReport()
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path} to import") from error
    try:
        _Reader(StreamWriter(target, report, now_ms, progress), target, report, path).read(file)
    finally:
        file.close()
    return report


def is_messages_file(path: str, files: Files) -> bool:
    """Does the file begin like one of these? Raises ConfigError for one of a later version."""
    file = files.open(path, writable=False)
    try:
        line = file.read(0, 256).partition(b"\n")[0]
    finally:
        file.close()
    start = _parse(line)
    if not isinstance(start, _Start):
        return False
    _check_version(start, path)
    return True


def _check_version(start: _Start, path: str) -> None:
    if start.version > FORMAT_VERSION:
        raise ConfigError(
            f"{path} has version {start.version}, this program reads {FORMAT_VERSION}; "
            "import it with a later one"
        )


def _parse(line: bytes) -> _AnyLine | None:
    try:
        parsed: _AnyLine = _DECODER.decode(line)
        return parsed
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _Reader:
    def __init__(
        self, writer: StreamWriter, target: Store, report: ExchangeReport, path: str
    ) -> None:
        self._writer = writer
        self._target = target
        self._report = report
        self._path = path
        self._head: StreamHead | None = None
        self._next = 1
        self._missing_count = 0
        self._skipped_count = 0
        self._cursor_names: set[bytes] = set()
        # Lines of a stream that was not begun: their name for it, and how many came in a row.
        self._stray_name = ""
        self._stray_count = 0
        # Of the whole file: what was used, lines that are of no stream, and what should be there.
        self._stream_count = 0
        self._entry_count = 0
        self._nameless_count = 0
        self._end: _End | None = None

    def read(self, file: File) -> None:
        is_started = False
        for item in lines(file, 0, _LINE_BYTES_MAX):
            line = None if isinstance(item, BadLine) else _parse(item[1])
            if not is_started:
                self._start(line)
                is_started = True
            elif line is None or not self._take(line):
                self._skip(line)
        if not is_started:
            self._start(None)
        self._end_stream()
        self._tell_of_file()
        self._writer.finish()

    def _start(self, line: _AnyLine | None) -> None:
        if not isinstance(line, _Start):
            raise ConfigError(f"{self._path} is no file of exported messages")
        _check_version(line, self._path)

    def _take(self, line: _AnyLine) -> bool:
        """Use a line; False if it has no place."""
        self._end = None
        if isinstance(line, _Stream):
            self._end_stream()
            return self._begin(line)
        if isinstance(line, _End):
            self._end = line
            return True
        if self._head is None or isinstance(line, _Start) or line.stream != str(self._head.stream):
            return False
        return self._take_part(line, self._head)

    def _take_part(self, line: _Entry | _Snapshot | _Cursor, head: StreamHead) -> bool:
        match line:
            case _Entry():
                if line.seq < self._next or len(line.body) > limits.entry_bytes_max:
                    return False
                kind = EntryKind.QUOTA_MARKER if line.kind == "quota" else EntryKind.MESSAGE
                self._missing_count += line.seq - self._next
                self._next = line.seq + 1
                self._entry_count += 1
                self._writer.entry(Entry(line.seq, line.time_ms, line.body, kind))
            case _Snapshot():
                too_long = len(line.body) > limits.snapshot_bytes_max
                if too_long or line.up_to_seq >= max(self._next, head.first):
                    return False
                self._writer.snapshot(Snapshot(line.up_to_seq, line.time_ms, line.body))
            case _Cursor():
                too_long = len(line.name) > limits.cursor_name_bytes_max
                too_many = len(self._cursor_names) >= limits.cursors_per_stream_max
                is_known = line.name in self._cursor_names
                if too_long or too_many or is_known or line.seq > max(self._next, head.first):
                    return False
                self._cursor_names.add(line.name)
                self._writer.cursor(line.name, line.seq)
        return True

    def _begin(self, line: _Stream) -> bool:
        try:
            stream = StreamId.parse(line.id)
        except MalformedMessageError:
            return False
        kind = _KINDS[line.kind]
        if line.quota and kind is StreamKind.DOCUMENT:
            return False
        if self._has(stream):
            return False
        self._head = StreamHead(stream, kind, line.quota, line.first, line.blocked, line.messages)
        self._next = line.first
        self._stream_count += 1
        self._writer.begin(self._head)
        return True

    def _has(self, stream: StreamId) -> bool:
        try:
            self._target.state(stream)
        except UnknownQueueError:
            return False
        return True

    def _end_stream(self) -> None:
        self._end_strays()
        if self._head is not None:
            self._writer.end()
            self._report.lost_entry_count += self._missing_count
            flaws = _unusable(self._skipped_count)
            if self._missing_count:
                flaws.append(f"{self._missing_count} entries are missing")
            self._report.add_damage(str(self._head.stream), flaws)
        self._head = None
        self._missing_count = self._skipped_count = 0
        self._cursor_names = set()

    def _end_strays(self) -> None:
        self._report.add_damage(self._stray_name, _unusable(self._stray_count))
        self._stray_count = 0

    def _skip(self, line: _AnyLine | None) -> None:
        self._report.skipped_line_count += 1
        name = _name_in(line)
        if self._head is not None and name in (None, str(self._head.stream)):
            self._skipped_count += 1
        elif name is None:
            self._nameless_count += 1
        else:
            if name != self._stray_name:
                self._end_strays()
            self._stray_name = name
            self._stray_count += 1

    def _tell_of_file(self) -> None:
        """What cannot be said of a single stream."""
        flaws = _unusable(self._nameless_count)
        if self._end is None:
            flaws.append("it has no whole end")
        elif (self._end.streams, self._end.entries) != (self._stream_count, self._entry_count):
            flaws.append(
                f"it ends as one of {self._end.streams} streams and {self._end.entries} entries, "
                f"of which {self._stream_count} and {self._entry_count} can be used"
            )
            # Those that a gap in their stream gave away are counted already.
            missing_count = self._end.entries - self._entry_count
            self._report.lost_entry_count = max(self._report.lost_entry_count, missing_count)
        self._report.add_file_damage(self._path, flaws)


def _name_in(line: _AnyLine | None) -> str | None:
    """Whose line it is by its own words."""
    match line:
        case _Stream():
            return line.id[:_SHOWN_NAME_CHARACTERS]
        case _Entry() | _Snapshot() | _Cursor():
            return line.stream[:_SHOWN_NAME_CHARACTERS]
        case _Start() | _End() | None:
            return None


def _unusable(line_count: int) -> list[str]:
    return [f"{line_count} lines cannot be used"] if line_count else []
