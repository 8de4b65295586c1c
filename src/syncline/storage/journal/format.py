"""The lines of the journal, as bytes and back; the page is docs/formats/journal.md.

Pure: bytes in, values out. Every line ends with ` crc=` and eight hex digits: CRC32C of the id of
the stream as text, one space, and all that stands before ` crc=`. So a line that was torn, changed,
or written for another queue does not pass.

Message line, in `messages.<file id>.log`:

    seq=7 time_ms=1700000000000 kind=message body=aGVsbG8 crc=xxxxxxxx

State line, in `queue.log`; the last whole one is the state:

    read_file=<id> read_msg=3 read_byte=230 write_file=<id> write_msg=5
    write_byte=391 first=4 next=6 kind=queue quota=128 blocked=F
    snapshot_file=- snapshot_seq=0 cursor_file=- cursor_byte=0 crc=xxxxxxxx      (all on one line)

Cursor line, in `cursors.<file id>.log`; the last of a name counts, `seq=-` drops it:

    name=cmVhZGVy seq=17 crc=xxxxxxxx

Snapshot, in `snapshot.<file id>.bin`: one line, then the payload, which its checksum covers too:

    up_to_seq=17 time_ms=1700000000000 bytes=5 crc=xxxxxxxx

A body is base64url without padding: no byte that a sender chooses can end a line, so after a
damaged line the next one is found for certain. Parsing is strict: a line is taken only if writing
what was read gives the same bytes again. There is one text for each value, and no number of any
length.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

import google_crc32c

from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind
from syncline.values import limits
from syncline.values.ids import StreamId

# The library has no types of its own.
crc32c_extend = cast(
    Callable[[int, bytes], int],
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]
)

FORMAT_VERSION: Final = 1
FILE_ID_BYTES: Final = 12
FILE_ID_CHARACTERS: Final = 16
NO_FILE: Final = "-"
# Eighteen digits: every number fits in 64 bits with a sign.
NUMBER_MAX: Final = 10**18 - 1

_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_FILE = rb"([A-Za-z0-9_-]{16})"
_OPTIONAL_FILE = rb"([A-Za-z0-9_-]{16}|-)"
_BASE64 = rb"([A-Za-z0-9_-]*)"
_CRC = rb" crc=([0-9a-f]{8})"
_CRC_BYTES = len(b" crc=00000000")

_MESSAGE = re.compile(
    rb"seq=" + _NUMBER + rb" time_ms=" + _NUMBER + rb" kind=(message|quota) body=" + _BASE64 + _CRC
)
_STATE = re.compile(
    rb"read_file=" + _FILE + rb" read_msg=" + _NUMBER + rb" read_byte=" + _NUMBER
    + rb" write_file=" + _FILE + rb" write_msg=" + _NUMBER
    + rb" write_byte=" + _NUMBER + rb" first=" + _NUMBER + rb" next=" + _NUMBER
    + rb" kind=(queue|document) quota=" + _NUMBER + rb" blocked=([TF])"
    + rb" snapshot_file=" + _OPTIONAL_FILE + rb" snapshot_seq=" + _NUMBER
    + rb" cursor_file=" + _OPTIONAL_FILE + rb" cursor_byte=" + _NUMBER + _CRC
)  # fmt: skip
_CURSOR = re.compile(rb"name=" + _BASE64 + rb" seq=" + rb"(-|0|[1-9][0-9]{0,17})" + _CRC)
_SNAPSHOT = re.compile(
    rb"up_to_seq=" + _NUMBER + rb" time_ms=" + _NUMBER + rb" bytes=" + _NUMBER + _CRC
)

_ENTRY_KINDS: Final = {EntryKind.MESSAGE: b"message", EntryKind.QUOTA_MARKER: b"quota"}
_ENTRY_KIND_NAMES: Final = {name: kind for kind, name in _ENTRY_KINDS.items()}
_STREAM_KINDS: Final = {StreamKind.QUEUE: b"queue", StreamKind.DOCUMENT: b"document"}
_STREAM_KIND_NAMES: Final = {name: kind for kind, name in _STREAM_KINDS.items()}

# Longer than any line that was ever written: a reader that has not met its end by here never will.
MESSAGE_LINE_BYTES_MAX: Final = limits.entry_bytes_max * 4 // 3 + 256
STATE_LINE_BYTES_MAX: Final = 1024
CURSOR_LINE_BYTES_MAX: Final = 256
SNAPSHOT_HEADER_BYTES_MAX: Final = 256


class Flaw(StrEnum):
    """Why bytes are not the line they should be."""

    TORN = "the line has no end"
    FORM = "the line is not one of this file"
    CHECKSUM = "the checksum does not match"


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a state line says.

    The read file holds the entries from `read_first` on, with the one wanted next at `read_byte`;
    the write file holds those from `write_first` on and ends at `write_byte`. The line has counts
    in place of the two: `read_msg` were read of the read file, `write_msg` are in the write file.
    """

    read_file: str
    read_first: int
    read_byte: int
    write_file: str
    write_first: int
    write_byte: int
    first: int
    next: int
    kind: StreamKind
    quota: int
    is_blocked: bool
    snapshot_file: str | None = None
    snapshot_seq: int = 0
    cursor_file: str | None = None
    cursor_byte: int = 0

    @property
    def has_one_file(self) -> bool:
        return self.read_file == self.write_file

    @property
    def is_consistent(self) -> bool:
        if not 1 <= self.read_first <= self.first <= self.next:
            return False
        if not self.read_first <= self.write_first <= self.next:
            return False
        if self.quota > limits.queue_quota_max or self.next > limits.sequence_max + 1:
            return False
        if self.has_one_file:
            return self.read_first == self.write_first and self.read_byte <= self.write_byte
        return self.first <= self.write_first


def encode_message(stream: StreamId, entry: Entry) -> bytes:
    return _sealed(
        stream,
        b"seq=%d time_ms=%d kind=%b body=%b"
        % (entry.seq, entry.time_ms, _ENTRY_KINDS[entry.kind], _base64(entry.payload)),
    )


def parse_message(stream: StreamId, line: bytes) -> Entry | Flaw:
    """Read a line with its newline."""
    found = _fields(_MESSAGE, line)
    if isinstance(found, Flaw):
        return found
    seq, time_ms, kind, body, _ = found
    payload = _unbase64(body)
    if payload is None:
        return Flaw.FORM
    entry = Entry(int(seq), int(time_ms), payload, _ENTRY_KIND_NAMES[kind])
    return entry if encode_message(stream, entry) == line else Flaw.CHECKSUM


def encode_state(stream: StreamId, state: QueueState) -> bytes:
    return _sealed(
        stream,
        (
            f"read_file={state.read_file} read_msg={state.first - state.read_first}"
            f" read_byte={state.read_byte}"
            f" write_file={state.write_file} write_msg={state.next - state.write_first}"
            f" write_byte={state.write_byte} first={state.first} next={state.next}"
            f" kind={_STREAM_KINDS[state.kind].decode()} quota={state.quota}"
            f" blocked={'T' if state.is_blocked else 'F'}"
            f" snapshot_file={state.snapshot_file or NO_FILE} snapshot_seq={state.snapshot_seq}"
            f" cursor_file={state.cursor_file or NO_FILE} cursor_byte={state.cursor_byte}"
        ).encode("ascii"),
    )


def parse_state(stream: StreamId, line: bytes) -> QueueState | Flaw:
    """Read a line with its newline. A state that contradicts itself is no state."""
    found = _fields(_STATE, line)
    if isinstance(found, Flaw):
        return found
    words = [word.decode("ascii") for word in found]
    first, next_seq = int(words[6]), int(words[7])
    state = QueueState(
        read_file=words[0],
        read_first=first - int(words[1]),
        read_byte=int(words[2]),
        write_file=words[3],
        write_first=next_seq - int(words[4]),
        write_byte=int(words[5]),
        first=first,
        next=next_seq,
        kind=_STREAM_KIND_NAMES[found[8]],
        quota=int(words[9]),
        is_blocked=words[10] == "T",
        snapshot_file=None if words[11] == NO_FILE else words[11],
        snapshot_seq=int(words[12]),
        cursor_file=None if words[13] == NO_FILE else words[13],
        cursor_byte=int(words[14]),
    )
    if encode_state(stream, state) != line:
        return Flaw.CHECKSUM
    return state if state.is_consistent else Flaw.FORM


def encode_cursor(stream: StreamId, name: bytes, seq: int | None) -> bytes:
    position = b"-" if seq is None else b"%d" % seq
    return _sealed(stream, b"name=%b seq=%b" % (_base64(name), position))


def parse_cursor(stream: StreamId, line: bytes) -> tuple[bytes, int | None] | Flaw:
    """Read a line with its newline: a name and its position, None for a dropped one."""
    found = _fields(_CURSOR, line)
    if isinstance(found, Flaw):
        return found
    name = _unbase64(found[0])
    if name is None:
        return Flaw.FORM
    seq = None if found[1] == b"-" else int(found[1])
    return (name, seq) if encode_cursor(stream, name, seq) == line else Flaw.CHECKSUM


def encode_snapshot(stream: StreamId, snapshot: Snapshot) -> bytes:
    text = b"up_to_seq=%d time_ms=%d bytes=%d" % (
        snapshot.up_to_seq,
        snapshot.time_ms,
        len(snapshot.payload),
    )
    crc = crc32c_extend(_checksum(stream, text), snapshot.payload)
    return b"%b crc=%08x\n%b" % (text, crc, snapshot.payload)


def parse_snapshot(stream: StreamId, data: bytes) -> Snapshot | Flaw:
    """Read a whole snapshot file."""
    line, newline, payload = data.partition(b"\n")
    found = _fields(_SNAPSHOT, line + newline)
    if isinstance(found, Flaw):
        return found
    up_to_seq, time_ms, byte_count, _ = found
    if int(byte_count) != len(payload):
        return Flaw.TORN
    snapshot = Snapshot(int(up_to_seq), int(time_ms), payload)
    return snapshot if encode_snapshot(stream, snapshot) == data else Flaw.CHECKSUM


def encode_file_id(random: bytes) -> str:
    """The text of twelve random bytes."""
    if len(random) != FILE_ID_BYTES:
        raise ValueError(f"a file id is made of {FILE_ID_BYTES} bytes, not {len(random)}")
    return urlsafe_b64encode(random).decode("ascii")


def _fields(pattern: re.Pattern[bytes], line: bytes) -> tuple[bytes, ...] | Flaw:
    if not line.endswith(b"\n"):
        return Flaw.TORN
    # Not `$`: it would take a second newline for the end.
    found = pattern.fullmatch(line, 0, len(line) - 1)
    return Flaw.FORM if found is None else found.groups()


def _sealed(stream: StreamId, text: bytes) -> bytes:
    return b"%b crc=%08x\n" % (text, _checksum(stream, text))


def _checksum(stream: StreamId, text: bytes) -> int:
    return crc32c_extend(crc32c_extend(0, b"%b " % urlsafe_b64encode(stream)), text)


def _base64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(text: bytes) -> bytes | None:
    try:
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except Base64Error:
        return None
