"""Streams leave memory and come back: whoever remembers one that left must not touch the new one.

After a sealing all streams in memory are looked at, a few with each batch. One of them may have
left meanwhile, and another object may stand for the same id.
"""

from itertools import count
from random import Random

import pytest

from syncline.errors import CorruptionError
from syncline.storage.base import Snapshot, StreamKind, commit
from syncline.storage.inspection import read_everything
from syncline.storage.log import residents
from syncline.storage.log.format import slot_index
from syncline.storage.log.store import SWEEP_PER_BATCH, LogStore
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.unit.storage.test_inspection import run_out
from tests.unit.storage.test_log_adopting import (
    FOLDER,
    QUEUES,
    check,
    keep_house,
    made,
    opened,
    write,
)
from tests.unit.storage.test_log_table import random_id

# Looked at last, several batches after the sealing.
LAST = StreamId(b"\xff" * 24)
MANY = [StreamId(number.to_bytes(24, "big")) for number in range(1, 3 * SWEEP_PER_BATCH)]


def sealed(files: SimulatedFiles) -> LogStore:
    """Many streams in memory, and a sealing behind which none of them was looked at."""
    store = made(files)
    for queue in [*MANY, LAST]:
        store.create(queue, StreamKind.QUEUE, 0, 1)
    commit(store)
    for queue in [*MANY, LAST]:
        store.append(queue, b"of old", 1)
        store.truncate_before(queue, 2)
    commit(store)
    write(store, 6)
    keep_house(store)
    return store


def look_at_all(store: LogStore) -> None:
    write(store, len(MANY) // SWEEP_PER_BATCH + 2)


def payloads(store: LogStore, queue: StreamId) -> list[bytes]:
    return [entry.payload for entry in store.read(queue, 0, 9, 1 << 20)]


def test_a_queue_that_is_made_again_outlives_the_one_before() -> None:
    files = SimulatedFiles()
    store = sealed(files)
    store.delete(LAST)
    commit(store)
    store.create(LAST, StreamKind.QUEUE, 0, 1)
    store.append(LAST, b"anew", 1)
    look_at_all(store)
    assert payloads(store, LAST) == [b"anew"]
    check(store)
    store.close()
    assert payloads(opened(files), LAST) == [b"anew"]


def test_a_queue_that_comes_back_keeps_what_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so many in memory that those at rest leave it."""
    files = SimulatedFiles()
    store = sealed(files)
    monkeypatch.setattr(residents, "IDLE_STREAMS_MAX", len(QUEUES))
    # Leaves with the batch that holds its last record, and comes back with its next message.
    store.append(LAST, b"gone", 1)
    store.truncate_before(LAST, 3)
    commit(store)
    assert LAST not in store._by_id
    assert store.append(LAST, b"one", 1) == 3
    look_at_all(store)
    assert store.append(LAST, b"two", 1) == 4
    commit(store)
    assert payloads(store, LAST) == [b"one", b"two"]
    check(store)
    store.close()
    assert payloads(opened(files), LAST) == [b"one", b"two"]


def test_a_slot_that_went_to_another_stream_is_not_written_over() -> None:
    """While slots are brought up to date a deletion is in the table before the stream, which was
    made again meanwhile, looks for its slot."""
    files = SimulatedFiles()
    store = made(files)
    for queue in [LAST, *map(StreamId, map(random_id, range(700)))]:
        store.create(queue, StreamKind.QUEUE, 0, 1)
    commit(store)
    write(store, 16)
    store.append(LAST, b"of old", 1)
    commit(store)
    job = store.take_job()
    assert store._residents.is_settling
    store.delete(LAST)
    deleting = store.take_batch()
    assert deleting is not None
    table = store._table
    slot = table.find(LAST)
    assert slot >= 0
    candidates = (StreamId(b"%024d" % number) for number in count())
    other = next(
        each for each in candidates if slot_index(each, table.capacity, table._slot_key) == slot
    )
    for queue, payload in ((other, b"other"), (LAST, b"anew")):
        store.create(queue, StreamKind.QUEUE, 0, 1)
        store.append(queue, payload, 1)
    store.write_batch(deleting)
    store.finish_batch(deleting)
    commit(store)
    if job is not None:
        store.finish_job(job, store.run_job(job))
    for _ in range(3):
        write(store, 16)
        keep_house(store)
    store.close()
    store = opened(files)
    assert payloads(store, other) == [b"other"]
    assert payloads(store, LAST) == [b"anew"]


def test_whoever_only_looks_brings_no_stream_at_rest_into_memory() -> None:
    files = SimulatedFiles()
    store = made(files)
    for queue in MANY:
        store.create(queue, StreamKind.QUEUE, 0, 1)
        store.append(queue, b"waits", 1)
    for queue in MANY[:9]:
        store.put_snapshot(queue, 0, b"state", 1)
    commit(store)
    write(store, 16)
    keep_house(store)
    store.close()
    store = opened(files)
    keep_house(store)
    in_memory = set(store._by_id)
    assert not in_memory.intersection(MANY)
    for queue in MANY:
        assert store.state(queue).unread_count == 1
        assert store.cursors(queue) == {}
        assert payloads(store, queue) == [b"waits"]
    for queue in MANY[:9]:
        assert store.snapshot(queue) == Snapshot(0, 1, b"state")
    assert set(store._by_id) == in_memory


def test_a_queue_whose_slot_is_damaged_can_be_deleted() -> None:
    files = SimulatedFiles()
    store = made(files)
    store.create(LAST, StreamKind.QUEUE, 0, 1)
    store.append(LAST, b"waits", 1)
    commit(store)
    write(store, 16)
    keep_house(store)
    store.close()
    (table,) = files.paths(f"{FOLDER}/table")
    files.flip_bit(table, files.read_all(table).index(LAST) + 40)
    store = opened(files)
    with pytest.raises(CorruptionError):
        store.state(LAST)
    store.delete(LAST)
    commit(store)
    assert set(store.streams()) == set(QUEUES)
    store.create(LAST, StreamKind.QUEUE, 0, 1)
    store.append(LAST, b"anew", 1)
    commit(store)
    for _ in range(2):
        assert payloads(store, LAST) == [b"anew"]
        assert store.stats().stream_count == len(QUEUES) + 1
        write(store, 16)
        keep_house(store)
        store.close()
        store = opened(files)


@pytest.mark.parametrize("byte", [0, 23, 30, 57, 62])
def test_a_stream_that_only_acknowledgements_are_left_of_is_told_as_damaged(byte: int) -> None:
    files = SimulatedFiles()
    store = made(files)
    store.create(LAST, StreamKind.DOCUMENT, 0, 1)
    for _ in range(3):
        store.append(LAST, b"update", 1)
    write(store, 12)
    keep_house(store)
    store.truncate_before(LAST, 3)
    commit(store)
    files = files.kill(Random(1))
    (path,) = files.paths(f"{FOLDER}/table")
    files.flip_bit(path, files.read_all(path).index(LAST) + byte)
    store = opened(files)
    store.state(LAST)
    assert LAST in [damage.stream for damage in store.damage()]


@pytest.mark.parametrize("byte", [0, 5, 23])
def test_a_slot_with_a_damaged_name_is_damage_and_no_stream(byte: int) -> None:
    files = SimulatedFiles()
    store = made(files)
    store.create(LAST, StreamKind.QUEUE, 0, 1)
    write(store, 16)
    keep_house(store)
    store.close()
    (path,) = files.paths(f"{FOLDER}/table")
    offset = files.read_all(path).index(LAST)
    files.flip_bit(path, offset + byte, 3)
    store = opened(files)
    assert set(store.streams()) == set(QUEUES)
    found = run_out(read_everything(store)).damage
    assert [(damage.file, damage.offset) for damage in found] == [(path, offset)]


def test_a_slot_that_is_lost_brings_back_nothing_of_an_earlier_stream() -> None:
    files = SimulatedFiles()
    store = made(files)
    for body in (b"old", b"new"):
        store.create(LAST, StreamKind.QUEUE, 0, 1)
        for _ in range(3):
            store.append(LAST, body, 1)
        write(store, 16)
        keep_house(store)
        if body == b"old":
            store.delete(LAST)
            commit(store)
    store.append(LAST, b"new", 1)
    commit(store)
    files = files.kill(Random(1))
    (path,) = files.paths(f"{FOLDER}/table")
    files.flip_bit(path, files.read_all(path).index(LAST) + 61)
    store = opened(files)
    for count_max in (1, 2, 9):
        found = [store.read(LAST, seq, count_max, 1_000)[0] for seq in range(1, 5)]
        assert [(entry.seq, entry.payload) for entry in found] == [
            (seq, b"new") for seq in range(1, 5)
        ]
