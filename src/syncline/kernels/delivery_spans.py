"""Who read what, and for how long: a *span* is one session on one stream.

It begins with SUBSCRIBED and ends with the first of these: UNSUBSCRIBED or EVICTED of the same
session there, another SUBSCRIBED of it, the next start of the router, the end of the stream. A
queue has one reader at a time, so there a SUBSCRIBED of anybody ends it as well: nobody notes the
end of a reader that has simply gone.
"""

from dataclasses import dataclass

import numpy as np

from syncline.kernels.delivery_logs import NEVER, Logs
from syncline.kernels.delivery_rows import (
    EVICTED,
    REACHED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Flags,
    Integers,
    Notes,
)
from syncline.kernels.delivery_streams import Axis, Entries, Passes, Units


@dataclass(frozen=True, slots=True)
class Spans:
    """By unit, session and place. An end of NEVER: it is open."""

    unit: Integers
    session: Integers
    place: Integers
    time_ms: Integers
    first: Integers
    acknowledges: Flags
    author: Integers
    is_carried: Flags
    end_place: Integers
    end_ms: Integers
    # As an earlier run left it: the highest sequence delivered, and acknowledged.
    reached_seq: Integers
    acked_seq: Integers
    log: Integers
    # Entries that it ought to get: from one to before another.
    low: Integers
    high: Integers
    # Sessions on units: where the spans of each begin, and how many there are.
    _pairs: Integers
    _pair_axis: Axis
    _pair_start: Integers
    _pair_count: Integers
    _starts: Integers
    _start_axis: Axis

    def __len__(self) -> int:
        return len(self.unit)

    @classmethod
    def of(
        cls, units: Units, entries: Entries, passes: Passes, notes: Notes, logs: Logs
    ) -> "Spans":
        is_edge = np.isin(notes.code, (SUBSCRIBED, UNSUBSCRIBED, EVICTED))
        edges = notes.taken(is_edge)
        unit = units.at(edges.key, edges.place)
        order = np.lexsort((edges.place, edges.session, unit))
        unit, edges = unit[order], edges.taken(order)
        next_place, next_ms, next_seq = _next_edges(unit, edges)
        chosen = np.flatnonzero(edges.code == SUBSCRIBED)
        unit, rows = unit[chosen], edges.taken(chosen)
        log = units.log[unit]
        end_place, end_ms = _soonest(
            (next_place[chosen], next_ms[chosen]),
            (units.end_place[unit], units.end_ms[unit]),
            logs.next_start(log, rows.place),
            _next_reader(units, unit, rows),
        )
        axis = Axis(len(units), rows.session)
        pairs, pair_start, pair_count = np.unique(
            axis.key(unit, rows.session), return_index=True, return_counts=True
        )
        start_axis = Axis(len(pairs), rows.place)
        of_pair = np.repeat(np.arange(len(pairs)), pair_count)
        reached, acked = np.full(len(rows), -1), np.full(len(rows), -1)
        carried = notes.taken(notes.code == REACHED)
        # Of a session on a unit only an open span is carried, and it comes first.
        at = np.searchsorted(pairs, axis.key(units.at(carried.key, carried.place), carried.session))
        reached[pair_start[at]], acked[pair_start[at]] = carried.first, carried.last
        # What the log had let go of before cannot be asked for any more.
        gone = np.where(rows.is_new > 0, passes.before(unit, rows.place), 0)
        first = np.maximum(rows.first, np.where(units.is_document[unit], gone + 1, 0))
        low = entries.find(unit, first)
        high = np.where(end_place == NEVER, entries.end[unit], entries.before(unit, end_place))
        end_seq = next_seq[chosen]
        is_known = units.is_document[unit] & (end_place == next_place[chosen]) & (end_seq > 0)
        high = np.where(is_known, np.minimum(high, entries.find(unit, end_seq + 1)), high)
        return cls(
            unit,
            rows.session,
            rows.place,
            rows.time_ms,
            first,
            rows.last > 0,
            rows.detail,
            rows.is_new == 0,
            end_place,
            end_ms,
            reached,
            acked,
            log,
            low,
            np.maximum(low, high),
            pairs,
            axis,
            pair_start.astype(np.int64),
            pair_count.astype(np.int64),
            start_axis.key(of_pair, rows.place),
            start_axis,
        )

    def at(self, unit: Integers, session: Integers, place: Integers) -> Integers:
        """The span of each row; -1 if there is none at its place."""
        if not len(self.unit):
            return np.full(len(unit), -1)
        pair = np.searchsorted(self._pairs, keys := self._pair_axis.key(unit, session))
        pair = np.minimum(pair, len(self._pairs) - 1)
        is_there = self._pairs[pair] == keys
        span = self._pair_start[pair]
        several = np.flatnonzero(self._pair_count[pair] > 1)
        if len(several):
            wanted = self._start_axis.key(pair[several], place[several])
            found = np.searchsorted(self._starts, wanted, side="right") - 1
            span[several] = np.maximum(found, span[several])
        is_there &= (place > self.place[span]) & (place < self.end_place[span])
        return np.where(is_there, span, -1)


def _next_edges(unit: Integers, edges: Notes) -> tuple[Integers, Integers, Integers]:
    """Of each row what comes next of the same session on the same unit: place and time, and up to
    which sequence something was there for who left: the row itself comes later. 0: not known."""
    count = len(edges)
    next_place, next_ms = np.full(count, NEVER), np.full(count, NEVER)
    next_seq = np.zeros(count, np.int64)
    left_seq = np.where(edges.code == EVICTED, edges.first, edges.last)
    is_same = (unit[1:] == unit[:-1]) & (edges.session[1:] == edges.session[:-1])
    next_place[:-1][is_same] = edges.place[1:][is_same]
    next_ms[:-1][is_same] = edges.time_ms[1:][is_same]
    is_left = is_same & (edges.code[1:] != SUBSCRIBED)
    next_seq[:-1][is_left] = left_seq[1:][is_left]
    return next_place, next_ms, next_seq


def _soonest(*ends: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """Of several places with their times, the first for each row."""
    end_place, end_ms = ends[0]
    for place, ms in ends[1:]:
        is_sooner = place < end_place
        end_place, end_ms = (
            np.where(is_sooner, place, end_place),
            np.where(is_sooner, ms, end_ms),
        )
    return end_place, end_ms


def _next_reader(units: Units, unit: Integers, rows: Notes) -> tuple[Integers, Integers]:
    """Of queues, the next SUBSCRIBED of anybody."""
    places, times = np.full(len(rows), NEVER), np.full(len(rows), NEVER)
    order = np.lexsort((rows.place, unit))
    follows = (unit[order][1:] == unit[order][:-1]) & ~units.is_document[unit[order][1:]]
    before, behind = order[:-1][follows], order[1:][follows]
    places[before], times[before] = rows.place[behind], rows.time_ms[behind]
    return places, times
