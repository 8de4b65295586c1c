"""Ranges mode: ever smaller ranges, until the ids in question can be named.

Ranges are prefixes, so they need no boundaries on the wire. Each part comes with its count and a
salted fingerprint; those that match are done, the others are cut again, all in one question. Only
ranges that differ are read, on both sides.
"""

from typing import Final

import numpy as np
import xxhash

from syncline.core.reconciliation.sets import (
    IdSet,
    RangeDigest,
    as_hashes,
    hash_bytes,
    prefix_range,
    rows_between,
    sketch_hashes,
)
from syncline.core.reconciliation.working import WorkingSet, parts_of
from syncline.kernels.xxh3 import salted
from syncline.values.reconciliation import (
    DIGEST_BYTES,
    FINGERPRINT_BYTES,
    PART_COUNT_MAX,
    Answer,
    Fetch,
    Fetched,
    ListIds,
    Listing,
    Opening,
    Part,
    Parts,
    Prefixes,
    Request,
    Split,
)

# Ranges of up to so many ids are not cut further: their hashes are listed.
LEAF_COUNT: Final = 24
_FAN_BITS: Final = 8
# Parts whose counts and fingerprints fill a block.
_BLOCK_PARTS: Final = 2_048
_DEPTH_MAX: Final = 64
# From here on whole ids are listed at once: more bytes, and a round trip less.
_HASTE: Final = 4


def fingerprint(salt: bytes, digest: RangeDigest) -> bytes:
    """Forty bits that differ, most likely, if anything in the range does."""
    image = b"".join(
        (
            salt,
            digest.count.to_bytes(8, "big"),
            digest.xor128.to_bytes(DIGEST_BYTES, "big"),
            digest.sum128.to_bytes(DIGEST_BYTES, "big"),
        )
    )
    return xxhash.xxh3_64_digest(image)[:FINGERPRINT_BYTES]


def part_of(ids: IdSet, salt: bytes, depth: int, prefix: int, is_leaf: bool) -> Part:
    """What is said about a range: fingerprint, or hashes if it is not to be cut further."""
    start, end = prefix_range(depth, prefix)
    digest = ids.digest(start, end)
    if digest.count and not (is_leaf and digest.count <= LEAF_COUNT):
        return Part(digest.count, fingerprint(salt, digest))
    rows = rows_between(ids, start, end)
    return Part(digest.count, None, hash_bytes(np.sort(sketch_hashes(salted(rows, salt)))))


class RangeSearch:
    opening_cells = 0

    def __init__(self, ids: IdSet, working: WorkingSet) -> None:
        self._ids = ids
        self._working = working
        self._salt = b""
        # Ranges that differ: their depth, and prefix with the larger of the two counts.
        self._depth = 0
        self._open: dict[int, int] = {}
        # Ranges with hashes of ids in them that only they have.
        self._wanted: dict[int, bytes] = {}

    def opened(self, opening: Opening) -> None:
        self._salt = opening.salt
        self._depth = 0
        self._open = {0: max(opening.state.count, self._ids.size())}
        self._wanted = {}

    def learn(self, asked: Request, answer: Answer) -> None:
        match answer:
            case Parts():
                assert isinstance(asked, Split)
                self._learn_parts(asked, answer)
            case Fetched():
                self._wanted = {}
                self._working.add(answer.ids)
                self._working.apply(answer.changes)
            case Listing():
                assert isinstance(asked, ListIds)
                self._open = {}
                prefixes = np.array(asked.ranges.values, np.uint64)
                self._working.drop_prefixes(asked.ranges.depth, prefixes)
                self._working.add(answer.ids)
            case _:
                raise AssertionError(answer)

    def _learn_parts(self, asked: Split, answer: Parts) -> None:
        depth, prefixes = parts_of(asked.ranges, asked.fan_bits)
        self._depth, self._open = depth, {}
        for prefix, part in zip(prefixes.tolist(), answer.parts, strict=True):
            start, end = prefix_range(depth, prefix)
            mine = self._ids.digest(start, end)
            if part.fingerprint is None:
                self._compare_hashes(depth, prefix, part)
            elif fingerprint(self._salt, mine) != part.fingerprint:
                self._open[prefix] = max(mine.count, part.count)

    def _compare_hashes(self, depth: int, prefix: int, part: Part) -> None:
        rows = rows_between(self._ids, *prefix_range(depth, prefix))
        mine, theirs = sketch_hashes(salted(rows, self._salt)), as_hashes(part.hashes)
        self._working.drop_rows(rows[~np.isin(mine, theirs)])
        wanted = theirs[~np.isin(theirs, mine)]
        if len(wanted):
            self._wanted[prefix] = hash_bytes(wanted)

    def next(self, version: int, round_trips: int) -> Request | None:
        if self._open:
            return self._next_for_open(version, round_trips)
        if self._wanted:
            ranges = Prefixes(self._depth, tuple(sorted(self._wanted)))
            hashes = np.sort(as_hashes(b"".join(self._wanted.values())))
            return Fetch(version, self._salt, hash_bytes(hashes), ranges)
        return None

    def _next_for_open(self, version: int, round_trips: int) -> Request:
        ranges = Prefixes(self._depth, tuple(sorted(self._open)))
        largest = max(self._open.values())
        room = _bits_of(PART_COUNT_MAX // len(self._open))
        # As fine as fills a block anyway; with many ranges open, finer only as far as needed.
        fan_bits = max(_bits_of(_BLOCK_PARTS // len(self._open)), _FAN_BITS)
        fan_bits = min(fan_bits, (largest // LEAF_COUNT).bit_length(), room)
        is_large = largest > LEAF_COUNT
        can_cut = 0 < fan_bits <= _DEPTH_MAX - self._depth
        if round_trips >= _HASTE or (is_large and not can_cut):
            # What is still open is listed whole, and what is wanted besides.
            every = sorted({*self._open, *self._wanted})
            self._wanted = {}
            return ListIds(version, Prefixes(self._depth, tuple(every)))
        return Split(version, self._salt, ranges, fan_bits if is_large else 0)


def _bits_of(number: int) -> int:
    return max(0, number.bit_length() - 1)
