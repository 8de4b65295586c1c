"""What the router does by itself: upkeep, heartbeats, expiry, scrubbing, and watching the disk."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import cast

import pytest

from syncline.errors import DeviceError, StoreBusyError, StoreFullError
from syncline.server import housekeeping as module
from syncline.server.committer import Committer
from syncline.server.housekeeping import Housekeeping
from syncline.server.logs import Log
from syncline.server.metrics import Metrics
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.storage.base import Damage, Job, StreamKind, commit
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min
from tests.unit.server.conftest import Rig

QUEUE = StreamId(b"q" * 24)


@dataclass
class RecordedLog:
    events: list[tuple[str, dict[str, object]]] = field(
        default_factory=list[tuple[str, dict[str, object]]]
    )

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    warning = error = info


def named_job(name: str) -> Job:
    job: Job = type("NamedJob", (), {"name": name})()
    return job


class House:
    """Housekeeping over the rig, with a disk whose free space is set by hand."""

    def __init__(self, rig: Rig, settings: Settings) -> None:
        self.free_bytes = 10**9
        self.log = RecordedLog()
        self.keeping = Housekeeping(
            rig.store,
            rig.committer,
            rig.queues,
            lambda: self.free_bytes,
            settings,
            lambda: rig.now_ms,
            cast(Log, self.log),
            rig.metrics,
        )

    async def run_until(self, condition: Callable[[], bool]) -> None:
        await run_until(self.keeping, condition)


async def run_until(keeping: Housekeeping, condition: Callable[[], bool]) -> None:
    running = asyncio.create_task(keeping.run())
    try:
        async with asyncio.timeout(15):
            while not condition():
                if running.done():
                    running.result()
                await asyncio.sleep(0.001)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(module, "_FULL_SECONDS", 0.001)
    monkeypatch.setattr(module, "_EXPIRY_SECONDS", 0.001)


async def test_acknowledgements_that_nobody_waits_for_reach_the_disk(rig: Rig) -> None:
    rig.store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    rig.store.append(QUEUE, b"x", 1)
    await rig.committer.durable()
    rig.store.truncate_before(QUEUE, 2)
    await rig.committer.durable()
    assert rig.committer.stats.record_count == 2, "it is held back"
    await House(rig, Settings()).run_until(lambda: rig.committer.stats.record_count == 3)


async def test_old_messages_are_dropped_and_counted(rig: Rig) -> None:
    rig.store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    for time_ms in (1_000, 2_000, 900_000):
        rig.store.append(QUEUE, b"x", time_ms)
    await rig.committer.durable()
    rig.now_ms = 1_000_000
    house = House(rig, Settings(queues_expire_after_seconds=900))
    await house.run_until(lambda: rig.store.state(QUEUE).first == 3)
    assert b"syncline_expired_messages_total 2.0" in rig.metrics.text()


async def test_nothing_expires_unless_asked_for(rig: Rig) -> None:
    rig.store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    rig.store.append(QUEUE, b"x", 1)
    await rig.committer.durable()
    rig.now_ms = 10**15
    turns = iter(range(20))
    await House(rig, Settings()).run_until(lambda: next(turns, None) is None)
    assert rig.store.state(QUEUE).first == 1


async def test_jobs_run_outside_the_loop_and_are_finished_in_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[Job] = [named_job("seal"), named_job("merge")]
    finished: list[tuple[str, object]] = []
    loop_thread = asyncio.get_running_loop()

    def run(job: Job) -> object:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return f"result of {job.name}"

    monkeypatch.setattr(rig.store, "take_job", lambda: due.pop(0) if due else None)
    monkeypatch.setattr(rig.store, "run_job", run)

    def finish(job: Job, result: object) -> None:
        assert asyncio.get_running_loop() is loop_thread
        finished.append((job.name, result))

    monkeypatch.setattr(rig.store, "finish_job", finish)
    await House(rig, Settings()).run_until(lambda: len(finished) == 2)
    assert sorted(finished) == [("merge", "result of merge"), ("seal", "result of seal")]
    assert b'syncline_upkeep_jobs_total{job="merge"} 1.0' in rig.metrics.text()


async def test_a_long_job_keeps_no_other_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[Job] = [named_job("merge"), named_job("seal"), named_job("seal")]
    finished: list[str] = []
    are_sealed = threading.Event()

    def run(job: Job) -> object:
        if job.name == "merge":
            assert are_sealed.wait(10)
        return None

    def finish(job: Job, _: object) -> None:
        finished.append(job.name)
        if finished.count("seal") == 2:
            are_sealed.set()

    monkeypatch.setattr(rig.store, "take_job", lambda: due.pop(0) if due else None)
    monkeypatch.setattr(rig.store, "run_job", run)
    monkeypatch.setattr(rig.store, "finish_job", finish)
    await House(rig, Settings()).run_until(lambda: len(finished) == 3)
    assert finished == ["seal", "seal", "merge"]


async def test_a_job_without_room_is_due_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Job] = []
    finished: list[object] = []

    def run(job: Job) -> object:
        tries.append(job)
        if len(tries) < 3:
            raise StoreFullError("data")
        return "done"

    # As a store does: what failed is given out again, one at a time.
    given = [0]

    def take() -> Job | None:
        if finished or given[0] > len(tries):
            return None
        given[0] += 1
        return named_job("seal")

    monkeypatch.setattr(rig.store, "take_job", take)
    monkeypatch.setattr(rig.store, "run_job", run)
    monkeypatch.setattr(rig.store, "finish_job", lambda job, result: finished.append(result))
    house = House(rig, Settings())
    await house.run_until(lambda: finished == ["done"])
    assert [event for event, _ in house.log.events] == ["no room for upkeep"] * 2


async def test_a_log_on_a_full_disk_goes_on_once_there_is_room() -> None:
    """Nothing here is made up: the store's own jobs fail, and are done later."""
    files = SimulatedFiles()
    options = StoreOptions(segment_bytes=segment_bytes_min)
    store = LogStore.open("/data", files, options, now_ms=1, random_bytes=Random(1).randbytes)
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    while store.describe()["live_segments"] < 4:
        store.append(QUEUE, bytes(8_000), 1)
        commit(store)
    used_bytes = sum(len(files.read_all(path)) for path in files.paths("/data"))
    files.capacity_bytes = used_bytes + 1_000
    committer = Committer.on_thread(store)
    queues = Queues(store, committer, lambda: 1, bytes)
    log = RecordedLog()
    keeping = Housekeeping(
        store, committer, queues, lambda: 10**9, Settings(), lambda: 1, cast(Log, log), Metrics()
    )

    def is_sealed() -> bool:
        if len(log.events) == 3:
            files.capacity_bytes = None
        return store.describe()["live_segments"] == 1

    await run_until(keeping, is_sealed)
    await committer.close()
    assert {event for event, _ in log.events} == {"no room for upkeep"}
    assert len(store.read(QUEUE, 1, 1_000, 1 << 20)) > 20
    store.close()


async def test_a_failed_device_ends_housekeeping(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[Job] = [named_job("seal")]

    def run(job: Job) -> object:
        raise DeviceError("data", "syncing", "input/output error")

    monkeypatch.setattr(rig.store, "take_job", lambda: due.pop(0) if due else None)
    monkeypatch.setattr(rig.store, "run_job", run)
    with pytest.raises(ExceptionGroup) as caught:
        await House(rig, Settings()).keeping.run()
    assert caught.group_contains(DeviceError)


async def test_producers_wait_for_upkeep_that_is_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rig.queues.create(None, None)
    real_append = rig.store.append
    has_room = False
    due: list[Job] = []

    def append(stream: StreamId, payload: bytes, now_ms: int) -> int:
        if not has_room:
            if not due:
                due.extend([named_job("make room"), named_job("take long")])
            raise StoreBusyError(2, 1)
        return real_append(stream, payload, now_ms)

    def finish(job: Job, result: object) -> None:
        nonlocal has_room
        has_room = True

    appended = threading.Event()

    def run(job: Job) -> None:
        if job.name == "take long":
            assert appended.wait(10), "whoever waits for room waits for all of the upkeep"

    monkeypatch.setattr(rig.store, "append", append)
    monkeypatch.setattr(rig.store, "take_job", lambda: due.pop(0) if due else None)
    monkeypatch.setattr(rig.store, "run_job", run)
    monkeypatch.setattr(rig.store, "finish_job", finish)
    appending = asyncio.create_task(rig.queues.append(queue, b"x"))
    appending.add_done_callback(lambda _: appended.set())
    await House(rig, Settings()).run_until(appending.done)
    assert appending.result() == 1


async def test_low_space_refuses_new_messages_until_there_is_more(rig: Rig) -> None:
    house = House(rig, Settings(store_free_bytes_min=8_000))
    house.free_bytes = 8_000
    house.keeping.watch_space()
    assert rig.queues.shortage is None
    house.free_bytes = 7_999
    house.keeping.watch_space()
    assert isinstance(rig.queues.shortage, StoreFullError)
    assert not rig.health.is_ready
    # A little above the reserve is not enough: else it would go to and fro.
    house.free_bytes = 8_999
    house.keeping.watch_space()
    assert rig.queues.shortage is not None
    house.free_bytes = 9_000
    house.keeping.watch_space()
    assert rig.queues.shortage is None
    assert [event for event, _ in house.log.events] == [
        "new messages are refused",
        "new messages are taken again",
    ]


async def test_low_space_is_seen_with_the_next_batch_and_so_is_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 3_600)
    house = House(rig, Settings(store_free_bytes_min=8_000))
    looks = 0

    def free_bytes() -> int:
        nonlocal looks
        looks += 1
        return house.free_bytes

    monkeypatch.setattr(house.keeping, "_free_bytes", free_bytes)

    async def write() -> int:
        await asyncio.sleep(0.05)
        looks_before = looks
        house.free_bytes = 100
        rig.store.create(QUEUE, StreamKind.QUEUE, 10, rig.now_ms)
        await rig.committer.durable()
        return looks_before

    writing = asyncio.create_task(write())
    was_short = False

    def is_over() -> bool:
        nonlocal was_short
        if rig.queues.shortage is not None:
            was_short, house.free_bytes = True, 9_000
        return was_short and rig.queues.shortage is None

    await house.run_until(is_over)
    assert await writing == 1, "nothing was written: nobody can have run out of room"


async def test_new_damage_is_logged_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Damage("runs/1", 7, "a row fails its checksum", QUEUE, 3, 1)]
    stats = rig.store.stats()
    monkeypatch.setattr(rig.store, "damage", lambda: found)
    monkeypatch.setattr(
        rig.store, "stats", lambda: type(stats)(0, 0, 0, 0, 0, 0, damage_count=len(found))
    )
    house = House(rig, Settings())
    await house.run_until(lambda: len(house.log.events) == 1)
    found.append(Damage("runs/2", 9, "a row fails its checksum"))
    await house.run_until(lambda: len(house.log.events) == 2)
    assert [fields["file"] for _, fields in house.log.events] == ["runs/1", "runs/2"]


async def test_sealed_files_are_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [65_536, 65_536, 100]
    monkeypatch.setattr(rig.store, "scrub", lambda bytes_max: left.pop(0) if left else 0)
    house = House(rig, Settings(upkeep_scrub_bytes_per_second=1_000_000_000))
    await house.run_until(lambda: not left)
    assert b"syncline_scrubbed_bytes_total 131172.0" in rig.metrics.text()
