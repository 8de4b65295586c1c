"""Which cells of a rateless sketch an id has.

Cells lie in levels: 0-3, 4-7, 8-15, 16-31 and so on, each as large as all before it. A plain id has
one cell in each level, nearer to the level's start more often than to its end. Three ids of sixteen
are *heavy*: the level is cut into six parts and they have a cell in each. This mix lets a
difference be read from fewer cells than if all were alike.

Everything is defined on integers, so that one id at a time (`PlacesOfOne`, for sketches
that are kept up to date) and many at once give the same cells: docs/formats/reconciliation.md,
"Cells".
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.compiled import WORD_ROWS_OUT, WORDS, Loop

HASH_BITS: Final = 48
# Nobody makes more for a peer, whatever it asks for. More than these differ: there are better ways.
CELL_COUNT_MAX: Final = 1 << 17

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
# The cell of each id within a level, where that level starts, and its size. The last level may
# reach beyond the end of the sketch.
Placed = tuple[Indices, int, int]

_FIRST_LEVEL: Final = 4
_HEAVY_PARTS: Final = 6
_HEAVY_OF_16: Final = 3
# In 65,536ths: at its start a level is 1 / 0.69 times as dense as on average.
_SLOPE: Final = 45_220
# Steps in the table of a level for each of its cells, in bits.
_STEP_BITS: Final = 4
_U32: Final = np.uint64(32)

_MASK64: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_FIRST: Final = 0xBF58476D1CE4E5B9
_MIX_SECOND: Final = 0x94D049BB133111EB


def mix(number: int) -> int:
    """A one-to-one stirring of 64 bits."""
    number = number + _GOLDEN & _MASK64
    number = (number ^ number >> 30) * _MIX_FIRST & _MASK64
    number = (number ^ number >> 27) * _MIX_SECOND & _MASK64
    return number ^ number >> 31


def mixed_words(numbers: Words) -> Words:
    """`mix` of each."""
    words = numbers + np.uint64(_GOLDEN)
    words ^= words >> np.uint64(30)
    words *= np.uint64(_MIX_FIRST)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_MIX_SECOND)
    words ^= words >> np.uint64(31)
    return words


def levels(cell_count: int) -> Iterator[tuple[int, int]]:
    """Start and size of each level that so many cells reach into."""
    start, size = 0, _FIRST_LEVEL
    while start < cell_count:
        yield start, size
        start, size = start + size, start + size


def _sloped(part: int) -> int:
    """How far into a level a part of it lies, both in 2^32ths."""
    return part * (_SLOPE + ((65_536 - _SLOPE) * part >> 32)) >> 16


@cache
def _light_table(start: int, size: int) -> Indices:
    """The cell for each leading part of a random number, in steps finer than the cells."""
    bits = (size << _STEP_BITS).bit_length() - 1
    parts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(32 - bits)
    if start:
        # As `_sloped` has it.
        slope = np.uint64(_SLOPE) + (np.uint64(65_536 - _SLOPE) * parts >> _U32)
        parts = parts * slope >> np.uint64(16)
    return (parts * np.uint64(size) >> _U32).astype(np.int64) + start


def _heavy_parts(start: int, size: int) -> list[tuple[int, int]]:
    """First cell and width of the parts that a level is cut into; none is empty."""
    count = min(_HEAVY_PARTS, size)
    cuts = [_sloped((part << 32) // count) * size + (1 << 31) >> 32 for part in range(count)]
    if size == count:
        cuts = list(range(count))
    ends = [*cuts[1:], size]
    return [(start + first, end - first) for first, end in zip(cuts, ends, strict=True)]


class Places:
    """The cells of ids in a sketch of `cell_count` cells. Ids come as `mix` of their hash."""

    def __init__(self, cell_count: int) -> None:
        if not 1 <= cell_count <= CELL_COUNT_MAX:
            raise ValueError(f"a sketch has 1 to {CELL_COUNT_MAX} cells, not {cell_count}")
        self.cell_count = cell_count
        self._levels = list(levels(cell_count))
        self._starts = _words([start for start, _ in self._levels])
        self._sizes = _words([size for _, size in self._levels])
        tables = [_light_table(*level) for level in self._levels]
        self._multipliers = _words([_multiplier(level, 0) for level in range(len(tables))])
        self._shifts = _words([65 - len(table).bit_length() for table in tables])
        self._offsets = _words([sum(map(len, tables[:level])) for level in range(len(tables))])
        self._table = np.concatenate(tables)
        self._tables = tables
        heavy = [
            (_multiplier(level, part), first, width, level)
            for level, bounds in enumerate(self._levels)
            for part, (first, width) in enumerate(_heavy_parts(*bounds))
        ]
        self._heavy_multipliers = _words([row[0] for row in heavy])
        self._heavy_firsts = _words([row[1] for row in heavy])
        self._heavy_widths = _words([row[2] for row in heavy])
        self._heavy_levels = [row[3] for row in heavy]

    def of_many(self, mixed: Words) -> Iterator[tuple[Indices, Iterator[Placed]]]:
        """For thousands of ids: which of them are alike, and all their cells in turn."""
        is_heavy = _is_heavy(mixed)
        light, heavy = np.flatnonzero(~is_heavy), np.flatnonzero(is_heavy)
        yield light, self._light_places(mixed[light])
        yield heavy, self._heavy_places(mixed[heavy])

    def _light_places(self, mixed: Words) -> Iterator[Placed]:
        for level, (start, size) in enumerate(self._levels):
            product = mixed * self._multipliers[level]
            product >>= self._shifts[level]
            yield self._tables[level][product.view(np.int64)] - start, start, size

    def _heavy_places(self, mixed: Words) -> Iterator[Placed]:
        for column, level in enumerate(self._heavy_levels):
            start, size = self._levels[level]
            product = mixed * self._heavy_multipliers[column]
            product >>= _U32
            product *= self._heavy_widths[column]
            product >>= _U32
            product += self._heavy_firsts[column] - np.uint64(start)
            yield product.view(np.int64), start, size

    @property
    def can_add(self) -> bool:
        """Whether `add` can be called: it is there in compiled form alone."""
        return ADDING.compiled is not None

    def add(self, mixed: Words, below: Words, above: Words, sums: Words) -> None:
        """Add two numbers of each id to all its cells. `sums` is what `sums_of_none` made."""
        add_to_cells = ADDING.compiled
        assert add_to_cells is not None
        add_to_cells(mixed, below, above, *self.layout, sums)

    @property
    def layout(self) -> tuple[Words, Words, Words, Words, Words, Words, Words]:
        """What the loop of `add` goes by."""
        return (
            self._multipliers,
            self._shifts,
            self._starts,
            self._sizes,
            self._heavy_multipliers,
            self._heavy_firsts,
            self._heavy_widths,
        )

    def sums_of_none(self) -> Words:
        """Two numbers for each cell, to the end of the last level."""
        return np.zeros((sum(self._levels[-1]), 2), np.uint64)

    def of_each(self, mixed: Words) -> Indices:
        """For hundreds of ids at once: a row of cells for each; -1 is none."""
        is_heavy = _is_heavy(mixed)
        rows = np.full((len(mixed), len(self._heavy_levels)), -1, np.int64)
        light = mixed[~is_heavy, None] * self._multipliers >> self._shifts
        rows[~is_heavy, : len(self._levels)] = self._table[(light + self._offsets).view(np.int64)]
        heavy = mixed[is_heavy, None] * self._heavy_multipliers >> _U32
        rows[is_heavy] = (self._heavy_firsts + (heavy * self._heavy_widths >> _U32)).view(np.int64)
        rows[rows >= self.cell_count] = -1
        return rows


class PlacesOfOne:
    """The same for one id at a time, in plain numbers. Hot: bench.reconcile, "kept sketch"."""

    def __init__(self, cell_count: int) -> None:
        bounds = list(enumerate(levels(cell_count)))
        self._light = [
            (_multiplier(level, 0), 65 - len(table).bit_length(), table)
            for level, table in ((level, _light_table(*bound).tolist()) for level, bound in bounds)
        ]
        self._heavy = [
            (_multiplier(level, part), first, width)
            for level, bound in bounds
            for part, (first, width) in enumerate(_heavy_parts(*bound))
        ]
        # To the end of the last level, which saves asking at each cell whether it is within.
        self.size = sum(bounds[-1][1])

    def add(self, mixed: int, code: int, numbers: list[int]) -> None:
        """Add a code to all cells of an id; `numbers` has `size` of them."""
        if mixed & 15 < _HEAVY_OF_16:
            for multiplier, first, width in self._heavy:
                numbers[first + (((mixed * multiplier & _MASK64) >> 32) * width >> 32)] += code
        else:
            for multiplier, shift, table in self._light:
                numbers[table[(mixed * multiplier & _MASK64) >> shift]] += code


@lru_cache(maxsize=8)
def places(cell_count: int) -> Places:
    return Places(cell_count)


def densities(cell_count: int) -> npt.NDArray[np.float64]:
    """For each cell, how many of its cells a random id has there on average."""
    found = np.zeros(cell_count)
    for start, size in levels(cell_count):
        steps = np.bincount(_light_table(start, size) - start, minlength=size)
        light = steps / steps.sum() * (1 - _HEAVY_OF_16 / 16)
        for first, width in _heavy_parts(start, size):
            light[first - start : first - start + width] += _HEAVY_OF_16 / 16 / width
        found[start : start + size] = light[: cell_count - start]
    return found


def _multiplier(level: int, part: int) -> int:
    return mix(8 * level + part) | 1


def _words(numbers: list[int]) -> Words:
    return np.array(numbers, np.uint64)


def _is_heavy(mixed: Words) -> npt.NDArray[np.bool_]:
    is_heavy: npt.NDArray[np.bool_] = mixed & np.uint64(15) < np.uint64(_HEAVY_OF_16)
    return is_heavy


# ---------------------------------------------------------------------------------------- compiled

_FIFTEEN: Final = np.uint64(15)
_SIXTEEN: Final = np.uint64(16)
_HEAVY_WORD: Final = np.uint64(_HEAVY_OF_16)
_SLOPE_WORD: Final = np.uint64(_SLOPE)
_SLOPE_REST: Final = np.uint64(65_536 - _SLOPE)


def _add_to_cells(
    mixed: Words,
    below: Words,
    above: Words,
    multipliers: Words,
    shifts: Words,
    starts: Words,
    sizes: Words,
    heavy_multipliers: Words,
    heavy_firsts: Words,
    heavy_widths: Words,
    sums: Words,
) -> None:
    """As `_light_places` and `_heavy_places`, an id at a time.

    Multiplying is quicker here than looking into the tables of the levels, which outgrow the cache.
    """
    for row in range(len(mixed)):
        number, lower, upper = mixed[row], below[row], above[row]
        if number & _FIFTEEN < _HEAVY_WORD:
            for part in range(len(heavy_multipliers)):
                product = (number * heavy_multipliers[part]) >> _U32
                cell = heavy_firsts[part] + ((product * heavy_widths[part]) >> _U32)
                sums[cell, 0] += lower
                sums[cell, 1] += upper
        else:
            for level in range(len(multipliers)):
                # The leading bits alone, as many as the tables have steps.
                step = (number * multipliers[level]) >> shifts[level]
                place = step << (shifts[level] - _U32)
                if level > 0:
                    slope = _SLOPE_WORD + ((_SLOPE_REST * place) >> _U32)
                    place = (place * slope) >> _SIXTEEN
                cell = starts[level] + ((place * sizes[level]) >> _U32)
                sums[cell, 0] += lower
                sums[cell, 1] += upper


ADDING: Final = Loop(_add_to_cells, *[WORDS] * 10, WORD_ROWS_OUT)
