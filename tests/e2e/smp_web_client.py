"""A client of SMP over WebSockets, as a browser's would be: it sees no certificate but the hello's,
and believes that for its proof."""

import asyncio
import secrets
import ssl
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from syncline.certificates import check_chain, identity_of_chain, key_of_certificate
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_session import SmpSession
from syncline.wire.smp.authorizations import is_signed
from syncline.wire.smp.boxes import padded, shared_secret, unpadded
from syncline.wire.smp.chains import chain_keys
from syncline.wire.smp.commands import Command
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.hellos import (
    ClientHello,
    RouterHello,
    decode_router_hello,
    encode_client_hello,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Err, RouterMessage, decode_message
from syncline.wire.smp.signed_keys import open_signed_key
from syncline.wire.smp.transmissions import BLOCK_BYTES, Transmission, decode_block, pack

WAIT_SECONDS = 20


def encoded(challenge: bytes) -> str:
    return urlsafe_b64encode(challenge).decode().rstrip("=")


def trusting_context() -> ssl.SSLContext:
    """Takes any certificate: who the router is, its hello tells."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def is_proved(hello: RouterHello, challenge: bytes) -> bool:
    """Whoever sent the hello holds the key of the chain in it, and means this connection."""
    assert hello.key is not None
    leaf = key_of_certificate(hello.key.chain[0])
    return is_signed(leaf, hello.proof or b"", challenge + hello.session_id)


class WebClient:
    """One connection. As much of `SmpLink` as `queues` needs."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.hello: RouterHello
        self.session: SmpSession
        self.events: asyncio.Queue[tuple[bytes, RouterMessage]] = asyncio.Queue()

    @property
    def version(self) -> int:
        return self.session.version

    async def block(self) -> bytes:
        async with asyncio.timeout(WAIT_SECONDS):
            message = await self.socket.recv()
        assert isinstance(message, bytes)
        assert len(message) == BLOCK_BYTES
        return message

    async def read_hello(self) -> RouterHello:
        self.hello = decode_router_hello(unpadded(await self.block()))
        return self.hello

    async def greet(self, fingerprint: bytes, version: int = 20) -> None:
        hello = self.hello
        assert hello.key is not None
        check_chain(hello.key.chain, datetime.now(UTC), count_min=2)
        assert identity_of_chain(hello.key.chain) == fingerprint
        router_key = open_signed_key(hello.key.signed_key, key_of_certificate(hello.key.chain[0]))
        own = PrivateKey.new(KeyKind.X25519, secrets.token_bytes)
        ours = ClientHello(version, fingerprint, own.public)
        await self.socket.send(padded(encode_client_hello(ours), BLOCK_BYTES))
        secret = shared_secret(own.raw, router_key.raw)
        chains = chain_keys(hello.session_id, secret) if version >= 11 else None
        self.session = SmpSession(version, hello.session_id, router_key, secret, chains, None)

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        corr_id = corr_id or secrets.token_bytes(24)
        (content,) = pack([self.session.transmission(corr_id, entity_id, command, key)])
        await self.socket.send(self.session.seal(content))
        while True:
            found = await self._read()
            for each in found:
                if each.corr_id == corr_id:
                    message = decode_message(self.version, each.body)
                    if isinstance(message, Err):
                        raise FailureError(message.failure)
                    return message

    async def event(self) -> tuple[bytes, RouterMessage]:
        while self.events.empty():
            await self._read()
        return self.events.get_nowait()

    async def _read(self) -> list[Transmission]:
        content = self.session.open(await self.block())
        answers: list[Transmission] = []
        for each in decode_block(self.version, self.session.session_id, content):
            assert isinstance(each, Transmission)
            if each.corr_id:
                answers.append(each)
            else:
                message = decode_message(self.version, each.body)
                self.events.put_nowait((each.entity_id, message))
        return answers


@asynccontextmanager
async def web_client(
    url: str, challenge: str | None = None, **more: Any
) -> AsyncIterator[WebClient]:
    """Connected, before any hello. `challenge` as it stands in the address."""
    if url.startswith("wss"):
        more = {"ssl": trusting_context(), "server_hostname": "localhost"} | more
    query = "" if challenge is None else f"/?challenge={challenge}"
    async with connect(url + query, max_size=BLOCK_BYTES, proxy=None, **more) as socket:
        yield WebClient(socket)
