"""A line between a client and a router, for frames of the sync protocol, that may be meddled with.

It takes part in nothing: neither side can tell it from the other one, but for what it leaves out
or says twice. Frames are looked at one by one; those of one direction keep their order.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import msgspec
from websockets.asyncio.client import connect as open_websocket
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from syncline.client.link import sync_url
from syncline.values import limits

SUBPROTOCOL: Final = Subprotocol("syncline.v1.json")

Frame = Mapping[str, Any]

log = logging.getLogger("syncline.demo.proxy")
# The library writes whole frames at the level of debugging.
_frames_log = logging.getLogger("syncline.demo.proxy.websocket")
_frames_log.setLevel(logging.ERROR)


class Meddler(Protocol):
    """Decides how often each frame is passed on: 0, 1 or 2 times."""

    def to_router(self, frame: Frame) -> int: ...

    def to_client(self, frame: Frame) -> int: ...


class Proxy:
    """See the module. Where the router is, is asked for each connection: it may have moved."""

    def __init__(self, router_url: Callable[[], str], meddler: Meddler) -> None:
        self.url = ""
        self._router_url = router_url
        self._meddler = meddler

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Proxy"]:
        async with serve(
            self._carry,
            "127.0.0.1",
            0,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=limits.state_frame_bytes_max,
            # Whether the other side is there is between the two of them.
            ping_interval=None,
            close_timeout=1.0,
            logger=_frames_log,
        ) as server:
            port: int = next(iter(server.sockets)).getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _carry(self, here: ServerConnection) -> None:
        try:
            async with self._to_router() as there, asyncio.TaskGroup() as group:
                group.create_task(_pass_on(here, there, self._meddler.to_router))
                group.create_task(_pass_on(there, here, self._meddler.to_client))
        except (OSError, TimeoutError, WebSocketException) as error:
            log.info("the router cannot be reached: %s", error)
            here.transport.abort()

    def _to_router(self) -> open_websocket:
        return open_websocket(
            sync_url(self._router_url()),
            subprotocols=[SUBPROTOCOL],
            compression=None,
            proxy=None,
            max_size=limits.state_frame_bytes_max,
            ping_interval=None,
            close_timeout=1.0,
            logger=_frames_log,
        )


async def _pass_on(
    source: Connection, target: Connection, count_of: Callable[[Frame], int]
) -> None:
    """Until either side is gone; then the other one goes the same way."""
    try:
        async for frame in source:
            for _ in range(count_of(msgspec.json.decode(frame, type=dict[str, Any]))):
                await target.send(frame)
        await target.close(source.close_code or 1000, source.close_reason or "")
    except ConnectionClosed:
        target.transport.abort()
