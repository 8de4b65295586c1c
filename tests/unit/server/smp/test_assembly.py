"""What all of SMP in a process does beside its commands."""

import asyncio
from dataclasses import replace

import pytest

from syncline.errors import StorageError
from syncline.server.clocks import Clock
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.server.smp import assembly
from syncline.server.smp.assembly import Smp
from syncline.storage.records.memory import MemoryRecords
from tests.unit.server.smp.router_rig import RouterRig, quiet_log, some_bytes
from tests.unit.server.smp.router_rig import in_memory as in_memory


def make_smp(rig: RouterRig) -> Smp:
    clock = Clock(lambda: 1, lambda: 1)
    queues = Queues(rig.store, rig.committer, clock.wall_ms, some_bytes)
    return Smp(Settings(), rig.store, rig.committer, rig.records, queues, clock, quiet_log())


async def test_changes_that_cannot_be_brought_in_are_brought_in_later(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    is_done = asyncio.Event()

    def checkpoint() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StorageError("records.sqlite cannot be used: unable to open database file")
        loop.call_soon_threadsafe(is_done.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(assembly, "_CHECKPOINT_SECONDS", 0.001)
    monkeypatch.setattr(in_memory.records, "checkpoint", checkpoint)
    smp = make_smp(in_memory)
    task = asyncio.create_task(smp._bring_in_changes())
    while not is_done.is_set() and not task.done():
        # There is something new each time.
        smp.committer.stats.batch_count += 1
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(calls) >= 2
    await smp.close()


async def test_a_full_disk_keeps_no_router_from_stopping(in_memory: RouterRig) -> None:
    queue = await in_memory.connect().create()
    smp = make_smp(in_memory)
    record = in_memory.records.queue(queue.recipient_id)
    assert record is not None
    in_memory.records.update_queue(replace(record, used_day=record.used_day + 1))
    assert isinstance(in_memory.records, MemoryRecords)
    in_memory.records.is_full = True
    await smp.close()
