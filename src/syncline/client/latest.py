"""A value that changes, for any number of readers of whom none can fall behind.

A reader gets the newest value and waits for the next one; what came and went in between is skipped.
So nothing has to be kept for a slow reader.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Latest(Generic[Value]):
    """See the module."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def set(self, value: Value) -> None:
        if value != self.value:
            self.value = value
            self.wake()

    def wake(self) -> None:
        """Let those who wait for a value look again: something else has changed for them."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def values(self) -> AsyncIterator[Value]:
        """The value as it is now, and each time it is another one."""
        while True:
            value = self.value
            yield value
            await self.until(lambda newest: newest != value)  # noqa: B023 (waited for at once)

    async def until(self, is_met: Callable[[Value], bool]) -> Value:
        """Wait for a value that will do."""
        while not is_met(self.value):
            await self._changed.wait()
        return self.value
