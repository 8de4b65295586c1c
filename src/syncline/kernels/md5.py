"""MD5 of many 24-byte ids at once, bit-exact with `hashlib`, and its XOR over sets.

An id and its padding fill one block of sixteen 32-bit words, of which six vary: the other ten are
constants, so their part in a step is added to the step's own constant beforehand. Compiled, the
operations of a step run over some thousand ids in one go instead of one after another.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.compiled import (
    INDICES,
    SMALL_WORD_ROWS,
    SMALL_WORD_ROWS_OUT,
    SMALL_WORDS,
    Loop,
)
from syncline.kernels.xxh3 import ID_BYTES, Ids, as_rows

# Rows in one piece: the ten columns in use stay in the cache.
PIECE_ROWS: Final = 8_192
# The compiled loop has no columns but these ten, and passes over them more often.
_COMPILED_ROWS: Final = 2_048

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
    words = rows.view("<u4")
    hash_columns = HASHING.compiled
    if hash_columns is not None:
        _md5_compiled(words, hash_columns, digests)
    else:
        for start in range(0, len(rows), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            columns = np.ascontiguousarray(words[piece].T).astype(np.uint32, copy=False)
            for column, state in enumerate(_hash_piece(columns)):
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

# ---------------------------------------------------------------------------------------- compiled

_U32: Final = np.uint32(32)
_ALL_ONES: Final = np.uint32(_MASK)
_STEP_COUNT: Final = 64
_START_WORDS: Final = np.array(_START, np.uint32)
# The word that each step reads; the one after the id's is always zero.
_INDICES: Final = np.array([_WORDS if index is None else index for index, _ in _STEPS], np.int64)
_CONSTANTS: Final = np.array([constant for _, constant in _STEPS], np.uint32)
_TURNS: Final = np.array(
    [_ROTATIONS[step // 16][step % 4] for step in range(_STEP_COUNT)], np.uint32
)

_HashColumns = Callable[[Words, npt.NDArray[np.int64], Words, Words, Words, Words], None]


def _md5_compiled(words: Words, hash_columns: _HashColumns, digests: Words) -> None:
    for start in range(0, len(words), _COMPILED_ROWS):
        piece = words[start : start + _COMPILED_ROWS]
        columns = np.zeros((_WORDS + 1, len(piece)), np.uint32)
        columns[:_WORDS] = piece.T
        states = np.empty((4, len(piece)), np.uint32)
        hash_columns(columns, _INDICES, _CONSTANTS, _TURNS, _START_WORDS, states)
        digests[start : start + len(piece)] = states.T


def _hash_columns(
    words: Words,
    indices: npt.NDArray[np.int64],
    constants: Words,
    turns: Words,
    start: Words,
    states: Words,
) -> None:
    """As `_hash_piece`, with the four states in turn in the place of the oldest.

    numba makes 64 bits of a sum of 32; each `np.uint32` brings it back.
    """
    size = words.shape[1]
    for number in range(4):
        states[number] = start[number]
    for step in range(_STEP_COUNT):
        a, b = states[(64 - step) % 4], states[(65 - step) % 4]
        c, d = states[(66 - step) % 4], states[(67 - step) % 4]
        word, constant = words[indices[step]], constants[step]
        left, right = turns[step], np.uint32(_U32 - turns[step])
        if step < 16:
            for at in range(size):
                mixed = ((c[at] ^ d[at]) & b[at]) ^ d[at]
                mixed = np.uint32(mixed + a[at] + constant + word[at])
                a[at] = np.uint32((mixed << left) | (mixed >> right)) + b[at]
        elif step < 32:
            for at in range(size):
                mixed = ((b[at] ^ c[at]) & d[at]) ^ c[at]
                mixed = np.uint32(mixed + a[at] + constant + word[at])
                a[at] = np.uint32((mixed << left) | (mixed >> right)) + b[at]
        elif step < 48:
            for at in range(size):
                mixed = b[at] ^ c[at] ^ d[at]
                mixed = np.uint32(mixed + a[at] + constant + word[at])
                a[at] = np.uint32((mixed << left) | (mixed >> right)) + b[at]
        else:
            for at in range(size):
                mixed = c[at] ^ (b[at] | (d[at] ^ _ALL_ONES))
                mixed = np.uint32(mixed + a[at] + constant + word[at])
                a[at] = np.uint32((mixed << left) | (mixed >> right)) + b[at]
    for number in range(4):
        for at in range(size):
            states[number, at] += start[number]


HASHING: Final = Loop(
    _hash_columns,
    SMALL_WORD_ROWS,
    INDICES,
    SMALL_WORDS,
    SMALL_WORDS,
    SMALL_WORDS,
    SMALL_WORD_ROWS_OUT,
)
