"""Awareness: entries to bytes and back, and who is present."""

import pycrdt
import pytest
from pycrdt import Doc, Text

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire import awareness
from syncline.wire.awareness import OUTDATED_MS, Awareness, Entry
from syncline.wire.lib0 import var_bytes, var_uint

ALICE, BOB = 1, 2


def here(client: int, clock: int, state: bytes = b"{}") -> Entry:
    return Entry(client, clock, state)


def gone(client: int, clock: int) -> Entry:
    return Entry(client, clock, None)


def test_captured_updates() -> None:
    present = b'\x01\x01\x01\x07{"u":1}'
    assert awareness.decode(present) == [here(1, 1, b'{"u":1}')]
    assert awareness.encode([here(1, 1, b'{"u":1}')]) == present
    left = b"\x01\x01\x01\x04null"
    assert awareness.decode(left) == [gone(1, 1)]
    assert awareness.encode([gone(1, 1)]) == left
    assert awareness.encode([]) == b"\x00"
    assert awareness.decode(b"\x00") == []


def test_pycrdt_reads_and_writes_the_same() -> None:
    theirs = pycrdt.Awareness(Doc[Text](client_id=300))
    theirs.set_local_state({"name": "Zoë"})
    (entry,) = awareness.decode(theirs.encode_awareness_update([300]))
    assert entry == here(300, 1, b'{"name":"Zo\\u00eb"}')
    theirs.apply_awareness_update(
        awareness.encode([here(7, 4, '{"name":"Zoë"}'.encode()), here(8, 2)]), "test"
    )
    assert theirs.states[7] == {"name": "Zoë"}
    theirs.apply_awareness_update(awareness.encode([gone(7, 4)]), "test")
    assert set(theirs.states) == {300, 8}


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (b"", "ends in the middle"),
        (b"\x01\x01\x01", "announces"),
        (b"\x01\x01\x01\x05null", "announces"),
        (b"\x01\x01\x01\x04null\x00", "1 bytes follow"),
        (b"\x01\x01\x01\x01{", "no JSON"),
        (b"\x01\x01\x01\x00", "no JSON"),
        (b"\x01\x01\x01\x03NaN", "no JSON"),
        (b'\x01\x01\x01\x03"\xff"', "no JSON"),
        (b"\x01\x01\x01" + var_bytes(b'"\\ud800"'), "no JSON"),
        (b"\x01\x01\x01" + var_bytes(b"[" * 8_000), "no JSON"),
        (b"\x02\x01\x01\x02{}\x01\x02\x02{}", "each client once"),
        (var_uint(1 << 40), "announces"),
    ],
)
def test_no_update(update: bytes, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        awareness.decode(update)


def test_a_null_with_spaces_is_gone() -> None:
    assert awareness.decode(b"\x01\x01\x01\x06 null ") == [gone(1, 1)]


def test_an_update_has_a_largest_size() -> None:
    count = limits.awareness_client_count_max
    entries = [here(client, 1, b"1") for client in range(count)]
    assert awareness.decode(awareness.encode(entries)) == entries
    with pytest.raises(LimitExceededError, match="present"):
        awareness.decode(awareness.encode([*entries, here(count, 1, b"1")]))
    state = b'"%b"' % bytes(b"x" * (limits.awareness_state_bytes_max - 2))
    assert awareness.decode(awareness.encode([here(1, 1, state)])) == [here(1, 1, state)]
    with pytest.raises(LimitExceededError, match="size of a state"):
        awareness.decode(awareness.encode([here(1, 1, b" " + state)]))


def test_a_newer_clock_is_taken_and_an_older_is_not() -> None:
    present = Awareness()
    assert present.apply(ALICE, [here(1, 5, b"1")], 0) == [here(1, 5, b"1")]
    assert present.apply(ALICE, [here(1, 5, b"2")], 0) == []
    assert present.apply(BOB, [here(1, 4, b"2"), here(2, 1)], 0) == [here(2, 1)]
    assert present.apply(ALICE, [here(1, 6, b"3")], 0) == [here(1, 6, b"3")]
    assert present.everybody() == [here(2, 1), here(1, 6, b"3")]


def test_the_same_clock_may_take_away() -> None:
    present = Awareness()
    present.apply(ALICE, [here(1, 5)], 0)
    assert present.apply(BOB, [gone(1, 4)], 0) == []
    assert present.apply(BOB, [gone(1, 5)], 0) == [gone(1, 5)]
    assert present.apply(BOB, [gone(1, 5)], 0) == []
    assert present.everybody() == []


def test_who_left_does_not_come_back_with_an_old_clock() -> None:
    present = Awareness()
    present.apply(ALICE, [here(1, 5)], 0)
    present.apply(ALICE, [gone(1, 6)], 0)
    assert present.apply(ALICE, [here(1, 6)], 0) == []
    assert present.apply(ALICE, [here(1, 7)], 0) == [here(1, 7)]


def test_who_left_is_remembered_until_it_is_back() -> None:
    present = Awareness()
    present.apply(ALICE, [here(1, 5), here(2, 1)], 0)
    present.disconnect(ALICE)
    assert present.departed() == [gone(1, 5), gone(2, 1)]
    present.apply(ALICE, [here(1, 6)], 0)
    assert present.departed() == [gone(2, 1)]


def test_someone_unknown_may_leave() -> None:
    present = Awareness()
    assert present.apply(ALICE, [gone(1, 6)], 0) == [gone(1, 6)]
    assert present.apply(ALICE, [here(1, 6)], 0) == []


def test_clock_zero_says_nothing() -> None:
    assert Awareness().apply(ALICE, [here(1, 0)], 0) == []


def test_a_connection_takes_with_it_whom_it_brought() -> None:
    present = Awareness()
    present.apply(ALICE, [here(1, 5), here(3, 1)], 0)
    present.apply(BOB, [here(2, 1), here(3, 2)], 0)
    assert present.disconnect(ALICE) == [gone(1, 5)]
    assert present.everybody() == [here(2, 1), here(3, 2)]
    assert present.disconnect(ALICE) == []
    assert present.apply(ALICE, [here(1, 5)], 0) == []
    assert present.disconnect(BOB) == [gone(2, 1), gone(3, 2)]


def test_who_does_not_renew_is_dropped() -> None:
    present = Awareness()
    present.apply(ALICE, [here(1, 1), here(2, 1)], 1_000)
    present.apply(ALICE, [here(2, 2)], 1_001)
    assert present.drop_outdated(1_000 + OUTDATED_MS - 1) == []
    assert present.drop_outdated(1_000 + OUTDATED_MS) == [gone(1, 1)]
    assert present.everybody() == [here(2, 2)]


def test_presence_is_bounded_in_number() -> None:
    present = Awareness(client_count_max=2)
    present.apply(ALICE, [here(1, 1), here(2, 1)], 0)
    with pytest.raises(LimitExceededError):
        present.apply(BOB, [here(1, 2), here(3, 1)], 0)
    assert present.everybody() == [here(1, 1), here(2, 1)]
    assert present.apply(BOB, [gone(1, 1), here(3, 1)], 0) == [gone(1, 1), here(3, 1)]


def test_presence_is_bounded_in_bytes() -> None:
    present = Awareness(bytes_max=10)
    present.apply(ALICE, [here(1, 1, b"12345"), here(2, 1, b"12345")], 0)
    with pytest.raises(LimitExceededError, match="size of all states"):
        present.apply(ALICE, [here(1, 2, b"123456")], 0)
    present.apply(ALICE, [here(1, 3, b"1")], 0)
    present.disconnect(ALICE)
    present.apply(ALICE, [here(3, 1, b"1234567890")], 0)
    assert present.everybody() == [here(3, 1, b"1234567890")]


def test_the_memory_of_who_left_is_bounded() -> None:
    present = Awareness(client_count_max=2)
    present.apply(ALICE, [gone(1, 5)], 0)
    present.apply(ALICE, [gone(2, 5)], 0)
    present.apply(ALICE, [gone(1, 6)], 0)
    present.apply(ALICE, [gone(3, 5)], 0)
    # 2 left first of those three, and is forgotten.
    assert present.apply(ALICE, [here(1, 6)], 0) == []
    assert present.apply(ALICE, [here(2, 1)], 0) == [here(2, 1)]


def test_who_comes_back_with_an_old_clock_is_told_that_it_left() -> None:
    """It then raises its clock; otherwise the others would not see it until it renews."""
    present = Awareness()
    present.apply(ALICE, [here(1, 5), here(2, 3)], 0)
    present.disconnect(ALICE)
    back = [here(1, 5), here(2, 4), here(3, 1), gone(1, 5), here(4, 0)]
    assert present.hidden(back) == [gone(1, 5)]
    assert present.hidden([here(1, 4)]) == [gone(1, 5)]
    assert present.apply(BOB, [here(1, 6)], 0) == [here(1, 6)]
    assert present.hidden([here(1, 5)]) == []
