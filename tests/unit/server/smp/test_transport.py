"""Connections on loopback, from the listening socket to sessions, and what peers may do wrong."""

import asyncio
import errno
import socket
import struct
from functools import partial
from pathlib import Path

import pytest

from syncline.certificates import make_service_credentials, renew_leaf
from syncline.errors import StoreFullError
from syncline.server.smp.bounds import TransportLimits
from syncline.server.smp.faces import Answer
from syncline.server.smp.tls import TlsConnection, TlsFacts
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.boxes import padded, unpadded
from syncline.wire.smp.hellos import (
    ServiceAccepted,
    ServiceAnswer,
    ServiceRefused,
    VersionRange,
    decode_service_answer,
)
from syncline.wire.smp.messages import Msg, Ok, Pong
from syncline.wire.smp.transmissions import BLOCK_BYTES, Damaged
from tests.unit.server.smp.transport_rig import (
    IDENTITY,
    NOW,
    SERVICE_ID,
    UNDER_WAY_BYTES_MAX,
    Client,
    Rig,
    client_context,
    service_hello,
    show,
)

QUEUE = b"\xaa" * 24
CREDENTIALS = make_service_credentials(NOW)
SOON = TransportLimits(hello_seconds_max=0.05)


# Hellos.


@pytest.mark.parametrize("version", range(6, 21))
async def test_every_version_is_spoken(version: int) -> None:
    async with Rig() as rig:
        client = await rig.open(version)
        assert client.hello is not None
        assert client.hello.session_id == client.session_id
        assert client.hello.versions == VersionRange(6, 20)
        assert (client.sealing is not None) == (version >= 11)
        assert rig.session.version == version
        assert rig.session.remote == "127.0.0.1"
        assert await client.ping() == [Pong()]
        assert await client.ping() == [Pong()]


async def test_a_client_without_a_protocol_is_spoken_to_in_the_oldest_version() -> None:
    async with Rig() as rig:
        client = await rig.connect(alpn=())
        hello = await client.greet(6)
        assert hello.versions == VersionRange(6, 6)
        assert hello.key is None
        assert await client.ping() == [Pong()]
        assert rig.session.router_private is None


@pytest.mark.parametrize("alpn", ["syncline/1", "http/1.1"])
async def test_other_protocols_without_a_server_name_have_the_full_range(alpn: str) -> None:
    async with Rig() as rig:
        client = await rig.connect((alpn,))
        assert (await client.greet(20)).versions == VersionRange(6, 20)
        assert await client.ping() == [Pong()]


async def test_smp_with_a_server_name_is_still_smp() -> None:
    async with Rig() as rig:
        client = await rig.connect(server_name="router.example")
        await client.greet(20)
        assert await client.ping() == [Pong()]


async def test_a_proxy_is_known_and_its_blocks_are_plain() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.greet(20, is_proxy=True)
        assert await client.ping() == [Pong()]
        assert rig.session.is_proxy


async def test_without_a_client_key_blocks_are_plain() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.greet(20, has_key=False)
        assert await client.ping() == [Pong()]


async def test_a_client_that_means_another_router_hears_nothing() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.greet(20, key_hash=b"x" * 32)
        assert await client.at_end()
        assert rig.face.opened_sessions == []
        assert rig.stats.hello_failed_count == 1


@pytest.mark.parametrize("version", [5, 21])
async def test_a_version_that_was_not_offered_ends_the_connection(version: int) -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.greet(version)
        assert await client.at_end()
        assert rig.stats.hello_failed_count == 1


async def test_what_is_no_hello_ends_the_connection() -> None:
    async with Rig() as rig:
        for block in (
            b"\xff" * BLOCK_BYTES,
            bytes(BLOCK_BYTES),
            padded(b"\x00\x14\xff", BLOCK_BYTES),
        ):
            client = await rig.connect()
            client.write(block)
            await client.read_hello()
            assert await client.at_end()
        assert rig.stats.hello_failed_count == 3


async def test_an_old_client_is_turned_away_where_old_versions_are_not_spoken() -> None:
    async with Rig(versions=VersionRange(19, 20)) as rig:
        client = await rig.connect(alpn=())
        assert await client.at_end()
        client = await rig.connect()
        assert (await client.greet(20)).versions == VersionRange(19, 20)
        assert await client.ping() == [Pong()]


async def test_no_two_connections_have_the_same_router_key() -> None:
    async with Rig() as rig:
        hellos = [await (await rig.connect()).read_hello() for _ in range(3)]
        assert len({hello.key.signed_key for hello in hellos if hello.key}) == 3


# Services.


async def connect_service(rig: Rig, folder: Path) -> Client:
    context = client_context()
    show(context, CREDENTIALS.chain, CREDENTIALS.key, folder)
    return await rig.connect(context=context)


async def read_answer(client: Client) -> ServiceAnswer:
    return decode_service_answer(unpadded(await client.read_block()))


@pytest.mark.parametrize("version", range(16, 21))
@pytest.mark.parametrize("role", ServiceRole)
async def test_a_service_is_given_its_id(tmp_path: Path, version: int, role: ServiceRole) -> None:
    async with Rig() as rig:
        client = await connect_service(rig, tmp_path)
        service = service_hello(CREDENTIALS.chain, CREDENTIALS.key, role)
        await client.greet(version, service=service)
        assert await read_answer(client) == ServiceAccepted(SERVICE_ID)
        assert await client.ping() == [Pong()]
        assert rig.face.admitted == [(CREDENTIALS.chain, role)]
        found = rig.session.service
        assert found is not None
        assert (found.service_id, found.role) == (SERVICE_ID, role)
        assert found.certificate_hash == CREDENTIALS.fingerprint


async def test_a_service_that_the_router_refuses_is_told_why(tmp_path: Path) -> None:
    async with Rig() as rig:
        rig.face.admission = "HANDSHAKE BAD_SERVICE"
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
        assert unpadded(await client.read_block()) == b"EHANDSHAKE BAD_SERVICE"
        assert await client.at_end()
        assert rig.face.opened_sessions == []
        assert rig.stats.service_refused_count == 1


async def test_a_service_for_which_there_is_no_room_hears_nothing(tmp_path: Path) -> None:
    async with Rig() as rig:
        rig.face.admission = StoreFullError("records.sqlite")
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
        # Not that it is no service here: it would believe that, and not come again.
        assert await client.at_end()
        assert rig.face.opened_sessions == []


async def test_a_service_that_shows_another_chain_than_in_tls_is_told_so(tmp_path: Path) -> None:
    other = make_service_credentials(NOW)
    async with Rig() as rig:
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(other.chain, other.key))
        assert unpadded(await client.read_block()) == b"EHANDSHAKE BAD_AUTH"
        assert await client.at_end()
        assert rig.face.admitted == []


async def test_a_service_without_a_certificate_in_tls_is_told_so() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.greet(20, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
        assert await read_answer(client) == ServiceRefused("HANDSHAKE BAD_AUTH")
        assert await client.at_end()


async def test_a_session_key_with_a_wrong_signature_is_told(tmp_path: Path) -> None:
    other = make_service_credentials(NOW)
    async with Rig() as rig:
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(CREDENTIALS.chain, other.key))
        assert await read_answer(client) == ServiceRefused("HANDSHAKE BAD_AUTH")
        assert await client.at_end()


async def test_a_certificate_without_a_service_is_a_plain_client(tmp_path: Path) -> None:
    async with Rig() as rig:
        client = await connect_service(rig, tmp_path)
        await client.greet(20)
        assert await client.ping() == [Pong()]
        assert rig.session.service is None


async def test_a_service_that_talks_before_it_is_admitted_is_heard_after(tmp_path: Path) -> None:
    async with Rig() as rig:
        rig.face.gate.clear()
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
        client.write(client.command(b"PING"))
        await rig.face.until(lambda: bool(rig.face.admitted))
        rig.face.gate.set()
        assert await read_answer(client) == ServiceAccepted(SERVICE_ID)
        assert await client.read_messages() == [Pong()]


async def test_a_service_that_leaves_before_it_is_admitted_leaves_nothing(tmp_path: Path) -> None:
    async with Rig() as rig:
        rig.face.gate.clear()
        client = await connect_service(rig, tmp_path)
        await client.greet(20, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
        await rig.face.until(lambda: bool(rig.face.admitted))
        rig.listener.abort()
        await rig.gone()
        rig.face.gate.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert rig.face.opened_sessions == []
        assert len(rig.sessions) == len(rig.tasks) == 0


# Blocks.


async def test_blocks_may_come_one_byte_at_a_time() -> None:
    async with Rig() as rig:
        client = await rig.open()
        block = client.command(b"PING")
        for at in range(len(block)):
            # Each is a record of its own.
            client.write(block[at : at + 1])
        assert await client.read_messages() == [Pong()]
        assert await client.ping() == [Pong()]
        assert rig.stats.received_block_count == 2


@pytest.mark.parametrize("cut", [1, 1_000, 16_383, 16_385, 20_000, 32_767])
async def test_blocks_may_be_cut_anywhere(cut: int) -> None:
    async with Rig() as rig:
        client = await rig.open()
        blocks = client.command(b"PING") + client.command(b"PING", b"PING")
        client.write(blocks[:cut])
        await client.writer.drain()
        client.write(blocks[cut:])
        assert await client.read_messages() == [Pong()]
        assert await client.read_messages() == [Pong(), Pong()]


async def test_a_damaged_block_ends_the_session() -> None:
    async with Rig() as rig:
        client = await rig.open()
        block = bytearray(client.command(b"PING"))
        block[5_000] ^= 1
        client.write(bytes(block))
        assert await client.at_end()
        await rig.face.until(lambda: rig.face.closed_numbers == [rig.session.number])
        assert rig.face.blocks == []


async def test_part_of_a_block_is_nothing() -> None:
    async with Rig() as rig:
        client = await rig.open()
        client.write(client.command(b"PING")[:-1])
        client.writer.close()
        await rig.face.until(lambda: rig.face.closed_numbers == [rig.session.number])
        assert rig.face.blocks == []


async def test_bad_padding_in_a_plain_session_is_told_to_the_router() -> None:
    async with Rig() as rig:
        client = await rig.open(6)
        client.write(b"\xff" * BLOCK_BYTES)
        assert await client.ping() == [Pong()]
        assert isinstance(rig.face.blocks[0][0], Damaged)


async def test_a_full_block_of_commands_is_answered() -> None:
    async with Rig() as rig:
        client = await rig.open()
        client.write(client.command(*[b"PING"] * 255))
        assert await client.read_messages() == [Pong()] * 255


async def test_events_of_one_turn_arrive_in_one_block() -> None:
    async with Rig() as rig:
        client = await rig.open()
        for _ in range(50):
            rig.session.send([Answer(b"", QUEUE, Ok())])
        assert len(await client.read_messages()) == 50


async def test_while_reading_is_paused_nothing_is_received() -> None:
    async with Rig() as rig:
        client = await rig.open()
        rig.session.pause_reading()
        client.write(client.command(b"PING"))
        rig.session.send([Answer(b"", QUEUE, Ok())])
        assert await client.read_messages() == [Ok()]
        assert rig.face.blocks == []
        rig.session.resume_reading()
        assert await client.read_messages() == [Pong()]


# Peers that do not read.


def message() -> Answer:
    return Answer(b"", QUEUE, Msg(b"m" * 24, bytes(16_000)))


async def test_a_session_that_does_not_read_is_not_read_from_until_it_does() -> None:
    async with Rig() as rig:
        client = await rig.open()
        client.stop_reading()
        # More than can be under way.
        sent_count = 2 * UNDER_WAY_BYTES_MAX // BLOCK_BYTES
        rig.session.send([message()] * sent_count)
        client.write(client.command(b"PING"))
        for _ in range(200):
            await asyncio.sleep(0)
        session = rig.sessions.get(rig.session.number)
        assert session is not None
        assert not session.is_writable
        assert UNDER_WAY_BYTES_MAX < session.waiting_bytes < sent_count * BLOCK_BYTES
        assert (rig.face.blocks, rig.face.drained_count) == ([], 0)
        client.go_on_reading()
        for _ in range(sent_count):
            assert len(await client.read_transmissions()) == 1
        assert await client.read_messages() == [Pong()]
        assert rig.face.drained_count == 1
        assert session.is_writable


async def test_a_session_that_does_not_read_for_too_long_is_cut_off() -> None:
    limits = TransportLimits(slow_seconds_max=0.05, waiting_bytes_high=100_000)
    async with Rig(limits) as rig:
        client = await rig.open()
        client.stop_reading()
        while not rig.face.closed_numbers:
            while rig.session.is_writable:
                rig.session.send([message()])
            count = rig.face.drained_count
            await rig.face.until(partial(is_drained_or_closed, rig, count))
        assert rig.stats.slow_count == 1
        assert rig.listener.connection_count == 0


def is_drained_or_closed(rig: Rig, count_before: int) -> bool:
    return rig.face.drained_count > count_before or bool(rig.face.closed_numbers)


# Half open.


async def test_a_connection_that_says_nothing_is_cut_off() -> None:
    async with Rig(SOON) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert rig.stats.half_open_cut_count == 1
        await rig.gone()


async def test_half_of_a_tls_hello_is_cut_off() -> None:
    async with Rig(SOON) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert rig.stats.half_open_cut_count == 1


async def test_a_client_that_does_not_say_its_hello_is_cut_off() -> None:
    async with Rig(SOON) as rig:
        client = await rig.connect()
        await client.read_hello()
        client.write(bytes(100))
        assert await client.at_end()
        assert rig.stats.half_open_cut_count == 1
        assert rig.face.opened_sessions == []


async def test_a_session_is_not_cut_off_by_the_time_of_the_hello() -> None:
    async with Rig(SOON) as rig:
        client = await rig.open()
        await rig.connect()
        # It came later, and its time is over.
        await rig.face.until(lambda: rig.listener.half_open_count == 0)
        assert await client.ping() == [Pong()]
        assert rig.stats.half_open_cut_count == 1


async def test_the_oldest_half_open_connection_makes_room() -> None:
    async with Rig(TransportLimits(half_open_count_max=2)) as rig:
        first = await asyncio.open_connection("127.0.0.1", rig.port)
        second = await asyncio.open_connection("127.0.0.1", rig.port)
        client = await rig.open()
        async with asyncio.timeout(10):
            assert await first[0].read() == b""
        assert rig.stats.half_open_cut_count == 1
        assert rig.listener.half_open_count == 1
        assert await client.ping() == [Pong()]
        for _, writer in (first, second):
            writer.close()


async def test_many_silent_connections_at_once_stay_within_the_bound() -> None:
    async with Rig(TransportLimits(half_open_count_max=4)) as rig:
        silent = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(20)]
        client = await rig.open()
        assert rig.listener.half_open_count <= 4
        assert rig.stats.half_open_cut_count >= 16
        assert await client.ping() == [Pong()]
        for each in silent:
            each.close()


# Numbers of connections.


async def test_too_many_connections_are_turned_away() -> None:
    async with Rig(TransportLimits(connection_count_max=2)) as rig:
        clients = [await rig.open() for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert rig.stats.refused_count == 1
        assert await clients[0].ping() == [Pong()]
        clients[1].abort()
        await rig.face.until(lambda: len(rig.face.closed_numbers) == 1)
        await rig.open()


async def test_connections_do_not_take_the_last_files(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        client = await rig.open()
        _, silent = await asyncio.open_connection("127.0.0.1", rig.port)
        await rig.face.until(lambda: rig.listener.half_open_count == 1)
        monkeypatch.setattr("syncline.server.smp.transport.is_left_to_stores", lambda _: True)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        assert rig.stats.refused_count == 1
        # Who says nothing makes room for the next; who has a session keeps it.
        assert rig.listener.half_open_count == 0
        assert await client.ping() == [Pong()]
        for each in (silent, writer):
            each.close()


async def test_too_many_connections_from_one_address_are_turned_away() -> None:
    async with Rig(TransportLimits(connections_per_address_max=1)) as rig:
        await rig.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        other = socket.create_connection(("127.0.0.1", rig.port), source_address=("127.0.0.2", 0))
        await rig.face.until(lambda: rig.listener.connection_count == 2)
        other.close()


async def test_addresses_of_connections_that_are_gone_are_forgotten() -> None:
    async with Rig() as rig:
        clients = [await rig.open() for _ in range(3)]
        addresses = rig.listener._per_address  # pyright: ignore[reportPrivateUsage]
        assert addresses == {"127.0.0.1": 3}
        for client in clients:
            client.abort()
        await rig.gone()
        assert list(addresses) == []


async def test_without_files_left_the_listener_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        left = iter([errno.ECONNABORTED, errno.EMFILE])
        accept = socket.socket.accept
        later: list[float] = []
        call_later = rig.listener.loop.call_later

        def failing(listening: socket.socket) -> tuple[socket.socket, object]:
            number = next(left, None)
            if number is not None:
                raise OSError(number, "no")
            return accept(listening)

        def at_once(seconds: float, *rest: object) -> asyncio.TimerHandle:
            if seconds == 1.0:
                later.append(seconds)
                seconds = 0
            return call_later(seconds, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(socket.socket, "accept", failing)
        monkeypatch.setattr(rig.listener.loop, "call_later", at_once)
        client = await rig.open()
        assert await client.ping() == [Pong()]
        assert later == [1.0]


# HTTP.


async def test_http_with_a_server_name_goes_to_its_own_face() -> None:
    data: list[bytes] = []
    ended = asyncio.Event()

    class Web:
        def __init__(self, connection: TlsConnection) -> None:
            self.connection = connection

        def secured(self, facts: TlsFacts) -> None:
            raise AssertionError

        def received(self, received: bytes) -> None:
            data.append(received)
            self.connection.write(b"answer")
            self.connection.close()

        def drained(self) -> None:
            raise AssertionError

        def ended(self) -> None:
            ended.set()

    def face(connection: TlsConnection, facts: TlsFacts, remote: str) -> Web:
        assert (facts.alpn, facts.server_name) == (b"http/1.1", b"router.example")
        assert remote == "127.0.0.1"
        return Web(connection)

    async with Rig(http_face=face) as rig:
        client = await rig.connect(("http/1.1",), server_name="router.example")
        client.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            assert await client.reader.read() == b"answer"
            await ended.wait()
        assert data == [b"GET / HTTP/1.1\r\n\r\n"]
        assert rig.listener.half_open_count == 0
        client.writer.close()
        await rig.gone()


async def test_http_without_a_face_ends_the_connection() -> None:
    async with Rig() as rig:
        client = await rig.connect(("http/1.1",), server_name="router.example")
        assert await client.at_end()


# Its life.


async def test_a_renewed_leaf_is_shown_from_the_next_connection_on() -> None:
    async with Rig() as rig:
        before = await rig.open()
        renewed = renew_leaf(IDENTITY, NOW)
        rig.listener.use_identity(renewed)
        after = await rig.connect()
        hello = await after.read_hello()
        assert hello.key is not None
        assert hello.key.chain == renewed.chain
        assert after.tls.getpeercert(binary_form=True) == renewed.chain[0]
        assert await before.ping() == [Pong()]


async def test_a_connection_that_came_before_a_renewal_is_true_to_its_leaf() -> None:
    async with Rig() as rig:
        plain = socket.create_connection(("127.0.0.1", rig.port))
        await rig.face.until(lambda: rig.listener.connection_count == 1)
        rig.listener.use_identity(renew_leaf(IDENTITY, NOW))
        client = await Client.over(plain, client_context())
        rig.clients.append(client)
        hello = await client.read_hello()
        assert hello.key is not None
        assert hello.key.chain == IDENTITY.chain
        assert client.tls.getpeercert(binary_form=True) == IDENTITY.chain[0]


async def test_closing_ends_sessions_in_order() -> None:
    async with Rig() as rig:
        client = await rig.open()
        silent = socket.create_connection(("127.0.0.1", rig.port))

        async def close() -> None:
            rig.session.send([Answer(b"", QUEUE, Ok())])
            await rig.listener.close()

        async def read_to_the_end() -> None:
            assert await client.read_messages() == [Ok()]
            assert await client.at_end()
            client.writer.close()

        async with asyncio.timeout(10):
            await asyncio.gather(close(), read_to_the_end())
        assert rig.face.closed_numbers == [rig.session.number]
        assert rig.listener.connection_count == rig.listener.half_open_count == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", rig.port)
        silent.close()


async def test_closing_cuts_off_who_does_not_go() -> None:
    async with Rig(TransportLimits(close_seconds_max=0.05)) as rig:
        client = await rig.open()
        client.stop_reading()
        async with asyncio.timeout(10):
            await rig.listener.close()
            await rig.gone()
        assert rig.face.closed_numbers == [rig.session.number]


async def test_a_reset_during_the_hello_leaves_nothing() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        plain: socket.socket = client.writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.abort()
        await rig.gone()
        assert rig.listener.half_open_count == 0
        assert rig.face.opened_sessions == []
        assert rig.face.closed_numbers == []
