"""Notifications: who is told that something has come, and what it is told."""

from dataclasses import replace

import pytest

from syncline.values import limits
from syncline.values.digests import digest_of
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import bodies, failures
from syncline.wire.smp.boxes import SecretBox, shared_secret
from syncline.wire.smp.commands import Ack, Del, Ndel, Nkey, NotifierKeys, Nsub, Nsubs
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import (
    Deld,
    End,
    Ends,
    Err,
    Msg,
    Nid,
    Nmsg,
    Ok,
    RouterMessage,
    Sok,
    Soks,
)
from tests.unit.server.smp.router_rig import (
    NOW_MS,
    OwnKey,
    Peer,
    Queue,
    Request,
    RouterRig,
    turns,
)
from tests.unit.server.smp.router_rig import smp as smp


def notifier_id(queue: Queue) -> bytes:
    assert queue.ids.notifier is not None
    return queue.ids.notifier.notifier_id


async def nsub(peer: Peer, queue: Queue) -> RouterMessage:
    return await peer.ask(Nsub(), notifier_id(queue), queue.notifier_key)


async def nsubs(peer: Peer, count: int = 0, ids_hash: bytes = bytes(16)) -> RouterMessage:
    assert peer.owned_service is not None
    service = peer.owned_service
    return await peer.ask(Nsubs(count, ids_hash), service.service_id, service.key)


def notified(peer: Peer) -> list[bytes]:
    """The notifiers of which something came."""
    events = peer.events()
    assert all(isinstance(message, Nmsg) for _, message in events), events
    return [entity_id for entity_id, _ in events]


def hash_of(*queues: Queue) -> bytes:
    return digest_of(notifier_id(queue) for queue in queues).xor_md5


async def test_a_notification_per_message_that_asks_for_one(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    assert await nsub(notifier, queue) == Sok(None)
    await sender.post(queue, b"loud", b"T")
    await sender.post(queue, b"quiet", b"F")
    await sender.post(queue, b"loud again", b"T")
    await turns()
    assert notified(notifier) == [notifier_id(queue)] * 2
    assert smp.counters.notified_count == 2


async def test_a_notification_names_the_message_for_the_recipient_alone(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    auth, dh = OwnKey.make(), OwnKey.make(KeyKind.X25519)
    keys = Nkey(NotifierKeys(auth.public, dh.public))
    nid = await recipient.ask(keys, queue.recipient_id, queue.key)
    assert isinstance(nid, Nid)
    assert await notifier.ask(Nsub(), nid.notifier_id, auth) == Sok(None)
    await sender.post(queue, b"loud", b"T")
    entity_id, message = await notifier.event()
    assert entity_id == nid.notifier_id
    assert isinstance(message, Nmsg)
    box = SecretBox(bodies_secret(dh, nid))
    notification = bodies.open_notification(box, message.nonce, message.metadata)
    ((_, stored),) = recipient.events()
    assert isinstance(stored, Msg)
    assert notification == bodies.Notification(stored.message_id, NOW_MS // 1_000)


def bodies_secret(dh: OwnKey, nid: Nid) -> bytes:
    return shared_secret(dh.private, nid.dh_key.raw)


async def test_new_credentials_replace_the_old(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await nsub(notifier, queue)
    auth = OwnKey.make()
    keys = Nkey(NotifierKeys(auth.public, OwnKey.make(KeyKind.X25519).public))
    nid = await recipient.ask(keys, queue.recipient_id, queue.key)
    assert isinstance(nid, Nid)
    assert nid.notifier_id != notifier_id(queue)
    assert await notifier.event() == (notifier_id(queue), Deld())
    assert await nsub(notifier, queue) == Err(failures.AUTH)
    assert await notifier.ask(Nsub(), nid.notifier_id, auth) == Sok(None)
    await sender.post(queue, b"loud", b"T")
    await turns()
    assert notified(notifier) == [nid.notifier_id]


async def test_a_second_subscription_moves_it(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    first, second = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await nsub(first, queue)
    # Again on the same connection: nothing to tell.
    assert await nsub(first, queue) == Sok(None)
    await turns()
    assert first.events() == []
    assert await nsub(second, queue) == Sok(None)
    assert await first.event() == (notifier_id(queue), End())
    await sender.post(queue, b"loud", b"T")
    await turns()
    assert notified(second) == [notifier_id(queue)]
    assert first.events() == []


async def test_a_service_signature_in_a_plain_session_is_a_service_error(smp: RouterRig) -> None:
    queue = await smp.connect().create(has_notifier=True)
    plain = smp.connect()
    refused = await plain.refusal(
        Nsub(), notifier_id(queue), queue.notifier_key, with_service_signature=True
    )
    assert refused == failures.SERVICE


async def test_taking_the_credentials_away_ends_it(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await nsub(notifier, queue)
    assert await recipient.ask(Ndel(), queue.recipient_id, queue.key) == Ok()
    assert await notifier.event() == (notifier_id(queue), Deld())
    assert await recipient.ask(Ndel(), queue.recipient_id, queue.key) == Ok()
    await sender.post(queue, b"loud", b"T")
    await turns()
    assert notifier.events() == []
    assert await nsub(notifier, queue) == Err(failures.AUTH)


async def test_a_deleted_queue_is_told_to_its_notifier(smp: RouterRig) -> None:
    recipient, notifier = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await nsub(notifier, queue)
    assert await recipient.ask(Del(), queue.recipient_id, queue.key) == Ok()
    assert await notifier.event() == (notifier_id(queue), Deld())


async def test_notifications_wait_for_a_subscriber(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    for _ in range(3):
        await sender.post(queue, b"loud", b"T")
    assert smp.router.waiting_notification_count == 3
    notifier = smp.connect()
    await nsub(notifier, queue)
    await turns()
    assert notified(notifier) == [notifier_id(queue)] * 3
    assert smp.router.waiting_notification_count == 0


async def test_notifications_do_not_wait_for_ever(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await sender.post(queue, b"loud", b"T")
    smp.now_ms += limits.notification_ms_max + 1
    smp.router.keep_house()
    assert smp.router.waiting_notification_count == 0
    assert smp.router.dropped_notification_count == 1


async def test_notifications_wait_on_though_the_clock_is_set_forward(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await sender.post(queue, b"loud", b"T")
    smp.leap_ms = limits.notification_ms_max + 1
    smp.router.keep_house()
    assert smp.router.waiting_notification_count == 1


async def test_a_slow_notifier_gets_them_when_it_can(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queues = [await recipient.create(has_notifier=True) for _ in range(4)]
    for queue in queues:
        await nsub(notifier, queue)
    notifier.is_writable = False
    for queue in queues:
        await sender.post(queue, b"loud", b"T")
    await turns()
    assert notified(notifier) == [notifier_id(queues[0])]
    notifier.drain()
    await turns()
    assert notified(notifier) == [notifier_id(queue) for queue in queues[1:]]


async def test_notifications_of_one_turn_share_a_sending(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queues = [await recipient.create(has_notifier=True) for _ in range(8)]
    for queue in queues:
        await nsub(notifier, queue)
    notifier.sendings.clear()
    sender.say(*(Request(b"SEND T loud", queue.sender_id) for queue in queues))
    await turns()
    assert [len(sending) for sending in notifier.sendings] == [8]


async def test_a_quota_marker_makes_no_notification(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, quota=1))
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await nsub(notifier, queue)
    for _ in range(3):
        await sender.post(queue, b"loud", b"T")
    await turns()
    assert notified(notifier) == [notifier_id(queue)]


# ---------------------------------------------------------------------------------------- services


async def test_a_notifier_service_from_one_subscription_to_all(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create(has_notifier=True) for _ in range(2)]
    service = await smp.service(ServiceRole.NOTIFIER)
    first, second = smp.connect(service=service), smp.connect(service=service)
    at, key = notifier_id(queues[0]), queues[0].notifier_key
    without = await first.refusal(Nsub(), at, key, with_service_signature=False)
    assert without == failures.SERVICE
    for _ in range(2):
        assert await nsub(first, queues[0]) == Sok(service.service_id)
    # Another session of it: the first is displaced by a single command.
    assert await nsub(second, queues[0]) == Sok(service.service_id)
    assert await first.event() == (service.service_id, Ends(1, hash_of(queues[0])))
    assert await nsub(second, queues[1]) == Sok(service.service_id)
    answer = await nsubs(first, 2, hash_of(*queues))
    assert answer == Soks(2, hash_of(*queues))
    assert await second.event() == (service.service_id, Ends(2, hash_of(*queues)))
    assert smp.counters.bulk_equal_count == 1
    for queue in queues:
        await sender.post(queue, b"loud", b"T")
    await turns()
    # There is no ALLS for notifiers.
    assert notified(first) == [notifier_id(queue) for queue in queues]
    assert second.events() == []


async def test_a_plain_session_takes_a_notifier_back(smp: RouterRig) -> None:
    recipient, plain = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    service = await smp.service(ServiceRole.NOTIFIER)
    session = smp.connect(service=service)
    await nsub(session, queue)
    assert await nsub(plain, queue) == Sok(None)
    assert await session.event() == (notifier_id(queue), End())
    assert await nsubs(session) == Soks(0, bytes(16))
    assert smp.counters.associations_removed_count == 1


async def test_a_bulk_subscription_gets_what_waits(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create(has_notifier=True) for _ in range(3)]
    service = await smp.service(ServiceRole.NOTIFIER)
    session = smp.connect(service=service)
    for queue in queues:
        await nsub(session, queue)
    session.close("lost")
    for queue in queues:
        await sender.post(queue, b"loud", b"T")
    again = smp.connect(service=service)
    assert await nsubs(again) == Soks(3, hash_of(*queues))
    await turns()
    assert sorted(notified(again)) == sorted(notifier_id(queue) for queue in queues)


async def test_a_notifier_association_survives_restarts(smp: RouterRig) -> None:
    queue = await smp.connect().create(has_notifier=True)
    service = await smp.service(ServiceRole.NOTIFIER)
    await nsub(smp.connect(service=service), queue)
    for _ in range(2):
        smp.restart()
        assert await nsubs(smp.connect(service=service)) == Soks(1, hash_of(queue))


async def test_new_credentials_leave_the_set_of_the_service(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create(has_notifier=True)
    service = await smp.service(ServiceRole.NOTIFIER)
    session = smp.connect(service=service)
    await nsub(session, queue)
    keys = Nkey(NotifierKeys(OwnKey.make().public, OwnKey.make(KeyKind.X25519).public))
    assert isinstance(await recipient.ask(keys, queue.recipient_id, queue.key), Nid)
    assert await session.event() == (notifier_id(queue), Deld())
    assert await nsubs(session) == Soks(0, bytes(16))


@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_an_acknowledged_message_keeps_its_notification(
    smp: RouterRig, is_acknowledged: bool
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    await sender.post(queue, b"loud", b"T")
    _, message = await recipient.event()
    assert isinstance(message, Msg)
    if is_acknowledged:
        await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key)
    notifier = smp.connect()
    await nsub(notifier, queue)
    await turns()
    assert notified(notifier) == [notifier_id(queue)]
