"""One client's hand on one document: what it changes next, and what it makes of others' changes."""

from base64 import b64decode
from random import Random
from typing import Any, Final, Literal, Protocol, cast

import msgspec
import pycrdt

from syncline.client import Change, Mutated
from syncline.values.json_value import Json
from syncline.values.replica import Body

Kind = Literal["json", "yjs"]
_WORDS: Final = ("plan", "draft", "note", "list", "item", "task", "idea", "page", "room", "time")


class Editor(Protocol):
    def change(self, random: Random) -> Body:
        """The next mutation. It is going to be made."""
        ...

    def take(self, change: Change) -> None:
        """Somebody else's, or the whole state."""
        ...

    def has(self, state: Body, told: Any) -> bool:
        """Whether what it has is what the router told; `state` is what its replica shows."""
        ...


class JsonEditor:
    """Adds an item of its own, under a name that nobody else has, and now and then moves one."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._count = 0

    def change(self, random: Random) -> Body:
        if not self._count or random.random() < 0.8:
            self._count += 1
            number = self._count
        else:
            number = random.randint(1, self._count)
        item: dict[str, Json] = {
            "x": random.randint(0, 1_000),
            "y": random.randint(0, 1_000),
            "label": _phrase(random, 8),
        }
        return {"items": {f"{self._client}-{number}": item}}

    def take(self, change: Change) -> None:
        """The replica has it; nothing is kept here."""

    def has(self, state: Body, told: Any) -> bool:
        return bool(state == told)


class YjsEditor:
    """Writes into a text that all share. What it has is what it applied: nothing else feeds it."""

    def __init__(self) -> None:
        self._doc = _doc_of(())

    def change(self, random: Random) -> Body:
        known = self._doc.get_state()
        text = _text(self._doc)
        text.insert(random.randint(0, len(text)), _phrase(random, 3))
        return self._doc.get_update(known)

    def take(self, change: Change) -> None:
        if isinstance(change, Mutated):
            self._doc.apply_update(cast("bytes", change.mutation))
        else:
            # Begun anew: what the router does not know of must not stay underneath.
            self._doc = _doc_of(cast("tuple[bytes, ...]", change.state))

    def has(self, state: Body, told: Any) -> bool:
        return is_same("yjs", self._doc.get_update(), told)


def is_same(kind: Kind, shown: bytes, told: Any) -> bool:
    """Whether a folded state, as subscribers get it, is what the operator's API tells."""
    if kind == "json":
        return bool(msgspec.json.decode(shown) == told)
    return str(_text(_doc_of((shown,)))) == str(_text(_doc_of((b64decode(told),))))


def _doc_of(updates: tuple[bytes, ...]) -> "pycrdt.Doc[Any]":
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    for update in updates:
        doc.apply_update(update)
    return doc


def _text(doc: "pycrdt.Doc[Any]") -> pycrdt.Text:
    text: pycrdt.Text = doc.get("text", type=pycrdt.Text)
    return text


def editor(kind: Kind, client: str) -> Editor:
    return JsonEditor(client) if kind == "json" else YjsEditor()


def _phrase(random: Random, count: int) -> str:
    return " ".join(random.choices(_WORDS, k=count)) + " "
