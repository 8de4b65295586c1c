"""Writes to an agent's store, off the event loop: a slow disk holds up whoever waits for it, and
nobody else.

    async with turns.one() as write:
        joined = await write(store.associate, account, ids)      # on a thread; durable
        subscriptions.associated(...)                            # then whatever follows from it

What always holds:
- Turns are taken one after the other, in the order in which they were asked for; so are writes.
- Whoever has a turn sees store and books agree: both are changed within one turn.
- A write that has begun is finished before whoever waits for it goes on, cancelled or not.
- What the disk says goes to whoever waits.

A store in memory waits for nothing, and is written in place.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import InThread, in_thread

Made = TypeVar("Made")
Given = ParamSpec("Given")


async def whole(work: Coroutine[Any, Any, Made]) -> Made:
    """Done to its end even if whoever waits is cancelled: that is passed on afterwards. What the
    work raises is raised in any case."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        task.result()
        raise


class Turn:
    """Writes within a turn."""

    def __init__(self, on_thread: InThread | None) -> None:
        self._on_thread = on_thread

    async def __call__(
        self, write: Callable[Given, Made], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        if self._on_thread is None:
            return write(*args, **kwargs)
        return await whole(_done(self._on_thread, partial(write, *args, **kwargs)))


async def _done(on_thread: InThread, work: Callable[[], Made]) -> Made:
    return await on_thread(work)


class StoreTurns:
    """See the module."""

    def __init__(self, store: AgentStore, on_thread: InThread = in_thread) -> None:
        self._turn = Turn(None if store.is_in_memory else on_thread)
        # Those that wait are woken in their order.
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[Turn]:
        """For nothing but writes and what follows from them at once: others wait."""
        async with self._lock:
            yield self._turn

    async def write(
        self, write: Callable[Given, Made], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """A turn of one write. It is made even if whoever asked is cancelled meanwhile."""
        return await whole(self._write(partial(write, *args, **kwargs)))

    async def _write(self, write: Callable[[], Made]) -> Made:
        async with self.one() as turn:
            return await turn(write)

    async def settled(self) -> None:
        """Until the turns are over that were asked for before."""
        async with self._lock:
            pass
