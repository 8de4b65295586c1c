"""What others did to a document, kept for one reader up to a bound.

A reader that falls too far behind is told so: in place of what it missed it gets the state as it is
when it asks next, and goes on from there.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from syncline.values.replica import Body

CHANGE_COUNT_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Mutated:
    """Somebody else's mutation was applied."""

    seq: int
    client: str
    mutation: Body


@dataclass(frozen=True, slots=True)
class Replaced:
    """The state is another one now, whole.

    `reason` is `state` (the router sent it), `missed` (this reader was too slow for single changes)
    or `rejected` (an own change was refused and is taken back).
    """

    seq: int | None
    state: Body
    reason: Literal["state", "missed", "rejected"]


Change = Mutated | Replaced


class ChangeReader:
    """An asynchronous iterator over the changes of one document."""

    def __init__(self, whole: Callable[[], Replaced], count_max: int = CHANGE_COUNT_MAX) -> None:
        self._whole = whole
        self._count_max = count_max
        self._changes: deque[Change] = deque()
        self._has_missed = False
        self._is_over = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, change: Change) -> None:
        if self._has_missed or len(self._changes) >= self._count_max:
            # The state that it is going to get has this one in it.
            self._has_missed = True
            self._changes.clear()
        else:
            self._changes.append(change)
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """No more will come. What is there is still handed out."""
        self._is_over = True
        self._error = error
        self._news.set()

    def __aiter__(self) -> "ChangeReader":
        return self

    async def __anext__(self) -> Change:
        while not self._changes and not self._has_missed:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        if self._has_missed:
            self._has_missed = False
            return self._whole()
        return self._changes.popleft()
