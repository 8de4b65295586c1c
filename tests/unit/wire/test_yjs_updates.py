"""State vectors and updates of Yjs, against those that pycrdt makes."""

from collections.abc import Callable
from typing import Any

import pytest
from pycrdt import Array, Doc, Map, Text, XmlElement, XmlFragment, XmlText, get_state

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire import yjs_updates
from syncline.wire.lib0 import var_uint

INSERTED = bytes.fromhex("01 01 e8 07 00 04 01 01 74 10") + b"sixteen letters!" + b"\x00"


def a_bit_of_everything() -> Doc[Any]:
    """A document with content of many kinds, deletions, and two authors."""
    document: Doc[Any] = Doc(client_id=7)
    text = document.get("text", type=Text)
    text += "Grüße, 😀"
    text.format(0, 4, {"bold": True})
    text.insert_embed(2, {"image": "x.png"})
    del text[3:5]
    values = document.get("map", type=Map)
    values["scalars"] = {"a": [1, -70_000, 1.5, None, True, "x"], "b": b"\x00\xff"}
    values["again"] = 1
    values["again"] = 2
    values["inner"] = Map({"list": Array([1, 2, Text("deep")])})
    del values["again"]
    items = document.get("list", type=Array)
    items.extend([1, "two", b"three"])
    items.append(Doc())
    items.pop(0)
    pages = document.get("xml", type=XmlFragment)
    page = pages.children.append(XmlElement("p", {"class": "c"}))
    page.children.append(XmlText("words"))
    other: Doc[Any] = Doc(client_id=99)
    other.apply_update(document.get_update())
    more = other.get("text", type=Text)
    more += "!"
    document.apply_update(other.get_update(document.get_state()))
    return document


def test_an_update_of_every_kind_passes() -> None:
    update = a_bit_of_everything().get_update()
    yjs_updates.check_update(update)
    yjs_updates.check_update(INSERTED)
    yjs_updates.check_update(yjs_updates.EMPTY_UPDATE)


def test_each_step_of_typing_passes() -> None:
    updates: list[bytes] = []
    document: Doc[Any] = Doc()
    document.observe(lambda event: updates.append(event.update))
    text = document.get("t", type=Text)
    for letter in "typed":
        text += letter
    del text[1:3]
    assert len(updates) >= 6
    for update in updates:
        yjs_updates.check_update(update)


def test_a_cut_update_is_refused_wherever_it_is_cut() -> None:
    update = a_bit_of_everything().get_update()
    for cut in range(len(update)):
        with pytest.raises(MalformedMessageError):
            yjs_updates.check_update(update[:cut])
    with pytest.raises(MalformedMessageError, match="1 bytes follow"):
        yjs_updates.check_update(update + b"\x00")


# What content of each kind looks like after info, parent `1 "t"`: from the encoding, by hand.
CONTENTS = {
    "deleted": "01 01 01 74 05",
    "binary": "03 01 01 74 02 00 ff",
    "string": "04 01 01 74 02 c3 a9",
    "embed": "05 01 01 74 02 7b 7d",
    "format": "06 01 01 74 01 62 04" + b"true".hex(),
    "type": "07 01 01 74 02",
    "named type": "07 01 01 74 03 01 70",
    "hook": "07 01 01 74 05 01 70",
    "any": "08 01 01 74 02 7e 7d 01",
    "document": "09 01 01 74 02 69 64 76 00",
    "removed": "00 05",
    "gap": "0a 05",
    "in a parent by id": "04 00 07 01 01 61",
    "under a key": "28 01 01 74 01 6b 01 7e",
    "after an origin": "84 07 01 01 61",
    "before an origin": "44 07 01 01 61",
    "between two, key not written again": "e8 07 01 07 03 01 7e",
}


@pytest.mark.parametrize("struct", CONTENTS.values(), ids=CONTENTS)
def test_structs_of_every_kind(struct: str) -> None:
    update = bytes.fromhex("01 01 07 05" + struct + "00")
    yjs_updates.check_update(update)
    for cut in range(len(update)):
        with pytest.raises(MalformedMessageError):
            yjs_updates.check_update(update[:cut])


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        ("01 01 07 00 0b 00 00", "11 is no kind of content"),
        ("01 01 07 00 1f 00 00", "31 is no kind of content"),
        ("01 01 07 00 07 01 01 74 07 00", "7 is no shared type"),
        ("01 01 07 00 04 01 01 74 01 ff 00", "UTF-8"),
        ("01 7f 07 00 0a 05 00", "announces 127 things"),
        ("ff ff ff ff ff ff ff 0f 00 00", "announces"),
        ("00 01 07 7f 00 00", "announces 127 things"),
        ("00 00 00", "1 bytes follow"),
    ],
)
def test_no_update(encoded: str, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        yjs_updates.check_update(bytes.fromhex(encoded))


# What takes the library down that folds updates, so that it must never be stored: found by trying.
POISON = {
    "an item follows itself": "01 01 07 00 84 07 01 02 62 63 01 02 01 02 01",
    "an item precedes itself": "01 01 07 01 44 07 03 01 61 00",
    "an item is its own parent": "01 01 07 00 04 00 07 00 01 61 00",
    "an item follows one to come": "01 02 07 00 84 07 02 01 61 04 01 01 74 01 62 00",
    "a client comes twice": "02 01 02 01 0a 01 01 02 05 0a 01 00",
    "a client comes twice in the deletions": "00 02 07 01 00 01 07 01 00 01",
    "nothing was removed": "01 01 07 00 00 00 00",
    "a gap of nothing": "01 01 07 00 0a 00 00",
    "nothing is deleted": "01 01 07 00 01 01 01 74 00 00",
    "no text": "01 01 07 00 04 01 01 74 00 00",
    "no values": "01 01 07 00 08 01 01 74 00 00",
    "values as JSON, the old way": "01 01 07 00 02 01 01 74 02 01 31 01 32 00",
    "a deletion of nothing": "00 01 07 01 05 00",
}
OUT_OF_RANGE = {
    "a first clock": "01 01 07 ff ff ff ff 0f 0a 01 00",
    "a clock and a length": "01 02 07 00 00 ff ff ff ff 07 0a 01 00",
    "a text passes the last clock": "01 01 07 fe ff ff ff 07 04 01 01 74 02 61 62 00",
    "a pair counts twice": "01 01 07 fe ff ff ff 07 04 01 01 74 04 f0 9f 98 80 00",
    "an origin": "01 01 07 00 84 08 ff ff ff ff 0f 01 61 00",
    "a deletion": "00 01 07 01 ff ff ff ff 07 01",
}


@pytest.mark.parametrize("encoded", POISON.values(), ids=POISON)
def test_what_no_client_writes_is_refused(encoded: str) -> None:
    said = r"zero|each client once|refers to itself|kind 2"
    with pytest.raises(MalformedMessageError, match=said):
        yjs_updates.check_update(bytes.fromhex(encoded))


@pytest.mark.parametrize("encoded", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_clocks_that_libraries_cannot_keep_are_refused(encoded: str) -> None:
    with pytest.raises(LimitExceededError, match="a clock in an update"):
        yjs_updates.check_update(bytes.fromhex(encoded))


def test_the_last_clock_passes() -> None:
    yjs_updates.check_update(bytes.fromhex("01 01 07 fe ff ff ff 07 04 01 01 74 01 61 00"))


def test_an_item_may_follow_those_before_it_in_the_same_update() -> None:
    yjs_updates.check_update(
        bytes.fromhex("01 02 07 00 04 01 01 74 04 f0 9f 98 80 84 07 01 01 62 00")
    )


def test_an_update_has_at_most_so_many_clients() -> None:
    count = limits.update_client_count_max + 1
    with pytest.raises(LimitExceededError, match="clients in an update"):
        yjs_updates.check_update(var_uint(count) + bytes(2 * count))


def test_state_vectors() -> None:
    document = a_bit_of_everything()
    vector = yjs_updates.decode_state_vector(document.get_state())
    assert set(vector) == {7, 99}
    assert yjs_updates.decode_state_vector(b"\x00") == {}
    assert yjs_updates.decode_state_vector(get_state(INSERTED)) == {1000: 16}
    two = bytes.fromhex("02 e8 07 10 01 02")
    assert yjs_updates.decode_state_vector(two) == {1: 2, 1000: 16}


@pytest.mark.parametrize("encoded", ["", "01", "01 01", "00 00", "7f 00 00", "01 80 80"])
def test_no_state_vector(encoded: str) -> None:
    with pytest.raises(MalformedMessageError):
        yjs_updates.decode_state_vector(bytes.fromhex(encoded))


def test_a_state_vector_has_at_most_so_many_clients() -> None:
    count = limits.state_vector_client_count_max + 1
    with pytest.raises(LimitExceededError, match="clients in a state vector"):
        yjs_updates.decode_state_vector(var_uint(count) + bytes(2 * count))


# ---------------------------------------------------------------- matched as a whole, or by number


def typed_between(client: int, count: int) -> list[bytes]:
    """Somebody types in the middle of what is there."""
    updates: list[bytes] = []
    document: Doc[Any] = Doc(client_id=client)
    text = document.get("t", type=Text)
    text += "ab"
    subscription = document.observe(lambda event: updates.append(event.update))
    for number in range(count):
        text.insert(len(text) // 2, "xyz"[: 1 + number % 3])
    document.unobserve(subscription)
    return updates


@pytest.mark.parametrize("client", [1, 127, 128, 1 << 31, (1 << 49) - 1, 1 << 49, (1 << 53) - 1])
def test_what_is_typed_is_known_at_a_glance(client: int) -> None:
    for update in typed_between(client, 40):
        assert yjs_updates.is_typed_text(update)
        yjs_updates.check_update(update)
        get_state(update)


@pytest.mark.parametrize(
    "encoded",
    [
        "01 01 07 05 84 07 05 01 61 00",  # follows itself
        "01 01 07 05 44 07 06 01 61 00",  # stands before a later one
        "01 01 07 05 c4 07 04 07 05 01 61 00",
        "01 01 07 85 01 84 07 86 01 01 61 00",  # the same with clocks of two bytes
        "01 01 07 05 84 87 00 05 01 61 00",  # and with a number longer than it need be
        "01 01 07 05 84 07 04 01 80 00",  # no UTF-8
        "01 01 07 05 84 07 04 00 00",  # no text
        "01 01 07 05 84 07 04 02 61 00",  # ends too early
        "01 01 07 05 84 07 04 01 61 01",  # deletions that do not come
        "01 01 07 05 84 07 04 01 61 00 00",  # more behind it
        "01 01 ff ff ff ff ff ff ff 10 05 84 07 04 01 61 00",  # a client above 2^53-1
    ],
)
def test_a_glance_does_not_let_pass_what_a_close_look_refuses(encoded: str) -> None:
    update = bytes.fromhex(encoded)
    assert not yjs_updates.is_typed_text(update)
    with pytest.raises((MalformedMessageError, LimitExceededError)):
        yjs_updates.check_update(update)


def test_in_a_large_update_the_same_is_refused_whichever_way_it_is_read() -> None:
    # Two structs, so that it is no single keystroke: the second refers to itself.
    good = bytes.fromhex("01 02 07 05 84 07 04 01 61 c4 07 05 08 09 01 62 00")
    bad = bytes.fromhex("01 02 07 05 84 07 04 01 61 c4 07 06 08 09 01 62 00")
    yjs_updates.check_update(good)
    with pytest.raises(MalformedMessageError, match="refers to itself"):
        yjs_updates.check_update(bad)


# Nesting.

ROOT = b"\x01\x01t"


def inside(client: int, clock: int) -> bytes:
    return b"\x00" + var_uint(client) + var_uint(clock)


def map_in(place: bytes) -> bytes:
    """A map under a key."""
    return b"\x27" + place + b"\x01k\x01"


def update_of(structs: dict[int, list[bytes]]) -> bytes:
    """Each struct has length 1; clients in the order given."""
    parts = [var_uint(len(structs))]
    for client, items in structs.items():
        parts += [var_uint(len(items)), var_uint(client), b"\x00", *items]
    return b"".join(parts) + b"\x00"


def one_in_another(count: int) -> bytes:
    return update_of({7: [map_in(ROOT), *(map_in(inside(7, at)) for at in range(count))]})


def by_two_in_turns(count: int) -> bytes:
    """What the first refers to stands behind it in the update."""
    return update_of(
        {
            8: [map_in(inside(7, at)) for at in range(count // 2)],
            7: [map_in(ROOT), *(map_in(inside(8, at)) for at in range(count // 2))],
        }
    )


def beside_texts(count: int) -> bytes:
    """In each array a letter, another one behind it, and the next array behind that."""
    items = [b"\x07" + ROOT + b"\x00"]
    for at in range(0, 3 * count, 3):
        items += [
            b"\x04" + inside(7, at) + b"\x01a",
            b"\x84" + var_uint(7) + var_uint(at + 1) + b"\x01b",
            b"\x87" + var_uint(7) + var_uint(at + 2) + b"\x00",
        ]
    return update_of({7: items})


@pytest.mark.parametrize("make", [one_in_another, by_two_in_turns, beside_texts])
def test_types_nested_too_deep_are_refused(make: Callable[[int], bytes]) -> None:
    yjs_updates.check_update(make(limits.update_depth_max))
    Doc[Any]().apply_update(make(limits.update_depth_max))
    with pytest.raises(LimitExceededError, match="depth"):
        yjs_updates.check_update(make(limits.update_depth_max + 2))


def test_many_types_are_not_deep() -> None:
    count = 5 * limits.update_depth_max
    flat = update_of({7: [map_in(ROOT), *[b"\x07" + inside(7, 0) + b"\x01"] * count]})
    yjs_updates.check_update(flat)


def test_items_that_lie_in_one_another_are_not_followed_for_ever() -> None:
    count = limits.update_depth_max + 1
    yjs_updates.check_update(
        update_of(
            {
                8: [map_in(inside(7, at)) for at in range(count)],
                7: [map_in(inside(8, at)) for at in range(count)],
            }
        )
    )
