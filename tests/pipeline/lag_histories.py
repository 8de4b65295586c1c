"""Rows of logs that somebody might have written, and what the rules say of them in plain Python.

The oracle keeps everything, looks at everybody and never forgets a mark; its offsets, timelines and
rules are those of `core.tracker`.
"""

from dataclasses import dataclass, field

from syncline.core.tracker import LagRules, Offset, Timeline, is_too_far_behind, lag_ms
from syncline.pipeline.lag_state import LogRow
from syncline.values.events import EventKind

STORE = b"s" * 16
OTHER_STORE = b"t" * 16
START_MS = 1_700_000_000_000
_ROW_BYTES = 64


def document(number: int) -> bytes:
    return bytes([number]) * 24


def session(number: int, face: int = 1) -> int:
    return number << 4 | face


class History:
    """Writes rows, each a position further and as late as the clock says."""

    def __init__(self, store: bytes = STORE) -> None:
        self.rows: list[LogRow] = []
        self.now_ms = START_MS
        self.heads: dict[bytes, int] = {}
        self._store = store
        self._position = 65_536

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def message(self, stream: bytes, flags: int | None = 0x80) -> int:
        seq = self.heads[stream] = self.heads.get(stream, 0) + 1
        self._add(1, stream, seq, flags=flags)
        return seq

    def delete(self, stream: bytes) -> None:
        self.heads.pop(stream, None)
        self._add(4, stream, None, flags=0x80)

    def event(
        self,
        kind: EventKind,
        stream: bytes | None = None,
        who: int = 0,
        first: int = 0,
        seq: int = 0,
    ) -> None:
        self._add(10, stream, seq, event=int(kind), who=who, first=first)

    def subscribe(self, stream: bytes, who: int, first: int, *, acknowledges: bool = True) -> None:
        self.event(EventKind.SUBSCRIBED, stream, who, first, int(acknowledges))

    def acknowledge(self, stream: bytes, who: int, seq: int) -> None:
        self.event(EventKind.ACKNOWLEDGED, stream, who, seq=seq)

    def unsubscribe(self, stream: bytes, who: int) -> None:
        self.event(EventKind.UNSUBSCRIBED, stream, who)

    def gap(self, length: int = 4_096) -> None:
        row = LogRow(
            self._store, self._position, 0, -3, None, None, None, None, None, None, None, length
        )
        self.rows.append(row)
        self._position += length

    def _add(
        self,
        kind: int,
        stream: bytes | None,
        seq: int | None,
        flags: int | None = None,
        event: int | None = None,
        who: int | None = None,
        first: int | None = None,
    ) -> None:
        self.rows.append(
            LogRow(
                self._store,
                self._position,
                0,
                kind,
                stream,
                seq,
                self.now_ms,
                flags,
                event,
                who,
                first,
                0,
            )
        )
        self._position += _ROW_BYTES


@dataclass(slots=True)
class Verdict:
    acked: int
    head: int
    lag_ms: int
    rule: str


@dataclass(slots=True)
class _Document:
    head: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    # By session: the position at which it joined, and its place.
    offsets: dict[int, tuple[int, Offset]] = field(default_factory=dict[int, tuple[int, Offset]])
    seen: dict[int, int] = field(default_factory=dict[int, int])


def judged(rows: list[LogRow], rules: LagRules) -> dict[tuple[bytes, int], Verdict]:
    """By log and the position at which a reader joined; without those that have left."""
    logs: dict[bytes, dict[bytes, _Document]] = {}
    now: dict[bytes, int] = {}
    unsure: dict[bytes, int] = {}
    for row in rows:
        now[row.store] = max(now.get(row.store, 0), row.time_ms or 0)
        documents = logs.setdefault(row.store, {})
        _replay(row, documents, unsure)
    found: dict[tuple[bytes, int], Verdict] = {}
    for store, documents in logs.items():
        for each in documents.values():
            sure = {
                who: offset
                for who, (_, offset) in each.offsets.items()
                if each.seen[who] > unsure.get(store, -1)
            }
            for who, (joined, offset) in each.offsets.items():
                lag = lag_ms(offset, each.head, each.timeline, now[store])
                rule = "unknown"
                if who in sure:
                    is_behind = is_too_far_behind(offset, sure.values(), lag, rules)
                    is_absolute = lag > rules.absolute_ms
                    rule = ("absolute" if is_absolute else "relative") if is_behind else "healthy"
                found[store, joined] = Verdict(offset.acked, each.head, lag, rule)
    return found


def _replay(row: LogRow, documents: dict[bytes, _Document], unsure: dict[bytes, int]) -> None:
    if row.kind in (-1, -3) and row.length:
        unsure[row.store] = row.position + row.length
    if row.kind == 10 and row.event == EventKind.DROPPED:
        unsure[row.store] = row.position
    if row.kind == 10 and row.event == EventKind.STARTED:
        for each in documents.values():
            each.offsets.clear()
    if row.stream is None or (row.kind == 10 and (row.session or 0) & 0xF != 1):
        return
    if row.kind == 4:
        documents.pop(row.stream, None)
        return
    each = documents.setdefault(row.stream, _Document())
    who = row.session or 0
    if row.kind == 1 and row.seq is not None and (row.flags or 0) & 0x80:
        each.head = row.seq
        each.timeline.add(row.seq, row.time_ms or 0)
    elif row.event == EventKind.SUBSCRIBED:
        each.offsets.pop(who, None)
        if row.seq:
            _join(each, row, max(0, (row.first or 0) - 1))
    elif row.event == EventKind.ACKNOWLEDGED and who in each.offsets:
        offset = each.offsets[who][1]
        offset.acked = max(offset.acked, row.seq or 0)
        each.head = max(each.head, offset.acked)
        each.seen[who] = row.position
    elif row.event == EventKind.ACKNOWLEDGED and row.store in unsure:
        _join(each, row, row.seq or 0)
    elif row.event in (EventKind.UNSUBSCRIBED, EventKind.EVICTED):
        each.offsets.pop(who, None)


def _join(each: _Document, row: LogRow, acked: int) -> None:
    who = row.session or 0
    each.offsets[who] = (row.position, Offset(acked, row.time_ms or 0))
    each.seen[who] = row.position
    each.head = max(each.head, acked)
