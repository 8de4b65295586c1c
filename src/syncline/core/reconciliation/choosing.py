"""Which question to ask next, by what it is likely to cost in bytes.

- Compare: my cells go up, the difference comes back. Ids count 9 bytes for each of about 1.3 cells.
- Sift: a filter of a set says, in a byte or so for each of its ids, which of the other's ids it
  lacks, however many; a few cells settle those that pass by accident. For losses above a tenth.
- List: all their ids.
"""

import math
from dataclasses import dataclass
from typing import Final

from syncline.core.reconciliation.estimate import (
    BUCKET_ERROR,
    WRAPPED_DIFFERENCE,
    cells_needed,
)
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.values.reconciliation import CELL_BYTES

# What an id in order takes on the wire, about; a hash of one likewise, and asking for one.
_ID_BYTES: Final = 22.0
_HASH_BYTES: Final = 5.0
_LISTED_BYTES: Final = 22.0
# Nearly three standard errors: one guess in some four hundred is further off, and more would cost
# every session more than that one.
_MARGIN: Final = 2.8 * BUCKET_ERROR
# The same where counts say less.
_VAGUE_MARGIN: Final = 0.4
# Ids in a filter's universe for each in the filter, tried in turn.
_SCALES: Final = tuple(2 ** (step / 2) for step in range(4, 28))
_FILTER_BITS: Final = 1.54
# Ids known by their hash alone have to be asked for: what a round trip more must save, and what if
# there were many already.
_SECOND_QUESTION: Final = 1.12
_LATE_QUESTION: Final = 2.0


@dataclass(frozen=True, slots=True)
class Comparing:
    cell_count: int


@dataclass(frozen=True, slots=True)
class Sifting:
    """Scales of 0 stand for no filter in that direction."""

    up_scale: float
    down_scale: float
    cell_count: int


@dataclass(frozen=True, slots=True)
class ListingAll:
    pass


Plan = Comparing | Sifting | ListingAll


def choose(
    mine: int, theirs: int, difference: float, *, is_sure: bool = False, is_late: bool = False
) -> Plan:
    """The cheapest. `is_sure`: the guess was made from cells, the better the more there are.
    `is_late`: much was asked already."""
    margin = min(_MARGIN, max(0.05, 3.5 / math.sqrt(difference))) if is_sure else _MARGIN
    surplus = mine - theirs
    only_mine, only_theirs = (difference + surplus) / 2, (difference - surplus) / 2
    cell_count = cells_needed(difference * (1 + margin))
    costs: list[tuple[float, Plan]] = [(_LISTED_BYTES * theirs, ListingAll())]
    if cell_count <= CELL_COUNT_MAX:
        cost = CELL_BYTES * cell_count + _ID_BYTES * only_theirs + _HASH_BYTES * only_mine
        costs.append((cost, Comparing(cell_count)))
    # A guess this near to the surplus alone is most often all on one side; a filter that takes
    # that for granted is half the price, and if it was wrong the next step knows better.
    is_vague = difference > WRAPPED_DIFFERENCE and not is_sure
    if abs(surplus) >= difference * (1 - (_VAGUE_MARGIN if is_vague else margin)):
        only_mine, only_theirs = max(surplus, 0), max(-surplus, 0)
    question = _LATE_QUESTION if is_late else _SECOND_QUESTION
    for has_up, has_down in ((True, False), (False, True), (True, True)):
        costs += (
            _cost_of_sifting(
                mine, theirs, only_mine, only_theirs, has_up, has_down, scale, question
            )
            for scale in _SCALES
        )
    return min(costs, key=lambda cost: cost[0])[1]


def _cost_of_sifting(
    mine: int,
    theirs: int,
    only_mine: float,
    only_theirs: float,
    has_up: bool,
    has_down: bool,
    scale: float,
    question: float,
) -> tuple[float, Plan]:
    bytes_each = (math.log2(scale) + _FILTER_BITS) / 8
    cost = 0.0
    if has_up:
        cost += bytes_each * mine + _ID_BYTES * only_theirs * (1 - 1 / scale)
        theirs -= int(only_theirs * (1 - 1 / scale))
        only_theirs /= scale
    if has_down:
        cost += bytes_each * theirs
        only_mine /= scale
    rest = only_mine + only_theirs
    cell_count = cells_needed(rest * 1.06 + 8)
    if cell_count > CELL_COUNT_MAX:
        return math.inf, ListingAll()
    cost += CELL_BYTES * cell_count + (_HASH_BYTES + _ID_BYTES) * only_theirs
    if only_theirs >= 1:
        cost *= question
    return cost, Sifting(scale if has_up else 0, scale if has_down else 0, cell_count)
