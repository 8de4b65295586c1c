"""A long merge and a sealing beside it, crashed before every call of either."""

from contextlib import suppress
from random import Random

import pytest

from syncline.storage.base import Job, StreamKind, commit
from syncline.storage.log.jobs import MergeJob, SealJob
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min

FOLDER = "/data"
QUEUES = [StreamId(bytes([number]) * 24) for number in range(3)]
_TRY_COUNT = 1_000
_CALL_COUNT_MAX = 2_000


def opened(files: SimulatedFiles) -> LogStore:
    options = StoreOptions(segment_bytes=segment_bytes_min)
    return LogStore.open(FOLDER, files, options, now_ms=1, random_bytes=Random(1).randbytes)


def body(queue: StreamId, seq: int) -> bytes:
    return b"%d:%06d " % (queue[0], seq) * 500


class Life:
    """A store, and what was acknowledged: the last sequence of each queue that is durable."""

    def __init__(self, files: SimulatedFiles, durable: dict[StreamId, int]) -> None:
        self.durable = durable
        self.store = opened(files)

    def write(self) -> None:
        for queue in QUEUES:
            self.store.append(queue, body(queue, self.store.state(queue).next), 1)
        commit(self.store)
        self.durable = {queue: self.store.state(queue).next - 1 for queue in QUEUES}

    def until(self, kind: type[Job]) -> Job:
        """Work on until such a job is given out."""
        for _ in range(_TRY_COUNT):
            job = self.store.take_job()
            if isinstance(job, kind):
                return job
            if job is None:
                self.write()
            else:
                self.store.finish_job(job, self.store.run_job(job))
        raise AssertionError(f"no {kind.__name__} is ever due")

    def merge_and_seal(self, *, is_run_first: bool, is_merged_first: bool) -> None:
        store = self.store
        merge = self.until(MergeJob)
        merged = store.run_job(merge) if is_run_first else None
        seal = self.until(SealJob)
        sealed = store.run_job(seal)
        self.write()
        if not is_run_first:
            merged = store.run_job(merge)
        done = [(merge, merged), (seal, sealed)]
        for job, result in done if is_merged_first else done[::-1]:
            store.finish_job(job, result)
            self.write()


def check(store: LogStore, durable: dict[StreamId, int]) -> None:
    assert not store.damage()
    for queue in QUEUES:
        state = store.state(queue)
        assert (state.first, state.next > durable[queue]) == (1, True)
        for seq in range(1, state.next, 50):
            count = min(50, state.next - seq)
            found = store.read(queue, seq, count, 1 << 20)
            assert [(entry.seq, entry.payload) for entry in found] == [
                (number, body(queue, number)) for number in range(seq, seq + count)
            ]


@pytest.fixture(scope="module")
def begun() -> tuple[SimulatedFiles, dict[StreamId, int]]:
    """So many runs that a merge is due, and the router is gone."""
    files = SimulatedFiles()
    life = Life(files, {})
    for queue in QUEUES:
        life.store.create(queue, StreamKind.QUEUE, 0, 1)
    life.until(MergeJob)
    return files.kill(Random(1)), life.durable


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_merged_first", [True, False])
@pytest.mark.parametrize("is_run_first", [True, False])
def test_nothing_is_lost_at_any_call_of_two_jobs(
    begun: tuple[SimulatedFiles, dict[StreamId, int]],
    is_run_first: bool,
    is_merged_first: bool,
) -> None:
    before, durable = begun
    for call in range(1, _CALL_COUNT_MAX):
        files = before.kill(Random(call))
        life = Life(files, durable)
        files.crash_after(call)
        is_through = False
        with suppress(SimulatedCrashError):
            life.merge_and_seal(is_run_first=is_run_first, is_merged_first=is_merged_first)
            is_through = True
        after = (files.kill if call % 2 else files.crash)(Random(call))
        check(opened(after), life.durable)
        if is_through:
            assert call > 50
            return
    pytest.fail("there are more calls than were crashed")
