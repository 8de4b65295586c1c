"""Snapshots of documents: replaced as a whole, never going back."""

import pytest

from syncline.storage.base import Snapshot
from tests.storage.under_test import StoreUnderTest


def test_a_snapshot_comes_back_whole(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b", b"c")
    payload = bytes(range(256)) * 100
    under_test.store.put_snapshot(document, 2, payload, under_test.now_ms + 9)
    under_test.commit()

    expected = Snapshot(2, under_test.now_ms + 9, payload)
    assert under_test.store.snapshot(document) == expected
    under_test.reopen()
    assert under_test.store.snapshot(document) == expected
    assert under_test.payloads(document) == [b"a", b"b", b"c"], "a snapshot truncates nothing"


def test_a_staged_snapshot_is_not_seen_before_it_is_durable(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b")
    under_test.store.put_snapshot(document, 1, b"old", 1)
    assert under_test.store.snapshot(document) is None
    under_test.commit()
    under_test.store.put_snapshot(document, 2, b"new", 2)

    assert under_test.store.snapshot(document) == Snapshot(1, 1, b"old")
    under_test.commit()
    assert under_test.store.snapshot(document) == Snapshot(2, 2, b"new")


def test_a_snapshot_staged_while_a_batch_is_written_waits_for_the_next(
    under_test: StoreUnderTest,
) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b")
    under_test.store.put_snapshot(document, 1, b"old", 1)
    batch = under_test.store.take_batch()
    assert batch is not None
    under_test.store.put_snapshot(document, 2, b"new", 2)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)

    assert under_test.store.snapshot(document) == Snapshot(1, 1, b"old")
    under_test.commit()
    assert under_test.store.snapshot(document) == Snapshot(2, 2, b"new")


def test_the_last_of_several_snapshots_in_a_batch_counts(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b")
    for up_to_seq in (0, 1, 1, 2):
        under_test.store.put_snapshot(document, up_to_seq, b"%d" % up_to_seq, up_to_seq)
    under_test.commit()

    assert under_test.store.snapshot(document) == Snapshot(2, 2, b"2")
    under_test.reopen()
    assert under_test.store.snapshot(document) == Snapshot(2, 2, b"2")


def test_a_snapshot_of_the_same_position_replaces_the_last(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a")
    under_test.store.put_snapshot(document, 1, b"old", 1)
    under_test.commit()
    under_test.store.put_snapshot(document, 1, b"", 2)
    under_test.commit()
    under_test.reopen()

    assert under_test.store.snapshot(document) == Snapshot(1, 2, b"")


def test_a_snapshot_may_stand_before_any_update(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.store.put_snapshot(document, 0, b"template", 1)
    under_test.commit()
    under_test.reopen()

    assert under_test.store.snapshot(document) == Snapshot(0, 1, b"template")
    assert under_test.append(document, b"a") == [1]


def test_a_snapshot_never_covers_less_than_the_last(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b", b"c")
    under_test.store.put_snapshot(document, 2, b"two", 1)
    with pytest.raises(ValueError, match="1"):
        under_test.store.put_snapshot(document, 1, b"one", 1)
    under_test.reopen()
    with pytest.raises(ValueError, match="1"):
        under_test.store.put_snapshot(document, 1, b"one", 1)

    assert under_test.store.snapshot(document) == Snapshot(2, 1, b"two")


def test_a_snapshot_never_covers_what_is_to_come(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a")
    for to_come in (2, 3, 1_000):
        with pytest.raises(ValueError, match=str(to_come)):
            under_test.store.put_snapshot(document, to_come, b"x", 1)
    with pytest.raises(ValueError, match="-1"):
        under_test.store.put_snapshot(document, -1, b"x", 1)
    under_test.commit()
    assert under_test.store.snapshot(document) is None


def test_a_snapshot_outlives_the_entries_it_covers(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    for number in range(1, 41):
        under_test.append(document, b"%02d" % number * 2_000)
        if number % 10 == 0:
            under_test.store.put_snapshot(document, number, b"state %d" % number * 500, number)
            under_test.store.truncate_before(document, number)
        under_test.commit()

    expected = Snapshot(40, 40, b"state 40" * 500)
    for _ in range(2):
        assert under_test.store.snapshot(document) == expected
        assert under_test.payloads(document) == [b"40" * 2_000]
        under_test.reopen()


def test_entries_need_no_snapshot_to_be_let_go_of(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, b"a", b"b")
    under_test.store.truncate_before(document, 3)
    under_test.commit()
    under_test.reopen()
    assert under_test.store.snapshot(document) is None
    assert under_test.payloads(document) == []


def test_snapshots_of_two_documents_are_two(under_test: StoreUnderTest) -> None:
    one, other = under_test.create_document(1), under_test.create_document(2)
    under_test.store.put_snapshot(one, 0, b"one", 1)
    under_test.store.put_snapshot(other, 0, b"other", 2)
    under_test.commit()
    under_test.store.delete(one)
    under_test.commit()
    under_test.reopen()
    assert under_test.store.snapshot(other) == Snapshot(0, 2, b"other")
