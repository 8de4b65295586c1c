"""What the router says no to: the exact error, in the exact order of the checks."""

from dataclasses import replace

import pytest

from syncline.server.logs import Log
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp import authorizations, failures
from syncline.wire.smp.bodies import sender_id_of
from syncline.wire.smp.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    LinkRequest,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    NotifierKeys,
    Nsub,
    Nsubs,
    Off,
    Ping,
    Que,
    QueueRequest,
    Rfwd,
    Rkey,
    Rslv,
    Send,
    Skey,
    Sub,
    Subs,
    encode_command,
)
from syncline.wire.smp.failures import Failure
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Err, Ids, Info, Ok, Pong, Sok
from tests.unit.server.smp.router_rig import OwnKey, Request, RouterRig, some_bytes
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp

UNKNOWN_ID = b"\xee" * 24
KEY = OwnKey.make()
DH = OwnKey.make(KeyKind.X25519)
RECIPIENT_COMMANDS: list[Command] = [
    *(Sub(), Get(), Ack(b"m" * 24), Off(), Del(), Que(), Ndel(), Ldel()),
    *(Key(KEY.public), Rkey((KEY.public,)), Nkey(NotifierKeys(KEY.public, DH.public))),
    Lset(b"l" * 24, b"fixed", b"user"),
]
KEYED_COMMANDS: list[Command] = [
    *RECIPIENT_COMMANDS,
    *(Nsub(), Skey(KEY.public), Lkey(KEY.public)),
    *(Subs(0, bytes(16)), Nsubs(0, bytes(16))),
]


def words(command: Command) -> str:
    return type(command).__name__


# ---------------------------------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"", failures.UNKNOWN),
        (b"HELLO", failures.UNKNOWN),
        (b"ping", failures.UNKNOWN),
        (b"PINGX", failures.UNKNOWN),
        (b"PING ", failures.SYNTAX),
        (b"SUB x", failures.SYNTAX),
        (b"ACK", failures.SYNTAX),
        (b"ACK \x18short", failures.SYNTAX),
        (b"SEND", failures.SYNTAX),
        (b"SEND F", failures.SYNTAX),
        (b"SEND X body", failures.SYNTAX),
        (b"KEY", failures.SYNTAX),
        (b"KEY \x03abc", failures.SYNTAX),
        (b"NEW", failures.SYNTAX),
        (b"NEW \x00", failures.SYNTAX),
        (b"SUBS", failures.SYNTAX),
    ],
)
async def test_what_is_no_command_is_told_so(
    in_memory: RouterRig, body: bytes, failure: Failure
) -> None:
    peer = in_memory.connect()
    assert await peer.refusal(body, b"q" * 24, KEY) == failure
    assert in_memory.counters.refused[failure.code] == 1


async def test_a_command_with_something_behind_it_is_no_command(in_memory: RouterRig) -> None:
    peer = in_memory.connect()
    for command in (*KEYED_COMMANDS, New(KEY.public, DH.public)):
        body = encode_command(20, command)
        body += b"!" if b" " in body else b" !"
        assert await peer.refusal(body, b"q" * 24, KEY) == failures.SYNTAX


async def test_a_word_of_a_later_version_is_unknown(in_memory: RouterRig) -> None:
    body = encode_command(20, Skey(KEY.public))
    assert await in_memory.connect(8).refusal(body, b"q" * 24, KEY) == failures.UNKNOWN
    assert await in_memory.connect(15).refusal(b"SUBS", b"q" * 24, KEY) == failures.UNKNOWN
    assert await in_memory.connect(14).refusal(b"LDEL", b"q" * 24, KEY) == failures.UNKNOWN
    assert await in_memory.connect(19).refusal(b"RSLV a.b") == failures.UNKNOWN


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x01", b"\x01\x00\x05abc", b"\x01\x00\x00x"])
async def test_a_block_that_is_none_is_answered_once_without_ids(
    in_memory: RouterRig, content: bytes
) -> None:
    peer = in_memory.connect()
    peer.say_content(content)
    (answer,) = peer.sent
    assert (answer.corr_id, answer.entity_id, answer.message) == (b"", b"", Err(failures.BLOCK))


async def test_a_damaged_transmission_leaves_its_neighbours_alone(in_memory: RouterRig) -> None:
    peer = in_memory.connect()
    whole = peer.transmission(Request(Ping()))
    damaged = bytes((7,)) + b"x" * 7 + b"0" + b"\x01c" + b"\x00" + b"PING"
    pieces = [whole, damaged, whole]
    peer.say_content(
        bytes((3,)) + b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)
    )
    words_ = [(answer.corr_id, type(answer.message).__name__) for answer in peer.sent]
    assert [word for _, word in words_] == ["Pong", "Err", "Pong"]
    assert words_[1][0] == b"c"


# ------------------------------------------------------------------------------------- credentials


@pytest.mark.parametrize("command", KEYED_COMMANDS, ids=words)
async def test_without_authorization_or_entity_it_is_no_auth(
    in_memory: RouterRig, command: Command
) -> None:
    peer = in_memory.connect()
    assert await peer.refusal(command, UNKNOWN_ID) == failures.NO_AUTH
    assert await peer.refusal(command, b"", KEY) == failures.NO_AUTH
    assert await peer.refusal(command) == failures.NO_AUTH


async def test_the_other_rows_of_the_credential_table(in_memory: RouterRig) -> None:
    peer = in_memory.connect()
    new = New(KEY.public, DH.public)
    assert await peer.refusal(new) == failures.NO_AUTH
    assert await peer.refusal(new, UNKNOWN_ID, KEY) == failures.HAS_AUTH
    assert await peer.refusal(Send(b"F", b"x")) == failures.NO_ENTITY
    assert await peer.refusal(Send(b"F", b"x"), b"", KEY) == failures.NO_ENTITY
    assert await peer.refusal(Lget()) == failures.NO_ENTITY
    assert await peer.refusal(Lget(), UNKNOWN_ID, KEY) == failures.HAS_AUTH
    for command in (Ping(), Rfwd(b"x"), Rslv("a.b")):
        assert await peer.refusal(command, UNKNOWN_ID) == failures.HAS_AUTH
        assert await peer.refusal(command, b"", KEY) == failures.HAS_AUTH


# ---------------------------------------------------------------------------------- authorizations


@pytest.mark.parametrize("entity_id", [UNKNOWN_ID, b"short", b"\x01" * 25])
async def test_an_unknown_queue_is_an_auth_error(smp: RouterRig, entity_id: bytes) -> None:
    peer = smp.connect()
    for command in (*RECIPIENT_COMMANDS, Nsub(), Skey(KEY.public), Lkey(KEY.public)):
        assert await peer.refusal(command, entity_id, KEY) == failures.AUTH
    for command in (Send(b"F", b"x"), Lget()):
        assert await peer.refusal(command, entity_id) == failures.AUTH


async def test_the_ids_of_a_queue_are_not_interchangeable(smp: RouterRig) -> None:
    peer = smp.connect()
    queue = await peer.create(has_notifier=True)
    assert queue.ids.notifier is not None
    assert await peer.refusal(Sub(), queue.sender_id, queue.key) == failures.AUTH
    assert await peer.refusal(Sub(), queue.ids.notifier.notifier_id, queue.key) == failures.AUTH
    assert await peer.refusal(Send(b"F", b"x"), queue.recipient_id) == failures.AUTH
    assert await peer.refusal(Nsub(), queue.recipient_id, queue.notifier_key) == failures.AUTH


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_a_wrong_key_of_any_kind_is_an_auth_error(smp: RouterRig, kind: KeyKind) -> None:
    peer = smp.connect()
    queue = await peer.create(QueueMode.CONTACT, has_notifier=True)
    assert queue.ids.notifier is not None
    wrong = OwnKey.make(kind)
    for command in RECIPIENT_COMMANDS:
        assert await peer.refusal(command, queue.recipient_id, wrong) == failures.AUTH
    assert await peer.refusal(Nsub(), queue.ids.notifier.notifier_id, wrong) == failures.AUTH
    assert await peer.refusal(Send(b"F", b"x"), queue.sender_id, wrong) == failures.AUTH
    new = New(KEY.public, DH.public)
    assert await peer.refusal(new, b"", wrong) == failures.AUTH


async def test_an_authorization_of_another_session_is_an_auth_error(smp: RouterRig) -> None:
    peer, other = smp.connect(), smp.connect()
    queue = await peer.create()
    request = Request(Sub(), queue.recipient_id, queue.key)
    stolen = other.transmission(request)
    peer.say_content(b"\x01" + len(stolen).to_bytes(2, "big") + stolen)
    assert peer.answer_to(request) == Err(failures.AUTH)


async def test_version_6_knows_no_authenticators(smp: RouterRig) -> None:
    queue = await smp.connect().create(kind=KeyKind.X25519)
    old = smp.connect(6)
    old.say(request := Request(Sub(), queue.recipient_id, queue.key))
    (answer,) = old.sent
    assert (answer.corr_id, answer.entity_id) == (request.corr_id, b"")
    assert answer.message == Err(failures.BLOCK)


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_one_verification_of_the_presented_kind_whatever_is_on_record(
    in_memory: RouterRig, kind: KeyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the time of a refusal shows nothing of the queue."""
    peer = in_memory.connect()
    queues = [await peer.create(kind=each) for each in (KeyKind.ED25519, KeyKind.X25519)]
    secured = await peer.create()
    await peer.ask(Key(OwnKey.make().public), secured.recipient_id, secured.key)
    verified: list[KeyKind] = []
    real = authorizations._is_right

    def counted(key: PublicKey, *rest: bytes) -> bool:
        verified.append(key.kind)
        return real(key, *rest)

    monkeypatch.setattr(authorizations, "_is_right", counted)
    wrong = OwnKey.make(kind)
    attempts: list[tuple[Command, bytes]] = [
        (Sub(), UNKNOWN_ID),
        *((Sub(), queue.recipient_id) for queue in queues),
        (Send(b"F", b"x"), UNKNOWN_ID),
        (Send(b"F", b"x"), secured.sender_id),
        (Send(b"F", b"x"), queues[0].sender_id),
        (Nsub(), UNKNOWN_ID),
        (Skey(KEY.public), UNKNOWN_ID),
        (Skey(KEY.public), queues[0].sender_id),
        (Lkey(KEY.public), UNKNOWN_ID),
    ]
    for command, entity_id in attempts:
        verified.clear()
        assert await peer.refusal(command, entity_id, wrong) == failures.AUTH
        assert verified == [kind], (command, entity_id)


async def test_without_an_authorization_nothing_is_verified(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = in_memory.connect()
    secured = await peer.create()
    await peer.ask(Key(OwnKey.make().public), secured.recipient_id, secured.key)

    def verify(*_: object) -> bool:
        raise AssertionError("there is nothing to verify")

    monkeypatch.setattr(authorizations, "_is_right", verify)
    for entity_id in (UNKNOWN_ID, secured.sender_id):
        assert await peer.refusal(Send(b"F", b"x"), entity_id) == failures.AUTH


# --------------------------------------------------------------------------------------------- NEW


async def test_creation_can_be_switched_off(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, creates_queues=False))
    new = New(KEY.public, DH.public)
    assert await smp.connect().refusal(new, b"", KEY) == failures.AUTH
    assert smp.records.counts().queue_count == 0


async def test_creation_may_need_a_password(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, password="open sesame"))
    peer = smp.connect()
    for wrong in (None, b"", b"open", b"open sesame "):
        new = New(KEY.public, DH.public, wrong)
        assert await peer.refusal(new, b"", KEY) == failures.AUTH
    right = New(KEY.public, DH.public, b"open sesame")
    assert isinstance(await peer.ask(right, b"", KEY), Ids)
    assert "sesame" not in repr(smp.options)


async def test_without_a_password_any_is_accepted(smp: RouterRig) -> None:
    new = New(KEY.public, DH.public, b"whatever")
    assert isinstance(await smp.connect().ask(new, b"", KEY), Ids)


async def test_a_sender_id_follows_from_the_correlation_id(smp: RouterRig) -> None:
    peer = smp.connect()
    corr_id = some_bytes(24)

    def new(sender_id: bytes) -> New:
        link = LinkRequest(None, sender_id, b"fixed", b"user")
        return New(KEY.public, DH.public, request=QueueRequest(QueueMode.MESSAGING, link))

    wrong = new(b"s" * 24)
    assert await peer.refusal(wrong, b"", KEY, corr_id=corr_id) == failures.PROHIBITED
    right = new(sender_id_of(corr_id))
    ids = await peer.ask(right, b"", KEY, corr_id=corr_id)
    assert isinstance(ids, Ids)
    assert ids.sender_id == sender_id_of(corr_id)
    # The same once more: the id is taken, and that is all anybody learns.
    assert await peer.refusal(right, b"", KEY, corr_id=corr_id) == failures.AUTH


async def test_a_link_id_that_is_taken_is_an_auth_error(smp: RouterRig) -> None:
    peer = smp.connect()
    await peer.create(QueueMode.CONTACT, link=(b"fixed", b"user"), link_id=b"l" * 24)
    request = Request(b"", key=KEY)
    link = LinkRequest(b"l" * 24, sender_id_of(request.corr_id), b"other", b"")
    request.command = New(KEY.public, DH.public, request=QueueRequest(QueueMode.CONTACT, link))
    assert await peer.ask_all(request) == [Err(failures.AUTH)]
    request.command = New(
        KEY.public,
        DH.public,
        request=QueueRequest(QueueMode.CONTACT, replace(link, link_id=b"too short")),
    )
    assert await peer.ask_all(request) == [Err(failures.SYNTAX)]


async def test_a_key_that_agrees_with_every_other_is_no_key(smp: RouterRig) -> None:
    peer = smp.connect()
    null = PublicKey(KeyKind.X25519, bytes(32))
    assert await peer.refusal(New(KEY.public, null), b"", KEY) == failures.SYNTAX
    queue = await peer.create()
    keys = Nkey(NotifierKeys(KEY.public, null))
    assert await peer.refusal(keys, queue.recipient_id, queue.key) == failures.SYNTAX


# ------------------------------------------------------------------------------------------ others


async def test_what_nobody_carries_out_yet_is_prohibited(smp: RouterRig) -> None:
    peer = smp.connect()
    assert await peer.refusal(Rfwd(b"x")) == failures.PROHIBITED
    assert await peer.refusal(Rslv("example.org")) == failures.NO_RESOLVER


async def test_255_commands_in_a_block_are_all_answered(smp: RouterRig) -> None:
    peer = smp.connect()
    queue = await peer.create()
    requests = [Request(Send(b"F", b""), queue.sender_id) for _ in range(255)]
    answers = await peer.ask_all(*requests)
    quota = smp.options.quota
    assert answers == [Ok()] * quota + [Err(failures.QUOTA)] * (255 - quota)


async def test_a_role_that_does_not_fit_is_prohibited_after_the_queue_was_found(
    smp: RouterRig,
) -> None:
    queue = await smp.connect().create(has_notifier=True)
    assert queue.ids.notifier is not None
    notifier = smp.connect(service=await smp.service(ServiceRole.NOTIFIER))
    at, key = queue.recipient_id, queue.key
    for command in RECIPIENT_COMMANDS:
        assert await notifier.refusal(command, at, key) == failures.PROHIBITED
    assert await notifier.refusal(Sub(), UNKNOWN_ID, key) == failures.AUTH
    assert await notifier.refusal(Send(b"F", b"x"), queue.sender_id) == failures.PROHIBITED
    new = New(KEY.public, DH.public)
    assert await notifier.refusal(new, b"", KEY) == failures.PROHIBITED
    service = notifier.owned_service
    assert service is not None
    subs = Subs(0, bytes(16))
    assert await notifier.refusal(subs, service.service_id, service.key) == failures.PROHIBITED
    messaging = smp.connect(service=await smp.service(ServiceRole.MESSAGING))
    refused = await messaging.refusal(Nsub(), queue.ids.notifier.notifier_id, queue.notifier_key)
    assert refused == failures.PROHIBITED
    proxy = smp.connect(service=await smp.service(ServiceRole.PROXY))
    assert await proxy.refusal(Sub(), at, key) == failures.PROHIBITED
    assert await messaging.ask(Sub(), at, key) == Sok(messaging.owned_service.service_id)  # type: ignore[union-attr]


async def test_a_mistake_of_ours_costs_one_command_and_is_reported(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create()
    secret = b"what the peer said"

    def mistaken(*_: object) -> None:
        raise KeyError(secret)

    dispatch = smp.router._dispatch  # pyright: ignore[reportPrivateUsage]
    requests = [
        Request(Send(b"F", b"before"), queue.sender_id),
        Request(Ping()),
        Request(Que(), queue.recipient_id, queue.key),
        Request(Send(b"F", b"behind"), queue.sender_id),
    ]
    told: list[dict[str, object]] = []
    with monkeypatch.context() as patched:
        patched.setattr(Log, "error", lambda _, event, **fields: told.append(fields))
        patched.setattr(dispatch.queue_commands, "describe", mistaken)
        answers = await sender.ask_all(*requests)
    assert answers == [Ok(), Pong(), Err(failures.INTERNAL), Ok()]
    (fields,) = told
    assert fields["kind"] == "KeyError"
    assert "test_router_refusals.py" in str(fields["place"])
    assert secret.decode() not in repr(fields)
    assert smp.counters.refused["INTERNAL"] == 1
    # The session goes on.
    assert isinstance(await sender.ask(Que(), queue.recipient_id, queue.key), Info)
    _, message = await reader.event()
    assert queue.text(message) == b"before"
