"""Queues: every message reaches somebody, once, and is acknowledged before the log lets it go.

A message is *closed* when the log has let go of it, or with its queue. It was delivered if it was
acknowledged, interrupted if it was given up by age or with the queue, and lost if neither: then it
was removed and nobody knows why. The router notes an acknowledgement as it lets go, so it stands in
the log within a second of that; one that a killed router did not get to write is unknown.

To be handed over again in another session is how queues work. In one session it is a duplicate,
unless that had asked again, or the message was to be sent again. Sessions that never subscribed to
the queue itself fetch what they want as often as they want, or read for a service: they are not
judged by that, and what they get has no latency.
"""

from dataclasses import dataclass

import numpy as np

from syncline.kernels.delivery_documents import Covers, Scene
from syncline.kernels.delivery_given import Ranges, is_all_known, spread
from syncline.kernels.delivery_hours import runs, stretches
from syncline.kernels.delivery_logs import EVENTS_MS_MAX, NEVER
from syncline.kernels.delivery_repeats import find_repeats
from syncline.kernels.delivery_rows import (
    EXPIRED,
    GIVEN_UP,
    TAKEN,
    Flags,
    Integers,
    Notes,
)
from syncline.kernels.delivery_streams import Entries, Passes


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows that say of a queue: everything up to a sequence. By unit and place."""

    unit: Integers
    place: Integers
    time_ms: Integers
    last: Integers

    @classmethod
    def sorted(cls, unit: Integers, place: Integers, time_ms: Integers, last: Integers) -> "Marks":
        order = np.lexsort((place, unit))
        return cls(unit[order], place[order], time_ms[order], last[order])

    def first_covering(self, entries: Entries) -> Integers:
        """The first of them that covers each entry; -1 if none does."""
        if not len(self.unit):
            return np.full(len(entries), -1)
        behind = entries.find(self.unit, self.last + 1)
        # What comes later is not meant.
        behind = np.minimum(behind, entries.before(self.unit, self.place))
        some = np.flatnonzero(behind > entries.start[self.unit])
        found = np.full(len(entries), len(self.unit))
        np.minimum.at(found, behind[some] - 1, some)
        # What covers a later entry of the unit covers an earlier one; a later unit comes later.
        found = np.minimum.accumulate(found[::-1])[::-1]
        is_there = found < len(self.unit)
        found = np.where(is_there, found, 0)
        return np.where(is_there & (self.unit[found] == entries.unit), found, -1)


@dataclass(frozen=True, slots=True)
class QueuesLeft:
    """What the next run needs of queues."""

    # Messages that are not closed, and which of all were delivered.
    needed: Flags
    was_delivered: Flags
    given: Covers
    # Rows in which the log let go of messages that are not closed.
    passes: Integers
    taken: Marks
    given_up: Marks


def judge_queues(scene: Scene, passes: Passes, notes: Notes) -> QueuesLeft:
    entries, units, logs, tally = scene.entries, scene.units, scene.logs, scene.tally
    taken = _marks(scene, notes, TAKEN)
    given_up = _marks(scene, notes, GIVEN_UP, EXPIRED)
    is_queue = ~units.is_document[entries.unit]
    let_go = Marks(passes.unit, passes.place, passes.time_ms, passes.seq)
    passed = let_go.first_covering(entries)
    is_passed = is_queue & (passed >= 0)
    passed_place = np.where(is_passed, _at(let_go.place, passed), NEVER)
    was_delivered = (entries.author == 1) & ~entries.is_new & is_queue
    is_delivered, given_left = _judge_deliveries(scene, is_queue, passed_place, was_delivered)
    is_ended = is_queue & ~is_passed & (units.end_place[entries.unit] != NEVER)
    log = units.log[entries.unit]
    # Of the rest, the rules are about when the log let go.
    at = np.flatnonzero(is_passed)
    place, by_ms = passed_place[at], _at(let_go.time_ms, passed)[at] + EVENTS_MS_MAX
    start, start_ms = logs.next_start(log[at], place)
    acked = _covering(taken, entries, at, start, by_ms)
    expired = _covering(given_up, entries, at, start, by_ms)
    is_taken, is_expired = acked < expired, expired < acked
    newest_ms = logs.newest_ms[log[at]]
    is_known = is_taken | is_expired
    is_over = (newest_ms > by_ms) | (start != NEVER) | scene.rules.is_over | logs.is_left[log[at]]
    is_unknown = logs.has_stretch(log[at], entries.place[at], np.full(len(at), NEVER), by_ms)
    is_unknown |= (start != NEVER) & (by_ms > start_ms)
    is_unknown |= (start == NEVER) & (newest_ms <= by_ms)
    verdicts = {
        "delivered": [at[is_taken]],
        "interrupted": [at[is_expired]],
        "unknown": [at[~is_known & is_over & is_unknown]],
        "lost": [lost := at[~is_known & is_over & ~is_unknown]],
    }
    # What waits where another log takes over goes on there: what becomes of it is not known here.
    is_left = logs.is_left[log]
    is_waiting = is_queue & ~is_passed & ~is_ended
    verdicts["unknown"].append(
        np.flatnonzero(is_waiting & is_left & (entries.place < logs.left_place[log]))
    )
    ended = np.flatnonzero(is_ended)
    was_taken = is_delivered[ended] | (taken.first_covering(entries)[ended] >= 0)
    verdicts["delivered"].append(ended[was_taken])
    verdicts["interrupted"].append(dropped := ended[~was_taken])
    for verdict, parts in verdicts.items():
        for part in parts:
            scene.hours.count("expected", part)
            scene.hours.count(verdict, part)
    _report(scene, "lost", lost, _at(let_go.time_ms, passed)[lost])
    _report(scene, "interrupted", dropped, units.end_ms[entries.unit[dropped]])
    is_open = is_queue & ~is_ended & ~is_left
    is_open[at[is_known | is_over]] = False
    tally.waiting_count += int(np.count_nonzero(is_open & ~is_passed))
    tally.pending_count += int(np.count_nonzero(is_open & is_passed))
    kept = np.unique(passed[is_open & is_passed])
    return QueuesLeft(is_open, is_delivered, given_left, kept, taken, given_up)


def _at(values: Integers, place: Integers) -> Integers:
    """Values by place; of a place of -1 some value that nobody looks at."""
    return np.append(values, 0)[place]


def _marks(scene: Scene, notes: Notes, *codes: int) -> Marks:
    """Acknowledgements of queues for TAKEN; else rows of notes alone."""
    rows = notes.taken(np.isin(notes.code, codes))
    unit = scene.units.at(rows.key, rows.place)
    place, time_ms, last = rows.place, rows.time_ms, rows.last
    if TAKEN in codes:
        acked = scene.acked
        of_queue = ~scene.units.is_document[acked.unit]
        more = acked.rows.taken(of_queue)
        unit = np.concatenate((unit, acked.unit[of_queue]))
        place = np.concatenate((place, more.place))
        time_ms = np.concatenate((time_ms, more.time_ms))
        last = np.concatenate((last, more.last))
    return Marks.sorted(unit, place, time_ms, last)


def _covering(
    marks: Marks, entries: Entries, at: Integers, start: Integers, by_ms: Integers
) -> Integers:
    """Where each was covered: before the next start and in time; NEVER if it was not."""
    found = marks.first_covering(entries)[at]
    place, time_ms = _at(marks.place, found), _at(marks.time_ms, found)
    is_there = (found >= 0) & (place < start) & (time_ms <= by_ms)
    return np.where(is_there, place, NEVER)


def _judge_deliveries(
    scene: Scene, is_queue: Flags, passed_place: Integers, was_delivered: Flags
) -> tuple[Flags, Covers]:
    """Latencies and duplicates; which messages are delivered, and what open spans were given."""
    entries, spans, given = scene.entries, scene.spans, scene.given
    of_queue = np.flatnonzero(~scene.units.is_document[given.unit] & (given.high > given.low))
    rows = given.taken(of_queue)
    row, entry = spread(rows.low, rows.high)
    # What comes behind the end of a message is nothing that it is judged by.
    is_before = rows.rows.place[row] < passed_place[entry]
    row, entry = row[is_before], entry[is_before]
    first_place = np.full(len(entries), NEVER)
    np.minimum.at(first_place, entry, rows.rows.place[row])
    is_first = (first_place[entry] == rows.rows.place[row]) & ~was_delivered[entry]
    _judge_latency(scene, of_queue[row[is_first]], entry[is_first])
    is_delivered = was_delivered | (first_place < NEVER)
    inside = np.flatnonzero(rows.span[row] >= 0)
    row, entry = row[inside], entry[inside]
    # Pairs of a span and a message, as far as there are any.
    marked_span, marked_entry, marked_place, _ = _of_queues(scene, scene.resent)
    former_span, former_entry, _, former = _of_queues(scene, scene.covered)
    parts = [
        (rows.span[row], entry),
        (marked_span, marked_entry),
        (former_span, former_entry),
    ]
    keys = np.concatenate([span * len(entries) + number for span, number in parts])
    names, pair = np.unique(keys, return_inverse=True)
    given_pair, marked, former_pair = np.split(
        pair, np.cumsum([len(span) for span, _ in parts])[:-1]
    )
    used = np.zeros(len(names), np.int64)
    used[former_pair] = former >> 1
    times = np.bincount(given_pair, minlength=len(names))

    def rows_on(which: Flags) -> tuple[Integers, Integers]:
        chosen = which[given_pair]
        return row[chosen], given_pair[chosen]

    repeats = find_repeats(times, used, (marked, marked_place), rows_on, rows)
    _report_repeats(scene, of_queue[repeats.row], names[repeats.pair] % max(len(entries), 1))
    span, of_span = names // max(len(entries), 1), names % max(len(entries), 1)
    is_open = (spans.end_place[span] == NEVER) & (repeats.used != 0)
    is_open &= passed_place[of_span] == NEVER
    span, of_span, state = span[is_open], of_span[is_open], repeats.used[is_open]
    edges = (np.diff(span) != 0) | (np.diff(of_span) != 1) | (np.diff(state) != 0)
    starts, ends = stretches(edges, len(span))
    seq = entries.seq
    first, last = seq[of_span[starts]], seq[of_span[ends]]
    return is_delivered, Covers(span[starts], first, last, state[starts] << 1 | 1)


def _of_queues(scene: Scene, ranges: Ranges) -> tuple[Integers, Integers, Integers, Integers]:
    """Ranges of queues, message by message: span, entry, place and detail."""
    of_queue = np.flatnonzero(~scene.units.is_document[scene.spans.unit[ranges.span]])
    number, entry = spread(ranges.low[of_queue], ranges.high[of_queue])
    at = of_queue[number]
    return ranges.span[at], entry, ranges.place[at], ranges.detail[at]


def _judge_latency(scene: Scene, row: Integers, entry: Integers) -> None:
    given, spans, entries = scene.given, scene.spans, scene.entries
    inside = given.span[row] >= 0
    row, entry = row[inside], entry[inside]
    rows = given.rows
    since_ms = np.maximum(entries.time_ms[entry], spans.time_ms[given.span[row]])
    took_ms = rows.time_ms[row] - since_ms
    scene.tally.clock_back_count += int(np.count_nonzero(took_ms < 0))
    scene.hours.took(entry, took_ms)
    late = np.flatnonzero(took_ms > scene.rules.late_ms)
    row, entry = row[late], entry[late]
    scene.hours.count("late", entry)
    first, last = runs(row, entries.seq[entry])
    found = row[first]
    scene.tally.find(
        "late",
        scene.units.key[given.unit[found]],
        entries.seq[entry[first]],
        entries.seq[entry[last]],
        session=rows.session[found],
        place=rows.place[found],
        appended_ms=entries.time_ms[entry[first]],
        found_ms=rows.time_ms[found],
    )


def _report_repeats(scene: Scene, row: Integers, entry: Integers) -> None:
    given, rows, entries = scene.given, scene.given.rows, scene.entries
    known = is_all_known(given.span[row], rows.place[row], scene.spans, scene.logs)
    row, entry = row[known], entry[known]
    key = scene.units.key[given.unit[row]]
    scene.hours.count_at("duplicate", key, rows.time_ms[row])
    first, last = runs(row, entries.seq[entry])
    found = row[first]
    scene.tally.find(
        "duplicate",
        key[first],
        entries.seq[entry[first]],
        entries.seq[entry[last]],
        session=rows.session[found],
        place=rows.place[found],
        appended_ms=entries.time_ms[entry[first]],
        found_ms=rows.time_ms[found],
    )


def _report(scene: Scene, rule: str, entry: Integers, found_ms: Integers) -> None:
    entries = scene.entries
    first, last = runs(entries.unit[entry], entries.seq[entry])
    scene.tally.find(
        rule,
        scene.units.key[entries.unit[entry[first]]],
        entries.seq[entry[first]],
        entries.seq[entry[last]],
        place=entries.place[entry[first]],
        appended_ms=entries.time_ms[entry[first]],
        found_ms=found_ms[first],
    )
