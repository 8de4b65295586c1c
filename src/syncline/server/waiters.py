"""Who waits for the disk, and for how much of it.

A waiter of a write waits for a *position*: what is staged has one, and the disk reaches one after
the other. A waiter of acknowledgements has none at first, because a store may hold acknowledgements
back; it gets one (is *placed*) when no acknowledgement is left that no batch has taken.

Within each of the two kinds the order is that of coming.
"""

from collections import deque
from collections.abc import Callable

from syncline.errors import StorageError

# None: durable. Otherwise why it is not.
Told = Callable[[StorageError | None], None]


class Waiters:
    def __init__(self) -> None:
        self._writes: deque[tuple[int, Told]] = deque()
        self._unplaced: list[Told] = []
        self._placed: deque[tuple[int, Told]] = deque()

    def __bool__(self) -> bool:
        return bool(self._writes or self._unplaced or self._placed)

    @property
    def want_acknowledgements(self) -> bool:
        return bool(self._unplaced)

    def add(self, told: Told, position: int) -> None:
        self._writes.append((position, told))

    def add_for_acknowledgements(self, told: Told) -> None:
        self._unplaced.append(told)

    def place(self, position: int) -> None:
        """Every acknowledgement staged so far is durable once the disk has reached `position`."""
        if self._unplaced:
            self._placed.extend((position, told) for told in self._unplaced)
            self._unplaced.clear()

    def pop_reached(self, position: int) -> list[Told]:
        return [*_pop_up_to(self._writes, position), *_pop_up_to(self._placed, position)]

    def pop_placed(self) -> list[Told]:
        """Those of acknowledgements that a batch has taken."""
        popped = [told for _, told in self._placed]
        self._placed.clear()
        return popped

    def pop_unplaced(self) -> list[Told]:
        popped, self._unplaced = self._unplaced, []
        return popped

    def pop_writes(self) -> list[Told]:
        popped = [told for _, told in self._writes]
        self._writes.clear()
        return popped


def _pop_up_to(waiting: deque[tuple[int, Told]], position: int) -> list[Told]:
    reached: list[Told] = []
    while waiting and waiting[0][0] <= position:
        reached.append(waiting.popleft()[1])
    return reached
