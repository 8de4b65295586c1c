"""How staged writes become durable and visible, and what a killed process leaves behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from syncline.errors import QuotaExceededError, UnknownQueueError
from syncline.storage.base import Batch, Snapshot, commit
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.under_test import StoreUnderTest


def take(under_test: StoreUnderTest, *, acknowledgements: bool = True) -> Batch:
    batch = under_test.store.take_batch(acknowledgements=acknowledgements)
    assert batch is not None
    return batch


def commit_without_acknowledgements(under_test: StoreUnderTest) -> None:
    batch = take(under_test, acknowledgements=False)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)


def queue_with_entries(under_test: StoreUnderTest, count: int, number: int = 1) -> StreamId:
    queue = under_test.create_queue(number)
    under_test.append(queue, *(b"%d" % seq for seq in range(1, count + 1)))
    under_test.commit()
    return queue


def test_there_is_no_batch_when_nothing_is_staged(under_test: StoreUnderTest) -> None:
    assert under_test.store.take_batch() is None
    queue_with_entries(under_test, 1)
    assert under_test.store.take_batch() is None
    under_test.reopen()
    assert under_test.store.take_batch() is None


def test_a_batch_says_how_much_it_holds(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.commit()
    under_test.append(queue, b"x" * 1_000, b"y" * 500)
    batch = take(under_test)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)

    assert batch.byte_count >= 1_500
    assert batch.record_count >= 2


def test_entries_are_readable_only_once_their_batch_is_finished(
    under_test: StoreUnderTest,
) -> None:
    queue = queue_with_entries(under_test, 1)
    under_test.append(queue, b"2")
    batch = take(under_test)
    assert under_test.payloads(queue) == [b"1"]
    under_test.store.write_batch(batch)
    assert under_test.payloads(queue) == [b"1"]
    under_test.store.finish_batch(batch)
    assert under_test.payloads(queue) == [b"1", b"2"]


def test_what_is_staged_after_a_batch_was_taken_waits_for_the_next(
    under_test: StoreUnderTest,
) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"1")
    batch = take(under_test)
    assert under_test.append(queue, b"2") == [2]
    under_test.store.write_batch(batch)
    assert under_test.append(queue, b"3") == [3]
    under_test.store.finish_batch(batch)

    assert under_test.payloads(queue) == [b"1"]
    assert under_test.store.state(queue).next == 4
    under_test.commit()
    assert under_test.payloads(queue) == [b"1", b"2", b"3"]


def test_only_one_batch_is_taken_at_a_time(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    batch = take(under_test)
    under_test.append(queue, b"1")
    with pytest.raises((ValueError, AssertionError)):
        under_test.store.take_batch()
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)
    under_test.commit()
    assert under_test.payloads(queue) == [b"1"]


def test_a_batch_is_written_by_another_thread_while_the_owner_goes_on(
    under_test: StoreUnderTest,
) -> None:
    streams = [under_test.create_queue(number) for number in range(4)]
    under_test.commit()
    expected: list[bytes] = []
    with ThreadPoolExecutor(1) as disk:
        for round_number in range(10):
            payload = b"%d" % round_number * 70
            for stream in streams:
                under_test.append(stream, payload)
            expected.append(payload)
            batch = take(under_test)
            writing = disk.submit(under_test.store.write_batch, batch)
            for stream in streams:
                assert under_test.store.state(stream).next == round_number + 2
                assert under_test.payloads(stream) == expected[-2:-1]
                under_test.store.truncate_before(stream, round_number + 1)
            writing.result()
            under_test.store.finish_batch(batch)

    for stream in streams:
        assert under_test.payloads(stream) == expected[-1:]
    under_test.reopen()
    for stream in streams:
        assert under_test.payloads(stream) == expected[-1:]


def test_truncating_while_the_batch_is_written_holds(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"1", b"2", b"3")
    batch = take(under_test)
    under_test.store.truncate_before(queue, 3)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)

    assert under_test.store.state(queue).first == 3
    assert under_test.payloads(queue) == [b"3"]
    under_test.reopen()
    assert under_test.payloads(queue) == [b"3"]


def test_deleting_while_the_batch_is_written_holds(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue()
    under_test.append(queue, b"old 1", b"old 2")
    batch = take(under_test)
    under_test.store.delete(queue)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)

    assert list(under_test.store.streams()) == []
    with pytest.raises(UnknownQueueError):
        under_test.store.read(queue, 1, 1, 1)
    under_test.reopen()
    assert list(under_test.store.streams()) == []


def test_a_successor_made_while_the_batch_is_written_gets_nothing_of_it(
    under_test: StoreUnderTest,
) -> None:
    document = under_test.create_document()
    under_test.append(document, b"old 1", b"old 2", b"old 3")
    under_test.store.put_snapshot(document, 1, b"old", 1)
    under_test.store.move_cursor(document, b"old", 2)
    batch = take(under_test)
    under_test.store.delete(document)
    under_test.create_document()
    under_test.append(document, b"new 1")
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)

    assert under_test.store.state(document).next == 2
    assert under_test.payloads(document) == [], "the new entry is not durable, the old is gone"
    assert under_test.store.snapshot(document) is None
    assert dict(under_test.store.cursors(document)) == {}
    for _ in range(2):
        under_test.commit()
        assert under_test.payloads(document) == [b"new 1"]
        assert under_test.store.snapshot(document) is None
        under_test.reopen()


def test_waiting_bytes_are_those_staged_or_taken(under_test: StoreUnderTest) -> None:
    assert under_test.store.waiting_bytes == 0
    queue = under_test.create_queue()
    under_test.append(queue, b"x" * 1_000)
    staged = under_test.store.waiting_bytes
    assert staged >= 1_000
    batch = take(under_test)
    assert under_test.store.waiting_bytes >= 1_000
    under_test.append(queue, b"x" * 2_000)
    assert under_test.store.waiting_bytes >= 3_000
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)
    assert 2_000 <= under_test.store.waiting_bytes < staged + 2_000
    under_test.commit()
    assert under_test.store.waiting_bytes == 0


def test_more_than_a_batch_may_hold_is_committed_in_several(under_test: StoreUnderTest) -> None:
    streams = [under_test.create_document(number) for number in range(3)]
    payload = bytes(range(250)) * 80
    for _ in range(110):
        for stream in streams:
            under_test.append(stream, payload)
    assert under_test.store.waiting_bytes > limits.batch_bytes_max
    under_test.commit()

    for stream in streams:
        found = under_test.entries(stream)
        assert [entry.seq for entry in found] == list(range(1, 111))
        assert {entry.payload for entry in found} == {payload}
    assert under_test.store.waiting_bytes == 0


# A killed process.


def test_what_a_finished_batch_holds_survives_a_kill(under_test: StoreUnderTest) -> None:
    queue, document = under_test.create_queue(1), under_test.create_document(2)
    under_test.append(queue, *[b"q" * 3_000] * 30)
    under_test.append(document, b"d")
    under_test.store.put_snapshot(document, 1, b"state", 5)
    under_test.store.move_cursor(document, b"reader", 1)
    under_test.store.truncate_before(queue, 11)
    under_test.commit()
    under_test.crash()

    assert under_test.store.state(queue).first == 11
    assert under_test.payloads(queue) == [b"q" * 3_000] * 20
    assert under_test.payloads(document) == [b"d"]
    assert under_test.store.snapshot(document) == Snapshot(1, 5, b"state")
    assert dict(under_test.store.cursors(document)) == {b"reader": 1}


def test_a_deletion_survives_a_kill(under_test: StoreUnderTest) -> None:
    queue = queue_with_entries(under_test, 3)
    under_test.store.delete(queue)
    under_test.commit()
    under_test.crash()
    assert list(under_test.store.streams()) == []


def test_a_batch_that_was_written_and_never_finished_survives_a_kill(
    under_test: StoreUnderTest,
) -> None:
    queue = queue_with_entries(under_test, 2)
    under_test.append(queue, b"3")
    under_test.store.write_batch(take(under_test))
    under_test.crash()

    assert under_test.payloads(queue) == [b"1", b"2", b"3"]
    assert under_test.append(queue, b"4") == [4]
    under_test.commit()
    assert under_test.payloads(queue) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_taken", [False, True], ids=["staged", "taken"])
def test_what_was_not_written_is_lost_in_a_kill_and_nothing_else(
    under_test: StoreUnderTest, is_taken: bool
) -> None:
    queue = queue_with_entries(under_test, 2)
    under_test.append(queue, b"lost")
    under_test.create_queue(2)
    if is_taken:
        take(under_test)
    under_test.crash()

    assert list(under_test.store.streams()) == [queue]
    assert under_test.payloads(queue) == [b"1", b"2"]
    assert under_test.append(queue, b"3") == [3], "the sequence of a lost entry is used again"
    under_test.commit()
    under_test.reopen()
    assert under_test.payloads(queue) == [b"1", b"2", b"3"]


def test_killing_again_and_again_loses_nothing(under_test: StoreUnderTest) -> None:
    queue, document = under_test.create_queue(1), under_test.create_document(2)
    for number in range(1, 21):
        under_test.append(queue, b"%d" % number * 300)
        under_test.append(document, b"%d" % number)
        if number > 2:
            under_test.store.truncate_before(queue, number - 1)
        under_test.commit()
        under_test.append(queue, b"never committed")
        under_test.crash()
    assert under_test.payloads(queue) == [b"19" * 300, b"20" * 300]
    assert under_test.payloads(document) == [b"%d" % number for number in range(1, 21)]


# Acknowledgements that may wait.


def test_acknowledgements_alone_need_not_be_written(under_test: StoreUnderTest) -> None:
    queue = queue_with_entries(under_test, 3)
    under_test.store.truncate_before(queue, 3)

    assert under_test.store.take_batch(acknowledgements=False) is None
    assert under_test.store.state(queue).first == 3
    assert under_test.payloads(queue) == [b"3"]
    batch = take(under_test)
    under_test.store.write_batch(batch)
    under_test.store.finish_batch(batch)
    assert under_test.store.take_batch() is None


def test_closing_writes_the_acknowledgements_that_were_kept_back(
    under_test: StoreUnderTest,
) -> None:
    queue = queue_with_entries(under_test, 3)
    under_test.store.truncate_before(queue, 3)
    assert under_test.store.take_batch(acknowledgements=False) is None
    under_test.reopen()
    assert under_test.store.state(queue).first == 3


def test_an_acknowledgement_lost_in_a_kill_costs_a_redelivery_and_no_entry(
    under_test: StoreUnderTest,
) -> None:
    queue, other = queue_with_entries(under_test, 5), under_test.create_queue(2)
    under_test.commit()
    under_test.store.truncate_before(queue, 2)
    under_test.commit()
    under_test.store.truncate_before(queue, 4)
    under_test.append(other, b"other")
    commit_without_acknowledgements(under_test)
    under_test.crash()

    first = under_test.store.state(queue).first
    assert 2 <= first <= 4, "never above what was acknowledged, never below what was durable"
    assert under_test.payloads(queue) == [b"%d" % seq for seq in range(first, 6)]
    assert under_test.payloads(other) == [b"other"]


def test_an_append_carries_the_acknowledgement_of_its_stream(under_test: StoreUnderTest) -> None:
    queue = queue_with_entries(under_test, 3)
    under_test.store.truncate_before(queue, 3)
    under_test.append(queue, b"4")
    commit_without_acknowledgements(under_test)
    under_test.crash()

    assert under_test.store.state(queue).first == 3
    assert under_test.payloads(queue) == [b"3", b"4"]


def test_an_append_after_the_queue_was_emptied_keeps_it_open(under_test: StoreUnderTest) -> None:
    # Were the acknowledgement lost and the append kept, the queue would hold its marker in the
    # middle, and more than its quota.
    queue = under_test.create_queue(1, quota=1)
    under_test.append(queue, b"1")
    with pytest.raises(QuotaExceededError):
        under_test.append(queue, b"refused")
    under_test.commit()
    under_test.store.truncate_before(queue, 3)
    under_test.append(queue, b"3")
    commit_without_acknowledgements(under_test)
    under_test.crash()

    state = under_test.store.state(queue)
    assert (state.first, state.next, state.is_blocked) == (3, 4, False)
    assert under_test.payloads(queue) == [b"3"]


def test_acknowledgements_are_kept_back_up_to_a_limit(
    under_test: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "deferred_ack_count_max", 8)
    queues = [queue_with_entries(under_test, 2, number) for number in range(9)]
    for queue in queues[:8]:
        under_test.store.truncate_before(queue, 2)
    assert under_test.store.take_batch(acknowledgements=False) is None
    under_test.store.truncate_before(queues[8], 2)
    commit_without_acknowledgements(under_test)
    under_test.crash()

    lost = [queue for queue in queues if under_test.store.state(queue).first == 1]
    assert len(lost) <= 8
    for queue in queues:
        first = under_test.store.state(queue).first
        assert under_test.payloads(queue) == [b"1", b"2"][first - 1 :]


def test_acknowledgements_of_one_stream_count_as_one(
    under_test: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "deferred_ack_count_max", 8)
    queue = queue_with_entries(under_test, 40)
    for seq in range(2, 41):
        under_test.store.truncate_before(queue, seq)
    assert under_test.store.take_batch(acknowledgements=False) is None
    commit(under_test.store)
    under_test.crash()
    assert under_test.payloads(queue) == [b"40"]


def test_creations_deletions_and_snapshots_do_not_wait(under_test: StoreUnderTest) -> None:
    document = under_test.create_document(1)
    commit_without_acknowledgements(under_test)
    under_test.append(document, b"1")
    commit_without_acknowledgements(under_test)
    under_test.store.put_snapshot(document, 1, b"state", 1)
    commit_without_acknowledgements(under_test)
    under_test.crash()
    assert under_test.store.snapshot(document) == Snapshot(1, 1, b"state")

    under_test.store.delete(document)
    commit_without_acknowledgements(under_test)
    under_test.crash()
    assert list(under_test.store.streams()) == []


def test_many_at_once_are_what_they_are_one_by_one(under_test: StoreUnderTest) -> None:
    first, second = under_test.create_queue(1), under_test.create_queue(2)
    under_test.commit()
    under_test.append(first, b"one by one")
    messages = [(first, b"a"), (second, b"b" * 5_000), (first, b""), (second, b"d")]
    assert under_test.store.append_many(iter(messages), under_test.now_ms) == [2, 1, 3, 2]
    assert under_test.store.append_many([], under_test.now_ms) == []
    assert under_test.payloads(first) == []
    under_test.append(first, b"after")
    under_test.commit()
    for _ in range(2):
        assert under_test.payloads(first) == [b"one by one", b"a", b"", b"after"]
        assert under_test.payloads(second) == [b"b" * 5_000, b"d"]
        under_test.reopen()


def test_many_at_once_carry_what_was_acknowledged(under_test: StoreUnderTest) -> None:
    queue = queue_with_entries(under_test, 3)
    under_test.store.truncate_before(queue, 3)
    assert under_test.store.append_many([(queue, b"4")], under_test.now_ms) == [4]
    under_test.commit()
    under_test.crash()
    assert under_test.payloads(queue) == [b"3", b"4"]


def test_many_at_once_stop_before_what_is_refused(under_test: StoreUnderTest) -> None:
    queue, full = under_test.create_queue(1), under_test.create_queue(2, quota=2)
    under_test.commit()
    unknown = StreamId(bytes(23) + b"?")
    too_large = bytes(limits.entry_bytes_max + 1)

    def staged(*messages: tuple[StreamId, bytes]) -> int:
        return len(under_test.store.append_many(messages, under_test.now_ms))

    assert staged((queue, b"1"), (unknown, b"-"), (queue, b"-")) == 1
    assert staged((queue, too_large), (queue, b"-")) == 0
    assert staged((full, b"1"), (full, b"2"), (full, b"-"), (queue, b"-")) == 2
    # Whoever asks for the reason gets it, and leaves the marker.
    with pytest.raises(QuotaExceededError):
        under_test.append(full, b"-")
    assert staged((full, b"-")) == 0
    under_test.commit()
    assert under_test.payloads(queue) == [b"1"]
    assert under_test.payloads(full) == [b"1", b"2", b""]


def test_heads_are_what_can_be_read_first(under_test: StoreUnderTest) -> None:
    queue, empty, full = (
        under_test.create_queue(1),
        under_test.create_queue(2),
        under_test.create_queue(3, quota=1),
    )
    unknown = StreamId(bytes(23) + b"?")
    under_test.append(queue, b"1", b"2")
    under_test.append(full, b"only")
    with pytest.raises(QuotaExceededError):
        under_test.append(full, b"-")
    streams = [queue, unknown, empty, full, queue]
    # Nothing is durable yet.
    assert under_test.store.read_heads(streams) == [None] * 5
    under_test.commit()
    under_test.store.truncate_before(full, 2)

    for _ in range(2):
        heads = under_test.store.read_heads(iter(streams))
        expected = [under_test.entries(queue)[0], None, None, under_test.entries(full)[0]]
        assert heads == [*expected, expected[0]]
        assert [head.payload for head in heads if head is not None] == [b"1", b"", b"1"]
        under_test.reopen()


def test_many_are_let_go_of_at_once(under_test: StoreUnderTest) -> None:
    first, second = queue_with_entries(under_test, 5, 1), queue_with_entries(under_test, 3, 2)
    unknown = StreamId(bytes(23) + b"?")
    truncate_many = under_test.store.truncate_many

    assert truncate_many([(first, 3), (second, 4), (first, 2), (first, 4)]) == 4
    # Up to the first that is refused: nothing is above the next one, or unknown.
    assert truncate_many([(first, 5), (second, 5), (first, 6)]) == 1
    assert truncate_many([(unknown, 1), (first, 6)]) == 0
    assert truncate_many([]) == 0
    assert under_test.store.take_batch(acknowledgements=False) is None
    under_test.commit()
    under_test.crash()
    assert under_test.payloads(first) == [b"5"]
    assert under_test.payloads(second) == []
    assert under_test.append(second, b"4") == [4]
