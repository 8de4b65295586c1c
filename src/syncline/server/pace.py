"""What the committer learns of its disk: how large a batch may be, and when the loop may write it.

- A batch is written inside the event loop only if it is small and every recent write was short: one
  slow write, of whatever size, and batches go to the thread again until the memory of it has faded.
  What counts is the time, which is learnt; the limit on bytes only keeps a guess from going wild.
  Connections that each wait for their reply gain most: nobody else had work for the loop meanwhile.
- The cap on a batch follows the time that its *bytes* take. The time that any sync takes, however
  small, is no reason to make batches smaller: that would only add syncs.
"""

from syncline.values import limits
from syncline.values.limits import KIB

INLINE_BYTES_MAX = 128 * KIB
INLINE_SECONDS_MAX = 0.000_5
TRANSFER_SECONDS_TARGET = 0.004
BATCH_BYTES_MIN = 64 * KIB

# A spike of 40 ms is forgotten after some forty batches.
_SLOWEST_DECAY = 0.9
_QUICKEST_GROWTH = 1.02
_CAP_GROWTH = 1.25
_CAP_DECAY = 0.75


class Pace:
    """Learns from each batch. Starts careful: nothing is written in the loop before a few syncs."""

    def __init__(self) -> None:
        self.batch_bytes_max = limits.batch_bytes_default
        self.slowest_seconds = 2 * INLINE_SECONDS_MAX
        self._quickest_seconds = TRANSFER_SECONDS_TARGET

    def writes_inline(self, byte_count: int) -> bool:
        return byte_count <= INLINE_BYTES_MAX and self.slowest_seconds < INLINE_SECONDS_MAX

    def learn(self, byte_count: int, seconds: float) -> None:
        """Take in how long it took to write and sync `byte_count` bytes."""
        self.slowest_seconds = max(seconds, self.slowest_seconds * _SLOWEST_DECAY)
        self._quickest_seconds = min(seconds, self._quickest_seconds * _QUICKEST_GROWTH)
        transfer_seconds = seconds - self._quickest_seconds
        target_seconds = max(TRANSFER_SECONDS_TARGET, self._quickest_seconds)
        if transfer_seconds > 2 * target_seconds and byte_count > BATCH_BYTES_MIN:
            cap = min(self.batch_bytes_max, byte_count) * _CAP_DECAY
        elif transfer_seconds < target_seconds and 4 * byte_count >= 3 * self.batch_bytes_max:
            cap = self.batch_bytes_max * _CAP_GROWTH
        else:
            return
        self.batch_bytes_max = int(min(max(cap, BATCH_BYTES_MIN), limits.batch_bytes_max))
