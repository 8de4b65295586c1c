"""What a check of deliveries comes to: counts by stream and hour, findings, and what is left over.

Counts add up. A finding is a range of sequences of one stream, of one session or of none, that
broke one rule or is a sign of something.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from syncline.kernels.delivery_rows import Integers
from syncline.kernels.latency import BUCKET_COUNT, ENTRY, entries, highest_of, ranks

HOUR_MS: Final = 3_600_000
# In the order of the columns of the table.
COUNTS: Final = (
    "appended",
    "expected",
    "delivered",
    "lost",
    "duplicate",
    "resent",
    "late",
    "interrupted",
    "unacknowledged",
    "unknown",
)
FAULTS: Final = (
    "lost",
    "duplicate",
    "to_author",
    "after_unsubscribe",
    "sequence_gap",
    "undurable",
    "rolled_back",
    "unexpected",
)
SIGNS: Final = (
    "late",
    "resent",
    "evicted",
    "repeated",
    "interrupted",
    "unacknowledged",
    "expired",
    "damage",
    "gap",
)
RULES: Final = FAULTS + SIGNS
PERCENTILES: Final = (0.5, 0.95, 0.99)
# Above this many bins, counting by sorting takes less room than counting by place.
_BINS_MAX: Final = 1 << 22
_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Findings:
    """A row each; -1 where there is nothing to say."""

    rule: Integers
    key: Integers
    seq: Integers
    last_seq: Integers
    session: Integers
    place: Integers
    appended_ms: Integers
    found_ms: Integers
    # Of rows that are about the session of a key: its stream, as three numbers.
    stream: Integers


@dataclass(frozen=True, slots=True)
class Hours:
    """A row for each key and hour that has counts; `latency` are entries, those of a row from
    `latency_ends` of the row before to its own."""

    key: Integers
    hour: Integers
    counts: Integers
    latency: np.ndarray[tuple[int], np.dtype[np.void]]
    latency_ends: Integers
    # -1 if nothing was delivered.
    percentiles: Integers


class Tally:
    """Gathers counts and findings, in any order."""

    def __init__(self) -> None:
        self.pending_count = 0
        self.waiting_count = 0
        self.clock_back_count = 0
        self._found: list[tuple[Integers, ...]] = []
        self._counted: list[tuple[int, Integers, Integers, Integers]] = []
        self._took: list[tuple[Integers, Integers, Integers, Integers]] = []

    def find(
        self,
        rule: str,
        key: Integers,
        seq: Integers,
        last_seq: Integers,
        *,
        session: Integers | None = None,
        place: Integers | None = None,
        appended_ms: Integers | None = None,
        found_ms: Integers | None = None,
        stream: Integers | None = None,
    ) -> None:
        if not len(key):
            return
        nothing = np.full(len(key), -1)
        optional = (
            nothing if each is None else each for each in (session, place, appended_ms, found_ms)
        )
        words = np.zeros((len(key), 3), np.int64) if stream is None else stream
        number = np.full(len(key), RULES.index(rule))
        self._found.append((number, key, seq, last_seq, *optional, words))

    def count(self, what: str, key: Integers, hour: Integers, count: Integers) -> None:
        if len(key):
            self._counted.append((COUNTS.index(what), key, hour, count))

    def took(self, key: Integers, hour: Integers, bucket: Integers, count: Integers) -> None:
        """So many deliveries took as long as the bucket says."""
        if len(key):
            self._took.append((key, hour, bucket, count))

    def findings(self) -> Findings:
        if not self._found:
            self._found.append((*(_NOTHING,) * 8, np.zeros((0, 3), np.int64)))
        columns = [np.concatenate(each) for each in zip(*self._found, strict=True)]
        rule, key, seq, last_seq, session, place, appended_ms, found_ms, stream = columns
        return Findings(rule, key, seq, last_seq, session, place, appended_ms, found_ms, stream)

    def hours(self) -> Hours:
        parts = [(key, hour) for _, key, hour, _ in self._counted]
        parts += [(key, hour) for key, hour, _, _ in self._took]
        if not parts:
            nothing = np.zeros((0, len(PERCENTILES)), np.int64)
            counts = np.zeros((0, len(COUNTS)), np.int64)
            return Hours(_NOTHING, _NOTHING, counts, np.empty(0, ENTRY), _NOTHING, nothing)
        keys, hours = map(np.concatenate, zip(*parts, strict=True))
        low = int(hours.min())
        width = int(hours.max()) - low + 1
        names, row = np.unique(keys * width + (hours - low), return_inverse=True)
        counts = np.zeros((len(names), len(COUNTS)), np.int64)
        at = 0
        for which, key, _, count in self._counted:
            np.add.at(counts[:, which], row[at : at + len(key)], count)
            at += len(key)
        latency, ends, percentiles = self._latencies(row[at:], len(names))
        return Hours(names // width, names % width + low, counts, latency, ends, percentiles)

    def _latencies(
        self, row: Integers, row_count: int
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], Integers, Integers]:
        percentiles = np.full((row_count, len(PERCENTILES)), -1)
        if not self._took:
            return np.empty(0, ENTRY), np.zeros(row_count, np.int64), percentiles
        bucket = np.concatenate([each[2] for each in self._took])
        count = np.concatenate([each[3] for each in self._took])
        cells, sums = summed(row * BUCKET_COUNT + bucket, count)
        rows, buckets = cells // BUCKET_COUNT, cells % BUCKET_COUNT
        totals = np.bincount(rows, sums, row_count).astype(np.int64)
        ends = np.cumsum(sums)
        starts = np.cumsum(totals) - totals
        there = np.flatnonzero(totals)
        for number, share in enumerate(PERCENTILES):
            rank = starts[there] + ranks(totals[there], share)
            percentiles[there, number] = highest_of(buckets[np.searchsorted(ends, rank)])
        # One entry may need several; then they are counted as they are written.
        written = entries(buckets, sums)
        if len(written) == len(buckets):
            return written, np.searchsorted(rows, np.arange(row_count), side="right"), percentiles
        pieces = [entries(buckets[rows == each], sums[rows == each]) for each in range(row_count)]
        return np.concatenate(pieces), np.cumsum([len(each) for each in pieces]), percentiles


def summed(cells: Integers, counts: Integers | None = None) -> tuple[Integers, Integers]:
    """Each number that there is, ascending, and what its counts come to."""
    if not len(cells):
        return _NOTHING, _NOTHING
    low, high = int(cells.min()), int(cells.max())
    if high - low < max(_BINS_MAX, 4 * len(cells)):
        if counts is None:
            bins = np.bincount(cells - low)
        else:
            bins = np.zeros(high - low + 1, np.int64)
            np.add.at(bins, cells - low, counts)
        there = np.flatnonzero(bins)
        return there + low, bins[there]
    names, place = np.unique(cells, return_inverse=True)
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, place, 1 if counts is None else counts)
    return names, sums
