"""Rows that belong together stand together: XOR or sum of each such segment of an array.

Segments are given by where they start: the first at row 0, none of them empty. Work goes in pieces
that stay in the processor's cache, and a piece may end in the middle of a segment.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows, the segments that they are of, and where these start among the rows."""

    rows: slice
    segments: slice
    starts: Starts


def one_segment(row_count: int) -> Starts:
    return np.zeros(1 if row_count else 0, np.int64)


def segment_starts(is_other: npt.NDArray[np.bool_]) -> Starts:
    """Where segments start, by whether each row but the first is of another than that before it."""
    return np.concatenate(([0], np.flatnonzero(is_other) + 1))


def pieces(starts: Starts, row_count: int, row_count_max: int) -> Iterator[Piece]:
    for begin in range(0, row_count, row_count_max):
        end = min(begin + row_count_max, row_count)
        first = int(np.searchsorted(starts, begin, "right")) - 1
        last = int(np.searchsorted(starts, end, "left"))
        # The first one may have begun in the piece before.
        inside = np.maximum(starts[first:last] - begin, 0)
        yield Piece(slice(begin, end), slice(first, last), inside)
