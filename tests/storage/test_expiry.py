"""Expiry by age: only from the front, only messages of queues, never more than asked for."""

import pytest

from syncline.errors import QuotaExceededError
from syncline.storage.base import EntryKind
from syncline.values.ids import StreamId
from tests.storage.under_test import StoreUnderTest


def append_at(under_test: StoreUnderTest, queue: StreamId, *times_ms: int) -> None:
    for time_ms in times_ms:
        under_test.store.append(queue, b"%d" % time_ms, time_ms)
    under_test.commit()


def test_older_entries_go_and_younger_stay(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    append_at(under_test, queue, 10, 20, 30, 40)

    assert under_test.store.expire_before(30, 100) == 2
    assert under_test.payloads(queue) == [b"30", b"40"], "as old as the limit is not older"
    state = under_test.store.state(queue)
    assert (state.first, state.next) == (3, 5)
    under_test.commit()
    under_test.reopen()
    assert under_test.store.state(queue) == state
    assert under_test.store.expire_before(30, 100) == 0


def test_expiring_is_bounded_by_the_count_asked_for(under_test: StoreUnderTest) -> None:
    queues = [under_test.create_queue(number) for number in range(3)]
    for queue in queues:
        append_at(under_test, queue, *range(10, 14))

    def left() -> int:
        return sum(under_test.store.state(queue).unread_count for queue in queues)

    assert under_test.store.expire_before(100, 5) == 5
    assert left() == 7
    assert under_test.store.expire_before(100, 5) == 5
    assert left() == 2
    assert under_test.store.expire_before(100, 5) == 2
    assert left() == 0
    assert under_test.store.expire_before(100, 5) == 0


def test_expiring_reaches_every_queue(under_test: StoreUnderTest) -> None:
    queues = [under_test.create_queue(number) for number in range(20)]
    for number, queue in enumerate(queues):
        append_at(under_test, queue, number, 100 + number)

    assert under_test.store.expire_before(100, 1_000) == 20
    under_test.commit()
    assert [under_test.payloads(queue) for queue in queues] == [
        [b"%d" % (100 + number)] for number in range(20)
    ]


def test_a_young_entry_keeps_older_ones_behind_it(under_test: StoreUnderTest) -> None:
    # A clock that went back; entries go in order or not at all.
    queue = under_test.create_queue()
    append_at(under_test, queue, 10, 50, 20, 60)
    assert under_test.store.expire_before(40, 100) == 1
    assert under_test.payloads(queue) == [b"50", b"20", b"60"]


def test_a_quota_marker_does_not_expire(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=2)
    append_at(under_test, queue, 10, 20)
    with pytest.raises(QuotaExceededError):
        under_test.store.append(queue, b"refused", 30)
    under_test.commit()

    assert under_test.store.expire_before(1_000, 100) == 2
    [marker] = under_test.entries(queue)
    assert marker.kind is EntryKind.QUOTA_MARKER
    assert under_test.store.expire_before(1_000, 100) == 0
    assert under_test.store.state(queue).is_blocked, "its reader has not seen the marker"
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.reopen()
    assert under_test.store.state(queue).is_blocked
    under_test.store.truncate_before(queue, 4)
    assert under_test.append(queue, b"taken") == [4]


def test_the_updates_of_a_document_do_not_expire(under_test: StoreUnderTest) -> None:
    # They are let go of by whoever has taken a snapshot that covers them.
    document = under_test.create_document()
    append_at(under_test, document, 10, 20)
    assert under_test.store.expire_before(1_000, 100) == 0
    assert under_test.payloads(document) == [b"10", b"20"]


def test_an_idle_empty_queue_is_left_alone_by_expiry(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=3)
    append_at(under_test, queue, 10, 20)
    under_test.store.truncate_before(queue, 3)
    under_test.commit()

    assert under_test.store.expire_before(1_000, 100) == 0
    assert under_test.store.take_batch() is None
    under_test.reopen()
    assert under_test.store.expire_before(1_000, 100) == 0
    assert under_test.payloads(queue) == []
    assert under_test.append(queue, b"next") == [3]


def test_a_queue_that_expired_whole_goes_on(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=2)
    append_at(under_test, queue, 10, 20)
    assert under_test.store.expire_before(1_000, 100) == 2
    under_test.commit()
    under_test.reopen()
    assert under_test.append(queue, b"3", b"4") == [3, 4]
    under_test.commit()
    assert under_test.payloads(queue) == [b"3", b"4"]


def test_entries_expire_wherever_they_are_kept(under_test: StoreUnderTest) -> None:
    queue, other = under_test.create_queue(1), under_test.create_queue(2)
    for time_ms in range(20):
        append_at(under_test, queue, time_ms)
        under_test.store.append(other, b"x" * 9_000, 1_000)
        under_test.commit()
    assert under_test.store.expire_before(15, 1_000) == 15
    under_test.commit()
    under_test.reopen()
    assert under_test.payloads(queue) == [b"15", b"16", b"17", b"18", b"19"]
    assert len(under_test.entries(other)) == 20
