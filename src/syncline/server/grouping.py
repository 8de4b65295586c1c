"""How long an update waits for others that are to be made durable with it.

A sync costs the machine a tenth of a millisecond of work, however little it writes, and with many
documents at once nearly every update would have one of its own. So updates come together: the first
one goes to the disk at once, those that follow within a few milliseconds go with the next batch.

The gap between batches is a quarter of what an operator allows. Where a batch has company then,
though not much of it, the gap is longer, up to all of that. Where nobody is likely to follow there
is nothing to wait for, and when no more come the wait is over: whoever sends the next updates when
the last ones are stored is not slowed down (bench: documents).
"""

# After a wait in which nobody came, so many batches go without one.
_BATCHES_WITHOUT_WAIT = 16
# Updates that come in the shortest gap: below the first nobody waits, from the second on a longer
# gap is worth it.
_COMPANY_FEW = 0.75
_COMPANY_SOME = 2
# So many that share a sync are enough.
_COMPANY = 20
# Timers are no finer than this.
_LOOK_SECONDS = 0.001
# How much the newest batch counts for the rate, and the shortest time that it is said to cover.
_NEWEST_PART = 0.125
_SECONDS_MIN = 0.001


class Grouping:
    """Told of each batch; asked when the first update for the next one comes."""

    def __init__(self, group_ms: int) -> None:
        """`group_ms`: batches are held back for so long at most, for one update alone a quarter."""
        self._longest_seconds = group_ms / 1_000
        self._shortest_seconds = self._longest_seconds / 4
        self._taken_at = 0.0
        self._next_at = 0.0
        self._updates_per_second = 0.0
        self._unwaited_count = 0
        self._has_waited = False

    def wait_seconds(self, now: float) -> float:
        """For the update that comes now, as the first since the last batch; then look again."""
        self._has_waited = self._next_at > now and not self._unwaited_count
        return min(self._next_at - now, self._shortest_seconds) if self._has_waited else 0.0

    def more_seconds(self, newest_at: float, now: float) -> float:
        """At a look, when the newest update came then: 0 if the batch should go now.

        If nobody came for as long as the shortest gap nobody will.
        """
        seconds = min(self._next_at, newest_at + self._shortest_seconds) - now
        return max(seconds, _LOOK_SECONDS) if seconds >= _LOOK_SECONDS / 2 else 0.0

    def taken(self, update_count: int, now: float) -> None:
        """So many updates are in the batch that is written now."""
        rate = update_count / max(now - self._taken_at, _SECONDS_MIN)
        self._updates_per_second += (rate - self._updates_per_second) * _NEWEST_PART
        self._taken_at = now
        self._next_at = now + self._gap_seconds()
        if self._has_waited and update_count == 1:
            self._unwaited_count = _BATCHES_WITHOUT_WAIT
        elif self._unwaited_count:
            self._unwaited_count -= 1
        self._has_waited = False

    def _gap_seconds(self) -> float:
        expected = self._updates_per_second * self._shortest_seconds
        if expected < _COMPANY_FEW:
            return 0.0
        if expected < _COMPANY_SOME:
            return self._shortest_seconds
        enough = _COMPANY / self._updates_per_second
        return min(max(enough, self._shortest_seconds), self._longest_seconds)
