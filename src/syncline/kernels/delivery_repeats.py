"""What was delivered once too often.

To a span an update may be delivered once, and once more for each time that it was to be sent again.
`used` counts deliveries less those marks: a delivery that finds it at 1 is a duplicate, and does
not count. So it is never above 1, and of a walk that does not stop there, each new highest value
above 1 is a duplicate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from syncline.kernels.delivery_given import Given
from syncline.kernels.delivery_rows import Flags, Integers

# Above the length of any walk.
_STEPS_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Repeats:
    """Duplicates, as rows of deliveries and pairs; and what is used of each pair in the end."""

    row: Integers
    pair: Integers
    used: Integers


def find_repeats(
    times: Integers,
    used: Integers,
    resent: tuple[Integers, Integers],
    rows_on: Callable[[Flags], tuple[Integers, Integers]],
    rows: Given,
) -> Repeats:
    """`times`: how often each pair was delivered; `used`: as an earlier run left it."""
    resent_pair, resent_place = resent
    after = used + times
    is_odd = after > 1
    is_odd[resent_pair] = True
    if not is_odd.any():
        nothing = np.empty(0, np.int64)
        return Repeats(nothing, nothing, after)
    row, pair = rows_on(is_odd)
    pairs = np.concatenate((pair, resent_pair))
    places = np.concatenate((rows.rows.place[row], resent_place))
    steps = np.concatenate((np.ones(len(pair), np.int64), np.full(len(resent_pair), -1)))
    order = np.lexsort((places, pairs))
    walked, steps = pairs[order], steps[order]
    is_start = np.ones(len(walked), np.bool_)
    is_start[1:] = walked[1:] != walked[:-1]
    walk = np.cumsum(steps)
    starts = np.flatnonzero(is_start)
    group = np.cumsum(is_start) - 1
    heights = walk - (walk - steps)[starts][group] + used[walked]
    # The highest of each walk so far, one at least: walks are set apart so that none sees another.
    lifted = np.maximum.accumulate(np.maximum(heights, 1) + group * _STEPS_MAX) - group * _STEPS_MAX
    former = np.ones(len(walked), np.int64)
    former[1:] = np.where(is_start[1:], 1, lifted[:-1])
    is_repeat = (steps > 0) & (lifted > former)
    ends = np.append(starts[1:], len(walked)) - 1
    after[walked[ends]] = heights[ends] - (lifted[ends] - 1)
    which = order[is_repeat]
    return Repeats(row[which], pairs[which], after)
