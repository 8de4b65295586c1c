"""RFWD: commands that a proxy brings, on a router without sockets."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from syncline.server.smp.faces import SmpSession
from syncline.server.smp.forwarding import Forwarding
from syncline.server.smp.options import SmpOptions
from syncline.server.smp.proxying import Proxying
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.bodies import ReceivedMessage
from syncline.wire.smp.boxes import SecretBox, shared_secret, x25519_public
from syncline.wire.smp.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Lget,
    Lkey,
    Lset,
    New,
    Off,
    Ping,
    Prxy,
    Que,
    QueueRequest,
    Rfwd,
    Rslv,
    Send,
    Skey,
    Sub,
    encode_command,
)
from syncline.wire.smp.failures import Failure
from syncline.wire.smp.forwards import (
    CONTENT_BYTES_MAX,
    Forward,
    decode_forward_answer,
    encode_forward,
    open_answer,
    seal_command,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Err, Info, Lnk, Ok, RouterMessage, Rres, decode_message
from syncline.wire.smp.transmissions import Transmission, decode_block, pack
from tests.unit.server.smp.router_rig import (
    OwnKey,
    Peer,
    Queue,
    Request,
    RouterRig,
    in_memory,
    smp,
    some_bytes,
    turns,
)

__all__ = ["in_memory", "smp"]

PROXY_SECRET = b"\x07" * 32


def relay(rig: RouterRig, options: SmpOptions | None = None, **more: Any) -> None:
    """Let the router take RFWD; it is no proxy itself here."""
    forwarding = Forwarding(cast(Proxying, None))
    rig.choose(options or rig.options, relay=forwarding, **more)
    forwarding.attach(rig.router)


def proxy_session(rig: RouterRig, version: int = 20) -> Peer:
    peer = rig.connect(version)
    peer.is_proxy = version >= 14
    peer.forward_box = SecretBox(PROXY_SECRET)
    return peer


@dataclass
class Sender:
    """Somebody behind a proxy, who speaks its own version."""

    proxy: Peer
    version: int = 20
    # As whoever made the boxes wants them, if not as it should be.
    changes: dict[str, Any] = field(default_factory=dict[str, Any])

    def content(self, *requests: Request) -> bytes:
        inner = Peer(self.proxy.router, self.version, None)
        inner.session_id = self.proxy.session_id
        inner.router_private = self.proxy.router_private
        (content,) = pack([inner.transmission(request) for request in requests])
        return content

    async def forward(self, content: bytes, corr_id: bytes) -> RouterMessage | list[Any]:
        """What the proxy is told, or what comes out of the box."""
        private = some_bytes(32)
        assert self.proxy.router_private is not None
        own = public_key_of(KeyKind.X25519, private)
        box = SecretBox(shared_secret(private, x25519_public(self.proxy.router_private)))
        sealing = box
        if (secret := self.changes.get("sender_secret")) is not None:
            sealing = SecretBox(secret)
        forward = Forward(corr_id, self.version, own, seal_command(sealing, corr_id, content))
        forward = replace(forward, **self.changes.get("forward", {}))
        nonce = some_bytes(24)
        boxed = SecretBox(self.changes.get("secret", PROXY_SECRET)).box(
            self.changes.get("nonce", nonce), self.changes.get("told", encode_forward(forward))
        )
        answer = await self.proxy.ask(Rfwd(boxed), corr_id=nonce)
        if not isinstance(answer, Rres):
            return answer
        told = decode_forward_answer(SecretBox(PROXY_SECRET).open_box(nonce[::-1], answer.body))
        assert told.corr_id == forward.corr_id
        opened = open_answer(box, corr_id, told.body)
        return list(decode_block(self.version, self.proxy.session_id, opened))

    async def ask(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        key: OwnKey | None = None,
        **beside: Any,
    ) -> RouterMessage:
        """What the relay says to the sender."""
        request = Request(command, entity_id, key, **beside)
        found = await self.forward(self.content(request), request.corr_id)
        assert isinstance(found, list), found
        (answer,) = found
        assert isinstance(answer, Transmission)
        assert (answer.corr_id, answer.entity_id) == (request.corr_id, entity_id)
        return decode_message(self.version, answer.body)

    async def refusal(self, *arguments: Any, **beside: Any) -> Failure:
        message = await self.ask(*arguments, **beside)
        assert isinstance(message, Err), message
        return message.failure

    async def refusal_to_proxy(self, *requests: Request) -> Failure:
        """The boxes are at fault, or what is in them; the sender is not told."""
        requests = requests or (Request(Send(b"F", b"hello"), some_bytes(24)),)
        message = await self.forward(self.content(*requests), requests[0].corr_id)
        assert isinstance(message, Err), message
        return message.failure


async def reader_of(rig: RouterRig, **more: Any) -> tuple[Peer, Queue]:
    reader = rig.connect()
    return reader, await reader.create(**more)


def received(reader: Peer, queue: Queue) -> list[bytes]:
    return [
        cast(ReceivedMessage, queue.open(message)).body
        for entity_id, message in reader.events()
        if entity_id == queue.recipient_id
    ]


@pytest.mark.parametrize("version", [8, 9, 10, 11, 14, 15, 16, 20])
async def test_a_message_comes_through_in_every_version(smp: RouterRig, version: int) -> None:
    relay(smp)
    reader, queue = await reader_of(smp)
    sender = Sender(proxy_session(smp), version)
    assert await sender.ask(Send(b"T", b"hello"), queue.sender_id) == Ok()
    await smp.settle()
    assert received(reader, queue) == [b"hello"]


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_a_sender_secures_a_queue_and_sends_the_largest_message(
    smp: RouterRig, kind: KeyKind
) -> None:
    relay(smp)
    reader, queue = await reader_of(smp)
    sender, key = Sender(proxy_session(smp)), OwnKey.make(kind)
    assert await sender.ask(Skey(key.public), queue.sender_id, key) == Ok()
    assert await sender.ask(Send(b"F", bytes(16_048)), queue.sender_id, key) == Ok()
    assert await sender.refusal(Send(b"F", b"no key"), queue.sender_id) == failures.AUTH
    await smp.settle()
    assert received(reader, queue) == [bytes(16_048)]


async def test_links_are_read_and_secured(smp: RouterRig) -> None:
    relay(smp)
    _, contact = await reader_of(
        smp, mode=QueueMode.CONTACT, link=(b"fixed", b"user"), link_id=b"L" * 24
    )
    _, queue = await reader_of(smp, link=(b"fixed", b"user"))
    sender, key = Sender(proxy_session(smp)), OwnKey.make()
    assert await sender.ask(Lget(), b"L" * 24) == Lnk(contact.sender_id, b"fixed", b"user")
    link_id = queue.ids.link_id
    assert link_id is not None
    assert await sender.ask(Lkey(key.public), link_id, key) == Lnk(
        queue.sender_id, b"fixed", b"user"
    )
    assert await sender.refusal(Lget(), some_bytes(24)) == failures.AUTH


async def test_link_data_that_fits_a_block_but_no_box_is_refused(smp: RouterRig) -> None:
    relay(smp)
    reader, queue = await reader_of(smp, mode=QueueMode.CONTACT)
    sender, link_id = Sender(proxy_session(smp)), b"L" * 24
    # Beside the data there are a count and a length, no authorization, three ids, the word, and two
    # lengths.
    room = CONTENT_BYTES_MAX - 3 - (1 + 3 * 25 + len(b"LNK ") + 4)
    for size in (room, room + 1):
        data = Lset(link_id, b"", bytes(size))
        assert await reader.ask(data, queue.recipient_id, queue.key) == Ok()
        expected = Lnk(queue.sender_id, b"", bytes(size))
        assert await smp.connect().ask(Lget(), link_id) == expected
        if size == room:
            assert await sender.ask(Lget(), link_id) == expected
        else:
            assert await sender.refusal_to_proxy(Request(Lget(), link_id)) == failures.BLOCK


async def test_names_are_not_looked_up_here(smp: RouterRig) -> None:
    relay(smp)
    assert await Sender(proxy_session(smp)).refusal(Rslv("name")) == failures.NO_RESOLVER
    assert await smp.connect().refusal(Rslv("name")) == failures.NO_RESOLVER


async def test_nothing_else_is_done_for_others(smp: RouterRig) -> None:
    relay(smp)
    reader, queue = await reader_of(smp)
    sender, key = Sender(proxy_session(smp)), OwnKey.make()
    dh_key = PublicKey(KeyKind.X25519, x25519_public(some_bytes(32)))
    new = New(key.public, dh_key, request=QueueRequest(QueueMode.MESSAGING))
    address = RouterAddress(bytes(32), ("example.net",))
    own: list[Command] = [Sub(), Get(), Ack(b"m" * 24), Off(), Del(), Que(), Key(key.public)]
    for command in own:
        assert await sender.refusal(command, queue.recipient_id, queue.key) == failures.PROHIBITED
    assert await sender.refusal(new, b"", key) == failures.PROHIBITED
    for command in (Ping(), Prxy(address), Rfwd(b"again")):
        assert await sender.refusal(command) == failures.PROHIBITED
    assert smp.counters.created_count == 1
    assert isinstance(await reader.ask(Que(), queue.recipient_id, queue.key), Info)


async def test_what_is_wrong_with_the_command_is_told_to_the_sender(smp: RouterRig) -> None:
    relay(smp)
    _, queue = await reader_of(smp)
    sender, key = Sender(proxy_session(smp)), OwnKey.make()
    assert await sender.refusal(b"NONSENSE", queue.sender_id) == failures.UNKNOWN
    assert await sender.refusal(b"SEND X", queue.sender_id) == failures.SYNTAX
    assert await sender.refusal(Send(b"F", b""), b"") == failures.NO_ENTITY
    assert await sender.refusal(Lget(), b"L" * 24, key) == failures.HAS_AUTH
    # Its faults come before what it is: as they do for whoever comes without a proxy.
    assert await sender.refusal(Sub(), queue.recipient_id) == failures.NO_AUTH
    assert await sender.refusal(Send(b"F", b""), some_bytes(24)) == failures.AUTH
    assert await sender.refusal(Send(b"F", bytes(16_049)), queue.sender_id) == failures.LARGE_MSG
    assert await sender.refusal(Skey(key.public), queue.sender_id, OwnKey.make()) == failures.AUTH
    assert (
        await sender.refusal(
            Send(b"F", b""), queue.sender_id, OwnKey.make(), with_service_signature=True
        )
        == failures.SERVICE
    )


async def test_a_content_that_is_none_is_told_to_the_sender(smp: RouterRig) -> None:
    relay(smp)
    sender = Sender(proxy_session(smp))
    found = await sender.forward(b"\x00", some_bytes(24))
    assert isinstance(found, list)
    (answer,) = found
    assert (answer.corr_id, answer.entity_id) == (b"", b"")
    assert decode_message(20, answer.body) == Err(failures.BLOCK)


async def test_one_command_at_a_time_is_brought(smp: RouterRig) -> None:
    relay(smp)
    reader, queue = await reader_of(smp)
    sender = Sender(proxy_session(smp))
    requests = [Request(Send(b"F", b"twice"), queue.sender_id) for _ in range(2)]
    assert await sender.refusal_to_proxy(*requests) == failures.BLOCK
    await smp.settle()
    assert received(reader, queue) == []


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"secret": b"\x08" * 32}, failures.CRYPTO),
        ({"nonce": bytes(24)}, failures.CRYPTO),
        ({"sender_secret": b"\x08" * 32}, failures.CRYPTO),
        ({"forward": {"key": PublicKey(KeyKind.X25519, bytes(32))}}, failures.CRYPTO),
        ({"forward": {"body": b""}}, failures.CRYPTO),
        ({"told": b""}, failures.SYNTAX),
        ({"told": b"\x18short"}, failures.SYNTAX),
        ({"forward": {"version": 7}}, failures.BROKER_VERSION),
        ({"forward": {"version": 21}}, failures.BROKER_VERSION),
        ({"forward": {"version": 65_535}}, failures.BROKER_VERSION),
    ],
)
async def test_what_is_wrong_with_the_boxes_is_told_to_the_proxy(
    in_memory: RouterRig, changes: dict[str, Any], failure: Failure
) -> None:
    relay(in_memory)
    sender = Sender(proxy_session(in_memory), changes=changes)
    assert await sender.refusal_to_proxy() == failure


async def test_only_a_proxy_brings_commands(in_memory: RouterRig) -> None:
    relay(in_memory)
    peer = in_memory.connect()
    assert await peer.refusal(Rfwd(b"")) == failures.PROHIBITED
    proxy = proxy_session(in_memory)
    proxy.forward_box = None
    no_key = failures.proxy_broker("TRANSPORT", b"NO_AUTH")
    assert await proxy.refusal(Rfwd(b"")) == no_key, "it gave no key in its hello"
    assert await proxy.refusal(encode_command(20, Rfwd(b"")), b"entity") == failures.HAS_AUTH


async def test_before_14_a_proxy_does_not_say_that_it_is_one(in_memory: RouterRig) -> None:
    relay(in_memory)
    _, queue = await reader_of(in_memory)
    for version in (8, 10, 13):
        proxy = proxy_session(in_memory, version)
        assert not proxy.is_proxy
        assert await Sender(proxy).ask(Send(b"F", b"hello"), queue.sender_id) == Ok()


async def test_a_service_needs_the_role_of_a_proxy(in_memory: RouterRig) -> None:
    relay(in_memory)
    for role, failure in (
        (ServiceRole.MESSAGING, failures.PROHIBITED),
        (ServiceRole.PROXY, failures.CRYPTO),
    ):
        peer = in_memory.connect(20, await in_memory.service(role))
        peer.is_proxy, peer.forward_box = True, SecretBox(PROXY_SECRET)
        assert await peer.refusal(Rfwd(b"x")) == failure


async def test_the_answer_waits_until_it_is_durable(in_memory: RouterRig) -> None:
    relay(in_memory)
    _, queue = await reader_of(in_memory)
    await in_memory.settle()
    sender = Sender(proxy_session(in_memory))
    in_memory.disk.is_held = True
    asking = asyncio.create_task(sender.ask(Send(b"F", b"hello"), queue.sender_id))
    await turns()
    assert not asking.done()
    in_memory.disk.let_go()
    assert await asking == Ok()


async def test_a_key_that_is_not_durable_is_not_told_of(in_memory: RouterRig) -> None:
    relay(in_memory)
    _, queue = await reader_of(in_memory)
    await in_memory.settle()
    sender, key = Sender(proxy_session(in_memory)), OwnKey.make()
    in_memory.records_disk.is_held = True
    # The second meets what the first has staged, and waits as long.
    asking = [
        asyncio.create_task(sender.ask(Skey(key.public), queue.sender_id, key)) for _ in range(2)
    ]
    await turns()
    assert not any(each.done() for each in asking)
    in_memory.records_disk.let_go()
    assert await asyncio.gather(*asking) == [Ok(), Ok()]


async def test_a_proxy_with_too_much_under_way_is_not_read_from(in_memory: RouterRig) -> None:
    relay(in_memory, SmpOptions(unanswered_count_max=4))
    _, queue = await reader_of(in_memory)
    await in_memory.settle()
    proxy = proxy_session(in_memory)
    in_memory.disk.is_held = True
    asking: list[asyncio.Task[RouterMessage]] = []
    for count in range(1, 6):
        sending = Sender(proxy).ask(Send(b"F", b"hello"), queue.sender_id)
        asking.append(asyncio.create_task(sending))
        await asyncio.sleep(0)
        assert proxy.is_reading is (count <= 4)
    in_memory.disk.let_go()
    assert await asyncio.gather(*asking) == [Ok()] * 5
    assert proxy.is_reading


async def test_the_answer_to_somebody_who_has_left_is_dropped(in_memory: RouterRig) -> None:
    relay(in_memory)
    reader, queue = await reader_of(in_memory)
    await in_memory.settle()
    proxy = proxy_session(in_memory)
    in_memory.disk.is_held = True
    sending = Sender(proxy).ask(Send(b"F", b"hello"), queue.sender_id)
    asking = asyncio.create_task(sending)
    await asyncio.sleep(0)
    proxy.close("gone")
    asking.cancel()
    in_memory.disk.let_go()
    await in_memory.settle()
    assert proxy.sent == []
    assert received(reader, queue) == [b"hello"]


async def test_a_forwarded_session_is_one_to_the_router(in_memory: RouterRig) -> None:
    relay(in_memory)
    seen: list[SmpSession] = []
    work = in_memory.router.work

    def note(connection: Any, transmissions: Any) -> None:
        seen.append(connection.session)
        work(connection, transmissions)

    in_memory.router.work = note  # type: ignore[method-assign]
    proxy = proxy_session(in_memory)
    sender = Sender(proxy, version=9)
    for _ in range(2):
        await sender.refusal(Send(b"F", b""), some_bytes(24))
    inner = [session for session in seen if session is not proxy]
    assert len({session.number for session in inner}) == 2, "each stalls by itself"
    assert all(session.number < 0 for session in inner)
    for session in inner:
        assert (session.version, session.session_id) == (9, proxy.session_id)
        assert (session.service, session.is_proxy, session.forward_box) == (None, False, None)
        assert (session.remote, session.is_writable) == (proxy.remote, True)
        session.pause_reading()
        session.resume_reading()
        session.close("nothing happens")
        assert "SecretBox" not in repr(session)
