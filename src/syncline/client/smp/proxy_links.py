"""Routers that an agent reaches through a proxy, to send without being seen by them.

What always holds:
- The router of a queue is never connected to for sending: if the proxy cannot be reached, or cannot
  reach it, whoever sends is told.
- Users have connections of their own, and bring no service that the proxy would know them by.
- A connection is made when somebody sends, once however many do, and again after it has ended. A
  command whose answer is lost is not repeated.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from syncline.client.smp.linking import Link, World
from syncline.client.smp.proxied import ProxiedRouter
from syncline.errors import LinkClosedError, SynclineError
from syncline.wire.smp.addresses import RouterAddress


@dataclass(slots=True)
class _Way:
    """Of one user, to the proxy and beyond."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    link: Link | None = None
    # As many as the user has accounts at.
    routers: dict[RouterAddress, ProxiedRouter] = field(
        default_factory=dict[RouterAddress, ProxiedRouter]
    )


class ProxyLinks:
    """See the module."""

    def __init__(self, proxy: RouterAddress, world: World, group: asyncio.TaskGroup) -> None:
        self._proxy = proxy
        self._world = world
        self._group = group
        self._ways: dict[int, _Way] = {}

    async def router(self, user_id: int, address: RouterAddress) -> ProxiedRouter:
        """Raises LinkError, and as `ProxiedRouter.open` does."""
        way = self._ways.setdefault(user_id, _Way())
        async with way.lock:
            if way.link is None:
                way.link = await self._connected(way)
            if address not in way.routers:
                way.routers[address] = await ProxiedRouter.open(
                    way.link,
                    address,
                    password=self._proxy.password,
                    entropy=self._world.entropy,
                    now=self._world.now,
                )
            return way.routers[address]

    async def _connected(self, way: _Way) -> Link:
        link = await self._world.connect(self._proxy, None)
        keeping = self._keep(way, link)
        try:
            self._group.create_task(keeping)
        except RuntimeError:
            keeping.close()
            await link.close()
            raise LinkClosedError("the agent is closed") from None
        return link

    async def _keep(self, way: _Way, link: Link) -> None:
        """Until it ends, whoever ends it."""
        try:
            await link.ended()
        finally:
            if way.link is link:
                way.link, way.routers = None, {}
            with suppress(SynclineError):
                await link.close()
