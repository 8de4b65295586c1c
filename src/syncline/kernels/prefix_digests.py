"""Count, XOR and sums of the hashes of ids, for each prefix that they begin with.

The sums are those of the four 32-bit parts of a hash, without carry, as `records.sqlite` keeps
them: none overflows below 2^31 ids, and sums of parts of a set add up to those of the set. Numbers
are signed, as databases have no others.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.segments import Starts, pieces, segment_starts
from syncline.kernels.xxh3 import Ids, Words, xxh3_128

DEPTH_MAX: Final = 16
# Rows in one piece: their hashes stay in the cache until they are summed.
_PIECE_ROWS: Final = 16_384
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFF_FFFF)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PrefixDigests:
    """One row for each prefix that an id has, ascending. `sums` has four, the highest first."""

    prefixes: Integers
    counts: Integers
    xor_high: Integers
    xor_low: Integers
    sums: Integers

    def __len__(self) -> int:
        return len(self.prefixes)


def prefixes_of(ids: Ids, depth: int) -> npt.NDArray[np.uint16]:
    """The first `depth` bits of each id, 0 to 16 of them."""
    if depth == 0:
        return np.zeros(len(ids), np.uint16)
    return first_bits(ids) >> np.uint16(DEPTH_MAX - depth)


def first_bits(ids: Ids) -> npt.NDArray[np.uint16]:
    """The first 16 of each id."""
    return np.ascontiguousarray(ids).view(">u2")[:, 0].astype(np.uint16)


def prefix_digests(ids: Ids, depth: int) -> PrefixDigests:
    """Of ids in any order."""
    if not 0 <= depth <= DEPTH_MAX:
        raise ValueError(f"a prefix has 0 to {DEPTH_MAX} bits, not {depth}")
    if not len(ids):
        nothing = np.empty(0, np.int64)
        return PrefixDigests(nothing, nothing, nothing, nothing, np.empty((4, 0), np.int64))
    prefixes = prefixes_of(ids, depth)
    if (prefixes[1:] < prefixes[:-1]).any():
        # Sorting 16-bit numbers takes one look at each.
        order = np.argsort(prefixes, kind="stable")
        prefixes, ids = prefixes[order], ids[order]
    starts = segment_starts(prefixes[1:] != prefixes[:-1])
    return PrefixDigests(prefixes[starts].astype(np.int64), *digests_at(ids, starts))


def digests_at(ids: Ids, starts: Starts) -> tuple[Integers, Integers, Integers, Integers]:
    """Counts, the halves of the XORs and the sums of each segment of ids."""
    count = len(starts)
    xors, sums = np.zeros((2, count), np.uint64), np.zeros((4, count), np.uint64)
    for piece in pieces(starts, len(ids), _PIECE_ROWS):
        high, low = xxh3_128(ids[piece.rows])
        for xor, half in zip(xors, (high, low), strict=True):
            xor[piece.segments] ^= np.bitwise_xor.reduceat(half, piece.starts)
        for total, part in zip(sums, _parts(high, low), strict=True):
            total[piece.segments] += np.add.reduceat(part, piece.starts)
    counts = np.diff(starts, append=len(ids))
    xor_high, xor_low = xors.view(np.int64)
    return counts, xor_high, xor_low, sums.view(np.int64)


def _parts(high: Words, low: Words) -> tuple[Words, Words, Words, Words]:
    return high >> _HALF, high & _LOW_HALF, low >> _HALF, low & _LOW_HALF


def depth_for(id_count: int, ids_each: int = 256) -> int:
    """How many bits part a set into ranges of about `ids_each`."""
    depth = 0
    while depth < DEPTH_MAX and id_count > ids_each << depth:
        depth += 1
    return depth


class DigestSums:
    """Digests of a set that comes in pieces."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        size = 1 << depth
        self._counts = np.zeros(size, np.int64)
        self._xor_high = np.zeros(size, np.int64)
        self._xor_low = np.zeros(size, np.int64)
        self._sums = np.zeros((4, size), np.int64)

    def add(self, ids: Ids) -> None:
        found = prefix_digests(ids, self.depth)
        self._counts[found.prefixes] += found.counts
        self._xor_high[found.prefixes] ^= found.xor_high
        self._xor_low[found.prefixes] ^= found.xor_low
        self._sums[:, found.prefixes] += found.sums

    def digests(self) -> PrefixDigests:
        """Of the prefixes that any id had."""
        there = np.flatnonzero(self._counts)
        return PrefixDigests(
            there,
            self._counts[there],
            self._xor_high[there],
            self._xor_low[there],
            self._sums[:, there],
        )
