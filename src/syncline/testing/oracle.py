"""Judges what a store shows after a crash, knowing what it was told and what it acknowledged.

Tell it each record once it is staged, each batch when it is taken and when it is finished. Then
`violations` compares an observation with all that is allowed:

- *lost*: what a finished batch held is missing.
- *invented*, *changed*: something is there that was never staged, or not like this.
- *gap*: between the first and the next sequence of a stream an entry is missing.
- *reappeared*: what was acknowledged in a finished batch is delivered again. Acknowledgements that
  were staged since, or kept back by `take_batch(acknowledgements=False)`, may be forgotten: what
  reappears is the end of what was acknowledged, never something from its middle.
- *resurrected*: a stream whose deletion was finished is back.
- *settings*: a stream has another kind or quota than it was created with.
- *damage*: the store calls damaged what a crash alone did.
- *closed*: the store does not open.

Of what no finished batch held, each stream may have any prefix, in the order of staging.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar, assert_never

from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind
from syncline.testing.observation import Observation, StreamView
from syncline.values.ids import StreamId
from syncline.values.records import (
    AppendEntry,
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    Record,
    TruncateStream,
)

Rule = Literal[
    "lost",
    "invented",
    "changed",
    "gap",
    "reappeared",
    "resurrected",
    "settings",
    "damage",
    "closed",
]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    stream: StreamId | None
    text: str

    def __str__(self) -> str:
        where = "" if self.stream is None else f" {self.stream}"
        return f"{self.rule}{where}: {self.text}"


class History(Protocol):
    """Who is told what happens to a store: the oracle, or a pipe to it."""

    def staged(self, record: Record) -> None: ...

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        """An append was refused, and a quota marker took its place."""
        ...

    def batch_taken(self, *, acknowledgements: bool) -> None: ...

    def batch_finished(self) -> None: ...


class _Versions(Generic[Value]):
    """A value and its successors: the first is durable, any later one may be."""

    __slots__ = ("_taken", "values")

    def __init__(self, value: Value) -> None:
        self.values = [value]
        self._taken = 0

    @property
    def durable(self) -> Value:
        return self.values[0]

    @property
    def latest(self) -> Value:
        return self.values[-1]

    def put(self, value: Value) -> None:
        self.values.append(value)

    def take(self) -> None:
        self._taken = len(self.values) - 1

    def finish(self) -> None:
        del self.values[: self._taken]
        self._taken = 0


@dataclass(slots=True)
class _Life:
    """A stream from its creation to its deletion; after it the id may have another."""

    kind: StreamKind
    quota: int
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    exists: _Versions[bool] = field(default_factory=lambda: _Versions(False))
    next: _Versions[int] = field(default_factory=lambda: _Versions(1))
    first: _Versions[int] = field(default_factory=lambda: _Versions(1))
    snapshot: _Versions[Snapshot | None] = field(
        default_factory=lambda: _Versions[Snapshot | None](None)
    )
    cursors: dict[bytes, _Versions[int | None]] = field(
        default_factory=dict[bytes, _Versions[int | None]]
    )

    def append(self, now_ms: int, payload: bytes, kind: EntryKind) -> None:
        seq = self.next.latest
        self.entries[seq] = Entry(seq, now_ms, payload, kind)
        self.next.put(seq + 1)

    def cursor(self, name: bytes) -> _Versions[int | None]:
        return self.cursors.setdefault(name, _Versions(None))

    def take(self, *, acknowledgements: bool) -> None:
        for versions in (self.exists, self.next, self.snapshot):
            versions.take()
        if acknowledgements:
            self.first.take()
            for cursor in self.cursors.values():
                cursor.take()

    def finish(self) -> None:
        for versions in (self.exists, self.next, self.snapshot, self.first):
            versions.finish()
        for cursor in self.cursors.values():
            cursor.finish()


class Oracle:
    """See the module.

    With `is_forgiving` nothing counts as durable: any prefix will do. Without `expects_count` the
    store may take its time to count its streams.
    """

    def __init__(self, *, is_forgiving: bool = False, expects_count: bool = True) -> None:
        self._is_forgiving = is_forgiving
        self._expects_count = expects_count
        # The lives that a recovered stream may be in, oldest first.
        self._lives: dict[StreamId, list[_Life]] = {}
        self.acknowledged_count = 0

    def fresh(self) -> "Oracle":
        """One that expects the same and knows nothing yet."""
        return Oracle(is_forgiving=self._is_forgiving, expects_count=self._expects_count)

    # What happened.

    def staged(self, record: Record) -> None:
        match record:
            case CreateStream():
                life = _Life(record.kind, record.quota)
                life.exists.put(True)
                self._lives.setdefault(record.stream, []).append(life)
            case AppendEntry():
                life = self._life(record.stream)
                life.append(record.now_ms, record.payload, EntryKind.MESSAGE)
            case TruncateStream():
                self._life(record.stream).first.put(record.before_seq)
            case DeleteStream():
                self._life(record.stream).exists.put(False)
            case PutSnapshot():
                snapshot = Snapshot(record.up_to_seq, record.now_ms, record.payload)
                self._life(record.stream).snapshot.put(snapshot)
            case MoveCursor():
                self._life(record.stream).cursor(record.name).put(record.seq)
            case DropCursor():
                self._life(record.stream).cursor(record.name).put(None)
            case _:
                assert_never(record)

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        self._life(stream).append(now_ms, b"", EntryKind.QUOTA_MARKER)

    def batch_taken(self, *, acknowledgements: bool) -> None:
        for lives in self._lives.values():
            for life in lives:
                life.take(acknowledgements=acknowledgements)

    def batch_finished(self) -> None:
        if self._is_forgiving:
            return
        for stream, lives in list(self._lives.items()):
            for life in lives:
                before = life.next.durable
                life.finish()
                self.acknowledged_count += life.next.durable - before
            self._lives[stream] = _possible(lives)

    def adopt(self, seen: Observation) -> None:
        """Go on from what a recovered store shows: all of it is durable."""
        self._lives = {stream: [_life_of(view)] for stream, view in seen.streams.items()}

    # What may be seen.

    def violations(self, seen: Observation) -> list[Violation]:
        found = [
            Violation("damage", damage.stream, f"{damage.file} at {damage.offset}: {damage.reason}")
            for damage in seen.damage
        ]
        if self._expects_count and seen.stream_count != len(seen.streams):
            text = f"{len(seen.streams)} streams are counted as {seen.stream_count}"
            found.append(Violation("changed", None, text))
        for stream in sorted(self._lives.keys() | seen.streams.keys()):
            found += self._check_stream(stream, seen.streams.get(stream))
        return found

    def _check_stream(self, stream: StreamId, view: StreamView | None) -> list[Violation]:
        lives = self._lives.get(stream, [])
        if view is None:
            if lives and lives[0].exists.durable and lives[0].exists.latest:
                count = lives[0].next.durable - lives[0].first.latest
                return [Violation("lost", stream, f"the stream is gone with {count} entries")]
            return []
        candidates = [life for life in lives if True in life.exists.values]
        if not candidates:
            rule: Rule = "resurrected" if stream in self._lives else "invented"
            return [Violation(rule, stream, f"there is a stream {view.state}")]
        reports = [[*_check_life(stream, life, view)] for life in candidates]
        return min(reports, key=len)

    def _life(self, stream: StreamId) -> _Life:
        lives = self._lives.get(stream)
        assert lives, f"the store took a write for {stream}, which cannot exist"
        return lives[-1]


def _possible(lives: list[_Life]) -> list[_Life]:
    """Drop every life that is over for good: a later one, or its end, is durable."""
    for index in range(len(lives) - 1, -1, -1):
        if lives[index].exists.durable:
            return lives[index:]
        if lives[index].exists.values == [False]:
            return lives[index + 1 :]
    return lives


def _life_of(view: StreamView) -> _Life:
    life = _Life(view.state.kind, view.state.quota)
    life.entries = {entry.seq: entry for entry in view.entries}
    life.exists = _Versions(True)
    life.next = _Versions(view.state.next)
    life.first = _Versions(view.state.first)
    life.snapshot = _Versions(view.snapshot)
    life.cursors = {name: _Versions[int | None](seq) for name, seq in view.cursors.items()}
    return life


def _check_life(stream: StreamId, life: _Life, view: StreamView) -> Iterator[Violation]:
    state = view.state
    if (state.kind, state.quota) != (life.kind, life.quota):
        yield Violation("settings", stream, f"{state} is {life.kind} with quota {life.quota}")
    if state.next < life.next.durable:
        text = f"entries {state.next} to {life.next.durable - 1} are missing at the end"
        yield Violation("lost", stream, text)
    if state.next > life.next.latest:
        text = f"entries {life.next.latest} to {state.next - 1} were never appended"
        yield Violation("invented", stream, text)
    yield from _check_first(stream, life, view)
    yield from _check_entries(stream, life, view)
    if view.snapshot not in life.snapshot.values:
        text = f"{view.snapshot} is none of {life.snapshot.values}"
        yield Violation("lost" if view.snapshot is None else "changed", stream, text[:300])
    if view.snapshot is not None and view.snapshot.up_to_seq >= state.next:
        yield Violation("invented", stream, "the snapshot covers entries to come")
    for name in sorted(life.cursors.keys() | view.cursors.keys()):
        allowed = life.cursors[name].values if name in life.cursors else [None]
        if view.cursors.get(name) not in allowed:
            text = f"cursor {name!r} is at {view.cursors.get(name)}, none of {allowed}"
            yield Violation("changed", stream, text)


def _check_first(stream: StreamId, life: _Life, view: StreamView) -> Iterator[Violation]:
    first = view.state.first
    if first < life.first.durable:
        text = f"entries {first} to {life.first.durable - 1} were acknowledged and are back"
        yield Violation("reappeared", stream, text)
    elif first not in life.first.values:
        text = f"the first entry is {first}, acknowledged were {life.first.values}"
        yield Violation("lost", stream, text)
    if first > view.state.next:
        yield Violation("changed", stream, f"the first entry {first} is past the next one")


def _check_entries(stream: StreamId, life: _Life, view: StreamView) -> Iterator[Violation]:
    state = view.state
    expected = list(range(state.first, state.next))
    found = [entry.seq for entry in view.entries]
    if found != expected:
        missing = sorted(set(expected) - set(found))
        text = f"of entries {state.first} to {state.next - 1} {missing} are missing"
        if not missing:
            text = f"entries {state.first} to {state.next - 1} come as {found}"
        yield Violation("gap", stream, text)
    for entry in view.entries:
        staged = life.entries.get(entry.seq)
        if staged is None:
            yield Violation("invented", stream, f"entry {entry.seq} was never appended")
        elif staged != entry:
            text = f"entry {entry.seq} is {_short(entry)}, it was {_short(staged)}"
            yield Violation("changed", stream, text)
    kinds = [entry.kind for entry in view.entries]
    has_marker = EntryKind.QUOTA_MARKER in kinds
    must_block = bool(kinds) and kinds[-1] is EntryKind.QUOTA_MARKER
    if state.is_blocked and not has_marker:
        yield Violation("changed", stream, "the queue is blocked without a quota marker")
    if must_block and not state.is_blocked:
        yield Violation("changed", stream, "a quota marker waits and the queue is not blocked")


def _short(entry: Entry) -> str:
    return f"{entry.kind.name} of {len(entry.payload)} bytes at {entry.time_ms}"
