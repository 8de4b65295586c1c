"""Events on their way to the application, with a bound for each kind.

Whoever brings a message waits for room, which in the end slows down the router. Whoever tells about
subscriptions never waits, since what an application waits for may depend on it: of these events the
oldest are left out instead, and that is told in their place.
"""

import asyncio
from collections import deque

from syncline.client.smp.agent_events import AgentEvent, ContentEvent, EventsMissed, StateEvent


class Inbox:
    """See the module."""

    def __init__(self, content_count_max: int, state_count_max: int) -> None:
        self._content_count_max = content_count_max
        self._state_count_max = state_count_max
        # Each with its number, so that both are given out in their common order.
        self._contents: deque[tuple[int, ContentEvent]] = deque()
        self._states: deque[tuple[int, StateEvent]] = deque()
        self._number = 0
        self._missed_count = 0
        self._missed_number = 0
        self._end: Exception | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._contents) + len(self._states)

    def tell(self, event: StateEvent) -> None:
        self._number += 1
        self._states.append((self._number, event))
        if len(self._states) > self._state_count_max:
            self._missed_number, _ = self._states.popleft()
            self._missed_count += 1
        self._wake()

    async def put(self, event: ContentEvent) -> None:
        """Waits for room. Raises what ended the inbox."""
        while len(self._contents) >= self._content_count_max and self._end is None:
            await self._changed.wait()
        if self._end is not None:
            raise self._end
        self._number += 1
        self._contents.append((self._number, event))
        self._wake()

    async def take(self) -> AgentEvent:
        """The next event. Raises what ended the inbox, once it is empty."""
        while not (self._missed_count or self._contents or self._states):
            if self._end is not None:
                raise self._end
            await self._changed.wait()
        event = self._next()
        self._wake()
        return event

    def end(self, error: Exception) -> None:
        """Nothing more will come."""
        if self._end is None:
            self._end = error
            self._wake()

    def _next(self) -> AgentEvent:
        content_number = self._contents[0][0] if self._contents else None
        state_number = self._states[0][0] if self._states else None
        if self._missed_count and (content_number is None or self._missed_number < content_number):
            missed, self._missed_count = self._missed_count, 0
            return EventsMissed(missed)
        if content_number is None or (state_number is not None and state_number < content_number):
            return self._states.popleft()[1]
        return self._contents.popleft()[1]

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
