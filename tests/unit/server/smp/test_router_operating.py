"""What an operator does to queues, services and sessions, and who hears of it."""

import asyncio

import pytest

from syncline.errors import ServiceMismatchError, StoreFullError, UnknownQueueError
from syncline.storage.records.memory import MemoryRecords
from syncline.values.digests import digest_of
from syncline.values.queue_records import BlockReason, QueueMode, QueueStatus, ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    Lset,
    Ndel,
    Nkey,
    NotifierKeys,
    Nsub,
    Off,
    Que,
    Rkey,
    Send,
    Skey,
    Sub,
    Subs,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Deld, Ends, Err, Msg, Ok, Sok, Soks
from tests.unit.server.smp.router_rig import OwnKey, RouterRig, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp

SPAM = BlockReason("spam", 3_600)
BLOCKED = failures.blocked("spam", 3_600)


def hash_of(*ids: bytes) -> bytes:
    return digest_of(ids).xor_md5


# ------------------------------------------------------------------------------------------ queues


async def test_a_queue_that_an_operator_deletes_is_gone_for_all(smp: RouterRig) -> None:
    service = await smp.service()
    session, notifier, sender = smp.connect(service=service), smp.connect(), smp.connect()
    queue = await session.create(has_notifier=True)
    assert queue.ids.notifier is not None
    notifier_id = queue.ids.notifier.notifier_id
    await notifier.ask(Nsub(), notifier_id, queue.notifier_key)
    await sender.post(queue, b"one")
    await turns()
    session.events()
    smp.records_disk.is_held = True
    deleting = asyncio.create_task(smp.router.operating.delete_queue(queue.recipient_id))
    await turns()
    assert session.sent == notifier.sent == []
    smp.records_disk.let_go()
    await deleting
    assert await session.event() == (queue.recipient_id, Deld())
    assert await notifier.event() == (notifier_id, Deld())
    await smp.settle()
    assert list(smp.store.streams()) == []
    assert smp.records.digest(service.service_id).count == 0
    with pytest.raises(UnknownQueueError):
        await smp.router.operating.delete_queue(queue.recipient_id)


async def test_a_queue_is_found_by_the_id_of_either_party(smp: RouterRig) -> None:
    queue = await smp.connect().create()
    find = smp.router.operating.find_queue
    assert (
        find(queue.recipient_id) == find(queue.sender_id) == smp.records.queue(queue.recipient_id)
    )
    assert find(b"x" * 24) is None


async def test_a_blocked_queue_answers_blocked_to_all_but_off_and_del(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    link_id = b"l" * 24
    queue = await recipient.create(
        QueueMode.CONTACT, has_notifier=True, link=(b"fixed", b"user"), link_id=link_id
    )
    assert queue.ids.notifier is not None
    await sender.post(queue, b"one")
    await turns()
    recipient.events()
    await smp.router.operating.block_queue(queue.recipient_id, SPAM)
    # The reader is told why.
    assert await recipient.event() == (queue.recipient_id, Err(BLOCKED))
    key, dh = OwnKey.make(), OwnKey.make(KeyKind.X25519)
    commands: list[Command] = [
        *(Sub(), Get(), Ack(b"m" * 24), Que(), Ndel(), Ldel(), Lset(link_id, b"fixed", b"new")),
        *(Key(key.public), Rkey((key.public,)), Nkey(NotifierKeys(key.public, dh.public))),
    ]
    for command in commands:
        assert await recipient.refusal(command, queue.recipient_id, queue.key) == BLOCKED, command
    assert await sender.refusal(Send(b"F", b"two"), queue.sender_id) == BLOCKED
    assert await sender.refusal(Skey(key.public), queue.sender_id, key) == BLOCKED
    assert await sender.refusal(Lget(), link_id) == BLOCKED
    # A wrong key learns nothing of it.
    assert await recipient.refusal(Sub(), queue.recipient_id, key) == failures.AUTH
    subscribed = await notifier.ask(Nsub(), queue.ids.notifier.notifier_id, queue.notifier_key)
    assert subscribed == Sok(None)
    assert await recipient.ask(Off(), queue.recipient_id, queue.key) == Ok()
    assert await recipient.refusal(Sub(), queue.recipient_id, queue.key) == BLOCKED
    assert await recipient.ask(Del(), queue.recipient_id, queue.key) == Ok()


async def test_lifting_a_block_brings_the_queue_back(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    await turns()
    operating = smp.router.operating
    await operating.block_queue(queue.recipient_id, SPAM)
    await operating.block_queue(queue.recipient_id, BlockReason("content"))
    await turns()
    recipient.events()
    assert await recipient.subscribe(queue) == Err(failures.blocked("content"))
    await operating.unblock_queue(queue.recipient_id)
    await operating.unblock_queue(queue.recipient_id)
    assert smp.counters.unblocked_count == 1
    assert await recipient.subscribe(queue) == Sok(None)
    _, message = await recipient.event()
    assert queue.text(message) == b"one"
    assert await sender.post(queue, b"two") == Ok()


async def test_lifting_a_block_does_not_switch_a_queue_on_again(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    operating = smp.router.operating
    before, meanwhile = await recipient.create(), await recipient.create()
    await recipient.ask(Off(), before.recipient_id, before.key)
    for queue in (before, meanwhile):
        await operating.block_queue(queue.recipient_id, SPAM)
    await recipient.ask(Off(), meanwhile.recipient_id, meanwhile.key)
    for queue in (before, meanwhile):
        await operating.unblock_queue(queue.recipient_id)
        record = smp.records.queue(queue.recipient_id)
        assert record is not None
        assert record.status is QueueStatus.OFF
        assert await sender.post(queue, b"x") == Err(failures.AUTH)
        assert await recipient.subscribe(queue) == Sok(None)


async def test_a_block_is_told_to_the_session_of_a_service_which_reads_on_afterwards(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    session, sender = smp.connect(service=service), smp.connect()
    queue = await session.create()
    await sender.post(queue, b"one")
    await turns()
    session.events()
    await smp.router.operating.block_queue(queue.recipient_id, SPAM)
    assert await session.event() == (queue.recipient_id, Err(BLOCKED))
    # Blocked, it is still the service's, but nothing of it is delivered.
    again = smp.connect(service=service)
    answer = await again.ask(Subs(0, bytes(16)), service.service_id, service.key)
    assert answer == Soks(1, hash_of(queue.recipient_id))
    await turns()
    assert [message for _, message in again.events() if isinstance(message, Msg)] == []
    await smp.router.operating.unblock_queue(queue.recipient_id)
    entity_id, message = await again.event()
    assert (entity_id, queue.text(message)) == (queue.recipient_id, b"one")


# ---------------------------------------------------------------------------------------- services


async def test_services_are_listed_with_their_digest_and_session(smp: RouterRig) -> None:
    messaging, silent = await smp.service(), await smp.service(ServiceRole.NOTIFIER)
    session = smp.connect(service=messaging)
    smp.connect(service=silent)
    queue = await session.create()
    facts = {each.record.service_id: each for each in smp.router.operating.services()}
    assert facts[messaging.service_id].digest.count == 1
    assert facts[messaging.service_id].digest.xor_md5 == hash_of(queue.recipient_id)
    assert facts[messaging.service_id].session == session.number
    assert facts[silent.service_id].record.role is ServiceRole.NOTIFIER
    assert facts[silent.service_id].session is None


async def test_a_rotated_certificate_keeps_id_and_associations(smp: RouterRig) -> None:
    service = await smp.service(certificate=b"old certificate")
    session = smp.connect(service=service)
    queue = await session.create()
    await smp.router.operating.rotate_service(service.service_id, (b"new certificate",))
    assert session.closed_because is not None
    admit = smp.router.admit_service
    assert await admit((b"new certificate",), ServiceRole.MESSAGING) == service.service_id
    assert await admit((b"old certificate",), ServiceRole.MESSAGING) != service.service_id
    assert smp.records.digest(service.service_id).xor_md5 == hash_of(queue.recipient_id)
    with pytest.raises(ServiceMismatchError):
        await smp.router.operating.rotate_service(b"x" * 24, (b"any",))


async def test_a_deleted_service_is_told_and_closed_and_its_queues_stay(smp: RouterRig) -> None:
    service = await smp.service()
    session, other, sender = smp.connect(service=service), smp.connect(), smp.connect()
    queue = await session.create()
    await sender.post(queue, b"one")
    await turns()
    session.events()
    idle = smp.connect(service=service)
    smp.records_disk.is_held = True
    deleting = asyncio.create_task(smp.router.operating.delete_service(service.service_id))
    await turns()
    assert session.sent == []
    smp.records_disk.let_go()
    await deleting
    assert session.events() == [(service.service_id, Ends(1, hash_of(queue.recipient_id)))]
    assert session.closed_because == idle.closed_because == "its service was deleted"
    # The queue is anybody's again who has its key.
    assert await other.subscribe(queue) == Sok(None)
    _, message = await other.event()
    assert queue.text(message) == b"one"
    with pytest.raises(ServiceMismatchError):
        await smp.router.operating.delete_service(service.service_id)


async def test_a_session_of_a_service_that_is_being_deleted_can_do_nothing_in_its_name(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    session = smp.connect(service=service)
    queue, plain = await session.create(), await smp.connect().create()
    smp.records_disk.is_held = True
    deleting = asyncio.create_task(smp.router.operating.delete_service(service.service_id))
    await asyncio.sleep(0)
    smp.records_disk.is_held = False
    for each in (queue, plain):
        refused = await session.refusal(Sub(), each.recipient_id, each.key)
        assert refused == failures.SERVICE
    subs = Subs(0, bytes(16))
    assert await session.refusal(subs, service.service_id, service.key) == failures.SERVICE
    smp.records_disk.let_go()
    await deleting


async def test_notifier_services_are_deleted_as_well(smp: RouterRig) -> None:
    service = await smp.service(ServiceRole.NOTIFIER)
    recipient, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await recipient.create(has_notifier=True)
    assert queue.ids.notifier is not None
    notifier_id = queue.ids.notifier.notifier_id
    await session.ask(Nsub(), notifier_id, queue.notifier_key)
    await smp.router.operating.delete_service(service.service_id)
    assert session.events() == [(service.service_id, Ends(1, hash_of(notifier_id)))]
    await sender.post(queue, b"loud", b"T")
    plain = smp.connect()
    assert await plain.ask(Nsub(), notifier_id, queue.notifier_key) == Sok(None)
    entity_id, _ = await plain.event()
    assert entity_id == notifier_id


# ------------------------------------------------------------------------------------- a full disk


async def test_who_reads_a_queue_goes_on_though_an_operator_found_no_room(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create()
    operating, records = smp.router.operating, smp.records
    assert isinstance(records, MemoryRecords)
    records.is_full = True
    with pytest.raises(StoreFullError):
        await operating.delete_queue(queue.recipient_id)
    records.is_full = True
    with pytest.raises(StoreFullError):
        await operating.block_queue(queue.recipient_id, SPAM)
    await sender.post(queue, b"one")
    _, message = await reader.event()
    assert queue.text(message) == b"one"


async def test_the_session_of_a_service_that_could_not_be_deleted_may_subscribe_again(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    service = await smp.service()
    session, sender = smp.connect(service=service), smp.connect()
    queue = await session.create()
    assert isinstance(smp.records, MemoryRecords)
    smp.records.is_full = True
    with pytest.raises(StoreFullError):
        await smp.router.operating.delete_service(service.service_id)
    assert session.events() == [(service.service_id, Ends(1, hash_of(queue.recipient_id)))]
    assert session.closed_because is None
    await sender.post(queue, b"one")
    await session.ask(Subs(0, bytes(16)), service.service_id, service.key)
    await turns()
    (_, message), _ = session.events()
    assert queue.text(message) == b"one"


# ---------------------------------------------------------------------------------------- sessions


async def test_sessions_are_listed_and_closed(smp: RouterRig) -> None:
    service = await smp.service()
    plain, session = smp.connect(version=11), smp.connect(service=service)
    await plain.create()
    await session.create()
    facts = {each.number: each for each in smp.router.operating.sessions()}
    assert facts[plain.number].version == 11
    assert facts[plain.number].service_id is None
    view = facts[plain.number].deliveries
    assert view is not None
    assert view.queue_count == 1
    assert facts[session.number].service_id == service.service_id
    assert facts[session.number].role is ServiceRole.MESSAGING
    assert facts[session.number].opened_ms == smp.now_ms
    assert smp.router.operating.close_session(plain.number)
    assert plain.closed_because == "an operator closed it"
    assert not smp.router.operating.close_session(plain.number)
    assert smp.router.session_count == 1
    assert (smp.counters.opened_count, smp.counters.closed_count) == (2, 1)


async def test_a_session_without_subscriptions_is_known_as_such(smp: RouterRig) -> None:
    silent, reader, notifier = smp.connect(), smp.connect(), smp.connect()
    queue = await reader.create(has_notifier=True)
    assert queue.ids.notifier is not None
    await notifier.ask(Nsub(), queue.ids.notifier.notifier_id, queue.notifier_key)
    known = [smp.router.is_session_subscribed(peer.number) for peer in (silent, reader, notifier)]
    assert known == [False, True, True]
