"""Sketch mode: cells, filters and counts, whichever is cheapest for what seems to differ."""

from typing import Final

import numpy as np

from syncline.core.reconciliation import clusters, estimate
from syncline.core.reconciliation.choosing import Comparing, ListingAll, Sifting, choose
from syncline.core.reconciliation.sets import as_hashes, hash_bytes
from syncline.core.reconciliation.working import WorkingSet, parts_of
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.kernels.cells import Cells, peel
from syncline.kernels.xxh3 import Words
from syncline.values.reconciliation import (
    CELL_BYTES,
    OPENING_DEPTH,
    SET_COUNT_MAX,
    Answer,
    Compare,
    CountParts,
    Counts,
    Fetch,
    Fetched,
    Found,
    ListIds,
    Listing,
    Opening,
    Prefixes,
    Request,
    Sift,
    Sifted,
    TooFew,
)

# Enough for a handful of ids, and little beside the counts that come with them.
OPENING_CELLS: Final = 8

_LATE: Final = 3
_EVERYTHING: Final = Prefixes(0, (0,))
_NO_HASHES: Final = np.zeros(0, np.uint64)


class SketchSearch:
    def __init__(self, working: WorkingSet, opening_cells: int = OPENING_CELLS) -> None:
        self.opening_cells = opening_cells
        self._working = working
        self._opening: Opening | None = None
        # A guess from cells, which is better than one from counts.
        self._guess: float | None = None
        # What they have and I know by hash alone; ranges in which they have all and I nothing.
        self._wanted: Words = _NO_HASHES
        self._listed: Prefixes | None = None
        self._may_count = False
        self._is_settled = False

    # ----------------------------------------------------------------------------------- learning

    def opened(self, opening: Opening) -> None:
        self._opening = opening
        self._guess, self._listed, self._wanted = None, None, _NO_HASHES
        self._is_settled = False
        self._may_count = True
        # Where they have nothing, all that I have is extra: no question is needed.
        empty = np.flatnonzero(np.array(opening.prefix_counts) == 0)
        self._working.drop_prefixes(OPENING_DEPTH, empty.astype(np.uint64))
        if opening.cells:
            self._read(Cells.decode(opening.cells), opening.state.count)

    def learn(self, asked: Request, answer: Answer) -> None:
        match answer:
            case Found():
                self._working.drop_hashes(as_hashes(answer.hashes))
                self._working.add(answer.ids)
                self._is_settled = True
            case TooFew():
                self._learn_too_few(asked, answer)
            case Sifted():
                self._learn_sifted(answer)
            case Counts():
                self._learn_counts(asked, answer)
            case Fetched():
                self._working.add(answer.ids)
                self._working.apply(answer.changes)
                self._wanted = _NO_HASHES
                self._is_settled = True
            case Listing():
                self._working.add(answer.ids)
                self._listed = None
            case _:
                raise AssertionError(answer)

    def _learn_too_few(self, asked: Request, answer: TooFew) -> None:
        assert isinstance(asked, Compare)
        sent = len(asked.cells) // CELL_BYTES
        # Cells that were too few are the surer sign: never send as few again. If there is no
        # telling, it was far too few.
        self._guess = max(float(answer.difference), 0.9 * sent) if answer.difference else sent * 2.0

    def _learn_sifted(self, answer: Sifted) -> None:
        if answer.members is not None:
            self._working.sift(answer.members)
        if answer.cells:
            self._read(Cells.decode(answer.cells), None)
        # These did not pass my filter, so they are not in the cells.
        self._working.add(answer.ids)

    def _learn_counts(self, asked: Request, answer: Counts) -> None:
        assert isinstance(asked, CountParts)
        depth, parts = parts_of(asked.ranges, asked.fan_bits)
        mine = self._working.part_counts(asked.ranges, asked.fan_bits)
        settled = clusters.settle(parts, mine, np.array(answer.counts, np.int64))
        self._working.drop_prefixes(depth, settled.only_mine)
        if len(settled.only_theirs):
            self._listed = Prefixes(depth, tuple(settled.only_theirs.tolist()))

    def _read(self, theirs: Cells, count: int | None) -> None:
        """Read their cells if they can be read; else guess from them how much differs.

        `count` is that of their set, if the cells are of all of it."""
        difference = self._working.cells(len(theirs)) - theirs
        peeled = peel(difference)
        surplus = len(peeled.plus) - len(peeled.minus)
        is_all = count is None or self._working.count - surplus == count
        if peeled.is_whole and is_all:
            self._working.drop_hashes(peeled.plus)
            self._wanted = peeled.minus
            self._is_settled = not len(peeled.minus)
        else:
            self._guess = estimate.from_cells(difference)

    # ------------------------------------------------------------------------------------- asking

    def next(self, version: int, round_trips: int) -> Request | None:
        opening = self._opening
        assert opening is not None
        salt = opening.salt
        if len(self._wanted):
            return Fetch(version, salt, hash_bytes(np.sort(self._wanted)))
        if self._listed is not None:
            return ListIds(version, self._listed)
        if self._is_settled:
            return None
        ranges = self._clustered(opening)
        if ranges is not None:
            return CountParts(version, ranges, clusters.FAN_BITS)
        return self._plan(version, opening, is_late=round_trips >= _LATE)

    def _clustered(self, opening: Opening) -> Prefixes | None:
        if not self._may_count:
            return None
        self._may_count = False
        theirs = np.array(opening.prefix_counts, np.int64)
        guess = self._guess_from_counts(opening)
        chosen = clusters.clustered(self._working.prefix_counts(), theirs, guess)
        return Prefixes(OPENING_DEPTH, tuple(chosen)) if chosen else None

    def _plan(self, version: int, opening: Opening, is_late: bool) -> Request:
        theirs = opening.state.count
        guess, is_sure = self._guess, True
        if guess is None:
            guess, is_sure = self._guess_from_counts(opening), False
        plan = choose(self._working.count, theirs, guess, is_sure=is_sure, is_late=is_late)
        salt = opening.salt
        match plan:
            case Comparing():
                cells = self._working.cells(min(plan.cell_count, CELL_COUNT_MAX))
                return Compare(version, salt, cells.encode())
            case Sifting():
                up = self._working.filter(plan.up_scale) if plan.up_scale else None
                universe = min(int(plan.down_scale * max(theirs, 1)), SET_COUNT_MAX)
                return Sift(version, salt, up, universe, plan.cell_count)
            case ListingAll():
                return ListIds(version, _EVERYTHING)

    def _guess_from_counts(self, opening: Opening) -> float:
        return estimate.from_counts(
            self._working.bucket_counts(),
            opening.bucket_counts,
            self._working.prefix_counts(),
            opening.prefix_counts,
        )
