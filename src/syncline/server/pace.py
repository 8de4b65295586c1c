"""What the committer learns of its disk: how large a batch may be, when the loop may write it, and
how long a batch may wait for company.

- A batch is written inside the event loop only if it is small and every recent write was short: one
  slow write, of whatever size, and batches go to the thread again until the memory of it has faded.
  What counts is the time, which is learnt; the limit on bytes only keeps a guess from going wild.
  Connections that each wait for their reply gain most: nobody else had work for the loop meanwhile.
- The cap on a batch follows the time that its *bytes* take. The time that any sync takes, however
  small, is no reason to make batches smaller: that would only add syncs.
- Where small batches of several writes follow one another, those who were told are about to write
  again, one by one. The next batch may wait for them as long as two writes take: without that, half
  of them go with it and half with the one behind it, and there are twice as many syncs.
"""

from syncline.values import limits
from syncline.values.limits import KIB

INLINE_BYTES_MAX = 128 * KIB
INLINE_SECONDS_MAX = 0.000_5
TRANSFER_SECONDS_TARGET = 0.004
BATCH_BYTES_MIN = 64 * KIB
# A batch with fewer records is of one writer: a message, and rows of what happened to it.
COMPANY_RECORDS_MIN = 3
COMPANY_BYTES_MAX = 128 * KIB
COMPANY_SECONDS_MAX = 0.01

# A spike of 40 ms is forgotten after some forty batches.
_SLOWEST_DECAY = 0.9
_QUICKEST_GROWTH = 1.02
_CAP_GROWTH = 1.25
_CAP_DECAY = 0.75
# What the last write counts for in the mean, and how many of that mean a batch may wait.
_MEAN_SHARE = 1 / 8
_COMPANY_WRITES = 2


class Pace:
    """Learns from each batch. Starts careful: nothing is written in the loop before a few syncs."""

    def __init__(self) -> None:
        self.batch_bytes_max = limits.batch_bytes_default
        self.slowest_seconds = 2 * INLINE_SECONDS_MAX
        self._quickest_seconds = TRANSFER_SECONDS_TARGET
        # How long the next batch may wait for company while that comes; and a mean of late writes.
        self.company_seconds = 0.0
        self._mean_seconds = 0.0

    def writes_inline(self, byte_count: int) -> bool:
        return byte_count <= INLINE_BYTES_MAX and self.slowest_seconds < INLINE_SECONDS_MAX

    def learn(self, byte_count: int, record_count: int, seconds: float) -> None:
        """Take in how long it took to write and sync a batch."""
        self._learn_company(byte_count, record_count, seconds)
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

    def _learn_company(self, byte_count: int, record_count: int, seconds: float) -> None:
        # One write that hangs says little about the next.
        counted_seconds = min(seconds, COMPANY_SECONDS_MAX / _COMPANY_WRITES)
        self._mean_seconds += (counted_seconds - self._mean_seconds) * _MEAN_SHARE
        is_small_company = record_count >= COMPANY_RECORDS_MIN and byte_count <= COMPANY_BYTES_MAX
        self.company_seconds = _COMPANY_WRITES * self._mean_seconds if is_small_company else 0.0
