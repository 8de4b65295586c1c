"""What is noted of queues: who reads them, what is handed over, to which service they belong."""

import pytest

from syncline.server.events import Events, service_number
from syncline.server.smp.options import SmpOptions
from syncline.storage.base import commit
from syncline.values.events import EventKind, Face, Reason, decode_events
from syncline.values.ids import StreamId
from syncline.values.queue_records import BlockReason
from syncline.wire.smp.commands import Ack, Del, Get, Sub, Subs
from syncline.wire.smp.messages import Msg
from tests.unit.server.events_rig import Noted
from tests.unit.server.smp.router_rig import Peer, Queue, RouterRig
from tests.unit.server.smp.router_rig import smp as smp


@pytest.fixture
def noted(smp: RouterRig) -> Noted:
    noted = Noted()
    events = Events(noted, lambda: smp.now_ms, Face.SMP)
    smp.choose(SmpOptions(), events=events)
    return noted


async def acknowledge(peer: Peer, queue: Queue, message: Msg) -> None:
    await peer.ask(Ack(message.message_id), queue.recipient_id, queue.key)


async def test_who_comes_and_goes_is_noted(smp: RouterRig, noted: Noted) -> None:
    peer = smp.connect()
    queue = await peer.create()
    assert noted.take() == [("CONNECTED", peer.number, 0, 0), ("SUBSCRIBED", peer.number, 1, 1)]
    other = smp.connect()
    await other.subscribe(queue)
    assert noted.take() == [
        ("CONNECTED", other.number, 0, 0),
        ("SUBSCRIBED", other.number, 1, 1),
        ("UNSUBSCRIBED", peer.number, 0, 0),
    ]
    other.close("done")
    assert noted.take() == [("DISCONNECTED", other.number, 0, 0)]


async def test_each_message_is_noted_when_it_is_handed_over_and_when_it_is_acknowledged(
    smp: RouterRig, noted: Noted
) -> None:
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create()
    noted.take()
    await sender.post(queue, b"one")
    await sender.post(queue, b"two")
    _, message = await reader.event()
    assert isinstance(message, Msg)
    assert noted.take() == [("DELIVERED", reader.number, 1, 1)]
    await acknowledge(reader, queue, message)
    assert noted.take() == [
        ("ACKNOWLEDGED", reader.number, 0, 1),
        ("DELIVERED", reader.number, 2, 2),
    ]


async def test_what_is_fetched_is_noted(smp: RouterRig, noted: Noted) -> None:
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create(subscribes=False)
    await sender.post(queue, b"one")
    noted.take()
    message = await reader.ask(Get(), queue.recipient_id, queue.key)
    assert isinstance(message, Msg)
    assert noted.take() == [("DELIVERED", reader.number, 1, 1)]


async def test_associations_are_noted_once_they_are_durable(smp: RouterRig, noted: Noted) -> None:
    service = await smp.service()
    plain, peer = smp.connect(), smp.connect(service=service)
    queue = await plain.create()
    noted.rows.clear()
    await peer.ask(Sub(), queue.recipient_id, queue.key)
    await smp.settle()
    moves = [each for each in decode_events(b"".join(noted.rows)) if each.kind in (10, 11)]
    assert [(each.kind, each.stream, each.detail) for each in moves] == [
        (EventKind.ASSOCIATED, queue.recipient_id, service_number(service.service_id))
    ]
    noted.rows.clear()
    await plain.ask(Sub(), queue.recipient_id, queue.key)
    await smp.settle()
    moves = [each for each in decode_events(b"".join(noted.rows)) if each.kind in (10, 11)]
    assert [(each.kind, each.detail) for each in moves] == [
        (EventKind.DISSOCIATED, service_number(service.service_id))
    ]


async def test_a_service_that_is_displaced_is_noted(smp: RouterRig, noted: Noted) -> None:
    service = await smp.service()
    first, second = smp.connect(service=service), smp.connect(service=service)
    for peer in (first, second):
        await peer.ask(Subs(0, bytes(16)), service.service_id, service.key)
    await smp.settle()
    found = [each for each in decode_events(b"".join(noted.rows)) if each.stream != bytes(24)]
    assert [(EventKind(each.kind).name, each.session >> 4) for each in found] == [
        ("CONNECTED", first.number),
        ("CONNECTED", second.number),
        ("SUBSCRIBED", first.number),
        ("SUBSCRIBED", second.number),
        ("DISPLACED", first.number),
    ]
    assert {each.stream for each in found} == {service.service_id}


async def test_a_queue_that_is_deleted_is_left_by_its_reader(smp: RouterRig, noted: Noted) -> None:
    reader, owner = smp.connect(), smp.connect()
    queue = await reader.create()
    noted.take()
    await owner.ask(Del(), queue.recipient_id, queue.key)
    await smp.settle()
    assert noted.take() == [("UNSUBSCRIBED", reader.number, 0, 0)]


async def test_a_subscription_is_noted_with_the_first_message_that_waits(
    smp: RouterRig, noted: Noted
) -> None:
    reader, other, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await reader.create()
    for body in (b"one", b"two"):
        await sender.post(queue, body)
    _, message = await reader.event()
    assert isinstance(message, Msg)
    await acknowledge(reader, queue, message)
    noted.take()
    await other.subscribe(queue)
    assert ("SUBSCRIBED", other.number, 2, 1) in noted.take()


async def test_a_message_that_is_asked_for_again_is_noted_as_sent_again(
    smp: RouterRig, noted: Noted
) -> None:
    reader, fetcher, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await reader.create()
    await sender.post(queue, b"one")
    await reader.event()
    noted.take()
    await reader.ask(Ack(b""), queue.recipient_id, queue.key)
    assert noted.take() == [("RESENT", reader.number, 1, 1), ("DELIVERED", reader.number, 1, 1)]
    for _ in range(2):
        await fetcher.ask(Get(), queue.recipient_id, queue.key)
    assert noted.take() == [
        ("DELIVERED", fetcher.number, 1, 1),
        ("RESENT", fetcher.number, 1, 1),
        ("DELIVERED", fetcher.number, 1, 1),
    ]


async def test_messages_that_are_given_up_by_age_are_noted(smp: RouterRig, noted: Noted) -> None:
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create(subscribes=False)
    for _ in range(3):
        await sender.post(queue, b"old")
    smp.now_ms += smp.options.expire_after_ms + 1
    noted.take()
    smp.router.expire(StreamId(queue.recipient_id), smp.now_ms)
    events = noted.take_events()
    assert {(each.kind, each.stream, each.session, each.detail) for each in events} == {
        (EventKind.EXPIRED, queue.recipient_id, 0, Reason.AGE)
    }
    # The oldest is looked at before the others: up to which, the last one says.
    assert [each.last for each in events] == [1, 3]
    smp.router.expire(StreamId(queue.recipient_id), smp.now_ms)
    assert noted.take() == []


async def test_what_is_no_message_is_noted_when_it_is_dropped(smp: RouterRig, noted: Noted) -> None:
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create(subscribes=False)
    await sender.post(queue, b"one")
    smp.store.truncate_before(StreamId(queue.recipient_id), 2)
    smp.store.append(StreamId(queue.recipient_id), b"", smp.now_ms)
    commit(smp.store)
    noted.take()
    await reader.subscribe(queue)
    await smp.settle()
    expired = [each for each in noted.take_events() if each.kind == EventKind.EXPIRED]
    assert [(each.last, each.detail) for each in expired] == [(2, Reason.NO_MESSAGE)]


async def test_a_queue_that_is_blocked_is_left_by_its_reader(smp: RouterRig, noted: Noted) -> None:
    reader = smp.connect()
    queue = await reader.create()
    noted.take()
    await smp.router.operating.block_queue(queue.recipient_id, BlockReason("spam"))
    assert noted.take() == [("UNSUBSCRIBED", reader.number, 0, 0)]


async def test_a_service_that_is_deleted_is_lost_by_its_session(
    smp: RouterRig, noted: Noted
) -> None:
    service = await smp.service()
    peer = smp.connect(service=service)
    await peer.ask(Subs(0, bytes(16)), service.service_id, service.key)
    noted.take()
    await smp.router.operating.delete_service(service.service_id)
    assert noted.take() == [("DISPLACED", peer.number, 0, 0), ("DISCONNECTED", peer.number, 0, 0)]
