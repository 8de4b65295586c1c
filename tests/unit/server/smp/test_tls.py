"""TLS of the router against the standard library's, on loopback."""

import asyncio
import gc
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from syncline.certificates import Identity, make_identity, make_service_credentials
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.tls import TlsConnection, TlsFacts, server_context
from syncline.values.limits import MIB
from syncline.wire.smp.keys import KeyKind
from tests.unit.server.smp.transport_rig import IDENTITY, NOW, Client, client_context, show

QUICK = TransportLimits(slow_seconds_max=0.05, close_seconds_max=0.05)


class Handler:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.facts: TlsFacts | None = None
        self.data = b""
        self.drained_count = 0
        self.ended_count = 0
        self.gone_count = 0
        self.told = asyncio.Event()

    def secured(self, facts: TlsFacts) -> None:
        assert self.facts is None
        self.facts = facts
        self._tell()

    def received(self, data: bytes) -> None:
        assert not self.ended_count
        self.data += data
        self._tell()

    def drained(self) -> None:
        self.drained_count += 1
        self._tell()

    def ended(self) -> None:
        self.ended_count += 1
        self._tell()

    def gone(self) -> None:
        assert self.ended_count == 1
        self.gone_count += 1
        self._tell()

    def _tell(self) -> None:
        self.told.set()
        self.told.clear()

    def is_drained_or_gone(self, count_before: int) -> bool:
        return self.drained_count > count_before or self.gone_count > 0

    def is_secured(self) -> bool:
        return self.facts is not None

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_true():
                await self.told.wait()


class Rig:
    """Accepts one connection after the other."""

    def __init__(
        self, limits: TransportLimits | None = None, *, identity: Identity = IDENTITY
    ) -> None:
        self.limits = limits or TransportLimits()
        self.stats = TransportStats()
        self.context = server_context(identity)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.connections: list[TlsConnection] = []
        self.clients: list[Client] = []

    def accept(self) -> tuple[TlsConnection, Handler]:
        return self.take(self.listening.accept()[0])

    def take(self, accepted: socket.socket) -> tuple[TlsConnection, Handler]:
        accepted.setblocking(False)
        handler = Handler()
        connection = TlsConnection(
            accepted,
            self.context,
            handler,
            self.limits,
            self.stats,
            loop=asyncio.get_running_loop(),
            gone=handler.gone,
        )
        self.connections.append(connection)
        return connection, handler

    async def connect(
        self, context: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> tuple[Client, TlsConnection, Handler]:
        coming = asyncio.ensure_future(
            Client.connect(self.port, context or client_context(), server_name)
        )
        await asyncio.sleep(0)
        connection, handler = self.accept()
        client = await coming
        self.clients.append(client)
        await handler.until(lambda: handler.facts is not None or handler.ended_count > 0)
        return client, connection, handler

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listening.close()
        for client in self.clients:
            client.abort()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)


# What is agreed on.


async def test_the_session_id_is_what_both_sides_know() -> None:
    async with Rig() as rig:
        found: set[bytes] = set()
        for _ in range(3):
            client, _, handler = await rig.connect()
            assert handler.facts is not None
            assert handler.facts.session_id == client.session_id
            found.add(client.session_id)
        assert len(found) == 3
        assert {len(each) for each in found} == {32}


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
async def test_the_chain_is_shown_leaf_first(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    async with Rig(identity=identity) as rig:
        client, _, _ = await rig.connect()
        assert client.tls.getpeercert(binary_form=True) == identity.chain[0]
        assert client.tls.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (["smp/1"], b"smp/1"),
        (["http/1.1", "smp/1"], b"smp/1"),
        (["smp/1", "syncline/1"], b"syncline/1"),
        (["h2", "http/1.1"], b"http/1.1"),
        ([], b""),
    ],
)
async def test_the_first_protocol_of_ours_is_agreed_on(
    offered: Sequence[str], agreed: bytes
) -> None:
    async with Rig() as rig:
        client, _, handler = await rig.connect(client_context(offered))
        assert handler.facts is not None
        assert handler.facts.alpn == agreed
        assert (client.tls.selected_alpn_protocol() or "").encode() == agreed


async def test_nothing_in_common_ends_with_an_alert() -> None:
    async with Rig() as rig:
        coming = asyncio.ensure_future(Client.connect(rig.port, client_context(["h2"]), None))
        await asyncio.sleep(0)
        _, handler = rig.accept()
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            await coming
        await handler.until(lambda: handler.gone_count == 1)
        assert handler.facts is None
        assert rig.stats.tls_failed_count == 1


@pytest.mark.parametrize(("name", "noted"), [(None, None), ("router.example", b"router.example")])
async def test_a_server_name_is_noted(name: str | None, noted: bytes | None) -> None:
    async with Rig() as rig:
        _, _, handler = await rig.connect(server_name=name)
        assert handler.facts is not None
        assert handler.facts.server_name == noted


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
async def test_a_client_that_offers_one_suite_is_understood(kind: KeyKind) -> None:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_tls13_ciphersuites(b"TLS_CHACHA20_POLY1305_SHA256")
    context.set_alpn_protos([b"smp/1"])

    def shake(port: int) -> tuple[str | None, bytes | None]:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            tls = SSL.Connection(context, plain)
            tls.set_connect_state()
            tls.do_handshake()
            assert tls.recv(4) == b"word"
            return tls.get_cipher_name(), tls.get_finished()

    async with Rig(identity=make_identity(NOW, kind)) as rig:
        shaking = asyncio.ensure_future(asyncio.to_thread(shake, rig.port))
        accepted, _ = await asyncio.to_thread(rig.listening.accept)
        connection, handler = rig.take(accepted)
        await handler.until(handler.is_secured)
        connection.write(b"word")
        assert handler.facts is not None
        found = await shaking
        assert found == ("TLS_CHACHA20_POLY1305_SHA256", handler.facts.session_id)


async def test_tls_1_2_is_refused() -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Rig() as rig:
        coming = asyncio.ensure_future(Client.connect(rig.port, context, None))
        await asyncio.sleep(0)
        rig.accept()
        with pytest.raises(ssl.SSLError):
            await coming


async def test_nothing_is_resumed() -> None:
    context = client_context()

    def shake(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        plain = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(plain, session=session) as tls:
            # Whatever the router may have sent to resume by has come before this.
            assert tls.recv(4) == b"word"
            return tls.session, bool(tls.session_reused)

    async with Rig() as rig:
        sessions: list[ssl.SSLSession | None] = [None]
        for _ in range(2):
            shaking = asyncio.ensure_future(asyncio.to_thread(shake, rig.port, sessions[-1]))
            accepted, _ = await asyncio.to_thread(rig.listening.accept)
            connection, handler = rig.take(accepted)
            await handler.until(handler.is_secured)
            connection.write(b"word")
            session, is_resumed = await shaking
            assert not is_resumed
            sessions.append(session)


def test_nothing_is_kept_to_resume_by() -> None:
    assert server_context(IDENTITY).get_session_cache_mode() == SSL.SESS_CACHE_OFF


# Client certificates.


async def test_no_certificate_is_fine() -> None:
    async with Rig() as rig:
        _, _, handler = await rig.connect()
        assert handler.facts is not None
        assert handler.facts.peer_chain == ()


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
async def test_a_certificate_that_nobody_signed_is_taken(tmp_path: Path, kind: KeyKind) -> None:
    credentials = make_service_credentials(NOW, kind)
    context = client_context()
    show(context, credentials.chain, credentials.key, tmp_path)
    async with Rig() as rig:
        _, _, handler = await rig.connect(context)
        assert handler.facts is not None
        assert handler.facts.peer_chain == credentials.chain


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_a_chain_is_taken_whole_and_leaf_first(tmp_path: Path, count: int) -> None:
    identity = make_identity(NOW)
    chain = (identity.chain[0], *identity.chain[1:] * (count - 1))
    context = client_context()
    show(context, chain, identity.key, tmp_path)
    async with Rig() as rig:
        _, _, handler = await rig.connect(context)
        assert handler.facts is not None
        assert handler.facts.peer_chain == chain


async def test_a_certificate_with_a_key_that_is_not_used_here_is_taken_too(tmp_path: Path) -> None:
    key = generate_private_key(65_537, 2_048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(key, SHA256())
    )
    path = tmp_path / "rsa.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + pem)
    context = client_context()
    context.load_cert_chain(path)
    async with Rig() as rig:
        _, _, handler = await rig.connect(context)
        assert handler.facts is not None
        assert handler.facts.peer_chain == (certificate.public_bytes(Encoding.DER),)


async def test_a_certificate_that_cannot_be_read_is_taken_as_it_is(tmp_path: Path) -> None:
    credentials = make_service_credentials(NOW)
    # Of a version that X.509 does not have; OpenSSL does not mind.
    odd = credentials.chain[0].replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)
    with pytest.raises(x509.InvalidVersion):
        x509.load_der_x509_certificate(odd)
    context = client_context()
    show(context, (odd,), credentials.key, tmp_path)
    async with Rig() as rig:
        _, _, handler = await rig.connect(context)
        assert handler.facts is not None
        assert handler.facts.peer_chain == (odd,)


# Carrying.


async def test_bytes_go_both_ways() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.write(b"x" * 20_000)
        await handler.until(lambda: len(handler.data) == 20_000)
        connection.write(b"y" * 16_384)
        assert await client.read_block() == b"y" * 16_384


async def test_more_than_a_record_is_carried_whole() -> None:
    async with Rig() as rig:
        client, connection, _ = await rig.connect()
        data = b"".join(number.to_bytes(4) for number in range(2 * MIB // 4))
        connection.write(data)
        async with asyncio.timeout(10):
            assert await client.reader.readexactly(len(data)) == data


async def test_nothing_is_read_while_reading_is_paused() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        connection.pause_reading()
        connection.pause_reading()
        client.write(b"later")
        await client.writer.drain()
        connection.write(b"answer")
        assert await client.reader.readexactly(6) == b"answer"
        assert handler.data == b""
        connection.resume_reading()
        connection.resume_reading()
        await handler.until(lambda: handler.data == b"later")


def fill(connection: TlsConnection) -> int:
    """Write until the socket takes no more; how much that was."""
    count = 0
    while connection.is_writable:
        connection.write(bytes(16_384))
        count += 1
    return count


async def test_a_peer_that_takes_nothing_fills_the_socket_and_no_more() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        count = fill(connection)
        assert handler.drained_count == 0
        client.go_on_reading()
        async with asyncio.timeout(10):
            assert await client.reader.readexactly(count * 16_384) == bytes(count * 16_384)
        assert handler.drained_count == 1
        assert connection.is_writable
        # Its time to take something is over too.
        assert connection._deadline is None  # pyright: ignore[reportPrivateUsage]


async def test_what_is_written_to_a_full_connection_keeps_its_order() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        count = fill(connection)
        blocks = [bytes((number,)) * 16_384 for number in range(1, 6)]
        for block in blocks:
            connection.write(block)
        client.go_on_reading()
        async with asyncio.timeout(10):
            await client.reader.readexactly(count * 16_384)
            assert await client.reader.readexactly(5 * 16_384) == b"".join(blocks)
        await handler.until(lambda: handler.drained_count == 1)


async def test_a_slow_peer_gets_everything_in_order() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        count = fill(connection)
        # More than both systems have room for, so that it gets stuck again and again.
        for number in range(300):
            connection.write(number.to_bytes(2) * 8_192)
        client.go_on_reading()
        async with asyncio.timeout(15):
            await client.reader.readexactly(count * 16_384)
            for number in range(300):
                assert await client.read_block() == number.to_bytes(2) * 8_192
        await handler.until(lambda: handler.drained_count == 1)


class Scripted:
    """OpenSSL, but its next calls fail as they are told to."""

    def __init__(self, real: SSL.Connection, method: str, *failures: SSL.Error) -> None:
        self._real = real
        self._method = method
        self._failures = list(failures)

    def __getattr__(self, name: str) -> object:
        if name == self._method and self._failures:
            return self._fail
        return getattr(self._real, name)

    def _fail(self, *_: object) -> None:
        raise self._failures.pop(0)


def script(connection: TlsConnection, method: str, *failures: SSL.Error) -> None:
    real = connection._tls  # pyright: ignore[reportPrivateUsage]
    scripted = Scripted(real, method, *failures)
    connection._tls = scripted  # type: ignore[assignment]


async def test_a_handshake_that_finds_no_room_goes_on_when_there_is_some() -> None:
    async with Rig() as rig:
        coming = asyncio.ensure_future(Client.connect(rig.port, client_context(), None))
        await asyncio.sleep(0)
        connection, handler = rig.accept()
        script(connection, "do_handshake", SSL.WantWriteError(), SSL.WantReadError())
        rig.clients.append(await coming)
        await handler.until(handler.is_secured)


async def test_reading_that_has_to_write_first_goes_on_when_there_is_room() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        script(connection, "recv", SSL.WantWriteError(), SSL.WantReadError())
        client.write(b"data")
        await handler.until(lambda: handler.data == b"data")


async def test_reading_that_was_paused_meanwhile_does_not_go_on() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        script(connection, "recv", SSL.WantWriteError())
        connection._read()  # pyright: ignore[reportPrivateUsage]
        connection.pause_reading()
        client.write(b"data")
        connection.write(b"word")
        assert await client.reader.readexactly(4) == b"word"
        assert handler.data == b""
        connection.resume_reading()
        await handler.until(lambda: handler.data == b"data")


async def test_a_failure_while_something_waits_ends_the_connection() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        script(connection, "send", SSL.WantWriteError(), SSL.SysCallError(-1, "gone"))
        connection.write(b"word")
        connection.write(b"another")
        assert not connection.is_writable
        await handler.until(lambda: handler.gone_count == 1)
        assert await client.at_end()
        assert handler.drained_count == 0


async def test_a_peer_that_takes_nothing_for_too_long_is_cut_off() -> None:
    async with Rig(QUICK) as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        # The client's library takes some more before it stops.
        while not handler.gone_count:
            count = handler.drained_count
            fill(connection)
            await handler.until(partial(handler.is_drained_or_gone, count))
        assert rig.stats.slow_count == 1


# Ending.


async def test_the_last_words_arrive_although_the_peer_is_still_talking() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        connection.pause_reading()
        client.write(bytes(500_000))
        connection.write(b"last words")
        connection.close()
        async with asyncio.timeout(10):
            assert await client.reader.read() == b"last words"
        client.writer.close()
        await handler.until(lambda: handler.gone_count == 1)
        assert handler.data == b""


async def test_what_waits_is_sent_before_the_end() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        count = fill(connection)
        connection.close()
        connection.write(b"too late")
        assert not connection.is_writable
        await handler.until(lambda: handler.ended_count == 1)
        client.go_on_reading()
        async with asyncio.timeout(10):
            assert len(await client.reader.read()) == count * 16_384
        client.writer.close()
        await handler.until(lambda: handler.gone_count == 1)


async def test_a_peer_that_does_not_end_is_cut_off() -> None:
    async with Rig(QUICK) as rig:
        client, connection, handler = await rig.connect()
        client.stop_reading()
        fill(connection)
        connection.close()
        await handler.until(lambda: handler.gone_count == 1)
        assert rig.stats.slow_count == 0


async def test_the_peer_ends() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        client.writer.close()
        await handler.until(lambda: handler.gone_count == 1)
        connection.write(b"nobody hears this")
        connection.close()
        connection.abort()
        connection.pause_reading()
        connection.resume_reading()
        assert (handler.ended_count, handler.gone_count) == (1, 1)


async def test_the_peer_is_lost() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        plain: socket.socket = client.writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.abort()
        await handler.until(lambda: handler.gone_count == 1)
        assert not connection.is_writable


async def test_a_write_to_a_lost_peer_ends_the_connection_in_a_turn_of_its_own() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        connection.pause_reading()
        plain: socket.socket = client.writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.abort()
        await asyncio.sleep(0)
        while connection.is_writable:
            connection.write(bytes(16_384))
        assert handler.ended_count == 0
        await handler.until(lambda: handler.gone_count == 1)


async def test_an_aborted_connection_says_nothing_more() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        connection.abort()
        connection.abort()
        assert handler.ended_count == 0
        await handler.until(lambda: handler.gone_count == 1)
        assert await client.at_end()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"?" * 512]
)
async def test_what_is_no_tls_ends_the_connection(garbage: bytes) -> None:
    async with Rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        _, handler = rig.accept()
        writer.write(garbage)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        await handler.until(lambda: handler.gone_count == 1)
        assert handler.facts is None
        assert rig.stats.tls_failed_count == 1


async def test_damage_inside_tls_ends_the_connection() -> None:
    async with Rig() as rig:
        client, _, handler = await rig.connect()
        descriptor: int = client.writer.get_extra_info("socket").fileno()
        # A record that nobody with the keys has made.
        os.write(descriptor, b"\x17\x03\x03\x00\x40" + bytes(64))
        await handler.until(lambda: handler.gone_count == 1)
        assert handler.data == b""


async def test_closing_before_tls_is_up_ends_it() -> None:
    async with Rig() as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        connection, handler = rig.accept()
        connection.close()
        await handler.until(lambda: handler.gone_count == 1)
        writer.close()


async def test_a_connection_that_is_gone_leaves_nothing_behind() -> None:
    async with Rig() as rig:
        _, connection, handler = await rig.connect()
        kept = weakref.ref(connection._tls)  # pyright: ignore[reportPrivateUsage]
        rig.connections.clear()
        gc.disable()
        try:
            connection.abort()
            await handler.until(lambda: handler.gone_count == 1)
            await asyncio.sleep(0)
            assert kept() is None
        finally:
            gc.enable()


async def test_another_handler_may_take_over() -> None:
    async with Rig() as rig:
        client, connection, handler = await rig.connect()
        second = Handler()
        connection.hand_over(second)
        client.write(b"to the second")
        await second.until(lambda: second.data == b"to the second")
        connection.abort()
        await second.until(lambda: second.ended_count == 1)
        assert handler.data == b""
        assert handler.ended_count == 0
        handler.ended_count = 1
