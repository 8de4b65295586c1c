"""Whatever passes the check of an update can be folded, together with whatever else has passed."""

from random import Random
from typing import Any

import pycrdt
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.kinds.yjs import YjsFolding
from syncline.errors import InvalidMutationError, ProtocolError
from syncline.wire.yjs_updates import check_update

# Too long a number to be hit upon: whoever names an item may delete it.
HONEST = (1 << 52) + 12_345_678_901


def written(client: int, letters: str) -> list[bytes]:
    """An update for each letter, then for a deletion, a map in a map, a format and a list."""
    document = pycrdt.Doc[Any](client_id=client)
    updates: list[bytes] = []
    document.observe(lambda event: updates.append(event.update))
    text = document.get("t" if client != HONEST else "honest", type=pycrdt.Text)
    for letter in letters:
        text += letter
    if client != HONEST:
        del text[1:3]
        document.get("m", type=pycrdt.Map)["k"] = {"a": [1, None]}
        text.format(0, 1, {"bold": True})
        document.get("l", type=pycrdt.Array).append(pycrdt.Map({"x": pycrdt.Text("y")}))
    return updates


SINGLE = written(7, "typed") + written(8, "too")
# The second one hangs a child on a character of the first: it passes, and cannot be applied.
UNFOLDABLE = [
    bytes.fromhex("0101020004010174016100"),
    bytes.fromhex("0103020104010174016128010174016b017e29000201016b0167760000"),
]
OTHERS = [
    *SINGLE,
    *UNFOLDABLE,
    pycrdt.merge_updates(*SINGLE),
    pycrdt.merge_updates(*SINGLE[::2]),
]
HONEST_UPDATES = written(HONEST, "kept")

changes = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    update = bytearray(draw(st.sampled_from(OTHERS)))
    for at, byte in draw(changes):
        update[at % len(update)] = byte
    return bytes(update)


def is_taken(update: bytes) -> bool:
    try:
        check_update(update)
        YjsFolding().prepare(update)
    except (ProtocolError, InvalidMutationError):
        return False
    return True


@settings(max_examples=500)
@given(st.lists(hostile(), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_what_one_client_sends_costs_no_other_its_text(
    sent: list[bytes], at: int, folded_at: int
) -> None:
    updates = [update for update in sent if is_taken(update)]
    updates[at:at] = HONEST_UPDATES
    folding = YjsFolding()
    for number, update in enumerate(updates):
        folding.apply(update)
        if number == folded_at:
            folding.state()
    seen = pycrdt.Doc[Any]()
    seen.apply_update(YjsFolding(folding.state()).updates_since(b"\x00")[0])
    assert str(seen.get("honest", type=pycrdt.Text)) == "kept"


def edited_together(chance: Random) -> list[bytes]:
    """Updates of editors who sometimes hear of one another, in the order in which they came."""
    updates: list[bytes] = []
    editors = [pycrdt.Doc[Any](client_id=client) for client in range(1, chance.randint(2, 4))]
    for editor in editors:
        editor.observe(lambda event: updates.append(event.update))
    for _ in range(chance.randint(2, 60)):
        editor = chance.choice(editors)
        text = editor.get("t", type=pycrdt.Text)
        length = len(text)
        if length and chance.random() < 0.3:
            start = chance.randrange(length)
            del text[start : min(length, start + 3)]
        else:
            text.insert(chance.randint(0, length), chance.choice(["a", "bc", "def"]))
        if chance.random() < 0.3:
            other = chance.choice(editors)
            if other is not editor:
                other.apply_update(editor.get_update(other.get_state()))
    return updates


def text_after(updates: list[bytes]) -> str:
    document = pycrdt.Doc[Any]()
    for update in updates:
        document.apply_update(update)
    return str(document.get("t", type=pycrdt.Text))


# A document of the library that takes them in one by one ends with another text now and then.
@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_updates_in_any_order_and_more_than_once_make_the_text_that_was_written(
    chance: Random,
) -> None:
    made = edited_together(chance)
    sent = [*made, *chance.choices(made, k=chance.randint(0, 10))]
    chance.shuffle(sent)
    folding = YjsFolding()
    while sent:
        count = chance.randint(1, 70)
        folding.apply_all(sent[:count])
        del sent[:count]
        if chance.random() < 0.5:
            folding = YjsFolding(folding.state())
    assert text_after([folding.shown()]) == text_after(made)
