"""An SMP router on loopback that does as the test says, block by block.

It shows a certificate and speaks TLS with the standard library, which cannot ask a client for a
certificate that nobody vouches for: services are believed here on their hello alone.
"""

import asyncio
import os
import ssl
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from syncline.certificates import Identity, make_identity
from syncline.links.private_keys import PrivateKey
from syncline.wire.smp import versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import padded, shared_secret, unpadded
from syncline.wire.smp.chains import BlockChain, chain_keys
from syncline.wire.smp.commands import Command, decode_command
from syncline.wire.smp.hellos import (
    ALL_VERSIONS,
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceAccepted,
    ServiceAnswer,
    VersionRange,
    decode_client_hello,
    encode_router_hello,
    encode_service_answer,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import RouterMessage, encode_message
from syncline.wire.smp.signed_keys import sign_key
from syncline.wire.smp.transmissions import (
    BLOCK_BYTES,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
)

WAIT_S = 10.0
SERVICE_ID = b"S" * 24


@cache
def identity() -> Identity:
    return make_identity(datetime.now(UTC))


@dataclass(slots=True)
class Script:
    """How the router behaves, beyond the ordinary."""

    identity: Identity = field(default_factory=identity)
    # What is shown in the hello, if another chain than that of TLS.
    shown: Identity | None = None
    versions: VersionRange = ALL_VERSIONS
    alpn: tuple[str, ...] = ("smp/1",)
    change_hello: Callable[[RouterHello], RouterHello] = lambda hello: hello
    service_answer: ServiceAnswer = field(default_factory=lambda: ServiceAccepted(SERVICE_ID))
    # Ends the connection in place of a hello.
    is_silent: bool = False


class Peer:
    """One connection, as the router sees it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script
    ) -> None:
        self._reader, self._writer, self._script = reader, writer, script
        connection = writer.get_extra_info("ssl_object")
        assert isinstance(connection, ssl.SSLObject)
        session_id = connection.get_channel_binding("tls-unique")
        assert session_id is not None
        self.session_id = session_id
        self._alpn = connection.selected_alpn_protocol()
        self.key = PrivateKey(KeyKind.X25519, os.urandom(32))
        self.hello: ClientHello | None = None
        self._opening: BlockChain | None = None
        self._sealing: BlockChain | None = None
        self._commands: list[tuple[Transmission, Command]] = []
        # How many transmissions each block had.
        self.block_counts: list[int] = []
        # What is written, in place of writing it.
        self.held: list[bytes] | None = None

    @property
    def version(self) -> int:
        assert self.hello is not None
        is_extended = self._alpn == "syncline/1" and not self.hello.is_proxy
        return versions.session_version(self.hello.version, is_syncline=is_extended)

    async def shake_hands(self) -> None:
        script = self._script
        shown = script.shown or script.identity
        signed = sign_key(self.key.public, shown.key.raw, shown.key.kind)
        hello = RouterHello(script.versions, self.session_id, CertifiedKey(shown.chain, signed))
        if script.is_silent:
            self._writer.close()
            return
        await self.write_plain(encode_router_hello(script.change_hello(hello)))
        self.hello = decode_client_hello(unpadded(await self._block()))
        if self.hello.service is not None:
            await self.write_plain(encode_service_answer(script.service_answer))
        key = self.hello.client_key
        if key and self.version >= versions.BLOCK_ENCRYPTION and not self.hello.is_proxy:
            keys = chain_keys(self.session_id, shared_secret(self.key.raw, key.raw))
            self._opening = BlockChain(keys.client_to_router)
            self._sealing = BlockChain(keys.router_to_client)

    async def receive(self) -> tuple[Transmission, Command]:
        """The next command, in the order in which they came."""
        while not self._commands:
            block = await self._block()
            content = self._opening.open(block) if self._opening else unpadded(block)
            found = decode_block(self.version, self.session_id, content)
            self.block_counts.append(len(found))
            for each in found:
                assert isinstance(each, Transmission), each
                self._commands.append((each, decode_command(self.version, each.body)))
        return self._commands.pop(0)

    async def answer(self, message: RouterMessage) -> Command:
        """Take the next command and answer it."""
        transmission, command = await self.receive()
        await self.send((transmission.corr_id, transmission.entity_id, message))
        return command

    async def send(self, *answers: tuple[bytes, bytes, RouterMessage]) -> None:
        """Correlation id, entity id, message."""
        transmissions = [
            encode_transmission(
                self.version,
                self.session_id,
                b"",
                None,
                corr_id,
                entity_id,
                encode_message(self.version, message),
            )
            for corr_id, entity_id, message in answers
        ]
        for content in pack(transmissions):
            await self.write_content(content)

    async def tell(self, entity_id: bytes, *messages: RouterMessage) -> None:
        """Events."""
        await self.send(*((b"", entity_id, message) for message in messages))

    async def write_content(self, content: bytes) -> None:
        block = self._sealing.seal(content) if self._sealing else padded(content, BLOCK_BYTES)
        await self.write_raw(block)

    async def write_plain(self, content: bytes) -> None:
        await self.write_raw(padded(content, BLOCK_BYTES))

    async def write_raw(self, data: bytes) -> None:
        if self.held is not None:
            self.held.append(data)
            return
        self._writer.write(data)
        async with asyncio.timeout(WAIT_S):
            await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()

    async def ended(self) -> bytes:
        """What still comes, up to the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read()

    async def _block(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readexactly(BLOCK_BYTES)


class ScriptedSmpRouter:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()

    @property
    def address(self) -> RouterAddress:
        return RouterAddress(self.script.identity.fingerprint, ("127.0.0.1",), self.port)

    async def accepted(self) -> Peer:
        async with asyncio.timeout(WAIT_S):
            return await self.peers.get()


def server_context(script: Script) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    if script.alpn:
        context.set_alpn_protocols(list(script.alpn))
    with tempfile.NamedTemporaryFile() as file:
        file.write(script.identity.pem + script.identity.key.pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context


@asynccontextmanager
async def listening(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None,
) -> AsyncGenerator[int]:
    """A port on loopback, and the end of every connection to it."""
    writers: list[asyncio.StreamWriter] = []

    async def handle_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await handle(reader, writer)

    server = await asyncio.start_server(handle_one, "127.0.0.1", 0, ssl=context, limit=1 << 20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        # The transports are told in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)


@asynccontextmanager
async def scripted_smp_router(script: Script | None = None) -> AsyncGenerator[ScriptedSmpRouter]:
    router = ScriptedSmpRouter(replace(script) if script else Script())

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, router.script)
        try:
            await peer.shake_hands()
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client went away: that is what the test is about.
            writer.close()
        router.peers.put_nowait(peer)

    async with listening(handle, server_context(router.script)) as router.port:
        yield router
