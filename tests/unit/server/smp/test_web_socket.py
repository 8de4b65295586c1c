"""SMP over WebSockets without a socket: a peer that is moved by hand."""

import asyncio
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.server.config import load
from syncline.server.faces import Upgrade
from syncline.server.settings import Settings
from syncline.server.smp.assembly import serves_requests_over_tls
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.greeting import Host
from syncline.server.smp.session import Sessions
from syncline.server.smp.tasks import Tasks
from syncline.server.smp.web_socket import SmpFace, SmpWebSocket, limits_of, read_challenge
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.authorizations import is_signed
from syncline.wire.smp.boxes import padded, unpadded
from syncline.wire.smp.hellos import (
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceHello,
    ServiceRefused,
    decode_router_hello,
    decode_service_answer,
    encode_client_hello,
)
from syncline.wire.smp.transmissions import BLOCK_BYTES
from tests.unit.server.smp.transport_rig import IDENTITY, NOW, Face, quiet_log

CHALLENGE = bytes(range(32))
HELLO = padded(encode_client_hello(ClientHello(20, IDENTITY.fingerprint)), BLOCK_BYTES)
PING = padded(b"\x01\x00\x1f\x00\x18" + b"c" * 24 + b"\x00PING", BLOCK_BYTES)


def encoded(challenge: bytes) -> str:
    return urlsafe_b64encode(challenge).decode().rstrip("=")


@dataclass
class Peer:
    """The other end of a WebSocket."""

    handler: SmpWebSocket | None = None
    remote: str = "192.0.2.1"
    waiting_bytes: int = 0
    is_writable: bool = True
    is_reading: bool = True
    sent: list[bytes] = field(default_factory=list[bytes])
    ends: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, payload: bytes, *, is_text: bool) -> None:
        assert not is_text
        assert len(payload) == BLOCK_BYTES
        if not self.ends:
            self.sent.append(payload)

    def send_framed(self, frames: bytes) -> None:
        raise AssertionError

    def offer_framed(self, frames: bytes, *, at_once: bool = False) -> bool:
        raise AssertionError

    def keep_warm(self, frames: bytes) -> None:
        raise AssertionError

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    async def gone(self) -> None:
        async with asyncio.timeout(10):
            await self.has_ended.wait()

    def close(self, code: int, reason: str = "") -> None:
        if not self.ends:
            self.ends.append((code, reason))
            self.has_ended.set()
            assert self.handler is not None
            asyncio.get_running_loop().call_soon(self.handler.closed, code, reason)

    def abort(self) -> None:
        self.close(1006)


class Desk:
    """A face, and whom it leads to."""

    def __init__(self, hello_seconds_max: float = 60.0) -> None:
        loop = asyncio.get_running_loop()
        self.router = Face()
        self.stats = TransportStats()
        sessions = Sessions(self.router, TransportLimits(), self.stats, loop)
        self.tasks = Tasks(quiet_log())
        self.host = Host(IDENTITY, sessions, self.tasks, lambda: NOW, secrets.token_bytes)
        self.face = SmpFace(self.host, hello_seconds_max)

    def open(self, session_id: bytes | None = None, **query: str) -> tuple[SmpWebSocket, Peer]:
        upgrade = Upgrade("/", query=query, remote="192.0.2.1", session_id=session_id)
        handler = self.face.accept(upgrade).handler
        assert isinstance(handler, SmpWebSocket)
        peer = Peer(handler)
        handler.opened(peer)
        return handler, peer


def hello_of(peer: Peer) -> RouterHello:
    return decode_router_hello(unpadded(peer.sent[0]))


# --------------------------------------------------------------------------------------- challenges


@given(st.binary(min_size=32, max_size=32))
def test_a_challenge_is_read(challenge: bytes) -> None:
    assert read_challenge(encoded(challenge)) == challenge
    assert read_challenge(encoded(challenge) + "=") == challenge


@given(st.none() | st.text(max_size=60) | st.binary(max_size=60).map(encoded))
def test_whatever_else_is_none(text: str | None) -> None:
    challenge = read_challenge(text)
    assert challenge is None or len(challenge) == 32
    if text is None or len(text) not in (43, 44) or not text.isascii():
        assert challenge is None


@pytest.mark.parametrize(
    "text", ["", "A" * 42, "A" * 44, "+" * 43, "A" * 42 + "\n", " " + "A" * 43]
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert read_challenge(text) is None


# ------------------------------------------------------------------------------------------- hellos


async def test_the_hello_is_proved_to_who_asks_for_it() -> None:
    desk = Desk()
    _, peer = desk.open(challenge=encoded(CHALLENGE))
    hello = hello_of(peer)
    assert hello.proof is not None
    assert is_signed(IDENTITY.key.public, hello.proof, CHALLENGE + hello.session_id)
    _, other = desk.open()
    assert hello_of(other).proof is None
    _, third = desk.open(challenge=encoded(bytes(31)))
    assert hello_of(third).proof is None


async def test_a_session_id_is_that_of_tls_or_made_up() -> None:
    desk = Desk()
    made_up = [hello_of(desk.open()[1]).session_id for _ in range(3)]
    assert len(set(made_up)) == 3
    assert {len(each) for each in made_up} == {32}
    for session_id in (b"t" * 32, b"t" * 48):
        assert hello_of(desk.open(session_id)[1]).session_id == session_id


async def test_blocks_are_commands_after_the_hello() -> None:
    desk = Desk()
    handler, peer = desk.open()
    handler.received(HELLO, False)
    assert [session.remote for session in desk.router.opened_sessions] == ["192.0.2.1"]
    handler.received(PING, False)
    await asyncio.sleep(0)
    assert b"PONG" in peer.sent[1]
    assert peer.ends == []
    peer.close(1000)
    await asyncio.sleep(0)
    assert desk.router.closed_numbers == [1]


async def test_a_client_that_means_another_router_hears_nothing() -> None:
    desk = Desk()
    handler, peer = desk.open()
    hello = ClientHello(20, bytes(32))
    handler.received(padded(encode_client_hello(hello), BLOCK_BYTES), False)
    assert (peer.ends, len(peer.sent)) == ([(1000, "")], 1)
    await asyncio.sleep(0)
    assert desk.router.opened_sessions == []


async def test_there_are_no_services_without_a_certificate() -> None:
    desk = Desk()
    handler, peer = desk.open()
    service = ServiceHello(ServiceRole.MESSAGING, CertifiedKey(IDENTITY.chain, b"signed"))
    hello = ClientHello(20, IDENTITY.fingerprint, None, False, service)
    handler.received(padded(encode_client_hello(hello), BLOCK_BYTES), False)
    answer = decode_service_answer(unpadded(peer.sent[1]))
    assert answer == ServiceRefused("HANDSHAKE BAD_AUTH")
    assert peer.ends == [(1000, "")]


async def test_who_does_not_say_hello_in_time_is_cut_off() -> None:
    desk = Desk(0.0)
    _, peer = desk.open()
    await peer.gone()
    assert peer.ends == [(1006, "")]
    assert desk.stats.half_open_cut_count == 1


async def test_who_did_is_not() -> None:
    desk = Desk(0.01)
    handler, peer = desk.open()
    handler.received(HELLO, False)
    _, left = desk.open()
    left.close(1000)
    _, silent = desk.open()
    # Its time is over last.
    await silent.gone()
    assert peer.ends == []
    assert left.ends == [(1000, "")]
    assert desk.stats.half_open_cut_count == 1


# ------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("has_session", [False, True])
@pytest.mark.parametrize(
    ("data", "is_text", "code"),
    [
        (b"x" * BLOCK_BYTES, True, 1003),
        (b"", True, 1003),
        (b"", False, 1008),
        (bytes(BLOCK_BYTES - 1), False, 1008),
        (bytes(BLOCK_BYTES + 1), False, 1008),
    ],
)
async def test_anything_but_a_block_ends_it(
    has_session: bool, data: bytes, is_text: bool, code: int
) -> None:
    desk = Desk()
    handler, peer = desk.open()
    if has_session:
        handler.received(HELLO, False)
    handler.received(data, is_text)
    assert [end[0] for end in peer.ends] == [code]
    assert desk.stats.damaged_count == 1
    await asyncio.sleep(0)
    assert len(desk.router.closed_numbers) == has_session


async def test_nothing_comes_after_the_end() -> None:
    desk = Desk()
    handler, peer = desk.open()
    handler.received(HELLO, False)
    peer.close(1000)
    await asyncio.sleep(0)
    handler.received(PING, False)
    handler.drained()
    await asyncio.sleep(0)
    assert desk.router.blocks == []


async def test_a_session_is_as_quick_as_its_peer() -> None:
    desk = Desk()
    handler, peer = desk.open()
    handler.received(HELLO, False)
    (session,) = desk.router.opened_sessions
    peer.is_writable = False
    handler.received(PING, False)
    await asyncio.sleep(0)
    assert len(peer.sent) == 1
    peer.is_writable = True
    handler.drained()
    assert len(peer.sent) == 2
    session.pause_reading()
    assert not peer.is_reading
    session.resume_reading()
    assert peer.is_reading
    session.close("enough")
    assert peer.ends == [(1000, "")]


async def test_a_session_that_takes_nothing_is_cut_off() -> None:
    desk = Desk()
    handler, peer = desk.open()
    handler.received(HELLO, False)
    handler.abort()
    assert peer.ends == [(1006, "")]


# ------------------------------------------------------------------------------------------- limits


def test_a_block_fits_whatever_is_set_for_documents() -> None:
    settings = Settings(
        websocket_message_bytes_max=1_024,
        websocket_waiting_bytes_max=64 * 1024,
        websocket_heartbeat_seconds=7,
        smp_slow_seconds_max=11,
    )
    limits = limits_of(settings)
    assert limits.message_bytes_max == BLOCK_BYTES
    assert limits.waiting_bytes_max >= 2 * BLOCK_BYTES
    assert (limits.heartbeat_seconds, limits.slow_seconds_max) == (7, 11)


GUARDED = {
    "http.token": "a-token-that-nobody-guesses",
    "http.allow_remote": "true",
    "documents.token_key": "a key that tokens are signed with, long enough",
}


@pytest.mark.parametrize(
    ("changes", "is_served"),
    [
        ({"smp.host": "127.0.0.1"}, True),
        ({"smp.host": "0.0.0.0"}, False),
        ({"smp.host": "0.0.0.0"} | GUARDED, True),
        *(
            ({"smp.host": "0.0.0.0"} | {key: GUARDED[key] for key in GUARDED if key != left}, False)
            for left in GUARDED
        ),
        (
            {
                "smp.host": "0.0.0.0",
                "http.token_file": "/token",
                "http.allow_remote": "true",
                "documents.enabled": "false",
            },
            True,
        ),
    ],
)
def test_what_has_no_guard_of_its_own_is_not_served_to_others(
    changes: dict[str, str], is_served: bool
) -> None:
    assert serves_requests_over_tls(load(None, None, {}, changes).settings) is is_served
