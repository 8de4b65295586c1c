"""Readers of documents as their logs tell of them, and which of them would be given up.

Rows of logs are folded in their order; the two rules are those of `core.tracker`, asked as the
router asks them, with its own offsets and timelines. There is no clock: *now* is the newest time
that a log has told. So what comes out is a function of what went in, however it was cut into
batches.

- Only readers that acknowledge are here: the others owe nothing.
- With a start of the router all readers of its log are gone. A log that was restored ends those of
  the log it branched off from.
- Behind a stretch of the log that could not be read, a reader is *unknown* until the log tells of
  it again: it may have left there. A reader that is first heard of behind one, by what it
  acknowledges, joins then.
- Memory grows with documents (the newest sequence of each) and with readers. Of a document that has
  readers, marks are kept from the first update that somebody owes; those older than the absolute
  rule are one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from syncline.core.tracker import (
    MARK_MS,
    LagRules,
    Offset,
    Timeline,
    is_too_far_behind,
    lag_ms,
)
from syncline.values.events import EventKind, Face

_MESSAGE: Final = 1
_CREATE: Final = 3
_DELETE: Final = 4
_EVENT: Final = 10
_DAMAGE: Final = -1
_GAP: Final = -3
_IS_DOCUMENT: Final = 0x80
_FACE_MASK: Final = 0xF
_LOG_ID_BYTES: Final = 16
# What the fold looks at; all else only tells what time it is.
KINDS: Final = (_MESSAGE, _CREATE, _DELETE, _EVENT, _DAMAGE, _GAP)
EVENTS: Final = (
    EventKind.STARTED,
    EventKind.SUBSCRIBED,
    EventKind.UNSUBSCRIBED,
    EventKind.ACKNOWLEDGED,
    EventKind.EVICTED,
    EventKind.DROPPED,
)
_ENDS: Final = (EventKind.UNSUBSCRIBED, EventKind.EVICTED)


class Rule(StrEnum):
    """What is to be said of a reader."""

    HEALTHY = "healthy"
    # Too long behind another reader; very long behind.
    RELATIVE = "relative"
    ABSOLUTE = "absolute"
    # It may not be there any more: a stretch of the log is missing.
    UNKNOWN = "unknown"
    # It is not there any more.
    GONE = "gone"


class LogRow(NamedTuple):
    """What is needed of a row of a log, under the names of its columns."""

    store: bytes
    position: int
    part: int
    kind: int
    stream: bytes | None
    seq: int | None
    time_ms: int | None
    flags: int | None
    event: int | None
    session: int | None
    first: int | None
    length: int


class HealthRow(NamedTuple):
    """What is told of a reader: a row of `consumer_health` without its batch and day."""

    as_of_ms: int
    store: bytes
    stream: bytes
    session: int
    joined_position: int
    joined_ms: int
    acked_seq: int
    head_seq: int
    lag_ms: int
    rule: str


class Marks(Timeline):
    """A timeline that can be stored, and does not grow without end."""

    __slots__ = ()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Sequence and time of each; added one by one they make the same timeline."""
        return list(zip(self._seqs, self._times_ms, strict=True))

    def join_before(self, time_ms: int) -> None:
        """Marks older than that become one, at the oldest of them."""
        count = sum(1 for each in self._times_ms if each < time_ms)
        if count > 1:
            del self._seqs[1:count], self._times_ms[1:count]


class Head(NamedTuple):
    """A document without readers: its newest sequence, and the mark that this belongs to."""

    seq: int
    mark_seq: int
    mark_ms: int

    def moved(self, seq: int, time_ms: int) -> "Head":
        """As a timeline would begin a mark."""
        is_new = time_ms - self.mark_ms >= MARK_MS
        return Head(seq, seq, time_ms) if is_new else Head(seq, self.mark_seq, self.mark_ms)


_NO_HEAD: Final = Head(0, 0, 0)


@dataclass(slots=True)
class Reader(Offset):
    """The place of one subscription, and what was told of it last."""

    session: int
    joined_position: int
    # Of the last row that shows that it is there.
    seen_position: int
    told_ms: int = -1
    told_acked: int = -1
    told_head: int = -1
    told_rule: str = ""


@dataclass(slots=True)
class OpenDocument:
    """A document that has readers."""

    head: int
    marks: Marks = field(default_factory=Marks)
    readers: dict[int, Reader] = field(default_factory=dict[int, Reader])


@dataclass(slots=True)
class LogState:
    """One log. `restless` are documents of which there may be something to tell."""

    now_ms: int = 0
    # Events before it may be missing; -1: none are.
    unsure_position: int = -1
    heads: dict[bytes, Head] = field(default_factory=dict[bytes, Head])
    documents: dict[bytes, OpenDocument] = field(default_factory=dict[bytes, OpenDocument])
    restless: set[bytes] = field(default_factory=set[bytes])


@dataclass(frozen=True, slots=True)
class HealthCounts:
    """Of the readers that there are now."""

    consumer_count: int
    relative_count: int
    absolute_count: int
    unknown_count: int


class LagState:
    """Everything that was folded so far. `row_ms`: a reader whose rule stays has a row so often."""

    def __init__(self, rules: LagRules, row_ms: int) -> None:
        self.rules = rules
        self.row_ms = row_ms
        self.logs: dict[bytes, LogState] = {}
        self._gone: list[HealthRow] = []

    def fold(self, rows: Iterable[LogRow], newest_ms: dict[bytes, int]) -> list[HealthRow]:
        """Take in rows, in the order of each log, and return what is to be told now.

        `newest_ms` are the newest times of logs, of rows too that are not among these.
        """
        self._gone = []
        for row in rows:
            log = self.logs.get(row.store)
            if log is None:
                log = self.logs[row.store] = LogState()
            if row.time_ms is not None and row.time_ms > log.now_ms:
                log.now_ms = row.time_ms
            self._take(log, row)
        for store, time_ms in newest_ms.items():
            log = self.logs.setdefault(store, LogState())
            log.now_ms = max(log.now_ms, time_ms)
        told = list(self._gone)
        for store, log in self.logs.items():
            told += self._evaluated(store, log)
        return told

    def counts(self) -> HealthCounts:
        """As of the last fold."""
        rules = [
            reader.told_rule
            for log in self.logs.values()
            for document in log.documents.values()
            for reader in document.readers.values()
        ]
        return HealthCounts(
            len(rules),
            rules.count(Rule.RELATIVE),
            rules.count(Rule.ABSOLUTE),
            rules.count(Rule.UNKNOWN),
        )

    # Taking in.

    def _take(self, log: LogState, row: LogRow) -> None:
        kind = row.kind
        if kind == _EVENT:
            self._take_event(log, row)
        elif kind == _MESSAGE:
            self._take_message(log, row)
        elif kind in (_CREATE, _DELETE) and row.stream is not None:
            self._end_document(log, row.store, row.stream)
            # Its sequences start anew.
            log.heads.pop(row.stream, None)
        elif kind in (_GAP, _DAMAGE) and row.length:
            self._doubt(log, row.position + row.length)

    def _take_message(self, log: LogState, row: LogRow) -> None:
        stream, seq, time_ms, flags = row.stream, row.seq, row.time_ms, row.flags
        if stream is None or seq is None or time_ms is None:
            return
        if (document := log.documents.get(stream)) is not None:
            document.head = seq
            document.marks.add(seq, time_ms)
            log.restless.add(stream)
        elif flags is None:
            # A row of a run does not say what it is of: it may be of a queue.
            if stream in log.heads:
                log.heads[stream] = log.heads[stream].moved(seq, time_ms)
        elif flags & _IS_DOCUMENT:
            log.heads[stream] = log.heads.get(stream, _NO_HEAD).moved(seq, time_ms)

    def _take_event(self, log: LogState, row: LogRow) -> None:
        event, session, stream = row.event, row.session or 0, row.stream
        if event == EventKind.STARTED:
            self._end_all(log, row.store)
            if stream is not None and (former := self.logs.get(stream[:_LOG_ID_BYTES])):
                self._end_all(former, stream[:_LOG_ID_BYTES])
        elif event == EventKind.DROPPED:
            self._doubt(log, row.position)
        elif stream is None or session & _FACE_MASK != Face.DOCUMENTS:
            return
        elif event == EventKind.SUBSCRIBED:
            self._end(log, row.store, stream, session)
            if row.seq:
                self._join(log, row, stream, max(0, (row.first or 0) - 1))
        elif event == EventKind.ACKNOWLEDGED:
            self._acknowledge(log, row, stream)
        elif event in _ENDS:
            self._end(log, row.store, stream, session)

    def _acknowledge(self, log: LogState, row: LogRow, stream: bytes) -> None:
        document = log.documents.get(stream)
        reader = document.readers.get(row.session or 0) if document is not None else None
        if document is None or reader is None:
            if log.unsure_position >= 0:
                self._join(log, row, stream, row.seq or 0)
            return
        reader.seen_position = row.position
        if row.seq is not None and row.seq > reader.acked:
            reader.acked = row.seq
            document.head = max(document.head, row.seq)
        log.restless.add(stream)

    def _join(self, log: LogState, row: LogRow, stream: bytes, acked: int) -> None:
        document = log.documents.get(stream)
        if document is None:
            head = log.heads.pop(stream, _NO_HEAD)
            document = log.documents[stream] = OpenDocument(head.seq)
            if head.seq:
                document.marks.add(head.mark_seq, head.mark_ms)
        # It cannot have more than there is.
        document.head = max(document.head, acked)
        session = row.session or 0
        document.readers[session] = Reader(
            acked, row.time_ms or 0, session, row.position, row.position
        )
        log.restless.add(stream)

    def _doubt(self, log: LogState, position: int) -> None:
        log.unsure_position = max(log.unsure_position, position)
        log.restless.update(log.documents)

    def _end(self, log: LogState, store: bytes, stream: bytes, session: int) -> None:
        document = log.documents.get(stream)
        reader = document.readers.pop(session, None) if document is not None else None
        if document is None or reader is None:
            return
        if reader.told_rule:
            self._gone.append(_row(log, store, stream, document.head, reader, 0, Rule.GONE))
        if document.readers:
            log.restless.add(stream)
        else:
            seq, time_ms = document.marks.pairs[-1] if len(document.marks) else (0, 0)
            log.heads[stream] = Head(document.head, seq, time_ms)
            del log.documents[stream]
            log.restless.discard(stream)

    def _end_document(self, log: LogState, store: bytes, stream: bytes) -> None:
        if (document := log.documents.get(stream)) is not None:
            for session in list(document.readers):
                self._end(log, store, stream, session)

    def _end_all(self, log: LogState, store: bytes) -> None:
        for stream in list(log.documents):
            self._end_document(log, store, stream)

    # Telling.

    def _evaluated(self, store: bytes, log: LogState) -> Iterator[HealthRow]:
        for stream in sorted(log.restless):
            document = log.documents[stream]
            yield from self._told(store, log, stream, document)
            self._tidy(log, document)
            if not any(self._is_restless(document, each) for each in document.readers.values()):
                log.restless.discard(stream)

    def _told(
        self, store: bytes, log: LogState, stream: bytes, document: OpenDocument
    ) -> Iterator[HealthRow]:
        head, now_ms = document.head, log.now_ms
        readers = document.readers.values()
        sure = [each for each in readers if each.seen_position > log.unsure_position]
        # If anyone has acknowledged what another owes, then whoever has acknowledged most.
        leader = [max(sure, key=lambda each: each.acked)] if sure else []
        for reader in readers:
            lag = lag_ms(reader, head, document.marks, now_ms)
            is_sure = reader.seen_position > log.unsure_position
            rule = self._rule(reader, leader, lag) if is_sure else Rule.UNKNOWN
            if self._is_worth_telling(reader, head, now_ms, rule):
                reader.told_ms, reader.told_rule = now_ms, rule
                reader.told_acked, reader.told_head = reader.acked, head
                yield _row(log, store, stream, head, reader, lag, rule)

    def _rule(self, reader: Reader, others: Iterable[Offset], lag: int) -> Rule:
        if not is_too_far_behind(reader, others, lag, self.rules):
            return Rule.HEALTHY
        return Rule.ABSOLUTE if is_too_far_behind(reader, (), lag, self.rules) else Rule.RELATIVE

    def _is_worth_telling(self, reader: Reader, head: int, now_ms: int, rule: Rule) -> bool:
        if rule != reader.told_rule:
            return True
        if now_ms - reader.told_ms < self.row_ms:
            return False
        has_moved = (reader.acked, head) != (reader.told_acked, reader.told_head)
        # Of one that is not well, time alone tells more.
        is_older = rule != Rule.HEALTHY and now_ms > reader.told_ms
        return has_moved or is_older

    def _is_restless(self, document: OpenDocument, reader: Reader) -> bool:
        """Whether time alone may change what is to be told of it."""
        owes = reader.acked < document.head
        is_told = (reader.acked, document.head) == (reader.told_acked, reader.told_head)
        return owes or not is_told or reader.told_rule != Rule.HEALTHY

    def _tidy(self, log: LogState, document: OpenDocument) -> None:
        document.marks.forget_up_to(min(each.acked for each in document.readers.values()))
        document.marks.join_before(log.now_ms - self.rules.absolute_ms - MARK_MS)


def _row(
    log: LogState,
    store: bytes,
    stream: bytes,
    head: int,
    reader: Reader,
    lag: int,
    rule: Rule,
) -> HealthRow:
    return HealthRow(
        log.now_ms,
        store,
        stream,
        reader.session,
        reader.joined_position,
        reader.joined_ms,
        reader.acked,
        head,
        lag,
        rule.value,
    )
