"""WebSocket frames (RFC 6455): the router's are built here, a client's are read here.

    byte 0      FIN, three reserved bits, opcode (4 bits)
    byte 1      MASK, length (7 bits); 126: two more bytes hold it, 127: eight more do
    2 or 8      the longer length, big endian, only where the short one does not do
    4           the mask, on everything that a client sends
    length      payload, each byte combined with a byte of the mask

- No extension is ever agreed on, so a reserved bit is an error and nothing is inflated.
- What a frame announces is checked against the limit before a byte of it is kept.
- The same input gives the same messages however it is cut; each byte is copied a bounded number of
  times, so that one byte at a time costs no more than it must.

Nothing here knows a socket. Frames of the router carry no mask, so one that goes to many readers
is built once.
"""

from dataclasses import dataclass

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without its C part: slower, otherwise the same
    from websockets.utils import apply_mask

CONTINUATION = 0x0
TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_VIOLATED = 1002
NO_CODE = 1005
LOST = 1006
INVALID_TEXT = 1007
POLICY_VIOLATED = 1008
TOO_LARGE = 1009

CONTROL_BYTES_MAX = 125
REASON_BYTES_MAX = CONTROL_BYTES_MAX - 2

_FIN = 0x80
_RESERVED = 0x70
_OPCODE = 0x0F
_IS_CONTROL = 0x08
_MASKED = 0x80
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_FIN_TEXT = _FIN | TEXT
_FIN_BINARY = _FIN | BINARY
_WHOLE_MESSAGE = (_FIN_BINARY, _FIN_TEXT)


def frame(payload: bytes, *, is_text: bool) -> bytes:
    """A whole message in one frame, as every reader gets it."""
    return _framed(_FIN_TEXT if is_text else _FIN_BINARY, payload)


def ping_frame(payload: bytes = b"") -> bytes:
    return _framed(_FIN | PING, payload)


def pong_frame(payload: bytes) -> bytes:
    return _framed(_FIN | PONG, payload)


def close_frame(code: int, reason: str = "") -> bytes:
    """The reason is cut to what fits, between characters. `NO_CODE` sends neither."""
    if code == NO_CODE:
        return _framed(_FIN | CLOSE, b"")
    cut = reason.encode("utf-8")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode("utf-8")
    return _framed(_FIN | CLOSE, code.to_bytes(2, "big") + cut)


def _framed(first: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < 126:
        return bytes((first, length)) + payload
    if length < 1 << 16:
        return bytes((first, 126, length >> 8, length & 0xFF)) + payload
    return bytes((first, 127)) + length.to_bytes(8, "big") + payload


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a client's bytes cannot be read on, as it is told in the close frame."""

    code: int
    reason: str


# A message or a control frame: its opcode (`TEXT`, `BINARY`, `CLOSE`, `PING`, `PONG`), its payload.
Incoming = tuple[int, bytes]


class FrameReader:
    """Turns a client's bytes into messages. After a `violation` it reads nothing more."""

    __slots__ = (
        "_fragments",
        "_fragments_opcode",
        "_message_bytes_max",
        "_needed_bytes",
        "_partial",
        "frame_count",
        "violation",
    )

    def __init__(self, message_bytes_max: int) -> None:
        self.violation: Violation | None = None
        # Of every kind, fragments included: what a rate is counted in.
        self.frame_count = 0
        self._message_bytes_max = message_bytes_max
        # A frame that has not ended yet, and how many bytes must be there to try again.
        self._partial = bytearray()
        self._needed_bytes = 0
        # One growing buffer and no list of parts: empty fragments without end cost nothing.
        self._fragments = bytearray()
        self._fragments_opcode = 0

    def feed(self, data: bytes) -> list[Incoming]:
        """What has become whole by `data`; what came before a violation is still given out."""
        size = len(data)
        if (
            6 < size < 132
            and data[1] == _MASKED + size - 6
            and data[0] in _WHOLE_MESSAGE
            and not (self._partial or self._fragments_opcode or self.violation)
            and size - 6 <= self._message_bytes_max
        ):
            # One short message and nothing else: nearly every read (bench: documents).
            payload = apply_mask(data[6:], data[2:6])
            if data[0] == _FIN_BINARY or payload.isascii():
                self.frame_count += 1
                return [(data[0] & _OPCODE, payload)]
        if self.violation is not None:
            return []
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed_bytes:
                return []
            data = bytes(self._partial)
            self._partial = bytearray()
        found: list[Incoming] = []
        end = self._read_frames(data, found)
        if self.violation is not None:
            self._fragments = bytearray()
        elif end < len(data):
            self._partial += data[end:]
        return found

    def _read_frames(self, data: bytes, found: list[Incoming]) -> int:
        """Return where the first frame begins that is not whole. One loop: it is the hot one."""
        position, size = 0, len(data)
        while size - position >= 2:
            first, second = data[position], data[position + 1]
            length = second & 0x7F
            start = position + 6 if length < 126 else position + (8 if length == 126 else 14)
            if start > size:
                # Two bytes are enough to refuse, and what is refused need not be waited for.
                if not self._accepts(first, second, 0):
                    return size
                self._needed_bytes = start - position
                return position
            if length > 125:
                length = int.from_bytes(data[position + 2 : start - 4], "big")
                if length < (126 if second & 0x7F == 126 else 1 << 16):
                    self._refuse(PROTOCOL_VIOLATED, "a length is written longer than it is")
                    return size
            if not self._accepts(first, second, length):
                return size
            stop = start + length
            if stop > size:
                self._needed_bytes = stop - position
                return position
            payload = apply_mask(data[start:stop], data[start - 4 : start]) if length else b""
            self.frame_count += 1
            if first == _FIN_BINARY or (first == _FIN_TEXT and payload.isascii()):
                found.append((first & _OPCODE, payload))
            elif not self._take(first, payload, found):
                return size
            position = stop
        self._needed_bytes = 2
        return position

    def _accepts(self, first: int, second: int, length: int) -> bool:
        """Whether a frame may begin like this; `length` is 0 as long as it is not known."""
        if (
            first in _WHOLE_MESSAGE
            and second & _MASKED
            and length <= self._message_bytes_max
            and not self._fragments_opcode
        ):
            # Nearly every frame.
            return True
        opcode = first & _OPCODE
        if first & _RESERVED:
            return self._refuse(PROTOCOL_VIOLATED, "a reserved bit is set; no extension is agreed")
        if opcode not in _OPCODES:
            return self._refuse(PROTOCOL_VIOLATED, f"opcode {opcode} does not exist")
        if not second & _MASKED:
            return self._refuse(PROTOCOL_VIOLATED, "a client must mask what it sends")
        if opcode & _IS_CONTROL:
            if not first & _FIN or second & 0x7F > CONTROL_BYTES_MAX:
                return self._refuse(PROTOCOL_VIOLATED, "a control frame is short and in one piece")
            return True
        # Inside a message come continuations, and they come nowhere else.
        if (opcode == CONTINUATION) != bool(self._fragments_opcode):
            return self._refuse(PROTOCOL_VIOLATED, "a fragment is out of place")
        if length + len(self._fragments) > self._message_bytes_max:
            return self._refuse(
                TOO_LARGE, f"limit: a message may have {self._message_bytes_max} bytes"
            )
        return True

    def _take(self, first: int, payload: bytes, found: list[Incoming]) -> bool:
        opcode = first & _OPCODE
        if opcode == CLOSE and not self._accepts_close(payload):
            return False
        if opcode & _IS_CONTROL:
            found.append((opcode, payload))
            return True
        if not first & _FIN or opcode == CONTINUATION:
            self._fragments += payload
            self._fragments_opcode = opcode or self._fragments_opcode
            if not first & _FIN:
                return True
            opcode, payload = self._fragments_opcode, bytes(self._fragments)
            self._fragments = bytearray()
            self._fragments_opcode = 0
        if opcode == TEXT and not _is_utf8(payload):
            return self._refuse(INVALID_TEXT, "malformed: a text message must be UTF-8")
        found.append((opcode, payload))
        return True

    def _accepts_close(self, payload: bytes) -> bool:
        if not payload:
            return True
        code, reason = read_close(payload)
        # Codes that only describe an end without a close frame must not stand in one.
        is_known = 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
        if len(payload) == 1 or not is_known:
            return self._refuse(PROTOCOL_VIOLATED, "the close frame has no proper code")
        if reason is None:
            return self._refuse(INVALID_TEXT, "malformed: the reason must be UTF-8")
        return True

    def _refuse(self, code: int, reason: str) -> bool:
        self.violation = Violation(code, reason)
        return False


def read_close(payload: bytes) -> tuple[int, str | None]:
    """Code and reason of a close frame; None for a reason that is no text."""
    if len(payload) < 2:
        return NO_CODE, ""
    if not _is_utf8(payload[2:]):
        return int.from_bytes(payload[:2], "big"), None
    return int.from_bytes(payload[:2], "big"), payload[2:].decode("utf-8")


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
