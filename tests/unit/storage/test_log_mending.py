"""A run with a damaged row is written anew without it, and everything else stays."""

import random

from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min


def test_what_scrubbing_finds_is_mended_with_the_next_upkeep() -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    chance = random.Random(5)
    options = StoreOptions(segment_bytes=segment_bytes_min)
    stream = StreamId(chance.randbytes(24))
    store = LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)
    store.create(stream, StreamKind.QUEUE, 0, 1)
    for number in range(200):
        store.append(stream, b"%04d" % number + bytes(1000), 1)
        commit(store)
    run_jobs(store)
    assert run_jobs(store) == 0
    (name,) = files.list("/data/runs")
    files.flip_bit(f"/data/runs/{name}", 10)
    while store.scrub(1 << 20):
        pass
    assert run_jobs(store) == 1
    assert files.list("/data/runs") != [name]
    assert run_jobs(store) == 0, "once is enough"
    store.close()
    store = LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)
    run_jobs(store)
    # A reader meets the gap, and that is no reason to write a sound run anew.
    assert len(store.read(stream, 1, 1000, 1 << 20)) == 199
    assert [damage.lost_count for damage in store.damage()] == [1]
    assert run_jobs(store) == 0
    store.close()


def test_mending_costs_the_damaged_entry_and_nothing_else() -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    chance = random.Random(5)
    options = StoreOptions(segment_bytes=segment_bytes_min)
    streams = [StreamId(chance.randbytes(24)) for _ in range(4)]

    def opened() -> LogStore:
        return LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)

    store = opened()
    for stream in streams:
        store.create(stream, StreamKind.QUEUE, 0, 1)
    for number in range(200):
        store.append(streams[number % 4], b"%04d" % number + bytes(1000), 1)
        commit(store)
    run_jobs(store)
    store.close()
    (name,) = files.list("/data/runs")
    run = files.open(f"/data/runs/{name}")
    run.write(10, [b"\xff"])
    run.sync()
    run.close()

    store = opened()
    while store.scrub(1 << 20):
        pass
    (damage,) = store.damage()
    assert damage.stream in streams
    assert damage.lost_count == 1
    assert sum(store.mend()) > 0
    assert list(store.mend()) == []
    assert files.list("/data/runs") != [name]
    store.close()

    store = opened()
    while store.scrub(1 << 20):
        pass
    assert not store.damage(), "the new run is whole"
    for stream in streams:
        found = [entry.seq for entry in store.read(stream, 1, 1000, 1 << 20)]
        expected = list(range(1, 51))
        if stream == damage.stream:
            expected.remove(damage.first_lost_seq or 0)
        assert found == expected
    # Nobody is left to wonder: the gap is reported when it is met.
    assert [(found.stream, found.lost_count) for found in store.damage()] == [(damage.stream, 1)]
    store.close()
