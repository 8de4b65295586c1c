"""Sorted ids as an array: where ranges begin, and count, XOR and sum of any of them.

Ids are 24 bytes and are compared as such; their first eight bytes, as a number, find a place in
most cases, and the rest decides among those that share them. Prefix sums of the hashes answer for
any range in constant time.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from syncline.kernels.xxh3 import ID_BYTES, Ids, Words, xxh3_128

# The prefixes of two bytes: what a walker checks one by one.
BUCKET_COUNT: Final = 1 << 16
_U32: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFF_FFFF)

Indices = npt.NDArray[np.int64]
_Number = TypeVar("_Number", np.int64, np.uint64)


def keys(ids: Ids) -> Words:
    """The first eight bytes of each id as a number."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def sorted_ids(ids: Ids) -> Ids:
    """In order, each once."""
    if len(ids) < 2:
        return ids
    order = np.argsort(keys(ids), kind="stable")
    found = ids[order]
    heads = keys(found)
    if (heads[1:] == heads[:-1]).any():
        rest = found.view(">u8").reshape(-1, 3)
        found = found[np.lexsort((rest[:, 2], rest[:, 1], rest[:, 0]))]
    is_new = np.ones(len(found), np.bool_)
    is_new[1:] = np.any(found[1:] != found[:-1], axis=1)
    return found if is_new.all() else found[is_new]


def distinct(numbers: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """In order, each once. Of a million, `np.unique` takes ten times as long: it hashes them."""
    found = np.sort(numbers)
    is_new = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return found if is_new.all() else found[is_new]


def are_sorted(ids: Ids) -> bool:
    """Whether each id is larger than the one before."""
    words = np.ascontiguousarray(ids).view(">u8").reshape(-1, 3).astype(np.uint64)
    before, after = words[:-1], words[1:]
    is_larger = after[:, 2] > before[:, 2]
    for column in (1, 0):
        is_larger = (after[:, column] > before[:, column]) | (
            (after[:, column] == before[:, column]) & is_larger
        )
    return bool(is_larger.all())


def lower_bound(ids: Ids, heads: Words, wanted: bytes) -> int:
    """How many ids come before this one, which may be shorter than an id."""
    wanted = wanted.ljust(ID_BYTES, b"\0")
    head = np.uint64(int.from_bytes(wanted[:8], "big"))
    low = int(np.searchsorted(heads, head, "left"))
    high = int(np.searchsorted(heads, head, "right"))
    while low < high:
        middle = (low + high) // 2
        if ids[middle].tobytes() < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def prefix_bounds(heads: Words, depth: int, prefixes: Words) -> tuple[Indices, Indices]:
    """Where the ids with each of these prefixes of `depth` bits, 0 to 64, begin and end."""
    if depth == 0:
        size = np.full(len(prefixes), len(heads), np.int64)
        return np.zeros(len(prefixes), np.int64), size
    shift = np.uint64(64 - depth)
    first = prefixes << shift
    last = first | np.uint64((1 << 64 - depth) - 1)
    return np.searchsorted(heads, first, "left"), np.searchsorted(heads, last, "right")


def prefix_counts(heads: Words, depth: int) -> Indices:
    """How many ids each prefix of `depth` bits has."""
    edges = np.arange(1 << depth, dtype=np.uint64) << np.uint64(64 - depth)
    return np.diff(np.searchsorted(heads, edges, "left"), append=len(heads))


@dataclass(frozen=True, slots=True)
class PrefixSums:
    """Of the hashes of sorted ids: one more entry than ids, the first is zero."""

    xor_high: Words
    xor_low: Words
    # Sums of 32-bit quarters, the highest first: none overflows below 2^32 ids.
    quarters: Words

    @classmethod
    def of(cls, ids: Ids) -> "PrefixSums":
        high, low = xxh3_128(ids)
        quarters = np.zeros((4, len(ids) + 1), np.uint64)
        for row, part in enumerate((high >> _U32, high & _LOW_HALF, low >> _U32, low & _LOW_HALF)):
            np.cumsum(part, out=quarters[row, 1:])
        return cls(_accumulated(high), _accumulated(low), quarters)

    def between(self, start: int, end: int) -> tuple[int, int]:
        """XOR and sum modulo 2^128 of the hashes from one place up to another."""
        high = int(self.xor_high[end]) ^ int(self.xor_high[start])
        low = int(self.xor_low[end]) ^ int(self.xor_low[start])
        total = 0
        for quarter in self.quarters:
            total = (total << 32) + int(quarter[end]) - int(quarter[start])
        return high << 64 | low, total & (1 << 128) - 1


def _accumulated(words: Words) -> Words:
    sums = np.zeros(len(words) + 1, np.uint64)
    np.bitwise_xor.accumulate(words, out=sums[1:])
    return sums


def bucket_digests(ids: Ids) -> list[tuple[int, int, int]]:
    """Count, XOR and sum of the ids of each prefix of two bytes. The ids are in order."""
    sums = PrefixSums.of(ids)
    ends = np.cumsum(prefix_counts(keys(ids), 16))
    found = [(0, 0, 0)] * BUCKET_COUNT
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    for bucket in np.flatnonzero(ends > starts).tolist():
        start, end = int(starts[bucket]), int(ends[bucket])
        found[bucket] = (end - start, *sums.between(start, end))
    return found
