"""A set of ids as reconciliation reads it, and what is derived from one.

`IdSet` is all that a backend offers. `SetView` holds what takes a scan (the ids as an array, their
salted hashes) for as long as the version stays the same; it is a cache, not the state of a session.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from syncline.kernels import ranges
from syncline.kernels.cell_places import HASH_BITS
from syncline.kernels.cells import Cells, sketch
from syncline.kernels.xxh3 import Ids, Words, as_rows, salted, xor_and_sum, xxh3_128
from syncline.values.reconciliation import (
    BUCKET_COUNT,
    DIGEST_BYTES,
    HASH_BYTES,
    ID_BYTES,
    OPENING_DEPTH,
    SetState,
)

END = b"\xff" * (ID_BYTES + 1)  # larger than every id
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RangeDigest:
    count: int
    xor128: int
    sum128: int


class IdSet(Protocol):
    """Ids in order, each once. Ranges go from the first id up to, and without, the second."""

    def size(self) -> int: ...

    def version(self) -> int:
        """Grows with each change."""
        ...

    def lower_bound(self, start: bytes) -> bytes | None:
        """The first id that is not below this one."""
        ...

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        """Pieces of shape (count, 24)."""
        ...

    def digest(self, start: bytes, end: bytes) -> RangeDigest: ...


class Snapshot:
    """A set that stays as it is, in one array."""

    def __init__(self, ids: Ids | bytes, version: int = 0, *, is_sorted: bool = False) -> None:
        rows = as_rows(ids)
        self.rows = rows if is_sorted else ranges.sorted_ids(rows)
        self._heads = ranges.keys(self.rows)
        self._version = version
        self._whole: RangeDigest | None = None
        self._sums: ranges.PrefixSums | None = None

    def size(self) -> int:
        return len(self.rows)

    def version(self) -> int:
        return self._version

    def lower_bound(self, start: bytes) -> bytes | None:
        place = ranges.lower_bound(self.rows, self._heads, start)
        return self.rows[place].tobytes() if place < len(self.rows) else None

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        first, last = self._bounds(start, end)
        if first < last:
            yield self.rows[first:last]

    def digest(self, start: bytes, end: bytes) -> RangeDigest:
        first, last = self._bounds(start, end)
        if last - first == len(self.rows):
            # Asked for by every session; the sums of parts only by those that work by ranges.
            if self._whole is None:
                self._whole = digest_of(self.rows)
            return self._whole
        if self._sums is None:
            self._sums = ranges.PrefixSums.of(self.rows)
        return RangeDigest(last - first, *self._sums.between(first, last))

    def _bounds(self, start: bytes, end: bytes) -> tuple[int, int]:
        first = ranges.lower_bound(self.rows, self._heads, start)
        if end == END:
            return first, len(self.rows)
        return first, max(first, ranges.lower_bound(self.rows, self._heads, end))


def frozen(ids: IdSet) -> Snapshot:
    """The set as it is now."""
    if isinstance(ids, Snapshot):
        return ids
    return Snapshot(rows_between(ids, b"", END), ids.version(), is_sorted=True)


def state_of(ids: IdSet) -> SetState:
    digest = ids.digest(b"", END)
    return as_state(ids.version(), digest)


def as_state(version: int, digest: RangeDigest) -> SetState:
    return SetState(
        version,
        digest.count,
        digest.xor128.to_bytes(DIGEST_BYTES, "big"),
        digest.sum128.to_bytes(DIGEST_BYTES, "big"),
    )


def digest_of(rows: Ids) -> RangeDigest:
    return RangeDigest(len(rows), *xor_and_sum(*xxh3_128(rows)))


def rows_between(ids: IdSet, start: bytes, end: bytes) -> Ids:
    pieces = list(ids.iterate(start, end))
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros((0, ID_BYTES), np.uint8)


def prefix_range(depth: int, prefix: int) -> tuple[bytes, bytes]:
    """The range of all ids that start with these bits."""
    start = prefix << 64 - depth
    end = prefix + 1 << 64 - depth
    return start.to_bytes(8, "big"), END if end >> 64 else end.to_bytes(8, "big")


# ------------------------------------------------------------------------------------------ hashes


def sketch_hashes(hashes: Words) -> Words:
    """The part of the 64 bits that cells know an id by."""
    return hashes >> np.uint64(64 - HASH_BITS)


def bucket_counts(hashes: Words) -> npt.NDArray[np.int64]:
    """Of 64-bit hashes, by their first 32 bits."""
    upper = (hashes >> np.uint64(32)) * np.uint64(BUCKET_COUNT) >> np.uint64(32)
    return np.bincount(upper.view(np.int64), minlength=BUCKET_COUNT)


def as_hashes(data: bytes) -> Words:
    raw = np.zeros((len(data) // HASH_BYTES, 8), np.uint8)
    raw[:, 8 - HASH_BYTES :] = np.frombuffer(data, np.uint8).reshape(-1, HASH_BYTES)
    return raw.view(">u8").reshape(-1).astype(np.uint64)


def hash_bytes(hashes: Words) -> bytes:
    raw = hashes.astype(">u8").view(np.uint8).reshape(-1, 8)
    return raw[:, 8 - HASH_BYTES :].tobytes()


def are_among(hashes: Words, wanted: Words) -> Flags:
    """Which of many hashes are among a few. All are of 48 bits."""
    # Most are told apart by their first bits alone.
    bits = max(16, min(24, len(wanted).bit_length() + 6))
    shift = np.uint64(HASH_BITS - bits)
    is_near = np.zeros(1 << bits, np.bool_)
    is_near[wanted >> shift] = True
    found: Flags = is_near[hashes >> shift]
    near = np.flatnonzero(found)
    found[near] = np.isin(hashes[near], wanted)
    return found


class SetView:
    """One version of a set and what was derived from it, made when it is first asked for."""

    def __init__(self, ids: IdSet, state: SetState | None = None) -> None:
        self.ids = ids
        self.state = state_of(ids) if state is None else state
        self._rows: Ids | None = None
        self._heads: Words | None = None
        self._hashes: tuple[bytes, Words] | None = None
        self._index: tuple[bytes, Words, npt.NDArray[np.int64]] | None = None

    @property
    def rows(self) -> Ids:
        if self._rows is None:
            self._rows = rows_between(self.ids, b"", END)
        return self._rows

    @property
    def heads(self) -> Words:
        """The first eight bytes of each id as a number."""
        if self._heads is None:
            self._heads = ranges.keys(self.rows)
        return self._heads

    def hashes(self, salt: bytes) -> Words:
        """64 bits of each id, in the order of the ids."""
        if self._hashes is None or self._hashes[0] != salt:
            self._hashes = salt, salted(self.rows, salt)
        return self._hashes[1]

    def cells(self, salt: bytes, cell_count: int) -> Cells:
        return sketch(sketch_hashes(self.hashes(salt)), cell_count)

    def bucket_counts(self, salt: bytes) -> npt.NDArray[np.int64]:
        return bucket_counts(self.hashes(salt))

    def prefix_counts(self) -> npt.NDArray[np.int64]:
        return ranges.prefix_counts(self.heads, OPENING_DEPTH)

    def find(self, salt: bytes, wanted: Words) -> npt.NDArray[np.int64]:
        """Which ids have one of these 48-bit hashes, in order."""
        if self._index is None or self._index[0] != salt:
            return np.flatnonzero(are_among(sketch_hashes(self.hashes(salt)), wanted))
        _, in_order, places = self._index
        wanted = np.unique(wanted)
        starts = np.searchsorted(in_order, wanted, "left")
        ends = np.searchsorted(in_order, wanted, "right")
        found = [places[start:end] for start, end in zip(starts, ends, strict=True) if end > start]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def index(self, salt: bytes) -> None:
        """Make `find` quick, once and for all: for a view that serves several sessions."""
        hashes = sketch_hashes(self.hashes(salt))
        places = np.argsort(hashes)
        self._index = salt, hashes[places], places
