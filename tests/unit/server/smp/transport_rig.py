"""A listener on loopback with a router that only takes notes, and a client that speaks by hand."""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from syncline.certificates import Identity, SigningKey, make_identity
from syncline.errors import StorageError
from syncline.server.logs import Log, set_up
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.faces import Answer, SmpSession
from syncline.server.smp.greeting import Host
from syncline.server.smp.session import Sessions
from syncline.server.smp.tasks import Tasks
from syncline.server.smp.transport import HttpFace, SmpConnection, SmpListener
from syncline.values.limits import MIB
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import padded, shared_secret, unpadded
from syncline.wire.smp.chains import BlockChain, chain_keys
from syncline.wire.smp.hellos import (
    ALL_VERSIONS,
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceHello,
    VersionRange,
    decode_router_hello,
    encode_client_hello,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Pong, RouterMessage, decode_message
from syncline.wire.smp.signed_keys import open_signed_key, sign_key
from syncline.wire.smp.transmissions import (
    BLOCK_BYTES,
    Damaged,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
)

NOW = datetime.now(UTC)
IDENTITY = make_identity(NOW)
SERVICE_ID = b"\xee" * 24
CORR_ID = b"\x40" * 24
# Of sockets: little is under way between a router that sends and a client that does not read.
BUFFER_BYTES = 65_536
# With what asyncio takes beside it, less than this.
UNDER_WAY_BYTES_MAX = 2 * MIB
CLIENT_PRIVATE = b"\x05" * 32


@dataclass
class Face:
    """The router's side: notes what it is told, and answers PING."""

    opened_sessions: list[SmpSession] = field(default_factory=list[SmpSession])
    blocks: list[list[Transmission | Damaged]] = field(
        default_factory=list[list[Transmission | Damaged]]
    )
    drained_count: int = 0
    closed_numbers: list[int] = field(default_factory=list[int])
    admitted: list[tuple[tuple[bytes, ...], ServiceRole]] = field(
        default_factory=list[tuple[tuple[bytes, ...], ServiceRole]]
    )
    admission: bytes | str | StorageError = SERVICE_ID
    # Set for a moment whenever something was told.
    told: asyncio.Event = field(default_factory=asyncio.Event)
    # What an admission waits for.
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def admit_service(self, chain: tuple[bytes, ...], role: ServiceRole) -> Awaitable[bytes | str]:
        async def admit() -> bytes | str:
            self.admitted.append((chain, role))
            self.tell()
            await self.gate.wait()
            if isinstance(self.admission, StorageError):
                raise self.admission
            return self.admission

        return admit()

    def opened(self, session: SmpSession) -> None:
        self.opened_sessions.append(session)
        self.tell()

    def received(
        self, session: SmpSession, transmissions: Sequence[Transmission | Damaged]
    ) -> None:
        self.blocks.append(list(transmissions))
        for each in transmissions:
            if isinstance(each, Transmission) and each.body == b"PING":
                session.send([Answer(each.corr_id, b"", Pong())])
        self.tell()

    def drained(self, session: SmpSession) -> None:
        self.drained_count += 1
        self.tell()

    def closed(self, session: SmpSession) -> None:
        self.closed_numbers.append(session.number)
        self.tell()

    def tell(self) -> None:
        self.told.set()
        self.told.clear()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_true():
                await self.told.wait()


def quiet_log() -> Log:
    return set_up(is_json=True, level="critical", with_ids=False)


class Watched(SmpListener):
    """Says when connections come and go."""

    changed: Callable[[], None]

    def _take(self, accepted: socket.socket, remote: str) -> None:
        super()._take(accepted, remote)
        self.changed()

    def not_half_open(self, connection: SmpConnection) -> None:
        super().not_half_open(connection)
        self.changed()

    def forget(self, connection: SmpConnection) -> None:
        super().forget(connection)
        self.changed()


class Rig:
    """A listener, its face, and a port."""

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        identity: Identity = IDENTITY,
        versions: VersionRange = ALL_VERSIONS,
        http_face: HttpFace | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.limits = limits or TransportLimits()
        self.stats = TransportStats()
        self.face = Face()
        self.sessions = Sessions(self.face, self.limits, self.stats, loop)
        self.tasks = Tasks(quiet_log())
        host = Host(identity, self.sessions, self.tasks, lambda: NOW, secrets.token_bytes, versions)
        self.listener = Watched(host, self.limits, self.stats, loop, http_face)
        self.listener.changed = self.face.tell
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.port: int = listening.getsockname()[1]
        self.listener.start([listening])
        self.clients: list[Client] = []

    @property
    def session(self) -> SmpSession:
        """The last that was opened."""
        return self.face.opened_sessions[-1]

    async def connect(
        self,
        alpn: Sequence[str] = ("smp/1",),
        *,
        context: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> "Client":
        client = await Client.connect(self.port, context or client_context(alpn), server_name)
        self.clients.append(client)
        return client

    async def gone(self) -> None:
        """Until there is no connection."""
        await self.face.until(lambda: self.listener.connection_count == 0)

    async def open(self, version: int = 20) -> "Client":
        """A plain session."""
        count = len(self.face.opened_sessions)
        client = await self.connect()
        await client.greet(version)
        await self.face.until(lambda: len(self.face.opened_sessions) > count)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.abort()
        await self.listener.close()
        await self.tasks.close()


def client_context(alpn: Sequence[str] = ("smp/1",)) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def show(context: ssl.SSLContext, chain: Sequence[bytes], key: SigningKey, folder: Path) -> None:
    """Present this certificate when asked."""
    path = folder / "shown.pem"
    path.write_bytes(b"".join(ssl.DER_cert_to_PEM_cert(each).encode() for each in chain) + key.pem)
    context.load_cert_chain(path)


class Client:
    """Speaks TLS with the standard library and blocks by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        self.version = 0
        self.hello: RouterHello | None = None
        self.sealing: BlockChain | None = None
        self.opening: BlockChain | None = None

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext, server_name: str | None) -> "Client":
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        plain.connect(("127.0.0.1", port))
        return await cls.over(plain, context, server_name)

    @classmethod
    async def over(
        cls, plain: socket.socket, context: ssl.SSLContext, server_name: str | None = None
    ) -> "Client":
        plain.setblocking(False)
        async with asyncio.timeout(10):
            # An empty name is none: nothing is sent, and nothing checked.
            reader, writer = await asyncio.open_connection(
                sock=plain, ssl=context, server_hostname=server_name or "", limit=1 << 20
            )
        return cls(reader, writer)

    @property
    def session_id(self) -> bytes:
        found = self.tls.get_channel_binding("tls-unique")
        assert found is not None
        return found

    async def read_block(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(BLOCK_BYTES)

    async def at_end(self) -> bool:
        """Nothing more comes: the router closed without another word."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except (ConnectionError, ssl.SSLError):
                return True

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def go_on_reading(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        self.writer.transport.abort()

    # The hello.

    async def read_hello(self) -> RouterHello:
        self.hello = decode_router_hello(unpadded(await self.read_block()))
        return self.hello

    async def greet(
        self,
        version: int = 20,
        *,
        key_hash: bytes | None = None,
        has_key: bool = True,
        is_proxy: bool = False,
        service: ServiceHello | None = None,
    ) -> RouterHello:
        hello = await self.read_hello()
        self.say_hello(
            version, key_hash=key_hash, has_key=has_key, is_proxy=is_proxy, service=service
        )
        return hello

    def say_hello(
        self,
        version: int = 20,
        *,
        key_hash: bytes | None = None,
        has_key: bool = True,
        is_proxy: bool = False,
        service: ServiceHello | None = None,
    ) -> None:
        assert self.hello is not None
        public = public_key_of(KeyKind.X25519, CLIENT_PRIVATE) if has_key else None
        hello = ClientHello(version, key_hash or IDENTITY.fingerprint, public, is_proxy, service)
        self.write(padded(encode_client_hello(hello), BLOCK_BYTES))
        self.version = version
        if version >= 11 and has_key and not is_proxy and self.hello.key is not None:
            router_key = open_signed_key(self.hello.key.signed_key, IDENTITY.key.public)
            secret = shared_secret(CLIENT_PRIVATE, router_key.raw)
            keys = chain_keys(self.hello.session_id, secret)
            self.sealing = BlockChain(keys.client_to_router)
            self.opening = BlockChain(keys.router_to_client)

    # After it.

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def block(self, content: bytes) -> bytes:
        return self.sealing.seal(content) if self.sealing else padded(content, BLOCK_BYTES)

    def transmission(self, body: bytes, corr_id: bytes = CORR_ID, entity: bytes = b"") -> bytes:
        return encode_transmission(self.version, self.session_id, b"", None, corr_id, entity, body)

    def command(self, *bodies: bytes) -> bytes:
        """One block."""
        (content,) = pack(self.transmission(body) for body in bodies)
        return self.block(content)

    async def read_transmissions(self) -> list[Transmission | Damaged]:
        block = await self.read_block()
        content = self.opening.open(block) if self.opening else unpadded(block)
        return decode_block(self.version, self.session_id, content)

    async def read_messages(self) -> list[RouterMessage]:
        found: list[RouterMessage] = []
        for each in await self.read_transmissions():
            assert isinstance(each, Transmission)
            found.append(decode_message(self.version, each.body))
        return found

    async def ping(self) -> list[RouterMessage]:
        self.write(self.command(b"PING"))
        return await self.read_messages()


def service_hello(
    chain: tuple[bytes, ...],
    key: SigningKey,
    role: ServiceRole = ServiceRole.MESSAGING,
    session_key: PublicKey | None = None,
) -> ServiceHello:
    session_key = session_key or public_key_of(KeyKind.ED25519, b"\x02" * 32)
    return ServiceHello(role, CertifiedKey(chain, sign_key(session_key, key.raw, key.kind)))
