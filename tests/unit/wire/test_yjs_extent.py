"""What an update brings and needs, and which part of it fits."""

from typing import Any

import pycrdt
import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.yjs_extent import extent_of, fitting_part

NOTHING: dict[int, int] = {}
NO_UPDATE = b"\x00\x00"


def typed(client: int, *pieces: str) -> list[bytes]:
    document: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    updates: list[bytes] = []
    document.observe(lambda event: updates.append(event.update))
    text = document.get("t", type=pycrdt.Text)
    for piece in pieces:
        text += piece
    return updates


def text_of(*updates: bytes) -> str:
    document: pycrdt.Doc[Any] = pycrdt.Doc()
    for update in updates:
        document.apply_update(update)
    return str(document.get("t", type=pycrdt.Text))


def test_what_is_typed_needs_what_was_typed_before() -> None:
    first, second = map(extent_of, typed(7, "hello", " world"))
    assert first.missing(NOTHING) is None
    assert second.missing(NOTHING) == (7, 5)
    assert second.missing({7: 4}) == (7, 5)
    assert second.missing({7: 5}) is None
    assert second.follows({7: 5})
    assert not second.follows({7: 6})


def test_an_answer_needs_what_it_stands_behind() -> None:
    (first,) = typed(7, "hello")
    document: pycrdt.Doc[Any] = pycrdt.Doc(client_id=8)
    document.apply_update(first)
    document.get("t", type=pycrdt.Text).insert(2, "!")
    extent = extent_of(document.get_update(pycrdt.get_state(first)))
    assert extent.begins == extent.needs == {8: 0}
    assert extent.missing({7: 2}) == (7, 3)
    assert extent.missing({7: 3}) is None


def test_a_deletion_needs_what_it_deletes() -> None:
    (first,) = typed(7, "hello")
    document: pycrdt.Doc[Any] = pycrdt.Doc(client_id=8)
    document.apply_update(first)
    del document.get("t", type=pycrdt.Text)[1:3]
    deletion = document.get_update(pycrdt.get_state(first))
    assert extent_of(deletion).missing({7: 2}) == (7, 3)
    assert extent_of(deletion).missing({7: 3}) is None
    # By itself it brings no struct that could fit.
    assert fitting_part(deletion, NOTHING) == NO_UPDATE


def test_behind_a_gap_nothing_fits_until_it_is_filled() -> None:
    updates = typed(7, "one", "two", "three")
    with_gap = pycrdt.merge_updates(updates[0], updates[2])
    assert extent_of(with_gap).missing(NOTHING) == (7, 6)
    assert extent_of(with_gap).missing({7: 6}) is None
    part = fitting_part(with_gap, NOTHING)
    assert text_of(part) == "one"
    assert extent_of(part).missing(NOTHING) is None


def test_a_part_fits_by_what_fits_of_another_client() -> None:
    (first,) = typed(7, "hello")
    document: pycrdt.Doc[Any] = pycrdt.Doc(client_id=3)
    document.apply_update(first)
    document.get("t", type=pycrdt.Text).insert(5, "!")
    late = typed(9, "a", "b")[1]
    # Both orders of clients: one of them comes before what it waits for.
    whole = pycrdt.merge_updates(document.get_update(), late)
    assert extent_of(whole).missing(NOTHING) == (9, 1)
    assert text_of(fitting_part(whole, NOTHING)) == "hello!"


def test_no_part_fits_where_the_first_struct_does_not() -> None:
    assert fitting_part(typed(7, "one", "two")[1], NOTHING) == NO_UPDATE


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x01\x07\x00\x1f", b"\x00\x00\x00"])
def test_what_is_no_update_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        extent_of(data)
