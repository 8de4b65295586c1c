"""A WebSocket without a socket: a transport and a loop that are moved by hand."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from websockets.utils import apply_mask

from syncline.server.faces import Peer
from syncline.server.websocket import WebSocket, WebSocketLimits

MASK = b"\x37\xfa\x21\x3d"


def masked(payload: bytes, first: int = 0x82, mask: bytes = MASK) -> bytes:
    """A frame as a client sends it; `first` is FIN, reserved bits and opcode."""
    length = len(payload)
    if length < 126:
        head = bytes((first, 0x80 | length))
    elif length < 1 << 16:
        head = bytes((first, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + length.to_bytes(8, "big")
    return head + mask + apply_mask(payload, mask)


def masked_close(code: int, reason: bytes = b"") -> bytes:
    return masked(code.to_bytes(2, "big") + reason, 0x88)


class HandLoop:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[float, int, HandTimer]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> "HandTimer":
        return self.call_later(0, callback, *arguments)

    def call_later(
        self, delay: float, callback: Callable[..., object], *arguments: object
    ) -> "HandTimer":
        timer = HandTimer(callback, arguments)
        self._count += 1
        self._due.append((self.now + delay, self._count, timer))
        return timer

    def pass_time(self, seconds: float = 0.0) -> None:
        """Run what falls due, in order, including what that makes due."""
        end = self.now + seconds
        for _ in range(100_000):
            ready = [each for each in self._due if each[0] <= end]
            if not ready:
                self.now = end
                return
            first = min(ready, key=lambda each: each[:2])
            self._due.remove(first)
            self.now = max(self.now, first[0])
            first[2].run()
        raise AssertionError("the loop never came to rest")

    def turn(self) -> None:
        """One turn: what is ready now, and not what that makes ready."""
        ready = [each for each in self._due if each[0] <= self.now]
        for each in ready:
            self._due.remove(each)
        for each in sorted(ready, key=lambda one: one[:2]):
            each[2].run()


class HandTimer:
    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._callback = callback
        self._arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self) -> None:
        if not self.is_cancelled:
            self._callback(*self._arguments)


class HandTransport:
    """Takes `room` bytes at once, as a kernel does, and keeps the rest until `take`."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.protocol: WebSocket
        self.room = room
        self.writes: list[bytes] = []
        self.kept = 0
        self.is_reading = True
        self.is_over = False
        self.has_ended_writing = False
        self.was_aborted = False
        self._high = self._low = 0
        self._is_full = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def write(self, data: bytes) -> None:
        if self.is_over:
            return
        assert not self.has_ended_writing
        self.writes.append(data)
        self.kept += len(data)
        self._move(min(self.kept, self.room))
        if self.kept > self._high and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def take(self, size: int) -> None:
        """The other side reads that much."""
        self.room += size
        self._move(min(self.kept, self.room))
        if self._is_full and self.kept <= self._low:
            self._is_full = False
            self.protocol.resume_writing()

    def _move(self, size: int) -> None:
        self.kept -= size
        self.room -= size

    def get_write_buffer_size(self) -> int:
        return self.kept

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended_writing = True

    def pause_reading(self) -> None:
        assert not self.is_over
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_over
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self.was_aborted = True
        self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.protocol.connection_lost(None)


class RecordingHandler:
    def __init__(self) -> None:
        self.peer: Peer
        self.messages: list[tuple[bytes, bool]] = []
        self.drained_count = 0
        self.ends: list[tuple[int, str]] = []
        self.on_message: Callable[[bytes], object] = lambda _data: None
        self.on_end: Callable[[], object] = lambda: None

    def opened(self, peer: Peer) -> None:
        self.peer = peer

    def received(self, data: bytes, is_text: bool) -> None:
        assert not self.ends, "received after the end"
        self.messages.append((data, is_text))
        self.on_message(data)

    def drained(self) -> None:
        self.drained_count += 1

    def closed(self, code: int, reason: str) -> None:
        self.ends.append((code, reason))
        self.on_end()


class SocketRig:
    def __init__(self, room: int = 1 << 30, **limits: Any) -> None:
        self.loop = HandLoop()
        self.transport = HandTransport(room)
        self.handler = RecordingHandler()
        self.limits = WebSocketLimits(**limits)
        self.lost: list[WebSocket] = []
        self.waiting: list[int] = []
        self.on_waiting: Callable[[], object] = lambda: None
        self.socket = WebSocket(
            cast(asyncio.Transport, self.transport),
            self.handler,
            "192.0.2.7",
            self.limits,
            cast(asyncio.AbstractEventLoop, self.loop),
            flush_soon=lambda socket: self.loop.call_soon(socket.flush),
            on_waiting=self._note_waiting,
            on_lost=self.lost.append,
        )
        self.transport.protocol = self.socket
        self.socket.start()

    def _note_waiting(self, _socket: WebSocket, waiting_bytes: int) -> None:
        self.waiting.append(waiting_bytes)
        self.on_waiting()

    def receive(self, data: bytes) -> None:
        assert self.transport.is_reading, "nobody reads"
        self.socket.data_received(data)

    @property
    def sent(self) -> bytes:
        return b"".join(self.transport.writes)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for payload, _ in self.handler.messages]
