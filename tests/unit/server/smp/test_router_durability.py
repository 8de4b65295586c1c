"""Nothing is told or delivered before it is durable, and nothing at all once the device failed."""

import asyncio
from dataclasses import replace

import pytest

from syncline.errors import CorruptionError, DeviceError, StoreFullError
from syncline.storage.records.memory import MemoryRecords
from syncline.values.digests import digest_of
from syncline.values.queue_records import QueueMode, QueueRecord, ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.bodies import QuotaReached, sender_id_of
from syncline.wire.smp.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    LinkRequest,
    Lset,
    Ndel,
    New,
    Nkey,
    NotifierKeys,
    Nsub,
    Off,
    Ping,
    QueueRequest,
    Rkey,
    Send,
    Skey,
    Sub,
    Subs,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Err,
    Ids,
    Msg,
    Nid,
    Nmsg,
    Ok,
    Pong,
    Sok,
    Soks,
)
from tests.unit.server.smp.router_rig import OwnKey, Queue, Request, RouterRig, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp

KEY = OwnKey.make()
DH = OwnKey.make(KeyKind.X25519)
BROKEN = DeviceError("log", "syncing", "no such device")


# -------------------------------------------------------------------------------------------- SEND


async def test_no_ok_and_no_message_before_it_is_durable(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    request = Request(Send(b"T", b"one"), queue.sender_id)
    sender.say(request)
    await turns()
    assert sender.sent == []
    assert recipient.sent == []
    smp.disk.let_go()
    await turns()
    assert sender.answer_to(request) == Ok()
    _, message = await recipient.event()
    assert queue.text(message) == b"one"


async def test_a_subscriber_that_comes_meanwhile_gets_it_when_it_is_durable(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    assert await recipient.subscribe(queue) == Sok(None)
    assert await recipient.ask(Sub(), queue.recipient_id, queue.key) == Sok(None)
    await turns()
    assert recipient.events() == []
    smp.disk.let_go()
    _, message = await recipient.event()
    assert queue.text(message) == b"one"


async def test_get_does_not_see_what_is_not_durable(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    assert await recipient.ask(Get(), queue.recipient_id, queue.key) == Ok()
    smp.disk.let_go()
    await turns()
    assert queue.text(await recipient.ask(Get(), queue.recipient_id, queue.key)) == b"one"


async def test_a_notification_goes_out_when_its_message_is_durable(smp: RouterRig) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    assert queue.ids.notifier is not None
    await notifier.ask(Nsub(), queue.ids.notifier.notifier_id, queue.notifier_key)
    smp.disk.is_held = True
    sender.say(Request(Send(b"T", b"one"), queue.sender_id))
    await turns()
    assert notifier.sent == []
    smp.disk.let_go()
    _, message = await notifier.event()
    assert isinstance(message, Nmsg)


async def test_a_message_is_stored_though_its_sender_has_gone(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    sender.close("lost")
    smp.disk.let_go()
    _, message = await recipient.event()
    assert queue.text(message) == b"one"


async def test_an_acknowledgement_waits_for_nothing(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    _, message = await recipient.event()
    smp.disk.is_held = smp.records_disk.is_held = True
    assert isinstance(message, Msg)
    recipient.say(request := Request(Ack(message.message_id), queue.recipient_id, queue.key))
    assert recipient.answer_to(request) == Ok()


async def test_answers_that_wait_for_nothing_do_not_wait_for_others(smp: RouterRig) -> None:
    peer = smp.connect()
    queue = await peer.create()
    smp.disk.is_held = True
    send, ping = Request(Send(b"F", b"one"), queue.sender_id), Request(Ping())
    peer.say(send, ping)
    assert peer.answer_to(ping) == Pong()
    assert peer.answer_to(send) is None
    smp.disk.let_go()
    await turns()
    assert peer.answer_to(send) == Ok()


async def test_a_marker_that_becomes_durable_behind_the_last_acknowledgement_is_delivered(
    smp: RouterRig,
) -> None:
    smp.choose(replace(smp.options, quota=1))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    _, one = await recipient.event()
    assert isinstance(one, Msg)
    smp.disk.is_held = True
    sender.say(refused := Request(Send(b"F", b"two"), queue.sender_id))
    await turns()
    # The marker is staged. Nothing is left that could be read, and the reader is up to date.
    assert await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key) == Ok()
    assert sender.answer_to(refused) is None
    smp.disk.let_go()
    _, marker = await recipient.event()
    assert isinstance(queue.open(marker), QuotaReached)
    assert sender.answer_to(refused) == Err(failures.QUOTA)


async def test_a_notification_of_a_notifier_that_was_replaced_meanwhile_reaches_nobody(
    smp: RouterRig,
) -> None:
    recipient, notifier, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    smp.disk.is_held = True
    sender.say(Request(Send(b"T", b"one"), queue.sender_id))
    keys = Nkey(NotifierKeys(KEY.public, DH.public))
    nid = await recipient.ask(keys, queue.recipient_id, queue.key)
    assert isinstance(nid, Nid)
    assert await notifier.ask(Nsub(), nid.notifier_id, KEY) == Sok(None)
    smp.disk.let_go()
    await turns()
    # Its secret is another: what was sealed for the old one nobody could open.
    assert notifier.events() == []
    assert smp.router.waiting_notification_count == 0


# ----------------------------------------------------------------------------------------- records


def changes(queue: Queue) -> list[Command]:
    """Commands of the recipient that change the record."""
    return [
        Key(KEY.public),
        Rkey((queue.key.public, KEY.public)),
        Nkey(NotifierKeys(KEY.public, DH.public)),
        Ndel(),
        Lset(b"l" * 24, b"fixed", b"user"),
        Off(),
        Del(),
    ]


@pytest.mark.parametrize("index", range(7))
async def test_no_change_of_a_record_is_told_before_it_is_durable(
    smp: RouterRig, index: int
) -> None:

    peer = smp.connect()
    queue = await peer.create(QueueMode.CONTACT, has_notifier=True)
    smp.records_disk.is_held = True
    request = Request(changes(queue)[index], queue.recipient_id, queue.key)
    peer.say(request)
    await turns()
    assert peer.sent == []
    smp.records_disk.let_go()
    await turns()
    answer = peer.answer_to(request)
    assert answer is not None
    assert not isinstance(answer, Err), answer


async def test_a_new_queue_is_told_when_it_is_durable(smp: RouterRig) -> None:
    peer = smp.connect()
    smp.records_disk.is_held = True
    peer.say(request := Request(New(KEY.public, DH.public), key=KEY))
    await turns()
    assert peer.sent == []
    smp.records_disk.let_go()
    await turns()
    assert isinstance(peer.answer_to(request), Ids)


async def test_repeating_a_command_that_is_on_its_way_waits_as_long(smp: RouterRig) -> None:
    recipient, sender, other = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.records_disk.is_held = True
    first = Request(Skey(KEY.public), queue.sender_id, KEY)
    again = Request(Skey(KEY.public), queue.sender_id, KEY)
    wrong_key = OwnKey.make()
    wrong = Request(Skey(wrong_key.public), queue.sender_id, wrong_key)
    sender.say(first)
    await turns()
    # Staged, and met by others; but told to nobody, be it as a success or as a refusal.
    sender.say(again)
    other.say(wrong)
    await turns()
    assert sender.sent == []
    assert other.sent == []
    smp.records_disk.let_go()
    await turns()
    assert [sender.answer_to(first), sender.answer_to(again)] == [Ok(), Ok()]
    assert other.answer_to(wrong) == Err(failures.AUTH)


async def test_a_message_to_a_queue_whose_record_is_on_its_way_waits_for_both(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.records_disk.is_held = True
    secure = Request(Skey(KEY.public), queue.sender_id, KEY)
    send = Request(Send(b"F", b"one"), queue.sender_id, KEY)
    sender.say(secure, send)
    await turns()
    assert sender.sent == []
    smp.disk.is_held = True
    smp.records_disk.let_go()
    await turns()
    assert sender.answer_to(secure) == Ok()
    smp.disk.let_go()
    await turns()
    assert sender.answer_to(send) == Ok()


async def test_a_deletion_is_told_to_all_when_it_is_durable(smp: RouterRig) -> None:
    recipient, reader, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    await reader.subscribe(queue)
    await turns()
    recipient.events()
    smp.records_disk.is_held = True
    recipient.say(delete := Request(Del(), queue.recipient_id, queue.key))
    sender.say(late := Request(Send(b"F", b"late"), queue.sender_id))
    await turns()
    assert recipient.sent == reader.sent == sender.sent == []
    smp.records_disk.let_go()
    await turns()
    assert recipient.answer_to(delete) == Ok()
    assert sender.answer_to(late) == Err(failures.AUTH)
    assert reader.events() == [(queue.recipient_id, Deld())]


async def test_a_message_that_becomes_durable_behind_a_deletion_reaches_nobody(
    smp: RouterRig,
) -> None:
    recipient, reader, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    await reader.subscribe(queue)
    await turns()
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"late"), queue.sender_id))
    assert await recipient.ask(Del(), queue.recipient_id, queue.key) == Ok()
    smp.disk.let_go()
    await turns()
    assert [message for _, message in reader.events()] == [Deld()]
    assert list(smp.store.streams()) == []


# ---------------------------------------------------------------------------------------- services


async def test_an_association_is_told_when_it_is_durable_and_messages_come_behind_it(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    plain, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await plain.create(subscribes=False)
    await sender.post(queue, b"one")
    smp.records_disk.is_held = True
    requests = [Request(Sub(), queue.recipient_id, queue.key) for _ in range(2)]
    for request in requests:
        session.say(request)
    await turns()
    assert session.sent == []
    smp.records_disk.let_go()
    await turns()
    for request in requests:
        assert session.answer_to(request) == Sok(service.service_id)
    # Asked for twice before anything was handed over: once is enough.
    assert [queue.text(message) for _, message in session.events()] == [b"one"]


async def test_a_bulk_subscription_counts_what_was_staged_before_it(smp: RouterRig) -> None:
    service = await smp.service()
    session = smp.connect(service=service)
    queues = [await smp.connect().create() for _ in range(3)]
    smp.records_disk.is_held = True
    subs = Request(Subs(0, bytes(16)), service.service_id, service.key)
    session.say(*(Request(Sub(), queue.recipient_id, queue.key) for queue in queues), subs)
    await turns()
    assert session.sent == []
    smp.records_disk.let_go()
    await turns()
    ids_hash = digest_of(queue.recipient_id for queue in queues).xor_md5
    assert session.answer_to(subs) == Soks(3, ids_hash)


async def test_what_ends_a_subscription_comes_behind_what_began_it(smp: RouterRig) -> None:
    """The answer waits for the records, so what another session does to it waits as well."""
    service = await smp.service()
    plain, session, other = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await plain.create(subscribes=False)
    smp.records_disk.is_held = True
    session.say(Request(Sub(), queue.recipient_id, queue.key))
    await turns()
    other.say(Request(Sub(), queue.recipient_id, queue.key))
    await turns()
    assert session.sent == other.sent == []
    smp.records_disk.let_go()
    await turns()
    assert [answer.message for answer in session.sent] == [Sok(service.service_id), End()]
    assert [answer.message for answer in other.sent] == [Sok(None)]


async def test_subscribing_again_is_answered_behind_the_end_that_came_before(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    reader, other = smp.connect(), smp.connect()
    associated = await smp.connect(service=service).create()
    queue = await reader.create()
    smp.records_disk.is_held = True
    reader.say(waiting := Request(Sub(), associated.recipient_id, associated.key))
    await turns()
    assert await other.subscribe(queue) == Sok(None)
    # Told of that only behind what waits; so this, though it waits for nothing, waits as well.
    reader.say(again := Request(Sub(), queue.recipient_id, queue.key))
    await turns()
    assert reader.sent == []
    smp.records_disk.let_go()
    await turns()
    assert [(answer.corr_id, answer.message) for answer in reader.sent] == [
        (waiting.corr_id, Sok(None)),
        (b"", End()),
        (again.corr_id, Sok(None)),
    ]


async def test_ends_comes_behind_answers_that_wait_and_before_those_that_follow(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    first, second = smp.connect(service=service), smp.connect(service=service)
    queues = [await smp.connect().create() for _ in range(2)]
    subs = (Subs(0, bytes(16)), service.service_id, service.key)
    smp.records_disk.is_held = True
    first.say(Request(Sub(), queues[0].recipient_id, queues[0].key))
    await turns()
    second.say(Request(*subs))
    first.say(Request(*subs))
    await turns()
    assert first.sent == second.sent == []
    smp.records_disk.let_go()
    await turns(100)
    ids_hash = digest_of([queues[0].recipient_id]).xor_md5
    soks = Soks(1, ids_hash)
    ends = Ends(1, ids_hash)
    messages = [answer.message for answer in first.sent]
    assert messages == [Sok(service.service_id), ends, soks, Alls()]
    assert [answer.message for answer in second.sent][:2] == [soks, ends]


async def test_a_service_id_is_told_when_it_is_durable(smp: RouterRig) -> None:
    smp.records_disk.is_held = True
    admissions = [
        asyncio.create_task(_admit(smp, b"certificate")),
        asyncio.create_task(_admit(smp, b"certificate")),
    ]
    await turns()
    assert not any(admission.done() for admission in admissions)
    smp.records_disk.let_go()
    first, second = await asyncio.gather(*admissions)
    assert first == second
    assert len(first) == 24


async def _admit(smp: RouterRig, certificate: bytes) -> bytes | str:
    return await smp.router.admit_service((certificate,), ServiceRole.MESSAGING)


# ---------------------------------------------------------------------------------------- failures


async def test_after_a_failed_device_nothing_is_told(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.failure = BROKEN
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    await turns()
    sender.say(Request(Send(b"F", b"two"), queue.sender_id))
    await turns()
    assert sender.sent == recipient.sent == []
    assert smp.committer.failure is BROKEN


async def test_after_failed_records_nothing_is_told_that_waits_for_them(smp: RouterRig) -> None:
    recipient, sender, other = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.records_disk.failure = BROKEN
    sender.say(Request(Skey(KEY.public), queue.sender_id, KEY))
    await turns()
    # What it staged is met, and must not be told either.
    sender.say(Request(Skey(KEY.public), queue.sender_id, KEY))
    other.say(Request(Send(b"F", b"x"), queue.sender_id))
    recipient.say(Request(Del(), queue.recipient_id, queue.key))
    await turns()
    assert recipient.sent == sender.sent == other.sent == []
    # What does not depend on them is.
    assert await other.ask(Ping()) == Pong()


async def test_a_full_disk_refuses_what_it_cannot_keep_and_goes_on(in_memory: RouterRig) -> None:
    smp = in_memory
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    service = await smp.service()
    session, reader = smp.connect(service=service), smp.connect()
    moved, wanted = await reader.create(), await session.create()
    assert isinstance(smp.records, MemoryRecords)
    smp.records.is_full = True
    # It waits for the records, and what happens to it then comes behind its answer.
    reader.say(taken := Request(Sub(), wanted.recipient_id, wanted.key))
    smp.connect().say(Request(Sub(), moved.recipient_id, moved.key))
    secure = Request(Skey(KEY.public), queue.sender_id, KEY)
    send = Request(Send(b"F", b"kept"), queue.sender_id, KEY)
    subs = Request(Subs(0, bytes(16)), service.service_id, service.key)
    sender.say(secure, send)
    session.say(subs)
    await turns()
    for peer, request in ((sender, secure), (sender, send), (reader, taken)):
        answer = peer.answer_to(request)
        assert isinstance(answer, Err)
        assert answer.failure.code == "STORE"
        assert b"memory" not in answer.failure.detail
    # So is what another session did to a subscription.
    assert reader.events() == [(moved.recipient_id, End())]
    # This tells what is durable, and was not about what was refused.
    assert session.answer_to(subs) == Soks(1, digest_of([wanted.recipient_id]).xor_md5)
    # And nobody has lost what could not be taken.
    assert [message for _, message in session.events()] == [Alls()]
    # The message was stored by the log, so its reader has it.
    _, message = await recipient.event()
    assert queue.text(message) == b"kept"
    assert await sender.ask(Skey(KEY.public), queue.sender_id, KEY) == Ok()
    assert smp.records_committer.failure is None


async def test_what_relies_on_a_change_that_found_no_room_is_refused_with_it(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    recipient, sender = smp.connect(), smp.connect()
    secured, deleted = await recipient.create(), await recipient.create()
    assert isinstance(smp.records, MemoryRecords)
    smp.records.is_full = smp.records_disk.is_held = True
    sender.say(Request(Skey(KEY.public), secured.sender_id, KEY))
    recipient.say(Request(Del(), deleted.recipient_id, deleted.key))
    await turns()
    # They meet what is on its way to the disk, and have nothing to write there themselves.
    relying = [
        Request(Skey(KEY.public), secured.sender_id, KEY),
        Request(Send(b"F", b"x"), secured.sender_id, KEY),
        Request(Send(b"F", b"x"), deleted.sender_id),
    ]
    sender.say(*relying)
    await turns()
    smp.records_disk.let_go()
    await turns()
    for request in relying:
        answer = sender.answer_to(request)
        assert isinstance(answer, Err)
        assert answer.failure.code == "STORE"
    assert await sender.ask(Skey(KEY.public), secured.sender_id, KEY) == Ok()
    assert await sender.post(deleted, b"x") == Ok()


async def test_with_a_shortage_new_messages_and_queues_are_refused_and_reading_goes_on(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    shortage = StoreFullError("/secret", "only 3 bytes are free")
    smp.choose(smp.options, shortage=lambda: shortage)
    recipient, sender = smp.connect(), smp.connect()
    for command, at, key in (
        (Send(b"F", b"two"), queue.sender_id, None),
        (New(KEY.public, DH.public), b"", KEY),
    ):
        failure = await sender.refusal(command, at, key)
        assert failure == failures.store("there is no room on the disk, try again later")
    await recipient.subscribe(queue)
    _, message = await recipient.event()
    assert isinstance(message, Msg)
    assert await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()


# ------------------------------------------------------------------------- what became of refusals


def fill(smp: RouterRig) -> None:
    """The next change of the records finds no room."""
    assert isinstance(smp.records, MemoryRecords)
    smp.records.is_full = True


async def test_who_reads_a_queue_goes_on_though_its_deletion_found_no_room(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    reader, other, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await reader.create()
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    await turns()
    fill(smp)
    smp.records_disk.is_held = True
    other.say(refused := Request(Del(), queue.recipient_id, queue.key))
    await turns()
    # It becomes durable while nobody finds its queue.
    smp.disk.let_go()
    await turns()
    assert reader.events() == []
    smp.records_disk.let_go()
    await turns()
    answer = other.answer_to(refused)
    assert isinstance(answer, Err)
    _, message = await reader.event()
    assert isinstance(message, Msg)
    assert queue.text(message) == b"one"
    assert await reader.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()
    await sender.post(queue, b"two")
    _, message = await reader.event()
    assert queue.text(message) == b"two"


async def test_the_session_of_a_service_reads_on_what_could_not_be_taken_from_it(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    service = await smp.service()
    session, plain, sender = smp.connect(service=service), smp.connect(), smp.connect()
    queue = await session.create()
    await sender.post(queue, b"one")
    _, one = await session.event()
    assert isinstance(one, Msg)
    fill(smp)
    assert (await plain.refusal(Sub(), queue.recipient_id, queue.key)).code == "STORE"
    await turns()
    assert session.events() == []
    assert await session.ask(Ack(one.message_id), queue.recipient_id, queue.key) == Ok()
    # Nor is the other one its reader once it is nobody's.
    await smp.router.operating.delete_service(service.service_id)
    await sender.post(queue, b"two")
    await turns()
    assert plain.events() == []


@pytest.mark.parametrize("is_service", [False, True])
async def test_who_loses_a_queue_hears_of_it_when_that_is_durable(
    smp: RouterRig, is_service: bool
) -> None:
    """Subscribing again while that is on its way to the disk tells nobody earlier."""
    service, sender = await smp.service(), smp.connect()
    plain, session = smp.connect(), smp.connect(service=service)
    reader, taker = (plain, session) if is_service else (session, plain)
    queue = await reader.create()
    smp.records_disk.is_held = True
    for _ in range(2):
        taker.say(Request(Sub(), queue.recipient_id, queue.key))
        await turns()
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    await turns()
    assert reader.sent == taker.sent == []
    smp.records_disk.let_go()
    await turns()
    assert reader.events() == [(queue.recipient_id, End())]
    ((_, message),) = taker.events()
    assert queue.text(message) == b"one"


async def test_who_left_before_a_queue_was_its_own_does_not_become_its_reader(
    smp: RouterRig,
) -> None:
    session, plain, sender = smp.connect(service=await smp.service()), smp.connect(), smp.connect()
    queue = await session.create()
    smp.records_disk.is_held = True
    plain.say(Request(Sub(), queue.recipient_id, queue.key))
    await turns()
    plain.close("gone")
    smp.records_disk.let_go()
    await turns()
    assert session.events() == [(queue.recipient_id, End())]
    await sender.post(queue, b"one")
    await turns()
    assert session.events() == []
    assert smp.router.subscribed_queue_count == 0
    late = smp.connect()
    await late.ask(Sub(), queue.recipient_id, queue.key)
    _, message = await late.event()
    assert queue.text(message) == b"one"


async def test_who_loses_a_queue_and_takes_it_back_hears_of_both_in_order(smp: RouterRig) -> None:
    service = await smp.service()
    reader, session = smp.connect(), smp.connect(service=service)
    queue = await reader.create()
    smp.records_disk.is_held = True
    for peer in (session, reader):
        peer.say(Request(Sub(), queue.recipient_id, queue.key))
        await turns()
    smp.records_disk.let_go()
    await turns()
    assert [answer.message for answer in reader.sent] == [End(), Sok(None)]
    assert [answer.message for answer in session.sent] == [Sok(service.service_id), End()]


async def test_a_service_that_was_lost_meanwhile_is_not_taken_back(smp: RouterRig) -> None:
    service = await smp.service()
    reader, first, second = smp.connect(), *(smp.connect(service=service) for _ in range(2))
    queue = await reader.create()
    smp.records_disk.is_held = True
    first.say(Request(Sub(), queue.recipient_id, queue.key))
    second.say(Request(Subs(0, bytes(16)), service.service_id, service.key))
    await turns()
    smp.records_disk.let_go()
    await turns()
    assert reader.events() == [(queue.recipient_id, End())]
    assert [type(answer.message) for answer in first.sent] == [Sok, Ends]
    assert [type(answer.message) for answer in second.sent] == [Soks, Alls]
    await reader.post(queue, b"one")
    _, message = second.events()[-1]
    assert queue.text(message) == b"one"


async def test_who_gets_notifications_loses_them_when_that_is_durable(smp: RouterRig) -> None:
    service = await smp.service(ServiceRole.NOTIFIER)
    reader, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await sender.create(has_notifier=True)
    assert queue.ids.notifier is not None
    notifier_id = queue.ids.notifier.notifier_id
    await reader.ask(Nsub(), notifier_id, queue.notifier_key)
    smp.records_disk.is_held = True
    session.say(Request(Nsub(), notifier_id, queue.notifier_key))
    sender.say(Request(Send(b"T", b"one"), queue.sender_id))
    await turns()
    assert reader.sent == session.sent == []
    smp.records_disk.let_go()
    await turns()
    assert reader.events() == [(notifier_id, End())]
    assert [type(answer.message) for answer in session.sent] == [Sok, Nmsg]


async def test_who_gets_notifications_goes_on_though_another_was_refused(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    service = await smp.service(ServiceRole.NOTIFIER)
    reader, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await sender.create(has_notifier=True)
    assert queue.ids.notifier is not None
    notifier_id = queue.ids.notifier.notifier_id
    await reader.ask(Nsub(), notifier_id, queue.notifier_key)
    fill(smp)
    assert (await session.refusal(Nsub(), notifier_id, queue.notifier_key)).code == "STORE"
    await sender.post(queue, b"one", b"T")
    _, message = await reader.event()
    assert isinstance(message, Nmsg)
    assert session.events() == []


async def test_who_reads_a_queue_goes_on_though_a_service_was_refused_it(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    service = await smp.service()
    reader, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queue = await reader.create()
    await sender.post(queue, b"one")
    _, one = await reader.event()
    assert isinstance(one, Msg)
    fill(smp)
    smp.records_disk.is_held = True
    # The second only meets what the first has staged.
    requests = [Request(Sub(), queue.recipient_id, queue.key) for _ in range(2)]
    for request in requests:
        session.say(request)
        await turns()
    await turns()
    smp.records_disk.let_go()
    await turns()
    assert all(isinstance(session.answer_to(request), Err) for request in requests)
    assert reader.events() == []
    # The message that it has is its own still, and so is the next.
    assert await reader.ask(Ack(one.message_id), queue.recipient_id, queue.key) == Ok()
    await sender.post(queue, b"two")
    _, two = await reader.event()
    assert queue.text(two) == b"two"
    assert session.events() == []


async def test_a_message_that_came_while_a_queue_was_not_taken_reaches_its_reader(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    service = await smp.service()
    session, plain, sender = smp.connect(service=service), smp.connect(), smp.connect()
    queue = await session.create()
    smp.disk.is_held = smp.records_disk.is_held = True
    sender.say(Request(Send(b"F", b"one"), queue.sender_id))
    fill(smp)
    plain.say(Request(Sub(), queue.recipient_id, queue.key))
    smp.disk.let_go()
    await turns()
    assert session.sent == plain.sent == []
    smp.records_disk.let_go()
    _, message = await session.event()
    assert queue.text(message) == b"one"
    assert plain.events() == []


async def test_a_message_waits_until_its_queue_is_durable(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    new = new_with_link()
    smp.records_disk.is_held = True
    recipient.say(new)
    sender.say(send := Request(Send(b"F", b"quick"), sender_id_of(new.corr_id)))
    await turns()
    assert sender.sent == []
    # A crash now would leave messages behind that belong to nobody.
    assert list(smp.store.streams()) == []
    smp.records_disk.let_go()
    await turns()
    assert isinstance(recipient.answer_to(new), Ids)
    assert sender.answer_to(send) == Ok()
    assert isinstance((await recipient.event())[1], Msg)


async def test_a_message_to_a_queue_that_found_no_room_leaves_nothing_behind(
    in_memory: RouterRig,
) -> None:
    smp = in_memory
    recipient, sender = smp.connect(), smp.connect()
    new = new_with_link()
    fill(smp)
    recipient.say(new)
    failure = await sender.refusal(Send(b"F", b"quick"), sender_id_of(new.corr_id))
    assert failure == failures.AUTH
    assert isinstance(recipient.answer_to(new), Err)
    assert list(smp.store.streams()) == []


def new_with_link() -> Request:
    """NEW of a queue whose sender id is known before the answer."""
    request = Request(b"", key=KEY)
    link = LinkRequest(None, sender_id_of(request.corr_id), b"fixed", b"user")
    request.command = New(
        KEY.public,
        DH.public,
        subscribes=True,
        request=QueueRequest(QueueMode.MESSAGING, link),
    )
    return request


async def test_a_queue_that_found_no_room_leaves_nothing_behind(in_memory: RouterRig) -> None:
    smp = in_memory
    fill(smp)
    new = New(KEY.public, DH.public, subscribes=True)
    assert (await smp.connect().refusal(new, key=KEY)).code == "STORE"
    assert smp.router.subscribed_queue_count == 0


# ------------------------------------------------------------------------------------------ damage


async def test_a_record_that_cannot_be_read_keeps_no_message_of_another_queue(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create(has_notifier=True) for _ in range(3)]
    smp.disk.is_held = True
    sender.say(*(Request(Send(b"T", b"one"), queue.sender_id) for queue in queues))
    await turns()
    find = smp.records.queue

    def found(recipient_id: bytes) -> QueueRecord | None:
        if recipient_id == queues[0].recipient_id:
            raise CorruptionError("records.sqlite", 0, "a page is damaged")
        return find(recipient_id)

    monkeypatch.setattr(smp.records, "queue", found)
    smp.disk.let_go()
    await turns()
    assert [entity for entity, _ in recipient.events()] == [
        each.recipient_id for each in queues[1:]
    ]
