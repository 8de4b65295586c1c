"""What is noted of queues: who reads them, what is handed over, to which service they belong."""

import pytest

from syncline.server.events import Events, service_number
from syncline.server.smp.options import SmpOptions
from syncline.values.events import EventKind, Face, decode_events
from syncline.wire.smp.commands import Ack, Del, Get, Sub, Subs
from syncline.wire.smp.messages import Msg
from tests.unit.server.smp.router_rig import Peer, Queue, RouterRig
from tests.unit.server.smp.router_rig import smp as smp
from tests.unit.server.test_document_events import Noted


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
    assert noted.take() == [("CONNECTED", peer.number, 0, 0), ("SUBSCRIBED", peer.number, 0, 0)]
    other = smp.connect()
    await other.subscribe(queue)
    assert noted.take() == [
        ("CONNECTED", other.number, 0, 0),
        ("SUBSCRIBED", other.number, 0, 0),
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
