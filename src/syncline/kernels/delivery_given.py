"""What was given to whom: deliveries with their span and their entries, and what is wrong in them.

Judged here is each delivery for itself: to whom it went, and whether what it held was stored.
Whether everything came, once and in time, is judged where its readers are (`delivery_documents`,
`delivery_queues`).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from syncline.kernels.delivery_logs import Logs
from syncline.kernels.delivery_rows import (
    FACE_DOCUMENTS,
    FACE_MASK,
    Acknowledgements,
    Deliveries,
    Flags,
    Integers,
    Notes,
)
from syncline.kernels.delivery_spans import Spans
from syncline.kernels.delivery_streams import Entries, Units
from syncline.kernels.delivery_tally import Tally


@dataclass(frozen=True, slots=True)
class Given:
    """Deliveries. `span` is -1 where nobody had subscribed; entries are `low` to before `high`."""

    rows: Deliveries
    unit: Integers
    span: Integers
    low: Integers
    high: Integers

    def taken(self, which: Flags | Integers) -> "Given":
        columns = (each[which] for each in (self.unit, self.span, self.low, self.high))
        return Given(self.rows.taken(which), *columns)

    @property
    def last(self) -> Integers:
        return self.rows.first + self.rows.more


@dataclass(frozen=True, slots=True)
class Acked:
    """Acknowledgements, with the unit and span of each, and behind which entry each stands."""

    rows: Acknowledgements
    unit: Integers
    span: Integers
    high: Integers


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of entries that a span was to get again, or that it got in an earlier run."""

    span: Integers
    low: Integers
    high: Integers
    place: Integers
    detail: Integers

    @classmethod
    def of(cls, notes: Notes, code: int, units: Units, entries: Entries, spans: Spans) -> "Ranges":
        rows = notes.taken(notes.code == code)
        unit = units.at(rows.key, rows.place)
        # A carried range stands where its span begins, so it is looked for right behind.
        span = spans.at(unit, rows.session, rows.place + (rows.is_new == 0))
        low = entries.find(unit, rows.first)
        high = entries.find(unit, rows.last + 1)
        known = np.where(rows.is_new > 0, entries.before(unit, rows.place), high)
        high = np.maximum(np.minimum(high, known), low)
        there = span >= 0
        columns = (span, low, high, rows.place, rows.detail)
        return cls(*(column[there] for column in columns))


def given(
    rows: Deliveries, units: Units, entries: Entries, spans: Spans, logs: Logs, tally: Tally
) -> Given:
    unit = units.at(rows.key, rows.place)
    low = entries.find(unit, rows.first)
    is_plain = rows.more == 0
    # Nearly all are about one entry, which is the next one or is not there.
    if len(entries) and is_plain.all():
        at = np.minimum(low, len(entries) - 1)
        is_there = (entries.seq[at] == rows.first) & (low < entries.end[unit])
        high = low + is_there
    else:
        high = np.maximum(entries.find(unit, rows.first + rows.more + 1), low)
    last = rows.first + rows.more
    odd = np.flatnonzero(~_is_stored(entries, high, low, last, rows.place))
    # What was appended only behind it is not what was delivered.
    high[odd] = np.maximum(
        np.minimum(high[odd], entries.before(unit[odd], rows.place[odd])), low[odd]
    )
    found = Given(rows, unit, spans.at(unit, rows.session, rows.place), low, high)
    _find_undurable(found.taken(odd[rows.more[odd] >= 0]), units, entries, logs, tally)
    _find_wrong_readers(found, units, entries, spans, logs, tally)
    return found


def _is_stored(
    entries: Entries, high: Integers, low: Integers, last: Integers, place: Integers
) -> Flags:
    """Whether the last entry of a range stands before the row that is about it."""
    if not len(entries):
        return np.zeros(len(high), np.bool_)
    at = np.maximum(high - 1, 0)
    found: Flags = (high > low) & (entries.seq[at] == last) & (entries.place[at] < place)
    return found


def is_undurable(
    unit: Integers,
    last: Integers,
    place: Integers,
    units: Units,
    entries: Entries,
    logs: Logs,
) -> Flags:
    """Whether a row is about something that had not been stored, as far as that is known."""
    behind = entries.before(unit, place)
    has_any = behind > entries.start[unit]
    at = np.maximum(behind - 1, 0)
    top, top_place = units.head_seq[unit], units.head_place[unit]
    if len(entries):
        top = np.where(has_any, np.maximum(entries.seq[at], top), top)
        top_place = np.where(has_any, np.maximum(entries.place[at], top_place), top_place)
    is_known = top >= 0
    top, top_place = np.maximum(top, 0), np.where(is_known, top_place, units.start_place[unit])
    log = units.log[unit]
    found = last > top
    found &= is_known | ~units.is_first[unit] | ~logs.is_branch[log]
    return found & ~logs.has_stretch(log, top_place, place)


def _find_undurable(rows: Given, units: Units, entries: Entries, logs: Logs, tally: Tally) -> None:
    bad = rows.taken(is_undurable(rows.unit, rows.last, rows.rows.place, units, entries, logs))
    _report("undurable", bad, units, tally)


def judge_acknowledgements(
    rows: Acknowledgements,
    unit: Integers,
    units: Units,
    entries: Entries,
    logs: Logs,
    tally: Tally,
) -> Integers:
    """Returns behind which entry each stands, of those that were there."""
    high = entries.find(unit, rows.last + 1)
    odd = np.flatnonzero(~_is_stored(entries, high, entries.start[unit], rows.last, rows.place))
    high[odd] = np.minimum(high[odd], entries.before(unit[odd], rows.place[odd]))
    # To acknowledge nothing is no fault.
    odd = odd[rows.last[odd] > 0]
    rows, unit = rows.taken(odd), unit[odd]
    which = is_undurable(unit, rows.last, rows.place, units, entries, logs)
    rows, unit = rows.taken(which), unit[which]
    tally.find(
        "undurable",
        units.key[unit],
        rows.last,
        rows.last,
        session=rows.session,
        place=rows.place,
        found_ms=rows.time_ms,
    )
    return high


def _find_wrong_readers(
    found: Given, units: Units, entries: Entries, spans: Spans, logs: Logs, tally: Tally
) -> None:
    rows = found.rows
    is_document = units.is_document[found.unit] & (rows.more >= 0)
    is_outside = is_document & (found.span < 0) & ((rows.session & FACE_MASK) == FACE_DOCUMENTS)
    if is_outside.any():
        outside = found.taken(is_outside)
        log, place = units.log[outside.unit], outside.rows.place
        # It may have subscribed where nothing is known.
        is_known = ~logs.has_stretch(log, logs.last_start(log, place), place)
        _report("after_unsubscribe", outside.taken(is_known), units, tally)
    is_inside = is_document & (found.span >= 0)
    if not is_inside.any():
        return
    first = spans.first[found.span]
    is_early = is_inside & (rows.first < first)
    if is_early.any():
        early = found.taken(is_early)
        early = early.taken(is_all_known(early.span, early.rows.place, spans, logs))
        _report(
            "unexpected",
            early,
            units,
            tally,
            last=np.minimum(early.last, spans.first[early.span] - 1),
        )
    author = spans.author[found.span]
    own = np.zeros(len(author), np.int64)
    high = np.where(is_inside & (author != 0), found.high, found.low)
    short, long = by_length(found.low, high)
    row, entry = spread(found.low[short], high[short])
    is_own = entries.author[entry] == author[short][row]
    own[short] = np.bincount(row[is_own], minlength=len(short))
    for each in long.tolist():
        mine = entries.author[found.low[each] : found.high[each]] == author[each]
        own[each] = np.count_nonzero(mine)
    _report("to_author", found.taken(is_inside & (rows.own < own)), units, tally)


def is_all_known(span: Integers, place: Integers, spans: Spans, logs: Logs) -> Flags:
    """Whether everything is known that a span went through before a place.

    If not, it may have been told to send again, or have begun anew.
    """
    return ~logs.has_stretch(spans.log[span], spans.place[span], place)


# Ranges up to this length are written out entry by entry, longer ones are gone through as slices.
SHORT: Final = 64


def by_length(low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """Which ranges are short, and which are long; those of nothing are neither."""
    lengths = high - low
    is_long = lengths > SHORT
    return np.flatnonzero((lengths > 0) & ~is_long), np.flatnonzero(is_long)


def spread(low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """Every entry of every range, with the number of its range."""
    lengths = high - low
    count = int(lengths.sum())
    if count == len(lengths) and (lengths == 1).all():
        return np.arange(count), low
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(count) + np.repeat(low - np.cumsum(lengths) + lengths, lengths)


def _report(
    rule: str, rows: Given, units: Units, tally: Tally, *, last: Integers | None = None
) -> None:
    tally.find(
        rule,
        units.key[rows.unit],
        rows.rows.first,
        rows.last if last is None else last,
        session=rows.rows.session,
        place=rows.rows.place,
        found_ms=rows.rows.time_ms,
    )
