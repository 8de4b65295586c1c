"""Streams and their entries: creating, appending, reading, letting go, deleting."""

from collections.abc import Callable

import pytest

from syncline.errors import LimitExceededError, QueueExistsError, UnknownQueueError
from syncline.storage.base import Entry, EntryKind, Store, StreamKind, StreamState
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.under_test import StoreUnderTest, stream_id

ODD_PAYLOADS = [
    b"",
    b"\n",
    b"two\nlines\r\n",
    b"\x00" * 100,
    bytes(range(256)),
    b"=" * 17,
    b"x" * 20_000,
]


def test_a_new_stream_is_empty_and_starts_at_1(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=5)
    document = under_test.create_document(2)
    under_test.commit()

    assert under_test.store.state(queue) == StreamState(StreamKind.QUEUE, 1, 1, 5, False)
    assert under_test.store.state(document) == StreamState(StreamKind.DOCUMENT, 1, 1, 0, False)
    assert under_test.store.state(queue).unread_count == 0
    assert under_test.payloads(queue) == []
    assert under_test.store.snapshot(document) is None
    assert dict(under_test.store.cursors(document)) == {}


def test_creating_a_stream_twice_is_refused_and_changes_nothing(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=5)
    with pytest.raises(QueueExistsError) as staged:
        under_test.create_queue(1, quota=9)
    under_test.append(queue, b"kept")
    under_test.commit()
    with pytest.raises(QueueExistsError):
        under_test.create_document(1)

    assert staged.value.stream == str(queue)
    assert under_test.store.state(queue) == StreamState(StreamKind.QUEUE, 1, 2, 5, False)
    assert under_test.payloads(queue) == [b"kept"]


UNKNOWN: dict[str, Callable[[Store, StreamId], object]] = {
    "delete": lambda store, stream: store.delete(stream),
    "append": lambda store, stream: store.append(stream, b"x", 1),
    "truncate_before": lambda store, stream: store.truncate_before(stream, 1),
    "put_snapshot": lambda store, stream: store.put_snapshot(stream, 0, b"x", 1),
    "move_cursor": lambda store, stream: store.move_cursor(stream, b"x", 1),
    "drop_cursor": lambda store, stream: store.drop_cursor(stream, b"x"),
    "state": lambda store, stream: store.state(stream),
    "read": lambda store, stream: store.read(stream, 1, 1, 1),
    "snapshot": lambda store, stream: store.snapshot(stream),
    "cursors": lambda store, stream: store.cursors(stream),
}


@pytest.mark.parametrize("method", UNKNOWN)
def test_a_stream_that_does_not_exist_is_unknown_to_every_method(
    under_test: StoreUnderTest, method: str
) -> None:
    known, unknown, deleted = under_test.create_queue(1), stream_id(2), under_test.create_queue(3)
    under_test.append(known, b"kept")
    under_test.commit()
    under_test.store.delete(deleted)

    for stream in (unknown, deleted):
        with pytest.raises(UnknownQueueError) as refused:
            UNKNOWN[method](under_test.store, stream)
        assert refused.value.stream == str(stream)
    under_test.commit()
    assert set(under_test.store.streams()) == {known}
    assert under_test.payloads(known) == [b"kept"]


def test_sequences_are_gap_free_from_1_in_each_stream(under_test: StoreUnderTest) -> None:
    queue, document = under_test.create_queue(1), under_test.create_document(2)

    assert under_test.append(queue, b"a", b"b") == [1, 2]
    assert under_test.append(document, b"c") == [1]
    under_test.commit()
    assert under_test.append(queue, b"d") == [3]
    under_test.reopen()
    assert under_test.append(queue, b"e") == [4]
    assert under_test.append(document, b"f") == [2]
    under_test.commit()

    assert [entry.seq for entry in under_test.entries(queue)] == [1, 2, 3, 4]
    assert under_test.payloads(queue) == [b"a", b"b", b"d", b"e"]
    assert under_test.payloads(document) == [b"c", b"f"]


def test_a_staged_entry_is_in_state_and_not_yet_readable(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a")

    assert under_test.store.state(queue).next == 2
    assert under_test.payloads(queue) == []
    under_test.commit()
    assert under_test.payloads(queue) == [b"a"]


@pytest.mark.parametrize("is_reopened", [False, True], ids=["same run", "next run"])
def test_entries_come_back_whole(under_test: StoreUnderTest, is_reopened: bool) -> None:
    queue, document = under_test.create_queue(1), under_test.create_document(2)
    expected: list[Entry] = []
    for seq, payload in enumerate(ODD_PAYLOADS, start=1):
        under_test.now_ms += 1_000
        under_test.append(queue, payload)
        under_test.append(document, payload)
        expected.append(Entry(seq, under_test.now_ms, payload, EntryKind.MESSAGE))
    under_test.commit()
    if is_reopened:
        under_test.reopen()

    assert under_test.entries(queue) == expected
    assert under_test.entries(document) == expected


def test_reading_starts_at_the_position_asked_for(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, *(b"%d" % number for number in range(1, 11)))
    under_test.commit()
    under_test.store.truncate_before(queue, 4)

    def numbers(from_seq: int) -> list[int]:
        return [int(entry.payload) for entry in under_test.store.read(queue, from_seq, 3, 1000)]

    assert numbers(7) == [7, 8, 9]
    assert numbers(9) == [9, 10]
    assert numbers(11) == []
    assert numbers(1_000_000) == []
    assert numbers(1) == numbers(0) == [4, 5, 6], "below the first there is nothing"


def test_reading_keeps_to_the_count_asked_for(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, *[b"x"] * 6)
    under_test.commit()

    assert [entry.seq for entry in under_test.store.read(queue, 1, 1, 1000)] == [1]
    assert [entry.seq for entry in under_test.store.read(queue, 2, 4, 1000)] == [2, 3, 4, 5]


def test_reading_keeps_to_the_bytes_asked_for_but_gives_at_least_one(
    under_test: StoreUnderTest,
) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, *[b"x" * 100] * 6)
    under_test.commit()

    def count(bytes_max: int) -> int:
        return len(under_test.store.read(queue, 1, 10, bytes_max))

    assert count(1) == count(0) == 1
    assert count(100) == count(199) == 1
    assert count(200) == count(299) == 2
    assert count(600) == 6


def test_a_read_is_bounded_whatever_was_asked_for(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    under_test.append(document, *[b"x"] * (limits.read_count_max + 5))
    under_test.commit()

    found = under_test.store.read(document, 1, 1_000_000, 1 << 40)
    assert [entry.seq for entry in found] == list(range(1, limits.read_count_max + 1))
    assert len(under_test.entries(document)) == limits.read_count_max + 5


def test_reading_twice_gives_the_same(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b")
    under_test.commit()

    assert under_test.entries(queue) == under_test.entries(queue)
    assert under_test.store.state(queue).unread_count == 2


def test_truncating_lets_go_of_what_is_below(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b", b"c")
    under_test.commit()
    under_test.store.truncate_before(queue, 3)

    state = under_test.store.state(queue)
    assert (state.first, state.next, state.unread_count) == (3, 4, 1)
    assert under_test.payloads(queue) == [b"c"], "at once: what is acknowledged is not read again"
    under_test.commit()
    under_test.reopen()
    assert under_test.store.state(queue) == state
    assert under_test.payloads(queue) == [b"c"]


def test_the_first_position_never_goes_back(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b", b"c")
    under_test.commit()
    under_test.store.truncate_before(queue, 3)
    for passed in (3, 2, 1, 0):
        under_test.store.truncate_before(queue, passed)
        assert under_test.store.state(queue).first == 3
    under_test.commit()
    under_test.store.truncate_before(queue, 2)
    under_test.reopen()
    assert under_test.store.state(queue).first == 3


def test_truncating_above_the_next_position_is_refused(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b")
    with pytest.raises(LimitExceededError) as refused:
        under_test.store.truncate_before(queue, 4)

    assert (refused.value.value, refused.value.limit) == (4, 3)
    assert under_test.store.state(queue).first == 1
    under_test.commit()
    assert under_test.payloads(queue) == [b"a", b"b"]


def test_an_emptied_stream_goes_on_counting(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b")
    under_test.commit()
    under_test.store.truncate_before(queue, 3)
    under_test.commit()
    assert under_test.payloads(queue) == []
    under_test.reopen()

    assert under_test.store.state(queue) == StreamState(StreamKind.QUEUE, 3, 3, 0, False)
    assert under_test.append(queue, b"c") == [3]
    under_test.commit()
    assert under_test.payloads(queue) == [b"c"]


def test_an_entry_may_be_let_go_of_before_it_is_durable(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b", b"c")
    under_test.store.truncate_before(queue, 3)
    under_test.commit()

    assert under_test.payloads(queue) == [b"c"]
    under_test.reopen()
    assert under_test.payloads(queue) == [b"c"]


def test_five_rounds_of_writing_and_acknowledging_never_lose_the_thread(
    under_test: StoreUnderTest,
) -> None:
    # With few messages to a file, every round or two ends in another file.
    queue = under_test.create_queue(1, quota=3)
    for round_number in range(5):
        sent = [b"%d-%d" % (round_number, number) for number in range(3)]
        under_test.append(queue, *sent)
        under_test.commit()
        for expected in sent:
            [entry] = under_test.store.read(queue, 1, 1, 1000)
            assert entry.payload == expected
            under_test.store.truncate_before(queue, entry.seq + 1)
            under_test.commit()
        assert under_test.store.read(queue, 1, 1, 1000) == []
    assert under_test.store.state(queue).next == 16


def test_queues_do_not_disturb_one_another(under_test: StoreUnderTest) -> None:
    one, other = under_test.create_queue(1, quota=3), under_test.create_queue(2, quota=3)
    under_test.append(one, b"1a", b"1b")
    under_test.append(other, b"2a")
    under_test.commit()
    under_test.store.truncate_before(one, 2)
    under_test.commit()
    assert under_test.store.expire_before(under_test.now_ms, 100) == 0
    under_test.append(other, b"2b", b"2c")
    under_test.commit()
    under_test.store.truncate_before(one, 3)
    under_test.store.truncate_before(other, 2)
    under_test.commit()

    assert under_test.payloads(one) == []
    assert under_test.payloads(other) == [b"2b", b"2c"]
    under_test.store.delete(one)
    under_test.commit()
    assert under_test.payloads(other) == [b"2b", b"2c"]


def test_a_deleted_stream_is_gone_for_good(under_test: StoreUnderTest) -> None:
    queue, other = under_test.create_queue(1), under_test.create_queue(2)
    under_test.append(queue, b"a")
    under_test.append(other, b"b")
    under_test.commit()
    under_test.store.delete(queue)
    assert set(under_test.store.streams()) == {other}
    under_test.commit()
    under_test.reopen()

    assert set(under_test.store.streams()) == {other}
    with pytest.raises(UnknownQueueError):
        under_test.store.state(queue)


@pytest.mark.parametrize("ends", ["one batch", "two batches", "two runs"])
def test_a_stream_created_anew_starts_at_1_and_has_nothing_of_the_old(
    under_test: StoreUnderTest, ends: str
) -> None:
    document = under_test.create_document()
    under_test.append(document, *[b"old" * 1000] * 10)
    under_test.store.put_snapshot(document, 4, b"old state", 1)
    under_test.store.move_cursor(document, b"reader", 5)
    under_test.store.truncate_before(document, 3)
    under_test.commit()

    under_test.store.delete(document)
    if ends != "one batch":
        under_test.commit()
    if ends == "two runs":
        under_test.reopen()
    under_test.store.create(document, StreamKind.QUEUE, 30, under_test.now_ms)

    def check(next_seq: int, payloads: list[bytes]) -> None:
        expected = StreamState(StreamKind.QUEUE, 1, next_seq, 30, False)
        assert under_test.store.state(document) == expected
        assert under_test.payloads(document) == payloads
        assert under_test.store.snapshot(document) is None
        assert dict(under_test.store.cursors(document)) == {}

    check(1, [])
    assert under_test.append(document, b"new") == [1]
    check(2, [])
    under_test.commit()
    check(2, [b"new"])
    under_test.reopen()
    check(2, [b"new"])
    under_test.append(document, *[b"newer" * 3000] * 20)
    under_test.store.truncate_before(document, 8)
    under_test.commit()
    assert under_test.payloads(document) == [b"newer" * 3000] * 14


def test_streams_are_those_that_exist_as_staged(under_test: StoreUnderTest) -> None:
    assert list(under_test.store.streams()) == []
    made = [under_test.create_queue(number) for number in range(5)]
    assert sorted(under_test.store.streams()) == sorted(made)
    under_test.commit()
    under_test.store.delete(made[0])
    assert sorted(under_test.store.streams()) == sorted(made[1:])
    under_test.commit()
    under_test.reopen()
    assert sorted(under_test.store.streams()) == sorted(made[1:])
    assert all(isinstance(stream, StreamId) for stream in under_test.store.streams())
    assert under_test.store.stats().stream_count == 4


def test_many_streams_over_many_files_keep_their_entries(under_test: StoreUnderTest) -> None:
    streams = [under_test.create_document(number) for number in range(12)]
    kept: dict[StreamId, list[bytes]] = {stream: [] for stream in streams}
    for round_number in range(10):
        for number, stream in enumerate(streams):
            payload = b"%d/%d " % (round_number, number) * 400
            under_test.append(stream, payload)
            kept[stream].append(payload)
        if round_number % 3 == 2:
            for stream in streams[::2]:
                under_test.store.truncate_before(stream, round_number)
                kept[stream] = kept[stream][-2:]
        under_test.commit()

    assert {stream: under_test.payloads(stream) for stream in streams} == kept
    under_test.reopen()
    assert {stream: under_test.payloads(stream) for stream in streams} == kept


def test_everything_survives_closing_and_opening(under_test: StoreUnderTest) -> None:
    queue, document = under_test.create_queue(1, quota=9), under_test.create_document(2)
    under_test.append(queue, b"a", b"b", b"c")
    under_test.append(document, b"d", b"e")
    under_test.store.truncate_before(queue, 2)
    under_test.store.put_snapshot(document, 1, b"state", under_test.now_ms)
    under_test.store.move_cursor(document, b"reader", 2)
    under_test.commit()

    def seen() -> list[object]:
        store = under_test.store
        return [
            sorted(store.streams()),
            [store.state(stream) for stream in (queue, document)],
            [under_test.entries(stream) for stream in (queue, document)],
            store.snapshot(document),
            dict(store.cursors(document)),
        ]

    before = seen()
    under_test.reopen()
    assert seen() == before
    under_test.crash()
    assert seen() == before, "opening twice finds the same"


def test_closing_makes_what_is_staged_durable(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b")
    under_test.store.truncate_before(queue, 2)
    under_test.reopen()

    assert under_test.store.state(queue) == StreamState(StreamKind.QUEUE, 2, 3, 0, False)
    assert under_test.payloads(queue) == [b"b"]


def test_scrubbing_whole_data_comes_to_an_end_and_finds_nothing(under_test: StoreUnderTest) -> None:
    document = under_test.create_document()
    for _ in range(12):
        under_test.append(document, *[b"x" * 8_000] * 2)
        under_test.commit()

    for _ in range(1_000):
        if under_test.store.scrub(64 * 1024) == 0:
            break
    else:
        pytest.fail("a round of scrubbing has no end")
    assert list(under_test.store.damage()) == []
    assert under_test.store.stats().damage_count == 0
    assert under_test.payloads(document) == [b"x" * 8_000] * 24


def test_counters_count_what_was_committed(under_test: StoreUnderTest) -> None:
    before = under_test.store.stats()
    queue = under_test.create_queue()
    under_test.append(queue, b"a", b"b")
    under_test.commit()
    after = under_test.store.stats()

    assert after.stream_count == before.stream_count + 1
    assert after.committed_batch_count == before.committed_batch_count + 1
    assert after.committed_record_count > before.committed_record_count
    assert (after.torn_tail_count, after.damage_count) == (0, 0)
