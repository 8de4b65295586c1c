"""Cursors: absolute positions of named readers, kept until dropped."""

import pytest

from tests.storage.under_test import StoreUnderTest


def test_a_cursor_is_where_it_was_last_moved(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, *[b"x"] * 9)
    under_test.store.move_cursor(document, b"reader", 2)
    under_test.store.move_cursor(document, b"reader", 5)
    under_test.store.move_cursor(document, b"other", 1)
    assert dict(under_test.store.cursors(document)) == {b"reader": 5, b"other": 1}
    under_test.commit()
    under_test.store.move_cursor(document, b"reader", 7)
    under_test.commit()

    for _ in range(2):
        assert dict(under_test.store.cursors(document)) == {b"reader": 7, b"other": 1}
        under_test.reopen()


def test_a_cursor_may_stand_anywhere_from_nothing_to_the_next_entry(
    under_test: StoreUnderTest,
) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b")
    expected = {b"at %d" % seq: seq for seq in range(4)}
    for name, seq in expected.items():
        under_test.store.move_cursor(document, name, seq)
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(document)) == expected


def test_a_cursor_goes_back_only_by_dropping_it_first(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, *[b"x"] * 9)
    under_test.store.move_cursor(document, b"reader", 5)
    with pytest.raises(ValueError, match="4"):
        under_test.store.move_cursor(document, b"reader", 4)
    under_test.store.move_cursor(document, b"reader", 5)
    under_test.reopen()
    with pytest.raises(ValueError, match="4"):
        under_test.store.move_cursor(document, b"reader", 4)
    assert dict(under_test.store.cursors(document)) == {b"reader": 5}

    under_test.store.drop_cursor(document, b"reader")
    under_test.store.move_cursor(document, b"reader", 4)
    under_test.commit()
    for _ in range(2):
        assert dict(under_test.store.cursors(document)) == {b"reader": 4}
        under_test.reopen()


def test_a_dropped_cursor_is_gone(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a")
    under_test.store.move_cursor(document, b"stays", 1)
    under_test.store.move_cursor(document, b"goes", 1)
    under_test.commit()
    under_test.store.drop_cursor(document, b"goes")
    assert dict(under_test.store.cursors(document)) == {b"stays": 1}
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(document)) == {b"stays": 1}


def test_dropping_a_cursor_that_is_not_there_changes_nothing(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.commit()
    under_test.store.drop_cursor(document, b"never was")
    under_test.commit()
    assert dict(under_test.store.cursors(document)) == {}


def test_cursor_names_are_any_bytes(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a")
    names = [b"\n", b" ", b"=", b"\x00\xff", bytes(range(64)), bytes(range(192, 256))]
    for name in names:
        under_test.store.move_cursor(document, name, 1)
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(document)) == dict.fromkeys(names, 1)


def test_cursors_of_two_streams_are_two(under_test: StoreUnderTest) -> None:
    one, other = under_test.create_document(1), under_test.create_document(2)
    under_test.append(one, b"a", b"b")
    under_test.append(other, b"c")
    under_test.store.move_cursor(one, b"reader", 2)
    under_test.store.move_cursor(other, b"reader", 1)
    under_test.store.drop_cursor(one, b"reader")
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(one)) == {}
    assert dict(under_test.store.cursors(other)) == {b"reader": 1}


def test_a_cursor_does_not_hold_entries_back(under_test: StoreUnderTest) -> None:
    # Whoever truncates asks the cursors first; the store does as it is told.
    document = under_test.create_document()
    under_test.append(document, b"a", b"b", b"c")
    under_test.store.move_cursor(document, b"reader", 1)
    under_test.store.truncate_before(document, 3)
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(document)) == {b"reader": 1}
    assert under_test.payloads(document) == [b"c"]


def test_cursors_outlive_the_files_they_were_written_to(under_test: StoreUnderTest) -> None:
    document, other = under_test.create_document(1), under_test.create_document(2)
    under_test.append(document, b"a")
    under_test.store.move_cursor(document, b"reader", 1)
    under_test.commit()
    for number in range(1, 31):
        under_test.append(other, b"x" * 9_000)
        under_test.store.truncate_before(other, number)
        under_test.commit()
    for _ in range(2):
        assert dict(under_test.store.cursors(document)) == {b"reader": 1}
        assert under_test.payloads(document) == [b"a"]
        under_test.reopen()
