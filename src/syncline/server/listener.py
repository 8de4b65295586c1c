"""The listening socket, and HTTP connections that meet a limit in every direction.

The HTTP server below bounds bodies by flow control, but neither the head of a request nor the time
that it may take. A connection here is closed when a head grows too large or does not end in time,
and turned away when there are too many. A request for a WebSocket leaves HTTP here: its transport
is handed over once the handshake is answered.
"""

import asyncio
import errno
import socket
import time
from email.utils import formatdate
from typing import Any, cast

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from syncline.errors import ConfigError, LimitExceededError
from syncline.server.faces import Accepted, Rejected, Upgrade
from syncline.server.gathering import WebSockets
from syncline.server.handshake import Request, read_upgrade, rejecting_answer, switching_answer
from syncline.server.open_files import is_left_to_stores
from syncline.values.limits import KIB

HEAD_BYTES_MAX = 32 * KIB
# A colon, a blank and the end of the line.
_SEPARATOR_BYTES = 4
_HEAD_TOO_LARGE = b"431 Request Header Fields Too Large"
# What a transport says of its TLS connection, if we are the other end of that.
SESSION_ID_INFO = "syncline_session_id"
BACKLOG = 1_024


def listen(host: str, port: int, setting: str = "http.host", flag: str = "--port") -> socket.socket:
    """Raises ConfigError for an address that cannot be used, naming what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"{setting} {host!r} is no address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _listen_error(host, port, error, setting, flag) from error
    listener.setblocking(False)
    return listener


def _listen_error(host: str, port: int, error: OSError, setting: str, flag: str) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is in use; choose another with {flag}")
    if error.errno == errno.EACCES:
        return ConfigError(f"this user may not listen on port {port}; choose one above 1023")
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; check {setting}")


class _Dated:
    """The headers of every response: the date, to the second, made when a request asks for it."""

    def __init__(self) -> None:
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []

    def headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._headers = [(b"date", formatdate(second, usegmt=True).encode("ascii"))]
        return self._headers


class BoundedConnection(HttpToolsProtocol):
    """One HTTP connection; `make_server` sets its limits."""

    head_seconds_max: float = 30.0
    connection_count_max: int = 1_024
    web_sockets: WebSockets | None = None
    dated = _Dated()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._is_in_body = False
        self._head_deadline: asyncio.TimerHandle | None = None
        self._only_for_all = False

    def serve_only_what_is_for_all(self) -> None:
        """Anybody may be at the other end: no requests, and no WebSockets but those for all."""
        self._only_for_all = True
        self.app = _nothing_here

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connection_count_max or _takes_last_files(transport):
            self._refuse(b"503 Service Unavailable")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._is_in_body:
            # The tail of the chunk that ends a head may be body; the limit is generous to it.
            self._head_bytes += len(data)
        self._parse(data)
        if self.transport.get_protocol() is not self:
            return
        if not self._is_in_body and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """As the class below does it, but what follows a request for a WebSocket is not lost."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)  # pyright: ignore[reportOptionalMemberAccess]
        except httptools.HttpParserUpgrade as ended:
            if self._should_upgrade():
                self._upgrade(has_more=ended.args[0] < len(data))
            else:
                self._unsupported_upgrade_warning()
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, LimitExceededError):
                self._refuse(_HEAD_TOO_LARGE)
                return
            sentence = "Invalid HTTP request received."
            self.logger.warning(sentence)
            self.send_400_response(sentence)

    def _should_upgrade_to_ws(self) -> bool:
        return self.web_sockets is not None

    def _upgrade(self, *, has_more: bool) -> None:
        decided = self._decide(has_more=has_more)
        if isinstance(decided, Rejected):
            self.transport.write(rejecting_answer(decided))
            self.transport.close()
            return
        upgrade, accepted = decided
        assert accepted.subprotocol is None or accepted.subprotocol in upgrade.subprotocols
        assert self.web_sockets is not None
        self.connections.discard(self)
        socket = self.web_sockets.open(self.transport, upgrade, accepted)
        self.transport.set_protocol(socket)
        self.transport.write(switching_answer(upgrade, accepted.subprotocol))
        socket.start()

    def _decide(self, *, has_more: bool) -> tuple[Upgrade, Accepted] | Rejected:
        assert self.web_sockets is not None
        if has_more:
            return Rejected(400, "wait for the answer to the handshake before you send frames")
        if self._is_answering():
            return Rejected(400, "wait for the answer to the request before this one")
        remote = self.client[0] if self.client else ""
        upgrade = read_upgrade(
            Request(
                self.scope["method"],
                self.url,
                self.scope["http_version"],
                self.headers,
                remote,
                self.transport.get_extra_info(SESSION_ID_INFO),
            )
        )
        if isinstance(upgrade, Rejected):
            return upgrade
        answer = self.web_sockets.decide(upgrade, only_for_all=self._only_for_all)
        return answer if isinstance(answer, Rejected) else (upgrade, answer)

    def _is_answering(self) -> bool:
        # Without a request there is none, whatever its type says.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_deadline is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        # A head that came whole in one piece, or behind another request, was not counted before.
        head_bytes = len(self.url) + sum(
            len(name) + len(value) + _SEPARATOR_BYTES for name, value in self.headers
        )
        if head_bytes > HEAD_BYTES_MAX:
            raise LimitExceededError("the head in bytes", head_bytes, HEAD_BYTES_MAX)
        self._is_in_body = True
        self.server_state.default_headers = self.dated.headers()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._head_bytes = 0
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._head_deadline = self.loop.call_later(self.head_seconds_max, self._head_is_late)

    def _stop_expecting(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        self._head_deadline = None
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        if not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head)
            self.transport.close()


def _takes_last_files(transport: asyncio.Transport) -> bool:
    # Without a socket of its own it was accepted elsewhere, and counted there.
    its_socket = transport.get_extra_info("socket")
    return its_socket is not None and is_left_to_stores(its_socket.fileno())


async def _nothing_here(_scope: Scope, _receive: Receive, send: Send) -> None:
    head = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 404, "headers": head})
    await send({"type": "http.response.body", "body": b""})


class QuietServer(Server):
    """The HTTP server without its own handling of signals: stopping is the application's."""

    def __init__(self, config: Config) -> None:
        # Set while the class below is made, too.
        self._wants_exit = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._wants_exit.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if value:
            self._wants_exit.set()

    async def main_loop(self) -> None:
        """As below, where it looks ten times a second whether it should end: here it is told."""
        await self._wants_exit.wait()

    def connection(self) -> BoundedConnection:
        """For a transport that was accepted elsewhere: it is served, bounded and ended like those
        of the server itself."""
        made = cast(type[BoundedConnection], self.config.http_protocol_class)
        return made(self.config, self.server_state, {})

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def make_server(
    app: Any,
    *,
    connection_count_max: int,
    request_seconds_max: int,
    stop_seconds_max: int,
    web_sockets: WebSockets | None = None,
) -> QuietServer:
    connection = type(
        "Connection",
        (BoundedConnection,),
        {
            "head_seconds_max": float(request_seconds_max),
            "connection_count_max": connection_count_max,
            "web_sockets": web_sockets,
        },
    )
    return QuietServer(
        Config(
            app,
            http=connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=request_seconds_max,
            timeout_graceful_shutdown=stop_seconds_max,
        )
    )
