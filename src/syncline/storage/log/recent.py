"""The batches written last, as they were: a reader that keeps up is served from memory.

Kept as the bytes that were written, so that keeping costs nothing for a single entry (bench: log).
Not a map of the segment: there a bad block ends the process, where a failed read costs an entry.
"""

from bisect import bisect_right

from syncline.values import limits


class RecentBatches:
    """Records of finished batches by position, up to `limits.recent_bytes_max`."""

    def __init__(self) -> None:
        # Positions, ascending, and the records from there on.
        self.starts: list[int] = []
        self.records: list[bytes] = []
        self._byte_count = 0

    def keep(self, start: int, records: bytes) -> None:
        """`records` are durable, from position `start` on, behind all that was kept before."""
        self.starts.append(start)
        self.records.append(records)
        self._byte_count += len(records)
        if self._byte_count > limits.recent_bytes_max:
            self._let_go()

    def find(self, position: int) -> tuple[bytes, int] | None:
        """The records of a batch, and where in them `position` would be; None if it is too old.

        The batch may end before: one that was not kept follows it.
        """
        starts = self.starts
        index = bisect_right(starts, position) - 1
        return None if index < 0 else (self.records[index], position - starts[index])

    def _let_go(self) -> None:
        """Many at a time: down to three quarters of the limit."""
        kept_bytes = limits.recent_bytes_max * 3 // 4
        count = 0
        while self._byte_count > kept_bytes:
            self._byte_count -= len(self.records[count])
            count += 1
        del self.starts[:count]
        del self.records[:count]
