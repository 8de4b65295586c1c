"""Sets that differ, made from a seed: evenly, on one side, in neighbours, with skewed prefixes."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline.core.reconciliation.sets import Snapshot
from syncline.kernels.xxh3 import Ids

ID_BYTES = 24
KINDS = ("even", "skewed", "clustered", "clustered and even")
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drift:
    """What each side has. Versions are far apart: nobody compares them."""

    mine: Snapshot
    theirs: Snapshot
    missing: bytes
    extra: bytes

    @property
    def difference(self) -> int:
        return (len(self.missing) + len(self.extra)) // ID_BYTES

    @property
    def limit_bytes(self) -> float:
        """What any protocol must carry on average, if all differences are equally likely."""
        missing, extra = len(self.missing) // ID_BYTES, len(self.extra) // ID_BYTES
        size = self.mine.size()
        bits = missing * 192 - _log2_factorial(missing)
        bits += _log2_factorial(size) - _log2_factorial(extra) - _log2_factorial(size - extra)
        return bits / 8


def _log2_factorial(number: int) -> float:
    return math.lgamma(number + 1) / math.log(2)


def random_ids(random: np.random.Generator, count: int) -> Ids:
    return random.integers(0, 256, (count, ID_BYTES), dtype=np.uint8)


def drift(ids: Ids, only_theirs: Indices, only_mine: Indices) -> Drift:
    """Of sorted ids, some are on one side alone."""
    is_mine, is_theirs = np.ones(len(ids), np.bool_), np.ones(len(ids), np.bool_)
    is_mine[only_theirs] = False
    is_theirs[only_mine] = False
    return Drift(
        Snapshot(ids[is_mine], 3, is_sorted=True),
        Snapshot(ids[is_theirs], 77, is_sorted=True),
        ids[~is_mine & is_theirs].tobytes(),
        ids[is_mine & ~is_theirs].tobytes(),
    )


def even_drift(random: np.random.Generator, count: int, missing: int, extra: int) -> Drift:
    ids = Snapshot(random_ids(random, count + missing)).rows
    picked = random.permutation(len(ids))[: missing + extra]
    return drift(ids, picked[:missing], picked[missing:])


def block_drift(random: np.random.Generator, count: int, lost: int) -> Drift:
    """They lost neighbours."""
    ids = Snapshot(random_ids(random, count)).rows
    start = int(random.integers(0, count - lost))
    return drift(ids, np.zeros(0, np.int64), np.arange(start, start + lost))


def fresh_drift(random: np.random.Generator, count: int) -> tuple[str, float, Drift]:
    """Of any kind, size and share; and which it is."""
    size = int(math.exp(random.uniform(0, math.log(0.8 * count))))
    share = float(random.choice(SHARES))
    kind = str(random.choice(KINDS))
    missing = round(size * share)
    rows = random_ids(random, count + missing)
    if kind == "skewed":
        rows[:, 0] = (random.random(len(rows)) ** 4 * 8).astype(np.uint8)
        rows[random.random(len(rows)) < 0.5, :2] = 7
    ids = Snapshot(rows).rows
    clustered = {"clustered": 1.0, "clustered and even": 0.5}.get(kind, 0.0)
    theirs = _picked(random, len(ids), missing, clustered)
    mine = np.setdiff1d(_picked(random, len(ids), size - missing, clustered), theirs)
    return kind, share, drift(ids, theirs, mine)


def _picked(random: np.random.Generator, count: int, size: int, clustered: float) -> Indices:
    """So many places, or a few less; a part of them in up to five runs."""
    together = int(size * clustered)
    found = [random.permutation(count)[: size - together]]
    runs = int(random.integers(1, 6))
    for width in np.diff(np.linspace(0, together, runs + 1).astype(np.int64)).tolist():
        start = int(random.integers(0, count - width + 1))
        found.append(np.arange(start, start + width))
    return np.unique(np.concatenate(found))
