"""The quota of a queue: the marker, the block, and its end."""

import pytest

from syncline.errors import QuotaExceededError
from syncline.storage.base import Entry, EntryKind, StreamState
from syncline.values.ids import StreamId
from tests.storage.under_test import StoreUnderTest


def fill(under_test: StoreUnderTest, quota: int = 3) -> StreamId:
    """A queue with as many unread messages as it may hold, and one message refused."""
    queue = under_test.create_queue(1, quota)
    under_test.append(queue, *(b"%d" % number for number in range(1, quota + 1)))
    under_test.commit()
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.commit()
    return queue


def unread(under_test: StoreUnderTest, queue: StreamId) -> tuple[int, bool]:
    state = under_test.store.state(queue)
    return state.unread_count, state.is_blocked


def test_a_queue_takes_as_many_messages_as_its_quota(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=3)
    assert under_test.append(queue, b"1", b"2", b"3") == [1, 2, 3]
    assert unread(under_test, queue) == (3, False)


def test_the_message_over_the_quota_leaves_a_marker_in_its_place(
    under_test: StoreUnderTest,
) -> None:
    queue = under_test.create_queue(1, quota=3)
    under_test.append(queue, b"1", b"2", b"3")
    with pytest.raises(QuotaExceededError) as refused:
        under_test.store.append(queue, b"refused", under_test.now_ms + 5)

    assert (refused.value.stream, refused.value.quota) == (str(queue), 3)
    assert unread(under_test, queue) == (4, True)
    under_test.commit()
    assert under_test.entries(queue)[-1] == Entry(
        4, under_test.now_ms + 5, b"", EntryKind.QUOTA_MARKER
    )
    assert under_test.payloads(queue) == [b"1", b"2", b"3", b""]


def test_a_blocked_queue_refuses_without_staging_anything(under_test: StoreUnderTest) -> None:
    queue = fill(under_test)
    for _ in range(3):
        with pytest.raises(QuotaExceededError):
            under_test.append(queue, b"refused again")

    assert unread(under_test, queue) == (4, True)
    assert under_test.store.take_batch() is None
    assert under_test.store.waiting_bytes == 0


def test_a_blocked_queue_stays_blocked_until_it_is_empty(under_test: StoreUnderTest) -> None:
    queue = fill(under_test)
    for first in (2, 3, 4):
        under_test.store.truncate_before(queue, first)
        assert unread(under_test, queue) == (5 - first, True)
        with pytest.raises(QuotaExceededError):
            under_test.append(queue, b"refused")
        under_test.commit()
    [marker] = under_test.entries(queue)
    assert marker.kind is EntryKind.QUOTA_MARKER

    under_test.store.truncate_before(queue, 5)
    assert unread(under_test, queue) == (0, False)
    assert under_test.append(queue, b"taken") == [5]
    under_test.commit()
    assert under_test.payloads(queue) == [b"taken"]


def test_the_quota_counts_unread_messages_only(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=3)
    for number in range(20):
        seq = under_test.store.append(queue, b"%d" % number, under_test.now_ms)
        under_test.commit()
        if number >= 2:
            under_test.store.truncate_before(queue, seq - 1)
    assert unread(under_test, queue) == (2, False)
    assert under_test.payloads(queue) == [b"18", b"19"]


def test_a_queue_that_was_blocked_and_emptied_can_be_filled_again(
    under_test: StoreUnderTest,
) -> None:
    queue = fill(under_test)
    under_test.store.truncate_before(queue, 5)
    under_test.append(queue, b"5", b"6", b"7")
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.commit()

    assert under_test.store.state(queue).first == 5
    kinds = [entry.kind for entry in under_test.entries(queue)]
    assert kinds == [EntryKind.MESSAGE] * 3 + [EntryKind.QUOTA_MARKER]
    assert unread(under_test, queue) == (4, True)


@pytest.mark.parametrize("is_crash", [False, True], ids=["closed", "killed"])
def test_a_block_survives_a_restart(under_test: StoreUnderTest, is_crash: bool) -> None:
    queue = fill(under_test)
    before = under_test.store.state(queue)
    if is_crash:
        under_test.crash()
    else:
        under_test.reopen()

    assert under_test.store.state(queue) == before
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.store.truncate_before(queue, 4)
    under_test.reopen()
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused: the marker is not read yet")
    under_test.store.truncate_before(queue, 5)
    under_test.reopen()
    assert under_test.append(queue, b"taken") == [5]


def test_a_full_queue_that_is_not_blocked_is_found_full_after_a_restart(
    under_test: StoreUnderTest,
) -> None:
    queue = under_test.create_queue(1, quota=2)
    under_test.append(queue, b"1", b"2")
    under_test.reopen()
    assert unread(under_test, queue) == (2, False)
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    assert unread(under_test, queue) == (3, True)


def test_a_marker_that_is_not_durable_yet_can_be_let_go_of(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=1)
    under_test.append(queue, b"1")
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.store.truncate_before(queue, 3)
    assert unread(under_test, queue) == (0, False)
    assert under_test.append(queue, b"3") == [3]
    under_test.commit()
    under_test.reopen()
    assert under_test.payloads(queue) == [b"3"]
    assert unread(under_test, queue) == (1, False)


def test_no_quota_means_no_block(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=0)
    under_test.append(queue, *[b"x"] * 300)
    assert unread(under_test, queue) == (300, False)
    under_test.commit()
    assert len(under_test.entries(queue)) == 300


def test_a_queue_created_anew_is_not_blocked(under_test: StoreUnderTest) -> None:
    queue = fill(under_test)
    under_test.store.delete(queue)
    under_test.create_queue(1, quota=3)
    assert under_test.append(queue, b"taken") == [1]
    under_test.commit()
    expected = StreamState(under_test.store.state(queue).kind, 1, 2, 3, False)
    assert under_test.store.state(queue) == expected
    assert under_test.payloads(queue) == [b"taken"]
