"""Closes sessions that read nothing and have said nothing for long.

One that is subscribed may be silent for as long as it likes: it waits for messages.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


class SilentSession(Protocol):
    """What is asked of a session."""

    @property
    def number(self) -> int: ...

    @property
    def received_count(self) -> int:
        """Blocks that have come since it began."""
        ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Heard:
    received_count: int
    since_s: float


class SilenceWatch:
    """Told to `look` now and then; late by as much as lies between two looks."""

    def __init__(self, silent_seconds_max: float, is_subscribed: Callable[[int], bool]) -> None:
        self._silent_seconds_max = silent_seconds_max
        self._is_subscribed = is_subscribed
        # As many as there are sessions.
        self._heard: dict[int, _Heard] = {}

    def look(self, sessions: Iterable[SilentSession], now_s: float) -> int:
        """How many were closed."""
        before, self._heard = self._heard, {}
        closed_count = 0
        for session in sessions:
            heard = before.get(session.number)
            if heard is None or heard.received_count != session.received_count:
                heard = _Heard(session.received_count, now_s)
            elif self._is_subscribed(session.number):
                heard.since_s = now_s
            elif now_s - heard.since_s > self._silent_seconds_max:
                session.close("it reads nothing and says nothing")
                closed_count += 1
                continue
            self._heard[session.number] = heard
        return closed_count
