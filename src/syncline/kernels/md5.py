"""MD5 of many 24-byte ids at once, bit-exact with `hashlib`, and its XOR over sets.

An id and its padding fill one block of sixteen 32-bit words, of which six vary: the other ten are
constants, so their part in a step is added to the step's own constant beforehand. A compiled loop
is no faster than this, so there is none.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.xxh3 import ID_BYTES, Ids, as_rows

# Rows in one piece: the ten columns in use stay in the cache.
PIECE_ROWS: Final = 8_192

_MASK: Final = 0xFFFF_FFFF
_START: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_ROTATIONS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
# The word that step i of a round reads: (factor * i + offset) mod 16.
_ORDERS: Final = ((1, 0), (5, 1), (3, 5), (7, 0))
_WORDS: Final = ID_BYTES // 4
# After the id: a one bit, zeros, and the length in bits.
_PADDING: Final = {6: 0x80, 14: ID_BYTES * 8}

Words = npt.NDArray[np.uint32]


def md5(ids: Ids | bytes) -> npt.NDArray[np.uint8]:
    """The digest of each id, of shape (count, 16)."""
    rows = as_rows(ids)
    digests = np.empty((len(rows), 4), "<u4")
    for start in range(0, len(rows), PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        words = np.ascontiguousarray(rows[piece].view("<u4").T).astype(np.uint32, copy=False)
        for column, state in enumerate(_hash_piece(words)):
            digests[piece, column] = state
    return digests.view(np.uint8).reshape(-1, 16)


def xor_md5(ids: Ids | bytes) -> bytes:
    """XOR of the digests of all ids."""
    xor: npt.NDArray[np.uint8] = np.bitwise_xor.reduce(md5(ids), axis=0, initial=np.uint8(0))
    return xor.tobytes()


def _hash_piece(words: Words) -> tuple[Words, Words, Words, Words]:
    size = words.shape[1]
    a, b, c, d = (np.full(size, start, np.uint32) for start in _START)
    for step in range(64):
        turn = step // 16
        mixed = _mix(turn, b, c, d)
        mixed += a
        index, constant = _STEPS[step]
        mixed += constant
        if index is not None:
            mixed += words[index]
        rotation = _ROTATIONS[turn][step % 4]
        rotated = mixed << np.uint32(rotation)
        mixed >>= np.uint32(32 - rotation)
        rotated |= mixed
        rotated += b
        a, d, c, b = d, c, b, rotated
    return (
        a + np.uint32(_START[0]),
        b + np.uint32(_START[1]),
        c + np.uint32(_START[2]),
        d + np.uint32(_START[3]),
    )


def _mix(turn: int, b: Words, c: Words, d: Words) -> Words:
    if turn == 0:
        return ((c ^ d) & b) ^ d
    if turn == 1:
        return ((b ^ c) & d) ^ c
    if turn == 2:
        return b ^ c ^ d
    return c ^ (b | ~d)


def _steps() -> list[tuple[int | None, np.uint32]]:
    """For each step the word of the id that it reads, if any, and what else it adds."""
    steps: list[tuple[int | None, np.uint32]] = []
    for step in range(64):
        factor, offset = _ORDERS[step // 16]
        index = (factor * (step % 16) + offset) % 16
        constant = int(abs(math.sin(step + 1)) * 2**32) + _PADDING.get(index, 0)
        steps.append((index if index < _WORDS else None, np.uint32(constant & _MASK)))
    return steps


_STEPS: Final = _steps()
