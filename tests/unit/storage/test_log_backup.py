"""A backup of a store that goes on: whatever happens meanwhile, the copy can be opened."""

from collections.abc import Callable
from itertools import count, islice
from random import Random

import pytest

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.base import Job, StreamKind, commit
from syncline.storage.log import backup
from syncline.storage.log.jobs import SealJob
from syncline.storage.log.runset import RunSet
from syncline.storage.log.store import LogStore
from syncline.storage.log.table import CAPACITY_MIN
from syncline.storage.log.upkeep import Upkeep
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.log_files import stream_id
from tests.unit.storage.test_log_adopting import QUEUES, check, made, opened, write

COPY = "/copy"
Call = Callable[..., object]
STREAMS = [StreamId(stream_id(number)) for number in range(8 * CAPACITY_MIN)]


@pytest.mark.parametrize("growth_count", [1, 2, 3])
@pytest.mark.parametrize("step_count", range(2, 7))
def test_the_table_may_grow_while_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, step_count: int, growth_count: int
) -> None:
    monkeypatch.setattr(backup, "_CHUNK_BYTES", CAPACITY_MIN * 32)
    files = SimulatedFiles()
    store = made(files)
    write(store, 2)
    first = [*store.streams()]
    copying = store.backup(COPY)
    assert sum(islice(copying, step_count)) > 0
    waiting = iter(STREAMS)
    capacity = store.describe()["table_slots"]
    for _ in range(growth_count):
        while store.describe()["table_slots"] == capacity:
            for stream in islice(waiting, CAPACITY_MIN // 4):
                store.create(stream, StreamKind.QUEUE, 0, 1)
            commit(store)
        capacity = store.describe()["table_slots"]
    for _ in copying:
        pass
    is_open = files.open_file_count
    copy = opened(files, COPY)
    check(copy)
    found = {*copy.streams()}
    assert found >= {*first}
    # A queue without its slot, or two slots of one, would not be found like this.
    assert len(found) == copy.stats().stream_count
    for stream in found - {*first}:
        assert copy.state(stream).next == 1
    copy.close()
    assert files.open_file_count == is_open
    store.close()
    assert files.open_file_count == 0


def test_a_backup_that_is_done_is_there_after_a_power_cut() -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 20)
    for _ in store.backup(COPY):
        pass
    for seed in range(10):
        after = files.crash(Random(seed))
        assert after.exists(COPY)
        copy = opened(after, COPY)
        assert {*copy.streams()} == {*QUEUES}
        check(copy)


def test_a_backup_that_finds_no_room_leaves_no_file_open() -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 20)
    is_open = files.open_file_count
    for nth in count(1):
        files.fail("create", nth)
        folder = f"{COPY}{nth}"
        try:
            for _ in store.backup(folder):
                pass
        except StoreFullError:
            assert files.open_file_count == is_open
        else:
            assert nth > 5
            return


def called_before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, step: Call) -> None:
    """As if another thread did `step` whenever the owner is about to do that."""
    original: Call = getattr(owner, name)

    def both(*arguments: object) -> object:
        step()
        return original(*arguments)

    monkeypatch.setattr(owner, name, both)


def sealing(store: LogStore) -> SealJob:
    """Taken, and what was due before is done."""
    while not isinstance(job := store.take_job(), SealJob):
        assert job is not None
        store.finish_job(job, store.run_job(job))
    return job


def test_a_backup_waits_until_the_result_of_a_job_is_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 20)
    job = sealing(store)
    copying = store.backup(COPY)
    assert [next(copying), next(copying)] == [0, 0]
    result = store.run_job(job)
    with monkeypatch.context() as patch:
        copied: list[int] = []
        called_before(patch, RunSet, "add", lambda: copied.append(next(copying)))
        store.finish_job(job, result)
    assert copied
    assert not any(copied), "it has begun with runs missing"
    assert sum(copying) > 0
    copy = opened(files, COPY)
    check(copy)
    assert copy.describe()["run_rows"] > 0
    copy.close()


def test_a_backup_begins_after_the_job_that_is_being_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 20)
    copying = store.backup(COPY)
    job: Job | None = None
    with monkeypatch.context() as patch:
        called_before(patch, Upkeep, "_segment_task", lambda: next(copying))
        job = store.take_job()
    assert job is not None
    assert next(copying) == 0
    store.finish_job(job, store.run_job(job))
    assert sum(copying) > 0


def test_upkeep_goes_on_after_a_result_that_could_not_be_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = made(SimulatedFiles())
    write(store, 20)
    job = sealing(store)
    result = store.run_job(job)

    def refuse() -> None:
        raise DeviceError("/data/runs", "opening", "input/output error")

    with monkeypatch.context() as patch:
        called_before(patch, RunSet, "add", refuse)
        with pytest.raises(DeviceError):
            store.finish_job(job, result)
    copying = store.backup(COPY)
    assert next(copying) == 0
    assert next(copying) > 0
