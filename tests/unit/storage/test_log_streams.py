"""Where the entries of a stream are: few or many of them, let go of from the front."""

import random

import pytest

from syncline.storage.base import StreamKind, commit
from syncline.storage.log.streams import LENGTH_BITS, LOST, SHORT_PLACE_COUNT, OpenStream
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.unit.storage.test_log_adopting import opened

MANY = 6 * SHORT_PLACE_COUNT


@pytest.mark.parametrize("seed", range(50))
def test_places_are_the_same_whatever_holds_them(seed: int) -> None:
    chance = random.Random(seed)
    stream = OpenStream(b"s" * 24, -1)
    expected: list[int] = []
    last = 0
    for _ in range(60):
        for _ in range(chance.choice([0, 1, 5, SHORT_PLACE_COUNT, MANY])):
            last += 1
            stream.positions.append(last << LENGTH_BITS)
            expected.append(last << LENGTH_BITS)
        stream.next = last + 1
        dropped = chance.choice([1, 1, 2, chance.randint(0, len(expected))])
        if chance.random() < 0.3 and expected:
            lowest = chance.choice(expected) >> LENGTH_BITS
            stream.forget_below(lowest)
            expected = [place for place in expected if place >= lowest << LENGTH_BITS]
        else:
            stream.drop_places(min(dropped, len(expected)))
            expected = expected[dropped:]
        assert list(stream.positions) == expected
        assert stream.log_base == last + 1 - len(expected)
        start, count = chance.randint(0, len(expected)), chance.randint(0, 100)
        assert stream.places(start, count) == expected[start : start + count]
        # What `truncate_many` relies on: it forgets the first of so few by itself.
        assert len(expected) > SHORT_PLACE_COUNT or isinstance(stream.positions, list)


def test_a_long_queue_is_read_and_acknowledged_from_any_place() -> None:
    store = opened(SimulatedFiles())
    queue = StreamId(b"q" * 24)
    store.create(queue, StreamKind.QUEUE, 0, 1)
    for seq in range(1, MANY + 1):
        assert store.append(queue, b"%d" % seq, 1) == seq
    commit(store)
    first, chance = 1, random.Random(2)
    while first <= MANY:
        seq = chance.randint(first, MANY)
        found = store.read(queue, seq, 3, 1_000)
        assert [(entry.seq, entry.payload) for entry in found] == [
            (seq, b"%d" % seq) for seq in range(seq, min(seq + 3, MANY + 1))
        ]
        (head,) = store.read_heads([queue])
        assert head is not None
        assert head.seq == first
        first += chance.choice([1, 1, 2, 40])
        first = min(first, MANY + 1)
        if chance.random() < 0.5:
            store.truncate_before(queue, first)
        else:
            assert store.truncate_many([(queue, first)]) == 1
    assert store.read(queue, 1, 1, 1_000) == []


@pytest.mark.parametrize("lost_count", [1, 2, 3, 50])
def test_a_read_passes_over_entries_that_are_lost(lost_count: int) -> None:
    """However many: nobody may take a queue with entries for an empty one."""
    store = opened(SimulatedFiles())
    queue = StreamId(b"q" * 24)
    store.create(queue, StreamKind.QUEUE, 0, 1)
    for seq in range(1, 101):
        store.append(queue, b"%d" % seq, 1)
    commit(store)
    stream = store._by_id[queue]  # pyright: ignore[reportPrivateUsage]
    for index in range(10, 10 + lost_count):
        stream.positions[index] = LOST
    found = store.read(queue, 10, 2, 1_000)
    assert [entry.seq for entry in found] == [10, 11 + lost_count]
