"""Services: one certificate, one id, one command for all queues of it."""

import asyncio
from dataclasses import replace

import pytest

from syncline.errors import CorruptionError, StoreBusyError
from syncline.server.smp.service_commands import BAD_SERVICE
from syncline.values.digests import SetDigest, digest_of
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import SetHashes
from syncline.wire.smp import failures, versions
from syncline.wire.smp.commands import Ack, Del, Get, New, Send, Sub, Subs
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Err,
    Msg,
    Ok,
    RouterMessage,
    Sok,
    Soks,
)
from tests.unit.server.smp.router_rig import (
    OwnKey,
    Peer,
    Queue,
    Request,
    RouterRig,
    Service,
    turns,
)
from tests.unit.server.smp.router_rig import smp as smp

NONE = (0, bytes(16))


def hash_of(*queues: Queue) -> bytes:
    return digest_of(queue.recipient_id for queue in queues).xor_md5


def soks(*queues: Queue) -> Soks:
    return Soks(len(queues), hash_of(*queues))


def ends(service: Service, *queues: Queue) -> tuple[bytes, RouterMessage]:
    return service.service_id, Ends(len(queues), hash_of(*queues))


async def subs(
    peer: Peer, count: int | None = 0, ids_hash: bytes | None = bytes(16)
) -> RouterMessage:
    assert peer.owned_service is not None
    command = Subs(count, ids_hash) if peer.version >= 19 else Subs()
    return await peer.ask(command, peer.owned_service.service_id, peer.owned_service.key)


def messages(peer: Peer) -> list[tuple[bytes, RouterMessage]]:
    return [each for each in peer.events() if isinstance(each[1], Msg)]


# --------------------------------------------------------------------------------------- admitting


async def test_a_certificate_has_one_id_for_good(smp: RouterRig) -> None:
    admit = smp.router.admit_service
    first = await admit((b"leaf", b"authority"), ServiceRole.MESSAGING)
    assert isinstance(first, bytes)
    assert len(first) == 24
    # The identity is the authority; leaves come and go.
    assert await admit((b"another leaf", b"authority"), ServiceRole.MESSAGING) == first
    assert await admit((b"authority",), ServiceRole.MESSAGING) == first
    smp.restart()
    assert await smp.router.admit_service((b"authority",), ServiceRole.MESSAGING) == first
    assert await smp.router.admit_service((b"other",), ServiceRole.MESSAGING) != first


async def test_a_certificate_keeps_its_role(smp: RouterRig) -> None:
    await smp.router.admit_service((b"one",), ServiceRole.MESSAGING)
    assert await smp.router.admit_service((b"one",), ServiceRole.NOTIFIER) == BAD_SERVICE
    assert smp.counters.services_refused_count == 1


async def test_new_services_can_be_refused_and_limited(smp: RouterRig) -> None:
    known = await smp.router.admit_service((b"one",), ServiceRole.MESSAGING)
    smp.choose(replace(smp.options, creates_services=False))
    assert await smp.router.admit_service((b"two",), ServiceRole.MESSAGING) == BAD_SERVICE
    assert await smp.router.admit_service((b"one",), ServiceRole.MESSAGING) == known
    smp.choose(replace(smp.options, creates_services=True, service_count_max=1))
    assert await smp.router.admit_service((b"two",), ServiceRole.MESSAGING) == BAD_SERVICE
    assert len(smp.records.services()) == 1


async def test_services_that_come_at_once_are_no_more_than_those_that_come_by_and_by(
    smp: RouterRig,
) -> None:
    smp.choose(replace(smp.options, service_count_max=2))
    smp.records_disk.is_held = True
    coming = [
        asyncio.create_task(_admitted(smp, certificate)) for certificate in (b"a", b"b", b"c", b"d")
    ]
    await turns()
    smp.records_disk.let_go()
    admitted = await asyncio.gather(*coming)
    assert admitted[2:] == [BAD_SERVICE, BAD_SERVICE]
    assert len(smp.records.services()) == 2
    assert await _admitted(smp, b"e") == BAD_SERVICE


async def test_a_service_is_not_told_that_it_is_none_because_the_disk_is_busy(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: object) -> None:
        raise StoreBusyError(2, 1)

    with monkeypatch.context() as patched:
        patched.setattr(smp.records, "create_service", busy)
        with pytest.raises(StoreBusyError):
            await _admitted(smp, b"one")
    assert isinstance(await _admitted(smp, b"one"), bytes)


async def _admitted(smp: RouterRig, certificate: bytes) -> bytes | str:
    return await smp.router.admit_service((certificate,), ServiceRole.MESSAGING)


# -------------------------------------------------------------------------------- two signatures


async def test_the_rules_of_the_second_signature(smp: RouterRig) -> None:
    service = await smp.service()
    plain, session = smp.connect(), smp.connect(service=service)
    queue = await plain.create()
    at, key = queue.recipient_id, queue.key
    sub = Sub()
    refused = session.refusal
    without = await refused(sub, at, key, with_service_signature=False)
    assert without == failures.SERVICE
    forged = await refused(sub, at, key, signed_by=OwnKey.make())
    assert forged == failures.SERVICE
    bare = await refused(sub, at, key, with_certificate_hash=False)
    assert bare == failures.AUTH
    out_of_place = await refused(Get(), at, key, with_service_signature=True)
    assert out_of_place == failures.SERVICE
    in_plain = await plain.refusal(sub, at, key, with_service_signature=True)
    assert in_plain == failures.SERVICE
    new = New(key.public, OwnKey.make(KeyKind.X25519).public)
    assert await refused(new, b"", key, with_service_signature=False) == failures.SERVICE
    assert await refused(new, b"", key, with_certificate_hash=False) == failures.AUTH
    # None of that has changed anything.
    record = smp.records.queue(at)
    assert record is not None
    assert record.service_id is None
    assert await session.ask(sub, at, key) == Sok(service.service_id)


@pytest.mark.parametrize("kind", [KeyKind.ED448, KeyKind.X25519])
async def test_the_queue_key_of_any_kind_covers_the_certificate(
    smp: RouterRig, kind: KeyKind
) -> None:
    service = await smp.service()
    session = smp.connect(service=service)
    queue = await smp.connect().create(kind=kind)
    at, key = queue.recipient_id, queue.key
    assert await session.refusal(Sub(), at, key, with_certificate_hash=False) == failures.AUTH
    assert await session.ask(Sub(), at, key) == Sok(service.service_id)


async def test_bulk_commands_are_signed_by_the_session_in_the_name_of_the_service(
    smp: RouterRig,
) -> None:
    service, other = await smp.service(), await smp.service()
    session = smp.connect(service=service)
    command, at = Subs(*NONE), service.service_id
    assert await session.refusal(command) == failures.NO_AUTH
    assert await session.refusal(command, b"", service.key) == failures.NO_AUTH
    assert await session.refusal(command, at, OwnKey.make()) == failures.SERVICE
    assert await session.refusal(command, at, OwnKey.make(KeyKind.X25519)) == failures.SERVICE
    assert await session.refusal(command, other.service_id, service.key) == failures.SERVICE
    refused = await session.refusal(command, at, service.key, with_service_signature=True)
    assert refused == failures.SERVICE
    refused = await session.refusal(command, at, service.key, with_certificate_hash=True)
    assert refused == failures.SERVICE
    assert await smp.connect().refusal(command, at, service.key) == failures.SERVICE
    assert await session.ask(command, at, service.key) == Soks(*NONE)


async def test_creating_without_subscribing_is_prohibited_in_a_service_session(
    smp: RouterRig,
) -> None:
    session = smp.connect(service=await smp.service())
    key = OwnKey.make()
    new = New(key.public, OwnKey.make(KeyKind.X25519).public, subscribes=False)
    assert await session.refusal(new, b"", key) == failures.PROHIBITED


# -------------------------------------------------------------------------------------- whole lives


async def test_a_service_creates_receives_and_subscribes_again_with_one_command(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    session, sender = smp.connect(service=service), smp.connect()
    queue = await session.create()
    assert queue.ids.service_id == service.service_id
    await sender.post(queue, b"one")
    entity_id, message = await session.event()
    assert entity_id == queue.recipient_id
    assert isinstance(message, Msg)
    # Acknowledging needs no second signature.
    assert await session.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()
    session.close("lost")
    await sender.post(queue, b"two")
    again = smp.connect(service=service)
    assert await again.refusal(Subs(*NONE), b"", service.key) == failures.NO_AUTH
    assert await subs(again, 1, hash_of(queue)) == soks(queue)
    await turns()
    (stored, alls) = again.events()
    assert stored[0] == queue.recipient_id
    assert queue.text(stored[1]) == b"two"
    assert alls == (b"", Alls())
    assert isinstance(stored[1], Msg)
    assert await again.ask(Ack(stored[1].message_id), queue.recipient_id, queue.key) == Ok()
    await sender.post(queue, b"three")
    (_, live) = await again.event()
    assert queue.text(live) == b"three"
    assert smp.counters.bulk_equal_count == 1


async def test_a_service_takes_plain_queues_and_plain_sessions_take_them_back(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    plain, session, sender = smp.connect(), smp.connect(service=service), smp.connect()
    queues = [await plain.create() for _ in range(3)]
    for queue in queues:
        at, key = queue.recipient_id, queue.key
        without = await session.refusal(Sub(), at, key, with_service_signature=False)
        assert without == failures.SERVICE
        assert await session.ask(Sub(), at, key) == Sok(service.service_id)
    await turns()
    assert plain.events() == [(queue.recipient_id, End()) for queue in queues]
    session.close("lost")
    for queue in queues[:2]:
        await sender.post(queue, b"stored")
    again = smp.connect(service=service)
    assert await subs(again) == soks(*queues)
    await turns()
    events = again.events()
    assert {entity_id for entity_id, message in events if isinstance(message, Msg)} == {
        queue.recipient_id for queue in queues[:2]
    }
    assert events[-1] == (b"", Alls())
    refused = await plain.refusal(Subs(*NONE), service.service_id, service.key)
    assert refused == failures.SERVICE
    for index, queue in enumerate(queues):
        assert await plain.subscribe(queue) == Sok(None)
        await turns()
        assert again.events() == [(queue.recipient_id, End())]
        stored = messages(plain)
        assert [queue.text(message) for _, message in stored] == [b"stored"] * (index < 2)
        digest = smp.records.digest(service.service_id)
        assert (digest.count, digest.xor_md5) == (2 - index, hash_of(*queues[index + 1 :]))
    assert smp.counters.associations_removed_count == 3


async def test_a_message_goes_to_the_service_session_that_never_touched_the_queue(
    smp: RouterRig,
) -> None:
    service = await smp.service()
    first, sender = smp.connect(service=service), smp.connect()
    untouched, touched = await first.create(), await first.create()
    first.close("lost")
    second = smp.connect(service=service)
    assert await second.subscribe(touched) == Sok(service.service_id)
    await sender.post(untouched, b"live")
    entity_id, message = await second.event()
    assert entity_id == untouched.recipient_id
    assert untouched.text(message) == b"live"


async def test_a_deleted_queue_leaves_the_set_and_the_service_is_told(smp: RouterRig) -> None:
    service = await smp.service()
    session, plain = smp.connect(service=service), smp.connect()
    gone, stays = await session.create(), await session.create()
    assert await plain.ask(Del(), gone.recipient_id, gone.key) == Ok()
    assert await session.event() == (gone.recipient_id, Deld())
    assert await subs(session) == soks(stays)


async def test_associations_outlive_sessions_and_restarts(smp: RouterRig) -> None:
    service = await smp.service()
    queues = [await smp.connect(service=service).create() for _ in range(3)]
    smp.restart()
    assert await subs(smp.connect(service=service)) == soks(*queues)


# ---------------------------------------------------------------------------------- the four cases


async def test_case_one_the_queue_is_the_services_already(smp: RouterRig) -> None:
    service = await smp.service()
    session = smp.connect(service=service)
    queue = await session.create()
    version = smp.records.digest(service.service_id).version
    batch_count = smp.records_disk.batch_count
    for _ in range(2):
        assert await session.subscribe(queue) == Sok(service.service_id)
    assert smp.counters.associations_repeated_count == 2
    assert smp.records.digest(service.service_id).version == version
    # Nothing was written for it.
    assert smp.records_disk.batch_count == batch_count


async def test_case_two_the_queue_becomes_the_services(smp: RouterRig) -> None:
    service, other = await smp.service(), await smp.service()
    plain = smp.connect()
    session, former = smp.connect(service=service), smp.connect(service=other)
    queue, foreign = await plain.create(), await former.create()
    assert await session.subscribe(queue) == Sok(service.service_id)
    assert await plain.event() == (queue.recipient_id, End())
    assert await session.subscribe(foreign) == Sok(service.service_id)
    assert await former.event() == (foreign.recipient_id, End())
    assert smp.records.digest(service.service_id).count == 2
    assert smp.records.digest(other.service_id).count == 0
    counters = smp.counters
    # One by creating, one by subscribing.
    assert counters.associations_new_count == 2
    assert counters.associations_moved_count == 1


async def test_case_three_a_plain_session_removes_the_association(smp: RouterRig) -> None:
    service = await smp.service()
    session, plain, sender = smp.connect(service=service), smp.connect(), smp.connect()
    queue = await session.create()
    await sender.post(queue, b"one")
    await turns()
    ((_, message),) = session.events()
    assert await plain.subscribe(queue) == Sok(None)
    await turns()
    assert session.events() == [(queue.recipient_id, End())]
    # What was with the service is with the plain session now.
    assert plain.events() == [(queue.recipient_id, message)]
    assert isinstance(message, Msg)
    late = await session.refusal(Ack(message.message_id), queue.recipient_id, queue.key)
    assert late == failures.NO_MSG
    assert await subs(session) == Soks(*NONE)


async def test_case_four_a_plain_queue_stays_plain(smp: RouterRig) -> None:
    plain, other = smp.connect(), smp.connect()
    queue = await plain.create()
    batch_count = smp.records_disk.batch_count
    assert await other.subscribe(queue) == Sok(None)
    assert await plain.event() == (queue.recipient_id, End())
    assert smp.records_disk.batch_count == batch_count


# ------------------------------------------------------------------------------------ displacement


@pytest.mark.parametrize("how", ["bulk", "single", "create"])
async def test_another_session_of_the_service_displaces_the_first(smp: RouterRig, how: str) -> None:
    service = await smp.service()
    first, sender = smp.connect(service=service), smp.connect()
    queues = [await first.create() for _ in range(2)]
    await sender.post(queues[0], b"one")
    await turns()
    ((_, message),) = first.events()
    assert isinstance(message, Msg)
    second = smp.connect(service=service)
    if how == "bulk":
        assert await subs(second) == soks(*queues)
    elif how == "single":
        await second.subscribe(queues[1])
    else:
        queues.append(await second.create())
    await turns()
    assert smp.counters.displaced_count == 1
    # How many it had is told as it is on record, which may or may not hold the newest yet.
    assert first.events() in ([ends(service, *queues)], [ends(service, *queues[:2])])
    # All its deliveries are gone with it.
    late = await first.refusal(Ack(message.message_id), queues[0].recipient_id, queues[0].key)
    assert late == failures.NO_MSG
    if how == "bulk":
        assert second.events() == [(queues[0].recipient_id, message), (b"", Alls())]
    await sender.post(queues[1], b"two")
    entity_id, live = await second.event()
    assert (entity_id, queues[1].text(live)) == (queues[1].recipient_id, b"two")
    assert first.events() == []


async def test_a_displaced_session_may_take_the_service_back(smp: RouterRig) -> None:
    service = await smp.service()
    first, second, sender = (
        smp.connect(service=service),
        smp.connect(service=service),
        smp.connect(),
    )
    queue = await first.create()
    await sender.post(queue, b"one")
    await turns()
    first.events()
    for loser, winner in ((first, second), (second, first), (first, second)):
        assert await subs(winner) == soks(queue)
        await turns()
        assert loser.events() == [ends(service, queue)]
        ((entity_id, message), alls) = winner.events()
        assert entity_id == queue.recipient_id
        assert queue.text(message) == b"one"
        assert alls == (b"", Alls())


async def test_before_version_19_there_is_no_hash(smp: RouterRig) -> None:
    service = await smp.service()
    old = smp.connect(18, service)
    queue = await old.create()
    assert isinstance(await subs(old), Soks)
    assert smp.counters.bulk_unknown_count == 1
    await turns()
    assert old.events() == [(b"", Alls())]
    assert await subs(smp.connect(service=service)) == soks(queue)


# ------------------------------------------------------------------------------------------- drift


@pytest.mark.parametrize(
    ("count", "is_hash_right", "counter"),
    [
        (2, True, "bulk_equal_count"),
        (1, True, "bulk_more_count"),
        (3, True, "bulk_fewer_count"),
        (2, False, "bulk_different_count"),
        (-1, True, "bulk_unknown_count"),
    ],
)
async def test_what_the_client_believes_is_counted_and_changes_nothing(
    smp: RouterRig, count: int, is_hash_right: bool, counter: str
) -> None:
    service = await smp.service()
    creator = smp.connect(service=service)
    queues = [await creator.create() for _ in range(2)]
    ids_hash = hash_of(*queues) if is_hash_right else b"\xff" * 16
    assert await subs(smp.connect(service=service), count, ids_hash) == soks(*queues)
    names = ["equal", "more", "fewer", "different", "unknown"]
    counted = {name for name in names if getattr(smp.counters, f"bulk_{name}_count")}
    assert counted == {counter.split("_")[1]}
    assert getattr(smp.counters, counter) == 1


async def test_a_hash_of_another_length_is_accepted(smp: RouterRig) -> None:
    session = smp.connect(service=await smp.service())
    assert await subs(session, 0, b"short") == Soks(*NONE)
    assert smp.counters.bulk_different_count == 1


async def test_a_set_whose_digest_cannot_be_read_is_answered(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = smp.connect(service=await smp.service())
    monkeypatch.setattr(smp.records, "digest", unreadable)
    answer = await subs(peer)
    assert answer == Err(failures.store("the store failed"))


async def test_an_extended_session_is_answered_though_the_digest_cannot_be_read(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await smp.service()
    peer = smp.connect(versions.EXTENDED, service)
    monkeypatch.setattr(smp.records, "digest", unreadable)
    command = Subs(0, bytes(16), SetHashes(bytes(16), bytes(16)))
    answer = await peer.ask(command, service.service_id, service.key)
    assert answer == Err(failures.store("the store failed"))


def unreadable(_: bytes) -> SetDigest:
    raise CorruptionError("records.sqlite", 0, "a page is malformed")


async def test_the_count_follows_single_subscriptions(smp: RouterRig) -> None:
    """Two in bulk, then one more: three, and not more for asking again."""
    service = await smp.service()
    plain, session = smp.connect(), smp.connect(service=service)
    queues = [await plain.create() for _ in range(3)]
    for queue in queues[:2]:
        await session.subscribe(queue)
    assert await subs(session) == soks(*queues[:2])
    await session.subscribe(queues[2])
    assert await subs(session) == soks(*queues)
    assert smp.router.subscribed_service_count == 1
    assert smp.router.subscribed_queue_count == 0


async def test_a_service_that_was_deleted_while_connecting_is_closed(smp: RouterRig) -> None:
    service = await smp.service()
    smp.records.delete_service(service.service_id)
    peer = smp.connect(service=service)
    assert peer.closed_because == "its service was deleted"
    assert smp.router.session_count == 0


async def test_sends_of_a_service_session_are_signed_by_the_sender_alone(smp: RouterRig) -> None:
    session = smp.connect(service=await smp.service())
    queue = await smp.connect().create()
    assert await session.post(queue, b"x") == Ok()
    request = Request(Send(b"F", b"x"), queue.sender_id, OwnKey.make(), True)
    assert await session.ask_all(request) == [Err(failures.SERVICE)]
