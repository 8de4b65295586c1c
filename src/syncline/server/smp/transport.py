"""Connections over TLS: from the listening socket to sessions, within limits.

- Connections are counted in all and per address; too many are closed as they come, also those that
  would take the last files that the process may open.
- A connection that has not said its hello in time is cut off, and so is the oldest of these if
  there are too many.
- What speaks HTTP (agreed on in TLS, with a server name) goes to another face, if there is one.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from syncline.certificates import Identity
from syncline.server.gathering import address_key
from syncline.server.open_files import is_left_to_stores
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.greeting import Greeting, Host
from syncline.server.smp.handshake import LinkFacts
from syncline.server.smp.session import BlockHandler, Sessions
from syncline.server.smp.tls import (
    ALPN_HTTP,
    ALPN_SYNCLINE,
    TlsConnection,
    TlsFacts,
    TlsHandler,
    server_context,
)
from syncline.wire.smp.transmissions import BLOCK_BYTES

# In one turn of the loop; the others wait in the system's queue.
_ACCEPT_COUNT: Final = 64
_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_OUT_OF_FILES_SECONDS: Final = 1.0

# A connection that speaks HTTP, and where it comes from, to who serves that.
HttpFace = Callable[[TlsConnection, TlsFacts, str], TlsHandler]


class SmpConnection:
    """A TLS connection as a link: cuts its bytes into blocks."""

    __slots__ = ("_deadline", "_handler", "_identity", "_listener", "_partial", "_remote", "_tls")

    def __init__(self, accepted: socket.socket, remote: str, listener: "SmpListener") -> None:
        loop, limits = listener.loop, listener.limits
        self._listener = listener
        self._identity = listener.host.identity
        self._remote = remote
        self._handler: BlockHandler | None = None
        # What has come of a block; None where that is nothing.
        self._partial: bytearray | None = None
        self._deadline: asyncio.TimerHandle | None = loop.call_later(
            limits.hello_seconds_max, self.cut
        )
        self._tls = TlsConnection(
            accepted,
            listener.context,
            self,
            limits,
            listener.stats,
            loop=loop,
            gone=self._gone,
        )

    @property
    def remote(self) -> str:
        return self._remote

    def cut(self) -> None:
        """It is still half open, and should not be."""
        self._listener.stats.half_open_cut_count += 1
        self._leave_half_open()
        self._tls.abort()

    # A link.

    @property
    def is_writable(self) -> bool:
        return self._tls.is_writable

    def write_block(self, block: bytes) -> None:
        self._tls.write(block)

    def pause_reading(self) -> None:
        self._tls.pause_reading()

    def resume_reading(self) -> None:
        self._tls.resume_reading()

    def hand_over(self, handler: BlockHandler) -> None:
        self._handler = handler
        self._leave_half_open()

    def close(self) -> None:
        self._tls.close()

    def abort(self) -> None:
        self._tls.abort()

    # What TLS says.

    def secured(self, facts: TlsFacts) -> None:
        if facts.alpn == ALPN_HTTP and facts.server_name is not None:
            self._speak_http(facts)
            return
        link_facts = LinkFacts(
            facts.session_id,
            self._remote,
            facts.peer_chain,
            has_protocol=bool(facts.alpn),
            is_syncline=facts.alpn == ALPN_SYNCLINE,
        )
        greeting = Greeting(self, link_facts, self._listener.host, self._identity)
        self._handler = greeting
        greeting.start()

    def received(self, data: bytes) -> None:
        assert self._handler is not None
        if self._partial is None:
            if len(data) == BLOCK_BYTES:
                # Nearly always: a block is what fills a record.
                self._handler.block_received(data)
                return
            self._partial = bytearray()
        self._partial += data
        if len(self._partial) < BLOCK_BYTES:
            return
        # One record completes one block at most.
        block, rest = bytes(self._partial[:BLOCK_BYTES]), self._partial[BLOCK_BYTES:]
        self._partial = rest or None
        self._handler.block_received(block)

    def drained(self) -> None:
        if self._handler is not None:
            self._handler.drained()

    def ended(self) -> None:
        self._leave_half_open()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.ended()

    def _speak_http(self, facts: TlsFacts) -> None:
        face = self._listener.http_face
        if face is None:
            self._tls.close()
            return
        self._leave_half_open()
        self._tls.hand_over(face(self._tls, facts, self._remote))

    def _leave_half_open(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._listener.not_half_open(self)

    def _gone(self) -> None:
        self._listener.forget(self)


class SmpListener:
    """Listens, within limits. `host.identity` is who it is; `use_identity` changes that."""

    def __init__(
        self,
        host: Host,
        limits: TransportLimits,
        stats: TransportStats,
        loop: asyncio.AbstractEventLoop,
        http_face: HttpFace | None = None,
    ) -> None:
        self.host = host
        self.limits = limits
        self.stats = stats
        self.loop = loop
        self.http_face = http_face
        self.context = server_context(host.identity)
        self._listening: list[socket.socket] = []
        self._connections: dict[SmpConnection, str] = {}
        # In the order in which they came.
        self._half_open: dict[SmpConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._all_gone = asyncio.Event()

    @property
    def sessions(self) -> Sessions:
        return self.host.sessions

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def half_open_count(self) -> int:
        return len(self._half_open)

    def use_identity(self, identity: Identity) -> None:
        """For connections from now on; those that there are keep theirs."""
        self.context = server_context(identity)
        self.host.identity = identity

    def start(self, listening: Sequence[socket.socket]) -> None:
        """The sockets are its own from now on, and must not block."""
        self._listening += listening
        for each in listening:
            self.loop.add_reader(each, self._accept, each)

    def stop_accepting(self) -> None:
        for each in self._listening:
            self.loop.remove_reader(each)
            each.close()
        self._listening.clear()

    async def close(self) -> None:
        """End every connection in order; each is cut off if that takes too long."""
        self.stop_accepting()
        for session in self.sessions:
            session.close("the router stops")
        for connection in list(self._connections):
            connection.close()
        self._all_gone.clear()
        if self._connections:
            await self._all_gone.wait()

    def abort(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    # Coming.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_COUNT):
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    # That connection is lost, not the socket.
                    continue
                # Asking again at once would only burn time: the queue stays full.
                self.loop.remove_reader(listening)
                self.loop.call_later(_OUT_OF_FILES_SECONDS, self._accept_again, listening)
                return
            self._take(accepted, str(address[0]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)

    def _take(self, accepted: socket.socket, remote: str) -> None:
        address = address_key(remote)
        self.stats.accepted_count += 1
        is_last_file = is_left_to_stores(accepted.fileno())
        if (
            is_last_file
            or len(self._connections) >= self.limits.connection_count_max
            or self._per_address[address] >= self.limits.connections_per_address_max
        ):
            self.stats.refused_count += 1
            accepted.close()
            if is_last_file and self._half_open:
                # The next one finds room.
                next(iter(self._half_open)).cut()
            return
        if len(self._half_open) >= self.limits.half_open_count_max:
            next(iter(self._half_open)).cut()
        self._set_options(accepted)
        connection = SmpConnection(accepted, remote, self)
        self._connections[connection] = address
        self._half_open[connection] = None
        self._per_address[address] += 1

    def _set_options(self, accepted: socket.socket) -> None:
        seconds = self.limits.keep_alive_seconds
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 4))
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)

    # Going.

    def not_half_open(self, connection: SmpConnection) -> None:
        self._half_open.pop(connection, None)

    def forget(self, connection: SmpConnection) -> None:
        address = self._connections.pop(connection)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not self._connections:
            self._all_gone.set()
