"""How long an update waits for others that are to be made durable with it.

A sync costs the machine a tenth of a millisecond of work, however little it writes, and with many
documents at once nearly every update would have one of its own. So updates come together: the first
one goes to the disk at once, those that follow within a few milliseconds go with the next batch.
Where nobody follows there is nothing to wait for: whoever sends one update after the other, each
when the last is stored, is not slowed down (bench: documents).
"""

# After a wait in which nobody came, so many batches go without one.
_BATCHES_WITHOUT_WAIT = 16


class Grouping:
    """Told of each batch; asked when the first update for the next one comes."""

    def __init__(self, group_ms: int) -> None:
        """Batches begin at least so far apart, unless it is for one update alone."""
        self._group_seconds = group_ms / 1_000
        self._next_at = 0.0
        self._unwaited_count = 0
        self._has_waited = False

    def wait_seconds(self, now: float) -> float:
        """For the update that comes now, as the first since the last batch."""
        seconds = self._next_at - now
        self._has_waited = seconds > 0 and not self._unwaited_count
        return seconds if self._has_waited else 0.0

    def taken(self, update_count: int, now: float) -> None:
        """So many updates are in the batch that is written now."""
        self._next_at = now + self._group_seconds
        if self._has_waited and update_count == 1:
            self._unwaited_count = _BATCHES_WITHOUT_WAIT
        elif self._unwaited_count:
            self._unwaited_count -= 1
        self._has_waited = False
