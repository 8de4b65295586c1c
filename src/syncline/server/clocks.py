"""What time it is, and how much time has passed: two questions with two answers.

The clock of the machine may be set, by an operator or a time server, back as well as forth and by
years. It is asked for what is stored and for what others are told or say, such as when a token
expires. How long something has lasted is never a difference of two such times.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

# How long a clock that leapt ahead, or that of a start, is doubted at most.
DOUBT_MS_MAX = 60 * 60 * 1_000


class Clock(NamedTuple):
    # The machine's, in milliseconds since 1970.
    wall_ms: Callable[[], int]
    # Goes as time does, whatever becomes of the other.
    steady_ms: Callable[[], int]


def machine_clock() -> Clock:
    """Both agree until the machine's clock is set."""
    offset_ms = _wall_ms() - _monotonic_ms()
    return Clock(_wall_ms, lambda: _monotonic_ms() + offset_ms)


class CautiousClock:
    """The time by which something is too old to be kept.

    That is the machine's, once that can be believed: what is let go of because of its age is gone,
    and for a moment many a clock is years ahead, such as that of a machine that has just started.
    So a time counts that the clock has not fallen short of for as long as it is doubted, and until
    there is such a time, nothing is old. Going back counts at once: things are kept longer by it.
    """

    def __init__(self, clock: Clock, age_ms: int) -> None:
        """`age_ms`: at which things are too old. It is not doubted for longer than that."""
        self._clock = clock
        self._doubt_ms = min(age_ms, DOUBT_MS_MAX)
        self._since_ms = clock.steady_ms()
        # How far the machine's clock was ahead of the other, at least: in the stretch of time
        # before this one, and in this one.
        self._ahead_before_ms = -self._since_ms
        self._ahead_ms = clock.wall_ms() - self._since_ms

    def __call__(self) -> int:
        now_ms = self._clock.steady_ms()
        ahead_ms = self._clock.wall_ms() - now_ms
        if now_ms - self._since_ms >= self._doubt_ms:
            self._ahead_before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
            self._since_ms = now_ms
        self._ahead_ms = min(self._ahead_ms, ahead_ms)
        return now_ms + min(self._ahead_before_ms, self._ahead_ms)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
