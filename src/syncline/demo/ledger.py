"""What a workload did and saw, kept by itself: what an audit of the log is compared with.

A *life* is that of a data folder: once a backup was restored, sequences go back and the same ones
come again for something else.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A change at its place in the stream of a document."""

    life: int
    document: str
    seq: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of a queue; all have different texts."""

    life: int
    queue: bytes
    text: bytes


@dataclass(slots=True)
class Ledger:
    """See the module. Whatever happens twice is in here twice."""

    life: int = 0
    # Acknowledged to their authors. After a crash an author may be told a later place than its own.
    saved: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])
    # Single changes of others that a client applied, and the states that it was given whole.
    applied: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])
    states: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])
    # Acknowledged to the sender; sent, and the answer was lost; received, and acknowledged then.
    sent: list[Letter] = field(default_factory=list[Letter])
    unsure: list[Letter] = field(default_factory=list[Letter])
    received: list[Letter] = field(default_factory=list[Letter])

    def save(self, document: str, seq: int, author: str) -> None:
        self.saved.append((Place(self.life, document, seq), author))

    def apply(self, document: str, seq: int, client: str) -> None:
        self.applied.append((Place(self.life, document, seq), client))

    def take_state(self, document: str, seq: int, client: str) -> None:
        self.states.append((Place(self.life, document, seq), client))

    def clocks(self, author: str) -> dict[tuple[str, int], Place]:
        """The changes of an author by document and clock: it counts them in each document."""
        found: dict[tuple[str, int], Place] = {}
        counts: Counter[str] = Counter()
        for place, who in self.saved:
            if who == author:
                counts[place.document] += 1
                found[place.document, counts[place.document]] = place
        return found
