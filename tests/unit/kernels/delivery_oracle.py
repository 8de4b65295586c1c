"""The rules of the audit read row by row: slow, plain, and in none of the kernel's ways."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from syncline.kernels import delivery_rows as codes
from syncline.kernels.delivery_logs import LogFacts

HOUR_MS = 3_600_000
SECOND_MS = 1_000


class Row(NamedTuple):
    """One row of the log. `last` is the sequence of a message as well."""

    stream: int
    code: int
    place: int
    time_ms: int
    session: int = 0
    first: int = 0
    last: int = 0
    detail: int = 0


@dataclass
class Span:
    """A reader of a document, or of a queue."""

    row: Row
    first: int
    end_place: int | None = None
    end_ms: int = 0
    # The head when it left, 0 if it is not known.
    end_seq: int = 0
    delivered: list[Row] = field(default_factory=list)
    acknowledged: list[Row] = field(default_factory=list)
    resent: list[Row] = field(default_factory=list)

    def has(self, place: int) -> bool:
        return self.row.place < place and (self.end_place is None or place < self.end_place)


@dataclass
class Found:
    """Counts by (stream, hour, what); how long deliveries took by (stream, hour); findings as
    (rule, stream, session, sequence), each as often as it was found."""

    counts: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    took: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    findings: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    pending: int = 0
    waiting: int = 0
    clock_back: int = 0

    def count(self, what: str, stream: int, time_ms: int, count: int = 1) -> None:
        if count:
            self.counts[stream, time_ms // HOUR_MS, what] += count

    def find(self, rule: str, stream: int, session: int, first: int, last: int) -> None:
        # No test has longer ones that are worth telling apart.
        for seq in range(first, min(last, first + 200) + 1):
            self.findings[rule, stream, session, seq] += 1

    def add_took(self, stream: int, append: Row, took_ms: int) -> None:
        self.clock_back += took_ms < 0
        key = (stream, append.time_ms // HOUR_MS)
        self.took.setdefault(key, []).append(max(took_ms, 0))


@dataclass
class Rulebook:
    late_ms: int
    lost_after_ms: int
    is_over: bool
    facts: LogFacts

    def has_stretch(self, behind: int, before: int | None, by_ms: int | None = None) -> bool:
        facts = self.facts
        return any(
            end > behind and (before is None or start < before) and (by_ms is None or ms <= by_ms)
            for start, end, ms in zip(
                facts.stretch_from.tolist(),
                facts.stretch_to.tolist(),
                facts.stretch_ms.tolist(),
                strict=True,
            )
        )

    def next_start(self, place: int) -> tuple[int, int] | None:
        pairs = zip(self.facts.start_places.tolist(), self.facts.start_ms.tolist(), strict=True)
        return next((pair for pair in sorted(pairs) if pair[0] > place), None)

    def last_start(self, place: int) -> int:
        return max((at for at in self.facts.start_places.tolist() if at < place), default=-1)


def is_about(row: Row, append: Row) -> bool:
    """Whether an entry is in the range of a row, and was there."""
    return row.first <= append.last <= row.last and append.place < row.place


def judge(rows: Iterable[Row], documents: set[int], book: Rulebook) -> Found:
    found = Found()
    by_stream: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda each: each.place):
        by_stream.setdefault(row.stream, []).append(row)
    for stream, own in by_stream.items():
        add_hidden_deletes(own, book)
        life: list[Row] = []
        start = -1
        is_first = True
        for row in own:
            life.append(row)
            if row.code == codes.DELETED:
                Life(stream, life, stream in documents, book, found, start, is_first, row).judge()
                life, start, is_first = [], row.place, False
        Life(stream, life, stream in documents, book, found, start, is_first, None).judge()
    return found


def add_hidden_deletes(rows: list[Row], book: Rulebook) -> None:
    """Where sequences begin again behind a stretch, the stream was deleted in it."""
    starts = zip(book.facts.stretch_from.tolist(), book.facts.stretch_ms.tolist(), strict=True)
    stretches = sorted(starts)
    before: Row | None = None
    for row in list(rows):
        if row.code == codes.DELETED:
            before = None
        if row.code not in (codes.MESSAGE, codes.MARKER):
            continue
        begins_again = before is not None and row.last <= before.last
        if before is not None and begins_again and book.has_stretch(before.place, row.place):
            place, ms = [each for each in stretches if each[0] < row.place][-1]
            rows.append(Row(row.stream, codes.DELETED, place, ms))
        before = row
    rows.sort(key=lambda each: each.place)


class Life:
    """One stream from its beginning, or from where it was made again, to its end."""

    def __init__(
        self,
        stream: int,
        rows: list[Row],
        is_document: bool,
        book: Rulebook,
        found: Found,
        start: int,
        is_first: bool,
        deleted: Row | None,
    ) -> None:
        self.stream, self.rows, self.is_document = stream, rows, is_document
        self.book, self.found = book, found
        self.start, self.is_first, self.deleted = start, is_first, deleted
        self.appends = self.good_appends()
        self.spans = self.find_spans()

    def of(self, *wanted: int) -> list[Row]:
        return [row for row in self.rows if row.code in wanted]

    def behind(self, append: Row, code: int) -> list[Row]:
        """Rows that cover the entry, of those that come later."""
        return [
            row for row in self.of(code) if row.last >= append.last and row.place > append.place
        ]

    def good_appends(self) -> list[Row]:
        good: list[Row] = []
        highest, place = 0, self.start
        for row in self.of(codes.MESSAGE, codes.MARKER):
            if row.last <= highest:
                self.found.find("sequence_gap", self.stream, -1, row.last, row.last)
                continue
            is_beginning = not good and self.is_first
            is_open = is_beginning and self.book.facts.is_branch
            is_gap = row.last > highest + 1 and not is_open
            if is_gap and not self.book.has_stretch(place, row.place):
                self.found.find("sequence_gap", self.stream, -1, highest + 1, row.last - 1)
            highest, place = row.last, row.place
            good.append(row)
        for row in good:
            self.found.count("appended", self.stream, row.time_ms)
        return good

    def find_spans(self) -> list[Span]:
        spans: list[Span] = []
        passed = 0
        for row in self.rows:
            if row.code == codes.PASSED:
                passed = max(passed, row.last)
            if row.code in (codes.SUBSCRIBED, codes.UNSUBSCRIBED, codes.EVICTED):
                for span in spans:
                    is_same = span.row.session == row.session
                    takes_over = not self.is_document and row.code == codes.SUBSCRIBED
                    if span.end_place is None and (is_same or takes_over):
                        span.end_place, span.end_ms = row.place, row.time_ms
                        if self.is_document and row.code != codes.SUBSCRIBED:
                            is_evicted = row.code == codes.EVICTED
                            span.end_seq = row.first if is_evicted else row.last
            if row.code == codes.SUBSCRIBED:
                first = max(row.first, passed + 1) if self.is_document else row.first
                spans.append(Span(row, first))
            if row.code == codes.DELETED:
                for span in spans:
                    if span.end_place is None:
                        span.end_place, span.end_ms = row.place, row.time_ms
        for span in spans:
            start = self.book.next_start(span.row.place)
            if start is not None and (span.end_place is None or start[0] < span.end_place):
                span.end_place, span.end_ms = start
                span.end_seq = 0
        return spans

    def span_of(self, row: Row) -> Span | None:
        for span in self.spans:
            if span.row.session == row.session and span.has(row.place):
                return span
        return None

    def judge(self) -> None:
        for row in self.of(codes.DELIVERED, codes.ACKNOWLEDGED, codes.RESENT):
            span = self.span_of(row)
            is_delivery = row.code == codes.DELIVERED
            if is_delivery and row.first <= row.last:
                self.judge_delivery(row, span)
            if row.code == codes.ACKNOWLEDGED and row.last > 0:
                self.judge_durable(row, row.last)
            if span is not None:
                kind = {
                    codes.DELIVERED: span.delivered,
                    codes.ACKNOWLEDGED: span.acknowledged,
                    codes.RESENT: span.resent,
                }[row.code]
                kind.append(row)
        self.find_signs()
        if self.is_document:
            for span in self.spans:
                self.judge_span(span)
        else:
            self.judge_queue()

    def find_signs(self) -> None:
        for code, rule in (
            (codes.RESENT, "resent"),
            (codes.EVICTED, "evicted"),
            (codes.REPEATED, "repeated"),
            (codes.EXPIRED, "expired"),
        ):
            for row in self.of(code):
                first = row.first if code == codes.RESENT else row.last
                self.found.find(rule, self.stream, row.session, first, row.last)
                if code == codes.RESENT:
                    within = [a for a in self.appends if row.first <= a.last <= row.last]
                    within = [a for a in within if a.place < row.place]
                    self.found.count("resent", self.stream, row.time_ms, len(within))

    def judge_durable(self, row: Row, first: int) -> None:
        before = [each for each in self.appends if each.place < row.place]
        highest = before[-1].last if before else 0
        place = before[-1].place if before else self.start
        is_open = not before and self.is_first and self.book.facts.is_branch
        if row.last > highest and not is_open and not self.book.has_stretch(place, row.place):
            self.found.find("undurable", self.stream, row.session, first, row.last)

    def judge_delivery(self, row: Row, span: Span | None) -> None:
        self.judge_durable(row, row.first)
        if not self.is_document:
            return
        if span is None:
            is_reader = row.session & 15 == 1
            if is_reader and not self.book.has_stretch(self.book.last_start(row.place), row.place):
                self.found.find("after_unsubscribe", self.stream, row.session, row.first, row.last)
            return
        is_known = not self.book.has_stretch(span.row.place, row.place)
        if row.first < span.first and is_known:
            last = min(row.last, span.first - 1)
            self.found.find("unexpected", self.stream, row.session, row.first, last)
        author = span.row.detail
        own = [each for each in self.appends if is_about(row, each) and each.detail == author]
        if author and row.detail < len(own):
            self.found.find("to_author", self.stream, row.session, row.first, row.last)

    def judge_span(self, span: Span) -> None:
        for append in self.appends:
            if append.last < span.first:
                continue
            if span.end_place is not None and append.place > span.end_place:
                continue
            if 0 < span.end_seq < append.last:
                continue
            self.judge_pair(append, span)

    def judge_pair(self, append: Row, span: Span) -> None:
        found, book, seq = self.found, self.book, append.last
        since = max(append.time_ms, span.row.time_ms)
        deadline = since + book.lost_after_ms
        covering = [row for row in span.delivered if is_about(row, append)]
        acks = [
            row.time_ms for row in span.acknowledged if row.last >= seq and row.place > append.place
        ]
        delivered_ms = min((row.time_ms for row in covering), default=None)
        acked_ms = min(acks, default=None)
        self.judge_repeats(append, span, covering)
        in_time = delivered_ms is not None and delivered_ms <= deadline
        is_acked = acked_ms is not None and acked_ms <= deadline
        newest = book.facts.newest_ms
        is_closed = span.end_place is not None or newest > deadline or book.is_over
        if not in_time and not is_acked and not is_closed:
            found.pending += 1
            return
        found.count("expected", self.stream, append.time_ms)
        if in_time or is_acked:
            found.count("delivered", self.stream, append.time_ms)
            is_first = acked_ms is None or (delivered_ms is not None and delivered_ms <= acked_ms)
            if delivered_ms is not None and in_time and is_first:
                found.add_took(self.stream, append, delivered_ms - since)
                if delivered_ms - since > book.late_ms:
                    found.count("late", self.stream, append.time_ms)
                    for row in covering:
                        if row.time_ms == delivered_ms:
                            found.find("late", self.stream, row.session, seq, seq)
            if span.row.last and not is_acked and is_closed:
                found.count("unacknowledged", self.stream, append.time_ms)
                found.find("unacknowledged", self.stream, span.row.session, seq, seq)
            return
        verdict = self.why_missing(append, span, since, deadline)
        found.count(verdict, self.stream, append.time_ms)
        if verdict != "unknown":
            found.find(verdict, self.stream, span.row.session, seq, seq)

    def why_missing(self, append: Row, span: Span, since: int, deadline: int) -> str:
        book, newest = self.book, self.book.facts.newest_ms
        if book.has_stretch(span.row.place, span.end_place, deadline):
            return "unknown"
        is_skipped = any(
            a.last > append.last for row in span.delivered for a in self.appends if is_about(row, a)
        )
        if span.end_place is not None and span.end_ms <= deadline:
            return "lost" if is_skipped else "interrupted"
        if span.end_place is None and newest <= deadline and since >= newest - SECOND_MS:
            return "unknown"
        return "lost"

    def judge_repeats(self, append: Row, span: Span, covering: list[Row]) -> None:
        marks = [row for row in span.resent if is_about(row, append)]
        used = 0
        for row in sorted(covering + marks, key=lambda each: each.place):
            if row.code == codes.RESENT:
                used -= 1
            elif used >= 1:
                # It may have been told to send again where nobody saw it.
                if self.book.has_stretch(span.row.place, row.place):
                    continue
                self.found.count("duplicate", self.stream, row.time_ms)
                self.found.find("duplicate", self.stream, row.session, append.last, append.last)
            else:
                used += 1

    def judge_queue(self) -> None:
        for append in self.appends:
            self.judge_message(append)

    def judge_message(self, append: Row) -> None:
        found, book, seq = self.found, self.book, append.last
        passed = next(iter(self.behind(append, codes.PASSED)), None)
        deliveries = [
            row
            for row in self.of(codes.DELIVERED)
            if is_about(row, append) and (passed is None or row.place < passed.place)
        ]
        if deliveries:
            span = self.span_of(deliveries[0])
            if span is not None:
                since = max(append.time_ms, span.row.time_ms)
                took = deliveries[0].time_ms - since
                found.add_took(self.stream, append, took)
                if took > book.late_ms:
                    found.count("late", self.stream, append.time_ms)
                    found.find("late", self.stream, deliveries[0].session, seq, seq)
        for span in self.spans:
            self.judge_repeats(append, span, [row for row in deliveries if row in span.delivered])
        verdict = self.message_verdict(append, passed, bool(deliveries))
        if verdict == "waiting":
            found.waiting += 1
        elif verdict == "pending":
            found.pending += 1
        else:
            found.count("expected", self.stream, append.time_ms)
            rule = "interrupted" if verdict == "expired" else verdict
            found.count(rule, self.stream, append.time_ms)
            if verdict in ("lost", "interrupted"):
                found.find(verdict, self.stream, -1, seq, seq)

    def message_verdict(self, append: Row, passed: Row | None, was_delivered: bool) -> str:
        book = self.book
        acks = self.behind(append, codes.ACKNOWLEDGED)
        if passed is None:
            if self.deleted is None:
                return "waiting"
            return "delivered" if was_delivered or acks else "interrupted"
        by_ms = passed.time_ms + SECOND_MS
        start = book.next_start(passed.place)

        def counts(rows: list[Row]) -> int | None:
            if not rows:
                return None
            row = rows[0]
            is_before = start is None or row.place < start[0]
            return row.place if is_before and row.time_ms <= by_ms else None

        acked, given_up = counts(acks), counts(self.behind(append, codes.EXPIRED))
        if acked is not None and (given_up is None or acked < given_up):
            return "delivered"
        if given_up is not None:
            return "expired"
        newest = book.facts.newest_ms
        if newest <= by_ms and start is None and not book.is_over:
            return "pending"
        if book.has_stretch(append.place, None, by_ms):
            return "unknown"
        if start is not None and by_ms > start[1]:
            return "unknown"
        if start is None and newest <= by_ms:
            return "unknown"
        return "lost"
