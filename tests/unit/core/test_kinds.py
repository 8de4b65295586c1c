"""How the kinds of documents fold their updates."""

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycrdt import Array, Doc, Text, get_state, merge_updates

from syncline.core import merge_patch
from syncline.core.kinds import Folding, folding
from syncline.core.kinds.yjs import YjsFolding
from syncline.errors import CorruptionError, InvalidMutationError, LimitExceededError
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire.lib0 import var_uint

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
patches = st.lists(st.dictionaries(st.sampled_from("abc"), json_values), max_size=6)


def apply(state: Folding, *bodies: bytes) -> None:
    for body in bodies:
        state.apply(state.prepare(body))


@given(patches, st.integers(0, 6))
def test_json_folds_like_merge_patch_with_a_snapshot_anywhere(
    bodies: list[dict[str, Any]], snapshot_at: int
) -> None:
    state = folding(Kind.JSON)
    expected: Any = {}
    for number, body in enumerate(bodies):
        if number == snapshot_at:
            state = folding(Kind.JSON, state.state())
        apply(state, msgspec.json.encode(body))
        expected = merge_patch.apply(expected, body)
    assert msgspec.json.decode(state.state()) == expected
    assert state.byte_count == len(state.state())


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"7", b'"x"', b"null", b"\xff", b'{"a":NaN}'])
def test_json_takes_nothing_but_objects(body: bytes) -> None:
    with pytest.raises(InvalidMutationError):
        folding(Kind.JSON).prepare(body)


def test_json_refuses_what_is_too_deep() -> None:
    deep = merge_patch.DEPTH_MAX + 1
    with pytest.raises(InvalidMutationError):
        folding(Kind.JSON).prepare(b'{"a":' * deep + b"1" + b"}" * deep)


def test_the_size_of_a_json_document_is_never_underestimated() -> None:
    state = folding(Kind.JSON)
    apply(state, b'{"a":"xxxxxxxx"}', b'{"a":"yyyyyyyy","b":[1,2,3]}')
    estimate = state.byte_count
    assert estimate >= len(state.state()) == state.byte_count


def yjs_updates(*steps: str) -> tuple[list[bytes], Doc[Any]]:
    """One update for each step: text to append, or `-` to delete the first character."""
    doc: Doc[Any] = Doc()
    updates: list[bytes] = []
    text = doc.get("t", type=Text)
    subscription = doc.observe(lambda event: updates.append(event.update))
    for step in steps:
        if step == "-":
            del text[0]
        else:
            text += step
    doc.unobserve(subscription)
    return updates, doc


def shown_text(state: Folding) -> str:
    doc: Doc[Any] = Doc()
    doc.apply_update(state.shown())
    return str(doc.get("t", type=Text))


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_yjs_converges_in_any_order_with_snapshots_anywhere(
    order: list[int], snapshots: set[int]
) -> None:
    updates, doc = yjs_updates("a", "b", "c", "-", "d", "-", "e", "f")
    state = folding(Kind.YJS)
    for number in order:
        apply(state, updates[number])
        if number in snapshots:
            # An update that came before what it builds on must not be lost here.
            state = folding(Kind.YJS, state.state())
    assert shown_text(state) == str(doc.get("t", type=Text)) == "cdef"


def test_yjs_takes_two_clients_at_their_word_though_they_contradict_each_other() -> None:
    # The second tells of clocks that the first, which came too early, has something else for. A
    # document of the library that holds back the first ends the process with the second.
    state = folding(Kind.YJS)
    for update in (
        "010180808080080b27010172000602808080800801030102010032",
        "02028080808008008403000661f09f98806281808080800802280403000001000128010174"
        "00037c374b53aa787d1b41030201014d010101",
    ):
        apply(state, bytes.fromhex(update))
        state.shown()
    updates, _ = yjs_updates("still ", "here")
    apply(state, *updates)
    assert shown_text(folding(Kind.YJS, state.state())) == "still here"


def test_yjs_takes_in_what_fits_of_an_update_with_a_gap() -> None:
    updates, doc = yjs_updates("one", "two", "three")
    state = YjsFolding()
    apply(state, merge_updates(updates[0], updates[2]))
    # It has the first, so a client need not send that again.
    assert state.state_vector() == get_state(updates[0])
    state = YjsFolding(state.state())
    apply(state, updates[1])
    assert shown_text(state) == "onetwothree"
    assert state.state_vector() == doc.get_state()


def in_another(client: int, count: int) -> bytes:
    """An update of so many shared types, each in the one before."""
    first = b"\x27\x01\x01t\x01" + bytes([96 + client]) + b"\x01"
    parents = [b"\x00" + var_uint(client) + var_uint(at) for at in range(count - 1)]
    structs = [first, *(b"\x27" + parent + b"\x01k\x01" for parent in parents)]
    head = b"\x01" + var_uint(count) + var_uint(client) + b"\x00"
    return head + b"".join(structs) + b"\x00"


def test_yjs_admits_no_more_types_in_others_than_can_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "document_type_count_max", 250)
    state = YjsFolding()
    for client in (1, 2):
        state.admit(in_another(client, 101))
        state.apply(in_another(client, 101))
    state = YjsFolding(state.state())
    with pytest.raises(LimitExceededError):
        state.admit(in_another(3, 101))
    # What looks like types and is text does not count, nor does what lies in none.
    updates, _ = yjs_updates("ggggg" * 100, "g")
    apply(state, *updates)
    state.admit(in_another(3, 49))
    state.apply(in_another(3, 49))
    with pytest.raises(LimitExceededError):
        state.admit(in_another(4, 6))
    state.admit(updates[0])
    # There is room again for what takes the place of what was deleted.
    state.apply(bytes.fromhex("00 01 01 01 00 01"))
    state.state()
    state.admit(in_another(4, 6))


def test_yjs_gives_who_knows_something_only_the_rest() -> None:
    updates, doc = yjs_updates("hello " * 100, "world")
    state = YjsFolding()
    apply(state, *updates)
    half: Doc[Any] = Doc()
    half.apply_update(updates[0])
    (missing,) = state.updates_since(half.get_state())
    assert len(missing) < 50
    half.apply_update(missing)
    assert half.get_update() == doc.get_update()


def test_yjs_at_rest_answers_as_before() -> None:
    updates, doc = yjs_updates("a", "b")
    state = YjsFolding()
    apply(state, *updates)
    vector = state.state_vector()
    state.rest()
    assert state.state_vector() == vector == doc.get_state()
    assert state.updates_since(b"\x00") == [doc.get_update()]
    assert not state.has_news(doc.get_update())


def test_yjs_makes_no_document_for_who_brings_nothing_and_asks_for_all() -> None:
    updates, doc = yjs_updates("a")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("syncline.core.kinds.yjs.pycrdt.Doc", None)
        state = YjsFolding()
        assert state.state_vector() == b"\x00"
        assert state.updates_since(b"\x00") == [b"\x00\x00"]
        assert not state.has_news(b"\x00\x00")
        apply(state, *updates)
        state.rest()
    assert state.state_vector() == doc.get_state()


def test_yjs_knows_what_is_news() -> None:
    updates, doc = yjs_updates("a", "b", "-")
    state = YjsFolding()
    apply(state, *updates[:2])
    assert not state.has_news(updates[0])
    assert state.has_news(updates[2]), "a deletion is news"
    apply(state, updates[2])
    assert not state.has_news(doc.get_update(doc.get_state()))


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 9, b"\x01\x01\x01"])
def test_yjs_refuses_what_is_no_update(body: bytes) -> None:
    with pytest.raises(InvalidMutationError):
        folding(Kind.YJS).prepare(body)


def test_an_update_that_cannot_be_folded_costs_the_document_nothing_else() -> None:
    state = YjsFolding()
    # The second one hangs a child on a character; the library refuses it when it is applied.
    apply(state, bytes.fromhex("0101020004010174016100"))
    apply(state, bytes.fromhex("0103020104010174016128010174016b017e29000201016b0167760000"))
    updates, _ = yjs_updates("later")
    apply(state, *updates)
    assert "later" in shown_text(state)
    assert state.unfoldable_count == 1


# An item in an item of client 77 that is not there yet; then that item, which can hold no other.
IN_NOTHING_YET = bytes.fromhex("0101090004004d00017800")
HOLDS_NOTHING = bytes.fromhex("01014d0005010161013100")


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("is_folded_each_time", [True, False])
def test_an_early_update_that_never_fits_costs_the_document_nothing_else(
    order: tuple[int, ...], is_folded_each_time: bool
) -> None:
    (text,), _ = yjs_updates("precious")
    updates = [text, IN_NOTHING_YET, HOLDS_NOTHING]
    state = YjsFolding()
    for number in order:
        apply(state, updates[number])
        if is_folded_each_time:
            state.rest()
            state.state_vector()
    assert shown_text(state) == "precious"
    again = YjsFolding(state.state())
    again.check()
    assert shown_text(again) == "precious"
    assert state.unfoldable_count == 1


def test_an_early_update_that_is_stored_beside_what_it_does_not_fit_is_left_out() -> None:
    (text,), _ = yjs_updates("precious")
    merged = merge_updates(text, HOLDS_NOTHING)
    state = YjsFolding(msgspec.msgpack.encode([merged, IN_NOTHING_YET]))
    assert shown_text(state) == "precious"
    state.check()
    assert shown_text(state) == "precious"
    assert len(state.updates_since(b"\x00")) == 1
    assert state.unfoldable_count == 1


# A content of the oldest make, of which the library writes what it cannot read.
WRITTEN_BADLY = bytes.fromhex("01014d0002010161010131013100")


def test_a_state_that_could_not_be_read_again_keeps_the_updates_as_they_came() -> None:
    (text, more), _ = yjs_updates("precious", " text")
    state = YjsFolding()
    apply(state, text, WRITTEN_BADLY)
    assert shown_text(YjsFolding(state.state())) == "precious"
    assert not state.is_folded
    apply(state, more)
    state.rest()
    again = YjsFolding(state.state())
    again.check()
    assert shown_text(state) == shown_text(again) == "precious text"
    assert text in state.updates_since(b"\x00")


def test_a_state_that_can_be_read_again_is_folded() -> None:
    updates, doc = yjs_updates("a", "b", "-")
    state = YjsFolding()
    apply(state, *updates)
    assert msgspec.msgpack.decode(state.state()) == [doc.get_update()]
    assert state.is_folded


def test_a_state_that_cannot_be_read_is_damage() -> None:
    state = YjsFolding(msgspec.msgpack.encode([b"\x01\x01\x01"]))
    with pytest.raises(CorruptionError, match="its state cannot be folded"):
        state.check()


def test_yjs_refuses_what_is_no_state_vector() -> None:
    with pytest.raises(InvalidMutationError):
        YjsFolding().updates_since(b"\xff\xff\xff")


def test_yjs_folds_other_types_too() -> None:
    doc: Doc[Any] = Doc()
    doc.get("list", type=Array).append(1)
    state = folding(Kind.YJS)
    apply(state, doc.get_update())
    found: Doc[Any] = Doc()
    found.apply_update(folding(Kind.YJS, state.state()).shown())
    assert found.get("list", type=Array).to_py() == [1]


@given(st.lists(st.binary(max_size=300)))
def test_bytes_keep_every_update_in_order(bodies: list[bytes]) -> None:
    state = folding(Kind.BYTES)
    apply(state, *bodies)
    assert state.byte_count >= len(state.state())
    again = folding(Kind.BYTES, state.state())
    assert msgspec.msgpack.decode(again.shown()) == bodies


class PanicException(BaseException):
    pass


def test_a_panic_of_the_library_is_an_error_and_an_interruption_stays_one() -> None:
    def fail_with(mistake: BaseException) -> None:
        def fail(body: bytes) -> bytes:
            raise mistake

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("syncline.core.kinds.yjs.pycrdt.get_state", fail)
            YjsFolding().prepare(yjs_updates("a")[0][0])

    with pytest.raises(InvalidMutationError):
        fail_with(PanicException("attempt to divide by zero"))
    with pytest.raises(KeyboardInterrupt):
        fail_with(KeyboardInterrupt())
