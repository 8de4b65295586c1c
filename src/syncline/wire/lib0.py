"""The primitives that Yjs is written in (lib0): numbers of variable length, texts, byte strings.

    varUint        7 bits to a byte, least significant first; 0x80: more follow
    varInt         as varUint, but the first byte has 6 bits and 0x40 for the sign
    varString      varUint, then so many bytes UTF-8
    varUint8Array  varUint, then so many bytes
    any            a tag byte, then a value: see `Reader.skip_any`

A reader takes at most 8 bytes for a number and no number above 2^53-1, and believes no length that
passes the end of its input. Whatever it is given, it raises MalformedMessageError or
LimitExceededError and nothing else.
"""

from collections.abc import Callable
from re import Match
from typing import Final

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits

NUMBER_MAX: Final = (1 << 53) - 1
NUMBER_BYTES_MAX: Final = 8

# undefined, null, false and true are their tag alone; then float32, float64, bigint64
_FIXED_BYTES = {127: 0, 126: 0, 121: 0, 120: 0, 124: 4, 123: 8, 122: 8}
_INTEGER, _STRING, _OBJECT, _ARRAY, _BYTES = 125, 119, 118, 117, 116


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

    def finish(self) -> None:
        """Raise if anything is left."""
        if self.left:
            raise MalformedMessageError(f"{self.left} bytes follow where the message should end")

    def byte(self) -> int:
        try:
            value = self._data[self._at]
        except IndexError:
            raise _cut() from None
        self._at += 1
        return value

    def var_uint(self) -> int:
        byte = self.byte()
        return byte if byte < 0x80 else self._more(byte & 0x7F, 7)

    def var_int(self) -> int:
        """Minus zero is zero."""
        byte = self.byte()
        magnitude = self._more(byte & 0x3F, 6) if byte & 0x80 else byte & 0x3F
        return -magnitude if byte & 0x40 else magnitude

    def var_bytes(self) -> bytes:
        return self._take(self.var_uint())

    def var_string(self) -> str:
        return self.text(self.var_uint())

    def text(self, byte_count: int) -> str:
        """So many bytes of UTF-8."""
        try:
            return self._take(byte_count).decode()
        except UnicodeDecodeError:
            raise MalformedMessageError("a text in the message is no UTF-8") from None

    def match(self, pattern: Callable[[bytes, int], Match[bytes] | None]) -> Match[bytes] | None:
        """Pass over what the `match` of a pattern finds here, if anything."""
        found = pattern(self._data, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def count(self, each_bytes_min: int) -> int:
        """A number of things that take at least so many bytes each, all of them still to come."""
        count = self.var_uint()
        if count * each_bytes_min > self.left:
            raise MalformedMessageError(
                f"the message announces {count} things and has {self.left} bytes left for them"
            )
        return count

    def skip_any(self, depth_left: int = limits.json_depth_max) -> None:
        """Pass over a value of lib0's own notation for JSON-like data."""
        if depth_left < 0:
            raise LimitExceededError(
                "the nesting of a value", limits.json_depth_max + 1, limits.json_depth_max
            )
        tag = self.byte()
        if tag in _FIXED_BYTES:
            self._take(_FIXED_BYTES[tag])
        elif tag == _INTEGER:
            self.var_int()
        elif tag == _STRING:
            self.var_string()
        elif tag == _BYTES:
            self.var_bytes()
        elif tag == _OBJECT:
            for _ in range(self.count(each_bytes_min=2)):
                self.var_string()
                self.skip_any(depth_left - 1)
        elif tag == _ARRAY:
            for _ in range(self.count(each_bytes_min=1)):
                self.skip_any(depth_left - 1)
        else:
            raise MalformedMessageError(f"{tag} is no tag of a value")

    def _more(self, number: int, shift: int) -> int:
        # Ids of clients are random and take all eight bytes: this is where an update is spent.
        more = self._data[self._at : self._at + NUMBER_BYTES_MAX - 1]
        for count, byte in enumerate(more, 1):
            if byte < 0x80:
                self._at += count
                number |= byte << shift
                if number > NUMBER_MAX:
                    break
                return number
            number |= (byte & 0x7F) << shift
            shift += 7
        else:
            if len(more) < NUMBER_BYTES_MAX - 1:
                raise _cut()
        raise MalformedMessageError(f"a number in the message is above {NUMBER_MAX}")

    def _take(self, byte_count: int) -> bytes:
        end = self._at + byte_count
        if end > len(self._data):
            raise MalformedMessageError(
                f"the message announces {byte_count} bytes and has {self.left} left"
            )
        value = self._data[self._at : end]
        self._at = end
        return value


def small_number(encoded: bytes) -> int:
    """Of a varUint that is known to be whole and within the limit."""
    number = 0
    for byte in reversed(encoded):
        number = number << 7 | byte & 0x7F
    return number


def _cut() -> MalformedMessageError:
    return MalformedMessageError("the message ends in the middle of a value")


def var_uint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def var_int(number: int) -> bytes:
    magnitude, sign = abs(number), 0x40 if number < 0 else 0
    if magnitude < 0x40:
        return bytes((sign | magnitude,))
    return bytes((0x80 | sign | magnitude & 0x3F,)) + var_uint(magnitude >> 6)


def var_bytes(value: bytes) -> bytes:
    return var_uint(len(value)) + value


def var_string(text: str) -> bytes:
    return var_bytes(text.encode())
