"""Streams and what was appended to them, put so that an entry is found by its sequence.

A stream that is deleted and made again counts from 1 again: each of its *lives* is a unit of its
own. Entries of a unit stand one behind the other, ascending by place and by sequence; those whose
sequence is not above all before them are findings, and left out.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from syncline.kernels.delivery_logs import NEVER, Logs
from syncline.kernels.delivery_rows import (
    DELETED,
    HEAD,
    HINT_DOCUMENT,
    HINT_QUEUE,
    HINT_READER,
    PASSED,
    Appends,
    Flags,
    Integers,
    Notes,
    Rows,
)
from syncline.kernels.delivery_tally import Tally

_KEY_MAX: Final = 1 << 62


class Axis:
    """Numbers of one kind, with a group in front of each, as one number that sorts the same."""

    def __init__(self, group_count: int, *values: Integers) -> None:
        there = [each for each in values if len(each)]
        self._low = min((int(each.min()) for each in there), default=0) - 1
        self._high = max((int(each.max()) for each in there), default=0) + 1
        self._width = self._high - self._low + 1
        self._known: Integers | None = None
        if self._width * (group_count + 1) >= _KEY_MAX:
            # Too far apart: their ranks take their place, and what is between two gets a place too.
            self._known = np.unique(np.concatenate(there))
            self._width = 2 * len(self._known) + 2

    def key(self, group: Integers, value: Integers) -> Integers:
        if self._known is None:
            near: Integers = np.clip(value, self._low, self._high) - self._low
            return group * self._width + near
        at = np.searchsorted(self._known, value)
        is_known = self._known[np.minimum(at, len(self._known) - 1)] == value
        ranked: Integers = group * self._width + 2 * at + is_known
        return ranked


@dataclass(frozen=True, slots=True)
class Units:
    """One for each life of a stream. `head` is what an earlier run knew last; -1 if nothing."""

    key: Integers
    log: Integers
    is_document: Flags
    # Whether its beginning is that of the stream, and where it begins and ends.
    is_first: Flags
    start_place: Integers
    end_place: Integers
    end_ms: Integers
    head_seq: Integers
    head_place: Integers
    # Up to where the log had let go of it, as an earlier run knew.
    passed_seq: Integers
    _lives: Integers
    _deleted: Integers
    _axis: Axis

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def of(cls, rows: Rows, log_of_key: Integers, logs: Logs) -> "Units":
        notes, key_count = rows.notes, len(rows.keys)
        deletes = Notes.joined(
            (notes.taken(notes.code == DELETED), _hidden_deletes(rows, log_of_key, logs))
        )
        deletes = deletes.taken(np.lexsort((deletes.place, deletes.key)))
        counts = np.bincount(deletes.key, minlength=key_count)
        lives = np.concatenate(([0], np.cumsum(counts + 1)))
        unit_count = int(lives[-1])
        key = np.repeat(np.arange(key_count), counts + 1)
        axis = Axis(key_count, deletes.place)
        starts, ends = np.full(unit_count, -1), np.full(unit_count, NEVER)
        ends_ms = np.full(unit_count, NEVER)
        # The n-th delete of a stream ends its n-th life and begins the next.
        ended = np.arange(len(deletes)) + deletes.key
        ends[ended], ends_ms[ended] = deletes.place, deletes.time_ms
        starts[ended + 1] = deletes.place
        is_first = np.zeros(unit_count, np.bool_)
        is_first[lives[:-1]] = True
        hints = rows.hints[key]
        is_document = (hints & HINT_DOCUMENT > 0) | (
            (hints & HINT_QUEUE == 0) & (hints & HINT_READER > 0)
        )
        heads = notes.taken(notes.code == HEAD)
        # What was carried of a stream is of its life at that time: the first one here.
        of_head = lives[heads.key]
        head_seq, head_place = np.full(unit_count, -1), np.full(unit_count, -1)
        passed_seq = np.zeros(unit_count, np.int64)
        head_seq[of_head], head_place[of_head] = heads.last, heads.place
        passed_seq[of_head] = heads.first
        return cls(
            *(key, log_of_key[key], is_document, is_first, starts, ends, ends_ms),
            *(head_seq, head_place, passed_seq),
            *(lives, axis.key(deletes.key, deletes.place), axis),
        )

    def at(self, key: Integers, place: Integers) -> Integers:
        """The unit of each row."""
        if not len(self._deleted):
            return key
        gone = np.searchsorted(self._deleted, self._axis.key(key, place), side="left")
        # Deletes of streams before it: one unit less each than there are units.
        return gone + key


def _hidden_deletes(rows: Rows, log_of_key: Integers, logs: Logs) -> Notes:
    """Where sequences begin again behind a stretch, the stream was deleted in it."""
    appends, notes = rows.appends, rows.notes
    if not any(len(each.stretch_from) for each in logs.facts):
        return Notes.empty()
    # Where a delete is known, sequences may begin again.
    known = notes.taken(np.isin(notes.code, (HEAD, DELETED)))
    key = np.concatenate((known.key, appends.key))
    place = np.concatenate((known.place, appends.place))
    seq = np.concatenate((np.where(known.code == HEAD, known.last, 0), appends.seq))
    is_entry = np.arange(len(key)) >= len(known)
    order = np.lexsort((place, key))
    key, place, seq, is_entry = key[order], place[order], seq[order], is_entry[order]
    log = log_of_key[key]
    is_again = (key[1:] == key[:-1]) & (seq[1:] <= seq[:-1]) & is_entry[1:]
    again = np.flatnonzero(is_again) + 1
    again = again[logs.has_stretch(log[again], place[again - 1], place[again])]
    start, ms = logs.last_stretch(log[again], place[again])
    nothing = np.zeros(len(again), np.int64)
    code = np.full(len(again), DELETED)
    return Notes(key[again], code, nothing, start, ms, nothing, nothing, nothing, nothing)


@dataclass(frozen=True, slots=True)
class Entries:
    """Everything appended that is known, by unit and place. Rows `start` to `end` are a unit's."""

    unit: Integers
    seq: Integers
    place: Integers
    time_ms: Integers
    author: Integers
    is_new: Flags
    start: Integers
    end: Integers
    first_seq: Integers
    is_gapless: Flags
    _places: Integers
    _place_axis: Axis
    _seqs: Integers
    _seq_axis: Axis

    def __len__(self) -> int:
        return len(self.unit)

    @classmethod
    def of(cls, units: Units, rows: Appends, logs: Logs, tally: Tally) -> "Entries":
        unit = units.at(rows.key, rows.place)
        axis = Axis(len(units), rows.place)
        keys = axis.key(unit, rows.place)
        if len(keys) and (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            unit, rows, keys = unit[order], rows.taken(order), keys[order]
        seq_axis = Axis(len(units), rows.seq)
        seqs = seq_axis.key(unit, rows.seq)
        is_new = rows.is_new > 0
        is_bad = is_new & (rows.seq <= units.head_seq[unit])
        if len(seqs):
            highest = np.maximum.accumulate(seqs)
            is_bad[1:] |= (seqs[1:] <= highest[:-1]) & (unit[1:] == unit[:-1])
        if is_bad.any():
            wrong = np.flatnonzero(is_bad & is_new)
            tally.find(
                "sequence_gap",
                units.key[unit[wrong]],
                rows.seq[wrong],
                rows.seq[wrong],
                place=rows.place[wrong],
                appended_ms=rows.time_ms[wrong],
                found_ms=rows.time_ms[wrong],
            )
            good = ~is_bad
            unit, rows, keys, seqs = unit[good], rows.taken(good), keys[good], seqs[good]
            is_new = is_new[good]
        numbers = np.arange(len(units))
        start, end = np.searchsorted(unit, numbers), np.searchsorted(unit, numbers, side="right")
        has_any = end > start
        first_seq, last_seq = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
        first_seq[has_any] = rows.seq[start[has_any]]
        last_seq[has_any] = rows.seq[end[has_any] - 1]
        is_gapless = last_seq - first_seq + 1 == end - start
        found = cls(
            unit,
            rows.seq,
            rows.place,
            rows.time_ms,
            rows.author,
            is_new,
            start.astype(np.int64),
            end.astype(np.int64),
            first_seq,
            is_gapless,
            keys,
            axis,
            seqs,
            seq_axis,
        )
        found._find_gaps(units, logs, tally)
        return found

    def _find_gaps(self, units: Units, logs: Logs, tally: Tally) -> None:
        """Between two entries no sequence is left out, unless something there is not known."""
        new = np.flatnonzero(self.is_new)
        unit = self.unit[new]
        before = np.maximum(new - 1, 0)
        follows = (new > self.start[unit]) & self.is_new[before]
        has_head = units.head_seq[unit] >= 0
        former = np.where(follows, self.seq[before], np.maximum(units.head_seq[unit], 0))
        from_place = np.where(
            follows,
            self.place[before],
            np.where(has_head, units.head_place[unit], units.start_place[unit]),
        )
        is_gap = self.seq[new] > former + 1
        # The beginning of its streams is in another log.
        is_gap &= follows | has_head | ~units.is_first[unit] | ~logs.is_branch[units.log[unit]]
        rows = np.flatnonzero(is_gap)
        log = units.log[unit[rows]]
        rows = rows[~logs.has_stretch(log, from_place[rows], self.place[new[rows]])]
        at = new[rows]
        tally.find(
            "sequence_gap",
            units.key[unit[rows]],
            former[rows] + 1,
            self.seq[at] - 1,
            place=self.place[at],
            found_ms=self.time_ms[at],
        )

    def find(self, unit: Integers, seq: Integers) -> Integers:
        """The first entry of the unit whose sequence is not lower; the end of the unit if none."""
        start, end = self.start[unit], self.end[unit]
        found = start + np.clip(seq - self.first_seq[unit], 0, end - start)
        loose = np.flatnonzero(~self.is_gapless[unit])
        if len(loose):
            keys = self._seq_axis.key(unit[loose], seq[loose])
            at = np.searchsorted(self._seqs, keys)
            found[loose] = np.clip(at, start[loose], end[loose])
        entry: Integers = found
        return entry

    def before(self, unit: Integers, place: Integers) -> Integers:
        """Behind the last entry of the unit that stands before the place."""
        found = np.searchsorted(self._places, self._place_axis.key(unit, place))
        clipped: Integers = np.clip(found, self.start[unit], self.end[unit])
        return clipped


@dataclass(frozen=True, slots=True)
class Passes:
    """Rows in which the log let go of the entries of a unit up to `seq`; by unit and place."""

    unit: Integers
    place: Integers
    time_ms: Integers
    seq: Integers
    # The highest of each unit, with what an earlier run knew.
    highest: Integers
    _units: Units
    _keys: Integers
    _so_far: Integers
    _axis: Axis

    @classmethod
    def of(cls, notes: Notes, units: Units) -> "Passes":
        rows = notes.taken(notes.code == PASSED)
        unit = units.at(rows.key, rows.place)
        order = np.lexsort((rows.place, unit))
        unit, rows = unit[order], rows.taken(order)
        axis = Axis(len(units), rows.place)
        highest = units.passed_seq.copy()
        np.maximum.at(highest, unit, rows.last)
        keys = axis.key(unit, rows.place)
        # Up to each row the highest of its unit: ranks, with the unit in front of them.
        known, rank = np.unique(rows.last, return_inverse=True)
        shift = unit * len(known)
        so_far = known[np.maximum.accumulate(rank + shift) - shift]
        return cls(unit, rows.place, rows.time_ms, rows.last, highest, units, keys, so_far, axis)

    def before(self, unit: Integers, place: Integers) -> Integers:
        """What the log had let go of before each place."""
        found = self._units.passed_seq[unit]
        if not len(self.unit):
            return found
        at = np.searchsorted(self._keys, self._axis.key(unit, place)) - 1
        is_there = (at >= 0) & (self.unit[at] == unit)
        return np.where(is_there, np.maximum(self._so_far[at], found), found)
