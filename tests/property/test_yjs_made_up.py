"""Updates that nobody's editor made, but that pass every check: documents stay readable.

With some of these the CRDT library ends the process if it has to hold back one and merge it with
the next. That would fail this test, and all others that run with it.
"""

from contextlib import suppress
from random import Random
from typing import Any

import pycrdt
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.kinds.yjs import YjsFolding
from syncline.errors import InvalidMutationError
from syncline.wire.lib0 import var_bytes, var_uint
from syncline.wire.lib0 import var_string as var_text
from tests.property.test_yjs_folding import HONEST_UPDATES, is_taken

CLIENTS = [1, 2, 3, 1 << 31]
HAS_LEFT, HAS_RIGHT, HAS_KEY = 0x80, 0x40, 0x20
REMOVED, GAP = 0, 10
ITEM_KINDS = [1, 3, 4, 4, 4, 5, 6, 7, 7, 8, 9]


def any_value(chance: Random, depth: int = 0) -> bytes:
    tag = chance.randint(116, 127)
    count = chance.randrange(3) if depth < 3 else 0
    match tag:
        case 125:
            return bytes([tag]) + var_uint(chance.randrange(64))
        case 124:
            return bytes([tag]) + chance.randbytes(4)
        case 122 | 123:
            return bytes([tag]) + chance.randbytes(8)
        case 119:
            return bytes([tag]) + var_text(chance.choice(["", "a", "é", "😀"]))
        case 118:
            pairs = [var_text("k") + any_value(chance, depth + 1) for _ in range(count)]
            return bytes([tag]) + var_uint(count) + b"".join(pairs)
        case 117:
            values = [any_value(chance, depth + 1) for _ in range(count)]
            return bytes([tag]) + var_uint(count) + b"".join(values)
        case 116:
            return bytes([tag]) + var_bytes(b"xx")
        case _:
            return bytes([tag])


def content(chance: Random, kind: int) -> tuple[bytes, int]:
    """Its bytes and its length."""
    count = chance.randint(1, 3)
    match kind:
        case 1:
            length = chance.choice([1, 1, 2, 5, 1_000])
            return var_uint(length), length
        case 2:
            words = [var_text(chance.choice(["undefined", "1", '"x"', "{"])) for _ in range(count)]
            return var_uint(count) + b"".join(words), count
        case 3:
            return var_bytes(b"ab"), 1
        case 4:
            text = chance.choice(["a", "abc", "é", "😀", "a😀b", "hello"])
            return var_text(text), len(text.encode("utf-16-le")) // 2
        case 5:
            return var_text(chance.choice(["{}", "1", "no json", '"x"'])), 1
        case 6:
            return var_text("b") + var_text(chance.choice(["true", "null", "no json"])), 1
        case 7:
            shared = chance.randrange(7)
            return var_uint(shared) + (var_text("n") if shared in (3, 5) else b""), 1
        case 8:
            values = [any_value(chance) for _ in range(count)]
            return var_uint(count) + b"".join(values), count
        case _:
            return var_text(chance.choice(["guid", ""])) + any_value(chance), 1


def struct(chance: Random, client: int, clock: int, heads: dict[int, int]) -> tuple[bytes, int]:
    """Its bytes and its length."""
    if chance.random() < 0.15:
        length = chance.choice([1, 2, 7])
        return bytes([chance.choice([REMOVED, GAP])]) + var_uint(length), length

    def other() -> bytes:
        named = chance.choice([client, client, *CLIENTS])
        end = clock if named == client else heads.get(named, 0) + 2
        return var_uint(named) + var_uint(chance.randrange(max(1, end)))

    kind = chance.choice(ITEM_KINDS)
    places = (0, HAS_KEY, HAS_LEFT, HAS_LEFT, HAS_RIGHT, HAS_LEFT | HAS_RIGHT, HAS_LEFT | HAS_KEY)
    info = kind | chance.choice(places)
    place = bytes([info])
    if info & HAS_LEFT:
        place += other()
    if info & HAS_RIGHT:
        place += other()
    if not info & (HAS_LEFT | HAS_RIGHT):
        is_root = chance.random() < 0.5
        place += var_uint(1) + var_text(chance.choice("tr")) if is_root else var_uint(0) + other()
        if info & HAS_KEY:
            place += var_text(chance.choice(["k", ""]))
    written, length = content(chance, kind)
    return place + written, length


def made_up(chance: Random, heads: dict[int, int]) -> bytes:
    """An update; `heads` are the next clocks, from which some updates stray."""
    clients = chance.sample(CLIENTS, chance.randrange(4))
    written = [var_uint(len(clients))]
    for client in clients:
        start = heads.get(client, 0)
        if chance.random() < 0.15:
            start = max(0, start + chance.choice([-3, -1, 1, 2, 5]))
        clock, structs = start, list[bytes]()
        for _ in range(chance.randint(1, 5)):
            each, length = struct(chance, client, clock, heads)
            structs.append(each)
            clock += length
        if clock < 1 << 30:
            heads[client] = clock
        written += [var_uint(len(structs)), var_uint(client), var_uint(start), *structs]
    deleters = chance.sample(CLIENTS, chance.randrange(3))
    written.append(var_uint(len(deleters)))
    for client in deleters:
        at = chance.randrange(heads.get(client, 0) + 3)
        written += [
            var_uint(client),
            var_uint(1),
            var_uint(at),
            var_uint(chance.choice([1, 2, 50])),
        ]
    return b"".join(written)


def look_at(folding: YjsFolding, chance: Random) -> None:
    """Whatever a router may ask of it; a vector of somebody else may be none at all."""
    folding.shown()
    folding.updates_since(b"\x00")
    folding.updates_since(folding.state_vector())
    strange = [chance.choice([0, 1, 5, 1 << 31, (1 << 32) - 1, (1 << 53) - 1]) for _ in range(2)]
    vector = b"\x02\x01" + var_uint(strange[0]) + var_uint(CLIENTS[-1]) + var_uint(strange[1])
    with suppress(InvalidMutationError):
        folding.updates_since(vector)


def text_in(state: bytes, name: str) -> str:
    document: pycrdt.Doc[Any] = pycrdt.Doc()
    document.apply_update(state)
    return str(document.get(name, type=pycrdt.Text))


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_nothing_that_was_taken_keeps_a_document_from_being_read(chance: Random) -> None:
    heads: dict[int, int] = {}
    made = [made_up(chance, heads) for _ in range(chance.randint(2, 12))]
    sent = list(filter(is_taken, made))
    chance.shuffle(sent)
    at = chance.randint(0, len(sent))
    sent[at:at] = HONEST_UPDATES
    folding = YjsFolding()
    for update in sent:
        folding.has_news(update)
        folding.apply(folding.prepare(update))
        if chance.random() < 0.5:
            look_at(folding, chance)
        if chance.random() < 0.3:
            folding.rest()
        if chance.random() < 0.2:
            folding = YjsFolding(folding.state())
            folding.check()
    again = YjsFolding(folding.state())
    again.check()
    assert text_in(again.updates_since(b"\x00")[0], "honest") == "kept"
    # Of what contradicts itself not all can be shown, but what is shown can be read.
    text_in(again.shown(), "t")
