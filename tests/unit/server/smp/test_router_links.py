"""Short links: who may set, read and use them, and when they end."""

from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Key, Ldel, Lget, Lkey, Lset, Send, Skey
from syncline.wire.smp.messages import Err, Lnk, Ok
from tests.unit.server.smp.router_rig import OwnKey, Queue, RouterRig
from tests.unit.server.smp.router_rig import smp as smp

MESSAGING, CONTACT = QueueMode.MESSAGING, QueueMode.CONTACT
DATA = (b"fixed", b"user")
LINK = b"l" * 24


def lnk(queue: Queue, fixed: bytes = b"fixed", user: bytes = b"user") -> Lnk:
    return Lnk(queue.sender_id, fixed, user)


def link_of(queue: Queue) -> bytes:
    assert queue.ids.link_id is not None
    return queue.ids.link_id


async def test_the_router_invents_the_link_of_a_messaging_queue(smp: RouterRig) -> None:
    queue = await smp.connect().create(MESSAGING, link=DATA)
    assert len(link_of(queue)) == 24
    contact = await smp.connect().create(CONTACT, link=DATA, link_id=LINK)
    assert link_of(contact) == LINK


async def test_everybody_may_read_the_link_of_a_contact_address(smp: RouterRig) -> None:
    queue = await smp.connect().create(CONTACT, link=DATA, link_id=LINK)
    reader = smp.connect()
    for _ in range(2):
        assert await reader.ask(Lget(), LINK) == lnk(queue)
    key = OwnKey.make()
    assert await reader.refusal(Lkey(key.public), LINK, key) == failures.AUTH
    messaging = await smp.connect().create(MESSAGING, link=DATA)
    assert await reader.refusal(Lget(), link_of(messaging)) == failures.AUTH


async def test_reading_the_link_of_a_messaging_queue_secures_it(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(MESSAGING, link=DATA)
    link, key, other = link_of(queue), OwnKey.make(), OwnKey.make()
    for _ in range(2):
        assert await sender.ask(Lkey(key.public), link, key) == lnk(queue)
    assert await sender.refusal(Lkey(other.public), link, other) == failures.AUTH
    assert await sender.refusal(Lkey(other.public), link, key) == failures.AUTH
    assert await sender.post(queue, b"unsigned") == Err(failures.AUTH)
    queue.sender_key = key
    # The first message of the secured sender ends the link.
    assert await sender.post(queue, b"signed") == Ok()
    assert await sender.refusal(Lkey(key.public), link, key) == failures.AUTH
    record = smp.records.queue(queue.recipient_id)
    assert record is not None
    assert record.link is None


async def test_a_message_of_nobody_in_particular_leaves_the_link(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(MESSAGING, link=DATA)
    assert await sender.post(queue, b"unsigned") == Ok()
    key = OwnKey.make()
    assert await sender.ask(Lkey(key.public), link_of(queue), key) == lnk(queue)


async def test_the_link_of_a_contact_address_stays_with_messages(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(CONTACT, link=DATA, link_id=LINK)
    key = OwnKey.make()
    await recipient.ask(Key(key.public), queue.recipient_id, queue.key)
    assert await sender.ask(Send(b"F", b"x"), queue.sender_id, key) == Ok()
    assert await sender.ask(Lget(), LINK) == lnk(queue)


async def test_the_user_part_changes_and_the_fixed_part_does_not(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create(CONTACT)
    at, key = queue.recipient_id, queue.key
    for _ in range(2):
        assert await recipient.ask(Lset(LINK, *DATA), at, key) == Ok()
    assert await recipient.ask(Lset(LINK, b"fixed", b"other"), at, key) == Ok()
    assert await smp.connect().ask(Lget(), LINK) == lnk(queue, user=b"other")
    assert await recipient.refusal(Lset(LINK, b"other", b"user"), at, key) == failures.AUTH
    assert await recipient.refusal(Lset(b"m" * 24, *DATA), at, key) == failures.AUTH
    assert await recipient.refusal(Lset(b"short", *DATA), at, key) == failures.SYNTAX


async def test_a_link_id_cannot_be_attached_twice(smp: RouterRig) -> None:
    recipient = smp.connect()
    first, second = await recipient.create(CONTACT), await recipient.create(CONTACT)
    assert await recipient.ask(Lset(LINK, *DATA), first.recipient_id, first.key) == Ok()
    refused = await recipient.refusal(Lset(LINK, *DATA), second.recipient_id, second.key)
    assert refused == failures.AUTH
    assert await recipient.ask(Lget(), LINK) == lnk(first)
    # Taken off the first, it may be given to the second.
    assert await recipient.ask(Ldel(), first.recipient_id, first.key) == Ok()
    assert await recipient.ask(Lset(LINK, *DATA), second.recipient_id, second.key) == Ok()
    assert await recipient.ask(Lget(), LINK) == lnk(second)


async def test_a_secured_messaging_queue_gets_no_link(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(MESSAGING)
    at, key = queue.recipient_id, queue.key
    assert await recipient.ask(Lset(LINK, *DATA), at, key) == Ok()
    sender_key = OwnKey.make()
    assert await sender.ask(Skey(sender_key.public), queue.sender_id, sender_key) == Ok()
    assert await recipient.refusal(Lset(LINK, b"fixed", b"other"), at, key) == failures.AUTH


async def test_deleting_a_link_is_always_fine(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create(CONTACT, link=DATA, link_id=LINK)
    for _ in range(2):
        assert await recipient.ask(Ldel(), queue.recipient_id, queue.key) == Ok()
    assert await recipient.refusal(Lget(), LINK) == failures.AUTH
