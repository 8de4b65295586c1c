"""Two snapshots that differ in known ids, and a third that differs from the first in fewer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.pipeline.sets import ROLE, random_set, services, shares
from syncline.kernels.xxh3 import Ids
from syncline.pipeline.jobs.reconcile import EXTRA, MISSING

Places = npt.NDArray[np.int64]
# Service, role, id and verdict.
Items = frozenset[tuple[bytes, str, bytes, str]]


@dataclass(frozen=True, slots=True)
class Drift:
    """Snapshots of `count` ids a side or a few less, made again from the seed whenever asked for.

    `wanted` differs from `router` in `far` ids, `near` in fewer: in either case one half of them is
    missing and the other one extra.
    """

    seed: int
    count: int
    far: int
    near: int

    def router(self) -> Iterator[tuple[bytes, Ids]]:
        for service, ids, missing, _ in self._services():
            yield service, np.delete(ids, missing, axis=0)

    def wanted(self) -> Iterator[tuple[bytes, Ids]]:
        for service, ids, _, extra in self._services():
            yield service, np.delete(ids, extra, axis=0)

    def near_wanted(self) -> Iterator[tuple[bytes, Ids]]:
        counts = shares(self.near // 2)
        for each, (service, ids, missing, extra) in zip(counts, self._services(), strict=True):
            left_out = np.concatenate((missing[each:], extra[:each]))
            yield service, np.delete(ids, left_out, axis=0)

    def items(self, *, is_near: bool = False) -> Items:
        """What reconciling with the router has to find."""
        counts = shares((self.near if is_near else self.far) // 2)
        found: set[tuple[bytes, str, bytes, str]] = set()
        for each, (service, ids, missing, extra) in zip(counts, self._services(), strict=True):
            for places, verdict in ((missing, MISSING), (extra, EXTRA)):
                found |= {(service, ROLE, ids[place].tobytes(), verdict) for place in places[:each]}
        return frozenset(found)

    def _services(self) -> Iterator[tuple[bytes, Ids, Places, Places]]:
        """Each with all ids of both, and the places of those that router and wanted lack."""
        random = np.random.default_rng((self.seed, self.count, 2))
        halves = shares(self.far // 2)
        for service, count, half in zip(services(random), shares(self.count), halves, strict=True):
            ids = random_set(random, count)
            places = random.choice(count, 2 * half, replace=False)
            yield service, ids, places[:half], places[half:]
