"""The end of the log in memory: what is written is written from here, and read from here at first.

A ring, in which a position of the log has its place by division: nothing is looked up, and keeping
an entry costs nothing by itself (bench: log). Its memory begins with a page, so that batches can go
to the device past the page cache.

Not a map of the segment: there a bad block ends the process, where a failed read costs an entry.
"""

from collections.abc import Iterable
from typing import Final

from syncline.storage.files import page_memory
from syncline.values import limits

_NOWHERE: Final = 1 << 63


class RecentLog:
    """The last `limits.recent_bytes_max` bytes of the log, as they were written.

    The owner makes room before another thread puts a batch there: whatever it asks for meanwhile
    lies below, and stays as it is.
    """

    def __init__(self) -> None:
        self.size = limits.recent_bytes_max
        self.memory = page_memory(self.size)
        # Positions from here on are kept, up to where the durable log ends; nothing before `begin`.
        self.start = _NOWHERE

    def begin(self, position: int) -> None:
        """The next batch goes here; what lies below was written by somebody else."""
        self.start = position

    def make_room(self, position: int, byte_count: int) -> bool:
        """For a batch that goes to `position`: what it displaces is forgotten from now on.

        False if it is too large to be kept.
        """
        end = position + byte_count
        if byte_count > self.size:
            self.start = end
            return False
        self.start = max(self.start, end - self.size)
        return True

    def put(self, position: int, pieces: Iterable[bytes]) -> list[memoryview]:
        """Copy a batch to the room that was made for it; the same bytes as one or two blocks."""
        memory, size = self.memory, self.size
        begin = at = position % size
        for piece in pieces:
            behind = at + len(piece)
            if behind <= size:
                memory[at:behind] = piece
            else:
                memory[at:size] = piece[: size - at]
                memory[: behind - size] = piece[size - at :]
                behind -= size
            at = behind
        view = memoryview(memory)
        if at > begin:
            return [view[begin:at]]
        return [view[begin:], view[:at]] if at else [view[begin:]]

    def find(self, position: int, length: int) -> bytes | None:
        """Bytes of the log; None if they are not kept, or not in one piece."""
        at = position % self.size if position >= self.start else self.size
        return self.memory[at : at + length] if at + length <= self.size else None
