"""Blocks of one size over a connection, cut from whatever pieces the network delivers."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from syncline.errors import LinkLostError

# What may wait to be written before writers have to wait.
_WRITE_BYTES_HIGH = 1 << 20


class BlockStream(asyncio.Protocol):
    """For a handshake `block` gives them one by one; from `follow` on they are handed over."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._buffer = bytearray()
        self._blocks: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None
        self._on_block: Callable[[bytes], None] | None = None
        self._on_lost: Callable[[Exception | None], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._changed = asyncio.Event()
        self._is_lost = False
        self._lost_by: Exception | None = None
        self.is_writable = True
        self.is_reading = True

    # ------------------------------------------------------------------------------- the handshake

    async def block(self) -> bytes:
        """The next block. Raises LinkLostError if the connection ends before it is whole."""
        while not self._blocks:
            if self._is_lost:
                reason = f" ({self._lost_by})" if self._lost_by else ""
                raise LinkLostError(f"the peer ended the connection during the hello{reason}")
            self._changed.clear()
            await self._changed.wait()
        return self._blocks.popleft()

    def follow(
        self,
        on_block: Callable[[bytes], None],
        on_lost: Callable[[Exception | None], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Hand over each block from now on, and say when the connection ends. What has come already
        is handed over after this turn of the loop."""
        self._on_block, self._on_lost, self._on_writable = on_block, on_lost, on_writable
        asyncio.get_running_loop().call_soon(self._hand_over)

    # --------------------------------------------------------------------------------------- using

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.write(data)

    def set_reading(self, is_reading: bool) -> None:
        if is_reading == self.is_reading or self._transport is None or self._is_lost:
            return
        self.is_reading = is_reading
        if is_reading:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._hand_over)
        else:
            self._transport.pause_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Write what waits, then end the connection; without ceremony if that takes too long."""
        if self._transport is None or self._is_lost:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_lost:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._transport.abort()

    # ------------------------------------------------------------------------------- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES_HIGH)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        size = self._block_bytes
        whole = len(self._buffer) - len(self._buffer) % size
        if whole:
            received = bytes(self._buffer[:whole])
            del self._buffer[:whole]
            self._blocks.extend(received[at : at + size] for at in range(0, whole, size))
            self._changed.set()
            self._hand_over()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost, self._lost_by = True, exc
        self._changed.set()
        self._hand_over()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._on_writable is not None:
            self._on_writable()

    def _hand_over(self) -> None:
        # `is_reading` may change with each block.
        while self._blocks and self._on_block is not None and (self.is_reading or self._is_lost):
            self._on_block(self._blocks.popleft())
        if self._is_lost and self._on_lost is not None:
            on_lost = self._on_lost
            self._on_block = self._on_lost = self._on_writable = None
            on_lost(self._lost_by)
