"""SMP over WebSockets, for browsers: a block is one binary message.

    GET /?challenge=…      32 random bytes of the client, base64url without padding

- A browser cannot see our certificates. So it sends a challenge, and our hello carries a proof: a
  signature over challenge and session id, by the key of the chain that the hello shows.
- The session id is that of the TLS connection if we are its other end. Behind somebody else's TLS,
  or none, it is made up: it only has to be unlike any other.
- Pages of every origin may connect. There is nothing that a browser would add by itself, such as a
  cookie: who may do what is told by keys alone.
- Anything but a block ends the session. There are no client certificates, and so no services.
"""

import asyncio
import re
from base64 import urlsafe_b64decode
from dataclasses import replace
from typing import Final

from syncline.server.faces import Accepted, Peer, Upgrade
from syncline.server.frames import NORMAL, POLICY_VIOLATED
from syncline.server.settings import Settings
from syncline.server.smp.greeting import Greeting, Host
from syncline.server.smp.handshake import LinkFacts
from syncline.server.smp.session import BlockHandler
from syncline.server.websocket import WebSocketLimits
from syncline.values.limits import KIB
from syncline.wire.smp.transmissions import BLOCK_BYTES

PATH: Final = "/"
_SESSION_ID_BYTES: Final = 32
# 32 bytes.
_CHALLENGE: Final = re.compile("[A-Za-z0-9_-]{43}=?")
# The code for a kind of message that is not taken here.
_UNSUPPORTED: Final = 1003
# Blocks that wait in a WebSocket; what waits above that is kept unpadded by the session.
_WAITING_BYTES_MAX: Final = 256 * KIB


def limits_of(settings: Settings) -> WebSocketLimits:
    """Those of any WebSocket, but for what a block needs."""
    return replace(
        settings.websocket_limits(),
        message_bytes_max=BLOCK_BYTES,
        waiting_bytes_max=_WAITING_BYTES_MAX,
        slow_seconds_max=settings.smp_slow_seconds_max,
    )


def read_challenge(text: str | None) -> bytes | None:
    """None for what is none: it is as if it were not there."""
    if text is None or _CHALLENGE.fullmatch(text) is None:
        return None
    return urlsafe_b64decode(text[:43] + "=")


class SmpFace:
    """Lets WebSockets in; `accept` is a `faces.Face`."""

    def __init__(self, host: Host, hello_seconds_max: float) -> None:
        self._host = host
        self._hello_seconds_max = hello_seconds_max

    def accept(self, upgrade: Upgrade) -> Accepted:
        session_id = upgrade.session_id or self._host.random_bytes(_SESSION_ID_BYTES)
        challenge = read_challenge(upgrade.query.get("challenge"))
        facts = LinkFacts(session_id, upgrade.remote, challenge=challenge)
        return Accepted(SmpWebSocket(facts, self._host, self._hello_seconds_max))


class SmpWebSocket:
    """One WebSocket as a link of blocks: a `faces.Handler` and a `session.BlockLink`."""

    __slots__ = ("_deadline", "_facts", "_handler", "_hello_seconds_max", "_host", "_peer")

    def __init__(self, facts: LinkFacts, host: Host, hello_seconds_max: float) -> None:
        self._facts = facts
        self._host = host
        self._hello_seconds_max = hello_seconds_max
        self._peer: Peer | None = None
        self._handler: BlockHandler | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # What the WebSocket says.

    def opened(self, peer: Peer) -> None:
        self._peer = peer
        self._deadline = asyncio.get_running_loop().call_later(self._hello_seconds_max, self._cut)
        greeting = Greeting(self, self._facts, self._host)
        self._handler = greeting
        greeting.start()

    def received(self, data: bytes, is_text: bool) -> None:
        if is_text:
            self._refuse(_UNSUPPORTED, "text: blocks are binary messages")
        elif len(data) != BLOCK_BYTES:
            self._refuse(POLICY_VIOLATED, f"block: it has {len(data)} bytes, not {BLOCK_BYTES}")
        elif self._handler is not None:
            self._handler.block_received(data)

    def drained(self) -> None:
        if self._handler is not None:
            self._handler.drained()

    def closed(self, code: int, reason: str) -> None:
        self._leave_half_open()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.ended()

    # A link.

    @property
    def is_writable(self) -> bool:
        return self._its_peer.is_writable

    def write_block(self, block: bytes) -> None:
        self._its_peer.send(block, is_text=False)

    def pause_reading(self) -> None:
        self._its_peer.pause_reading()

    def resume_reading(self) -> None:
        self._its_peer.resume_reading()

    def hand_over(self, handler: BlockHandler) -> None:
        self._handler = handler
        self._leave_half_open()

    def close(self) -> None:
        self._its_peer.close(NORMAL)

    def abort(self) -> None:
        self._its_peer.abort()

    @property
    def _its_peer(self) -> Peer:
        assert self._peer is not None, "opened first"
        return self._peer

    # Ending.

    def _refuse(self, code: int, reason: str) -> None:
        self._host.sessions.stats.damaged_count += 1
        self._its_peer.close(code, reason)

    def _cut(self) -> None:
        self._host.sessions.stats.half_open_cut_count += 1
        self._deadline = None
        self._its_peer.abort()

    def _leave_half_open(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
