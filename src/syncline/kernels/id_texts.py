"""Many 24-byte ids as text and back: 32 characters of base64url, or 48 of hex, each.

Neither needs padding, so a text has one meaning and an id one text (hex is read in both cases).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.xxh3 import ID_BYTES, Ids

BASE64_CHARACTERS: Final = ID_BYTES * 4 // 3
HEX_CHARACTERS: Final = ID_BYTES * 2

# Of shape (count, characters of one id).
Texts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_NO_DIGIT: Final = 255


def _digits(alphabet: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """What each character stands for."""
    table = np.full(256, _NO_DIGIT, np.uint8)
    table[alphabet] = np.arange(len(alphabet))
    return table


_BASE64_DIGITS: Final = _digits(_ALPHABET)
_HEX_DIGITS: Final = _digits(_HEX)
_HEX_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def from_base64(texts: Texts) -> tuple[Ids, Flags]:
    """The ids, and which of the texts are one. What stands for the others means nothing."""
    digits = _BASE64_DIGITS[texts]
    are_ids: Flags = (digits != _NO_DIGIT).all(axis=1)
    # Four digits of six bits are three bytes.
    first, second, third, fourth = (digits[:, at::4] for at in range(4))
    ids = np.empty((len(texts), ID_BYTES), np.uint8)
    ids[:, 0::3] = first << 2 | second >> 4
    ids[:, 1::3] = second << 4 | third >> 2
    ids[:, 2::3] = third << 6 | fourth
    return ids, are_ids


def from_hex(texts: Texts) -> tuple[Ids, Flags]:
    digits = _HEX_DIGITS[texts]
    are_ids: Flags = (digits != _NO_DIGIT).all(axis=1)
    ids = np.empty((len(texts), ID_BYTES), np.uint8)
    ids[:] = digits[:, 0::2] << 4 | digits[:, 1::2]
    return ids, are_ids


def to_base64(ids: Ids) -> Texts:
    first, second, third = (ids[:, at::3] for at in range(3))
    digits = np.empty((len(ids), BASE64_CHARACTERS), np.uint8)
    digits[:, 0::4] = first >> 2
    digits[:, 1::4] = (first & 3) << 4 | second >> 4
    digits[:, 2::4] = (second & 15) << 2 | third >> 6
    digits[:, 3::4] = third & 63
    return _ALPHABET[digits]


def to_hex(ids: Ids) -> Texts:
    digits = np.empty((len(ids), HEX_CHARACTERS), np.uint8)
    digits[:, 0::2] = ids >> 4
    digits[:, 1::2] = ids & 15
    return _HEX[digits]
