"""Messages of any size in parts that fit a block: docs/formats/reconciliation.md, "Parts".

    part   kind 1 byte, index number, count number, then its piece of the message

Parts of a message come in order, each as full as it may be but the last, so that there is one way
to cut a message.
"""

from collections.abc import Iterator
from typing import Final

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.wire.reconciliation.fields import Reader, number

PART_BYTES_MAX: Final = 16_000
# Room for the header of the last part of the longest run.
_PIECE_BYTES: Final = PART_BYTES_MAX - 9
PART_COUNT_MAX: Final = 1 << 16


def cut(kind: int, body: bytes) -> Iterator[bytes]:
    """The parts of a message. Raises LimitExceededError if it is too large to be sent."""
    count = max(1, -(-len(body) // _PIECE_BYTES))
    if count > PART_COUNT_MAX:
        raise LimitExceededError("the parts of a message", count, PART_COUNT_MAX)
    for index in range(count):
        piece = body[index * _PIECE_BYTES : (index + 1) * _PIECE_BYTES]
        yield b"".join((bytes([kind]), number(index), number(count), piece))


class Joiner:
    """Puts parts together again. It holds no more than `body_bytes_max` at a time."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._kind = 0
        self._count = 0

    def add(self, part: bytes) -> tuple[int, bytes] | None:
        """Kind and body once the last part is there. Raises a ProtocolError for what fits not."""
        if len(part) > PART_BYTES_MAX:
            raise LimitExceededError("a part", len(part), PART_BYTES_MAX)
        reader = Reader(part)
        kind, index, count = reader.byte(), reader.number(), reader.number()
        piece = reader.rest()
        if not 1 <= count <= PART_COUNT_MAX:
            raise LimitExceededError("the parts of a message", count, PART_COUNT_MAX)
        if not self._pieces:
            self._kind, self._count = kind, count
        if (kind, index, count) != (self._kind, len(self._pieces), self._count):
            raise MalformedMessageError("a part is out of order")
        is_last = index == count - 1
        if not is_last and len(piece) != _PIECE_BYTES:
            raise MalformedMessageError("a part other than the last is not full")
        if is_last and index and not piece:
            raise MalformedMessageError("the last part is empty")
        self._bytes += len(piece)
        if self._bytes > self._body_bytes_max:
            raise LimitExceededError("a message", self._bytes, self._body_bytes_max)
        self._pieces.append(piece)
        if not is_last:
            return None
        body = b"".join(self._pieces)
        self._pieces, self._bytes = [], 0
        return kind, body
