"""All WebSockets of a router: which face they go to, how many there may be, and how they end.

- A face is found by its path, or by what its path begins with if it ends in a slash.
- Most faces are for pages and programs that are known: by their origin, by a token. A face for all
  has its own ways to know who somebody is, and does not care which page asks.
- Connections are counted in all and per address; of IPv6 the first 64 bits are the address, since
  whoever has one of those has them all.
- What was sent in one turn of the loop is written at its end, for all connections together.
- What waits for all readers together is bounded: those are cut off that have most waiting.
- One timer watches over silence, and only while there is a connection. It turns a wheel: each
  connection stands in the slot of the moment at which something could be due for it, and is not
  looked at before. One that shows life is moved on once an interval and costs nothing else.
"""

import asyncio
import ipaddress
from collections import Counter
from dataclasses import dataclass

from syncline.server import frames
from syncline.server.all_waiting import AllWaiting
from syncline.server.faces import Accepted, Face, Rejected, Upgrade
from syncline.server.handshake import refuse_origin
from syncline.server.origins import normal_origin
from syncline.server.websocket import WebSocket, WebSocketLimits

# The wheel turns so often in an interval: a ping is late by an eighth of it at most.
_SLOTS_PER_HEARTBEAT = 8


@dataclass(frozen=True, slots=True)
class _Entrance:
    face: Face
    limits: WebSocketLimits
    is_for_all: bool


class WebSockets:
    """`is_open`: no token is asked for, whoever reaches the router may do everything."""

    def __init__(
        self, limits: WebSocketLimits, *, origins: tuple[str, ...] = ("same",), is_open: bool = True
    ) -> None:
        self._limits = limits
        self._origins = tuple(normal_origin(origin) for origin in origins)
        self._is_open = is_open
        self._entrances: dict[str, _Entrance] = {}
        self._connections: dict[WebSocket, str] = {}
        self._per_address: Counter[str] = Counter()
        self._unflushed: list[WebSocket] = []
        self._waiting = AllWaiting(limits.all_waiting_bytes_max)
        self._heartbeat: asyncio.TimerHandle | None = None
        self._slot_seconds = limits.heartbeat_seconds / _SLOTS_PER_HEARTBEAT
        self._slots: dict[int, dict[WebSocket, None]] = {}
        self._is_going_away = False
        self._all_gone = asyncio.Event()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def register(
        self,
        path: str,
        face: Face,
        *,
        limits: WebSocketLimits | None = None,
        is_for_all: bool = False,
    ) -> None:
        """A path that ends in a slash stands for everything below it; `/` only for itself.

        `limits` are those of one connection, if not the same as for others. `is_for_all`: pages of
        every origin may connect, under every name of the router.
        """
        assert path.startswith("/"), "a face has an absolute path"
        self._entrances[path] = _Entrance(face, limits or self._limits, is_for_all)

    # Coming.

    def decide(self, upgrade: Upgrade, *, only_for_all: bool = False) -> Accepted | Rejected:
        """`only_for_all`: it came where anybody may, so other faces are not there."""
        if self._is_going_away or not self._entrances:
            return Rejected(503, "the router is starting or stopping; try again in a moment")
        entrance = self._entrance(upgrade.path)
        if entrance is None or (only_for_all and not entrance.is_for_all):
            return Rejected(404, "no WebSocket is served under this path")
        if len(self._connections) >= self._limits.connection_count_max:
            return Rejected(503, "there are too many connections; try again later")
        address = address_key(upgrade.remote)
        if self._per_address[address] >= self._limits.connections_per_address_max:
            return Rejected(429, "there are too many connections from this address; close some")
        if not entrance.is_for_all:
            refused = refuse_origin(upgrade, self._origins, is_open=self._is_open)
            if refused is not None:
                return refused
        return entrance.face(upgrade)

    def open(self, transport: asyncio.Transport, upgrade: Upgrade, accepted: Accepted) -> WebSocket:
        """The connection, counted from now on; the caller answers the handshake, then starts it."""
        entrance = self._entrance(upgrade.path)
        socket = WebSocket(
            transport,
            accepted.handler,
            upgrade.remote,
            self._limits if entrance is None else entrance.limits,
            asyncio.get_running_loop(),
            flush_soon=self._flush_soon,
            on_waiting=self._waiting.saw,
            on_lost=self._forget,
        )
        address = address_key(upgrade.remote)
        self._connections[socket] = address
        self._per_address[address] += 1
        self._look_in(socket, self._limits.heartbeat_seconds)
        if self._heartbeat is None:
            self._watch_silence()
        return socket

    def _entrance(self, path: str) -> _Entrance | None:
        found = self._entrances.get(path)
        if found is not None:
            return found
        below = [
            each
            for each in self._entrances
            if each != "/" and each.endswith("/") and path.startswith(each)
        ]
        return self._entrances[max(below, key=len)] if below else None

    # Going.

    def go_away(self) -> None:
        """Say goodbye to all; nobody new is let in."""
        self._is_going_away = True
        for socket in list(self._connections):
            socket.close(frames.GOING_AWAY, "going_away: the router stops")

    def abort_all(self) -> None:
        for socket in list(self._connections):
            socket.abort()

    async def close_all(self, seconds_max: float) -> None:
        """Say goodbye to all and see them off; who is still here after that time is cut off."""
        self.go_away()
        self._all_gone.clear()
        if self._connections:
            try:
                async with asyncio.timeout(seconds_max):
                    await self._all_gone.wait()
            except TimeoutError:
                self.abort_all()

    def _forget(self, socket: WebSocket) -> None:
        address = self._connections.pop(socket)
        self._waiting.forget(socket)
        if (slot := self._slots.get(socket.slot)) is not None:
            slot.pop(socket, None)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not self._connections:
            self._all_gone.set()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
                self._heartbeat = None

    # Every turn, every interval.

    def _flush_soon(self, socket: WebSocket) -> None:
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(socket)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for socket in unflushed:
            socket.flush()

    def _look_in(self, socket: WebSocket, seconds: float) -> None:
        # At the end of a slot all that stand in it are due.
        socket.slot = int((asyncio.get_running_loop().time() + seconds) / self._slot_seconds) + 1
        self._slots.setdefault(socket.slot, {})[socket] = None

    def _watch_silence(self) -> None:
        self._heartbeat = asyncio.get_running_loop().call_later(self._slot_seconds, self._beat)

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        for slot in [each for each in self._slots if each * self._slot_seconds <= now]:
            for socket in self._slots.pop(slot):
                self._look_in(socket, socket.beat(now))
        self._watch_silence()


def address_key(remote: str) -> str:
    """What connections are counted by."""
    try:
        address = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return remote
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
