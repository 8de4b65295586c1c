"""When a replica acknowledges, and when it asks again: two small clocks without a clock."""

from syncline.core import backoff

ACK_COUNT = 32
ACK_MS = 200
# For `subscribed` and for the state. A router that takes longer is as good as dead.
ANSWER_MS = 30_000
ATTEMPT_COUNT_MAX = 8


class AckPacer:
    """Acknowledgements are cumulative, so they need not be many: one for 32 applied, or one 200 ms
    after the first that has none."""

    def __init__(self) -> None:
        self.due_ms: int | None = None
        self._count = 0

    def owe(self, now_ms: int) -> None:
        """There is something to acknowledge, be it for the second time."""
        if self.due_ms is None:
            self.due_ms = now_ms + ACK_MS

    def count(self, now_ms: int) -> bool:
        """One more was applied. Whether to acknowledge now."""
        self.owe(now_ms)
        self._count += 1
        return self._count >= ACK_COUNT

    def reset(self) -> None:
        self.due_ms = None
        self._count = 0


class Patience:
    """How often the router was asked in vain, and when to ask next."""

    def __init__(self, attempt_count_max: int = ATTEMPT_COUNT_MAX) -> None:
        self.due_ms: int | None = None
        self._attempts = 0
        self._attempt_count_max = attempt_count_max

    @property
    def is_fresh(self) -> bool:
        return self._attempts == 0

    @property
    def is_exhausted(self) -> bool:
        return self._attempts >= self._attempt_count_max

    def renew(self) -> None:
        """Something was achieved."""
        self._attempts = 0

    def count(self) -> None:
        self._attempts += 1

    def await_answer(self, now_ms: int) -> None:
        self.due_ms = now_ms + ANSWER_MS

    def pause(self, now_ms: int, chance: float) -> None:
        self.due_ms = now_ms + backoff.delay_ms(self._attempts, chance)

    def rest(self) -> None:
        """Nothing is awaited."""
        self.due_ms = None
