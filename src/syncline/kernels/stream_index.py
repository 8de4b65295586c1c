"""Tells which rows are of the same stream by putting them in order: no object for each of them.

Rows are ordered by the first eight bytes of their stream, which tell streams apart wherever ids are
random or hashed. Where they do not, all of an id counts: no id that somebody chose brings rows of
two streams together.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

STREAM_BYTES: Final = 24
NOT_FOUND: Final = -1
_WORDS: Final = STREAM_BYTES // 8
_FIRST_WORD: Final = struct.Struct("<Q16x")

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class StreamIndex:
    """Streams by number, 0 to `len`, and the rows of each."""

    def __init__(self, streams: Bytes) -> None:
        """`streams` has a row of 24 bytes for each of the rows."""
        words = _words_of(streams)
        order, is_new, is_told_apart = _ordered(words)
        starts = np.flatnonzero(is_new)
        self._order = order
        # Where the rows of each stream begin, and those of the last end.
        self._starts = np.append(starts, len(words)).data
        # Of each stream, in order: its id, and the first word of it.
        first_rows = words[order[starts]]
        self._ids = first_rows.tobytes()
        self._words = np.ascontiguousarray(first_rows[:, 0])
        self._words_seen = self._words.data
        # By id, where the first word does not do.
        self._numbers: dict[bytes, int] = {}
        if not is_told_apart:
            self._numbers = {self.stream(number): number for number in range(len(self))}

    def __len__(self) -> int:
        return len(self._starts) - 1

    def stream(self, number: int) -> bytes:
        return self._ids[number * STREAM_BYTES : (number + 1) * STREAM_BYTES]

    def rows(self, number: int) -> list[int]:
        """Of a stream, in the order in which they were given."""
        found: list[int] = self._order[self._starts[number] : self._starts[number + 1]].tolist()
        found.sort()
        return found

    def find(self, stream: bytes) -> int:
        """The number of a stream, or NOT_FOUND."""
        if self._numbers:
            return self._numbers.get(stream, NOT_FOUND)
        (word,) = _FIRST_WORD.unpack(stream)
        number = bisect_left(self._words_seen, word)
        is_found = number < len(self) and self.stream(number) == stream
        return number if is_found else NOT_FOUND

    def find_many(self, streams: Sequence[bytes]) -> Integers:
        """`find` of each."""
        if self._numbers:
            return np.array([self.find(stream) for stream in streams], np.int64)
        wanted = np.frombuffer(b"".join(streams), "<u8").reshape(-1, _WORDS)
        numbers = np.searchsorted(self._words, wanted[:, 0]).astype(np.int64)
        numbers[numbers == len(self)] = 0
        known = np.frombuffer(self._ids, "<u8").reshape(-1, _WORDS)
        if not len(known):
            return np.full(len(streams), NOT_FOUND, np.int64)
        is_found = (known[numbers] == wanted).all(axis=1)
        return np.where(is_found, numbers, NOT_FOUND)


def unique_streams(streams: Bytes) -> tuple[Bytes, Integers]:
    """Each stream once, and where each row's stream is among them; streams are rows of 24 bytes."""
    words = _words_of(streams)
    order, is_new, _ = _ordered(words)
    place = np.empty(len(words), np.int64)
    place[order] = np.cumsum(is_new) - 1
    return words[order[is_new]].view(np.uint8).reshape(-1, STREAM_BYTES), place


def _words_of(streams: Bytes) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(streams).view("<u8").reshape(-1, _WORDS)


def _ordered(words: npt.NDArray[np.uint64]) -> tuple[Integers, Flags, bool]:
    """An order in which the rows of a stream stand together, where in it a stream begins, and
    whether the first word alone tells them apart."""
    order = np.argsort(np.ascontiguousarray(words[:, 0]))
    is_same, is_alike = _compared(words, order)
    is_told_apart = bool((is_same == is_alike).all())
    if not is_told_apart:
        order = np.lexsort((words[:, 2], words[:, 1], words[:, 0]))
        is_same, _ = _compared(words, order)
    return order, ~is_same, is_told_apart


def _compared(words: npt.NDArray[np.uint64], order: Integers) -> tuple[Flags, Flags]:
    """For each row in this order, whether it is of the stream of the one before, and whether its
    first word is that of the one before."""
    ordered = words[order]
    is_same = np.zeros(len(words), np.bool_)
    is_alike = np.zeros(len(words), np.bool_)
    is_alike[1:] = ordered[1:, 0] == ordered[:-1, 0]
    is_same[1:] = is_alike[1:] & (ordered[1:, 1:] == ordered[:-1, 1:]).all(axis=1)
    return is_same, is_alike
