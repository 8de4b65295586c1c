"""The lines of the reference router's journal, read back. Pure.

Message line, parted by single spaces: id in base64url, time, `flags=` and a letter, body in
base64url. The time is in seconds since 1970 or in ISO 8601; flags may be missing.

    <id> 1732530000 flags=T <body>

Quota marker: id, time, the word `quota`.

State line: both journals as id, message position, message count, byte position, byte count.

    write=<id>,5,5,2100,2100 read=<id>,2,5,840,2100 canWrite=T size=3

Numbers are read with a bound on their digits, base64 with or without its padding. Whatever does not
fit is None: the caller counts it.
"""

import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Final

from syncline.storage.journal.format import NUMBER_MAX

MESSAGE_ID_BYTES_MAX: Final = 255

_BASE64 = rb"([A-Za-z0-9_-]*={0,2})"
_MESSAGE = re.compile(
    _BASE64 + rb" ([0-9TZ:.+-]{1,40}) (?:(quota)|(?:flags=([^ \n]{0,7}) )?" + _BASE64 + rb")"
)
_SECONDS = re.compile(rb"[0-9]{1,15}")
_ISO = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,12}))?Z"
)
_NUMBER = rb"([0-9]{1,18})"
_JOURNAL = rb"([A-Za-z0-9_=-]{1,64})" + (rb"," + _NUMBER) * 4
_STATE = re.compile(
    rb"write=" + _JOURNAL + rb" read=" + _JOURNAL + rb" canWrite=([TF]) size=" + _NUMBER
)


@dataclass(frozen=True, slots=True)
class ReferenceMessage:
    """A message, or the marker that tells of one refused: then without flags and body."""

    message_id: bytes
    time_ms: int
    flags: bytes = b""
    body: bytes = b""
    is_quota: bool = False


def reference_payload(message: ReferenceMessage) -> bytes:
    """All that the line holds beside its time: id and flags behind their lengths, then the body."""
    return b"%c%b%c%b%b" % (
        len(message.message_id),
        message.message_id,
        len(message.flags),
        message.flags,
        message.body,
    )


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Where a reader or the writer stands in one file."""

    journal_id: str
    message_position: int
    message_count: int
    byte_position: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class ReferenceState:
    write: JournalPosition
    read: JournalPosition
    can_write: bool
    size: int

    @property
    def has_one_file(self) -> bool:
        return self.write.journal_id == self.read.journal_id

    @property
    def is_consistent(self) -> bool:
        read, write = self.read, self.write
        is_ordered = (
            read.message_position <= read.message_count
            and read.byte_position <= read.byte_count
            and write.message_position == write.message_count
            and write.byte_position == write.byte_count
        )
        if not self.has_one_file:
            unread_count = read.message_count - read.message_position
            return is_ordered and self.size == write.message_count + unread_count
        return (
            is_ordered
            and read.message_count == write.message_count
            and read.byte_count == write.byte_count
            and self.size == read.message_count - read.message_position
        )


def parse_reference_message(line: bytes) -> ReferenceMessage | None:
    """Read a line without its newline."""
    found = _MESSAGE.fullmatch(line)
    if found is None:
        return None
    message_id, time_ms = _unbase64(found[1]), _time_ms(found[2])
    if not message_id or len(message_id) > MESSAGE_ID_BYTES_MAX or time_ms is None:
        return None
    if found[3] is not None:
        return ReferenceMessage(message_id, time_ms, is_quota=True)
    body = _unbase64(found[5])
    if body is None:
        return None
    return ReferenceMessage(message_id, time_ms, found[4] or b"", body)


def parse_reference_state(line: bytes) -> ReferenceState | None:
    """Read a line without its newline. One that contradicts itself is none."""
    found = _STATE.fullmatch(line)
    if found is None:
        return None
    words = [word.decode("ascii") for word in found.groups()]
    write = JournalPosition(words[0], *map(int, words[1:5]))
    read = JournalPosition(words[5], *map(int, words[6:10]))
    state = ReferenceState(write, read, words[10] == "T", int(words[11]))
    return state if state.is_consistent else None


def _time_ms(text: bytes) -> int | None:
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(word) for word in found.groups()[:6])
    if year < 1970 or not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60):
        return None
    milliseconds = int((found[7] or b"0")[:3].ljust(3, b"0"))
    seconds = ((_days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second
    return min(seconds * 1000 + milliseconds, NUMBER_MAX)


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Years are counted from March on, so that the leap day comes last."""
    year -= month <= 2
    months_since_march = (month + 9) % 12
    leap_days = year // 4 - year // 100 + year // 400
    return 365 * year + leap_days + (153 * months_since_march + 2) // 5 + day - 719_469


def _unbase64(text: bytes) -> bytes | None:
    text = text.rstrip(b"=")
    try:
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except Base64Error:
        return None
