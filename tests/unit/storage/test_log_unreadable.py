"""Blocks that the device cannot read cost what is in them, and everybody else is served."""

from random import Random
from typing import Any

import pytest

from syncline.errors import DeviceError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.format import BLOCK_BYTES
from syncline.storage.log.reading import UNREADABLE_BLOCKS_MAX
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.testing.handles import SimulatedFile
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min

ONE = StreamId(b"1" * 24)
TWO = StreamId(b"2" * 24)
FIRST = "/data/wal/000000000001.wal"
SECOND = "/data/wal/000000000002.wal"


class Device:
    """Which blocks of which files cannot be read."""

    def __init__(self) -> None:
        self.bad: set[tuple[str, int]] = set()

    def check(self, path: str, offset: int, length: int) -> None:
        for bad_path, block in self.bad:
            is_met = offset < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < offset + length
            if path == bad_path and is_met:
                raise DeviceError(path, "reading", "input/output error")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    read = SimulatedFile.read

    def checked(file: SimulatedFile, offset: int, length: int) -> bytes:
        made.check(file.path, offset, length)
        return read(file, offset, length)

    monkeypatch.setattr(SimulatedFile, "read", checked)
    return made


def opened(files: SimulatedFiles, seed: int) -> LogStore:
    options = StoreOptions(segment_bytes=segment_bytes_min)
    return LogStore.open("/data", files, options, now_ms=1, random_bytes=Random(seed).randbytes)


def filled(files: SimulatedFiles, batch_count: int) -> None:
    """Batches of two blocks, each with a message of one queue in the first and of the other."""
    store = opened(files, 0)
    for stream in (ONE, TWO):
        store.create(stream, StreamKind.QUEUE, 0, 1)
    commit(store)
    for _ in range(batch_count):
        store.append(ONE, b"one" * 1_000, 1)
        store.append(TWO, b"two" * 1_000, 1)
        commit(store)
    store.close()


def sequences(store: LogStore, stream: StreamId) -> list[int]:
    return [entry.seq for entry in store.read(stream, 1, 100, 1 << 20)]


# Block 0 is the batch that makes the queues; batch n has blocks 2n - 1 and 2n. The message of the
# second queue begins in the first of them: without its head it is lost too.
@pytest.mark.parametrize(
    ("block", "lost_of_one", "lost_of_two"), [(3, [2], [2]), (4, [], [2]), (5, [3], [3])]
)
def test_an_unreadable_block_costs_its_messages_and_is_reported(
    device: Device, block: int, lost_of_one: list[int], lost_of_two: list[int]
) -> None:
    files = SimulatedFiles()
    filled(files, 5)
    device.bad = {(FIRST, block)}
    for seed in (1, 2):
        store = opened(files, seed)
        assert sequences(store, ONE) == [seq for seq in range(1, 6) if seq not in lost_of_one]
        assert sequences(store, TWO) == [seq for seq in range(1, 6) if seq not in lost_of_two]
        assert {(damage.file, damage.offset) for damage in store.damage()} >= {
            (FIRST, (block - 1) // 2 * 2 * BLOCK_BYTES + BLOCK_BYTES)
        }
        assert store.stats().torn_tail_count == 0
        store.close()


@pytest.mark.parametrize(("block", "kept_of_one"), [(9, 4), (10, 5)])
def test_an_unreadable_last_batch_is_no_torn_tail(
    device: Device, block: int, kept_of_one: int
) -> None:
    files = SimulatedFiles()
    filled(files, 5)
    device.bad = {(FIRST, block)}
    store = opened(files, 1)
    assert store.stats().torn_tail_count == 0
    assert (FIRST, 9 * BLOCK_BYTES) in {(found.file, found.offset) for found in store.damage()}
    assert sequences(store, ONE) == list(range(1, kept_of_one + 1))
    # It is not written over: what comes next stands behind it.
    seq = store.append(ONE, b"next", 1)
    assert seq == kept_of_one + 1
    commit(store)
    store.close()
    store = opened(files, 2)
    assert sequences(store, ONE) == list(range(1, seq + 1))
    assert store.damage(), "until its segment is gone"
    store.close()


def test_a_last_batch_that_is_in_memory_alone_is_written_once_more(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimulatedFiles()
    filled(files, 5)

    def forget(file: SimulatedFile, _offset: int, _length: int) -> None:
        if file.path == FIRST:
            device.bad = {(FIRST, 10)}

    def write(file: SimulatedFile, *where: Any) -> None:
        device.bad = set()
        plain(file, *where)

    plain = SimulatedFile.write
    monkeypatch.setattr(SimulatedFile, "forget_cached", forget)
    monkeypatch.setattr(SimulatedFile, "write", write)
    store = opened(files, 1)
    assert sequences(store, TWO) == [1, 2, 3, 4, 5]
    assert not store.damage()
    store.close()


def test_an_unreadable_last_batch_that_can_be_read_again_hides_nothing_behind_it(
    device: Device,
) -> None:
    files = SimulatedFiles()
    filled(files, 5)
    device.bad = {(FIRST, 9)}
    store = opened(files, 1)
    for stream in (ONE, TWO):
        assert store.append(stream, b"again", 1) == 5
    store.append(TWO, b"behind it", 1)
    commit(store)
    store.close()
    device.bad = set()
    store = opened(files, 2)
    assert store.read(TWO, 6, 1, 1_000)[0].payload == b"behind it"
    assert sequences(store, TWO)[-2:] == [5, 6]
    store.close()


def test_a_segment_whose_only_batch_is_unreadable_is_set_aside(device: Device) -> None:
    files = SimulatedFiles()
    # The first segment has one batch of a block and seven of two. Of the eighth only the message of
    # the first queue fits into its last block: the other begins the next segment.
    filled(files, 8)
    device.bad = {(SECOND, 0)}
    store = opened(files, 1)
    assert sequences(store, ONE) == list(range(1, 9))
    assert sequences(store, TWO) == list(range(1, 8))
    (path,) = [path for path in files.paths("/data/wal") if "unreached" in path]
    assert path in {damage.file for damage in store.damage()}
    store.append(ONE, b"next", 1)
    commit(store)
    store.close()


def test_a_block_behind_the_end_is_of_no_interest(device: Device) -> None:
    files = SimulatedFiles()
    filled(files, 3)
    device.bad = {(FIRST, 12)}
    store = opened(files, 1)
    assert not store.damage()
    assert sequences(store, ONE) == [1, 2, 3]
    store.close()


def test_an_entry_that_becomes_unreadable_is_left_out(device: Device) -> None:
    files = SimulatedFiles()
    filled(files, 5)
    store = opened(files, 1)
    device.bad = {(FIRST, 4)}
    assert sequences(store, ONE) == [1, 2, 3, 4, 5]
    assert sequences(store, TWO) == [1, 3, 4, 5]
    assert [(found.stream, found.first_lost_seq) for found in store.damage()] == [(TWO, 2)]
    store.close()


def test_a_segment_with_an_unreadable_block_is_sealed_without_it(device: Device) -> None:
    files = SimulatedFiles()
    filled(files, 40)
    device.bad = {(FIRST, 4)}
    store = opened(files, 1)
    run_jobs(store)
    assert store.describe()["live_segments"] == 1
    assert sequences(store, ONE) == list(range(1, 41))
    assert sequences(store, TWO) == [1, *range(3, 41)]
    assert FIRST in {damage.file for damage in store.damage()}
    store.close()


def test_an_unreadable_block_of_a_run_costs_its_entries_and_is_mended(device: Device) -> None:
    files = SimulatedFiles()
    filled(files, 40)
    store = opened(files, 1)
    run_jobs(store)
    path = files.paths("/data/runs")[0]
    device.bad = {(path, 2)}
    while store.scrub(1 << 20):
        pass
    lost = {(found.stream, found.first_lost_seq) for found in store.damage()}
    assert 1 <= len(lost) <= 3
    assert all(found.file == path for found in store.damage())
    assert run_jobs(store) >= 1, "the run is written anew"
    assert path not in files.paths("/data/runs")
    for stream in (ONE, TWO):
        expected = [seq for seq in range(1, 41) if (stream, seq) not in lost]
        assert sequences(store, stream) == expected
    store.close()


def test_a_device_that_reads_next_to_nothing_is_not_taken_for_damage(device: Device) -> None:
    files = SimulatedFiles()
    options = StoreOptions(segment_bytes=1 << 20)
    chance = Random(0)
    LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes).close()
    device.bad = {(FIRST, block) for block in range(UNREADABLE_BLOCKS_MAX + 1)}
    with pytest.raises(DeviceError):
        LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)
