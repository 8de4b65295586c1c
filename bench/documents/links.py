"""Connections of the generator: they count what they are sent by its content."""

import asyncio
import time
from collections.abc import Callable

import picows

from bench.documents.framing import Framing, Kind, framing_of
from bench.documents.updates import Range, ranges_of
from bench.support.processes import BenchError

_FRAME_BYTES_MAX = 1 << 30
_OPEN_SECONDS_MAX = 30
_KNOWN_FRAMES_MAX = 4096
_TRY_AGAIN = "1013 "

# A frame goes to all readers of a document with the same bytes: it is read once.
_known: dict[bytes, tuple[Range, ...]] = {}


class TryAgainError(BenchError):
    """The server could not take a connection just now, and said so."""


class Link(picows.WSListener):
    """One socket to one document."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self.is_lost = False
        # What the server said when it closed.
        self.goodbye = "without a word"
        self._transport: picows.WSTransport | None = None
        self._opened = asyncio.get_running_loop().create_future()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._transport = transport
        for message in self.framing.opening:
            transport.send(picows.WSMsgType.BINARY, message)
        if not self.framing.answers_opening:
            self._opened.set_result(None)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self.is_lost = True
        if not self._opened.done():
            is_busy = self.goodbye.startswith(_TRY_AGAIN)
            error = TryAgainError if is_busy else BenchError
            self._opened.set_exception(error(f"the server closed a new connection: {self.goodbye}"))

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type != picows.WSMsgType.BINARY:
            if frame.msg_type == picows.WSMsgType.CLOSE:
                self.goodbye = f"{frame.get_close_code()} {frame.get_close_reason()}"
                transport.disconnect()
            return
        message = frame.get_payload_as_bytes()
        kind, body = self.framing.read(message)
        if kind is Kind.STATE_VECTOR:
            transport.send(picows.WSMsgType.BINARY, self.framing.empty_state)
        self.take(kind, body)
        if kind is Kind.STATE and not self._opened.done():
            self._opened.set_result(None)

    def take(self, kind: Kind, body: bytes) -> None:
        """What to do with a message; nothing, for one that only writes."""

    async def opened(self) -> None:
        """Until the server has sent the state of the document."""
        async with asyncio.timeout(_OPEN_SECONDS_MAX):
            await self._opened

    def send_update(self, update: bytes) -> None:
        self.send(self.framing.update(update))

    def send(self, message: bytes) -> None:
        assert self._transport is not None
        self._transport.send(picows.WSMsgType.BINARY, message)

    def stop_reading(self) -> None:
        assert self._transport is not None
        self._transport.underlying_transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)


class Writer(Link):
    """Sends updates and counts what the server says about them, where it says anything."""

    def __init__(self, framing: Framing) -> None:
        super().__init__(framing)
        self.status_count = 0

    def take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.STATUS and body == b"\x01":
            self.status_count += 1


class Reader(Link):
    """Counts the updates that it could apply: clocks without a gap."""

    def __init__(
        self, framing: Framing, delivered: Callable[[int, int, int], None] = lambda *_: None
    ) -> None:
        super().__init__(framing)
        self.update_count = 0
        self.frame_count = 0
        self._delivered = delivered
        self._clocks: dict[int, int] = {}
        self._early: list[Range] = []

    # As short as it can be: this runs for every frame of every reader.
    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        message = frame.get_payload_as_bytes()
        ranges = _known.get(message)
        if ranges is None:
            if frame.msg_type != picows.WSMsgType.BINARY:
                return super().on_ws_frame(transport, frame)
            kind, body = self.framing.read(message)
            if kind is not Kind.UPDATE:
                return super().on_ws_frame(transport, frame)
            ranges = ranges_of(body)
            if len(_known) >= _KNOWN_FRAMES_MAX:
                _known.clear()
            _known[message] = ranges
        self.frame_count += 1
        for each in ranges:
            self._count(each)
        return None

    def take(self, kind: Kind, body: bytes) -> None:
        if kind in (Kind.STATE, Kind.UPDATE):
            for each in ranges_of(body):
                self._count(each)

    def _count(self, found: Range) -> None:
        client, first, end = found
        known = self._clocks.get(client, 0)
        if first > known:
            # Sent out of order: of no use to a reader until what is missing has come.
            self._early.append(found)
            return
        if end <= known:
            return
        self._clocks[client] = end
        self.update_count += end - known
        self._delivered(client, known, end)
        if self._early:
            early, self._early = self._early, []
            for each in early:
                self._count(each)


class Collector(Link):
    """Keeps every update with the time at which it came."""

    def __init__(self, framing: Framing) -> None:
        super().__init__(framing)
        self.updates: list[tuple[float, bytes]] = []

    def take(self, kind: Kind, body: bytes) -> None:
        if kind in (Kind.STATE, Kind.UPDATE):
            self.updates.append((time.perf_counter(), body))


class Door:
    """Where a server is and how it speaks; opens links to its documents."""

    def __init__(self, url: str, style: str) -> None:
        self._url = url
        self._style = style

    def framing(self, document: str) -> Framing:
        return framing_of(self._style, document)

    async def open(self, document: str, link: Link) -> None:
        await picows.ws_connect(
            lambda: link,
            self._url.format(document=document),
            max_frame_size=_FRAME_BYTES_MAX,
            websocket_handshake_timeout=_OPEN_SECONDS_MAX,
        )
        await link.opened()

    async def open_reader(
        self, document: str, delivered: Callable[[int, int, int], None] = lambda *_: None
    ) -> Reader:
        reader = Reader(self.framing(document), delivered)
        await self.open(document, reader)
        return reader

    async def open_writer(self, document: str) -> Writer:
        writer = Writer(self.framing(document))
        await self.open(document, writer)
        return writer
