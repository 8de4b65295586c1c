"""Durable before visible, in order, one batch in flight, and the loop never waits for the disk."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from syncline.errors import DeviceError, StorageError, StoreFullError
from syncline.server.batch_thread import BatchThread
from syncline.server.committer import Committer
from syncline.server.pace import COMPANY_BYTES_MAX, COMPANY_RECORDS_MIN, INLINE_BYTES_MAX
from syncline.values import limits
from tests.unit.server.staged_store import CuttingStore, StagedStore


class SlowDisk:
    """A disk whose write waits until it is told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def __call__(self) -> None:
        self.entered.release()
        assert self.go_on.acquire(timeout=15)
        if self.failure is not None:
            raise self.failure

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=15)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def store(disk: SlowDisk) -> AsyncIterator[StagedStore]:
    yield StagedStore(on_write=disk)
    # Whatever a failed test left waiting must not keep a thread for ever.
    disk.go_on.release(100)


@pytest.fixture
async def committer(store: StagedStore) -> Committer:
    return Committer.on_thread(store.as_store())


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        # The conditions are facts of plain lists; nothing there could set an event.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_nobody_is_told_before_the_write_has_returned(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    told: list[str] = []
    store.stage("a")
    committer.when_durable(lambda failure: told.append("a"))
    await disk.until_entered()
    # The loop is free while the disk is busy: these turns run.
    for _ in range(50):
        await asyncio.sleep(0)
    assert (told, store.visible) == ([], [])
    disk.go_on.release()
    await wait_for(lambda: told == ["a"])
    assert store.durable == ["a"]
    assert store.visible == ["a"]


async def test_writes_of_one_turn_are_one_batch(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    disk.go_on.release(10)

    async def produce(name: str) -> None:
        store.stage(name)
        await committer.durable()

    async with asyncio.TaskGroup() as group:
        for index in range(64):
            group.create_task(produce(str(index)))
    assert store.batches == [[str(index) for index in range(64)]]


async def test_producers_that_go_on_when_told_share_the_next_batch(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    disk.go_on.release(10)

    async def produce(name: str) -> None:
        for round_index in range(3):
            store.stage(f"{name}{round_index}")
            await committer.durable()

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(produce(name))
    assert [len(batch) for batch in store.batches] == [4, 4, 4]


async def test_a_batch_takes_what_came_while_the_last_was_written(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    told: list[str] = []

    def stage(name: str) -> None:
        store.stage(name)
        committer.when_durable(lambda failure: told.append(name))

    stage("a")
    await disk.until_entered()
    for name in "bcd":
        stage(name)
        await asyncio.sleep(0)
    disk.go_on.release()
    await disk.until_entered()
    # The first batch told its own waiter and nobody behind it.
    assert told == ["a"]
    disk.go_on.release()
    await wait_for(lambda: len(told) == 4)
    assert store.batches == [["a"], ["b", "c", "d"]]
    assert told == ["a", "b", "c", "d"]


class Company:
    """A committer whose last batches were small and of several writers, with a clock by hand."""

    def __init__(self, store: StagedStore) -> None:
        self.now = 0.0
        self.store = store
        loop = asyncio.get_running_loop()
        writer = BatchThread(store.as_store(), loop, lambda: self.now)
        self.committer = Committer(store.as_store(), loop, writer, lambda: self.now)
        self.committer.pace.learn(1_000, COMPANY_RECORDS_MIN, 0.004)
        assert self.committer.pace.company_seconds == 0.001
        self.told: list[str] = []

    def _wait(self, name: str) -> None:
        self.committer.when_durable(lambda failure: self.told.append(name))

    async def write(self, names: str, byte_count: int, seconds: float = 0.0) -> None:
        """One in each turn of the loop, each of which takes so long."""
        for name in names:
            self.store.stage(name, byte_count)
            self._wait(name)
            self.now += seconds
            await asyncio.sleep(0)


async def test_a_batch_waits_while_every_turn_brings_another_write(
    store: StagedStore, disk: SlowDisk
) -> None:
    disk.go_on.release(10)
    company = Company(store)
    await company.write("abcd", 1_000)
    await wait_for(lambda: len(company.told) == 4)
    assert store.batches == [["a", "b", "c", "d"]]


async def test_a_turn_without_a_write_ends_the_waiting(store: StagedStore, disk: SlowDisk) -> None:
    company = Company(store)
    await company.write("ab", 1_000)
    await asyncio.sleep(0)
    await disk.until_entered()
    await company.write("c", 1_000)
    disk.go_on.release(10)
    await wait_for(lambda: len(company.told) == 3)
    assert store.batches == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("byte_count", "seconds"), [(1_000, 0.000_4), (COMPANY_BYTES_MAX // 3 + 1, 0.0)]
)
async def test_company_is_waited_for_only_so_long_and_only_if_small(
    store: StagedStore, disk: SlowDisk, byte_count: int, seconds: float
) -> None:
    company = Company(store)
    await company.write("abcdef", byte_count, seconds)
    await disk.until_entered()
    assert store.batches == [["a", "b", "c"]]
    disk.go_on.release(10)
    await wait_for(lambda: len(company.told) == 6)


async def test_a_waiter_that_is_cancelled_does_not_cut_the_commit(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    told: list[str] = []
    mistakes: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: mistakes.append(context))
    store.stage("gone")
    waiter = asyncio.create_task(committer.durable())
    await disk.until_entered()
    store.stage("stays")
    committer.when_durable(lambda failure: told.append("stays"))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    disk.go_on.release(2)
    await wait_for(lambda: told == ["stays"])
    assert store.durable == ["gone", "stays"]
    assert mistakes == []


async def test_a_failed_device_is_final(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    told: list[StorageError | None] = []
    failing = asyncio.create_task(committer.failed())
    store.stage("a")
    committer.when_durable(told.append)
    await disk.until_entered()
    store.stage("b")
    committer.when_durable(told.append)
    disk.failure = DeviceError("data/1.wal", "syncing", "input/output error")
    disk.go_on.release(100)
    assert await failing is disk.failure
    # The disk would answer again, but nobody may believe it.
    disk.failure = None
    store.stage("c")
    committer.when_durable(told.append)
    committer.flush()
    with pytest.raises(DeviceError):
        await committer.durable()
    assert [type(failure) for failure in told] == [DeviceError] * 3
    assert store.batches == [["a"]]
    with pytest.raises(DeviceError):
        await committer.close()


async def test_room_is_refused_after_a_failure(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    store.stage("a", limits.waiting_bytes_max + 1)
    waiting = asyncio.create_task(committer.room())
    await disk.until_entered()
    disk.failure = DeviceError("data/1.wal", "syncing", "input/output error")
    disk.go_on.release(100)
    with pytest.raises(DeviceError):
        await waiting


async def test_a_mistake_in_the_disk_thread_stops_everything(
    store: StagedStore, committer: Committer, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: seen.append(hook.exc_type))
    store.stage("a")
    disk.failure = ZeroDivisionError()
    disk.go_on.release(1)
    with pytest.raises(StorageError, match="internal error"):
        await committer.durable()
    assert committer.failure is not None
    await wait_for(lambda: seen == [ZeroDivisionError])


async def test_a_mistake_of_one_who_joins_batches_stops_everything(
    store: StagedStore, committer: Committer
) -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: heard.append(context["exception"])
    )
    mistake = KeyError("document")

    def joins() -> None:
        raise mistake

    committer.join_batches(joins)
    store.stage("a")
    for _ in range(2):
        with pytest.raises(StorageError, match="internal error"):
            async with asyncio.timeout(15):
                await committer.durable()
    assert (await committer.failed()) is committer.failure
    assert committer.is_idle
    assert store.batches == []
    assert heard == [mistake, mistake]


async def test_a_full_disk_fails_the_waiters_of_that_batch_only(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    told: list[tuple[str, StorageError | None]] = []
    store.stage("a")
    committer.when_durable(lambda failure: told.append(("a", failure)))
    await disk.until_entered()
    store.stage("b")
    committer.when_durable(lambda failure: told.append(("b", failure)))
    disk.failure = StoreFullError("data")
    disk.go_on.release()
    await disk.until_entered()
    disk.failure = None
    disk.go_on.release()
    await wait_for(lambda: len(told) == 2)
    assert [(name, type(failure)) for name, failure in told] == [
        ("a", StoreFullError),
        ("b", type(None)),
    ]
    assert store.durable == ["b"]
    assert committer.failure is None
    assert committer.stats.refused_batch_count == 1


async def test_producers_wait_for_room(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    await committer.room()
    store.stage("a", limits.waiting_bytes_max)
    await committer.room()
    room = asyncio.create_task(committer.room(1))
    # Nobody waits for "a", and still it is on its way out: somebody waits for its room.
    await disk.until_entered()
    assert not room.done()
    disk.go_on.release()
    await room
    assert store.durable == ["a"]


async def test_acknowledgements_are_written_only_when_wanted(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    disk.go_on.release(10)
    store.acknowledge("ack 1")
    store.stage("a")
    await committer.durable()
    assert store.durable == ["a"]
    await committer.durable(acknowledgements=True)
    assert store.durable == ["a", "ack 1"]
    store.acknowledge("ack 2")
    committer.flush()
    await wait_for(lambda: "ack 2" in store.visible)
    assert committer.is_idle


async def test_a_flush_during_a_write_is_not_forgotten(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    store.stage("a")
    first = asyncio.create_task(committer.durable())
    await disk.until_entered()
    store.acknowledge("ack")
    committer.flush()
    disk.go_on.release(2)
    await first
    await wait_for(lambda: store.visible == ["a", "ack"])


async def test_a_wish_for_acknowledgements_survives_a_batch_in_flight(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    store.stage("a")
    first = asyncio.create_task(committer.durable())
    await disk.until_entered()
    store.acknowledge("ack")
    second = asyncio.create_task(committer.durable(acknowledgements=True))
    await asyncio.sleep(0)
    disk.go_on.release(2)
    await first
    assert not second.done()
    await second
    assert store.durable == ["a", "ack"]


async def test_a_store_that_cuts_batches_tells_only_what_it_took(disk: SlowDisk) -> None:
    store = CuttingStore(on_write=disk)
    # A clock that stands still: what is learnt of the disk is the same on every machine.
    writer = BatchThread(store.as_store(), asyncio.get_running_loop(), lambda: 0.0)
    committer = Committer(store.as_store(), asyncio.get_running_loop(), writer, lambda: 0.0)
    assert store.batch_bytes_max == limits.batch_bytes_default
    told: list[str] = []

    def stage(name: str) -> None:
        # Two fit into a batch.
        store.stage(name, limits.batch_bytes_default * 3 // 7)
        committer.when_durable(lambda failure: told.append(name))

    for name in "abcde":
        stage(name)
    seen: list[list[str]] = []
    for _ in range(3):
        await disk.until_entered()
        seen.append(list(told))
        disk.go_on.release()
    await wait_for(lambda: len(told) == 5)
    assert store.batches == [["a", "b"], ["c", "d"], ["e"]]
    assert seen == [[], ["a", "b"], ["a", "b", "c", "d"]]
    assert store.batch_bytes_max > limits.batch_bytes_default, "a quick disk takes larger batches"


async def test_a_callback_that_raises_does_not_silence_those_behind_it(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    loop = asyncio.get_running_loop()
    mistakes: list[object] = []
    loop.set_exception_handler(lambda _, context: mistakes.append(context.get("exception")))
    told: list[str] = []

    def stumble(failure: StorageError | None) -> None:
        raise ZeroDivisionError

    disk.go_on.release(10)
    store.stage("a")
    committer.when_durable(stumble)
    committer.when_durable(lambda failure: told.append("b"))
    await wait_for(lambda: told == ["b"])
    assert [type(mistake) for mistake in mistakes] == [ZeroDivisionError]
    assert committer.failure is None
    store.stage("c")
    await committer.durable()


async def test_tiny_batches_are_written_in_the_loop_while_syncs_are_short() -> None:
    writers: list[threading.Thread] = []
    store = StagedStore(on_write=lambda: writers.append(threading.current_thread()))
    loop = asyncio.get_running_loop()
    # A clock by hand: each write takes as long as the list says.
    seconds = [0.000_1] * 40 + [0.03] + [0.000_1] * 40
    now = 0.0

    def clock_seconds() -> float:
        nonlocal now
        # Called before and after each write; the second call lets its time pass.
        is_end = store.taken is not None and len(store.durable) == len(writers)
        if is_end and clocked[-1] != len(writers):
            clocked.append(len(writers))
            now += seconds[len(writers) - 1]
        return now

    clocked = [0]
    committer = Committer(
        store.as_store(), loop, BatchThread(store.as_store(), loop, clock_seconds), clock_seconds
    )
    for index in range(len(seconds)):
        store.stage(str(index), INLINE_BYTES_MAX)
        await committer.durable()
    in_loop = [thread is threading.current_thread() for thread in writers]
    assert not in_loop[0], "the first sync is not known to be short"
    assert in_loop[20:41] == [True] * 21
    assert in_loop[41:60] == [False] * 19, "after a slow sync the loop does not wait again soon"
    assert committer.stats.inline_batch_count == sum(in_loop)
    store.stage("large", INLINE_BYTES_MAX + 1)
    seconds.append(0.000_1)
    await committer.durable()
    assert writers[-1] is not threading.current_thread()
    await committer.close()


async def test_counters_say_what_was_written(
    store: StagedStore, committer: Committer, disk: SlowDisk
) -> None:
    disk.go_on.release(10)
    store.stage("a", 70_000)
    store.stage("b", 30_000)
    await committer.durable()
    store.stage("c", 1)
    await committer.close()
    stats = committer.stats
    assert (stats.batch_count, stats.record_count, stats.byte_count) == (2, 3, 100_001)
    assert stats.write_seconds > 0
