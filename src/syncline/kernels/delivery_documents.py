"""Documents: every reader gets every update of its span, once, and in time.

A *pair* is an update and a span that ought to get it. It is *settled* once, at the first of these:

- it was delivered, or an acknowledgement covers it: delivered
- it has waited too long, from when it was there and the reader was: lost
- the span ended before that: lost if a later update came through, else interrupted

What was not delivered is unknown instead, if something about the time of the span is not known. A
delivery that comes when the wait is over changes nothing: so the verdict is the same whether the
log is read in one piece or in several. A pair is *closed* when its span or its wait is over; then
it is also clear whether it was acknowledged.

Pairs lie in arrays, span by span, a chunk of spans at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from syncline.kernels.delivery_given import (
    Acked,
    Given,
    Ranges,
    by_length,
    is_all_known,
    spread,
)
from syncline.kernels.delivery_hours import EntryHours, runs, stretches
from syncline.kernels.delivery_logs import EVENTS_MS_MAX, NEVER, Logs
from syncline.kernels.delivery_repeats import Repeats, find_repeats
from syncline.kernels.delivery_rows import Flags, Integers
from syncline.kernels.delivery_spans import Spans
from syncline.kernels.delivery_streams import Entries, Units
from syncline.kernels.delivery_tally import Tally

# So many pairs are held at a time, unless one span alone has more.
PAIRS_MAX: Final = 1 << 22
_KEY_BITS: Final = 62


@dataclass(frozen=True, slots=True)
class Rules:
    late_ms: int
    lost_after_ms: int
    # Routers are stopped and everything was read: what is open is judged now.
    is_over: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is known of the streams of a bucket."""

    units: Units
    entries: Entries
    spans: Spans
    given: Given
    acked: Acked
    resent: Ranges
    # What an earlier run left of the pairs of open spans.
    covered: Ranges
    hours: EntryHours
    logs: Logs
    rules: Rules
    tally: Tally


@dataclass(frozen=True, slots=True)
class Covers:
    """Of open spans, ranges of sequences with used << 1 | delivered."""

    span: Integers
    first: Integers
    last: Integers
    detail: Integers


@dataclass(frozen=True, slots=True)
class Left:
    """What the next run needs of documents."""

    # Entries that a pair still needs.
    needed: Flags
    given: Covers


class _Pairs:
    """The pairs of the spans from `start` to before `end`."""

    def __init__(self, scene: Scene, low: Integers, high: Integers, start: int, end: int) -> None:
        spans, entries = scene.spans, scene.entries
        self.scene = scene
        self.start, self.end = start, end
        self.low, self.high = low, high
        counts = (high - low)[start:end]
        self.count = int(counts.sum())
        self.span = np.repeat(np.arange(start, end), counts)
        # From the number of an entry to that of its pair, by span.
        self.shift = np.zeros(len(spans), np.int64)
        self.shift[start:end] = np.cumsum(counts) - counts - low[start:end]
        self.entry = np.arange(self.count) - self.shift[self.span]
        self.since_ms = np.maximum(entries.time_ms[self.entry], spans.time_ms[self.span])
        self.deadline_ms = self.since_ms + scene.rules.lost_after_ms
        self.given, at = self._clipped(scene.given.span, scene.given.low, scene.given.high)
        self.rows = scene.given.taken(at)
        # By entry: rows of a few, written out; the others stay ranges.
        self.short, self.long = by_length(*self.given)
        shift = self.shift[self.rows.span]
        self.pieces = [
            (each, slice(int(low), int(high)))
            for each, low, high in zip(
                self.long.tolist(),
                (self.given[0] + shift)[self.long].tolist(),
                (self.given[1] + shift)[self.long].tolist(),
                strict=True,
            )
        ]
        row, entry = spread(self.given[0][self.short], self.given[1][self.short])
        self.row = self.short[row]
        self.at = entry + shift[self.row]
        # As an earlier run left them.
        self.used = np.zeros(self.count, np.int64)
        self.was_delivered = np.zeros(self.count, np.bool_)
        self._load()

    def _clipped(
        self, span: Integers, low: Integers, high: Integers
    ) -> tuple[tuple[Integers, Integers], Integers]:
        """Ranges of entries of these spans, as far as they are pairs; and whose they are."""
        at = np.flatnonzero((span >= self.start) & (span < self.end))
        span = span[at]
        low, high = np.maximum(low[at], self.low[span]), np.minimum(high[at], self.high[span])
        is_any = high > low
        if is_any.all():
            return (low, high), at
        return (low[is_any], high[is_any]), at[is_any]

    def _load(self) -> None:
        covered = self.scene.covered
        (low, high), at = self._clipped(covered.span, covered.low, covered.high)
        row, entry = spread(low, high)
        pair, detail = entry + self.shift[covered.span[at][row]], covered.detail[at][row]
        self.used[pair], self.was_delivered[pair] = detail >> 1, (detail & 1) > 0

    def resent(self) -> tuple[Integers, Integers]:
        """Pairs that were to be sent again, and where that was noted."""
        marks = self.scene.resent
        (low, high), at = self._clipped(marks.span, marks.low, marks.high)
        row, entry = spread(low, high)
        return entry + self.shift[marks.span[at][row]], marks.place[at][row]

    def delivered(self) -> tuple[Integers, Integers]:
        """When each was delivered first, and how often."""
        first_ms = np.full(self.count, NEVER)
        times = np.bincount(self.at, minlength=self.count)
        time_ms = self.rows.rows.time_ms
        np.minimum.at(first_ms, self.at, time_ms[self.row])
        for row, piece in self.pieces:
            times[piece] += 1
            np.minimum(first_ms[piece], time_ms[row], out=first_ms[piece])
        return first_ms, times

    def acknowledged_ms(self) -> Integers:
        """When an acknowledgement covered each first."""
        acked = self.scene.acked
        at = np.flatnonzero((acked.span >= self.start) & (acked.span < self.end))
        span = acked.span[at]
        entry = np.minimum(acked.high[at], self.high[span]) - 1
        is_any = entry >= self.low[span]
        at, span, entry = at[is_any], span[is_any], entry[is_any]
        found = np.full(self.count, NEVER)
        if not len(at):
            return found
        # An acknowledgement covers what is before it. So, from the last pair back, the lowest time
        # so far is the answer, with the span in front of it: a later span never wins.
        time_ms = acked.rows.time_ms[at]
        lowest = int(time_ms.min())
        width = min(
            int(time_ms.max()) - lowest + 1, (1 << _KEY_BITS) // (self.end - self.start + 1)
        )
        key = (span - self.start) * width + np.minimum(time_ms - lowest, width - 1)
        np.minimum.at(found, entry + self.shift[span], key)
        found = np.minimum.accumulate(found[::-1])[::-1]
        own = (self.span - self.start) * width
        return np.where(found < own + width, found - own + lowest, NEVER)

    def rows_on(self, which: Flags) -> tuple[Integers, Integers]:
        """Every delivery of those pairs: its row and the pair."""
        rows, pairs = [self.row[(chosen := which[self.at])]], [self.at[chosen]]
        for row, piece in self.pieces:
            there = np.flatnonzero(which[piece]) + piece.start
            rows.append(np.full(len(there), row))
            pairs.append(there)
        return np.concatenate(rows), np.concatenate(pairs)


def judge_documents(scene: Scene) -> Left:
    spans = scene.spans
    low = spans.low
    high = np.where(scene.units.is_document[spans.unit], spans.high, low)
    reached = reached_by_delivery(scene)
    needed = np.zeros(len(scene.entries), np.bool_)
    left = [(nothing := np.empty(0, np.int64), nothing, nothing, nothing)]
    for start, end in _chunks(high - low):
        pairs = _Pairs(scene, low, high, start, end)
        first_ms, times = pairs.delivered()
        repeats = find_repeats(times, pairs.used, pairs.resent(), pairs.rows_on, pairs.rows)
        _report_repeats(pairs, repeats)
        is_delivered, is_needed = _judge(pairs, first_ms, reached)
        needed[pairs.entry[is_needed]] = True
        left.append(_remaining(pairs, repeats.used, is_delivered))
    _find_gone(scene)
    span, first, last, detail = (np.concatenate(each) for each in zip(*left, strict=True))
    return Left(needed, Covers(span, first, last, detail))


def _chunks(counts: Integers) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        behind = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, behind + PAIRS_MAX, side="right")), start + 1)
        yield start, end
        start = end


def reached_by_delivery(scene: Scene) -> Integers:
    """By span, the highest sequence that was delivered."""
    reached, given = scene.spans.reached_seq.copy(), scene.given
    some = np.flatnonzero((given.span >= 0) & (given.high > given.low))
    np.maximum.at(reached, given.span[some], scene.entries.seq[given.high[some] - 1])
    return reached


def _report_repeats(pairs: _Pairs, repeats: Repeats) -> None:
    scene, rows = pairs.scene, pairs.rows.rows
    span, place = pairs.rows.span[repeats.row], rows.place[repeats.row]
    known = is_all_known(span, place, scene.spans, scene.logs)
    row, entry = repeats.row[known], pairs.entry[repeats.pair[known]]
    key = scene.units.key[pairs.rows.unit[row]]
    scene.hours.count_at("duplicate", key, rows.time_ms[row])
    first, last = runs(row, scene.entries.seq[entry])
    row = row[first]
    scene.tally.find(
        "duplicate",
        key[first],
        scene.entries.seq[entry[first]],
        scene.entries.seq[entry[last]],
        session=rows.session[row],
        place=rows.place[row],
        appended_ms=scene.entries.time_ms[entry[first]],
        found_ms=rows.time_ms[row],
    )


def _judge(pairs: _Pairs, first_ms: Integers, reached: Integers) -> tuple[Flags, Flags]:
    """Counts and findings. Returns which are delivered, and which are needed again."""
    scene = pairs.scene
    spans, entries, logs, rules = scene.spans, scene.entries, scene.logs, scene.rules
    span, entry, deadline_ms = pairs.span, pairs.entry, pairs.deadline_ms
    newest_ms = logs.newest_ms[spans.log]
    is_ended = spans.end_place != NEVER
    # Of a log that another one has taken over from, nothing more will come.
    is_shut = is_ended | logs.is_left[spans.log] | rules.is_over
    acked_ms = pairs.acknowledged_ms()
    in_time = first_ms <= deadline_ms
    is_acked = acked_ms <= deadline_ms
    is_delivered = in_time | is_acked
    is_waited = newest_ms[span] > deadline_ms
    is_closed = is_shut[span] | is_waited
    was_settled = was_closed = np.zeros(pairs.count, np.bool_)
    if spans.is_carried[pairs.start : pairs.end].any():
        is_carried = spans.is_carried[span] & ~entries.is_new[entry]
        log = spans.log[span]
        was_closed = is_carried & ((logs.before_ms[log] > deadline_ms) | logs.was_over[log])
        was_acked = is_carried & (entries.seq[entry] <= spans.acked_seq[span])
        was_settled = was_closed | was_acked | (is_carried & pairs.was_delivered)
        is_acked |= was_acked
        is_delivered |= is_acked | pairs.was_delivered
    is_settled = (is_delivered | is_closed) & ~was_settled
    scene.tally.pending_count += int(np.count_nonzero(~(is_delivered | is_closed | was_settled)))
    scene.hours.count("expected", entry, is_settled)
    scene.hours.count("delivered", entry, is_settled & is_delivered)
    _judge_missing(pairs, np.flatnonzero(is_settled & ~is_delivered), is_waited, reached)
    _judge_latency(pairs, first_ms, is_settled & in_time & (first_ms <= acked_ms))
    owes = spans.acknowledges[span] & ~is_acked
    unacknowledged = np.flatnonzero(owes & is_delivered & is_closed & ~was_closed)
    _report(pairs, "unacknowledged", unacknowledged)
    is_needed = ~is_closed & (owes | ~is_delivered)
    return is_delivered, is_needed


def _judge_missing(pairs: _Pairs, at: Integers, is_waited: Flags, reached: Integers) -> None:
    """Of pairs that are settled and were not delivered: why."""
    scene = pairs.scene
    spans, logs = scene.spans, scene.logs
    span, deadline_ms, waited = pairs.span[at], pairs.deadline_ms[at], is_waited[at]
    is_ended = spans.end_place[span] != NEVER
    # Its span ended first; else the wait was over, or is declared to be.
    in_time = np.where(is_ended, spans.end_ms[span] <= deadline_ms, ~waited)
    is_skipped = scene.entries.seq[pairs.entry[at]] < reached[span]
    is_interrupted = in_time & (is_ended | logs.is_left[spans.log[span]]) & ~is_skipped
    is_unknown = logs.has_stretch(
        spans.log[span], spans.place[span], spans.end_place[span], deadline_ms
    )
    # Where a router was killed for good, its last events may be missing.
    newest_ms = logs.newest_ms[spans.log[span]]
    is_unknown |= ~is_ended & ~waited & (pairs.since_ms[at] >= newest_ms - EVENTS_MS_MAX)
    scene.hours.count("unknown", pairs.entry[at[is_unknown]])
    _report(pairs, "interrupted", at[is_interrupted & ~is_unknown])
    _report(pairs, "lost", at[~is_interrupted & ~is_unknown])


def _judge_latency(pairs: _Pairs, first_ms: Integers, which: Flags) -> None:
    scene = pairs.scene
    at = slice(None) if which.all() else np.flatnonzero(which)
    took_ms = first_ms[at] - pairs.since_ms[at]
    scene.tally.clock_back_count += int(np.count_nonzero(took_ms < 0))
    scene.hours.took(pairs.entry[at], took_ms)
    if not len(took_ms) or int(took_ms.max()) <= scene.rules.late_ms:
        return
    is_late = which & (first_ms - pairs.since_ms > scene.rules.late_ms)
    scene.hours.count("late", pairs.entry, is_late)
    row, pair = pairs.rows_on(is_late)
    rows, entries = pairs.rows.rows, scene.entries
    is_first = rows.time_ms[row] == first_ms[pair]
    row, entry = row[is_first], pairs.entry[pair[is_first]]
    first, last = runs(row, entries.seq[entry])
    found = row[first]
    scene.tally.find(
        "late",
        scene.units.key[pairs.rows.unit[found]],
        entries.seq[entry[first]],
        entries.seq[entry[last]],
        session=rows.session[found],
        place=rows.place[found],
        appended_ms=entries.time_ms[entry[first]],
        found_ms=rows.time_ms[found],
    )


def _report(pairs: _Pairs, rule: str, at: Integers) -> None:
    """Count pairs under a rule, and tell of each stretch of them."""
    scene = pairs.scene
    entry, span = pairs.entry[at], pairs.span[at]
    spans, entries = scene.spans, scene.entries
    scene.hours.count(rule, entry)
    first, last = runs(span, entries.seq[entry])
    found = span[first]
    scene.tally.find(
        rule,
        scene.units.key[spans.unit[found]],
        entries.seq[entry[first]],
        entries.seq[entry[last]],
        session=spans.session[found],
        place=entries.place[entry[first]],
        appended_ms=entries.time_ms[entry[first]],
        found_ms=np.minimum(spans.end_ms[found], pairs.deadline_ms[at[first]]),
    )


def _remaining(
    pairs: _Pairs, used: Integers, is_delivered: Flags
) -> tuple[Integers, Integers, Integers, Integers]:
    """What the next run has to know of the pairs of open spans, as ranges of sequences."""
    scene = pairs.scene
    spans, seq = scene.spans, scene.entries.seq
    is_open = (spans.end_place == NEVER) & ~scene.logs.is_left[spans.log]
    detail = (used << 1) | is_delivered
    at = np.flatnonzero(is_open[pairs.span] & (detail != 0))
    span, entry, detail = pairs.span[at], pairs.entry[at], detail[at]
    is_edge = (np.diff(at) != 1) | (np.diff(span) != 0) | (np.diff(detail) != 0)
    starts, ends = stretches(is_edge, len(at))
    return span[starts], seq[entry[starts]], seq[entry[ends]], detail[starts]


def _find_gone(scene: Scene) -> None:
    """Deliveries of what all readers had, so that an earlier run did not keep it."""
    given, spans, units, entries = scene.given, scene.spans, scene.units, scene.entries
    if not spans.is_carried.any():
        return
    at = np.flatnonzero(given.span >= 0)
    at = at[spans.is_carried[given.span[at]] & units.is_document[given.unit[at]]]
    at = at[is_all_known(given.span[at], given.rows.place[at], spans, scene.logs)]
    unit, first = given.unit[at], np.maximum(given.rows.first[at], spans.first[given.span[at]])
    # Nothing else was left out of the carry.
    last = np.minimum(given.last[at], units.passed_seq[unit])
    known = entries.find(unit, last + 1) - entries.find(unit, first)
    count = np.maximum(last - first + 1, 0) - known
    some = np.flatnonzero((last >= first) & (count > 0))
    at, unit, rows = at[some], unit[some], given.rows
    key = units.key[unit]
    scene.hours.count_at("duplicate", key, rows.time_ms[at], count[some])
    scene.tally.find(
        "duplicate",
        key,
        first[some],
        last[some],
        session=rows.session[at],
        place=rows.place[at],
        found_ms=rows.time_ms[at],
    )
