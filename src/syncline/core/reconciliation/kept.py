"""A sketch that is kept up to date with each change, in plain numbers.

With it a responder opens, and compares small differences, without reading its ids. A change costs
some microseconds (bench.reconcile, "kept sketch"). It belongs in the same transaction as the change
itself: a change that is counted twice shows as a difference that cannot be settled, and the final
check says so.
"""

from collections.abc import Iterable
from typing import Final

import xxhash

from syncline.core.reconciliation.sets import SetView
from syncline.kernels.cell_places import HASH_BITS, PlacesOfOne, mix
from syncline.kernels.cells import Cells
from syncline.values.reconciliation import BUCKET_COUNT, CELL_BYTES, OPENING_DEPTH

# Nine bytes each: with the counts they fill one block.
CELL_COUNT_DEFAULT: Final = 1_696
CELL_COUNT_MAX: Final = 4_096

_MASK64: Final = (1 << 64) - 1


class KeptSketch:
    """Sums over a set under one salt; `version` is of the set it belongs to."""

    def __init__(
        self, salt: bytes, cell_count: int = CELL_COUNT_DEFAULT, ids: Iterable[bytes] = ()
    ) -> None:
        if not 1 <= cell_count <= CELL_COUNT_MAX:
            raise ValueError(f"a kept sketch has 1 to {CELL_COUNT_MAX} cells, not {cell_count}")
        self.salt = salt
        self.cell_count = cell_count
        self.version = 0
        self.bucket_counts = [0] * BUCKET_COUNT
        self.prefix_counts = [0] * (1 << OPENING_DEPTH)
        self._seed = int.from_bytes(salt, "big")
        self._places = PlacesOfOne(cell_count)
        # Up to the end of a level; those beyond `cell_count` are not shown.
        self._numbers = [0] * self._places.size
        for each in ids:
            self.add(each)

    @classmethod
    def of_view(
        cls, view: SetView, salt: bytes, cell_count: int = CELL_COUNT_DEFAULT
    ) -> "KeptSketch":
        """As if it had been kept from the start: filled by a scan, which gives the same."""
        kept = cls(salt, cell_count)
        data = view.cells(salt, cell_count).encode()
        for place in range(cell_count):
            cell = data[place * CELL_BYTES : (place + 1) * CELL_BYTES]
            kept._numbers[place] = int.from_bytes(cell, "big")
        kept.bucket_counts = view.bucket_counts(salt).tolist()
        kept.prefix_counts = view.prefix_counts().tolist()
        kept.version = view.state.version
        return kept

    def add(self, id_: bytes) -> None:
        self._change(id_, 1)

    def remove(self, id_: bytes) -> None:
        self._change(id_, -1)

    def cells(self, cell_count: int) -> Cells:
        return Cells.of_numbers(self._numbers[:cell_count])

    def _change(self, id_: bytes, sign: int) -> None:
        salted = xxhash.xxh3_128_intdigest(id_, self._seed) & _MASK64
        hashed = salted >> 64 - HASH_BITS
        mixed = mix(hashed)
        code = sign * (mixed >> 40 << HASH_BITS | hashed)
        self._places.add(mixed, code, self._numbers)
        self.bucket_counts[(salted >> 32) * BUCKET_COUNT >> 32] += sign
        self.prefix_counts[id_[0] >> 8 - OPENING_DEPTH] += sign
        self.version += 1
