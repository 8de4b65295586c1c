"""A long merge goes on beside other upkeep: nothing waits for it, and nothing is lost by that."""

import threading
from contextlib import suppress
from random import Random
from typing import TypeVar

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import StreamKind, commit
from syncline.storage.log.jobs import (
    MERGE_FAN_IN,
    MeasureJob,
    MergeJob,
    MergeResult,
    PrepareTableJob,
    SealJob,
    SealResult,
)
from syncline.storage.log.manifest import Manifest, read_manifest
from syncline.storage.log.opening import table_path
from syncline.storage.log.store import LogStore
from syncline.storage.log.table import CAPACITY_MIN
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.log_files import stream_id
from tests.unit.storage.test_log_adopting import FOLDER, QUEUES, check, opened, write

_TRY_COUNT = 1_000
LogJob = TypeVar("LogJob", bound=MergeJob | SealJob | MeasureJob | PrepareTableJob)


def until(store: LogStore, kind: type[LogJob]) -> LogJob:
    """Do upkeep, and write on, until such a job is given out."""
    for _ in range(_TRY_COUNT):
        job = store.take_job()
        if isinstance(job, kind):
            return job
        if job is not None:
            store.finish_job(job, store.run_job(job))
        else:
            write(store, 2)
    raise AssertionError(f"no {kind.__name__} is ever due")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def store(files: SimulatedFiles) -> LogStore:
    made = opened(files)
    for queue in QUEUES:
        made.create(queue, StreamKind.QUEUE, 0, 1)
    return made


@pytest.mark.parametrize("is_merged_first", [True, False])
@pytest.mark.parametrize("is_run_first", [True, False])
def test_segments_are_sealed_while_runs_are_merged(
    files: SimulatedFiles, store: LogStore, is_run_first: bool, is_merged_first: bool
) -> None:
    merge = until(store, MergeJob)
    assert len(merge.run_paths) == MERGE_FAN_IN
    merged = store.run_job(merge) if is_run_first else None
    seal = until(store, SealJob)
    sealed = store.run_job(seal)
    if not is_run_first:
        merged = store.run_job(merge)
    first, second = (merge, merged), (seal, sealed)
    for job, result in (first, second) if is_merged_first else (second, first):
        store.finish_job(job, result)
    check(store)
    assert isinstance(merged, MergeResult)
    assert isinstance(sealed, SealResult)
    assert merged.run is not None
    listed = read_manifest(files, FOLDER)
    assert listed is not None
    names = {run.name for run in listed.runs}
    assert {merged.run.name, *(run.name for run in sealed.runs)} == names
    assert sorted(path.rpartition("/")[2] for path in files.paths(f"{FOLDER}/runs")) == sorted(
        names
    )
    after = opened(files.crash(Random(1)))
    check(after)
    assert not after.damage()


def test_runs_belong_to_the_long_merge_until_it_is_done(store: LogStore) -> None:
    merge = until(store, MergeJob)
    for queue in QUEUES:
        state = store.state(queue)
        # So much is let go of that runs would be measured, and half dead ones merged.
        store.truncate_before(queue, state.next - 1)
    commit(store)
    for _ in range(20):
        write(store, 10)
        while (job := store.take_job()) is not None:
            assert not isinstance(job, MergeJob | MeasureJob)
            store.finish_job(job, store.run_job(job))
    store.finish_job(merge, store.run_job(merge))
    until(store, MeasureJob)
    check(store)


@pytest.mark.parametrize("kind", [MergeJob, SealJob])
def test_a_table_that_was_replaced_stays_until_no_job_can_open_it(
    files: SimulatedFiles, store: LogStore, kind: type[MergeJob] | type[SealJob]
) -> None:
    job = until(store, kind)
    made_count = 0
    while not set(job.table_paths).isdisjoint(listed_tables(files)):
        # In one batch: where the job is no long merge, no other job can make a larger table.
        for _ in range(CAPACITY_MIN):
            store.create(StreamId(stream_id(made_count)), StreamKind.QUEUE, 0, 1)
            made_count += 1
        commit(store)
        for _ in range(_TRY_COUNT if kind is MergeJob else 0):
            if (other := store.take_job()) is not None:
                store.finish_job(other, store.run_job(other))
    store.finish_job(job, store.run_job(job))
    until(store, SealJob)
    assert sorted(files.paths(f"{FOLDER}/table")) == sorted(listed_tables(files))
    check(store)
    assert store.stats().stream_count == len(QUEUES) + made_count


def listed_tables(files: SimulatedFiles) -> set[str]:
    listed = read_manifest(files, FOLDER)
    assert listed is not None
    return {table_path(FOLDER, number) for number in listed.table_generations}


@pytest.mark.parametrize("is_full_before", [True, False])
def test_a_long_merge_that_finds_no_room_is_due_again(
    files: SimulatedFiles, store: LogStore, is_full_before: bool
) -> None:
    merge = until(store, MergeJob)
    seal = until(store, SealJob)
    nearly_full = sum(len(files.read_all(path)) for path in files.paths(FOLDER)) + 9_000

    def fill_at(kind: str) -> None:
        if kind == "write":
            files.capacity_bytes = nearly_full

    if is_full_before:
        files.capacity_bytes = nearly_full
    else:
        files.before_call = fill_at
    write_count = files.calls["write"]
    with pytest.raises(StoreFullError):
        store.run_job(merge)
    # What little room there is stays for others.
    assert (files.calls["write"] == write_count) is is_full_before
    files.capacity_bytes = files.before_call = None
    store.finish_job(seal, store.run_job(seal))
    again = until(store, MergeJob)
    store.finish_job(again, store.run_job(again))
    check(store)


def test_two_jobs_that_end_at_once_are_both_listed(
    files: SimulatedFiles, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each adds to the list that it found: who comes second must find what the first has added."""
    merge, seal = until(store, MergeJob), until(store, SealJob)
    in_list = threading.Barrier(2)
    change = Manifest.change

    def slow_change(self: Manifest, **changes: object) -> object:
        # Both stand here at once, if nothing keeps them from it.
        with suppress(threading.BrokenBarrierError):
            in_list.wait(0.3)
        return change(self, **changes)

    monkeypatch.setattr(Manifest, "change", slow_change)
    results: dict[str, object] = {}
    threads = [
        threading.Thread(target=lambda job=job: results.update({job.name: store.run_job(job)}))
        for job in (merge, seal)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sealed = results["seal"]
    assert isinstance(sealed, SealResult)
    listed = read_manifest(files, FOLDER)
    assert listed is not None
    names = {run.name for run in listed.runs}
    assert {run.name for run in sealed.runs} <= names
    assert not {path.rpartition("/")[2] for path in merge.run_paths} & names
    store.finish_job(merge, results["merge"])
    store.finish_job(seal, sealed)
    check(store)


def test_segments_are_sealed_while_runs_are_measured_after_a_start(
    files: SimulatedFiles, store: LogStore
) -> None:
    until(store, MergeJob)
    store.close()
    store = opened(files)
    measure = until(store, MeasureJob)
    seal = until(store, SealJob)
    sealed = store.run_job(seal)
    measured = store.run_job(measure)
    store.finish_job(seal, sealed)
    store.finish_job(measure, measured)
    check(store)


def test_a_backup_waits_for_the_long_merge(files: SimulatedFiles, store: LogStore) -> None:
    merge = until(store, MergeJob)
    copying = store.backup("/copy")
    assert [next(copying), next(copying)] == [0, 0]
    store.finish_job(merge, store.run_job(merge))
    assert sum(copying) > 0
    copy = opened(files, "/copy")
    check(copy)
    assert not copy.damage()
