"""Messages past their age: they go when the next one is sent, and when the house is kept."""

import asyncio
from dataclasses import replace

import pytest

from syncline.errors import CorruptionError
from syncline.server.smp.expiring import ExpiryWalk
from syncline.storage.base import StreamKind, commit
from syncline.values.ids import StreamId
from syncline.wire.smp import failures
from syncline.wire.smp.bodies import QuotaReached
from syncline.wire.smp.commands import Ack
from syncline.wire.smp.messages import Err, Msg, Ok
from tests.unit.server.smp.router_rig import DAY_MS, RouterRig, quiet_log, turns
from tests.unit.server.smp.router_rig import smp as smp


async def test_old_messages_go_when_a_new_one_is_sent(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    for _ in range(70):
        await sender.post(queue, b"old")
    smp.now_ms += 21 * DAY_MS
    await sender.post(queue, b"young")
    # To the millisecond of their age they stay.
    assert smp.counters.expired_count == 0
    smp.now_ms += 1
    await sender.post(queue, b"new")
    assert smp.counters.expired_count == 70
    await recipient.subscribe(queue)
    _, message = await recipient.event()
    assert queue.text(message) == b"young"


async def test_a_clock_that_is_not_believed_yet_costs_no_message(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    await sender.post(queue, b"old")
    smp.cautious_ms = smp.now_ms
    smp.now_ms += 366 * DAY_MS
    await sender.post(queue, b"new")
    assert smp.counters.expired_count == 0
    await recipient.subscribe(queue)
    _, message = await recipient.event()
    assert queue.text(message) == b"old"


async def test_messages_stay_if_they_are_to(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, expire_after_ms=0))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    await sender.post(queue, b"old")
    smp.now_ms += 1_000 * DAY_MS
    await sender.post(queue, b"new")
    await recipient.subscribe(queue)
    _, message = await recipient.event()
    assert queue.text(message) == b"old"


async def test_expiry_stops_at_a_marker(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, quota=2))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    for _ in range(2):
        await sender.post(queue, b"old")
    assert await sender.post(queue, b"one too many") == Err(failures.QUOTA)
    smp.now_ms += 30 * DAY_MS
    # The messages go, the marker does not, so the queue stays closed until it was read.
    assert await sender.post(queue, b"new") == Err(failures.QUOTA)
    assert smp.counters.expired_count == 2
    await recipient.subscribe(queue)
    _, marker = await recipient.event()
    assert isinstance(queue.open(marker), QuotaReached)
    assert isinstance(marker, Msg)
    done = await recipient.ask(Ack(marker.message_id), queue.recipient_id, queue.key)
    assert done == Ok()
    assert await sender.post(queue, b"new") == Ok()


async def test_a_message_that_expires_while_it_is_with_its_reader_may_be_acknowledged(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"old")
    _, message = await recipient.event()
    assert isinstance(message, Msg)
    smp.now_ms += 30 * DAY_MS
    await sender.post(queue, b"new")
    await turns()
    # One at a time: the new one comes in answer to the old one.
    assert recipient.events() == []
    following = await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key)
    assert queue.text(following) == b"new"


async def test_messages_expire_without_anybody_sending(smp: RouterRig) -> None:
    """Keeping house drops them by the same rule, for all queues."""
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    await sender.post(queue, b"old")
    smp.now_ms += 10 * DAY_MS
    before = smp.now_ms - smp.options.expire_after_ms
    assert smp.store.expire_before(before, 10) == 0
    smp.now_ms += 30 * DAY_MS
    before = smp.now_ms - smp.options.expire_after_ms
    assert smp.store.expire_before(before, 10) == 1
    commit(smp.store)
    await recipient.subscribe(queue)
    await turns()
    assert recipient.events() == []


async def test_the_walk_finds_old_messages_of_queues_that_nobody_sends_to(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    silent = await recipient.create(subscribes=False)
    empty = await recipient.create(subscribes=False)
    for _ in range(3):
        await sender.post(silent, b"old")
    # Of another face: a queue and a document with the same age.
    foreign, document = StreamId(b"q" * 24), StreamId(b"d" * 24)
    smp.store.create(foreign, StreamKind.QUEUE, 0, smp.now_ms)
    smp.store.create(document, StreamKind.DOCUMENT, 0, smp.now_ms)
    for stream in (foreign, document):
        smp.store.append(stream, b"kept", smp.now_ms)
    commit(smp.store)
    walk = ExpiryWalk(smp.store, smp.records, smp.router.expire, lambda: smp.now_ms, quiet_log())
    smp.now_ms += 21 * DAY_MS
    await walk.walk()
    assert smp.counters.expired_count == 0
    smp.now_ms += 1
    await walk.walk()
    assert smp.counters.expired_count == 3
    assert smp.store.state(StreamId(silent.recipient_id)).unread_count == 0
    assert [smp.store.state(each).unread_count for each in (foreign, document)] == [1, 1]
    assert smp.records.queue(empty.recipient_id) is not None


async def test_a_queue_that_cannot_be_read_keeps_no_other_from_expiring(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create(subscribes=False) for _ in range(3)]
    for queue in queues:
        await sender.post(queue, b"old")
    smp.now_ms += 30 * DAY_MS
    damaged: list[StreamId] = []

    def expire(queue: StreamId, now_ms: int) -> None:
        if not damaged:
            damaged.append(queue)
            raise CorruptionError("table", 0, "a slot fails its checksum")
        smp.router.expire(queue, now_ms)

    walk = ExpiryWalk(smp.store, smp.records, expire, lambda: smp.now_ms, quiet_log())
    await walk.walk()
    assert smp.counters.expired_count == 2


async def test_the_walk_waits_for_a_store_that_is_going_through_its_queues_itself(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server.smp.expiring._COUNTED_SECONDS", 0.001)
    recipient, sender = smp.connect(), smp.connect()
    silent = await recipient.create(subscribes=False)
    await sender.post(silent, b"old")
    smp.now_ms += 22 * DAY_MS
    counting = replace(smp.store.stats(), is_counted=False)
    walk = ExpiryWalk(smp.store, smp.records, smp.router.expire, lambda: smp.now_ms, quiet_log())
    with monkeypatch.context() as while_counting:
        while_counting.setattr(smp.store, "stats", lambda: counting)
        walking = asyncio.create_task(walk.run())
        await asyncio.sleep(0.1)
        assert smp.counters.expired_count == 0
    async with asyncio.timeout(10):
        while smp.counters.expired_count == 0:
            await turns()
    walking.cancel()
