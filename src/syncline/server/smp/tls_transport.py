"""A TLS connection as asyncio knows transports: what speaks HTTP on the port of SMP is served by
the same protocols as on a port of its own.

- `write` never waits: what the connection does not take is kept here, and the protocol is told when
  that is too much, as with any transport. Who takes nothing is cut off by the connection.
- At most one record is in the hands of the connection at a time, so what waits is known.
- `write_eof` ends both directions: once we have said our last, TLS waits for the other side to end
  and drops what it still sends. That is all that is wanted of it here.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from syncline.server.listener import SESSION_ID_INFO
from syncline.server.smp.tls import RECORD_BYTES, TlsConnection, TlsFacts
from syncline.values.limits import KIB

_WAITING_BYTES_HIGH: Final = 64 * KIB


class TlsTransport(asyncio.Transport):
    """Both what a protocol writes to and what the connection tells (`tls.TlsHandler`)."""

    def __init__(
        self,
        connection: TlsConnection,
        facts: TlsFacts,
        remote: str,
        protocol: asyncio.Protocol,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            {
                "peername": (remote, 0),
                # That it is there is all that anybody looks at.
                "sslcontext": True,
                SESSION_ID_INFO: facts.session_id,
            }
        )
        self._connection = connection
        self._protocol: asyncio.BaseProtocol = protocol
        self._loop = loop
        self._is_started = False
        # Closing: nothing more is written or read, but what waits still goes out.
        self._is_closing = False
        # Views: a record is cut from the front without moving the rest.
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        # In the hands of the connection.
        self._under_way_bytes = 0
        self._is_full = False
        self._high = _WAITING_BYTES_HIGH
        self._low = _WAITING_BYTES_HIGH // 4
        # Not at once: whoever makes it still has to hand the connection over.
        loop.call_soon(self._start)

    # What the connection tells.

    def secured(self, facts: TlsFacts) -> None:
        raise AssertionError("a connection that was not secured speaks no protocol")

    def received(self, data: bytes) -> None:
        self._start()
        if not self._is_closing and isinstance(self._protocol, asyncio.Protocol):
            self._protocol.data_received(data)

    def drained(self) -> None:
        self._under_way_bytes = 0
        self._pass_on()
        if self._is_full and self.get_write_buffer_size() <= self._low:
            self._is_full = False
            self._protocol.resume_writing()

    def ended(self) -> None:
        self._start()
        self._is_closing = True
        self._waiting.clear()
        self._waiting_bytes = self._under_way_bytes = 0
        self._protocol.connection_lost(None)

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._protocol.connection_made(self)

    # Reading.

    def is_reading(self) -> bool:
        return not self._is_closing

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    # Writing.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _WAITING_BYTES_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._under_way_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        # The caller may use its buffer again.
        self._waiting.append(memoryview(bytes(data)))
        self._waiting_bytes += len(data)
        self._pass_on()
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def _pass_on(self) -> None:
        """As much as the connection takes, a record at a time."""
        waiting, connection = self._waiting, self._connection
        while waiting and connection.is_writable:
            record = self._next_record()
            self._waiting_bytes -= len(record)
            connection.write(record)
            if not connection.is_writable:
                self._under_way_bytes = len(record)
        if self._is_closing and not waiting:
            connection.close()

    def _next_record(self) -> bytes:
        data = self._waiting.popleft()
        if len(data) > RECORD_BYTES:
            self._waiting.appendleft(data[RECORD_BYTES:])
        return bytes(data[:RECORD_BYTES])

    # Ending.

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._pass_on()

    def abort(self) -> None:
        self._is_closing = True
        self._connection.abort()

    # Whose it is.

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


def http_face(
    make_protocol: Callable[[], asyncio.Protocol], loop: asyncio.AbstractEventLoop
) -> Callable[[TlsConnection, TlsFacts, str], TlsTransport]:
    """For `transport.SmpListener`: what speaks HTTP gets a protocol of its own."""

    def serve(connection: TlsConnection, facts: TlsFacts, remote: str) -> TlsTransport:
        return TlsTransport(connection, facts, remote, make_protocol(), loop)

    return serve
