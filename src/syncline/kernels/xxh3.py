"""XXH3-128 of many 24-byte ids at once, bit-exact with `xxhash`, and its sums over sets.

For 24 bytes the hash reads three little-endian words and mixes them pairwise with the first four
words of a fixed secret, to which the seed is added and from which it is taken in turn. NumPy has no
128-bit product, so it is put together from products of 32-bit halves. Work goes in pieces that
stay in the processor's cache. Where compiled forms are ready, one pass over each id does the same.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.compiled import WORD, WORD_ROWS, WORDS, WORDS_OUT, Loop

ID_BYTES: Final = 24
# Rows in one piece: some dozen columns of 64 bits stay in the cache.
PIECE_ROWS: Final = 8_192
_SUMMED_ROWS: Final = 2 * PIECE_ROWS

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.uint8]

_MASK: Final = (1 << 64) - 1
_SECRET: Final = (
    0xBE4BA423396CFEB8,
    0x1CAD21F72C81017C,
    0xDB979083E96DD4DE,
    0x1F67B3B7A4A44072,
)
_PRIME64_1: Final = 0x9E3779B185EBCA87
_PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME64_4: Final = 0x85EBCA77C2B2AE63
_AVALANCHE: Final = 0x165667919E3779F9

_P1: Final = np.uint64(_PRIME64_1)
_P4: Final = np.uint64(_PRIME64_4)
_AVALANCHE_WORD: Final = np.uint64(_AVALANCHE)
_LENGTH_P1: Final = np.uint64(ID_BYTES * _PRIME64_1 & _MASK)
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFF_FFFF)
_SHIFT: Final = np.uint64(37)
_ZERO: Final = np.uint64(0)


def as_rows(ids: Ids | bytes) -> Ids:
    """Ids one after another, or rows of them already, as an array of shape (count, 24)."""
    rows = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else ids
    if rows.ndim == 1:
        if len(rows) % ID_BYTES:
            raise ValueError(f"{len(rows)} bytes are no ids of {ID_BYTES}")
        rows = rows.reshape(-1, ID_BYTES)
    if rows.ndim != 2 or rows.shape[1] != ID_BYTES:
        raise ValueError(f"ids have the shape (count, {ID_BYTES}), not {rows.shape}")
    return np.ascontiguousarray(rows)


def xxh3_128(ids: Ids | bytes, seed: int = 0) -> tuple[Words, Words]:
    """The high and the low half of each hash."""
    rows = as_rows(ids)
    words = rows.view("<u8")
    high, low = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint64)
    secrets, length_word = _secrets(seed), np.uint64(_length_word(seed))
    hash_rows = HASHING.compiled
    if hash_rows is not None:
        hash_rows(words, secrets, length_word, high, low)
        return high, low
    for start in range(0, len(rows), PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        high[piece], low[piece] = _hash_piece(words[piece], secrets, length_word)
    return high, low


def salted(ids: Ids | bytes, salt: bytes) -> Words:
    """64 bits of each id that nobody can foretell who does not know the salt of 8 bytes."""
    return xxh3_128(ids, int.from_bytes(salt, "big"))[1]


def xor_and_sum(high: Words, low: Words) -> tuple[int, int]:
    """XOR of 128-bit numbers given in halves, and their sum modulo 2^128."""
    upper_xor, upper_sum = _xor_and_sum_of_halves(high)
    lower_xor, lower_sum = _xor_and_sum_of_halves(low)
    return upper_xor << 64 | lower_xor, (upper_sum << 64) + lower_sum & (1 << 128) - 1


def digest(ids: Ids | bytes) -> tuple[int, int]:
    """XOR and sum of the hashes of all ids."""
    rows = as_rows(ids)
    xor, total = 0, 0
    # In pieces, so that the hashes of one stay in the cache until they are summed.
    for start in range(0, len(rows), _SUMMED_ROWS):
        piece_xor, piece_sum = xor_and_sum(*xxh3_128(rows[start : start + _SUMMED_ROWS]))
        xor, total = xor ^ piece_xor, total + piece_sum
    return xor, total & (1 << 128) - 1


def _xor_and_sum_of_halves(words: Words) -> tuple[int, int]:
    """The sum is without overflow, whatever the count: of each word the halves are summed apart."""
    sum_words = SUMMING.compiled
    if sum_words is not None:
        sums = np.zeros(3, np.uint64)
        sum_words(np.ascontiguousarray(words), sums)
        xor, upper, lower = sums.tolist()
    else:
        xor = int(np.bitwise_xor.reduce(words))
        upper, lower = int((words >> _HALF).sum()), int((words & _LOW_HALF).sum())
    return xor, (upper << 32) + lower


def _secrets(seed: int) -> Words:
    signed = (seed, -seed, seed, -seed)
    return np.array(
        [secret + part & _MASK for secret, part in zip(_SECRET, signed, strict=True)], np.uint64
    )


def _length_word(seed: int) -> int:
    return (ID_BYTES - seed) * _PRIME64_2 & _MASK


def _hash_piece(words: Words, secrets: Words, length_word: np.uint64) -> tuple[Words, Words]:
    first, second, third = np.ascontiguousarray(words.T)
    low = _fold(first ^ secrets[0], second ^ secrets[1])
    low += _LENGTH_P1
    low ^= second + third
    high = _fold(second ^ secrets[2], third ^ secrets[3])
    high ^= first + second
    mixed = low * _P1
    mixed += high * _P4
    mixed += length_word
    low += high
    return _ZERO - _avalanche(mixed), _avalanche(low)


def _fold(left: Words, right: Words) -> Words:
    """The two halves of the 128-bit product, XORed."""
    left_high, left_low = left >> _HALF, left & _LOW_HALF
    right_high, right_low = right >> _HALF, right & _LOW_HALF
    cross = left_high * right_low
    high = left_high * right_high
    carry = left_low * right_low
    carry >>= _HALF
    carry += cross & _LOW_HALF
    left_low *= right_high
    carry += left_low
    cross >>= _HALF
    high += cross
    carry >>= _HALF
    high += carry
    high ^= left * right
    return high


def _avalanche(words: Words) -> Words:
    words ^= words >> _SHIFT
    words *= _AVALANCHE_WORD
    words ^= words >> _HALF
    return words


# ---------------------------------------------------------------------------------------- compiled


def _hash_rows(
    words: Words, secrets: Words, length_word: np.uint64, high: Words, low: Words
) -> None:
    """As `_hash_piece`, an id at a time. Plain loops and no calls: numba compiles it as it is."""
    for row in range(len(words)):
        folded = secrets[0]
        first_fold = secrets[0]
        for side in range(2):
            left = words[row, side] ^ secrets[2 * side]
            right = words[row, side + 1] ^ secrets[2 * side + 1]
            left_high, left_low = left >> _HALF, left & _LOW_HALF
            right_high, right_low = right >> _HALF, right & _LOW_HALF
            cross = left_high * right_low
            carry = ((left_low * right_low) >> _HALF) + (cross & _LOW_HALF) + left_low * right_high
            upper = left_high * right_high + (cross >> _HALF) + (carry >> _HALF)
            folded = upper ^ (left * right)
            if side == 0:
                first_fold = folded
        low_part = (first_fold + _LENGTH_P1) ^ (words[row, 1] + words[row, 2])
        high_part = folded ^ (words[row, 0] + words[row, 1])
        mixed = low_part * _P1 + high_part * _P4 + length_word
        added = low_part + high_part
        mixed = (mixed ^ (mixed >> _SHIFT)) * _AVALANCHE_WORD
        added = (added ^ (added >> _SHIFT)) * _AVALANCHE_WORD
        high[row] = _ZERO - (mixed ^ (mixed >> _HALF))
        low[row] = added ^ (added >> _HALF)


def _sum_words(words: Words, sums: Words) -> None:
    """XOR of all, sum of their upper halves, sum of their lower ones."""
    xor, upper, lower = _ZERO, _ZERO, _ZERO
    for word in words:
        xor ^= word
        upper += word >> _HALF
        lower += word & _LOW_HALF
    sums[0], sums[1], sums[2] = xor, upper, lower


HASHING: Final = Loop(_hash_rows, WORD_ROWS, WORDS, WORD, WORDS_OUT, WORDS_OUT)
SUMMING: Final = Loop(_sum_words, WORDS, WORDS_OUT)
