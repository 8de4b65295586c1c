"""Those for whom the store had no room, and who wait for upkeep: in order, each for a while.

Whoever is first in the line tries first; as long as there is no room for it, nobody behind it does.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from syncline.errors import StoreBusyError

BUSY_SECONDS_MAX = 10.0
WAITING_COUNT_MAX = 10_000


class _Waiting(NamedTuple):
    until: float
    act: Callable[[], None]
    give_up: Callable[[StoreBusyError], None]
    busy: StoreBusyError


class Patience:
    """`press` asks for upkeep at once; whoever does it calls `relieve` afterwards."""

    def __init__(self, press: Callable[[], None]) -> None:
        self._press = press
        self._loop = asyncio.get_running_loop()
        # All wait equally long, so the oldest is the first to give up.
        self._line: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def run(self, act: Callable[[], None], give_up: Callable[[StoreBusyError], None]) -> bool:
        """Do it, now or, if it raises StoreBusyError, when there may be room. Whether it was now.

        If there is no room for too long, or too many wait, `give_up` is called instead.
        """
        try:
            act()
        except StoreBusyError as busy:
            self._wait(act, give_up, busy)
            return False
        return True

    def relieve(self) -> None:
        """Some upkeep is done."""
        while self._line:
            try:
                self._line[0].act()
            except StoreBusyError:
                self._press()
                return
            self._line.popleft()

    def _wait(
        self,
        act: Callable[[], None],
        give_up: Callable[[StoreBusyError], None],
        busy: StoreBusyError,
    ) -> None:
        if len(self._line) >= WAITING_COUNT_MAX:
            give_up(busy)
            return
        until = self._loop.time() + BUSY_SECONDS_MAX
        self._line.append(_Waiting(until, act, give_up, busy))
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._give_up_late)
        self._press()

    def _give_up_late(self) -> None:
        self._timer = None
        while self._line and self._line[0].until <= self._loop.time():
            waiting = self._line.popleft()
            waiting.give_up(waiting.busy)
        if self._line:
            self._timer = self._loop.call_at(self._line[0].until, self._give_up_late)
