"""Queues over a store: durable before answered, and no reader misses what arrives."""

import asyncio
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from syncline.core.queue import read_request
from syncline.errors import (
    CorruptionError,
    QueueExistsError,
    QuotaExceededError,
    StoreBusyError,
    StoreFullError,
    UnexpectedMessageError,
    UnknownQueueError,
)
from syncline.server.listing import Page
from syncline.storage.base import Batch, EntryKind, StreamKind, StreamState
from syncline.values.ids import StreamId
from tests.unit.server.conftest import Rig

FROM_START = read_request(0, 100, 10_000)


async def test_a_message_is_visible_once_it_has_a_sequence(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    assert await rig.queues.append(queue, b"one") == 1
    (entry,) = await rig.queues.read(queue, FROM_START)
    assert (entry.seq, entry.payload, entry.time_ms) == (1, b"one", rig.now_ms)


async def test_a_queue_may_be_named_and_only_once(rig: Rig) -> None:
    name = StreamId(b"n" * 24)
    assert await rig.queues.create(name, 5) == name
    assert rig.queues.state(name).quota == 5
    with pytest.raises(QueueExistsError):
        await rig.queues.create(name, 5)


async def test_waiting_readers_are_woken_by_what_arrives(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    reader = asyncio.create_task(rig.queues.read(queue, FROM_START, wait_seconds=15))
    await asyncio.sleep(0)
    assert not reader.done()
    await rig.queues.append(queue, b"one")
    assert [entry.payload for entry in await reader] == [b"one"]


async def test_a_reader_that_comes_while_a_message_is_staged_does_not_miss_it(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    writer = asyncio.create_task(rig.queues.append(queue, b"one"))
    await asyncio.sleep(0)
    # Staged, not durable: looking finds nothing, and the message must wake whoever looks now.
    assert await rig.queues.read(queue, FROM_START) == []
    found = await rig.queues.read(queue, FROM_START, wait_seconds=15)
    assert [entry.payload for entry in found] == [b"one"]
    await writer


async def test_readers_are_woken_though_the_writer_has_gone(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    reader = asyncio.create_task(rig.queues.read(queue, FROM_START, wait_seconds=15))
    writer = asyncio.create_task(rig.queues.append(queue, b"one"))
    await asyncio.sleep(0)
    writer.cancel()
    assert [entry.payload for entry in await reader] == [b"one"]
    with pytest.raises(asyncio.CancelledError):
        await writer


async def test_a_reader_of_a_later_position_is_not_content_with_less(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    later = read_request(2, 100, 10_000)
    reader = asyncio.create_task(rig.queues.read(queue, later, wait_seconds=15))
    await rig.queues.append(queue, b"one")
    assert not reader.done()
    await rig.queues.append(queue, b"two")
    assert [entry.payload for entry in await reader] == [b"two"]


async def test_waiting_ends_with_the_queue(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    reader = asyncio.create_task(rig.queues.read(queue, FROM_START, wait_seconds=15))
    await asyncio.sleep(0)
    await rig.queues.delete(queue)
    with pytest.raises(UnknownQueueError):
        await reader


async def test_waiting_ends_when_the_router_drains(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    reader = asyncio.create_task(rig.queues.read(queue, FROM_START, wait_seconds=600))
    await asyncio.sleep(0)
    rig.queues.drain()
    assert await reader == []
    assert await rig.queues.read(queue, FROM_START, wait_seconds=600) == []


async def test_waiting_ends_in_time(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    assert await rig.queues.read(queue, FROM_START, wait_seconds=0.01) == []


async def test_acknowledging_is_durable_and_may_be_repeated(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    for payload in (b"1", b"2", b"3"):
        await rig.queues.append(queue, payload)
    assert await rig.queues.acknowledge(queue, 2) == 3
    assert await rig.queues.acknowledge(queue, 1) == 3
    assert await rig.queues.acknowledge(queue, 2) == 3
    assert rig.store.take_batch(acknowledgements=True) is None, "it was not written"
    with pytest.raises(UnexpectedMessageError):
        await rig.queues.acknowledge(queue, 4)


async def test_what_is_staged_cannot_be_acknowledged_before_it_could_be_read(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    writer = asyncio.create_task(rig.queues.append(queue, b"one"))
    await asyncio.sleep(0)
    assert rig.queues.state(queue).next == 2
    assert await rig.queues.read(queue, FROM_START) == []
    with pytest.raises(UnexpectedMessageError):
        await rig.queues.acknowledge(queue, 1)
    await writer
    assert await rig.queues.acknowledge(queue, 1) == 2


async def test_what_is_durable_can_be_acknowledged_while_more_is_on_its_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rig.queues.create(None, None)
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)
    write_batch = rig.store.write_batch

    def slow_write(batch: Batch) -> None:
        entered.release()
        assert go_on.acquire(timeout=15)
        write_batch(batch)

    monkeypatch.setattr(rig.store, "write_batch", slow_write)
    first = asyncio.create_task(rig.queues.append(queue, b"1"))
    assert await asyncio.to_thread(entered.acquire, timeout=15)
    later = asyncio.create_task(rig.queues.append_many(queue, [b"2", b"3"]))
    await asyncio.sleep(0)
    go_on.release()
    assert await first == 1
    assert await asyncio.to_thread(entered.acquire, timeout=15)
    # The first is durable, the other two are on their way.
    with pytest.raises(UnexpectedMessageError, match="up to 1"):
        await rig.queues.acknowledge(queue, 2)
    acknowledging = asyncio.create_task(rig.queues.acknowledge(queue, 1))
    go_on.release(10)
    assert await acknowledging == 2
    assert await later == (2, 2, None)
    assert await rig.queues.acknowledge(queue, 3) == 4
    assert not rig.queues._on_their_way


async def test_a_full_queue_refuses_and_its_reader_learns(rig: Rig) -> None:
    queue = await rig.queues.create(None, 1)
    await rig.queues.append(queue, b"one")
    reader = asyncio.create_task(
        rig.queues.read(queue, read_request(2, 10, 10_000), wait_seconds=15)
    )
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError):
        await rig.queues.append(queue, b"two")
    assert [entry.kind for entry in await reader] == [EntryKind.QUOTA_MARKER]


async def test_a_batch_is_taken_up_to_the_first_refusal(rig: Rig) -> None:
    queue = await rig.queues.create(None, 3)
    first_seq, count, refusal = await rig.queues.append_many(queue, [b"1", b"2", b"3", b"4"])
    assert (first_seq, count) == (1, 3)
    assert isinstance(refusal, QuotaExceededError)
    found = await rig.queues.read(queue, FROM_START)
    assert [entry.payload for entry in found if entry.kind is EntryKind.MESSAGE] == [
        b"1",
        b"2",
        b"3",
    ]


async def test_a_batch_cut_in_the_middle_leaves_nothing_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rig.queues.create(None, None)
    real_append = rig.store.append

    def append(stream: StreamId, payload: bytes, now_ms: int) -> int:
        if payload == b"2":
            raise StoreBusyError(2, 1)
        return real_append(stream, payload, now_ms)

    monkeypatch.setattr(rig.store, "append", append)
    reader = asyncio.create_task(rig.queues.read(queue, FROM_START, wait_seconds=15))
    writer = asyncio.create_task(rig.queues.append_many(queue, [b"1", b"2"]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writer.cancel()
    assert [entry.payload for entry in await reader] == [b"1"]
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert await rig.queues.acknowledge(queue, 1) == 2


async def test_a_batch_that_waited_for_upkeep_stays_side_by_side(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rig.queues.create(None, None)
    real_append = rig.store.append
    is_busy = True

    def append(stream: StreamId, payload: bytes, now_ms: int) -> int:
        if payload == b"2" and is_busy:
            raise StoreBusyError(2, 1)
        return real_append(stream, payload, now_ms)

    monkeypatch.setattr(rig.store, "append", append)
    alone = asyncio.create_task(rig.queues.append_many(queue, [b"1", b"2"]))
    await asyncio.wait_for(rig.queues.pressure.wait(), 15)
    is_busy = False
    rig.queues.relieve()
    assert await alone == (1, 2, None)
    # With somebody else in between, it ends there: sequences would no longer be neighbours.
    is_busy = True
    cut = asyncio.create_task(rig.queues.append_many(queue, [b"1", b"2"]))
    await asyncio.wait_for(rig.queues.pressure.wait(), 15)
    await rig.queues.append(queue, b"other")
    is_busy = False
    rig.queues.relieve()
    first_seq, count, refusal = await cut
    assert (first_seq, count, type(refusal)) == (3, 1, StoreBusyError)


async def test_without_space_nothing_new_is_taken_and_reading_goes_on(rig: Rig) -> None:
    queue = await rig.queues.create(None, None)
    await rig.queues.append(queue, b"one")
    rig.queues.shortage = StoreFullError("data")
    for refused in (
        rig.queues.append(queue, b"two"),
        rig.queues.append_many(queue, [b"two"]),
        rig.queues.create(None, None),
    ):
        with pytest.raises(StoreFullError):
            await refused
    assert len(await rig.queues.read(queue, FROM_START)) == 1
    assert await rig.queues.acknowledge(queue, 1) == 2
    rig.queues.shortage = None
    assert await rig.queues.append(queue, b"two") == 2


async def test_pages_are_in_order_and_hold_queues_only(rig: Rig) -> None:
    created = [await rig.queues.create(None, None) for _ in range(5)]
    rig.store.create(StreamId(b"d" * 24), StreamKind.DOCUMENT, 0, 1)
    first = await rig.queues.page(None, 3)
    assert first == Page(created[:3])
    assert await rig.queues.page(first.streams[-1], 3) == Page(created[3:])


async def test_a_page_goes_on_past_what_cannot_be_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = [await rig.queues.create(None, None) for _ in range(5)]
    state = rig.store.state

    def damaged(stream: StreamId) -> StreamState:
        if stream in (created[1], created[4]):
            raise CorruptionError("table", 0, "a slot fails its checksum")
        return state(stream)

    monkeypatch.setattr(rig.store, "state", damaged)
    first = await rig.queues.page(None, 2)
    assert first == Page([created[0], created[2]], [created[1]])
    assert await rig.queues.page(first.streams[-1], 2) == Page([created[3]], [created[4]])


@pytest.mark.parametrize("is_counted", [True, False])
async def test_listing_looks_at_so_many_queues_in_a_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    chance = random.Random(1)
    listed = [StreamId(chance.randbytes(24)) for _ in range(100)]
    for stream in listed:
        rig.store.create(stream, StreamKind.QUEUE, 0, 1)
    monkeypatch.setattr("syncline.server.listing._LISTED_AT_ONCE", 7)
    monkeypatch.setattr("syncline.server.listing._LISTED_AT_ONCE_UNCOUNTED", 3)
    stats = replace(rig.store.stats(), is_counted=is_counted)
    monkeypatch.setattr(rig.store, "stats", lambda: stats)
    seen: list[StreamId] = []
    most_in_a_turn = 0

    def streams() -> Iterator[StreamId]:
        for stream in [*listed, *listed[:20]]:
            seen.append(stream)
            yield stream

    async def watch() -> None:
        nonlocal most_in_a_turn
        while True:
            before = len(seen)
            await asyncio.sleep(0)
            most_in_a_turn = max(most_in_a_turn, len(seen) - before)

    monkeypatch.setattr(rig.store, "streams", streams)
    watching = asyncio.create_task(watch())
    page = await rig.queues.page(sorted(listed)[4], 30)
    watching.cancel()
    assert page == Page(sorted(listed)[5:35])
    assert len(seen) == 120
    assert most_in_a_turn == (7 if is_counted else 3)


async def test_few_queues_among_many_documents_are_found_in_a_few_walks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    listed = sorted(StreamId(chance.randbytes(24)) for _ in range(2_000))
    for stream in listed:
        is_queue = stream in (listed[700], listed[-1])
        kind = StreamKind.QUEUE if is_queue else StreamKind.DOCUMENT
        rig.store.create(stream, kind, 0, 1)
    walk_count = 0

    def streams() -> Iterator[StreamId]:
        nonlocal walk_count
        walk_count += 1
        return iter(listed)

    monkeypatch.setattr(rig.store, "streams", streams)
    assert await rig.queues.page(None, 2) == Page([listed[700], listed[-1]])
    assert walk_count <= 12


async def test_a_queue_that_is_deleted_while_it_is_listed_is_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await rig.queues.create(None, None)
    gone = StreamId(b"gone" * 6)
    monkeypatch.setattr(rig.store, "streams", lambda: iter([gone, kept]))
    assert await rig.queues.page(None, 10) == Page([kept])
