"""TLS 1.3 of the router: OpenSSL on a socket, in the event loop, within limits.

The standard library cannot do it: it either asks for no client certificate or refuses those that
nobody has signed. So OpenSSL is used through pyOpenSSL, and on the socket itself: buffers in memory
between the two cost half as much CPU again and three times the memory of an idle connection.

- Any client certificate is taken; what it is worth is decided later, from the whole chain.
- Nothing is resumed. The session id is the client's Finished message, and so never comes twice.
  OpenSSL up to 4.0 sends two tickets of 79 bytes all the same, which are good for nothing; their
  number cannot be set through pyOpenSSL.
- The protocol is the first of ours that the client offers; if it offers others only, TLS ends with
  an alert; if it offers none, there is none.
- A connection keeps what it is given when the socket is full, whatever that is, so its handler asks
  `is_writable` first; and for `slow_seconds_max` only, unless the peer takes something.
- The handler hears `ended` once, in a turn of its own; `gone` is told when the socket is closed.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from cryptography import x509
from OpenSSL import SSL, crypto

from syncline.certificates import Identity
from syncline.server.smp import openssl
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.values.limits import KIB

ALPN_SYNCLINE: Final = b"syncline/1"
ALPN_SMP: Final = b"smp/1"
ALPN_HTTP: Final = b"http/1.1"
ALPNS: Final = (ALPN_SYNCLINE, ALPN_SMP, ALPN_HTTP)

# The plaintext of one record; a block fills it.
RECORD_BYTES: Final = 16 * KIB
# The quickest first, where the processor helps with it; some clients have the second alone.
_SUITES: Final = b"TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"
_DISCARDED_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What TLS says about a connection."""

    session_id: bytes
    # Empty: the client offered none.
    alpn: bytes
    server_name: bytes | None
    # Of the client, leaf first; DER.
    peer_chain: tuple[bytes, ...]


class TlsHandler(Protocol):
    def secured(self, facts: TlsFacts) -> None:
        """TLS is up. Called first, once."""
        ...

    def received(self, data: bytes) -> None:
        """Up to one record."""
        ...

    def drained(self) -> None:
        """There is room again after `is_writable` was false."""
        ...

    def ended(self) -> None:
        """Nothing more comes or goes. Called last, once, whoever ended it."""
        ...


class _NothingInCommonError(SSL.Error):
    """The client offers protocols, and none of ours."""


def server_context(identity: Identity) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(_SUITES)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    leaf, *above = map(x509.load_der_x509_certificate, identity.chain)
    context.use_certificate(leaf)
    for certificate in above:
        context.add_extra_chain_cert(certificate)
    context.use_privatekey(identity.key.opened)
    context.set_verify(SSL.VERIFY_PEER, _take_any)
    context.set_alpn_select_callback(_select)
    return context


def _take_any(*_: object) -> bool:
    return True


def _select(_: SSL.Connection, offered: list[bytes]) -> bytes:
    for alpn in ALPNS:
        if alpn in offered:
            return alpn
    raise _NothingInCommonError


class _State(Enum):
    SHAKING = 1
    OPEN = 2
    # Told to end; what waits goes out first.
    ENDING = 3
    # Our side is closed; whatever still comes is thrown away until the peer closes too. Without
    # this the system would answer it with a reset, and that could overtake our last words.
    LINGERING = 4
    GONE = 5


class TlsConnection:
    """One connection; it owns the socket."""

    __slots__ = (
        "_deadline",
        "_gone",
        "_handler",
        "_has_ended",
        "_is_paused",
        "_limits",
        "_loop",
        "_outgoing",
        "_socket",
        "_state",
        "_stats",
        "_tls",
    )

    def __init__(
        self,
        accepted: socket.socket,
        context: SSL.Context,
        handler: TlsHandler,
        limits: TransportLimits,
        stats: TransportStats,
        *,
        loop: asyncio.AbstractEventLoop,
        gone: Callable[[], None],
    ) -> None:
        self._socket = accepted
        self._handler = handler
        self._limits = limits
        self._stats = stats
        self._loop = loop
        self._gone = gone
        self._state = _State.SHAKING
        self._has_ended = False
        self._is_paused = False
        # None where nothing waits, which is nearly always: an empty queue has its price too.
        self._outgoing: deque[bytes] | None = None
        # Of a peer that takes nothing, or of the end.
        self._deadline: asyncio.TimerHandle | None = None
        self._tls: SSL.Connection = openssl.Connection(context, accepted)
        self._tls.set_accept_state()
        loop.add_reader(accepted, self._readable)

    # What the handler may do.

    @property
    def is_writable(self) -> bool:
        """Nothing waits for the peer."""
        return self._outgoing is None and self._state is _State.OPEN

    def hand_over(self, handler: TlsHandler) -> None:
        """To another handler, which hears of everything but `secured`."""
        self._handler = handler

    def write(self, data: bytes) -> None:
        """Send it, or keep it until there is room. After the end it is dropped without a word."""
        if self._state is not _State.OPEN:
            return
        if self._outgoing is not None:
            self._outgoing.append(data)
            return
        rest = self._send(data)
        if rest and self._state is _State.OPEN:
            self._outgoing = deque((rest,))
            self._loop.add_writer(self._socket, self._writable)
            self._set_deadline(self._limits.slow_seconds_max, self._is_slow)

    def pause_reading(self) -> None:
        if not self._is_paused and self._state is _State.OPEN:
            self._is_paused = True
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        if self._is_paused and self._state is _State.OPEN:
            self._is_paused = False
            self._loop.add_reader(self._socket, self._readable)

    def close(self) -> None:
        """Send what waits, then end; who does not take it in time is cut off."""
        if self._state is _State.SHAKING:
            self.abort()
        elif self._state is _State.OPEN:
            self._state = _State.ENDING
            self._tell_end()
            self._set_deadline(self._limits.close_seconds_max, self.abort)
            if self._outgoing is None:
                self._linger()

    def abort(self) -> None:
        """End it at once; what waits is lost."""
        if self._state is _State.GONE:
            return
        self._state = _State.GONE
        self._outgoing = None
        self._clear_deadline()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._tell_end()
        self._loop.call_soon(self._let_go)

    def _let_go(self) -> None:
        self._gone()
        # Handler and connection know one another. What OpenSSL holds for this one is much, and
        # shall not wait for the collector of such rings.
        del self._handler, self._gone, self._tls

    # What the loop says.

    def _readable(self) -> None:
        if self._state is _State.OPEN:
            self._read()
        elif self._state is _State.SHAKING:
            self._shake()
        else:
            self._discard()

    def _read(self) -> None:
        # One record a turn: the loop comes back if there is more, and others have their turn.
        try:
            data = self._tls.recv(RECORD_BYTES)
        except SSL.WantReadError:
            return
        except SSL.WantWriteError:
            # TLS has something of its own to send before it reads on.
            self._loop.add_writer(self._socket, self._writable)
            return
        except SSL.Error as error:
            if isinstance(error, SSL.ZeroReturnError):
                # It said goodbye; so do we.
                with suppress(SSL.Error):
                    self._tls.shutdown()
            self.abort()
            return
        self._handler.received(data)

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return
        except SSL.WantWriteError:
            self._loop.add_writer(self._socket, self._writable)
            return
        except SSL.Error:
            self._stats.tls_failed_count += 1
            self._state = _State.ENDING
            self._tell_end()
            self._set_deadline(self._limits.close_seconds_max, self.abort)
            # What is left to say is the alert that OpenSSL has sent.
            self._linger()
            return
        facts = self._facts()
        self._state = _State.OPEN
        self._handler.secured(facts)

    def _facts(self) -> TlsFacts:
        session_id = self._tls.get_peer_finished()
        assert session_id, "there is one after every handshake"
        leaf = self._tls.get_peer_certificate()
        chain: list[crypto.X509] = []
        if leaf is not None:
            # On this side the chain comes without its leaf.
            chain = [leaf, *(self._tls.get_peer_cert_chain() or ())]
        return TlsFacts(
            session_id,
            self._tls.get_alpn_proto_negotiated(),
            self._tls.get_servername(),
            # As bytes, not read: OpenSSL takes certificates that others cannot even parse.
            tuple(crypto.dump_certificate(crypto.FILETYPE_ASN1, each) for each in chain),
        )

    def _writable(self) -> None:
        if self._outgoing is not None:
            self._send_waiting(self._outgoing)
            return
        self._loop.remove_writer(self._socket)
        if not self._is_paused:
            self._readable()

    def _send_waiting(self, waiting: deque[bytes]) -> None:
        has_moved = False
        while waiting:
            data = waiting.popleft()
            rest = self._send(data)
            if self._state is _State.GONE:
                return
            if rest:
                waiting.appendleft(rest)
                if (has_moved or len(rest) < len(data)) and self._state is _State.OPEN:
                    self._set_deadline(self._limits.slow_seconds_max, self._is_slow)
                return
            has_moved = True
        self._outgoing = None
        if self._state is _State.ENDING:
            self._linger()
            return
        self._loop.remove_writer(self._socket)
        self._clear_deadline()
        self._handler.drained()

    def _send(self, data: bytes) -> bytes:
        """What is left of it. OpenSSL wants to see that again, and remembers how far it is."""
        try:
            while data:
                data = data[self._tls.send(data) :]
        except (SSL.WantWriteError, SSL.WantReadError):
            pass
        except SSL.Error:
            self.abort()
        return data

    # The peer takes nothing; the end.

    def _is_slow(self) -> None:
        self._stats.slow_count += 1
        self.abort()

    def _linger(self) -> None:
        """Close our side, and wait for the other to close its own."""
        self._state = _State.LINGERING
        with suppress(SSL.Error):
            self._tls.shutdown()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()
            return
        self._loop.remove_writer(self._socket)
        self._loop.add_reader(self._socket, self._readable)

    def _discard(self) -> None:
        try:
            if self._socket.recv(_DISCARDED_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            # As good as an end.
            pass
        self.abort()

    def _tell_end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._loop.call_soon(self._handler.ended)

    def _set_deadline(self, seconds: float, late: Callable[[], None]) -> None:
        self._clear_deadline()
        self._deadline = self._loop.call_later(seconds, late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
