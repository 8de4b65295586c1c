"""One WebSocket connection of a client, from the attempt to its end."""

import asyncio
import logging
import time
from dataclasses import dataclass
from ssl import SSLContext
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from syncline.client import messages, tokens
from syncline.client.closing import code_of_close
from syncline.client.engine import Engine
from syncline.client.messages import Identity
from syncline.client.tokens import TokenSource
from syncline.core.replicas import Link
from syncline.errors import ConfigError, ProtocolError
from syncline.values import limits
from syncline.wire.sync import SUBPROTOCOLS
from syncline.wire.sync_bodies import Encoding

log = logging.getLogger("syncline.client")
# The library writes whole frames at the level of debugging, and `hello` has a token in it.
_frames_log = logging.getLogger("syncline.client.websocket")
_frames_log.setLevel(logging.INFO)

# Frames that came and were not looked at; then the router is slowed down.
FRAME_COUNT_MAX = 64
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How to connect."""

    url: str
    encoding: Encoding = "json"
    ssl: SSLContext | None = None
    proxy: str | None = None
    # Until the router has welcomed us.
    open_timeout_s: float = 10.0
    close_timeout_s: float = 2.0
    ping_interval_s: float = 20.0


def sync_url(url: str) -> str:
    """The address of `/sync` for the address of a router. Raises ConfigError."""
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ConfigError(
            f"{url!r} is no address of a router; write it like http://127.0.0.1:8080 "
            "or wss://example.com/sync"
        )
    path = parts.path if parts.path.strip("/") else "/sync"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


class LinkRunner:
    """Makes an attempt when the core wants one, and tells it how that went."""

    def __init__(
        self, engine: Engine, settings: LinkSettings, identity: Identity, token: TokenSource
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._identity = identity
        self._token = token
        self._socket: ClientConnection | None = None
        self._end: tuple[str, str] = ("", "")
        # We closed it ourselves: the core knows.
        self._is_left = False

    async def attempt(self) -> None:
        """Connect and stay until the connection ends; then the core knows."""
        self._end = ("", "")
        self._is_left = False
        try:
            async with asyncio.timeout(self._settings.open_timeout_s):
                token = await self._current_token()
                socket = await self._open()
        except (OSError, TimeoutError, WebSocketException, _TokenError) as error:
            log.info("no connection to the router: %s", error)
            self._lost()
            return
        if self._engine.machine.link is not Link.DIALING:
            # It went offline meanwhile.
            await self._close(socket)
            return
        self._socket = socket
        self._engine.cut = self._cut
        try:
            await self._stay(socket, token)
        finally:
            self._engine.cut = None
            self._socket = None
            self._engine.outbox.clear()
        self._lost()

    def _lost(self) -> None:
        engine = self._engine
        if not self._is_left and engine.machine.link is not Link.OFFLINE:
            engine.take(engine.machine.lost(engine.now_ms(), *self._end))

    async def leave(self) -> None:
        """Write what waits, then close. Bounded in time."""
        if (socket := self._socket) is not None:
            self._is_left = True
            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await self._engine.outbox.until_empty()
            except TimeoutError:
                pass
            await self._close(socket)

    async def _close(self, socket: ClientConnection) -> None:
        """In order, if the other side reads what waits for it; else without it."""
        try:
            async with asyncio.timeout(self._settings.close_timeout_s):
                await socket.close()
        except TimeoutError:
            socket.transport.abort()

    async def renew(self, token: str) -> None:
        """Show the router a fresh token, now and at each later hello."""
        self._identity = Identity(self._identity.client, self._identity.policy, token)
        if not callable(self._token):
            self._token = token
        if self._socket is not None:
            await self._write(self._socket, messages.encode_token(token, self._engine.encoding))

    async def _current_token(self) -> str | None:
        try:
            token = await tokens.current(self._token)
        except Exception as error:
            # The application's code. Whatever went wrong there, there is no token: try again later.
            raise _TokenError(f"no token: {type(error).__name__}") from error
        self._identity = Identity(self._identity.client, self._identity.policy, token)
        return token

    async def _open(self) -> ClientConnection:
        wanted = self._settings.encoding
        [name] = [name for name, known in SUBPROTOCOLS.items() if known == wanted]
        socket = await open_websocket(
            self._settings.url,
            subprotocols=[Subprotocol(name)],
            # Mutations are small, and compressed frames cost memory on both sides.
            compression=None,
            ssl=self._settings.ssl,
            proxy=self._settings.proxy,
            open_timeout=None,  # bounded above
            close_timeout=self._settings.close_timeout_s,
            ping_interval=self._settings.ping_interval_s,
            ping_timeout=self._settings.ping_interval_s,
            max_size=limits.state_frame_bytes_max,
            max_queue=FRAME_COUNT_MAX,
            logger=_frames_log,
        )
        # A router that picks none speaks JSON.
        self._engine.encoding = wanted if socket.subprotocol == name else "json"
        return socket

    async def _stay(self, socket: ClientConnection, token: str | None) -> None:
        self._engine.take(self._engine.machine.connected())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._keep_writing(socket)),
                    group.create_task(self._keep_token_fresh(token)),
                ]
                try:
                    await self._keep_reading(socket)
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self._close(socket)

    async def _keep_reading(self, socket: ClientConnection) -> None:
        try:
            async with asyncio.timeout(self._settings.open_timeout_s):
                self._engine.receive(await socket.recv(decode=False))
            while True:
                self._engine.receive(await socket.recv(decode=False))
        except TimeoutError:
            self._end = ("", "the router did not welcome us in time")
        except ProtocolError as error:
            self._end = ("malformed", str(error))
        except ConnectionClosed:
            if self._end == ("", ""):
                self._end = code_of_close(socket.close_code, socket.close_reason or "")

    async def _keep_writing(self, socket: ClientConnection) -> None:
        while True:
            send = await self._engine.outbox.take()
            frame = messages.encode(send, self._identity, self._engine.encoding)
            await self._write(socket, frame)
            self._engine.outbox.written()

    async def _write(self, socket: ClientConnection, frame: bytes) -> None:
        try:
            await socket.send(frame, text=self._engine.encoding == "json")
        except ConnectionClosed:
            log.debug("a message was not sent: the connection has ended")

    async def _keep_token_fresh(self, token: str | None) -> None:
        while (seconds := tokens.renewal_seconds(token, time.time())) is not None:
            await asyncio.sleep(seconds)
            if not callable(self._token):
                return
            try:
                token = await self._current_token()
            except _TokenError as error:
                log.warning("%s; it is asked for again until the old one expires", error)
                continue
            if token is not None:
                await self.renew(token)

    def _cut(self, code: str, message: str) -> None:
        if self._socket is not None:
            self._end = (code, message)
            self._socket.transport.abort()


class _TokenError(Exception):
    """The application had no token."""
