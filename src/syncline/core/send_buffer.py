"""The client's own mutations of one document, from the change until the router has stored it.

    entries   | covered | in flight | waiting |     in the order of their changes
              0         covered     sent      len

- *covered*: the router said at the last subscription that it has them; not sent again, and kept
  until the stream has come to where they stand
- *in flight*: sent in this subscription, no receipt yet; at most `window` of them
- *waiting*: not sent in this subscription

A mutation gets its clock when it is sent for the first time, so that changes made before the first
subscription come after whatever an earlier run with the same client id had stored. It keeps that
clock for good: by it the router knows one that is sent again.

If no receipt comes, what is in flight is sent again, each time after twice the wait; after
`retry_count_max` times in vain the buffer is exhausted and stays silent until it is rewound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from syncline.errors import LimitExceededError
from syncline.values.replica import Body

CHANGE_COUNT_MAX = 4_096
WINDOW_COUNT = 256
RETRY_MS = 5_000
RETRY_CAP_MS = 30_000
RETRY_COUNT_MAX = 6


@dataclass(slots=True)
class Entry:
    """One change. `number` counts the changes of this buffer; `clock` is 0 until it is sent."""

    number: int
    mutation: Body
    clock: int = 0
    is_stored: bool = False


class SendBuffer:
    """See the module."""

    def __init__(
        self,
        *,
        count_max: int = CHANGE_COUNT_MAX,
        window: int = WINDOW_COUNT,
        retry_ms: int = RETRY_MS,
        retry_count_max: int = RETRY_COUNT_MAX,
    ) -> None:
        self._entries: list[Entry] = []
        self._covered = 0
        self._sent = 0
        self._number = 0
        self._clock = 0
        self._count_max = count_max
        self._window = window
        self._retry_ms = retry_ms
        self._retry_count_max = retry_count_max
        self._retry_count = 0
        # When the oldest in flight counts as unanswered; None if nothing is in flight.
        self.deadline_ms: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def unsaved_count(self) -> int:
        """How many are not known to be stored. Those that are come first."""
        return len(self._entries) - sum(1 for _ in takewhile(lambda e: e.is_stored, self._entries))

    @property
    def unsaved_clocks(self) -> list[int]:
        """Of what is not known to be stored, oldest first. 0: has none yet."""
        return [entry.clock for entry in self._entries if not entry.is_stored]

    def mutations(self) -> Iterator[Body]:
        """Everything that the router's stream has not confirmed yet, oldest first."""
        return (entry.mutation for entry in self._entries)

    def add(self, mutation: Body) -> int:
        """Keep a change and return its number. Raises LimitExceededError when full."""
        if len(self._entries) >= self._count_max:
            raise LimitExceededError(
                "the number of changes that wait for the router",
                len(self._entries) + 1,
                self._count_max,
            )
        self._number += 1
        self._entries.append(Entry(self._number, mutation))
        return self._number

    # Sending.

    def rewind(self, covered_clock: int) -> list[Entry]:
        """A new subscription: the router has everything up to `covered_clock`; the rest is to be
        sent (again). Returns what is known to be stored only now."""
        self._clock = max(self._clock, covered_clock)
        self._covered = self._count_up_to(covered_clock)
        self._sent = self._covered
        self._retry_count = 0
        self.deadline_ms = None
        return _stored(self._entries[: self._covered])

    def forget_stored(self) -> None:
        """What was stored was stored in a document that is no more: it does not come back."""
        self._entries = [entry for entry in self._entries if not entry.is_stored]
        self._covered = self._sent = 0

    def take_ready(self, now_ms: int) -> list[Entry]:
        """What is to be sent now, with clocks; it is in flight from here on."""
        room = self._covered + self._window
        ready = self._entries[self._sent : room]
        for entry in ready:
            if not entry.clock:
                self._clock += 1
                entry.clock = self._clock
        self._sent += len(ready)
        if ready and self.deadline_ms is None:
            self.deadline_ms = now_ms + self._wait_ms()
        return ready

    def take_overdue(self, now_ms: int) -> list[Entry]:
        """What was not answered in time and is to be sent again. Nothing once exhausted."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        if self._retry_count >= self._retry_count_max:
            self.deadline_ms = None
            self._retry_count += 1
            return []
        self._retry_count += 1
        self.deadline_ms = now_ms + self._wait_ms()
        return self._entries[self._covered : self._sent]

    @property
    def is_exhausted(self) -> bool:
        """Sent again often enough, and never answered."""
        return self._retry_count > self._retry_count_max

    # Answers.

    def find(self, clock: int) -> Entry | None:
        return next((each for each in self._entries if each.clock == clock), None)

    def confirm(self, clock: int, now_ms: int) -> list[Entry]:
        """Everything up to `clock` is stored and accounted for: let go of it. Returns what is known
        to be stored only now."""
        count = self._count_up_to(clock)
        confirmed = self._entries[:count]
        del self._entries[:count]
        self._covered = max(0, self._covered - count)
        self._sent = max(0, self._sent - count)
        if confirmed:
            self._answered(now_ms)
        return _stored(confirmed)

    def refuse(self, clock: int, now_ms: int) -> Entry | None:
        """The router will never store this one: let go of it."""
        entry = self.find(clock)
        if entry is not None:
            index = self._entries.index(entry)
            del self._entries[index]
            self._covered -= index < self._covered
            self._sent -= index < self._sent
            self._answered(now_ms)
        return entry

    def _answered(self, now_ms: int) -> None:
        self._retry_count = 0
        in_flight = self._sent > self._covered
        self.deadline_ms = now_ms + self._wait_ms() if in_flight else None

    def _wait_ms(self) -> int:
        return min(RETRY_CAP_MS, self._retry_ms << min(self._retry_count, 32))

    def _count_up_to(self, clock: int) -> int:
        """Clocks grow along the buffer; 0 stands for none yet and comes after all of them."""
        for count, entry in enumerate(self._entries):
            if not 0 < entry.clock <= clock:
                return count
        return len(self._entries)


def _stored(entries: list[Entry]) -> list[Entry]:
    """Mark them, and return those that were not marked before."""
    news = [entry for entry in entries if not entry.is_stored]
    for entry in news:
        entry.is_stored = True
    return news
