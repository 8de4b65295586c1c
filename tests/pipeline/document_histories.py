"""Documents as a router logs them, made up at random: rows in order, and what is true of them."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pycrdt

from syncline.core.kinds import Folding, folding
from syncline.pipeline.document_folds import DocumentFold, DocumentState
from syncline.storage.documents import (
    SNAPSHOT_VERSION,
    DocumentSnapshot,
    encode_entry,
    encode_snapshot,
    stream_of,
)
from syncline.values.kinds import Kind

STORE = b"s" * 16
MESSAGE, CREATE, DELETE, SNAPSHOT = 1, 3, 4, 6


@dataclass(frozen=True, slots=True)
class LogRow:
    position: int
    kind: int
    stream: bytes
    seq: int = 0
    body: bytes = b""


class YjsWriters:
    """Some peers at work on one text, a map and a list; what they write may come in any order."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._docs = [pycrdt.Doc[Any](client_id=number + 1) for number in range(3)]
        self._said: list[bytes] = []
        self._heard = [0, 0, 0]
        self._early: list[bytes] = []

    def update(self) -> bytes:
        """The next one; once in a while one comes late, behind some that build on it."""
        if self._early and self._chance.random() < 0.5:
            return self._early.pop()
        made = self._written()
        if self._chance.random() < 0.05:
            self._early.append(made)
            made = self._written()
        return made

    def _written(self) -> bytes:
        number = self._chance.randrange(3)
        doc = self._docs[number]
        if self._chance.random() < 0.6:
            for said in self._said[self._heard[number] :]:
                doc.apply_update(said)
            self._heard[number] = len(self._said)
        found: list[bytes] = []
        subscription = doc.observe(lambda event: found.append(event.update))
        self._change(doc)
        doc.unobserve(subscription)
        self._said += found
        return found[-1]

    def _change(self, doc: "pycrdt.Doc[Any]") -> None:
        chance = self._chance
        text, values = doc.get("text", type=pycrdt.Text), doc.get("map", type=pycrdt.Map)
        match chance.randrange(4):
            case 0 if len(text) > 2:
                at = chance.randrange(len(text) - 1)
                del text[at : at + 2]
            case 1:
                values[chance.choice("abc")] = chance.choice(
                    ["🦀", 2.5, {"x": [1, None], "y": True}]
                )
            case 2:
                values[chance.choice("abc")] = pycrdt.Map({"inner": pycrdt.Text("in")})
            case _:
                text.insert(chance.randrange(len(text) + 1), chance.choice(["x", "hello"]))


@dataclass
class Life:
    """One document from its creation on: what its router has, and what was told of it."""

    name: str
    kind: Kind
    incarnation: bytes
    bodies: list[bytes] = field(default_factory=list[bytes])
    snapshot_count: int = 0

    def state_at(self, seq: int) -> bytes:
        """By folding from the beginning."""
        fresh = folding(self.kind)
        for body in self.bodies[:seq]:
            fresh.apply(fresh.prepare(body))
        return fresh.state()


class History:
    """A log of some documents. `lives` has each that ever was, by stream and incarnation."""

    def __init__(self, seed: int, names: Sequence[str] = ("a", "b", "c")) -> None:
        self.chance = random.Random(seed)
        self.rows: list[LogRow] = []
        self.lives: dict[tuple[bytes, bytes], Life] = {}
        self.current: dict[str, Life] = {}
        self._foldings: dict[str, Folding] = {}
        self._writers: dict[str, YjsWriters] = {}
        self._folded: dict[str, int] = {}
        self._names = names

    def go_on(self, step_count: int) -> "History":
        for _ in range(step_count):
            name = self.chance.choice(self._names)
            if name not in self.current:
                self.create(name)
                continue
            match self.chance.randrange(40):
                case 0:
                    self.delete(name)
                case 1 | 2 | 3 | 4:
                    self.snapshot(name, self.chance.randrange(3))
                case 5:
                    self.restart(name)
                case _:
                    self.update(name)
        return self

    def create(self, name: str, kind: Kind | None = None) -> None:
        life = Life(name, kind or self.chance.choice(list(Kind)), self.chance.randbytes(8))
        self.current[name] = life
        self.lives[stream_of(name), life.incarnation] = life
        self._foldings[name] = folding(life.kind)
        self._folded[name] = 0
        self._writers[name] = YjsWriters(self.chance)
        self._add(name, CREATE)
        self.snapshot(name, 0)

    def delete(self, name: str) -> None:
        del self.current[name]
        self._add(name, DELETE)

    def update(self, name: str) -> None:
        life = self.current[name]
        match life.kind:
            case Kind.JSON:
                names = self.chance.choice([b"x", b"y", b"z"]), self.chance.choice([b"a", b"b"])
                value = self.chance.choice([b"1", b"1.0", b"true", b"null", b"{}", b"[1]"])
                body = b'{"%b":{"%b":%b}}' % (*names, value)
            case Kind.YJS:
                body = self._writers[name].update()
            case Kind.BYTES:
                body = self.chance.randbytes(self.chance.randrange(9))
        life.bodies.append(body)
        self._add(name, MESSAGE, len(life.bodies), encode_entry("me", len(life.bodies), body))

    def snapshot(self, name: str, later_count: int) -> None:
        """Of what is there now, logged behind some updates that come later."""
        life = self.current[name]
        state = self._state(name)
        seq = len(life.bodies)
        for _ in range(later_count):
            self.update(name)
        payload = encode_snapshot(
            DocumentSnapshot(SNAPSHOT_VERSION, name, life.kind, life.incarnation, [], state)
        )
        life.snapshot_count += 1
        self._add(name, SNAPSHOT, seq, payload)

    def restart(self, name: str) -> None:
        """The router opens it anew: it goes on from what it has written."""
        self._foldings[name] = folding(self.current[name].kind, self._state(name))

    def _state(self, name: str) -> bytes:
        life, open_one = self.current[name], self._foldings[name]
        for body in life.bodies[self._folded[name] :]:
            open_one.apply(open_one.prepare(body))
        self._folded[name] = len(life.bodies)
        return open_one.state()

    def _add(self, name: str, kind: int, seq: int = 0, body: bytes = b"") -> None:
        position = self.rows[-1].position + 10 if self.rows else 100
        self.rows.append(LogRow(position, kind, stream_of(name), seq, body))


def fold_rows(
    rows: Iterable[LogRow],
    known: dict[bytes, DocumentState] | None = None,
    edges: Sequence[int] = (),
) -> dict[bytes, DocumentState]:
    """One row at a time, by the document's own machine."""
    folds = {stream: DocumentFold(STORE, stream, state) for stream, state in (known or {}).items()}
    for row in rows:
        fold = folds.setdefault(row.stream, DocumentFold(STORE, row.stream))
        if any(fold.position < edge <= row.position for edge in edges):
            fold.log_is_missing()
        fold.position = row.position
        match row.kind:
            case 1:
                fold.updates(row.seq, [row.body], is_document=True)
            case 3:
                fold.created()
            case 4:
                fold.deleted()
            case _:
                fold.snapshot(row.seq, row.body)
    found = {stream: fold.result() for stream, fold in folds.items()}
    return {stream: state for stream, state in found.items() if state is not None}
