"""The plain algorithm: ranges of equal count with their ends and the XOR of their hashes.

The responder cuts its ids into up to 239 ranges of equal count, as many as fit one block. The
initiator hashes the same ranges of its own ids. Ranges that differ are asked for again, all in one
question; ids that lie between ranges are extra, since the ranges hold all that the other side
has. Once more than half of the first ranges differ the whole list is asked for. Written out here to
be compared with, and spoken where a peer has nothing better.
"""

from collections.abc import Iterator
from typing import Final

from syncline.core.reconciliation.sets import END, IdSet, digest_of, rows_between
from syncline.core.reconciliation.working import WorkingSet
from syncline.kernels.xxh3 import Ids
from syncline.values.reconciliation import (
    DIGEST_BYTES,
    PLAIN_RANGE_COUNT_MAX,
    Answer,
    ListIds,
    Opening,
    PlainPart,
    PlainParts,
    PlainRanges,
    Prefixes,
    Request,
)

# Entries of 68 bytes in a block.
FAN: Final = 239


def plain_parts(ids: IdSet, start: bytes, end: bytes, fan: int) -> Iterator[PlainPart]:
    """A range, cut. The count of ids in one is rounded up, or there would be more than `fan`."""
    rows = rows_between(ids, start, end)
    size = -(-len(rows) // fan)
    for first in range(0, len(rows), size or 1):
        yield _part(rows[first : first + size])


def _part(rows: Ids) -> PlainPart:
    last = rows[-1].tobytes() if len(rows) > 1 else None
    return PlainPart(rows[0].tobytes(), last, _xor(rows))


def _xor(rows: Ids) -> bytes:
    return digest_of(rows).xor128.to_bytes(DIGEST_BYTES, "big")


def after(id_: bytes) -> bytes:
    """The end of a range that has this id as its last."""
    return id_ + b"\0"


class PlainSearch:
    opening_cells = 0

    def __init__(self, ids: IdSet, working: WorkingSet) -> None:
        self._ids = ids
        self._working = working
        self._open: list[tuple[bytes, bytes]] = []
        self._is_first = True
        self._wants_all = False

    def opened(self, opening: Opening) -> None:
        mine, theirs = self._ids.size(), opening.state.count
        self._open, self._is_first = [], True
        # Past one half, listing all ids costs less than finding which differ.
        self._wants_all = abs(mine - theirs) * 2 > max(mine, theirs)

    def learn(self, asked: Request, answer: Answer) -> None:
        assert isinstance(asked, PlainRanges)
        assert isinstance(answer, PlainParts)
        bounds = [(first, after(last)) for first, last in asked.ranges] or [(b"", END)]
        differing: list[tuple[bytes, bytes]] = []
        part_count = 0
        for (start, end), parts in zip(bounds, answer.ranges, strict=True):
            differing += self._compare(start, end, parts)
            part_count += len(parts)
        is_half = self._is_first and len(differing) * 2 > part_count
        self._wants_all = is_half or len(differing) > PLAIN_RANGE_COUNT_MAX
        self._open, self._is_first = differing, False

    def _compare(
        self, start: bytes, end: bytes, parts: tuple[PlainPart, ...]
    ) -> Iterator[tuple[bytes, bytes]]:
        """What differs in a range; ids of mine in gaps are dropped, single ids are added."""
        gap = start
        for part in parts:
            self._working.drop_rows(rows_between(self._ids, gap, part.first))
            gap = after(part.last or part.first)
            if part.last is None:
                self._working.add(part.first)
            elif _xor(rows_between(self._ids, part.first, gap)) != part.xor128:
                yield part.first, part.last
        self._working.drop_rows(rows_between(self._ids, gap, end))

    def next(self, version: int, round_trips: int) -> Request | None:
        if self._wants_all:
            return ListIds(version, Prefixes(0, (0,)))
        if self._is_first or self._open:
            return PlainRanges(version, tuple(self._open), FAN)
        return None
