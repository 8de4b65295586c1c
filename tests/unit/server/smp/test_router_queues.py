"""Queues between two parties: the behaviour that every client of the protocol relies on."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest

from syncline.errors import CorruptionError, StoreBusyError
from syncline.storage.base import commit
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.bodies import QuotaReached
from syncline.wire.smp.commands import (
    Ack,
    Del,
    Get,
    Key,
    New,
    Off,
    Ping,
    Que,
    QueueRequest,
    Rkey,
    Send,
    Skey,
    Sub,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Deld, End, Err, Ids, Info, Msg, Ok, Pong, Sok
from syncline.wire.smp.versions import body_bytes_max
from tests.unit.server.smp.router_rig import NOW_MS, OwnKey, Peer, Queue, Request, RouterRig, turns
from tests.unit.server.smp.router_rig import smp as smp

CONTACT = QueueMode.CONTACT


async def received(peer: Peer, queue: Queue) -> Msg:
    """The message that came by itself."""
    entity_id, message = await peer.event()
    assert entity_id == queue.recipient_id
    assert isinstance(message, Msg)
    return message


# ------------------------------------------------------------------------------ sending, securing


async def test_create_send_deliver_acknowledge_and_secure(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    assert await sender.post(queue, b"hello") == Ok()
    message = await received(recipient, queue)
    assert queue.text(message) == b"hello"
    assert await recipient.ask(Ack(message.message_id), at, key) == Ok()
    assert await recipient.refusal(Ack(message.message_id), at, key) == failures.NO_MSG

    sender_key = OwnKey.make()
    assert await sender.refusal(Send(b"F", b"x"), queue.sender_id, sender_key) == failures.AUTH
    assert await recipient.ask(Key(sender_key.public), at, key) == Ok()
    assert await recipient.ask(Key(sender_key.public), at, key) == Ok()
    assert await recipient.refusal(Key(OwnKey.make().public), at, key) == failures.AUTH
    assert await sender.refusal(Send(b"F", b"x"), queue.sender_id) == failures.AUTH

    largest = b"x" * body_bytes_max(20)
    queue.sender_key = sender_key
    assert await sender.post(queue, largest + b"x") == Err(failures.LARGE_MSG)
    assert await sender.post(queue, largest) == Ok()
    assert queue.text(await received(recipient, queue)) == largest


@pytest.mark.parametrize(("version", "bytes_max"), [(6, 16_088), (8, 16_064), (11, 16_048)])
async def test_how_much_may_be_sent_depends_on_the_version(
    smp: RouterRig, version: int, bytes_max: int
) -> None:
    queue = await smp.connect().create()
    sender = smp.connect(version)
    assert await sender.post(queue, b"x" * bytes_max) == Ok()
    # The block of an old version has no room for more than this.
    if version > 7:
        assert await sender.post(queue, b"x" * (bytes_max + 1)) == Err(failures.LARGE_MSG)


async def test_the_sender_secures_a_messaging_queue_and_no_contact_address(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue, contact = await recipient.create(), await recipient.create(CONTACT)
    key = OwnKey.make()
    assert await sender.ask(Skey(key.public), queue.sender_id, key) == Ok()
    assert await sender.ask(Skey(key.public), queue.sender_id, key) == Ok()
    other = OwnKey.make()
    assert await sender.refusal(Skey(other.public), queue.sender_id, other) == failures.AUTH
    assert await sender.refusal(Skey(other.public), queue.sender_id, key) == failures.AUTH
    queue.sender_key = key
    assert await sender.post(queue, b"hello") == Ok()
    assert await sender.refusal(Skey(key.public), contact.sender_id, key) == failures.AUTH
    assert smp.counters.secured_count == 1


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_keys_of_every_kind_authorize_both_parties(smp: RouterRig, kind: KeyKind) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(kind=kind)
    queue.sender_key = OwnKey.make(kind)
    secure = Skey(queue.sender_key.public)
    assert await sender.ask(secure, queue.sender_id, queue.sender_key) == Ok()
    assert await sender.post(queue, b"hello") == Ok()
    message = await received(recipient, queue)
    assert await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()


async def test_a_contact_address_has_a_list_of_recipient_keys(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create(CONTACT)
    at, first, second = queue.recipient_id, queue.key, OwnKey.make(KeyKind.X25519)
    assert await recipient.ask(Rkey((first.public, second.public)), at, first) == Ok()
    assert await recipient.ask(Sub(), at, first) == Sok(None)
    assert await recipient.ask(Sub(), at, second) == Sok(None)
    # A key may take itself off the list.
    assert await recipient.ask(Rkey((second.public,)), at, first) == Ok()
    assert await recipient.refusal(Sub(), at, first) == failures.AUTH
    assert await recipient.ask(Sub(), at, second) == Sok(None)


async def test_a_messaging_queue_has_one_recipient_key(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create()
    keys = Rkey((OwnKey.make().public,))
    assert await recipient.refusal(keys, queue.recipient_id, queue.key) == failures.AUTH


async def test_too_many_recipient_keys_are_refused(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, recipient_key_count_max=2))
    recipient = smp.connect()
    queue = await recipient.create(CONTACT)
    keys = tuple(OwnKey.make().public for _ in range(3))
    assert await recipient.refusal(Rkey(keys), queue.recipient_id, queue.key) == failures.SYNTAX
    assert await recipient.ask(Rkey(keys[:2]), queue.recipient_id, queue.key) == Ok()


# ---------------------------------------------------------------------------------- OFF, DEL, life


async def test_a_suspended_queue_refuses_messages_and_delivers_those_it_has(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    await sender.post(queue, b"one")
    await sender.post(queue, b"two")
    one = await received(recipient, queue)
    assert await recipient.ask(Off(), at, key) == Ok()
    assert await recipient.ask(Off(), at, key) == Ok()
    assert await sender.post(queue, b"three") == Err(failures.AUTH)
    # Not acknowledged: after another subscription it comes again, the very same.
    assert await recipient.subscribe(queue) == Sok(None)
    assert await received(recipient, queue) == one
    two = await recipient.ask(Ack(one.message_id), at, key)
    assert queue.text(two) == b"two"
    assert await recipient.ask(Key(OwnKey.make().public), at, key) == Ok()


async def test_a_deleted_queue_answers_auth_to_everything(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    await sender.post(queue, b"one")
    await received(recipient, queue)
    assert await recipient.ask(Del(), at, key) == Ok()
    assert recipient.events() == []
    for command in (Sub(), Get(), Del(), Off(), Que(), Key(OwnKey.make().public), Ack(b"x" * 24)):
        assert await recipient.refusal(command, at, key) == failures.AUTH
    assert await sender.post(queue, b"two") == Err(failures.AUTH)
    sender_key = OwnKey.make()
    refused = await sender.refusal(Skey(sender_key.public), queue.sender_id, sender_key)
    assert refused == failures.AUTH


async def test_with_a_deleted_queue_go_its_messages_and_then_its_tombstone(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue, silent = await recipient.create(), await recipient.create()
    await sender.post(queue, b"one")
    assert StreamId(queue.recipient_id) in list(smp.store.streams())
    for each in (queue, silent):
        assert await recipient.ask(Del(), each.recipient_id, each.key) == Ok()
    await smp.settle()
    assert list(smp.store.streams()) == []
    assert smp.records.deleted_queues(10) == []


async def test_deletions_that_a_crash_cut_off_are_finished_at_the_next_start(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    # As if the process had ended right after the tombstone was written.
    smp.records.delete_queue(queue.recipient_id)
    await smp.settle()
    assert list(smp.store.streams()) == [queue.recipient_id]
    smp.restart()
    await smp.settle()
    assert list(smp.store.streams()) == []
    assert smp.records.deleted_queues(10) == []


async def test_deletions_for_which_the_log_had_no_room_are_finished_later(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")

    def refuse(_stream: StreamId) -> None:
        raise StoreBusyError(2, 1)

    with monkeypatch.context() as patched:
        patched.setattr(smp.store, "delete", refuse)
        assert await recipient.ask(Del(), queue.recipient_id, queue.key) == Ok()
        await smp.settle()
        smp.router.keep_house()
        await smp.settle()
    assert smp.records.deleted_queues(10) == [queue.recipient_id]
    smp.router.keep_house()
    await smp.settle()
    assert list(smp.store.streams()) == []
    assert smp.records.deleted_queues(10) == []


async def test_deletions_are_looked_for_only_after_something_changed(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    deleted_queues = smp.records.deleted_queues

    def looked(count: int) -> list[StreamId]:
        looks.append(count)
        return deleted_queues(count)

    monkeypatch.setattr(smp.records, "deleted_queues", looked)
    for _ in range(3):
        smp.router.keep_house()
    assert len(looks) == 1
    await smp.connect().create()
    for _ in range(3):
        smp.router.keep_house()
    assert len(looks) == 2


async def test_deleted_queues_that_cannot_be_read_keep_nobody_from_being_served(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: int) -> list[StreamId]:
        raise CorruptionError("records.sqlite", 0, "a page is damaged")

    recipient = smp.connect()
    queue = await recipient.create()
    await smp.connect().post(queue, b"one")
    with monkeypatch.context() as patched:
        patched.setattr(smp.records, "deleted_queues", damaged)
        assert await recipient.ask(Del(), queue.recipient_id, queue.key) == Ok()
        smp.router.keep_house()
        smp.restart()
    smp.router.keep_house()
    await smp.settle()
    assert smp.records.deleted_queues(10) == []


async def test_a_queue_without_messages_is_a_record_only(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    assert list(smp.store.streams()) == []
    await sender.post(queue, b"one")
    assert list(smp.store.streams()) == [queue.recipient_id]


async def test_creating_twice_with_the_same_correlation_id_makes_two_queues(smp: RouterRig) -> None:
    recipient = smp.connect()
    key = OwnKey.make()
    new = New(key.public, OwnKey.make(KeyKind.X25519).public, request=QueueRequest(CONTACT))
    corr_id = b"c" * 24
    first = await recipient.ask(new, key=key, corr_id=corr_id)
    second = await recipient.ask(new, key=key, corr_id=corr_id)
    assert isinstance(first, Ids)
    assert isinstance(second, Ids)
    assert first.recipient_id != second.recipient_id
    assert first.sender_id != second.sender_id


async def test_a_replayed_command_is_carried_out_as_any_other(smp: RouterRig) -> None:
    """A correlation id means nothing to the router: replays are for the encrypted link to stop."""
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    request = Request(Send(b"F", b"again"), queue.sender_id)
    for _ in range(2):
        assert await sender.ask_all(request) == [Ok()]
    message = await received(recipient, queue)
    again = await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key)
    assert isinstance(again, Msg)
    assert again.message_id != message.message_id


async def test_two_one_way_queues_make_a_conversation(smp: RouterRig) -> None:
    alice, bob = smp.connect(), smp.connect()
    to_alice, to_bob = await alice.create(), await bob.create()
    for queue, writer in ((to_alice, bob), (to_bob, alice)):
        queue.sender_key = OwnKey.make()
        secure = Skey(queue.sender_key.public)
        assert await writer.ask(secure, queue.sender_id, queue.sender_key) == Ok()
    for text in (b"one", b"two"):
        for queue, writer, reader in ((to_bob, alice, bob), (to_alice, bob, alice)):
            assert await writer.post(queue, text) == Ok()
            message = await received(reader, queue)
            assert queue.text(message) == text
            done = await reader.ask(Ack(message.message_id), queue.recipient_id, queue.key)
            assert done == Ok()


# ------------------------------------------------------------------------------------ subscribing


async def test_a_second_connection_takes_the_subscription_over(smp: RouterRig) -> None:
    first, second, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await first.create()
    at, key = queue.recipient_id, queue.key
    await sender.post(queue, b"one")
    message = await received(first, queue)
    assert await second.subscribe(queue) == Sok(None)
    assert await received(second, queue) == message
    assert await first.event() == (at, End())
    assert await first.refusal(Ack(message.message_id), at, key) == failures.NO_MSG
    assert await second.ask(Ack(message.message_id), at, key) == Ok()
    # Deleted by the first: the second hears of it, the one who did it does not.
    assert await first.ask(Del(), at, key) == Ok()
    assert await second.event() == (at, Deld())
    assert first.events() == []


async def test_before_version_10_a_deleted_queue_is_told_as_ended(smp: RouterRig) -> None:
    old, other = smp.connect(version=9), smp.connect()
    queue = await old.create()
    assert await other.ask(Del(), queue.recipient_id, queue.key) == Ok()
    # The codec writes END for it; the session is handed what happened.
    assert await old.event() == (queue.recipient_id, Deld())


async def test_subscribing_again_delivers_again(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    message = await received(recipient, queue)
    for _ in range(2):
        assert await recipient.subscribe(queue) == Sok(None)
        assert await received(recipient, queue) == message


async def test_what_was_not_acknowledged_comes_again_on_the_next_connection(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    message = await received(recipient, queue)
    recipient.close("lost")
    again = smp.connect()
    assert await again.subscribe(queue) == Sok(None)
    assert await received(again, queue) == message


async def test_create_without_subscribing(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    await sender.post(queue, b"one")
    await turns()
    assert recipient.events() == []
    await recipient.subscribe(queue)
    assert queue.text(await received(recipient, queue)) == b"one"


async def test_all_answers_of_a_block_come_before_messages(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create(subscribes=False) for _ in range(5)]
    for queue in queues:
        await sender.post(queue, b"one")
    requests = [Request(Sub(), queue.recipient_id, queue.key) for queue in queues]
    recipient.say(*requests)
    await turns()
    kinds = [type(answer.message) for answer in recipient.sent]
    assert kinds == [Sok] * 5 + [Msg] * 5
    assert [len(sending) for sending in recipient.sendings[-6:]] == [5, 1, 1, 1, 1, 1]


async def test_commands_of_a_block_are_carried_out_in_their_order(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    key = OwnKey.make()
    answers = await sender.ask_all(
        Request(Skey(key.public), queue.sender_id, key),
        Request(Send(b"F", b"one"), queue.sender_id, key),
        Request(Send(b"F", b"two"), queue.sender_id, key),
        Request(Send(b"F", b"three"), queue.sender_id),
    )
    assert answers == [Ok(), Ok(), Ok(), Err(failures.AUTH)]
    one = await received(recipient, queue)
    assert queue.text(one) == b"one"
    two = await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key)
    assert queue.text(two) == b"two"


async def test_two_concurrent_senders_lose_nothing(smp: RouterRig) -> None:
    recipient, senders = smp.connect(), (smp.connect(), smp.connect())
    queue = await recipient.create()
    for number in range(50):
        bodies = {b"%d first" % number, b"%d second" % number}
        for sender, body in zip(senders, sorted(bodies), strict=True):
            sender.say(Request(Send(b"F", body), queue.sender_id))
        one = await received(recipient, queue)
        two = await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key)
        assert {queue.text(one), queue.text(two)} == bodies
        assert isinstance(two, Msg)
        done = await recipient.ask(Ack(two.message_id), queue.recipient_id, queue.key)
        assert done == Ok()
    assert smp.counters.received_count == 100


async def test_fifty_queues_move_from_connection_to_connection(smp: RouterRig) -> None:
    first = smp.connect()
    queues = [await first.create() for _ in range(50)]
    requests = [Request(Sub(), queue.recipient_id, queue.key) for queue in queues]
    former = first
    for _ in range(2):
        peer = smp.connect()
        assert await peer.ask_all(*requests) == [Sok(None)] * 50
        await turns()
        assert former.events() == [(queue.recipient_id, End()) for queue in queues]
        former = peer


# ------------------------------------------------------------------------------------- ACK and GET


async def test_an_acknowledgement_of_another_message_changes_nothing(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    assert await recipient.refusal(Ack(b"x" * 24), at, key) == failures.NO_MSG
    await sender.post(queue, b"one")
    message = await received(recipient, queue)
    assert await recipient.refusal(Ack(b"x" * 24), at, key) == failures.NO_MSG
    assert await recipient.ask(Ack(message.message_id), at, key) == Ok()


async def test_an_acknowledgement_without_an_id_brings_the_same_message_again(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    assert await recipient.refusal(Ack(b""), at, key) == failures.NO_MSG
    await sender.post(queue, b"one")
    message = await received(recipient, queue)
    assert await recipient.ask(Ack(b""), at, key) == message
    assert await recipient.ask(Ack(message.message_id), at, key) == Ok()


async def test_get_and_acknowledge_until_empty(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    at, key = queue.recipient_id, queue.key
    assert await recipient.ask(Get(), at, key) == Ok()
    await sender.post(queue, b"one")
    await sender.post(queue, b"two")
    for text in (b"one", b"two"):
        message = await recipient.ask(Get(), at, key)
        assert queue.text(message) == text
        # The same until it is acknowledged, and the answer to that never carries the next.
        assert await recipient.ask(Get(), at, key) == message
        assert isinstance(message, Msg)
        assert await recipient.ask(Ack(message.message_id), at, key) == Ok()
    assert await recipient.ask(Get(), at, key) == Ok()
    assert recipient.events() == []


async def test_get_and_sub_exclude_one_another_on_a_connection(smp: RouterRig) -> None:
    recipient = smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    assert await recipient.refusal(Get(), at, key) == failures.PROHIBITED
    other = smp.connect()
    assert await other.ask(Get(), at, key) == Ok()
    assert await other.refusal(Sub(), at, key) == failures.PROHIBITED
    await turns()
    # Somebody else's subscription is not disturbed.
    assert recipient.events() == []


async def test_get_and_sub_from_two_connections_see_the_same_head(smp: RouterRig) -> None:
    subscriber, getter, sender = smp.connect(), smp.connect(), smp.connect()
    queue = await subscriber.create()
    at, key = queue.recipient_id, queue.key
    for text in (b"one", b"two", b"three"):
        await sender.post(queue, text)
    one = await received(subscriber, queue)
    assert await getter.ask(Get(), at, key) == one
    assert await getter.ask(Ack(one.message_id), at, key) == Ok()
    # The subscriber's acknowledgement comes late, is fine, and brings what is next.
    two = await subscriber.ask(Ack(one.message_id), at, key)
    assert queue.text(two) == b"two"
    assert await getter.ask(Get(), at, key) == two
    assert isinstance(two, Msg)
    three = await subscriber.ask(Ack(two.message_id), at, key)
    assert queue.text(three) == b"three"
    assert await getter.ask(Ack(two.message_id), at, key) == Ok()
    # That did not touch the third.
    assert await getter.ask(Get(), at, key) == three


# ------------------------------------------------------------------------------------------- quota


async def test_a_full_queue_takes_a_marker_and_opens_once_it_was_emptied(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, quota=2))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    assert await sender.post(queue, b"one") == Ok()
    assert await sender.post(queue, b"two") == Ok()
    for _ in range(3):
        assert await sender.post(queue, b"three") == Err(failures.QUOTA)
    one = await received(recipient, queue)
    two = await recipient.ask(Ack(one.message_id), at, key)
    assert queue.text(two) == b"two"
    assert isinstance(two, Msg)
    assert await sender.post(queue, b"three") == Err(failures.QUOTA)
    marker = await recipient.ask(Ack(two.message_id), at, key)
    assert isinstance(marker, Msg)
    assert queue.open(marker) == QuotaReached(NOW_MS // 1_000)
    assert await sender.post(queue, b"three") == Err(failures.QUOTA)
    assert await recipient.ask(Ack(marker.message_id), at, key) == Ok()
    assert await sender.post(queue, b"four") == Ok()
    assert queue.text(await received(recipient, queue)) == b"four"


async def test_a_marker_is_delivered_to_a_reader_that_is_up_to_date(smp: RouterRig) -> None:
    """Its queue is full of what others fetched: nothing but the marker's own arrival shows it."""
    smp.choose(replace(smp.options, quota=1))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    at, key = queue.recipient_id, queue.key
    sender.say(
        Request(Send(b"F", b"one"), queue.sender_id), Request(Send(b"F", b"two"), queue.sender_id)
    )
    one = await received(recipient, queue)
    marker = await recipient.ask(Ack(one.message_id), at, key)
    assert isinstance(queue.open(marker), QuotaReached)
    # The same bytes however often it is delivered.
    await recipient.subscribe(queue)
    assert await received(recipient, queue) == marker


# --------------------------------------------------------------------------------------------- QUE


async def test_a_queue_describes_itself(smp: RouterRig) -> None:
    recipient, sender, other = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create(has_notifier=True)
    at, key = queue.recipient_id, queue.key

    async def facts(peer: Peer) -> object:
        info = await peer.ask(Que(), at, key)
        assert isinstance(info, Info)
        return json.loads(info.json)

    empty = {"qiSnd": False, "qiNtf": True, "qiSize": 0}
    assert await facts(recipient) == {**empty, "qiSub": {"qSubThread": "noSub"}}
    assert await facts(other) == empty
    await sender.post(queue, b"one")
    message = await received(recipient, queue)
    message_id = urlsafe_b64encode(message.message_id).decode()
    head = {"msgId": message_id, "msgTs": "2024-10-04T00:00:00Z", "msgType": "message"}
    assert await facts(recipient) == {
        **empty,
        "qiSize": 1,
        "qiSub": {"qSubThread": "noSub", "qDelivered": message_id},
        "qiMsg": head,
    }
    assert await other.ask(Get(), at, key) == message
    assert await facts(other) == {
        **empty,
        "qiSize": 1,
        "qiSub": {"qSubThread": "prohibitSub", "qDelivered": message_id},
        "qiMsg": head,
    }


# ------------------------------------------------------------------------------------------- other


async def test_ping(smp: RouterRig) -> None:
    peer = smp.connect()
    assert await peer.ask(Ping()) == Pong()
    assert await peer.ask(Ping(), corr_id=b"") == Pong()


@pytest.mark.parametrize("version", [6, 7, 9, 12, 15, 16, 17, 19, 20])
async def test_every_version_creates_sends_and_receives(smp: RouterRig, version: int) -> None:
    recipient, sender = smp.connect(version), smp.connect(version)
    queue = await recipient.create()
    assert await sender.post(queue, b"hello") == Ok()
    message = await received(recipient, queue)
    assert queue.text(message) == b"hello"
    done = await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key)
    assert done == Ok()


async def test_an_entry_that_is_no_message_does_not_stand_in_the_way(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)
    await sender.post(queue, b"one")
    smp.store.truncate_before(StreamId(queue.recipient_id), 2)
    smp.store.append(StreamId(queue.recipient_id), b"not of SMP", smp.now_ms)
    commit(smp.store)
    await sender.post(queue, b"two")
    await recipient.subscribe(queue)
    assert queue.text(await received(recipient, queue)) == b"two"


async def test_a_stream_that_somebody_else_deleted_takes_its_message_with_it_and_no_more(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    for text in (b"one", b"two", b"three"):
        await sender.post(queue, text)
    one = await received(recipient, queue)
    two = await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key)
    assert isinstance(two, Msg)
    smp.store.delete(StreamId(queue.recipient_id))
    commit(smp.store)
    assert await recipient.ask(Ack(two.message_id), queue.recipient_id, queue.key) == Ok()
    assert await sender.post(queue, b"four") == Ok()
    four = await received(recipient, queue)
    assert queue.text(four) == b"four"
    assert await recipient.ask(Ack(four.message_id), queue.recipient_id, queue.key) == Ok()


async def test_the_day_of_the_last_use_is_kept(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(subscribes=False)

    def used_day() -> int:
        record = smp.records.queue(queue.recipient_id)
        assert record is not None
        return record.used_day

    day = NOW_MS // (24 * 60 * 60 * 1_000)
    assert used_day() == day
    smp.now_ms += 24 * 60 * 60 * 1_000
    await sender.post(queue, b"one")
    assert used_day() == day + 1
    smp.now_ms += 24 * 60 * 60 * 1_000
    await recipient.subscribe(queue)
    assert used_day() == day + 2
