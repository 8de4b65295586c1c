"""A run with a damaged row is written anew without it, and everything else stays."""

import random
from typing import Any

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.runs import Run, RunRow
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min

QUEUE = StreamId(b"q" * 24)
OTHER = StreamId(b"r" * 24)


def opened_at(files: SimulatedFiles, seed: int) -> LogStore:
    options = StoreOptions(segment_bytes=segment_bytes_min)
    chance = random.Random(seed)
    return LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)


def sealed(files: SimulatedFiles, part_counts: list[int]) -> LogStore:
    """A store with so many entries of one queue in each of its runs, and one more in its log."""
    store = opened_at(files, 0)
    for stream in (QUEUE, OTHER):
        store.create(stream, StreamKind.QUEUE, 0, 1)
    for count in part_counts:
        for _ in range(count):
            store.append(QUEUE, b"message", 1)
        commit(store)
        for _ in range(20):
            seq = store.append(OTHER, bytes(8_000), 1)
            store.truncate_before(OTHER, seq + 1)
            commit(store)
        run_jobs(store)
    store.append(QUEUE, b"message", 1)
    commit(store)
    return store


def flip_key(files: SimulatedFiles, seq: int) -> str:
    """Damage the id in the row of an entry; the path of its run."""
    key = QUEUE + seq.to_bytes(8, "big")
    (path,) = [path for path in files.paths("/data/runs") if key in files.read_all(path)]
    files.flip_bit(path, files.read_all(path).index(key) + 20)
    return path


def sequences(store: LogStore, from_seq: int, count: int) -> list[int]:
    return [entry.seq for entry in store.read(QUEUE, from_seq, count, 1 << 20)]


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
    assert [damage.lost_count for damage in store.damage()] == [1], "it is told once"
    assert run_jobs(store) == 0, "once is enough"
    store.close()
    store = LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)
    run_jobs(store)
    # A reader meets the gap, and that is no reason to write a sound run anew.
    assert len(store.read(stream, 1, 1000, 1 << 20)) == 199
    assert [damage.lost_count for damage in store.damage()] == [1]
    assert run_jobs(store) == 0
    store.close()


def test_a_run_that_could_not_be_mended_for_want_of_room_is_due_again() -> None:
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
    (name,) = files.list("/data/runs")
    files.flip_bit(f"/data/runs/{name}", 10)
    while store.scrub(1 << 20):
        pass
    for _ in range(2):
        files.fail("write")
        with pytest.raises(StoreFullError):
            run_jobs(store)
        assert files.list("/data/runs") == [name]
    assert run_jobs(store) == 1
    assert files.list("/data/runs") != [name]
    assert [damage.lost_count for damage in store.damage()] == [1], "it is told once"
    assert run_jobs(store) == 0, "once is enough"
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


def test_a_damaged_key_costs_its_entry_however_often_it_is_read() -> None:
    files = SimulatedFiles()
    sealed(files, [100]).close()
    path = flip_key(files, 5)
    store = opened_at(files, 1)
    for count in (20, 20, 100, 101):
        expected = [1, 2, 3, 4, *range(6, count + 2)][:100]
        assert sequences(store, 1, count) == expected
    assert sequences(store, 5, 1) == [6]
    lost = [damage for damage in store.damage() if damage.stream == QUEUE]
    assert [(damage.first_lost_seq, damage.lost_count) for damage in lost] == [(5, 1)]
    assert path in {damage.file for damage in store.damage()}
    run_jobs(store)
    assert path not in files.paths("/data/runs"), "the run is written anew"
    assert sequences(store, 1, 20) == [1, 2, 3, 4, *range(6, 22)]
    assert run_jobs(store) == 0, "once is enough"
    store.close()


def test_entries_hidden_in_one_run_are_not_passed_over_for_those_of_the_next() -> None:
    files = SimulatedFiles()
    sealed(files, [40, 40]).close()
    flip_key(files, 5)
    store = opened_at(files, 1)
    assert len(files.list("/data/runs")) == 2
    assert sequences(store, 1, 20) == [1, 2, 3, 4, *range(6, 22)]
    assert sequences(store, 1, 81) == [1, 2, 3, 4, *range(6, 82)]
    store.close()


def test_what_is_lost_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    store = sealed(files, [100])
    flip_key(files, 5)
    while store.scrub(1 << 20):
        pass
    run_jobs(store)
    looked: list[str] = []
    anywhere = Run.entries_anywhere

    def counted(run: Run, *which: Any) -> list[RunRow]:
        looked.append(run.path)
        return anywhere(run, *which)

    monkeypatch.setattr(Run, "entries_anywhere", counted)
    for from_seq in (1, 1, 3, 5):
        assert sequences(store, from_seq, 200)[-1] == 101
    assert len(looked) == 1
    store.close()


def test_a_reader_of_one_entry_gets_past_those_that_cannot_be_read() -> None:
    files = SimulatedFiles()
    store = sealed(files, [100])
    (path,) = files.paths("/data/runs")
    for number in range(3):
        files.flip_bit(path, number * len(b"message"))
    assert sequences(store, 1, 1) == [4]
    assert {damage.first_lost_seq for damage in store.damage()} == {1, 2, 3}
    store.close()
