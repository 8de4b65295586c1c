"""Upkeep goes on: after damage, after a refusal, after a restart."""

from random import Random

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import StreamKind, commit
from syncline.storage.log import manifest
from syncline.storage.log.jobs import MergeJob, PrepareTableJob, SealJob
from syncline.storage.log.store import LogStore
from syncline.storage.log.table import LOAD_MAX
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.log_files import stream_id
from tests.unit.storage.test_log_adopting import FOLDER, QUEUES, check, keep_house, opened, write
from tests.unit.storage.test_log_long_merges import until

QUEUE = QUEUES[0]


def made(files: SimulatedFiles) -> LogStore:
    store = opened(files)
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    commit(store)
    return store


def append(store: LogStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.append(QUEUE, b"%04d" % number + bytes(4_000), 1)
        commit(store)


def numbers_in(store: LogStore) -> list[int]:
    return [int(entry.payload[:4]) for entry in store.read(QUEUE, 1, 1_000, 1 << 20)]


def segments_in(files: SimulatedFiles) -> list[str]:
    return [name for name in files.list(f"{FOLDER}/wal") if name[0].isdigit()]


@pytest.mark.parametrize("place", [-2, -3, 0])
def test_sealing_goes_on_where_a_segment_is_missing(place: int) -> None:
    files = SimulatedFiles()
    store = made(files)
    append(store, 0, 60)
    store.close()
    names = segments_in(files)
    assert len(names) > 3
    files.remove(f"{FOLDER}/wal/{names[place]}")

    store = opened(files)
    assert store.damage()
    kept = numbers_in(store)
    assert 30 < len(kept) < 60
    keep_house(store)
    assert store.describe()["live_segments"] == 1
    for _ in range(2):
        assert numbers_in(store) == kept
        store.close()
        store = opened(files)
    append(store, 60, 120)
    keep_house(store)
    store.close()
    store = opened(files)
    assert numbers_in(store) == [*kept, *range(60, 120)]
    store.close()


@pytest.mark.parametrize("is_killed", [True, False])
def test_runs_that_nobody_wants_go_after_a_restart(is_killed: bool) -> None:
    files = SimulatedFiles()
    store = made(files)
    append(store, 0, 100)
    keep_house(store)
    assert files.list(f"{FOLDER}/runs")
    store.truncate_before(QUEUE, 101)
    append(store, 100, 101)
    # Stopped before upkeep had a look.
    if not is_killed:
        store.close()
    store = opened(files.kill(Random(1)) if is_killed else files)
    keep_house(store)
    assert store.describe()["runs"] == 0
    assert numbers_in(store) == [100]
    assert store.take_job() is None, "once is enough"
    store.close()


@pytest.mark.parametrize("call", ["write", "create"])
@pytest.mark.parametrize("rotate_bytes", [1 << 20, 0])
@pytest.mark.parametrize("kind", [SealJob, MergeJob, PrepareTableJob])
def test_a_job_for_which_there_is_no_room_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[SealJob | MergeJob | PrepareTableJob],
    rotate_bytes: int,
    call: str,
) -> None:
    files = SimulatedFiles()
    store = opened(files)
    for queue in QUEUES:
        store.create(queue, StreamKind.QUEUE, 0, 1)
    if kind is PrepareTableJob:
        write(store, 1)
        while store._table.load <= LOAD_MAX:  # pyright: ignore[reportPrivateUsage]
            store.create(StreamId(stream_id(store.stats().stream_count)), StreamKind.QUEUE, 0, 1)
            commit(store)
    job = until(store, kind)
    monkeypatch.setattr(manifest, "_ROTATE_BYTES", rotate_bytes)
    before = files_made(files)
    for nth in range(1, 1_000):
        files.fail(call, nth)
        try:
            result = store.run_job(job)
        except StoreFullError:
            assert files_made(files) == before
        else:
            break
        for after in (files.kill(Random(nth)), files.crash(Random(nth))):
            again = opened(after)
            check(again)
            again.close()
        job = until(store, kind)
    else:
        raise AssertionError("it never ends")
    assert nth > 1
    # The one that was not met must not be met any more.
    files.fail(call, 1 << 40)
    store.finish_job(job, result)
    check(store)
    store.close()


def test_a_stream_for_which_the_table_cannot_grow_is_refused_and_work_goes_on() -> None:
    files = SimulatedFiles()
    store = made(files)
    files.capacity_bytes = sum(len(files.read_all(path)) for path in files.paths(FOLDER)) + 8_000
    streams = [StreamId(stream_id(number)) for number in range(1024)]
    created: list[StreamId] = []
    for stream in streams:
        try:
            store.create(stream, StreamKind.QUEUE, 0, 1)
        except StoreFullError:
            break
        created.append(stream)
        if len(created) % 300 == 0:
            commit(store)
    assert 900 < len(created) < 1024
    with pytest.raises(StoreFullError, match="table"):
        store.create(streams[-1], StreamKind.QUEUE, 0, 1)
    store.append(QUEUE, b"goes on", 1)
    store.delete(created.pop())
    commit(store)
    store = opened(files.kill(Random(1)))
    assert {*store.streams()} == {QUEUE, *created}
    assert [entry.payload for entry in store.read(QUEUE, 1, 9, 1_000)] == [b"goes on"]

    files.capacity_bytes = None
    store = opened(files.kill(Random(1)))
    for stream in streams[-2:]:
        store.create(stream, StreamKind.QUEUE, 0, 1)
    commit(store)
    assert store.describe()["table_slots"] > 1024
    assert {*store.streams()} == {QUEUE, *streams[-2:], *created}


def files_made(files: SimulatedFiles) -> list[str]:
    return [path for part in ("runs", "table") for path in files.paths(f"{FOLDER}/{part}")]
