"""Yjs messages as they travel in WebSocket frames: plain, or behind a document name (Hocuspocus).

frame  = [string document name]  varint type  ...
sync   = 0  varint step  bytes                step: 0 state vector, 1 state, 2 update
auth   = 2  0  string token  string version   Hocuspocus only
status = 8  varint                            Hocuspocus only: 1 is "applied"
bytes, string = varint length, content
"""

from dataclasses import dataclass
from enum import Enum

_SYNC = 0
_AUTH = 2
_STATUS = 8
_STEP_1_EMPTY = b"\x00\x00\x01\x00"
_STEP_2_EMPTY = b"\x00\x01\x02\x00\x00"


class Kind(Enum):
    STATE_VECTOR = "state vector"
    STATE = "state"
    UPDATE = "update"
    STATUS = "status"
    OTHER = "other"


_STEPS = (Kind.STATE_VECTOR, Kind.STATE, Kind.UPDATE)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | number & 0x7F)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number, and where the next field starts."""
    number = shift = 0
    while True:
        byte = data[start]
        start += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, start
        shift += 7


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


@dataclass(frozen=True, slots=True)
class Framing:
    """How one connection to one document speaks."""

    prefix: bytes
    # Sent as soon as the socket is open.
    opening: tuple[bytes, ...]
    # The bare relay knows no documents and has nothing to say.
    answers_opening: bool = True

    @property
    def empty_state(self) -> bytes:
        """The answer to a state vector of one who has nothing."""
        return self.prefix + _STEP_2_EMPTY

    def update(self, update: bytes) -> bytes:
        return self.prefix + b"\x00\x02" + sized(update)

    def read(self, frame: bytes) -> tuple[Kind, bytes]:
        """The kind of a message and its body."""
        if not frame.startswith(self.prefix):
            return Kind.OTHER, b""
        kind, at = read_varint(frame, len(self.prefix))
        if kind == _STATUS and self.prefix:
            return Kind.STATUS, frame[at:]
        if kind != _SYNC:
            return Kind.OTHER, b""
        step, at = read_varint(frame, at)
        if step >= len(_STEPS):
            return Kind.OTHER, b""
        length, at = read_varint(frame, at)
        return _STEPS[step], frame[at : at + length]


def plain() -> Framing:
    return Framing(b"", (_STEP_1_EMPTY,))


def bare() -> Framing:
    return Framing(b"", (), answers_opening=False)


def hocuspocus(document: str) -> Framing:
    prefix = sized(document.encode())
    hello = bytes([_AUTH, 0]) + sized(b"bench") + sized(b"4.8.0")
    return Framing(prefix, (prefix + hello, prefix + _STEP_1_EMPTY))


def framing_of(style: str, document: str) -> Framing:
    match style:
        case "plain":
            return plain()
        case "bare":
            return bare()
        case "hocuspocus":
            return hocuspocus(document)
        case _:
            raise ValueError(style)
