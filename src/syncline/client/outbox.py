"""What waits to be written to the connection, in order and bounded."""

import asyncio
from collections.abc import Hashable

from syncline.core.replicas import Send
from syncline.errors import LimitExceededError
from syncline.values.replica import Acknowledge, SendPresence

MESSAGE_COUNT_MAX = 16_384


class Outbox:
    """A later presence or acknowledgement of a subscription replaces one that still waits: only the
    last one counts. Mutations are bounded by the window of their document."""

    def __init__(self, count_max: int = MESSAGE_COUNT_MAX) -> None:
        self._waiting: dict[Hashable, Send] = {}
        self._number = 0
        self._count_max = count_max
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, send: Send) -> None:
        """Raises LimitExceededError when the router does not take what is sent."""
        if len(self._waiting) >= self._count_max:
            raise LimitExceededError(
                "the number of messages to be sent", len(self._waiting) + 1, self._count_max
            )
        self._waiting[self._key(send)] = send
        self._news.set()
        self._empty.clear()

    def _key(self, send: Send) -> Hashable:
        if isinstance(send.message, Acknowledge | SendPresence):
            return type(send.message), send.document, send.message.epoch
        self._number += 1
        return self._number

    async def take(self) -> Send:
        """The next one, which waits until `written` is called."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        key = next(iter(self._waiting))
        return self._waiting.pop(key)

    def written(self) -> None:
        """What was taken is with the socket."""
        if not self._waiting:
            self._empty.set()

    def clear(self) -> None:
        """The connection is another one: nothing of this makes sense on it."""
        self._waiting.clear()
        self._empty.set()

    async def until_empty(self) -> None:
        await self._empty.wait()
