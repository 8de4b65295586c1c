"""The primitives that SMP is written in (docs/formats/smp.md). All numbers are big-endian.

    u8, w16, w32, i64   1, 2, 4 bytes unsigned; 8 bytes two's complement
    short               u8, then so many bytes
    large               w16, then so many bytes
    tail                all bytes that are left
    flag                `T` or `F`
    maybe X             `0`, or `1` and X
    items X             u8, then so many X

A reader believes no length that passes the end of its input and raises MalformedMessageError for
whatever is no value. Who may be followed by what differs between hellos and commands, so the end is
checked by the caller: `finish`, or not at all.
"""

from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from syncline.errors import MalformedMessageError

T = TypeVar("T")

SHORT_BYTES_MAX = 255
LARGE_BYTES_MAX = 65_535
ITEM_COUNT_MAX = 255

_W16 = Struct(">H")
_W32 = Struct(">I")
_I64 = Struct(">q")

_TRUE, _FALSE = b"TF"
_NOTHING, _SOMETHING = b"01"


class Reader:
    """Reads one value after the other from a byte string."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._at

    def at_end(self) -> bool:
        return self._at == len(self._data)

    def finish(self) -> None:
        """Raise if anything is left."""
        if self._at != len(self._data):
            raise MalformedMessageError(f"{self.left} bytes follow where the message should end")

    def peek(self) -> int | None:
        """The next byte, which stays unread; None at the end."""
        return self._data[self._at] if self._at < len(self._data) else None

    def u8(self) -> int:
        try:
            value = self._data[self._at]
        except IndexError:
            raise MalformedMessageError("the message ends in the middle of a value") from None
        self._at += 1
        return value

    def w16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def w32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def short(self) -> bytes:
        return self.take(self.u8())

    def large(self) -> bytes:
        return self.take(self.w16())

    def tail(self) -> bytes:
        value = self._data[self._at :]
        self._at = len(self._data)
        return value

    def take(self, byte_count: int) -> bytes:
        end = self._at + byte_count
        if end > len(self._data):
            raise MalformedMessageError(
                f"the message announces {byte_count} bytes and has {self.left} left"
            )
        value = self._data[self._at : end]
        self._at = end
        return value

    def flag(self) -> bool:
        byte = self.u8()
        if byte not in (_TRUE, _FALSE):
            raise MalformedMessageError("a flag is neither T nor F")
        return byte == _TRUE

    def maybe(self, read: Callable[[], T]) -> T | None:
        byte = self.u8()
        if byte == _NOTHING:
            return None
        if byte != _SOMETHING:
            raise MalformedMessageError("where something may be absent stands neither 0 nor 1")
        return read()

    def items(self, read: Callable[[], T]) -> tuple[T, ...]:
        return tuple([read() for _ in range(self.u8())])

    def some(self, read: Callable[[], T]) -> tuple[T, ...]:
        """As `items`, but at least one."""
        items = self.items(read)
        if not items:
            raise MalformedMessageError("a list is empty that may not be")
        return items


def w16(number: int) -> bytes:
    return _W16.pack(number)


def w32(number: int) -> bytes:
    return _W32.pack(number)


def i64(number: int) -> bytes:
    return _I64.pack(number)


def short(value: bytes) -> bytes:
    if len(value) > SHORT_BYTES_MAX:
        raise ValueError(f"a short string has at most 255 bytes, not {len(value)}")
    return bytes((len(value),)) + value


def large(value: bytes) -> bytes:
    if len(value) > LARGE_BYTES_MAX:
        raise ValueError(f"a large string has at most 65535 bytes, not {len(value)}")
    return _W16.pack(len(value)) + value


def flag(value: bool) -> bytes:
    return b"T" if value else b"F"


def maybe(value: T | None, write: Callable[[T], bytes]) -> bytes:
    return b"0" if value is None else b"1" + write(value)


def items(encoded: tuple[bytes, ...]) -> bytes:
    if len(encoded) > ITEM_COUNT_MAX:
        raise ValueError(f"a list has at most 255 items, not {len(encoded)}")
    return bytes((len(encoded),)) + b"".join(encoded)
