"""Losses that lie together: found by counting, settled where one side has nothing at all.

Drift that strikes at random changes each range of ids in proportion to its size. A range whose
count is far off from that has lost, or gained, neighbours. Counted in small parts, most of the
parts in question are empty on one side, and that says all about them in a few bits.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.core.reconciliation.estimate import Numbers

FAN_BITS: Final = 8
# Standard deviations from what random drift would do; and ids, below which it is not worth a round
# trip.
_DEVIATIONS_MIN: Final = 6.0
_IDS_MIN: Final = 24
# What an id costs in a sketch, and a part in a count.
_ID_COST: Final = 13.0
_PART_COST: Final = 0.7
# So many ids in all are worth a round trip of their own, in which they are listed.
_LISTED_MIN: Final = 192


def clustered(mine: Numbers, theirs: Numbers, difference: float) -> list[int]:
    """Which prefixes look as if neighbours were lost; none if it would not pay to look.

    `difference` is how many ids differ in all, as hashes tell it, which know no neighbours.
    """
    size = mine + theirs
    deviations = _deviations(mine, theirs)
    spread = np.sqrt(difference * size / max(1, int(size.sum())))
    limit = np.maximum(_DEVIATIONS_MIN * spread, _IDS_MIN)
    chosen = np.flatnonzero(np.abs(deviations) > limit)
    gain = float(np.abs(deviations[chosen]).sum()) * _ID_COST
    return chosen.tolist() if gain > len(chosen) * _PART_COST * (1 << FAN_BITS) else []


def _deviations(mine: Numbers, theirs: Numbers) -> npt.NDArray[np.float64]:
    """How far each range is from what it would be if drift was spread evenly."""
    size = mine + theirs
    share = (mine - theirs) / np.maximum(size, 1)
    # The median: a cluster in a few ranges does not move it.
    even = float(np.median(share[size > 0])) if (size > 0).any() else 0.0
    return (mine - theirs) - even * size


@dataclass(frozen=True, slots=True)
class Settled:
    """Parts that only one side has anything in."""

    only_mine: npt.NDArray[np.uint64]
    only_theirs: npt.NDArray[np.uint64]


def settle(parts: npt.NDArray[np.uint64], mine: Numbers, theirs: Numbers) -> Settled:
    """Parts of theirs are named only if they hold enough ids, together, to be listed."""
    only_theirs = (mine == 0) & (theirs > 0)
    if int(theirs[only_theirs].sum()) < _LISTED_MIN:
        only_theirs[:] = False
    return Settled(parts[(theirs == 0) & (mine > 0)], parts[only_theirs])
