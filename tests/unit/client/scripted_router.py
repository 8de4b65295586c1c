"""A router on loopback that does as the test says, message by message."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

WAIT_S = 10.0


class Peer:
    """One connection, as the router sees it."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket
        self.subprotocol = socket.subprotocol

    async def send(self, **message: Any) -> None:
        await self._socket.send(json.dumps(message))

    async def send_raw(self, frame: str | bytes) -> None:
        await self._socket.send(frame)

    async def receive_raw(self) -> str | bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._socket.recv()

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next message, which must be of this type. Acknowledgements may come at any time."""
        while True:
            message: dict[str, Any] = json.loads(await self.receive_raw())
            if message["type"] == kind:
                return message
            assert message["type"] == "ack", message

    async def close(self, code: int = 1001, reason: str = "going_away: the router stops") -> None:
        await self._socket.close(code, reason)

    def stop_reading(self) -> None:
        self._socket.transport.pause_reading()

    def cut(self) -> None:
        self._socket.transport.abort()

    async def ended(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._socket.wait_closed()

    # What most tests begin with.

    async def welcome(self, **fields: Any) -> dict[str, Any]:
        hello = await self.expect("hello")
        welcome = {"session": "s", "version": 1, "limits": {}, "heartbeat_ms": 20000}
        await self.send(type="welcome", restored=[], **{**welcome, **fields})
        return hello

    async def give(
        self, document: str = "plan", state: Any = None, kind: str = "json", **fields: Any
    ) -> dict[str, Any]:
        """Answer a subscription with a state."""
        asked = await self.expect("subscribe")
        answer = {"epoch": 1, "incarnation": "i", "seq": 0, "resumed": False, "clock": 0}
        answer |= {"may_write": True, **fields}
        await self.send(type="subscribed", document=document, kind=kind, **answer)
        await self.send(
            type="state",
            document=document,
            epoch=answer["epoch"],
            seq=answer["seq"],
            state={} if state is None else state,
        )
        return asked


class ScriptedRouter:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"ws://127.0.0.1:{port}/sync"
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def accepted(self) -> Peer:
        async with asyncio.timeout(WAIT_S):
            return await self.peers.get()


@asynccontextmanager
async def scripted_router(
    port: int = 0, subprotocols: tuple[str, ...] = ("syncline.v1.json", "syncline.v1.msgpack")
) -> AsyncGenerator[ScriptedRouter]:
    async def handle(socket: ServerConnection) -> None:
        await router.peers.put(Peer(socket))
        await socket.wait_closed()

    offered = [Subprotocol(name) for name in subprotocols] or None
    async with serve(handle, "127.0.0.1", port, subprotocols=offered) as server:
        router = ScriptedRouter(next(iter(server.sockets)).getsockname()[1])
        yield router
