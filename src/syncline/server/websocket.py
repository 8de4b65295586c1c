"""One WebSocket: bytes of a transport to messages of a handler, and back, within limits.

- What is sent in one turn of the loop goes out in one write; unless there is going to be nothing
  else, then it goes at once.
- Reading is held back by the handler, by the rate of the connection, and between portions of a
  large read, so that one sender does not keep the others waiting; what has been read meanwhile is
  less than one read of the transport.
- A reader that takes nothing costs `waiting_bytes_max`, and for `slow_seconds_max` only: from half
  of that on it is sent nothing more, the rest is for the last message and for what the heap keeps
  around it. One that asks on and on without reading is cut off when as much again waits for it. All
  of them together cost `all_waiting_bytes_max`.
- The handler hears `closed` once, as soon as the connection carries no more messages; ending the
  transport may take until `close_seconds_max`, then it is cut off.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from syncline.server.allowance import Allowance
from syncline.server.faces import Handler
from syncline.server.frames import (
    BINARY,
    CLOSE,
    LOST,
    PING,
    POLICY_VIOLATED,
    TEXT,
    FrameReader,
    Incoming,
    close_frame,
    frame,
    ping_frame,
    pong_frame,
    read_close,
)
from syncline.values.limits import MIB

# Messages that one connection hands over before others have their turn.
PORTION_COUNT = 256

# Clients of y-websocket give up after 30 s without a message: this and a look that comes late.
WARM_SECONDS = 25.0
# One that is kept warm this way is pinged, and given up, after so many intervals instead of one.
WARM_PATIENCE = 6

# Why reading is held back; reasons add up.
_BY_HANDLER = 1
_BY_RATE = 2
_BY_TURN = 4


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Every bound of a WebSocket and of all of them together."""

    message_bytes_max: int = 1 * MIB
    connection_count_max: int = 4_096
    connections_per_address_max: int = 1_024
    heartbeat_seconds: float = 20.0
    waiting_bytes_max: int = 4 * MIB
    all_waiting_bytes_max: int = 512 * MIB
    slow_seconds_max: float = 10.0
    close_seconds_max: float = 5.0
    messages_per_second: int = 5_000
    bytes_per_second: int = 16 * MIB


class WebSocket(asyncio.Protocol):
    """A connection after its handshake; a `Peer` to its handler."""

    __slots__ = (
        "_allowance",
        "_close_deadline",
        "_enough_bytes",
        "_handler",
        "_has_ended",
        "_heard_at",
        "_held",
        "_held_back",
        "_is_awaited",
        "_is_full",
        "_is_lost",
        "_is_pinged",
        "_limits",
        "_loop",
        "_on_lost",
        "_on_waiting",
        "_outgoing",
        "_outgoing_bytes",
        "_overrun_bytes",
        "_reader",
        "_remote",
        "_slow_deadline",
        "_soon",
        "_told_at",
        "_transport",
        "_warm_frames",
        "_written_bytes",
        "slot",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        handler: Handler,
        remote: str,
        limits: WebSocketLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        flush_soon: Callable[["WebSocket"], object],
        on_waiting: Callable[["WebSocket", int], object],
        on_lost: Callable[["WebSocket"], object],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._handler = handler
        self._remote = remote
        self._limits = limits
        self._soon = flush_soon
        self._on_waiting = on_waiting
        self._on_lost = on_lost
        # No more messages; then, no more transport.
        self._has_ended = False
        self._is_lost = False

        self._heard_at = self._told_at = self._loop.time()
        self._is_pinged = False
        self._warm_frames = b""
        # Where its turn to be looked at is kept; whoever keeps it sets it.
        self.slot = 0
        self._reader = FrameReader(limits.message_bytes_max)
        self._allowance = Allowance(
            limits.messages_per_second, limits.bytes_per_second, self._heard_at
        )
        self._held_back = 0
        self._held: list[Incoming] = []

        self._enough_bytes = limits.waiting_bytes_max // 2
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._written_bytes = 0
        self._is_full = False
        # Somebody was told to wait by us, while the transport was not full.
        self._is_awaited = False
        self._overrun_bytes = 0
        self._slow_deadline: asyncio.TimerHandle | None = None
        self._close_deadline: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=self._enough_bytes, low=self._enough_bytes // 2)

    # What the handler may do.

    @property
    def remote(self) -> str:
        return self._remote

    @property
    def waiting_bytes(self) -> int:
        if self._is_lost:
            return 0
        return self._outgoing_bytes + self._transport.get_write_buffer_size()

    @property
    def is_writable(self) -> bool:
        if self._has_ended or self._is_full:
            return False
        if self.waiting_bytes <= self._enough_bytes:
            return True
        self._is_awaited = True
        return False

    def send(self, payload: bytes, *, is_text: bool) -> None:
        self.send_framed(frame(payload, is_text=is_text))

    def offer_framed(self, frames: bytes, *, at_once: bool = False) -> bool:
        if self._has_ended or self._is_full:
            return False
        if not self._outgoing:
            # Whatever the transport holds is below the limit, or it would be full.
            if at_once:
                self._write(frames, len(frames))
                return True
            self._soon(self)
        elif self.waiting_bytes > self._enough_bytes:
            self._is_awaited = True
            return False
        self._outgoing.append(frames)
        self._outgoing_bytes += len(frames)
        return True

    def send_framed(self, frames: bytes) -> None:
        if self._has_ended:
            return
        if self._is_full or self._outgoing_bytes > self._enough_bytes:
            self._overrun_bytes += len(frames)
            if self._overrun_bytes > self._limits.waiting_bytes_max:
                self._cut_off_slow()
                return
        if not self._outgoing:
            self._soon(self)
        self._outgoing.append(frames)
        self._outgoing_bytes += len(frames)

    def keep_warm(self, frames: bytes) -> None:
        self._warm_frames = frames

    def pause_reading(self) -> None:
        self._hold_back(_BY_HANDLER)

    def resume_reading(self) -> None:
        if not self._held_back & _BY_HANDLER:
            return
        # Not from within the call of a handler: it goes on in the next turn.
        self._wait_for_turn()
        self._held_back &= ~_BY_HANDLER

    def close(self, code: int, reason: str = "") -> None:
        if not self._has_ended:
            self._say_goodbye(code, reason)
            if self._transport.can_write_eof() and not self._transport.is_closing():
                # The other side sees the end at once and need not wait for ours; what it still
                # sends is read and dropped, since a reset could overtake the close frame.
                self._transport.write_eof()

    def abort(self) -> None:
        if not self._has_ended:
            self._end_messages(LOST, "")
        if not self._is_lost:
            self._transport.abort()

    # What the transport tells.

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        now = self._loop.time()
        self._heard_at = now
        self._is_pinged = False
        reader = self._reader
        frame_count = reader.frame_count
        incoming = reader.feed(data)
        wait_seconds = self._allowance.spend(reader.frame_count - frame_count, len(data), now)
        if wait_seconds > 0:
            self._hold_back(_BY_RATE)
            self._loop.call_later(wait_seconds, self._go_on, _BY_RATE)
        if self._held:
            # A transport may have had more in its hands when it was told to pause.
            self._held += incoming
        else:
            self._deliver(incoming)

    def eof_received(self) -> None:
        """The other side has ended; the transport closes by itself."""

    def pause_writing(self) -> None:
        self._is_full = True
        self._watch_progress()

    def resume_writing(self) -> None:
        self._is_full = False
        self._overrun_bytes = 0
        if self._slow_deadline is not None:
            self._slow_deadline.cancel()
            self._slow_deadline = None
        if not self._has_ended:
            self._handler.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_ended:
            self._end_messages(LOST, "")
        self._is_lost = True
        for deadline in (self._slow_deadline, self._close_deadline):
            if deadline is not None:
                deadline.cancel()
        self._slow_deadline = self._close_deadline = None
        self._on_lost(self)

    # What all of them together do.

    def start(self) -> None:
        """Tell the handler; what it sends at once goes out behind the handshake."""
        self._handler.opened(self)

    def flush(self) -> None:
        """Write what was sent in this turn."""
        outgoing = self._outgoing
        if not outgoing:
            return
        size = self._outgoing_bytes
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        self._outgoing_bytes = 0
        is_awaited, self._is_awaited = self._is_awaited, False
        self._write(data, size)
        if (is_awaited or size > self._enough_bytes) and not self._is_full:
            # The other side took enough of it, so nobody else will say that there is room.
            self._overrun_bytes = 0
            self._loop.call_soon(self._tell_drained)

    def beat(self, now: float) -> float:
        """Ping who was silent for one interval, give up who was for two; keep others warm.

        Returns in how many seconds to look again: nothing can be due before then.
        """
        interval = self._limits.heartbeat_seconds
        if self._has_ended:
            return interval
        if self._held_back:
            # We do not listen, so there is nothing to hear.
            self._heard_at = now
        patience = interval * WARM_PATIENCE if self._warm_frames else interval
        silent_seconds = now - self._heard_at
        if silent_seconds >= 2 * patience:
            self.close(POLICY_VIOLATED, f"slow: nothing was heard for {silent_seconds:.0f} s")
            return interval
        next_seconds = 2 * patience - silent_seconds
        due = b""
        if self._warm_frames:
            quiet_seconds = now - self._told_at
            if quiet_seconds >= WARM_SECONDS and self.is_writable:
                due, quiet_seconds = self._warm_frames, 0.0
            next_seconds = min(next_seconds, max(0.0, WARM_SECONDS - quiet_seconds))
        if silent_seconds < patience:
            next_seconds = min(next_seconds, patience - silent_seconds)
        elif not self._is_pinged:
            self._is_pinged = True
            due += ping_frame()
        if due and not self.offer_framed(due, at_once=True):
            self.send_framed(due)
        return next_seconds

    # Reading.

    def _deliver(self, incoming: list[Incoming]) -> None:
        for index, (opcode, payload) in enumerate(incoming):
            if index == PORTION_COUNT:
                self._wait_for_turn()
            if self._held_back:
                self._held = incoming[index:]
                return
            if opcode <= BINARY:
                self._handler.received(payload, opcode == TEXT)
            else:
                self._take_control(opcode, payload)
            if self._has_ended:
                return
        violation = self._reader.violation
        if violation is not None:
            self.close(violation.code, violation.reason)

    def _take_control(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            code, reason = read_close(payload)
            self._say_goodbye(code, reason or "", is_answer=True)
            self._transport.close()
        elif opcode == PING and self.is_writable:
            # Pongs for somebody who does not read them would only pile up.
            self.send_framed(pong_frame(payload))

    def _hold_back(self, reason: int) -> None:
        if self._is_open():
            if not self._held_back:
                self._transport.pause_reading()
            self._held_back |= reason

    def _wait_for_turn(self) -> None:
        if not self._held_back & _BY_TURN:
            self._hold_back(_BY_TURN)
            self._loop.call_soon(self._go_on, _BY_TURN)

    def _go_on(self, reason: int) -> None:
        self._held_back &= ~reason
        if self._held_back or not self._is_open():
            return
        held, self._held = self._held, []
        self._deliver(held)
        # Also at its end, to see the other side end.
        if not self._held_back and not self._transport.is_closing():
            self._heard_at = self._loop.time()
            self._transport.resume_reading()

    def _is_open(self) -> bool:
        """The transport may have failed already and only not have said so yet."""
        return not self._has_ended and not self._transport.is_closing()

    # Writing.

    def _write(self, data: bytes, size: int) -> None:
        self._written_bytes += size
        self._told_at = self._loop.time()
        self._transport.write(data)
        if waiting_bytes := self._transport.get_write_buffer_size():
            self._on_waiting(self, waiting_bytes)

    def _tell_drained(self) -> None:
        if self.is_writable:
            self._handler.drained()

    def _watch_progress(self) -> None:
        taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
        self._slow_deadline = self._loop.call_later(
            self._limits.slow_seconds_max, self._check_progress, taken_bytes
        )

    def _check_progress(self, taken_bytes_before: int) -> None:
        self._slow_deadline = None
        if self._has_ended:
            return
        if self._written_bytes - self._transport.get_write_buffer_size() > taken_bytes_before:
            self._watch_progress()
        else:
            self._cut_off_slow()

    def _cut_off_slow(self) -> None:
        self.close(POLICY_VIOLATED, f"slow: {self.waiting_bytes} bytes were not read")

    # Ending.

    def _say_goodbye(self, code: int, reason: str, *, is_answer: bool = False) -> None:
        """Write what waits and the close frame behind it, and give the transport a deadline."""
        # The answer repeats the code; the reason is known where it came from.
        last = close_frame(code, "" if is_answer else reason)
        self._outgoing.append(last)
        self._outgoing_bytes += len(last)
        self.flush()
        if self._has_ended:
            # Those last bytes were too many for all together, and this one was cut off for it.
            return
        self._end_messages(code, reason)
        self._close_deadline = self._loop.call_later(
            self._limits.close_seconds_max, self._transport.abort
        )
        if self._held_back and not self._transport.is_closing():
            # To see the other side end, and so that nothing unread resets the connection.
            self._transport.resume_reading()

    def _end_messages(self, code: int, reason: str) -> None:
        self._has_ended = True
        self._held = []
        self._outgoing = []
        self._outgoing_bytes = 0
        self._reader = FrameReader(0)
        self._loop.call_soon(self._handler.closed, code, reason)
