"""Cells of a rateless sketch: sums of coded ids, from which a small difference can be read.

Each id is known by 48 bits of a salted hash. Its *code* is a number of 72 bits: a check of 24 bits,
made from the hash alone, above the hash. A cell is the sum of the codes of its ids modulo 2^72. The
cells of two sets, one taken from the other, are the cells of what differs: ids of the first count
plus, those of the second minus, and equal ones are gone. A cell that holds one code is *pure*: its
check fits its hash. Taking that id out of all its cells makes others pure (`peel`).

Which cells an id has is the matter of `syncline.kernels.cell_places`. Any number of first cells is
a sketch. For a difference of d some 1.25 d cells are enough if d is large, 1.45 d at 100, and 2 d
and a dozen for a few.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.cell_places import HASH_BITS, Places, Words, mixed_words, places
from syncline.kernels.ranges import distinct
from syncline.values.reconciliation import CELL_BYTES

CODE_MASK: Final = (1 << 72) - 1

_PIECE_ROWS: Final = 16_384
_HALF_BITS: Final = np.uint64(36)
_HALF_MASK: Final = np.uint64((1 << 36) - 1)
# How much of the upper half is hash; the rest of it is the check.
_UPPER_HASH: Final = np.uint64(HASH_BITS - 36)
_UPPER_HASH_MASK: Final = np.uint64((1 << HASH_BITS - 36) - 1)
_CHECK_SHIFT: Final = np.uint64(40)
_U32: Final = np.uint64(32)


class Cells:
    """Numbers modulo 2^72, each in two halves of 36 bits."""

    def __init__(self, low: Words, high: Words) -> None:
        self.low = low
        self.high = high

    @classmethod
    def decode(cls, data: bytes) -> "Cells":
        """From nine bytes each, big-endian."""
        raw = np.frombuffer(data, np.uint8).reshape(-1, CELL_BYTES).astype(np.uint64)
        top, bottom = np.zeros(len(raw), np.uint64), np.zeros(len(raw), np.uint64)
        for column in range(5):
            top = top << np.uint64(8) | raw[:, column]
        for column in range(5, CELL_BYTES):
            bottom = bottom << np.uint64(8) | raw[:, column]
        low = (top & np.uint64(15)) << _U32 | bottom
        return cls(low, top >> np.uint64(4))

    @classmethod
    def of_numbers(cls, numbers: list[int]) -> "Cells":
        return cls.decode(
            b"".join((number & CODE_MASK).to_bytes(CELL_BYTES, "big") for number in numbers)
        )

    def encode(self) -> bytes:
        raw = np.empty((len(self), CELL_BYTES), np.uint8)
        top = self.high << np.uint64(4) | self.low >> _U32
        for column in range(5):
            raw[:, column] = top >> np.uint64(8 * (4 - column)) & np.uint64(255)
        for column in range(4):
            raw[:, 5 + column] = self.low >> np.uint64(8 * (3 - column)) & np.uint64(255)
        return raw.tobytes()

    def __len__(self) -> int:
        return len(self.low)

    def first(self, cell_count: int) -> "Cells":
        return Cells(self.low[:cell_count], self.high[:cell_count])

    def normalised(self) -> "Cells":
        high = self.high + (self.low >> _HALF_BITS)
        return Cells(self.low & _HALF_MASK, high & _HALF_MASK)

    def __add__(self, other: "Cells") -> "Cells":
        return Cells(self.low + other.low, self.high + other.high).normalised()

    def __sub__(self, other: "Cells") -> "Cells":
        return self + other.negated()

    def negated(self) -> "Cells":
        # 2^72 in these halves is 2^36 below and 2^36 - 1 above.
        low = (_HALF_MASK + np.uint64(1)) - self.low
        return Cells(low, _HALF_MASK - self.high).normalised()

    def chosen(self, cells: npt.NDArray[np.int64]) -> "Cells":
        return Cells(self.low[cells], self.high[cells])

    @classmethod
    def joined(cls, first: "Cells", second: "Cells") -> "Cells":
        return cls(
            np.concatenate((first.low, second.low)), np.concatenate((first.high, second.high))
        )

    @property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        is_empty: npt.NDArray[np.bool_] = (self.low | self.high) == 0
        return is_empty


def sketch(hashes: Words, cell_count: int) -> Cells:
    """The first cells of a set given by the 48-bit hashes of its ids."""
    layout = places(cell_count)
    if layout.can_add:
        return _sketch_compiled(hashes, layout)
    low, high = np.zeros(cell_count, np.uint64), np.zeros(cell_count, np.uint64)
    for start in range(0, len(hashes), _PIECE_ROWS):
        piece = hashes[start : start + _PIECE_ROWS]
        mixed = mixed_words(piece)
        # Sums of so few numbers of 36 bits are exact in floating point, which NumPy adds fastest.
        halves = [half.astype(np.float64) for half in _halves(piece, mixed)]
        for chosen, in_each in layout.of_many(mixed):
            parts = halves[0][chosen], halves[1][chosen]
            for at, first, size in in_each:
                for sums, part in zip((low, high), parts, strict=True):
                    added = np.bincount(at, part, minlength=size)
                    within = sums[first : first + size]
                    within += added[: len(within)].astype(np.uint64)
    return Cells(low, high).normalised()


def _sketch_compiled(hashes: Words, layout: Places) -> Cells:
    sums = layout.sums_of_none()
    for start in range(0, len(hashes), _PIECE_ROWS):
        piece = hashes[start : start + _PIECE_ROWS]
        mixed = mixed_words(piece)
        layout.add(mixed, *_halves(piece, mixed), sums)
    within = sums[: layout.cell_count]
    return Cells(within[:, 0], within[:, 1]).normalised()


def _halves(hashes: Words, mixed: Words) -> tuple[Words, Words]:
    """Of the codes, the lower one first."""
    above = hashes >> _HALF_BITS | mixed >> _CHECK_SHIFT << _UPPER_HASH
    return hashes & _HALF_MASK, above


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Peeled:
    """What a difference of two sketches says: hashes of the first set alone, of the second alone.

    `is_whole`: nothing is left in any cell. If not, the lists are of no use.
    """

    plus: Words
    minus: Words
    is_whole: bool

    def __len__(self) -> int:
        return len(self.plus) + len(self.minus)


def peel(difference: Cells) -> Peeled:
    """Read what differs. The time is in proportion to the cells, whatever is in them."""
    left = Cells(difference.low.copy(), difference.high.copy())
    layout = places(len(left))
    found: tuple[list[Words], list[Words]] = ([], [])
    budget = len(left)
    cells = np.flatnonzero(~left.is_empty)
    while len(cells):
        pure = _pure(left, cells, layout)
        budget -= len(pure)
        # No honest sketch holds more ids than cells; a made-up one could go round for ever.
        if not len(pure) or budget < 0:
            break
        is_minus, hashes = pure.is_minus, pure.hashes
        found[0].append(hashes[~is_minus])
        found[1].append(hashes[is_minus])
        touched = _take(left, pure)
        cells = touched[~left.chosen(touched).is_empty]
    plus, minus = (np.concatenate(part) if part else np.zeros(0, np.uint64) for part in found)
    return Peeled(plus, minus, bool(left.is_empty.all()))


@dataclass(frozen=True, slots=True)
class _Pure:
    """Ids that stand alone in a cell, each once; with all cells of each, padded with -1."""

    hashes: Words
    mixed: Words
    is_minus: npt.NDArray[np.bool_]
    cells: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)


def _pure(left: Cells, cells: npt.NDArray[np.int64], layout: Places) -> _Pure:
    seen = left.chosen(cells)
    both = Cells.joined(seen, seen.negated())
    hashes = both.low | (both.high & _UPPER_HASH_MASK) << _HALF_BITS
    mixed = mixed_words(hashes)
    fits = np.flatnonzero(mixed >> _CHECK_SHIFT == both.high >> _UPPER_HASH)
    hashes, first = np.unique(hashes[fits], return_index=True)
    fits = fits[first]
    every_cell = layout.of_each(mixed[fits])
    # An id that does not belong into the cell that shows it is an accident of the check.
    belongs = np.any(every_cell == cells[fits % len(cells)][:, None], axis=1)
    chosen = fits[belongs]
    return _Pure(hashes[belongs], mixed[chosen], chosen >= len(cells), every_cell[belongs])


def _take(left: Cells, pure: _Pure) -> npt.NDArray[np.int64]:
    """Take ids out of all their cells; says which these are."""
    codes = Cells(
        pure.hashes & _HALF_MASK,
        pure.hashes >> _HALF_BITS | pure.mixed >> _CHECK_SHIFT << _UPPER_HASH,
    )
    signed = codes.negated()
    low = np.where(pure.is_minus, codes.low, signed.low)
    high = np.where(pure.is_minus, codes.high, signed.high)
    rows, columns = np.nonzero(pure.cells >= 0)
    at = pure.cells[rows, columns]
    np.add.at(left.low, at, low[rows])
    np.add.at(left.high, at, high[rows])
    touched = distinct(at)
    settled = left.chosen(touched).normalised()
    left.low[touched], left.high[touched] = settled.low, settled.high
    return touched
