"""States of Yjs documents that hold the same, and such that do not; pycrdt says which is which."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pycrdt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from syncline.core.kinds.yjs import YjsFolding
from syncline.errors import MalformedMessageError, ProtocolError
from syncline.pipeline.yjs_items import Items, holds_same, items_of
from syncline.values import limits

CLIENT_COUNT = 4
TURNS_MAX = 10

# -------------------------------------------------------------------------------------- histories


@dataclass(frozen=True)
class Turn:
    """Somebody who has heard of some updates sets a key, types at a place, or takes a letter away.

    `heard` has a bit for each update.
    """

    client: int
    does: str
    heard: int = 0
    place: int = 0
    said: str = "xy"


TURNS = st.lists(
    st.builds(
        Turn,
        st.integers(0, CLIENT_COUNT - 1),
        st.sampled_from(["a", "b", "type", "delete"]),
        st.integers(0, (1 << TURNS_MAX) - 1),
        st.integers(0, 5),
        st.sampled_from(["x", "xy", "🦀z"]),
    ),
    min_size=1,
    max_size=TURNS_MAX,
)


def written(turns: Sequence[Turn]) -> list[bytes]:
    """The update of each turn."""
    docs = [pycrdt.Doc[Any](client_id=number + 1) for number in range(CLIENT_COUNT)]
    said: list[bytes] = []
    for turn in turns:
        doc = docs[turn.client]
        for number, update in enumerate(said):
            if turn.heard >> number & 1:
                doc.apply_update(update)
        found: list[bytes] = []
        subscription = doc.observe(lambda event, found=found: found.append(event.update))
        _act(doc, turn, len(said))
        doc.unobserve(subscription)
        said.append(found[-1])
    return said


def _act(doc: "pycrdt.Doc[Any]", turn: Turn, number: int) -> None:
    text, values = doc.get("text", type=pycrdt.Text), doc.get("map", type=pycrdt.Map)
    letters = str(text)
    if turn.does in ("a", "b"):
        values[turn.does] = f"{turn.said} {number}"
    elif turn.does == "delete" and letters:
        at = len(letters[: turn.place % len(letters)].encode())
        del text[at : at + len(letters[turn.place % len(letters)].encode())]
    else:
        text.insert(len(letters[: turn.place % (len(letters) + 1)].encode()), turn.said)


@dataclass(frozen=True)
class Folded:
    """Which updates came, in which order, and behind which the router began anew."""

    turns: list[Turn]
    came: list[int]
    restarts: frozenset[int] = frozenset()

    def updates(self) -> list[bytes]:
        said = written(self.turns)
        return [said[number] for number in self.came]


@st.composite
def foldings(draw: st.DrawFn) -> Folded:
    turns = draw(TURNS)
    order = draw(st.permutations(range(len(turns))))
    count = len(turns) - draw(st.integers(0, len(turns) - 1))
    restarts = draw(st.frozensets(st.integers(0, TURNS_MAX - 1)))
    return Folded(turns, order[:count], restarts)


def keys(text: str) -> list[Turn]:
    """`0a, 0a, 1b/0`: client 0 sets a twice; client 1 has heard of the first, and sets b."""
    found: list[Turn] = []
    for word in text.split(", "):
        who, _, heard = word.partition("/")
        bits = sum(1 << int(number) for number in heard.split())
        found.append(Turn(int(who[0]), who[1], bits))
    return found


def state_of(updates: Sequence[bytes]) -> bytes:
    fold = YjsFolding()
    for update in updates:
        fold.apply(update)
        fold.state_vector()
    return fold.state()


# Only the loser of a key is deleted by what comes with another update: found while it still waits
# in one state, and after it has fitted in the other.
LOSER_IS_FOUND_LATE = Folded(keys("0a, 1a, 0a, 0a, 0a, 0a, 0a, 0a/1"), [1, 7, 2, 3, 4, 5, 6, 0])
# One by one, what came early still waits when what it waited for is there.
FITS_AT_ONCE_ONLY = Folded(keys("0b, 0b, 0a, 0a, 0a, 0a"), [3, 1, 2, 4, 5])
# The loser is deleted by an item that waits: in one document it was taken in for a while.
LOSER_OF_WHAT_WAITS = Folded(keys("0a, 0a, 0a, 0b, 1b/3, 0a, 0a, 1a"), [0, 1, 2, 4, 5, 6, 7])


@settings(max_examples=150)
@example(LOSER_IS_FOUND_LATE)
@example(FITS_AT_ONCE_ONLY)
@example(LOSER_OF_WHAT_WAITS)
@given(foldings())
def test_the_same_updates_hold_the_same_however_they_are_folded(folded: Folded) -> None:
    one, other = YjsFolding(), YjsFolding()
    for number, update in enumerate(folded.updates()):
        one.apply(update)
        # Takes it in at once.
        one.state_vector()
        other.apply(update)
        if number in folded.restarts:
            other = YjsFolding(other.state())
    assert holds_same(one.state(), other.state())


def test_a_loser_that_waits_itself_is_not_called_deleted_before_it_came() -> None:
    """Two values take the place of one; all of it waits, for what client 2 has written before."""
    updates = [
        b"\x01\x01\x03\x01\xa8\x02\x09\x01w\x01x\x01\x02\x01\x09\x01",
        b"\x01\x01\x02\x09\x28\x01\x03map\x01c\x01w\x01y\x00",
        b"\x01\x01\x02\x17\xc4\x02\x12\x02\x13\x01x\x00",
        b"\x01\x01\x02\x18\xa8\x02\x09\x01w\x01z\x01\x02\x01\x09\x01",
    ]
    many = YjsFolding()
    many.apply_all(updates)
    assert holds_same(state_of(updates), many.state())


@settings(max_examples=300)
@example([Turn(0, "a"), Turn(1, "type"), Turn(2, "delete", 0b10)], [0, 2], [0])
@example([Turn(0, "type"), Turn(1, "type", 1, 1), Turn(2, "type", 1, 1)], [1], [2])
@given(TURNS, st.lists(st.integers(0, TURNS_MAX - 1)), st.lists(st.integers(0, TURNS_MAX - 1)))
def test_updates_that_are_in_one_state_only_are_a_difference_also_while_they_wait(
    turns: list[Turn], one: list[int], other: list[int]
) -> None:
    said = written(turns)
    had, others = ({said[at % len(said)] for at in each} for each in (one, other))
    assume(had)
    assume(others)
    is_same = holds_same(state_of(sorted(had)), state_of(sorted(others)))
    # Whatever makes no item only deletes, one letter; so it is another update, or the same letter.
    assert all(len(update) == 6 for update in had ^ others if makes_nothing(update))
    only_deletions = all(map(makes_nothing, had ^ others))
    if had == others:
        assert is_same
    elif (
        not only_deletions
        or not (items_wait(had) or items_wait(others))
        or any(is_of_nobody(deletion, had | others) for deletion in had ^ others)
    ):
        assert not is_same


def makes_nothing(update: bytes) -> bool:
    return update[0] == 0


def items_wait(updates: set[bytes]) -> bool:
    whole = pycrdt.merge_updates(*updates)
    doc = pycrdt.Doc[Any]()
    doc.apply_update(whole)
    return pycrdt.get_update(whole, doc.get_state())[0] != 0


def is_of_nobody(deletion: bytes, updates: set[bytes]) -> bool:
    """Its letter is in none of the updates: clients and clocks are small here."""
    _, _, client, _, clock, _ = deletion
    known = (items_of([update]).known.get(client, []) for update in updates)
    return not any(start <= clock < end for ranges in known for start, end in ranges)


@settings(max_examples=150)
@given(TURNS, st.data())
def test_other_words_or_another_place_are_another_state(turns: list[Turn], data: Any) -> None:
    """Where the two read differently; the same text may have been typed in two ways."""
    at = data.draw(st.integers(0, len(turns) - 1))
    turn = turns[at]
    changed = data.draw(
        st.builds(Turn, st.just(turn.client), st.just(turn.does), st.just(turn.heard))
    )
    others = [*turns[:at], changed, *turns[at + 1 :]]
    one, other = written(turns), written(others)
    if reading(one) == reading(other):
        assert one != other or holds_same(state_of(one), state_of(other))
    else:
        assert not holds_same(state_of(one), state_of(other))


def reading(updates: Sequence[bytes]) -> tuple[Any, ...]:
    doc = pycrdt.Doc[Any]()
    for update in updates:
        doc.apply_update(update)
    return str(doc.get("text", type=pycrdt.Text)), doc.get("map", type=pycrdt.Map).to_py()


# ------------------------------------------------------------------------------------- one form


@settings(max_examples=150)
@given(TURNS, st.data())
def test_a_text_has_one_form_however_it_is_cut_doubled_and_merged(
    turns: list[Turn], data: Any
) -> None:
    """Keys aside: which value has lost is known to a document only."""
    said = written([turn for turn in turns if turn.does in ("type", "delete")] or [Turn(0, "type")])
    doc = pycrdt.Doc[Any]()
    parts: list[bytes] = []
    for update in said:
        doc.apply_update(update)
        parts += [update, doc.get_update()]
    count = data.draw(st.integers(0, len(parts)))
    some = data.draw(st.permutations([*said, *parts[:count]]))
    whole = items_of([doc.get_update()])
    assert items_of(some) == whole
    assert items_of([pycrdt.merge_updates(*some)]) == whole
    assert whole.known == known_of(doc)


def known_of(doc: "pycrdt.Doc[Any]") -> dict[int, list[tuple[int, int]]]:
    """By its state vector: numbers are small here."""
    _, *numbers = doc.get_state()
    return {client: [(0, clock)] for client, clock in zip(numbers[::2], numbers[1::2], strict=True)}


def test_what_is_missing_in_the_middle_is_not_there() -> None:
    said = written([Turn(0, "type", place=-1) for _ in range(3)])
    with_gap = pycrdt.merge_updates(said[0], said[2])
    assert items_of([with_gap]).known == {1: [(0, 2), (4, 6)]}
    assert items_of([with_gap]) == items_of([said[0], said[2]])


def test_items_that_cannot_be_parted_are_never_joined_and_runs_only_where_one_goes_on() -> None:
    # Typed one behind the other, from where it began to where it ended: one run.
    one = items_of(written([Turn(0, "type", place=-1, said=letter) for letter in "abc"]))
    assert [(run.clock, run.end) for run in one.runs[1]] == [(0, 3)]
    # Each before the one before: three.
    three = items_of(written([Turn(0, "type", place=0, said=letter) for letter in "abc"]))
    assert len(three.runs[1]) == 3
    # Between others: the first has a right neighbour, what is typed behind the last has none.
    left = item(4, b"\x01a"), item(0x84, b"\x01b", left=(1, 0))
    right = item(4, b"\x01a"), item(0xC4, b"\x01b", left=(1, 0), right=(2, 0))
    assert len(items_of([update(*left)]).runs[1]) == 1
    assert len(items_of([update(*right)]).runs[1]) == 2
    # A list behind a text, and two types one behind the other.
    mixed = item(4, b"\x01a"), item(0x88, b"\x01" + any_int(1), left=(1, 0))
    types = item(7, b"\x01"), item(0x87, b"\x01", left=(1, 0))
    assert [len(items_of([update(*each)]).runs[1]) for each in (mixed, types)] == [2, 2]
    # With something missing between them.
    far = update(item(4, b"\x01a"), b"\x0a\x01", item(0x84, b"\x01c", left=(1, 1)))
    assert [(run.clock, run.end) for run in items_of([far]).runs[1]] == [(0, 1), (2, 3)]


def test_of_what_is_deleted_nothing_matters_but_that_it_is() -> None:
    text = item(4, b"\x05abcde")
    whole = items_of([update(text, deleted=[(1, 3)])])
    assert whole.deleted == {1: [(1, 4)]}
    assert [(run.clock, run.content) for run in whole.runs[1]] == [
        (0, (b"a\0",)),
        (4, (b"e\0",)),
    ]
    # Thrown away, or kept without its content; said twice, in pieces, or in any order.
    head, tail = item(4, b"\x01a"), item(0x84, b"\x01e", left=(1, 3))
    thrown = update(head, b"\x00\x03", tail)
    kept = update(head, item(0x81, b"\x03", left=(1, 0)), tail)
    pieces = update(text, deleted=[(3, 1), (1, 1), (1, 2)])
    assert items_of([thrown]) == items_of([kept]) == items_of([pieces]) == whole
    # All of it, so that nothing is left of the client.
    gone = items_of([update(item(4, b"\x01a"), deleted=[(0, 1)])])
    assert gone == items_of([update(b"\x00\x01")]) == Items({}, {1: [(0, 1)]}, {1: [(0, 1)]})


# ------------------------------------------------------------------------- written field by field


def item(
    info: int,
    content: bytes,
    *,
    left: tuple[int, int] | None = None,
    right: tuple[int, int] | None = None,
    parent: bytes = b"\x01\x01m",
) -> bytes:
    neighbours = [bytes(each) for each in (left, right) if each is not None]
    return bytes([info]) + (b"".join(neighbours) or parent) + content


def update(*structs: bytes, deleted: Sequence[tuple[int, int]] = ()) -> bytes:
    """Of client 1, from clock 0 on."""
    head = bytes([1, len(structs), 1, 0])
    ranges = b"".join(bytes(each) for each in deleted)
    tail = bytes([1, 1, len(deleted)]) + ranges if deleted else b"\x00"
    return head + b"".join(structs) + tail


def any_int(number: int) -> bytes:
    """Below 64."""
    return bytes([125, number])


def text(value: str) -> bytes:
    return bytes([len(value.encode())]) + value.encode()


def of_value(*values: bytes) -> Items:
    return items_of([update(item(8, bytes([len(values)]) + b"".join(values)))])


def as_float(number: float) -> bytes:
    return b"|" + struct.pack(">f", number)


def as_double(number: float) -> bytes:
    return b"{" + struct.pack(">d", number)


def as_big(number: int) -> bytes:
    return b"z" + struct.pack(">q", number)


def test_a_number_is_the_same_however_it_is_written() -> None:
    one = of_value(any_int(1))
    assert one == of_value(as_float(1)) == of_value(as_double(1)) == of_value(as_big(1))
    minus = of_value(b"\x7d\x41")
    assert minus == of_value(as_float(-1)) == of_value(as_double(-1)) == of_value(as_big(-1))
    assert of_value(as_float(1.5)) == of_value(as_double(1.5))
    no_number = of_value(as_double(float("nan")))
    assert no_number == of_value(as_float(float("nan"))) != of_value(as_double(float("inf")))


def test_values_that_differ_are_told_apart() -> None:
    one = any_int(1)
    values = {
        *(any_int(number) for number in (0, 1, 60)),
        *(as_double(number) for number in (1.5, -1.5, 1.1)),
        # Undefined, null, false, true; and the numbers that these are written as.
        *(bytes([tag]) for tag in (127, 126, 121, 120)),
        *(as_big(tag) for tag in (127, 126, 121, 120)),
        *(b"w" + text(said) for said in ("", "1", "true")),
        *(b"t" + text(said) for said in ("", "1")),
        *(b"u\x00", b"u\x01" + one, b"u\x02" + one + one, b"u\x01u\x01" + one),
        *(b"v\x00", b"v\x01\x01a" + one, b"v\x01\x01b" + one, b"v\x01\x01a" + any_int(2)),
    }
    found = [of_value(value) for value in values]
    assert all(one == other for one in found for other in found if one is other)
    assert not any(one == other for one in found for other in found if one is not other)


def test_an_object_is_the_same_in_any_order_and_a_list_is_not() -> None:
    a, b = b"\x01a" + any_int(1), b"\x01b" + any_int(2)
    assert of_value(b"v\x02" + a + b) == of_value(b"v\x02" + b + a)
    assert of_value(b"u\x02" + a[2:] + b[2:]) != of_value(b"u\x02" + b[2:] + a[2:])
    for make in (embedded, formatted):
        assert make('{"a":1,"b":2}') == make('{"b": 2, "a": 1}') != make('{"a":1,"b":3}')
        # What is no JSON is a text.
        assert make("{") == make("{") != make("[")


def embedded(said: str) -> Items:
    return items_of([update(item(5, text(said)))])


def formatted(said: str, name: str = "bold") -> Items:
    return items_of([update(item(6, text(name) + text(said)))])


CONTENTS = {
    "texts": (2, b"\x02\x01a\x01b", b"\x02\x01a\x01c"),
    "bytes": (3, b"\x01a", b"\x01b"),
    "text": (4, "\x05a🦀".encode(), "\x05a🦁".encode()),
    "embed": (5, b"\x011", b"\x012"),
    "name of a format": (6, b"\x01a\x011", b"\x01b\x011"),
    "format": (6, b"\x01a\x011", b"\x01a\x012"),
    "type": (7, b"\x00", b"\x01"),
    "name of an element": (7, b"\x03\x01p", b"\x03\x01q"),
    "name of a hook": (7, b"\x05\x01p", b"\x05\x01q"),
    "values": (8, b"\x02" + any_int(1) * 2, b"\x02" + any_int(1) + any_int(2)),
    "document": (9, b"\x01a" + any_int(1), b"\x01b" + any_int(1)),
    "options of a document": (9, b"\x01a" + any_int(1), b"\x01a" + any_int(2)),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_content_of_every_kind_is_compared_and_what_follows_is_read(what: str) -> None:
    kind, one, other = CONTENTS[what]
    first, second = (items_of([update(item(kind, each), b"\x00\x05")]) for each in (one, other))
    assert first != second
    assert first.known == second.known == {1: [(0, clock_count(kind) + 5)]}


def clock_count(kind: int) -> int:
    """Outside of the basic plane a letter takes two."""
    return {2: 2, 4: 3, 8: 2}.get(kind, 1)


PLACES = [
    item(4, b"\x01a"),
    item(4, b"\x01a", parent=b"\x01\x01n"),
    item(4, b"\x01a", parent=b"\x00\x02\x00"),
    item(4, b"\x01a", parent=b"\x00\x02\x01"),
    item(0x24, b"\x01a", parent=b"\x01\x01m\x01k"),
    item(0x24, b"\x01a", parent=b"\x01\x01m\x01l"),
    item(0x84, b"\x01a", left=(2, 0)),
    item(0x84, b"\x01a", left=(3, 0)),
    item(0x44, b"\x01a", right=(2, 0)),
    item(0x44, b"\x01a", right=(3, 0)),
    item(0xC4, b"\x01a", left=(2, 0), right=(3, 0)),
    item(0xC4, b"\x01a", left=(2, 0), right=(3, 1)),
    # Beside a neighbour a key says nothing: the neighbour has it.
    item(0xA4, b"\x01a", left=(2, 1)),
]


def test_every_place_is_another() -> None:
    found = [items_of([update(place)]) for place in PLACES]
    assert not any(one == other for one in found for other in found if one is not other)


# ------------------------------------------------------------------------------------ what is not


def test_values_that_are_nested_without_end_are_refused() -> None:
    deep = limits.json_depth_max
    of_value(b"u\x01" * deep + b"\x7e")
    with pytest.raises(MalformedMessageError, match="nested too deep"):
        of_value(b"u\x01" * (deep + 1) + b"\x7e")


def test_content_that_nobody_knows_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="11 is no kind"):
        items_of([update(item(11, b"\x01a"))])


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_bytes_are_read_or_refused(junk: bytes) -> None:
    with suppress(ProtocolError):
        items_of([junk])


@settings(max_examples=100)
@given(TURNS, st.data())
def test_an_update_that_is_cut_off_or_damaged_is_read_or_refused(
    turns: list[Turn], data: Any
) -> None:
    whole = bytearray(pycrdt.merge_updates(*written(turns)))
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    if cut:
        cut[data.draw(st.integers(0, len(cut) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        items_of([bytes(cut)])
