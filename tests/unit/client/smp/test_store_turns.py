"""A slow disk holds up whoever waits for it and nobody else; what is announced is stored."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    AgentEvent,
    QueueDeleted,
    QueueEnd,
    QueueUp,
    ServiceLost,
)
from syncline.client.smp.agent_records import Account
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import in_thread
from syncline.client.smp.store_turns import StoreTurns, whole
from syncline.errors import StorageError, StoreFullError
from syncline.wire.smp.commands import Sub
from syncline.wire.smp.messages import Deld
from tests.unit.client.smp.agent_rig import Rig
from tests.unit.client.smp.fake_router import ADDRESS, HeldDisk, settled, world_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    with closing(AgentStore(tmp_path / "agent.sqlite")) as store:
        yield store


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def rig(store: AgentStore, disk: HeldDisk) -> Rig:
    return Rig(store=store, on_thread=disk)


# ------------------------------------------------------------------------------------ real threads


async def test_write_that_is_held_up_does_not_stop_the_loop(store: AgentStore) -> None:
    """By another program, which holds the file while its own disk is slow."""
    rig = Rig(store=store, on_thread=in_thread)
    async with rig.agent() as agent:
        ann, bob = await agent.account("ann", ADDRESS), await agent.account("bob", ADDRESS)
        await agent.create_queue(ann, "first")
        queue = await agent.create_queue(bob, "inbox")
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            creating = asyncio.create_task(agent.create_queue(ann, "second"))
            await settled()
            assert len(rig.router.queues) == 3
            assert not creating.done()
            await agent.send(bob, queue.sender_id, b"meanwhile")
            await settled()
            assert rig.bodies() == [b"meanwhile"]
            assert not creating.done()
            other.execute("ROLLBACK")
        second = await creating
        assert store.queue(ann, second.recipient_id) == second


def test_closing_waits_for_a_write_on_another_thread(store: AgentStore) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    with closing(other), ThreadPoolExecutor(2) as threads:
        other.execute("BEGIN IMMEDIATE")
        writing = threads.submit(store.user, "ann")
        while not store._lock.locked():
            time.sleep(0)
        closing_it = threads.submit(store.close)
        assert not closing_it.done()
        other.execute("ROLLBACK")
        assert writing.result() == 1
        closing_it.result()


def test_full_disk_is_told_and_leaves_nothing_half_done(store: AgentStore) -> None:
    account = store.account("ann", ADDRESS)
    [pages] = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFullError):
        store.user("u" * 100_000)
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.account("ann", ADDRESS) == account
    assert store.user("one more")


def test_file_that_another_program_keeps_is_told(store: AgentStore) -> None:
    store._db.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="cannot be written"):
            store.user("ann")
    assert store.user("ann") == 1


# -------------------------------------------------------------------------- stored, then announced


async def test_new_queue_is_not_announced_before_it_is_stored(rig: Rig, disk: HeldDisk) -> None:
    async with rig.agent() as agent:
        await agent.create_queue(rig.account, "first")
        await settled()
        before = len(rig.told(QueueUp))
        disk.hold()
        creating = asyncio.create_task(agent.create_queue(rig.account, "second"))
        await settled()
        assert (creating.done(), len(rig.told(QueueUp))) == (False, before)
        disk.release()
        await creating
        await settled()
        assert len(rig.told(QueueUp)) == before + 1
        rig.check_sets()


@pytest.mark.parametrize("kind", [QueueEnd, QueueDeleted])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_end_of_a_queue_is_told_when_it_is_stored_even_if_the_link_ends(
    rig: Rig, disk: HeldDisk, kind: type[AgentEvent], is_lost: bool
) -> None:
    one, _ = await rig.prepared(2)
    async with rig.agent():
        link = rig.router.link
        disk.hold()
        if kind is QueueEnd:
            rig.router.take_queue(one.recipient_id)
        else:
            del rig.router.queues[one.recipient_id]
            link.tell(one.recipient_id, Deld())
        await settled()
        if is_lost:
            link.drop()
            await settled()
        assert rig.told(kind) == []
        disk.release()
        await settled()
        assert len(rig.told(kind)) == 1
        await rig.time.advance(1)
        subs = [entity for command, entity in rig.router.link.commands if isinstance(command, Sub)]
        assert one.recipient_id not in subs
        rig.check_sets()


async def test_message_is_acknowledged_when_that_is_stored(rig: Rig, disk: HeldDisk) -> None:
    queues = await rig.prepared(3)
    async with rig.agent() as agent:
        for queue in queues:
            rig.router.send(queue.recipient_id, b"one")
        await settled()
        disk.hold()
        waiting = [asyncio.create_task(agent.acknowledge(each)) for each in rig.messages()]
        await settled()
        assert "ACK" not in rig.router.link.words()
        disk.release()
        await asyncio.gather(*waiting)
        assert rig.router.link.words().count("ACK") == 3


async def test_acknowledgements_gather_while_the_disk_is_busy(
    rig: Rig, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = await rig.prepared(4)
    async with rig.agent() as agent:
        for queue in queues:
            rig.router.send(queue.recipient_id, b"one")
        await settled()
        saved: list[int] = []
        save = rig.store.save_done

        def count_and_save(done: list[tuple[Account, bytes, bytes]]) -> None:
            saved.append(len(done))
            save(done)

        monkeypatch.setattr(rig.store, "save_done", count_and_save)
        disk.hold()
        waiting: list[asyncio.Task[None]] = []
        for each in rig.messages():
            waiting.append(asyncio.create_task(agent.acknowledge(each)))
            await settled()
        disk.release()
        await asyncio.gather(*waiting)
        assert saved == [1, 3]


async def test_service_that_is_lost_while_the_disk_is_busy_is_given_up_whole(
    rig: Rig, disk: HeldDisk
) -> None:
    """The link ends in between: on the next one, every queue delivers all the same."""
    queues = await rig.prepared(2)
    rig.router.forget_services()
    disk.hold()
    async with rig.agent():
        rig.router.link.drop()
        await settled()
        disk.release()
        await settled()
        assert len(rig.told(ServiceLost)) == 1
        await rig.time.advance(1)
        await rig.check_delivery(queues)
        rig.check_sets()


# ------------------------------------------------------------------------------- closing, failures


async def test_closing_the_agent_waits_for_what_is_being_written(rig: Rig, disk: HeldDisk) -> None:
    agent = Agent(rig.store, rig.options, world=world_of(rig.router, rig.time, disk))
    await agent.__aenter__()
    await agent.create_queue(rig.account, "first")
    disk.hold()
    creating = asyncio.create_task(agent.create_queue(rig.account, "second"))
    await settled()
    leaving = asyncio.create_task(agent.__aexit__(None, None, None))
    await settled()
    assert not leaving.done()
    disk.release()
    await leaving
    assert rig.store.queue_named(rig.account.user_id, "second") is not None
    await asyncio.gather(creating, return_exceptions=True)


async def test_closing_waits_for_a_write_without_any_connection(rig: Rig, disk: HeldDisk) -> None:
    agent = Agent(rig.store, rig.options, world=world_of(rig.router, rig.time, disk))
    await agent.__aenter__()
    disk.hold()
    making = asyncio.create_task(agent.account("ann", ADDRESS))
    await settled()
    leaving = asyncio.create_task(agent.__aexit__(None, None, None))
    await settled()
    is_early = leaving.done()
    disk.release()
    await leaving
    assert rig.store.accounts() == [await making]
    assert not is_early


async def test_failing_disk_reaches_who_waits_and_who_reads_events(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    [queue] = await rig.prepared(1)

    def fail(*_: object) -> None:
        raise StorageError("the device is gone")

    monkeypatch.setattr(rig.store, "add_queue", fail)
    monkeypatch.setattr(rig.store, "dissociate", fail)

    async def use() -> None:
        async with rig.agent(reads=False) as agent:
            with pytest.raises(StorageError, match="the device is gone"):
                await agent.create_queue(rig.account, "second")
            rig.router.take_queue(queue.recipient_id)
            async for event in agent:
                assert not isinstance(event, QueueEnd)

    with pytest.raises(StorageError, match="the device is gone"):
        await use()


async def test_failing_disk_is_told_even_if_the_link_ends_meanwhile(
    rig: Rig, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    [queue] = await rig.prepared(1)

    def fail(*_: object) -> None:
        raise StorageError("the device is gone")

    monkeypatch.setattr(rig.store, "dissociate", fail)

    async def use() -> None:
        async with rig.agent():
            disk.hold()
            rig.router.take_queue(queue.recipient_id)
            await settled()
            rig.router.link.drop()
            await settled()
            disk.release()
            await settled()

    with pytest.raises(StorageError, match="the device is gone"):
        await use()


# ------------------------------------------------------------------------------------------- turns


async def test_writes_are_made_in_the_order_of_their_calls(
    store: AgentStore, disk: HeldDisk
) -> None:
    turns, made = StoreTurns(store, disk), list[int]()
    disk.hold()
    waiting = [asyncio.create_task(turns.write(made.append, number)) for number in range(5)]
    await settled()
    waiting[0].cancel()
    waiting[2].cancel()
    settling = asyncio.create_task(turns.settled())
    await settled()
    assert (made, settling.done()) == ([], False)
    assert not any(each.done() for each in waiting)
    disk.release()
    await settling
    assert made == [0, 1, 2, 3, 4]
    await settled()
    assert [each.cancelled() for each in waiting] == [True, False, True, False, False]


async def test_what_has_to_be_whole_is_not_cut_by_any_number_of_cancellations() -> None:
    may_go_on, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await may_go_on.wait()
        done.append("done")

    task = asyncio.create_task(whole(work()))
    for _ in range(3):
        await settled()
        task.cancel()
    await settled()
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]


async def test_store_in_memory_is_written_in_place(disk: HeldDisk) -> None:
    disk.hold()
    with closing(AgentStore(":memory:")) as store:
        assert await StoreTurns(store, disk).write(store.user, "ann") == 1


async def test_without_services_a_busy_disk_holds_up_no_message(rig: Rig, disk: HeldDisk) -> None:
    rig.options = AgentOptions(uses_services=False)
    one, two = await rig.prepared(2)
    async with rig.agent() as agent:
        disk.hold()
        wanting = asyncio.create_task(agent.subscribe_queues(rig.account, [one.recipient_id]))
        rig.router.send(two.recipient_id, b"meanwhile")
        await settled()
        assert rig.bodies() == [b"meanwhile"]
        assert not wanting.done()
        disk.release()
        await wanting
