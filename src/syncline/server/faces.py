"""What a face of the router (`/sync`, `/yjs/…`, `/cable`) and a WebSocket know of each other.

A face looks at an upgrade request and accepts it with a handler, or says no. The handler is told
what comes in and writes through its peer. Everything happens on the event loop; no method waits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request for a WebSocket. Whatever may carry a token is not shown when it is printed."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    # Names in lower case; several lines of one name are joined with commas.
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    subprotocols: tuple[str, ...] = field(default=(), repr=False)
    remote: str = ""
    origin: str | None = None
    # Of the TLS connection that carries it, if we are its other end.
    session_id: bytes | None = None


class Peer(Protocol):
    """The other end of a WebSocket, as a handler sees it."""

    @property
    def remote(self) -> str:
        """The address it comes from, without a port."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes sent to it that its machine has not taken yet."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether more may be sent now; once it is not, `drained` tells when it is again.

        That is at half of the limit, so that one more message fits. A handler that goes on
        regardless has its connection closed as slow once a whole limit's worth is beyond that.
        """
        ...

    def send(self, payload: bytes, *, is_text: bool) -> None:
        """Send a message. After the end of the connection it is dropped without a word."""
        ...

    def send_framed(self, frames: bytes) -> None:
        """Send what `frames.frame` has made, one or several, once for all of its readers."""
        ...

    def offer_framed(self, frames: bytes, *, at_once: bool = False) -> bool:
        """The same if it is writable; whether it is. One call for each delivery.

        `at_once`: nothing else is likely to be sent in this turn of the loop that it could share a
        write with.
        """
        ...

    def keep_warm(self, frames: bytes) -> None:
        """Send `frames` whenever nothing else went out for a while; empty: no longer.

        For protocols whose clients want to hear something. Silence on their side then asks for a
        ping much more rarely.
        """
        ...

    def pause_reading(self) -> None:
        """Nothing is received until `resume_reading`, and the sender is slowed down."""
        ...

    def resume_reading(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None:
        """Send what waits, then say goodbye; who does not take it in time is cut off."""
        ...

    def abort(self) -> None:
        """End the connection at once; what waits is lost."""
        ...


class Handler(Protocol):
    """One connection's side of a face."""

    def opened(self, peer: Peer) -> None:
        """Called first, once."""
        ...

    def received(self, data: bytes, is_text: bool) -> None:
        """A whole message; text is valid UTF-8."""
        ...

    def drained(self) -> None:
        """There is room again after `is_writable` was false."""
        ...

    def closed(self, code: int, reason: str) -> None:
        """Called last, once, in a turn of its own, whoever ended the connection.

        The code is what the close frame said that was sent or received first: 1005 if it had none,
        1006 if there was no close frame.
        """
        ...


@dataclass(frozen=True, slots=True)
class Accepted:
    handler: Handler
    # One of those that were offered, or none. It may carry a token.
    subprotocol: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Answered as plain HTTP."""

    status: int
    sentence: str


Face = Callable[[Upgrade], Accepted | Rejected]
