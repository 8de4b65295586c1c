"""Which of many streams have something: the same answer as asking each, without opening any."""

import random
from pathlib import Path

import pytest

from syncline.errors import UnknownQueueError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.files import DiskFiles
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId
from syncline.values.limits import MIB


def open_store(folder: Path) -> LogStore:
    options = StoreOptions(is_durable=False, segment_bytes=1 * MIB)
    return LogStore.open(str(folder), DiskFiles(), options, now_ms=1, random_bytes=random.randbytes)


def has_entries(store: LogStore, stream: StreamId) -> bool:
    try:
        return store.state(stream).unread_count > 0
    except UnknownQueueError:
        return False


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_the_state_of_each(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    streams = [StreamId(chance.randbytes(24)) for _ in range(3_000)]
    store = open_store(tmp_path)
    for stream in streams[:2_000]:
        store.create(stream, StreamKind.QUEUE, 0, 1)
        for _ in range(chance.choice((0, 0, 1, 3))):
            store.append(stream, b"x" * chance.randrange(400), 1)
        fate = chance.random()
        if fate < 0.2:
            store.truncate_before(stream, store.state(stream).next)
        elif fate < 0.3:
            store.delete(stream)
        if chance.random() < 0.01:
            commit(store)
            run_jobs(store)
    for _ in range(2):
        expected = sorted(stream for stream in streams if has_entries(store, stream))
        assert store.unread_among(streams) == expected
        commit(store)
        run_jobs(store)
        assert store.unread_among(streams) == expected
        store.close()
        store = open_store(tmp_path)
        # Before anything else is asked of it: most streams are at rest, or in the replayed log.
        assert store.unread_among(streams) == expected
    store.close()


def test_streams_at_rest_stay_at_rest(tmp_path: Path) -> None:
    streams = [StreamId(random.randbytes(24)) for _ in range(500)]
    store = open_store(tmp_path)
    for stream in streams:
        store.create(stream, StreamKind.QUEUE, 0, 1)
    store.close()
    store = open_store(tmp_path)
    while len(store._residents.tails):
        store.take_job()
    opened_count = len(store._by_id)
    assert store.unread_among(streams) == []
    assert len(store._by_id) == opened_count
    store.close()


def test_a_slot_that_fails_its_checksum_counts_as_one_with_entries(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stream = StreamId(b"s" * 24)
    store.create(stream, StreamKind.QUEUE, 0, 1)
    store.close()
    store = open_store(tmp_path)
    while len(store._residents.tails):
        store.take_job()
    store._by_id.clear()
    index = store._table.find(stream)
    image = bytearray(store._table._image(store._table._current, index))
    image[30] ^= 1
    store._table.write(index, bytes(image))
    assert store.unread_among([stream]) == [stream]
