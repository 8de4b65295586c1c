"""Values over time, added up in equal stretches so that they fit a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.pipeline.sources.rows import DAY_MS

HOUR_MS: Final = 3_600_000
# So many bars or points fit; more hours than that are added up.
BINS_MAX: Final = 170
MINUTE_MS: Final = 60_000
_SIZES_MS: Final = (
    *(MINUTE_MS * minutes for minutes in (1, 2, 5, 10, 30)),
    *(HOUR_MS * hours for hours in (1, 2, 3, 6, 12, 24, 48, 168, 672, 8_760)),
)

Numbers = npt.NDArray[np.float64]
# A time in milliseconds, and a value.
Points = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal stretches of time, the first at `start_ms`."""

    start_ms: int
    size_ms: int
    count: int

    @property
    def name(self) -> str:
        for size, name in ((DAY_MS, "day"), (HOUR_MS, "hour"), (MINUTE_MS, "minute")):
            if self.size_ms >= size:
                count = self.size_ms // size
                return name if count == 1 else f"{count} {name}s"
        raise AssertionError(self.size_ms)

    def edges(self) -> Numbers:
        """Days since 1970; one more than there are bins."""
        return (self.start_ms + np.arange(self.count + 1) * float(self.size_ms)) / DAY_MS

    def has(self, time_ms: int) -> bool:
        return 0 <= time_ms - self.start_ms < self.count * self.size_ms

    def left_out(self, times_ms: Sequence[int]) -> str:
        """What to say of the times that are not in any of them."""
        count = sum(not self.has(each) for each in times_ms)
        return f"; {count} far off in time left out" if count else ""

    def added(self, points: Points) -> Numbers:
        found = np.zeros(self.count)
        for place, value in self._placed(points):
            found[place] += value
        return found

    def highest(self, points: Points) -> Numbers:
        """NaN where there is nothing."""
        found = np.full(self.count, np.nan)
        for place, value in self._placed(points):
            found[place] = np.fmax(found[place], value)
        return found

    def _placed(self, points: Points) -> list[tuple[int, int]]:
        return [
            ((time_ms - self.start_ms) // self.size_ms, value)
            for time_ms, value in points
            if self.has(time_ms)
        ]


# Further apart than this, one of two times is of a clock that was wrong.
APART_MS_MAX: Final = 60 * DAY_MS


def stretch_of(times_ms: Sequence[int]) -> tuple[int, int]:
    """The first and the last time of the stretch that has most of them.

    A clock that started in 1970, or was years ahead, would press all that matters into one bar.
    """
    ordered = np.array(sorted(times_ms), np.int64)
    ends = np.flatnonzero(np.diff(ordered) > APART_MS_MAX)
    starts = np.r_[0, ends + 1]
    lengths = np.diff(np.r_[starts, len(ordered)])
    # Of two that are as long, the newer.
    place = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
    first = int(starts[place])
    return int(ordered[first]), int(ordered[first + int(lengths[place]) - 1])


def unit_for(span_ms: int) -> int:
    """In what steps to add up what happened in such a span: a minute, an hour or a day."""
    if span_ms < 6 * HOUR_MS:
        return MINUTE_MS
    return HOUR_MS if span_ms < 7 * DAY_MS else DAY_MS


def bins_of(times_ms: Sequence[int], size_ms_min: int = HOUR_MS) -> Bins:
    """Of the stretch that has most of the times, as fine as fits."""
    first, last = stretch_of(times_ms)
    sizes = [each for each in _SIZES_MS if each >= size_ms_min]
    size = next((each for each in sizes if (last - first) // each < BINS_MAX - 1), sizes[-1])
    end = last // size
    count = min(end - first // size + 1, BINS_MAX)
    return Bins((end - count + 1) * size, size, count)
