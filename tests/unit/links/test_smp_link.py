"""The link over a real connection, against a router that does as the test says."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from syncline.certificates import make_identity, make_service_credentials
from syncline.errors import (
    LinkClosedError,
    LinkLostError,
    MalformedMessageError,
    NotAuthorizedError,
    ServiceMismatchError,
    SynclineError,
    UnexpectedMessageError,
    UnsupportedVersionError,
)
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_exchange import KeepAliveRules
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkEvent, LinkOptions, Request, SmpLink
from syncline.testing.clock import ManualClock
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import is_authorized, is_signed
from syncline.wire.smp.commands import Ack, Lget, Nsub, Ping, Send, Sub, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.hellos import CertifiedKey, RouterHello, ServiceRefused, VersionRange
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Alls, End, Err, Msg, Ok, Pong, Sok, Soks
from syncline.wire.smp.signed_keys import open_signed_key, sign_key
from tests.unit.links.scripted_smp_router import (
    SERVICE_ID,
    WAIT_S,
    Peer,
    Script,
    identity,
    listening,
    scripted_smp_router,
    server_context,
)

QUEUE = b"q" * 24
KEYS = {
    KeyKind.ED25519: PrivateKey(KeyKind.ED25519, b"k" * 32),
    KeyKind.ED448: PrivateKey(KeyKind.ED448, b"k" * 57),
    KeyKind.X25519: PrivateKey(KeyKind.X25519, b"k" * 32),
}
KEY = KEYS[KeyKind.ED25519]


def address_of(port: int) -> RouterAddress:
    return RouterAddress(identity().fingerprint, ("127.0.0.1",), port)


class Clock(ManualClock):
    """In seconds, as links ask for it."""

    def seconds(self) -> float:
        return self.now_ms / 1_000


@asynccontextmanager
async def connected(
    script: Script | None = None,
    options: LinkOptions | None = None,
    *,
    service: ServiceLogin | None = None,
    is_proxy: bool = False,
    clock: Clock | None = None,
) -> AsyncGenerator[tuple[SmpLink, Peer]]:
    clock_s = (clock or Clock()).seconds
    async with scripted_smp_router(script) as router, asyncio.timeout(WAIT_S):
        link = await SmpLink.connect(
            router.address, options, service=service, is_proxy=is_proxy, clock_s=clock_s
        )
        try:
            yield link, await router.accepted()
        finally:
            await link.close()


async def refused(script: Script, error: type[SynclineError], match: str) -> None:
    """The link does not come about, and nothing was sent but TLS."""
    async with scripted_smp_router(script) as router, asyncio.timeout(WAIT_S):
        with pytest.raises(error, match=match):
            await SmpLink.connect(router.address)
        peer = await router.accepted()
        assert peer.hello is None


# ---------------------------------------------------------------------------------------- the hello


async def test_command_is_answered_over_the_highest_common_version() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        transmission, command = await peer.receive()
        assert (command, transmission.entity_id, transmission.authorization) == (Ping(), b"", b"")
        assert len(transmission.corr_id) == 24
        await peer.send((transmission.corr_id, b"", Pong()))
        assert await answer == Pong()
        assert link.version == peer.version == 20
        assert link.session_id == peer.session_id
        assert link.session.is_encrypted
        assert link.session.alpn == "smp/1"
        shown = link.session.hello
        assert shown is not None
        assert shown.key is not None
        assert shown.key.chain == identity().chain


@pytest.mark.parametrize("version", range(6, 21))
async def test_every_version_is_spoken(version: int) -> None:
    options = LinkOptions(versions=VersionRange(6, version))
    async with connected(options=options) as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        transmission, command = await peer.receive()
        assert command == Sub()
        assert is_authorized(
            KEY.public, transmission.authorization, transmission.signed, b"", peer.key.raw
        )
        await peer.send((transmission.corr_id, QUEUE, Sok()))
        assert await answer == (Sok() if version >= 16 else Ok())
        assert link.session.is_encrypted is (version >= 11)


async def test_proxy_says_so_and_has_no_inner_encryption() -> None:
    async with connected(is_proxy=True) as (link, peer):
        assert peer.hello is not None
        assert peer.hello.is_proxy
        assert not link.session.is_encrypted
        answer = asyncio.create_task(link.request(Ping()))
        await peer.answer(Pong())
        assert await answer == Pong()


async def test_proxy_speaks_an_old_version_to_who_cannot_tell_it_from_a_client() -> None:
    script = Script(versions=VersionRange(6, 13))
    async with connected(script, is_proxy=True) as (link, _):
        assert link.version == 10


async def test_no_server_name_is_sent() -> None:
    names: list[str | None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Peer(reader, writer, Script()).shake_hands()

    context = server_context(Script())
    context.sni_callback = lambda _, name, __: names.append(name)
    async with listening(handle, context) as port, asyncio.timeout(WAIT_S):
        link = await SmpLink.connect(address_of(port))
        await link.close()
    assert names == [None]


async def test_wrong_fingerprint_is_refused() -> None:
    async with scripted_smp_router() as router, asyncio.timeout(WAIT_S):
        other = replace(router.address, fingerprint=b"x" * 32)
        with pytest.raises(NotAuthorizedError, match="another router answers"):
            await SmpLink.connect(other)
        assert (await router.accepted()).hello is None


async def test_hello_of_another_session_is_refused() -> None:
    script = Script(change_hello=lambda hello: replace(hello, session_id=b"x" * 32))
    await refused(script, NotAuthorizedError, "another connection")


async def test_chain_of_another_connection_is_refused() -> None:
    # Somebody in the middle, with a certificate of his own in TLS, shows the real router's hello.
    script = Script(identity=make_identity(datetime.now(UTC)), shown=identity())
    async with scripted_smp_router(script) as router, asyncio.timeout(WAIT_S):
        address = replace(router.address, fingerprint=identity().fingerprint)
        with pytest.raises(NotAuthorizedError, match="not that of its connection"):
            await SmpLink.connect(address)


def _signed_by_another(hello: RouterHello) -> RouterHello:
    other = make_identity(datetime.now(UTC))
    signed = sign_key(KEYS[KeyKind.X25519].public, other.key.raw, other.key.kind)
    return replace(hello, key=CertifiedKey(identity().chain, signed))


async def test_key_that_the_leaf_did_not_sign_is_refused() -> None:
    script = Script(change_hello=_signed_by_another)
    await refused(script, MalformedMessageError, "wrong signature")


async def test_key_of_a_wrong_kind_is_refused() -> None:
    def change(hello: RouterHello) -> RouterHello:
        leaf = identity().key
        return replace(
            hello, key=CertifiedKey(identity().chain, sign_key(KEY.public, leaf.raw, leaf.kind))
        )

    await refused(Script(change_hello=change), MalformedMessageError, "kind Ed25519")


async def test_chain_without_an_identity_is_refused() -> None:
    def change(hello: RouterHello) -> RouterHello:
        assert hello.key is not None
        return replace(hello, key=CertifiedKey(hello.key.chain[:1], hello.key.signed_key))

    await refused(Script(change_hello=change), MalformedMessageError, "a chain has 2")


async def test_certificate_out_of_date_is_refused() -> None:
    old = make_identity(datetime.now(UTC) - timedelta(days=20), ca_days=10, leaf_days=10)
    await refused(Script(identity=old), MalformedMessageError, "out of date")


async def test_router_without_identity_is_refused() -> None:
    # What a router says to a client that offers no protocol in TLS.
    script = Script(
        versions=VersionRange(6, 6),
        alpn=(),
        change_hello=lambda hello: replace(hello, key=None),
    )
    await refused(script, UnsupportedVersionError, "no identity.*protocol None")


async def test_versions_without_overlap_are_refused() -> None:
    script = Script(versions=VersionRange(21, 30))
    await refused(script, UnsupportedVersionError, "versions 21 to 30")


async def test_hello_that_is_none_is_refused() -> None:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff" * 16_384)

    async with listening(handle, server_context(Script())) as port, asyncio.timeout(WAIT_S):
        with pytest.raises(MalformedMessageError):
            await SmpLink.connect(address_of(port))


async def test_end_during_the_hello_is_told() -> None:
    async with scripted_smp_router(Script(is_silent=True)) as router, asyncio.timeout(WAIT_S):
        with pytest.raises(LinkLostError, match="during the hello"):
            await SmpLink.connect(router.address)


async def test_nobody_at_the_address_is_told() -> None:
    async with scripted_smp_router() as router:
        address = router.address
    with pytest.raises(LinkLostError, match=f"port {address.port}"):
        await SmpLink.connect(address)


async def test_router_that_says_nothing_is_given_up() -> None:
    async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    # A port that accepts, and never speaks TLS.
    async with listening(handle, None) as port, asyncio.timeout(WAIT_S):
        with pytest.raises(LinkLostError, match="too long"):
            await SmpLink.connect(address_of(port), LinkOptions(connect_timeout_s=0.1))


async def test_next_host_is_tried() -> None:
    async with scripted_smp_router() as router, asyncio.timeout(WAIT_S):
        # Nothing listens on the second address of loopback.
        address = replace(router.address, hosts=("127.0.0.2", "127.0.0.1"))
        link = await SmpLink.connect(address)
        await link.close()


# ----------------------------------------------------------------------------------------- services

CREDENTIALS = make_service_credentials(datetime.now(UTC))
LOGIN = ServiceLogin(CREDENTIALS, ServiceRole.MESSAGING)


async def test_service_logs_in_with_a_key_signed_by_its_certificate() -> None:
    async with connected(service=LOGIN) as (link, peer):
        assert peer.hello is not None
        offered = peer.hello.service
        assert offered is not None
        assert (offered.role, offered.key.chain) == (ServiceRole.MESSAGING, CREDENTIALS.chain)
        session_key = open_signed_key(offered.key.signed_key, CREDENTIALS.key.public)
        assert link.service is not None
        assert link.service.service_id == SERVICE_ID
        assert link.service.key.public == session_key

        answer = asyncio.create_task(link.request(Subs(0, bytes(16)), SERVICE_ID))
        transmission, command = await peer.receive()
        assert (command, transmission.service_signature) == (Subs(0, bytes(16)), None)
        assert is_signed(session_key, transmission.authorization, transmission.signed)
        await peer.send((transmission.corr_id, SERVICE_ID, Soks(3, b"h" * 16)))
        assert await answer == Soks(3, b"h" * 16)


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.value)
async def test_queue_vouches_for_the_service_it_is_subscribed_with(kind: KeyKind) -> None:
    async with connected(service=LOGIN) as (link, peer):
        assert link.service is not None
        session_key = link.service.key.public
        for command, is_double in ((Sub(), True), (Nsub(), True), (Ack(b"m" * 24), False)):
            future = await link.start(Request(command, QUEUE, KEYS[kind]))
            found, _ = await peer.receive()
            prefix = CREDENTIALS.fingerprint if is_double else b""
            assert is_authorized(
                KEYS[kind].public,
                found.authorization,
                prefix + found.signed,
                found.corr_id,
                peer.key.raw,
            )
            assert (found.service_signature is not None) is is_double
            if found.service_signature is not None:
                assert is_signed(session_key, found.service_signature, found.signed)
            future.cancel()


async def test_refused_service_is_told_apart() -> None:
    script = Script(service_answer=ServiceRefused("HANDSHAKE BAD_SERVICE"))
    async with scripted_smp_router(script) as router, asyncio.timeout(WAIT_S):
        with pytest.raises(ServiceMismatchError, match="BAD_SERVICE"):
            await SmpLink.connect(router.address, service=LOGIN)


@pytest.mark.parametrize(
    ("role", "version", "is_offered"),
    [
        (ServiceRole.MESSAGING, 18, False),
        (ServiceRole.MESSAGING, 19, True),
        (ServiceRole.NOTIFIER, 15, False),
        (ServiceRole.NOTIFIER, 16, True),
    ],
)
async def test_service_is_offered_to_who_knows_its_role(
    role: ServiceRole, version: int, is_offered: bool
) -> None:
    script = Script(versions=VersionRange(6, version))
    async with connected(script, service=ServiceLogin(CREDENTIALS, role)) as (link, peer):
        assert peer.hello is not None
        assert (peer.hello.service is not None) is is_offered
        assert (link.service is not None) is is_offered


# ----------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("kind", "service", "per_block"),
    [(KeyKind.ED25519, None, 135), (KeyKind.X25519, None, 119), (KeyKind.ED25519, LOGIN, 87)],
)
async def test_commands_of_one_turn_share_blocks(
    kind: KeyKind, service: ServiceLogin | None, per_block: int
) -> None:
    async with connected(service=service) as (link, peer):
        requests = [Request(Sub(), QUEUE, KEYS[kind]) for _ in range(2 * per_block)]
        answers = asyncio.create_task(link.request_many(requests))
        for _ in requests:
            await peer.answer(Sok())
        assert await answers == [Sok()] * len(requests)
        assert peer.block_counts == [per_block, per_block]


async def test_answers_find_their_commands_in_any_order() -> None:
    async with connected() as (link, peer):
        ids = [bytes([number]) * 24 for number in range(3)]
        requests = [Request(Sub(), each, KEY) for each in ids]
        answers = asyncio.create_task(link.request_many(requests))
        found = [(await peer.receive())[0] for _ in ids]
        await peer.send(
            (found[2].corr_id, ids[2], Sok(b"2")),
            (b"", b"", Alls()),
            (found[0].corr_id, ids[0], Sok(b"0")),
            (found[1].corr_id, ids[1], Err(failures.AUTH)),
        )
        first, second, third = await answers
        assert (first, third) == (Sok(b"0"), Sok(b"2"))
        assert isinstance(second, FailureError)
        assert second.failure == failures.AUTH
        assert await link.next_event() == LinkEvent(b"", Alls())


async def test_answer_about_another_queue_is_bad() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        transmission, _ = await peer.receive()
        await peer.send((transmission.corr_id, b"x" * 24, Sok()))
        with pytest.raises(UnexpectedMessageError):
            await answer
        # The link is as good as before.
        answer = asyncio.create_task(link.request(Ping()))
        await peer.answer(Pong())
        assert await answer == Pong()


async def test_error_without_an_entity_is_an_answer() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        transmission, _ = await peer.receive()
        await peer.send((transmission.corr_id, b"", Err(failures.BLOCK)))
        with pytest.raises(FailureError, match="BLOCK"):
            await answer


async def test_answer_that_is_no_message_fails_its_command_alone() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        found, _ = await peer.receive()
        bad = b"\0" + b"\x18" + found.corr_id + b"\x18" + QUEUE + b"WHAT"
        await peer.write_content(b"\x01" + len(bad).to_bytes(2) + bad)
        with pytest.raises(MalformedMessageError):
            await answer
        assert link.end is None


async def test_answer_that_nobody_asked_for_is_counted() -> None:
    async with connected() as (link, peer):
        await peer.send((b"x" * 24, QUEUE, Ok()), (b"", QUEUE, End()))
        assert await link.next_event() == LinkEvent(QUEUE, End())
        assert link.unasked_count == 1


async def test_command_of_a_later_version_is_refused_here() -> None:
    async with connected(Script(versions=VersionRange(6, 14))) as (link, _):
        with pytest.raises(UnsupportedVersionError, match="LGET"):
            await link.request(Lget(), QUEUE)


async def test_message_too_large_for_a_block_ends_the_link() -> None:
    async with connected() as (link, _):
        with pytest.raises(LinkLostError):
            await link.request(Send(b"F", bytes(17_000)), QUEUE)


# --------------------------------------------------------------------------------------------- time


async def test_command_without_an_answer_ends_in_time() -> None:
    clock = Clock()
    async with connected(clock=clock) as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY, timeout_s=5))
        transmission, _ = await peer.receive()
        clock.advance(4_999)
        link.tick()
        assert link.waiting_count == 1
        clock.advance(1)
        link.tick()
        with pytest.raises(LinkLostError, match="in time"):
            await answer
        # An answer may still come, and may carry a message.
        await peer.send((transmission.corr_id, QUEUE, Msg(b"m" * 24, b"body")))
        assert await link.next_event() == LinkEvent(QUEUE, Msg(b"m" * 24, b"body"), is_late=True)
        assert link.unasked_count == 0


async def test_message_for_who_has_stopped_waiting_is_an_event() -> None:
    async with connected() as (link, peer):
        future = await link.start(Request(Ack(b"m" * 24), QUEUE, KEY))
        transmission, _ = await peer.receive()
        future.cancel()
        await peer.send((transmission.corr_id, QUEUE, Msg(b"n" * 24, b"body")))
        assert await link.next_event() == LinkEvent(QUEUE, Msg(b"n" * 24, b"body"), is_late=True)


async def test_silent_router_is_asked_once_something_is_subscribed() -> None:
    clock = Clock()
    async with connected(clock=clock) as (link, peer):
        clock.advance(700_000)
        link.tick()
        assert link.waiting_count == 0
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        await peer.answer(Sok())
        await answer
        clock.advance(599_000)
        link.tick()
        assert link.waiting_count == 0
        clock.advance(1_000)
        link.tick()
        link.tick()
        assert link.waiting_count == 1
        assert await peer.answer(Pong()) == Ping()
        await peer.tell(QUEUE, End())
        await link.next_event()
        link.tick()
        assert link.waiting_count == 0


async def test_router_that_is_gone_is_given_up_after_three_pings_and_fifteen_minutes() -> None:
    clock = Clock()
    async with connected(clock=clock) as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        await peer.answer(Sok())
        await answer
        clock.advance(600_000)
        for second in range(600, 900, 30):
            link.tick()
            assert link.end is None, f"after {second} s"
            await asyncio.sleep(0)  # the ping goes out, and its end is noticed
            clock.advance(30_000)
        link.tick()
        with pytest.raises(LinkLostError, match="too long"):
            await link.next_event()


async def test_silence_alone_does_not_end_a_link() -> None:
    clock = Clock()
    rules = KeepAliveRules(ping_after_s=1e9)
    async with connected(options=LinkOptions(keep_alive=rules), clock=clock) as (link, peer):
        answer = asyncio.create_task(link.request(Sub(), QUEUE, KEY))
        await peer.answer(Sok())
        await answer
        clock.advance(3_600_000)
        link.tick()
        assert link.end is None


# ------------------------------------------------------------------------------------------- events


async def test_router_is_slowed_down_when_nobody_takes_events() -> None:
    options = LinkOptions(event_count_max=4)
    async with connected(options=options) as (link, peer):
        count = 1_000
        sending = asyncio.create_task(_tell_many(peer, count))
        while link._stream.is_reading:  # noqa: ASYNC110 (nothing is told when it stops)
            await asyncio.sleep(0)
        assert len(link._events) < 4 + 20, "no more than what one read brought"
        for number in range(count):
            event = await link.next_event()
            assert event.message == Msg(number.to_bytes(24), bytes(16_000))
        await sending
        assert link.take_missed() == set()


async def _tell_many(peer: Peer, count: int) -> None:
    for number in range(count):
        await peer.tell(QUEUE, Msg(number.to_bytes(24), bytes(16_000)))


async def test_answer_is_read_behind_more_events_than_are_kept() -> None:
    options = LinkOptions(event_count_max=2)
    async with connected(options=options) as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        transmission, _ = await peer.receive()
        ids = [bytes([number]) * 24 for number in range(30)]
        for each in ids:
            await peer.tell(each, Msg(each, b"body"))
        # What cannot be had again is kept, messages are not.
        await peer.tell(QUEUE, End())
        await peer.send((transmission.corr_id, b"", Pong()))
        assert await answer == Pong()
        assert link.take_missed() == set(ids[8:])
        assert link.take_missed() == set()
        taken = [await link.next_event() for _ in range(9)]
        assert [event.entity_id for event in taken] == [*ids[:8], QUEUE]


async def test_flood_of_events_ends_the_link() -> None:
    options = LinkOptions(event_count_max=2)
    async with connected(options=options) as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        await peer.receive()
        await peer.tell(QUEUE, *[End()] * 20)
        with pytest.raises(LinkLostError, match="waiting events"):
            await answer


async def test_too_many_messages_left_out_end_the_link() -> None:
    options = LinkOptions(event_count_max=1, missed_count_max=3)
    async with connected(options=options) as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        await peer.receive()
        for number in range(8):
            await peer.tell(bytes([number]) * 24, Msg(b"m" * 24, b"body"))
        with pytest.raises(LinkLostError, match="left out"):
            await answer


async def test_commands_wait_while_too_many_are_under_way() -> None:
    options = LinkOptions(waiting_count_max=2)
    async with connected(options=options) as (link, peer):
        requests = [Request(Sub(), bytes([number]) * 24, KEY) for number in range(6)]
        answers = asyncio.create_task(link.request_many(requests))
        for _ in requests:
            assert link.waiting_count <= 2
            await peer.answer(Sok())
        assert await answers == [Sok()] * 6


# ---------------------------------------------------------------------------------------------- end


async def test_lost_connection_ends_what_waits() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        await peer.tell(QUEUE, End())
        await peer.receive()
        await peer.close()
        with pytest.raises(LinkLostError):
            await answer
        # What came before is still to be had.
        assert await link.next_event() == LinkEvent(QUEUE, End())
        with pytest.raises(LinkLostError):
            await link.next_event()
        with pytest.raises(LinkLostError):
            await link.request(Ping())
        assert isinstance(await link.ended(), LinkLostError)


async def test_closing_sends_what_was_asked_before() -> None:
    async with connected() as (link, peer):
        future = await link.start(Request(Ack(b"m" * 24), QUEUE, KEY))
        await link.close()
        assert (await peer.receive())[1] == Ack(b"m" * 24)
        assert await peer.ended() == b""
        with pytest.raises(LinkClosedError):
            await future
        with pytest.raises(LinkClosedError):
            await link.request(Ping())


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\x01", b"\x01\x00\x05abcd", b"\x01\x00\x01\x07"],
    ids=["empty", "none", "cut", "short", "damaged"],
)
async def test_block_that_is_none_ends_the_link(content: bytes) -> None:
    async with connected() as (link, peer):
        await peer.write_content(content)
        assert isinstance(await link.ended(), MalformedMessageError)
        with pytest.raises(LinkLostError):
            await link.request(Ping())


async def test_block_that_does_not_open_ends_the_link() -> None:
    async with connected() as (link, peer):
        await peer.write_raw(bytes(16_384))
        assert isinstance(await link.ended(), MalformedMessageError)


async def test_blocks_are_whole_however_the_network_cuts_them() -> None:
    async with connected() as (link, peer):
        answer = asyncio.create_task(link.request(Ping()))
        transmission, _ = await peer.receive()
        peer.held = []
        await peer.tell(QUEUE, End())
        await peer.send((transmission.corr_id, b"", Pong()))
        [first, second] = peer.held
        peer.held = None
        for piece in (first[:1], first[1:16_000], first[16_000:] + second[:5], second[5:]):
            await peer.write_raw(piece)
        assert await answer == Pong()
        assert await link.next_event() == LinkEvent(QUEUE, End())


async def test_keys_are_not_shown() -> None:
    async with connected(service=LOGIN) as (link, _):
        shown = repr(link.service) + repr(Request(Ping(), b"", KEY)) + repr(LOGIN)
        assert "kkkk" not in shown
        assert link.service is not None
        assert repr(link.service.key.raw) not in shown
        assert isinstance(link.session.router_key, PublicKey)
