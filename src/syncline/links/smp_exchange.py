"""Which commands wait for an answer, until when, and whether the router is still there. Pure.

What always holds:
- Each command that was expected is answered, late, expired or abandoned: one of them, once.
- An answer goes to the command with its correlation id, whatever the order.
- An answer that comes after its time is told apart from one that nobody asked for. It may carry a
  message, and that must not be lost.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from syncline.errors import LimitExceededError

Slot = TypeVar("Slot")

# Commands whose answer may still come; older ones are forgotten.
LATE_COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Expected(Generic[Slot]):
    """`slot` is whatever the caller finds its command by."""

    corr_id: bytes
    entity_id: bytes
    deadline_s: float
    slot: Slot


@dataclass(frozen=True, slots=True)
class Late:
    """Its time was over when it came."""

    entity_id: bytes


@dataclass(frozen=True, slots=True)
class Unasked:
    """Nobody here sent that command."""


class Exchange(Generic[Slot]):
    """See the module."""

    def __init__(self, waiting_count_max: int) -> None:
        self._waiting_count_max = waiting_count_max
        self._waiting: dict[bytes, Expected[Slot]] = {}
        # By time; those that were answered stay until they come up.
        self._deadlines: list[tuple[float, bytes]] = []
        self._late: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._waiting_count_max

    @property
    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do."""
        self._drop_answered()
        return self._deadlines[0][0] if self._deadlines else None

    def expect(self, corr_id: bytes, entity_id: bytes, deadline_s: float, slot: Slot) -> None:
        """Raises LimitExceededError if too many wait already."""
        if not self.has_room:
            raise LimitExceededError(
                "the number of commands without an answer",
                len(self._waiting) + 1,
                self._waiting_count_max,
            )
        assert corr_id not in self._waiting, "a correlation id is never used twice"
        self._waiting[corr_id] = Expected(corr_id, entity_id, deadline_s, slot)
        heappush(self._deadlines, (deadline_s, corr_id))

    def answered(self, corr_id: bytes) -> Expected[Slot] | Late | Unasked:
        """Which command it answers. That one waits no longer, whatever the answer is worth."""
        expected = self._waiting.pop(corr_id, None)
        if expected is not None:
            return expected
        late = self._late.pop(corr_id, None)
        return Unasked() if late is None else Late(late)

    def expect_more(self, expected: Expected[Slot], deadline_s: float) -> None:
        """It was answered in part: the rest has time until then."""
        self.expect(expected.corr_id, expected.entity_id, deadline_s, expected.slot)

    def expire(self, now_s: float) -> list[Expected[Slot]]:
        """Those whose time is over. Their answers are late from here on."""
        expired: list[Expected[Slot]] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, corr_id = heappop(self._deadlines)
            expected = self._waiting.get(corr_id)
            # One that was given more time comes up once more.
            if expected is not None and expected.deadline_s <= now_s:
                del self._waiting[corr_id]
                expired.append(expected)
                self._late[corr_id] = expected.entity_id
        while len(self._late) > LATE_COUNT_MAX:
            del self._late[next(iter(self._late))]
        return expired

    def abandon(self) -> list[Expected[Slot]]:
        """All that wait: the connection has ended."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._deadlines.clear()
        self._late.clear()
        return waiting

    def _drop_answered(self) -> None:
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heappop(self._deadlines)


@dataclass(frozen=True, slots=True)
class KeepAliveRules:
    """When to ask whether the router is there, and when to believe that it is not."""

    ping_after_s: float = 600.0
    give_up_after_s: float = 900.0
    timed_out_count_max: int = 3


class KeepAlive:
    """Silence is normal: somebody who waits for messages may wait for days. So a connection is
    given up only if commands stay without an answer *and* nothing else has come for long."""

    def __init__(self, rules: KeepAliveRules, now_s: float) -> None:
        self._rules = rules
        self._received_s = now_s
        self._timed_out_count = 0
        self._is_pinging = False
        # Without a subscription there is nothing to wait for.
        self.is_subscribed = False

    def received(self, now_s: float) -> None:
        self._received_s = now_s
        self._timed_out_count = 0

    def timed_out(self) -> None:
        self._timed_out_count += 1

    def ping_started(self) -> None:
        self._is_pinging = True

    def ping_ended(self) -> None:
        self._is_pinging = False

    def wants_ping(self, now_s: float) -> bool:
        is_silent = now_s - self._received_s >= self._rules.ping_after_s
        return self.is_subscribed and is_silent and not self._is_pinging

    def is_over(self, now_s: float) -> bool:
        return (
            self._timed_out_count >= self._rules.timed_out_count_max
            and now_s - self._received_s >= self._rules.give_up_after_s
        )

    def next_look_s(self, now_s: float) -> float | None:
        """When a ping is due. None: never by itself; a ping that is under way ends with its time,
        and then the question is asked again."""
        if not self.is_subscribed or self._is_pinging:
            return None
        return max(now_s, self._received_s + self._rules.ping_after_s)
