"""What is known of whole logs, for judging their streams: starts, stretches, and the time.

A *stretch* is a part of a log that nobody knows: damaged, gone before it was read, or events that
the router had to drop. Whatever could have happened there is not held against anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from syncline.kernels.delivery_rows import Flags, Integers

# A place that no row has, and a time that never comes.
NEVER: Final = 1 << 62
# Events of the last second before a router was killed may be missing.
EVENTS_MS_MAX: Final = 1_000


def _none() -> Integers:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Of one log, as of one run."""

    store: bytes
    # The highest time of any row, and as it was at the end of the last run.
    newest_ms: int
    before_ms: int = -1
    # The last run judged all that was open.
    was_over: bool = False
    # Where routers started on it, and the highest time of the rows before.
    start_places: Integers = field(default_factory=_none)
    start_ms: Integers = field(default_factory=_none)
    # Stretches in order, and the highest time of the rows before each.
    stretch_from: Integers = field(default_factory=_none)
    stretch_to: Integers = field(default_factory=_none)
    stretch_ms: Integers = field(default_factory=_none)
    # It goes on from another log: of its streams the beginnings are not here.
    is_branch: bool = False
    # Where another log goes on from: nothing more will come. NEVER: none does.
    left_place: int = NEVER


class Logs:
    """Some logs; each question is asked of many rows, `log` saying which log each row is of."""

    def __init__(self, facts: Sequence[LogFacts]) -> None:
        self.facts = list(facts)
        self.newest_ms = np.array([each.newest_ms for each in facts], np.int64)
        self.before_ms = np.array([each.before_ms for each in facts], np.int64)
        self.was_over = np.array([each.was_over for each in facts], np.bool_)
        self.is_branch = np.array([each.is_branch for each in facts], np.bool_)
        self.left_place = np.array([each.left_place for each in facts], np.int64)
        self.is_left = self.left_place != NEVER

    def next_start(self, log: Integers, place: Integers) -> tuple[Integers, Integers]:
        """The first start behind each place, and the highest time before it; NEVER if none."""
        found, ms = np.full(len(place), NEVER), np.full(len(place), NEVER)
        for number, rows in self._by_log(log):
            facts = self.facts[number]
            at = np.searchsorted(facts.start_places, place[rows], side="right")
            found[rows] = np.append(facts.start_places, NEVER)[at]
            ms[rows] = np.append(facts.start_ms, NEVER)[at]
        return found, ms

    def last_start(self, log: Integers, place: Integers) -> Integers:
        """The last start before each place; -1 if none is known."""
        found = np.full(len(place), -1)
        for number, rows in self._by_log(log):
            starts = self.facts[number].start_places
            found[rows] = np.append(-1, starts)[np.searchsorted(starts, place[rows])]
        return found

    def has_stretch(
        self, log: Integers, behind: Integers, before: Integers, by_ms: Integers | None = None
    ) -> Flags:
        """Whether something is not known behind one place and before another.

        `by_ms`: only what began when it was not later than this.
        """
        found = np.zeros(len(log), np.bool_)
        for number, rows in self._by_log(log):
            facts = self.facts[number]
            if not len(facts.stretch_from):
                continue
            # They stand in order, so those that qualify are neighbours.
            first = np.searchsorted(facts.stretch_to, behind[rows], side="right")
            end = np.searchsorted(facts.stretch_from, before[rows], side="left")
            if by_ms is not None:
                end = np.minimum(end, np.searchsorted(facts.stretch_ms, by_ms[rows], side="right"))
            found[rows] = first < end
        return found

    def last_stretch(self, log: Integers, place: Integers) -> tuple[Integers, Integers]:
        """Where the last stretch before each place begins, and its time; -1 if there is none."""
        found, ms = np.full(len(place), -1), np.full(len(place), -1)
        for number, rows in self._by_log(log):
            facts = self.facts[number]
            at = np.searchsorted(facts.stretch_from, place[rows])
            found[rows] = np.append(-1, facts.stretch_from)[at]
            ms[rows] = np.append(-1, facts.stretch_ms)[at]
        return found, ms

    def _by_log(self, log: Integers) -> list[tuple[int, Flags | slice]]:
        if len(self.facts) == 1:
            return [(0, slice(None))]
        return [(int(number), log == number) for number in np.unique(log)]
