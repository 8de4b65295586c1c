"""Watches for the moment at which a token expires.

That moment is one of the machine's clock, which may be set meanwhile. So it is looked at from time
to time, and once more when the token should have expired: nobody is sent away early, or stays on
for long.
"""

import asyncio
from collections.abc import Callable

LOOK_SECONDS = 30.0


class TokenExpiry:
    """Calls `expired` once, unless cancelled."""

    def __init__(
        self, expires_ms: int, clock_ms: Callable[[], int], expired: Callable[[], None]
    ) -> None:
        self._expires_ms = expires_ms
        self._clock_ms = clock_ms
        self._expired = expired
        self._timer = self._look_later()

    def cancel(self) -> None:
        self._timer.cancel()

    def _look_later(self) -> asyncio.TimerHandle:
        seconds = (self._expires_ms - self._clock_ms()) / 1_000
        return asyncio.get_running_loop().call_later(
            min(max(0.0, seconds), LOOK_SECONDS), self._look
        )

    def _look(self) -> None:
        if self._clock_ms() >= self._expires_ms:
            self._expired()
        else:
            self._timer = self._look_later()
