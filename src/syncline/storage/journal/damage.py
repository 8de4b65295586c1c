"""What is known to be wrong with the store: each damaged place once, however often it is met."""

from collections.abc import Iterable, Sequence
from typing import Final

from syncline.storage.base import Damage

# Kept to be told; beyond that, places are counted only.
_DAMAGE_KEPT_MAX: Final = 10_000


class DamageBook:
    def __init__(self) -> None:
        self.damage_count = 0
        self.torn_tail_count = 0
        self._kept: dict[tuple[str, int], Damage] = {}
        self._torn: set[tuple[str, int]] = set()

    @property
    def damage(self) -> Sequence[Damage]:
        return tuple(self._kept.values())

    def add(self, found: Iterable[Damage]) -> None:
        for damage in found:
            place = (damage.file, damage.offset)
            known = self._kept.get(place)
            if known is None:
                self.damage_count += 1
                if len(self._kept) >= _DAMAGE_KEPT_MAX:
                    continue
            elif damage.lost_count < known.lost_count:
                # Met before, when more of what it cost was still wanted.
                continue
            self._kept[place] = damage

    def add_torn(self, found: Iterable[tuple[str, int]]) -> None:
        for place in found:
            if place not in self._torn:
                self.torn_tail_count += 1
                if len(self._torn) < _DAMAGE_KEPT_MAX:
                    self._torn.add(place)
