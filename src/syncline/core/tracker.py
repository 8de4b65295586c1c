"""How far each connection of a document has come, and when one is too far behind.

A connection *owes* an acknowledgement for the first update above its offset. Its lag is how long
it has owed that one: since the update was stored, or since the connection joined if that was later.
One that owes nothing has no lag, however old the last update is: an idle document evicts nobody.

Two rules give up a connection's place, so that one reader cannot hold the stream for ever:
- relative: it lags too long and another connection has acknowledged what it owes;
- absolute: it lags very long, whatever the others do.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

# Updates of one such stretch count as stored at its start: lag is a matter of seconds.
MARK_MS = 100


@dataclass(frozen=True, slots=True)
class LagRules:
    """When a place in the stream is given up."""

    relative_ms: int = 30_000
    absolute_ms: int = 1_800_000


@dataclass(slots=True)
class Offset:
    """The place of one connection: everything up to `acked` has arrived there."""

    acked: int
    joined_ms: int


class Timeline:
    """When the updates of a document were stored, one mark per stretch of time."""

    __slots__ = ("_seqs", "_times_ms")

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._times_ms: list[int] = []

    def add(self, seq: int, time_ms: int) -> None:
        if not self._seqs or time_ms - self._times_ms[-1] >= MARK_MS:
            self._seqs.append(seq)
            self._times_ms.append(time_ms)

    def time_of(self, seq: int) -> int:
        """Of an update that was not forgotten; 0 for one from before the first mark."""
        index = bisect_right(self._seqs, seq) - 1
        return self._times_ms[index] if index >= 0 else 0

    def forget_up_to(self, seq: int) -> None:
        """Keep the mark that the first update above `seq` belongs to."""
        index = bisect_right(self._seqs, seq + 1) - 1
        if index > 0:
            del self._seqs[:index], self._times_ms[:index]

    def __len__(self) -> int:
        return len(self._seqs)


def lag_ms(offset: Offset, head: int, timeline: Timeline, now_ms: int) -> int:
    """How long `offset` has owed an acknowledgement, 0 if it owes none."""
    if offset.acked >= head:
        return 0
    return max(0, now_ms - max(timeline.time_of(offset.acked + 1), offset.joined_ms))


def is_too_far_behind(offset: Offset, others: Iterable[Offset], lag: int, rules: LagRules) -> bool:
    if lag > rules.absolute_ms:
        return True
    return lag > rules.relative_ms and any(other.acked > offset.acked for other in others)
