"""Work on a thread that is seen to its end."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def on_thread(
    work: Callable[[], _Result], on_leaving: Callable[[], None] = lambda: None
) -> _Result:
    """Its result. If the caller goes away, the work is waited for all the same.

    A thread cannot be stopped, and whoever tidies up must not meet it at work; `on_leaving` may
    tell it to make haste.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        on_leaving()
        await asyncio.wait([doing])
        raise
