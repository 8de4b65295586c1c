"""The initiator's picture of the other side's set: its own ids, less some, and some more.

Each answer brings the picture nearer. It is the other's set when count, XOR and sum of the hashes
agree; only then is a difference told to anybody.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from syncline.core.reconciliation.kept import KeptSketch
from syncline.core.reconciliation.sets import (
    RangeDigest,
    SetView,
    as_state,
    bucket_counts,
    digest_of,
    sketch_hashes,
)
from syncline.kernels import ranges
from syncline.kernels.cells import Cells, sketch
from syncline.kernels.slots import scaled
from syncline.kernels.xxh3 import Ids, Words, as_rows, salted
from syncline.values.reconciliation import (
    ID_BYTES,
    OPENING_DEPTH,
    Change,
    HashFilter,
    Prefixes,
    SetState,
)

_NO_ROWS = np.zeros((0, ID_BYTES), np.uint8)
_SUM_MASK = (1 << 128) - 1
_TABLE_MAX = 1 << 26


class WorkingSet:
    def __init__(self, view: SetView, kept: KeptSketch | None = None) -> None:
        self._view = view
        self._kept = kept
        self.salt = b""
        # Of my own ids, those that the other side seems to have; and more that it has.
        self._is_shared = np.ones(view.state.count, np.bool_)
        self._dropped_count = 0
        self._added = _NO_ROWS

    # ------------------------------------------------------------------------------------ looking

    @property
    def count(self) -> int:
        return len(self._is_shared) - self._dropped_count + len(self._added)

    @property
    def extra(self) -> bytes:
        """My ids that the other side lacks."""
        return self._dropped_rows().tobytes()

    @property
    def missing(self) -> bytes:
        return self._added.tobytes()

    def is_same(self, theirs: SetState) -> bool:
        if self.count != theirs.count:
            return False
        return self.state().is_same_set(theirs)

    def state(self) -> SetState:
        own = self._view.state
        dropped, added = digest_of(self._dropped_rows()), digest_of(self._added)
        xor = int.from_bytes(own.xor128, "big") ^ dropped.xor128 ^ added.xor128
        total = int.from_bytes(own.sum128, "big") - dropped.sum128 + added.sum128
        return as_state(own.version, RangeDigest(self.count, xor, total & _SUM_MASK))

    def cells(self, cell_count: int) -> Cells:
        if self._can_use_kept(cell_count):
            assert self._kept is not None
            own = self._kept.cells(cell_count)
        elif self._dropped_count * 2 > len(self._is_shared):
            return sketch(sketch_hashes(self._hashes()), cell_count)
        else:
            own = self._view.cells(self.salt, cell_count)
        if self._dropped_count:
            own -= sketch(self._sketch_hashes_of(self._dropped_rows()), cell_count)
        if len(self._added):
            own += sketch(self._sketch_hashes_of(self._added), cell_count)
        return own

    def bucket_counts(self) -> npt.NDArray[np.int64]:
        if self._can_use_kept(1):
            assert self._kept is not None
            own = np.array(self._kept.bucket_counts, np.int64)
        else:
            own = self._view.bucket_counts(self.salt)
        if self._dropped_count:
            own = own - bucket_counts(salted(self._dropped_rows(), self.salt))
        return own + bucket_counts(salted(self._added, self.salt))

    def prefix_counts(self) -> npt.NDArray[np.int64]:
        if self._can_use_kept(1) and not self._dropped_count and not len(self._added):
            assert self._kept is not None
            return np.array(self._kept.prefix_counts, np.int64)
        return self.part_counts(Prefixes(0, (0,)), OPENING_DEPTH)

    def part_counts(self, within: Prefixes, fan_bits: int) -> npt.NDArray[np.int64]:
        """How many ids each part of these ranges has; parts share `fan_bits` more bits."""
        depth, parts = parts_of(within, fan_bits)
        starts, ends = ranges.prefix_bounds(self._view.heads, depth, parts)
        shared = np.concatenate(([0], np.cumsum(self._is_shared)))
        added = ranges.prefix_bounds(ranges.keys(self._added), depth, parts)
        counts: npt.NDArray[np.int64] = shared[ends] - shared[starts] + added[1] - added[0]
        return counts

    def filter(self, scale: float) -> HashFilter:
        """Of all ids, with a universe so many times as large."""
        return filter_of(self._hashes(), scale)

    # ----------------------------------------------------------------------------------- changing

    def empty(self) -> None:
        self._is_shared[:] = False
        self._dropped_count = len(self._is_shared)
        self._added = _NO_ROWS

    def replace(self, ids: bytes) -> None:
        """This is all of the other side's set."""
        self.empty()
        self.add(ids)

    def add(self, ids: bytes) -> None:
        rows = as_rows(ids)
        if not len(rows):
            return
        places, is_own = self._places(rows)
        self._is_shared[places[is_own]] = True
        self._recount()
        self._added = ranges.sorted_ids(np.concatenate((self._added, rows[~is_own])))

    def drop_hashes(self, hashes: Words) -> None:
        """The other side lacks these, known by 48 bits."""
        if not len(hashes):
            return
        self._is_shared[self._view.find(self.salt, hashes)] = False
        self._recount()
        if len(self._added):
            is_dropped = np.isin(self._sketch_hashes_of(self._added), hashes)
            self._added = self._added[~is_dropped]

    def drop_prefixes(self, depth: int, prefixes: npt.NDArray[np.uint64]) -> None:
        """The other side has nothing there."""
        if not len(prefixes):
            return
        starts, ends = ranges.prefix_bounds(self._view.heads, depth, prefixes)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            self._is_shared[start:end] = False
        self._recount()
        starts, ends = ranges.prefix_bounds(ranges.keys(self._added), depth, prefixes)
        is_kept = np.ones(len(self._added), np.bool_)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            is_kept[start:end] = False
        self._added = self._added[is_kept]

    def drop_rows(self, rows: Ids) -> None:
        """The other side lacks these."""
        if not len(rows):
            return
        places, is_own = self._places(rows)
        self._is_shared[places[is_own]] = False
        self._recount()
        if len(self._added):
            words = np.concatenate((self._added, rows)).view("V24").reshape(-1)
            self._added = self._added[
                ~np.isin(words[: len(self._added)], words[len(self._added) :])
            ]

    def sift(self, theirs: HashFilter) -> None:
        """What does not pass the filter the other side lacks."""
        self._is_shared &= passes(theirs, self._view.hashes(self.salt))
        self._recount()
        self._added = self._added[passes(theirs, salted(self._added, self.salt))]

    def apply(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if change.is_added:
                self.add(change.id)
            else:
                self.drop_rows(as_rows(change.id))

    # ------------------------------------------------------------------------------------ details

    def _places(self, rows: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where among my ids each would stand, and whether it does."""
        own = self._view.rows
        heads, wanted = self._view.heads, ranges.keys(rows)
        places = np.searchsorted(heads, wanted, "left")
        for number in np.flatnonzero(np.searchsorted(heads, wanted, "right") - places > 1):
            # Ids that share their first eight bytes: rare, or made so by somebody.
            places[number] = ranges.lower_bound(own, heads, rows[number].tobytes())
        if not len(own):
            return places, np.zeros(len(rows), np.bool_)
        nearest = np.minimum(places, len(own) - 1)
        is_own = (places < len(own)) & np.all(own[nearest] == rows, axis=1)
        return places, is_own

    def _dropped_rows(self) -> Ids:
        if not self._dropped_count:
            return _NO_ROWS
        return self._view.rows[np.flatnonzero(~self._is_shared)]

    def _hashes(self) -> Words:
        own = self._view.hashes(self.salt)
        shared = own if not self._dropped_count else own[self._is_shared]
        if not len(self._added):
            return shared
        return np.concatenate((shared, salted(self._added, self.salt)))

    def _sketch_hashes_of(self, rows: Ids) -> Words:
        return sketch_hashes(salted(rows, self.salt))

    def _recount(self) -> None:
        self._dropped_count = len(self._is_shared) - int(np.count_nonzero(self._is_shared))

    def _can_use_kept(self, cell_count: int) -> bool:
        kept = self._kept
        return (
            kept is not None
            and kept.salt == self.salt
            and kept.version == self._view.state.version
            and cell_count <= kept.cell_count
        )


def parts_of(within: Prefixes, fan_bits: int) -> tuple[int, npt.NDArray[np.uint64]]:
    """The depth and the prefixes of all parts of these ranges, in order."""
    first = np.array(within.values, np.uint64) << np.uint64(fan_bits)
    fan = np.arange(1 << fan_bits, dtype=np.uint64)
    return within.depth + fan_bits, (first[:, None] + fan).reshape(-1)


def filter_of(hashes: Words, scale: float) -> HashFilter:
    return filter_within(hashes, max(1, int(len(hashes) * scale)))


def filter_within(hashes: Words, universe: int) -> HashFilter:
    members = ranges.distinct(scaled(hashes, universe)).astype("<u8")
    return HashFilter(universe, members.tobytes())


def passes(theirs: HashFilter, hashes: Words) -> npt.NDArray[np.bool_]:
    members = np.frombuffer(theirs.members, "<i8")
    if not len(members):
        return np.zeros(len(hashes), np.bool_)
    # A table of the whole universe is ten times as fast as sorting, while it fits.
    kind: Literal["table", "sort"] = "table" if theirs.universe <= _TABLE_MAX else "sort"
    return np.isin(scaled(hashes, theirs.universe), members, kind=kind)
