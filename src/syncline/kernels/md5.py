"""MD5 of many 24-byte ids at once, bit-exact with `hashlib`, and its XOR over sets.

An id and its padding fill one block of sixteen 32-bit words, of which six vary: the other ten are
constants, so their part in a step is added to the step's own constant beforehand. Compiled, the
operations of a step run over some thousand ids in one go instead of one after another.
"""

import math
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
from syncline.kernels.segments import Starts, one_segment, pieces
from syncline.kernels.xxh3 import ID_BYTES, Ids, as_rows

# Rows in one piece: the dozen columns in use stay in the cache.
PIECE_ROWS: Final = 16_384
# The compiled loop has no columns but these ten, and passes over them more often.
_COMPILED_ROWS: Final = 4_096

_MASK: Final = 0xFFFF_FFFF
_START: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_ROTATIONS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
# The word that step i of a round reads: (factor * i + offset) mod 16.
_ORDERS: Final = ((1, 0), (5, 1), (3, 5), (7, 0))
_WORDS: Final = ID_BYTES // 4
# After the id: a one bit, zeros, and the length in bits.
_PADDING: Final = {6: 0x80, 14: ID_BYTES * 8}
_STEP_COUNT: Final = 64
_START_WORDS: Final = np.array(_START, np.uint32)

Words = npt.NDArray[np.uint32]


def md5(ids: Ids | bytes) -> npt.NDArray[np.uint8]:
    """The digest of each id, of shape (count, 16)."""
    rows = as_rows(ids)
    digests = np.empty((len(rows), 4), "<u4")
    hashing = _Hashing(len(rows))
    for start in range(0, len(rows), hashing.row_count_max):
        piece = rows[start : start + hashing.row_count_max]
        digests[start : start + len(piece)] = hashing.states(piece).T
    return digests.view(np.uint8).reshape(-1, 16)


def xor_md5(ids: Ids | bytes) -> bytes:
    """XOR of the digests of all ids."""
    rows = as_rows(ids)
    return xor_md5_at(rows, one_segment(len(rows))).tobytes() or bytes(16)


def xor_md5_at(ids: Ids, starts: Starts) -> npt.NDArray[np.uint8]:
    """XOR of the digests of each segment of ids, of shape (segments, 16)."""
    rows = as_rows(ids)
    found = np.zeros((len(starts), 4), "<u4")
    hashing = _Hashing(len(rows))
    for piece in pieces(starts, len(rows), hashing.row_count_max):
        states = hashing.states(rows[piece.rows])
        found[piece.segments] ^= np.bitwise_xor.reduceat(states, piece.starts, axis=1).T
    return found.view(np.uint8).reshape(-1, 16)


class _Hashing:
    """Hashes some thousand ids at once, each time in the same memory."""

    def __init__(self, row_count: int) -> None:
        self._hash_columns = HASHING.compiled
        at_once = PIECE_ROWS if self._hash_columns is None else _COMPILED_ROWS
        self.row_count_max = max(1, min(row_count, at_once))
        self._columns = self._new_columns(self.row_count_max)
        self._scratch = np.empty((2, self.row_count_max), np.uint32)

    def states(self, rows: Ids) -> Words:
        """The four words of each digest, in columns; good until the next call."""
        size = len(rows)
        # Without gaps, as the compiled loop wants them.
        is_whole = size == self.row_count_max
        words, states = self._columns if is_whole else self._new_columns(size)
        words[:_WORDS] = rows.view("<u4").T
        if self._hash_columns is not None:
            self._hash_columns(words, _INDICES, _CONSTANTS, _TURNS, _START_WORDS, states)
        else:
            _hash_piece(words, states, self._scratch[:, :size])
        return states

    def _new_columns(self, size: int) -> tuple[Words, Words]:
        # The word after those of the id stays zero.
        return np.zeros((_WORDS + 1, size), np.uint32), np.empty((4, size), np.uint32)


def _hash_piece(words: Words, states: Words, scratch: Words) -> None:
    """The four states in turn take the place of the oldest: nothing is allocated."""
    states[:] = _START_WORDS[:, None]
    mixed, other = scratch
    for step in range(_STEP_COUNT):
        a, b = states[-step % 4], states[(1 - step) % 4]
        c, d = states[(2 - step) % 4], states[(3 - step) % 4]
        index, constant = _STEPS[step]
        a += constant
        if index is not None:
            a += words[index]
        _mix(step // 16, b, c, d, mixed)
        mixed += a
        left = _ROTATIONS[step // 16][step % 4]
        np.left_shift(mixed, np.uint32(left), out=other)
        np.right_shift(mixed, np.uint32(32 - left), out=mixed)
        mixed |= other
        np.add(mixed, b, out=a)
    states += _START_WORDS[:, None]


def _mix(turn: int, b: Words, c: Words, d: Words, mixed: Words) -> None:
    if turn == 0:
        np.bitwise_xor(c, d, out=mixed)
        mixed &= b
        mixed ^= d
    elif turn == 1:
        np.bitwise_xor(b, c, out=mixed)
        mixed &= d
        mixed ^= c
    elif turn == 2:
        np.bitwise_xor(b, c, out=mixed)
        mixed ^= d
    else:
        np.invert(d, out=mixed)
        mixed |= b
        mixed ^= c


def _steps() -> list[tuple[int | None, np.uint32]]:
    """For each step the word of the id that it reads, if any, and what else it adds."""
    steps: list[tuple[int | None, np.uint32]] = []
    for step in range(_STEP_COUNT):
        factor, offset = _ORDERS[step // 16]
        index = (factor * (step % 16) + offset) % 16
        constant = int(abs(math.sin(step + 1)) * 2**32) + _PADDING.get(index, 0)
        steps.append((index if index < _WORDS else None, np.uint32(constant & _MASK)))
    return steps


_STEPS: Final = _steps()

# ---------------------------------------------------------------------------------------- compiled

_U32: Final = np.uint32(32)
_ALL_ONES: Final = np.uint32(_MASK)
# The word that each step reads; the one after the id's is always zero.
_INDICES: Final = np.array([_WORDS if index is None else index for index, _ in _STEPS], np.int64)
_CONSTANTS: Final = np.array([constant for _, constant in _STEPS], np.uint32)
_TURNS: Final = np.array(
    [_ROTATIONS[step // 16][step % 4] for step in range(_STEP_COUNT)], np.uint32
)


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
