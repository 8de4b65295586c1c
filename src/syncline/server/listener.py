"""The listening socket, and HTTP connections that meet a limit in every direction.

The HTTP server below bounds bodies by flow control, but neither the head of a request nor the time
that it may take. A connection here is closed when a head grows too large or does not end in time,
and turned away when there are too many.
"""

import asyncio
import errno
import socket
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server, ServerState

from syncline.errors import ConfigError
from syncline.values.limits import KIB

HEAD_BYTES_MAX = 32 * KIB
BACKLOG = 1_024


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigError for an address that cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"http.host {host!r} is no address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _listen_error(host, port, error) from error
    listener.setblocking(False)
    return listener


def _listen_error(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is in use; choose another with --port")
    if error.errno == errno.EACCES:
        return ConfigError(f"this user may not listen on port {port}; choose one above 1023")
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; check http.host")


class BoundedConnection(HttpToolsProtocol):
    """One HTTP connection; `make_server` sets its limits."""

    head_seconds_max: float = 30.0
    connection_count_max: int = 1_024

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connection_count_max:
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
        super().data_received(data)
        if not self._is_in_body and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_deadline is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        self._is_in_body = True
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


class QuietServer(Server):
    """The HTTP server without its own handling of signals: stopping is the application's."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def make_server(
    app: Any, *, connection_count_max: int, request_seconds_max: int, stop_seconds_max: int
) -> QuietServer:
    connection = type(
        "Connection",
        (BoundedConnection,),
        {
            "head_seconds_max": float(request_seconds_max),
            "connection_count_max": connection_count_max,
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
            timeout_keep_alive=request_seconds_max,
            timeout_graceful_shutdown=stop_seconds_max,
        )
    )
