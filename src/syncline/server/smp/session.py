"""Sessions: connections after their handshake. Blocks to transmissions, and answers to blocks.

- What is sent in one turn of the loop shares as few blocks as possible, at the end of that turn.
- Blocks are sealed as the connection takes them. Answers that wait are not padded yet, so a peer
  that reads nothing costs `waiting_bytes_max` at most; it is not read from meanwhile, and cut off
  at that. Together they may cost `all_waiting_bytes_max`: then who has most waiting is cut off.
- A block that does not open ends the session: there is no way back into step.
- The router hears `closed` once, after everything else, if and only if it heard `opened`.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from syncline.errors import MalformedMessageError
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.faces import Answer, RouterFace, SessionService
from syncline.server.smp.handshake import Agreed, LinkFacts
from syncline.wire.smp import failures
from syncline.wire.smp.boxes import SecretBox, padded, unpadded
from syncline.wire.smp.chains import BlockChain
from syncline.wire.smp.messages import Err, encode_message
from syncline.wire.smp.transmissions import (
    BLOCK_BYTES,
    TRANSMISSION_BYTES_MAX,
    Damaged,
    answer_head,
    decode_block,
    encode_answer,
    pack,
    pack_one,
)

# Why reading is held back; reasons add up.
_BY_ROUTER: Final = 1
_BY_WAITING: Final = 2

_NOTHING: Final = b""
_TOO_LARGE: Final = Err(failures.LARGE_MSG)


class BlockLink(Protocol):
    """What carries blocks: a TLS connection, a WebSocket."""

    @property
    def is_writable(self) -> bool:
        """More may be written; once it may not, `BlockHandler.drained` says when it may again."""
        ...

    def write_block(self, block: bytes) -> None: ...

    def pause_reading(self) -> None:
        """No block is handed over until `resume_reading`."""
        ...

    def resume_reading(self) -> None: ...

    def hand_over(self, handler: "BlockHandler") -> None:
        """The hello is done: from now on blocks go to `handler`."""
        ...

    def close(self) -> None:
        """Send what was written, then end."""
        ...

    def abort(self) -> None: ...


class BlockHandler(Protocol):
    """What a link tells; no method waits."""

    def block_received(self, block: bytes) -> None: ...

    def drained(self) -> None: ...

    def ended(self) -> None:
        """Called last, once, in a turn of its own."""
        ...


class Session:
    """One connection after its handshake."""

    __slots__ = (
        "_contents",
        "_contents_bytes",
        "_head",
        "_held_back",
        "_is_dirty",
        "_is_full",
        "_is_over",
        "_link",
        "_opening",
        "_pending",
        "_pending_bytes",
        "_sealing",
        "_sessions",
        "forward_box",
        "is_proxy",
        "number",
        "received_count",
        "remote",
        "router_private",
        "service",
        "session_id",
        "version",
    )

    def __init__(
        self,
        number: int,
        link: BlockLink,
        facts: LinkFacts,
        agreed: Agreed,
        router_private: bytes | None,
        service: SessionService | None,
        sessions: "Sessions",
    ) -> None:
        self.number = number
        self.received_count = 0
        self.version = agreed.version
        self.session_id = facts.session_id
        self.remote = facts.remote
        self.router_private = router_private
        self.service = service
        self.is_proxy = agreed.is_proxy
        secret = agreed.forward_secret
        self.forward_box = None if secret is None else SecretBox(secret)
        self._link = link
        self._head = answer_head(agreed.version, facts.session_id)
        self._sessions = sessions
        chains = agreed.chains
        self._sealing = BlockChain(chains.router_to_client) if chains else None
        self._opening = BlockChain(chains.client_to_router) if chains else None
        # Transmissions of this turn; contents of blocks that the link has not taken, None if none.
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._contents: deque[bytes] | None = None
        self._contents_bytes = 0
        self._held_back = 0
        self._is_dirty = False
        self._is_full = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"Session({self.number}, version={self.version})"

    # What the router may do.

    @property
    def waiting_bytes(self) -> int:
        return self._pending_bytes + self._contents_bytes

    @property
    def is_writable(self) -> bool:
        return not self._is_full and not self._is_over

    def send(self, answers: Sequence[Answer]) -> None:
        if self._is_over:
            return
        for answer in answers:
            body = encode_message(self.version, answer.message)
            transmission = encode_answer(self._head, answer.corr_id, answer.entity_id, body)
            byte_count = len(transmission)
            if byte_count > TRANSMISSION_BYTES_MAX:
                # No answer is that large by itself, but its ids may be: they are the peer's.
                body = encode_message(self.version, _TOO_LARGE)
                transmission = encode_answer(self._head, answer.corr_id, answer.entity_id, body)
                byte_count = len(transmission)
            self._pending.append(transmission)
            self._pending_bytes += byte_count
        if not self._is_dirty:
            self._is_dirty = True
            self._sessions.flush_soon(self)
        waiting_bytes = self._pending_bytes + self._contents_bytes
        if waiting_bytes >= self._sessions.limits.waiting_bytes_high:
            self._fall_behind(waiting_bytes)

    def _fall_behind(self, waiting_bytes: int) -> None:
        """The peer takes less than it asks for."""
        if not self._is_full:
            self._is_full = True
            self._hold_back(_BY_WAITING)
        if waiting_bytes > self._sessions.limits.waiting_bytes_max:
            self.cut_off()

    def cut_off(self) -> None:
        """It does not take what it has asked for."""
        self._sessions.stats.slow_count += 1
        self._end()
        self._link.abort()

    def pause_reading(self) -> None:
        self._hold_back(_BY_ROUTER)

    def resume_reading(self) -> None:
        self._let_go_on(_BY_ROUTER)

    def close(self, reason: str) -> None:
        """`reason` is for whoever reads the code: peers are not told, and logs know no sessions."""
        if self._is_over:
            return
        # What finds no room now has no time left to find some.
        self._pack()
        self._write_blocks()
        self._end()
        self._link.close()

    # What the link says.

    def block_received(self, block: bytes) -> None:
        if self._is_over:
            return
        stats = self._sessions.stats
        stats.received_block_count += 1
        self.received_count += 1
        try:
            content = self._opening.open(block) if self._opening else unpadded(block)
        except MalformedMessageError:
            stats.damaged_count += 1
            if self._opening:
                self.close("a block does not open")
            else:
                self._sessions.face.received(self, [Damaged(_NOTHING, failures.BLOCK)])
            return
        transmissions = decode_block(self.version, self.session_id, content)
        self._sessions.face.received(self, transmissions)

    def drained(self) -> None:
        if not self._is_over:
            self._write()

    def ended(self) -> None:
        self._end()
        self._sessions.forget(self)

    # Writing.

    def flush(self) -> None:
        """What was sent in this turn goes out."""
        self._is_dirty = False
        pending = self._pending
        if len(pending) == 1 and self._contents is None and self._link.is_writable:
            # Nearly always (bench: queues).
            self._pending = []
            self._pending_bytes = 0
            self._write_block(pack_one(pending[0]))
            if self._is_full:
                self._write()
        elif pending:
            self._pack()
            self._write()
            self._sessions.bound_waiting()

    def _pack(self) -> None:
        contents = pack(self._pending)
        self._pending = []
        self._pending_bytes = 0
        self._count_contents(sum(map(len, contents)))
        if self._contents is None:
            self._contents = deque(contents)
        else:
            self._contents += contents

    def _write(self) -> None:
        self._write_blocks()
        if self._is_full and self.waiting_bytes <= self._sessions.limits.waiting_bytes_low:
            self._is_full = False
            self._let_go_on(_BY_WAITING)
            self._sessions.face.drained(self)

    def _write_blocks(self) -> None:
        contents, link = self._contents, self._link
        while contents and link.is_writable:
            content = contents.popleft()
            self._count_contents(-len(content))
            self._write_block(content)
        if not contents:
            self._contents = None

    def _count_contents(self, byte_count: int) -> None:
        self._contents_bytes += byte_count
        self._sessions.stats.waiting_bytes += byte_count

    def _write_block(self, content: bytes) -> None:
        sealing = self._sealing
        self._link.write_block(sealing.seal(content) if sealing else padded(content, BLOCK_BYTES))
        self._sessions.stats.sent_block_count += 1

    def _end(self) -> None:
        self._is_over = True
        self._pending = []
        self._pending_bytes = 0
        self._contents = None
        self._count_contents(-self._contents_bytes)

    def _hold_back(self, reason: int) -> None:
        if not self._held_back:
            self._link.pause_reading()
        self._held_back |= reason

    def _let_go_on(self, reason: int) -> None:
        if self._held_back == reason:
            self._link.resume_reading()
        self._held_back &= ~reason


class Sessions:
    """All sessions of a router, whatever carries them."""

    def __init__(
        self,
        face: RouterFace,
        limits: TransportLimits,
        stats: TransportStats,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.face = face
        self.limits = limits
        self.stats = stats
        self._loop = loop
        self._by_number: dict[int, Session] = {}
        self._last_number = 0
        self._unflushed: list[Session] = []

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_number.values()))

    def get(self, number: int) -> Session | None:
        return self._by_number.get(number)

    def open(
        self,
        link: BlockLink,
        facts: LinkFacts,
        agreed: Agreed,
        router_private: bytes | None,
        service: SessionService | None,
    ) -> Session:
        self._last_number += 1
        number = self._last_number
        session = Session(number, link, facts, agreed, router_private, service, self)
        self._by_number[number] = session
        self.stats.session_count += 1
        link.hand_over(session)
        self.face.opened(session)
        return session

    def forget(self, session: Session) -> None:
        del self._by_number[session.number]
        self.face.closed(session)

    def bound_waiting(self) -> None:
        """Cut off who has most waiting until what is left of all of them is not too much."""
        if self.stats.waiting_bytes <= self.limits.all_waiting_bytes_max:
            return
        by_waiting = sorted(self._by_number.values(), key=lambda session: session.waiting_bytes)
        while self.stats.waiting_bytes > self.limits.all_waiting_bytes_max:
            by_waiting.pop().cut_off()

    def flush_soon(self, session: Session) -> None:
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(session)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for session in unflushed:
            session.flush()
