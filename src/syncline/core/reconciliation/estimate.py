"""How much two sets differ, guessed from counts or from cells that could not be read.

Counts of hash buckets: of the d ids that differ each adds or takes one in a random bucket, so the
squares of the differences, around their mean, sum up to d. Counts come modulo 128; where
differences are so large that they wrap around, the likeliest d is looked for instead.

Cells: the share of empty ones among cells of known density tells d to a few percent, unless nearly
all are full.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.cell_places import densities
from syncline.kernels.cells import Cells
from syncline.values.reconciliation import BUCKET_COUNT, BUCKET_MODULUS

# Relative standard error of a guess from bucket counts.
BUCKET_ERROR: Final = math.sqrt(2 / BUCKET_COUNT)
# Beyond this many ids a bucket differences may wrap around.
_SPREAD_MAX: Final = BUCKET_MODULUS / 10
# So from this many differences on a guess is made from remainders: one in a hundred is off by half.
WRAPPED_DIFFERENCE: Final = BUCKET_COUNT * _SPREAD_MAX**2
# Beyond this, remainders are as good as evenly spread and say nothing.
_SPREAD_KNOWN_MAX: Final = BUCKET_MODULUS * 0.33
# Fewer empty cells than this tell too little.
_EMPTY_COUNT_MIN: Final = 6

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


def from_counts(
    my_buckets: Numbers,
    their_buckets: Sequence[int],
    my_prefixes: Numbers,
    their_prefixes: Sequence[int],
) -> float:
    """How many ids differ, from both counts of an opening."""
    surplus = int(my_prefixes.sum()) - sum(their_prefixes)
    by_hash = from_buckets(my_buckets, their_buckets, surplus)
    squares = _squares(my_prefixes, np.array(their_prefixes, np.int64))
    if by_hash is None:
        # Where drift is not spread evenly, the median is not led astray. That of a chi square with
        # one degree of freedom is 0.455 of its mean.
        guess = float(np.median(squares)) / 0.455 if len(squares) > 1 else 0.0
    else:
        guess = by_hash
        by_prefix = float(squares.sum()) / max(1, len(squares) - 1)
        # The two are independent; if they agree, both together are the better guess.
        if len(squares) > 1 and abs(by_prefix - by_hash) < by_hash * 4 * (2 / len(squares)) ** 0.5:
            guess = (by_hash * BUCKET_COUNT + by_prefix * len(squares)) / (
                BUCKET_COUNT + len(squares)
            )
    return max(guess, abs(surplus), 1.0)


def from_buckets(mine: Numbers, theirs: Sequence[int], surplus: int) -> float | None:
    """From counts by hash. `surplus` is how many more I have. None: more than these can tell."""
    mean = surplus / BUCKET_COUNT
    centre = round(mean)
    half = BUCKET_MODULUS // 2
    differences = (mine - np.array(theirs, np.int64) - centre + half) % BUCKET_MODULUS - half
    deviations = (differences - (mean - centre)).astype(np.float64)
    guess = float((deviations**2).sum()) * BUCKET_COUNT / (BUCKET_COUNT - 1)
    if guess > WRAPPED_DIFFERENCE:
        return _likeliest_wrapped(deviations)
    return guess


def _squares(mine: Numbers, theirs: Numbers) -> Reals:
    """For each prefix that has ids, a guess of its own: deviation squared by its share of all."""
    size = mine + theirs
    used = size > 0
    weights = size[used] / max(int(size.sum()), 1)
    surplus = int((mine - theirs).sum())
    deviations = (mine - theirs)[used] - surplus * weights
    return (deviations**2 / weights).astype(np.float64)


def _likeliest_wrapped(deviations: Reals) -> float | None:
    """The variance of normal numbers of which only the remainder is known, times their count."""
    spreads = np.geomspace(_SPREAD_MAX, BUCKET_MODULUS, 160)[:, None, None]
    turns = np.arange(-4, 5)[None, None, :] * BUCKET_MODULUS
    scores = -((deviations[None, :, None] + turns) ** 2) / (2 * spreads**2)
    likelihoods = np.log(np.exp(scores).sum(axis=2) + 1e-300) - np.log(spreads[:, :, 0])
    best = float(spreads[int(likelihoods.sum(axis=1).argmax()), 0, 0])
    return best**2 * BUCKET_COUNT if best < _SPREAD_KNOWN_MAX else None


def from_cells(difference: Cells) -> float | None:
    """How many ids are in the difference of two sketches; None if there is no telling."""
    is_empty = difference.is_empty
    if int(is_empty.sum()) < _EMPTY_COUNT_MIN:
        return None
    density = densities(len(difference))
    per_id = -np.log1p(-np.minimum(density, 0.999))
    low, high = 0.0, 64.0 * len(difference)
    # The slope of the likelihood falls all the way: halve until its zero is near.
    for _ in range(50):
        middle = (low + high) / 2
        full = per_id[~is_empty] / np.expm1(np.clip(middle * per_id[~is_empty], 1e-12, 700.0))
        if float(full.sum()) > float(per_id[is_empty].sum()):
            low = middle
        else:
            high = middle
    return high


def cells_needed(difference: float) -> int:
    """From so many cells, all but one in some hundred differences of this size can be read."""
    return math.ceil(1.22 * difference + 3.6 * math.sqrt(difference) + 9)
