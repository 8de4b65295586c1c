"""The check of deliveries: what became of everything that was appended to some streams.

`settle` takes all rows of the streams of a bucket, new ones and those carried over from the last
run, and gives three things: counts by stream and hour of what was settled now, findings, and the
rows that the next run needs. Nothing is settled twice, and what the runs give adds up to what one
run over everything would.

Needed again are: how far each stream has come; entries that the log still has, or that some reader
still waits for; open spans, with what they were given; of queues what was acknowledged and not let
go of, or the other way round; sessions that have just ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from syncline.kernels.delivery_documents import (
    Left,
    Rules,
    Scene,
    judge_documents,
    reached_by_delivery,
)
from syncline.kernels.delivery_given import (
    Acked,
    Ranges,
    given,
    judge_acknowledgements,
)
from syncline.kernels.delivery_hours import EntryHours, runs
from syncline.kernels.delivery_logs import NEVER, LogFacts, Logs
from syncline.kernels.delivery_queues import Marks, QueuesLeft, judge_queues
from syncline.kernels.delivery_rows import (
    COVERED,
    EVICTED,
    EXPIRED,
    GIVEN_UP,
    HEAD,
    MESSAGE,
    PASSED,
    REACHED,
    REPEATED,
    RESENT,
    ROLLED_BACK,
    SESSION_END,
    SESSION_LAST,
    STORE_BYTES,
    SUBSCRIBED,
    TAKEN,
    Acknowledgements,
    Bytes,
    Integers,
    Notes,
    Rows,
    joined,
)
from syncline.kernels.delivery_spans import Spans
from syncline.kernels.delivery_streams import Entries, Passes, Units
from syncline.kernels.delivery_tally import Findings, Hours, Tally

__all__ = ["Carry", "Outcome", "Rules", "settle", "settle_blocks"]

_SIGNS = {RESENT: "resent", EVICTED: "evicted", REPEATED: "repeated", EXPIRED: "expired"}


@dataclass(frozen=True, slots=True)
class Carry:
    """Rows for the next run."""

    key: Integers
    code: Integers
    session: Integers
    place: Integers
    time_ms: Integers
    first: Integers
    last: Integers
    detail: Integers


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers of keys are places in `keys`, 40 bytes each."""

    keys: Bytes
    is_document: np.ndarray[tuple[int], np.dtype[np.bool_]]
    hours: Hours
    findings: Findings
    carry: Carry
    pending_count: int
    waiting_count: int
    clock_back_count: int


def settle_blocks(
    blocks: Sequence[bytes], facts: Mapping[bytes, LogFacts], rules: Rules
) -> Outcome:
    """As `settle`, of the blocks of one bucket."""
    return settle(joined(blocks), facts, rules)


def settle(rows: Rows, facts: Mapping[bytes, LogFacts], rules: Rules) -> Outcome:
    stores = np.ascontiguousarray(rows.keys[:, :STORE_BYTES]).view(f"V{STORE_BYTES}").reshape(-1)
    names, number = np.unique(stores, return_inverse=True)
    logs = Logs([facts[name.tobytes()] for name in names])
    log_of_key = number.astype(np.int64)
    tally = Tally()
    units = Units.of(rows, log_of_key, logs)
    entries = Entries.of(units, rows.appends, logs, tally)
    passes = Passes.of(rows.notes, units)
    spans = Spans.of(units, entries, passes, rows.notes, logs)
    scene = Scene(
        units,
        entries,
        spans,
        given(rows.deliveries, units, entries, spans, logs, tally),
        _acked(rows.acknowledgements, units, entries, spans, logs, tally),
        Ranges.of(rows.notes, RESENT, units, entries, spans),
        Ranges.of(rows.notes, COVERED, units, entries, spans),
        EntryHours(units, entries, tally),
        logs,
        rules,
        tally,
    )
    scene.hours.count("appended", np.flatnonzero(entries.is_new))
    documents = judge_documents(scene)
    queues = judge_queues(scene, passes, rows.notes)
    _find_signs(scene, rows.notes)
    _find_rolled_back(rows.notes, tally)
    ended = _judge_sessions(rows.notes, logs, log_of_key, rules, tally)
    is_document = np.zeros(len(rows.keys), np.bool_)
    is_document[units.key] = units.is_document
    return Outcome(
        rows.keys,
        is_document,
        tally.hours(),
        tally.findings(),
        _carry(scene, passes, documents, queues, ended),
        tally.pending_count,
        tally.waiting_count,
        tally.clock_back_count,
    )


def _acked(
    rows: Acknowledgements,
    units: Units,
    entries: Entries,
    spans: Spans,
    logs: Logs,
    tally: Tally,
) -> Acked:
    unit = units.at(rows.key, rows.place)
    high = judge_acknowledgements(rows, unit, units, entries, logs, tally)
    return Acked(rows, unit, spans.at(unit, rows.session, rows.place), high)


def _find_signs(scene: Scene, notes: Notes) -> None:
    for code, rule in _SIGNS.items():
        rows = notes.taken((notes.code == code) & (notes.is_new > 0))
        scene.tally.find(
            rule,
            rows.key,
            rows.first if code == RESENT else rows.last,
            rows.last,
            session=rows.session,
            place=rows.place,
            found_ms=rows.time_ms,
        )
    rows = notes.taken((notes.code == RESENT) & (notes.is_new > 0))
    unit = scene.units.at(rows.key, rows.place)
    behind = np.minimum(
        scene.entries.find(unit, rows.last + 1), scene.entries.before(unit, rows.place)
    )
    count = behind - scene.entries.find(unit, rows.first)
    scene.hours.count_at("resent", rows.key, rows.time_ms, np.maximum(count, 0))


def _find_rolled_back(notes: Notes, tally: Tally) -> None:
    rows = notes.taken(notes.code == ROLLED_BACK)
    first, last = runs(rows.key, rows.last)
    tally.find(
        "rolled_back",
        rows.key[first],
        rows.last[first],
        rows.last[last],
        place=rows.place[first],
        appended_ms=rows.time_ms[first],
        found_ms=rows.time_ms[last],
    )


def _judge_sessions(
    notes: Notes, logs: Logs, log_of_key: Integers, rules: Rules, tally: Tally
) -> Notes:
    """Nothing goes to a session that has ended. Returns the ends that are still to be known."""
    ends = notes.taken(notes.code == SESSION_END)
    end_place = np.full(len(log_of_key), NEVER)
    np.minimum.at(end_place, ends.key, ends.place)
    rows = notes.taken(notes.code == SESSION_LAST)
    rows = rows.taken(rows.place > end_place[rows.key])
    tally.find(
        "after_unsubscribe",
        rows.key,
        rows.session,
        rows.session,
        place=rows.place,
        found_ms=rows.time_ms,
        stream=np.stack((rows.first, rows.last, rows.detail), axis=1),
    )
    newest_ms = logs.newest_ms[log_of_key[ends.key]]
    return ends.taken(
        (ends.time_ms + rules.lost_after_ms >= newest_ms) & ~logs.is_left[log_of_key[ends.key]]
    )


# ------------------------------------------------------------------------------------ the carry


class _Lines:
    """Rows of a carry, kind by kind."""

    def __init__(self) -> None:
        self._parts: list[tuple[Integers, ...]] = []

    def add(
        self,
        code: int,
        key: Integers,
        *,
        session: Integers | None = None,
        place: Integers,
        time_ms: Integers | None = None,
        first: Integers | None = None,
        last: Integers | None = None,
        detail: Integers | None = None,
    ) -> None:
        nothing = np.zeros(len(key), np.int64)
        optional = [nothing if each is None else each for each in (time_ms, first, last, detail)]
        who = nothing if session is None else session
        self._parts.append((key, np.full(len(key), code), who, place, *optional))

    def joined(self) -> Carry:
        return Carry(*map(np.concatenate, zip(*self._parts, strict=True)))


def _carry(
    scene: Scene, passes: Passes, documents: Left, queues: QueuesLeft, ended: Notes
) -> Carry:
    units, entries, spans, logs = scene.units, scene.entries, scene.spans, scene.logs
    lines = _Lines()
    goes_on = (units.end_place == NEVER) & ~logs.is_left[units.log]
    _add_heads(lines, units, entries, passes, goes_on)
    is_document = units.is_document[entries.unit]
    is_held = entries.seq > passes.highest[entries.unit]
    is_kept = np.where(is_document, is_held | documents.needed, queues.needed)
    kept = np.flatnonzero(is_kept & goes_on[entries.unit])
    lines.add(
        MESSAGE,
        units.key[entries.unit[kept]],
        place=entries.place[kept],
        time_ms=entries.time_ms[kept],
        last=entries.seq[kept],
        detail=np.where(is_document, entries.author, queues.was_delivered)[kept],
    )
    _add_spans(lines, scene, documents, queues, np.flatnonzero(goes_on[spans.unit]))
    waiting = queues.passes
    lines.add(
        PASSED,
        units.key[passes.unit[waiting]],
        place=passes.place[waiting],
        time_ms=passes.time_ms[waiting],
        last=passes.seq[waiting],
    )
    for code, marks in ((TAKEN, queues.taken), (GIVEN_UP, queues.given_up)):
        _add_marks(lines, code, marks, units, entries, queues)
    lines.add(SESSION_END, ended.key, place=ended.place, time_ms=ended.time_ms)
    return lines.joined()


def _add_heads(
    lines: _Lines, units: Units, entries: Entries, passes: Passes, goes_on: "np.ndarray"
) -> None:
    head_seq, head_place = units.head_seq.copy(), units.head_place.copy()
    # A life that has just begun has come as far as nothing.
    is_fresh = ~units.is_first & (head_seq < 0)
    head_seq[is_fresh], head_place[is_fresh] = 0, units.start_place[is_fresh]
    some = np.flatnonzero(entries.end > entries.start)
    newest = entries.end[some] - 1
    head_seq[some] = np.maximum(head_seq[some], entries.seq[newest])
    head_place[some] = np.maximum(head_place[some], entries.place[newest])
    at = np.flatnonzero(goes_on & (head_seq >= 0))
    lines.add(
        HEAD,
        units.key[at],
        place=head_place[at],
        first=passes.highest[at],
        last=head_seq[at],
        detail=units.is_document[at].astype(np.int64),
    )


def _add_spans(
    lines: _Lines, scene: Scene, documents: Left, queues: QueuesLeft, running: Integers
) -> None:
    units, spans = scene.units, scene.spans
    at = running[spans.end_place[running] == NEVER]
    key, session, place = units.key[spans.unit], spans.session, spans.place
    lines.add(
        SUBSCRIBED,
        key[at],
        session=session[at],
        place=place[at],
        time_ms=spans.time_ms[at],
        first=spans.first[at],
        last=spans.acknowledges[at].astype(np.int64),
        detail=spans.author[at],
    )
    acked_seq, acked = spans.acked_seq.copy(), scene.acked
    rows = np.flatnonzero(acked.span >= 0)
    unit, high = acked.unit[rows], acked.high[rows]
    # Of what was not there yet, nothing was acknowledged.
    last = np.minimum(acked.rows.last[rows], units.head_seq[unit])
    some = np.flatnonzero(high > scene.entries.start[unit])
    last[some] = np.maximum(last[some], scene.entries.seq[high[some] - 1])
    np.maximum.at(acked_seq, acked.span[rows], last)
    reached = reached_by_delivery(scene)
    lines.add(
        REACHED,
        key[at],
        session=session[at],
        place=place[at],
        first=np.maximum(reached[at], 0),
        last=np.maximum(acked_seq[at], 0),
    )
    for left in (documents.given, queues.given):
        lines.add(
            COVERED,
            key[left.span],
            session=session[left.span],
            place=place[left.span],
            first=left.first,
            last=left.last,
            detail=left.detail,
        )


def _add_marks(
    lines: _Lines, code: int, marks: Marks, units: Units, entries: Entries, queues: QueuesLeft
) -> None:
    """Of each queue the row that goes furthest, if a message that is not closed is before it."""
    lowest = np.full(len(units), NEVER)
    open_ = np.flatnonzero(queues.needed)
    np.minimum.at(lowest, entries.unit[open_], entries.seq[open_])
    order = np.lexsort((-marks.place, marks.last, marks.unit))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = marks.unit[order][1:] != marks.unit[order][:-1]
    at = order[is_last]
    at = at[marks.last[at] >= lowest[marks.unit[at]]]
    lines.add(
        code,
        units.key[marks.unit[at]],
        place=marks.place[at],
        time_ms=marks.time_ms[at],
        last=marks.last[at],
    )
