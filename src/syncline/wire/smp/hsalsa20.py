"""HSalsa20 of a key and sixteen zero bytes: the step that every box takes before its cipher.

libsodium has it and PyNaCl does not show it. PyNaCl's own library exports the function, whether
libsodium is part of it or a library of the system, so it is called there (1.5 µs). Where a build
hides it, the same is done in Python (some 90 µs): slower, and bit for bit the same.
"""

import ctypes
import struct
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

KEY_BYTES: Final = 32

_ZEROS: Final = bytes(16)
_CONSTANTS: Final = struct.unpack("<4I", b"expand 32-byte k")
_MASK: Final = 0xFFFFFFFF
_DOUBLE_ROUND_COUNT: Final = 10
# Of sixteen words: four columns, then four rows, each starting from the diagonal.
_QUARTERS: Final = (
    (0, 4, 8, 12),
    (5, 9, 13, 1),
    (10, 14, 2, 6),
    (15, 3, 7, 11),
    (0, 1, 2, 3),
    (5, 6, 7, 4),
    (10, 11, 8, 9),
    (15, 12, 13, 14),
)


def hsalsa20_in_python(key: bytes) -> bytes:
    k = struct.unpack("<8I", key)
    c = _CONSTANTS
    words = [c[0], *k[:4], c[1], 0, 0, 0, 0, c[2], *k[4:], c[3]]
    for _ in range(_DOUBLE_ROUND_COUNT):
        for first, second, third, fourth in _QUARTERS:
            words[second] ^= _rotated(words[first] + words[fourth], 7)
            words[third] ^= _rotated(words[second] + words[first], 9)
            words[fourth] ^= _rotated(words[third] + words[second], 13)
            words[first] ^= _rotated(words[fourth] + words[third], 18)
    return struct.pack("<8I", words[0], words[5], words[10], words[15], *words[6:10])


def _rotated(number: int, count: int) -> int:
    number &= _MASK
    return (number << count | number >> (32 - count)) & _MASK


def _of_libsodium() -> Callable[[bytes], bytes] | None:
    spec = find_spec("nacl._sodium")
    if spec is None or spec.origin is None:
        return None
    try:
        function = ctypes.CDLL(spec.origin).crypto_core_hsalsa20
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p] * 4
    result_type = ctypes.c_char * KEY_BYTES

    def hsalsa20(key: bytes) -> bytes:
        # The function trusts its lengths.
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        result = result_type()
        function(result, _ZEROS, key, None)
        return result.raw

    return hsalsa20


hsalsa20_of_libsodium: Final = _of_libsodium()
hsalsa20: Final = hsalsa20_of_libsodium or hsalsa20_in_python
