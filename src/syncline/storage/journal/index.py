"""Where the unread entries of an open queue are: four columns of numbers, no object per entry."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from syncline.storage.base import EntryKind


@dataclass(frozen=True, slots=True)
class Place:
    """One line in a message file."""

    seq: int
    offset: int
    length: int
    time_ms: int
    kind: EntryKind

    @property
    def end(self) -> int:
        return self.offset + self.length


class EntryIndex:
    """Places in the order of their sequence. A lost entry has none, so sequences may have gaps."""

    __slots__ = ("_kinds", "_lengths", "_offsets", "_seqs", "_start", "_times_ms")

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._offsets = array("Q")
        self._lengths = array("L")
        self._times_ms = array("q")
        self._kinds = bytearray()
        # Rows before it were truncated; they are dropped once they are half of all.
        self._start = 0

    def __len__(self) -> int:
        return len(self._seqs) - self._start

    def __iter__(self) -> Iterator[Place]:
        return self.places_from(0)

    @property
    def last(self) -> Place | None:
        return self._place(len(self._seqs) - 1) if len(self) else None

    def append(self, place: Place) -> None:
        assert not len(self) or place.seq > self._seqs[-1], "sequences grow"
        self._seqs.append(place.seq)
        self._offsets.append(place.offset)
        self._lengths.append(place.length)
        self._times_ms.append(place.time_ms)
        self._kinds.append(place.kind)

    def places_from(self, seq: int) -> Iterator[Place]:
        """Places of `seq` and above. The index must not change meanwhile."""
        for row in range(self._row(seq), len(self._seqs)):
            yield self._place(row)

    def at(self, seq: int) -> Place | None:
        row = self._row(seq)
        if row < len(self._seqs) and self._seqs[row] == seq:
            return self._place(row)
        return None

    def before(self, seq: int) -> Place | None:
        """The last place below `seq`."""
        row = self._row(seq)
        return self._place(row - 1) if row > self._start else None

    def truncate_before(self, seq: int) -> None:
        self._start = self._row(seq)
        if self._start > 64 and self._start * 2 > len(self._seqs):
            for column in (self._seqs, self._offsets, self._lengths, self._times_ms, self._kinds):
                del column[: self._start]
            self._start = 0

    def _row(self, seq: int) -> int:
        return bisect_left(self._seqs, max(seq, 0), self._start)

    def _place(self, row: int) -> Place:
        return Place(
            self._seqs[row],
            self._offsets[row],
            self._lengths[row],
            self._times_ms[row],
            EntryKind(self._kinds[row]),
        )
