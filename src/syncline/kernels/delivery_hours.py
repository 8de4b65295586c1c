"""Counts of entries by the hour in which they were appended."""

import numpy as np

from syncline.kernels.delivery_rows import Flags, Integers
from syncline.kernels.delivery_streams import Entries, Units
from syncline.kernels.delivery_tally import HOUR_MS, Tally, summed
from syncline.kernels.latency import BUCKET_COUNT, buckets_of


class EntryHours:
    """Entries of a unit that were appended in the same hour, one behind the other, are a group."""

    def __init__(self, units: Units, entries: Entries, tally: Tally) -> None:
        hour = entries.time_ms // HOUR_MS
        is_edge = (hour[1:] != hour[:-1]) | (entries.unit[1:] != entries.unit[:-1])
        starts, _ = stretches(is_edge, len(entries))
        self._group = np.append(0, np.cumsum(is_edge))
        self._hour = hour[starts]
        self._key = units.key[entries.unit[starts]]
        self._tally = tally

    def count(self, what: str, entry: Integers, which: Flags | None = None) -> None:
        """One for each entry that is named, as often as it is."""
        if which is not None and not which.all():
            entry = entry[which]
        group, count = summed(self._group[entry])
        self._tally.count(what, self._key[group], self._hour[group], count)

    def count_at(
        self, what: str, key: Integers, time_ms: Integers, count: Integers | None = None
    ) -> None:
        """In the hour in which something happened."""
        counts = np.ones(len(key), np.int64) if count is None else count
        self._tally.count(what, key, time_ms // HOUR_MS, counts)

    def took(self, entry: Integers, time_ms: Integers) -> None:
        cell, count = summed(self._group[entry] * BUCKET_COUNT + buckets_of(time_ms))
        group = cell // BUCKET_COUNT
        self._tally.took(self._key[group], self._hour[group], cell % BUCKET_COUNT, count)


def runs(owner: Integers, seq: Integers) -> tuple[Integers, Integers]:
    """The first and the last row of each stretch of sequences that have one owner."""
    order = np.lexsort((seq, owner))
    owner, seq = owner[order], seq[order]
    starts, ends = stretches((owner[1:] != owner[:-1]) | (np.diff(seq) > 1), len(order))
    return order[starts], order[ends]


def stretches(is_edge: Flags, count: int) -> tuple[Integers, Integers]:
    """The first and last of each stretch of rows; `is_edge`: each but the first begins one."""
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    inner = np.flatnonzero(is_edge)
    return np.append(0, inner + 1), np.append(inner, count - 1)
