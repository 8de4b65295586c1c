"""How long things took, as counts on a logarithmic scale that add up.

    bucket 0 to 15     that many milliseconds
    above              16 buckets for each doubling: 16, 17 … 31, 32, 34 … 62, 64, 68 …

So what is below 32 ms is exact, and above a bucket is narrower than a sixteenth of what it holds. A
percentile is given as the highest value of its bucket: never too low, and too high by less than a
sixteenth.

As bytes, an entry for each bucket that has any: u16 bucket | u32 count, little-endian. A bucket may
come more than once; its counts add up. So the histogram of two sets is what both have, one behind
the other, and `merge` only makes it shorter.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

ENTRY: Final = np.dtype([("bucket", "<u2"), ("count", "<u4")])
BUCKET_COUNT: Final = 1024
# Beyond four thousand years nothing is told apart.
MS_MAX: Final = (1 << 47) - 1
_EXACT: Final = 16
_OCTAVE_BITS: Final = 4
_COUNT_MAX: Final = (1 << 32) - 1


def buckets_of(times_ms: Integers) -> Integers:
    """The bucket of each; what is below zero counts as nothing."""
    values = np.clip(times_ms, 0, MS_MAX)
    large = np.flatnonzero(values >= _EXACT)
    if not len(large):
        return values
    # The exponent of a float is the place of the highest bit: exact, as floats hold 53 of them.
    chosen = values[large]
    shifts = np.frexp(chosen.astype(np.float64))[1].astype(np.int64) - 1 - _OCTAVE_BITS
    values[large] = ((shifts + 1) << _OCTAVE_BITS) + (chosen >> shifts) - _EXACT
    return values


def highest_of(buckets: Integers) -> Integers:
    """The highest value that each bucket holds."""
    shifts = np.maximum((buckets >> _OCTAVE_BITS) - 1, 0)
    found: Integers = np.where(
        buckets < _EXACT, buckets, (((buckets & (_EXACT - 1)) + _EXACT + 1) << shifts) - 1
    )
    return found


def entries(buckets: Integers, counts: Integers) -> npt.NDArray[np.void]:
    """As they are written. A count that an entry has no room for is spread over several."""
    if len(counts) and int(counts.max()) > _COUNT_MAX:
        repeats = -(-counts // _COUNT_MAX)
        buckets = np.repeat(buckets, repeats)
        is_last = np.zeros(len(buckets), np.bool_)
        is_last[np.cumsum(repeats) - 1] = True
        rest = counts - (repeats - 1) * _COUNT_MAX
        counts = np.where(is_last, np.repeat(rest, repeats), _COUNT_MAX)
    found = np.empty(len(buckets), ENTRY)
    found["bucket"], found["count"] = buckets, counts
    return found


def encode(buckets: Integers, counts: Integers) -> bytes:
    return entries(buckets, counts).tobytes()


def decode(data: bytes) -> tuple[Integers, Integers]:
    """Buckets, ascending, and counts. What is left over at the end is no entry."""
    whole = len(data) - len(data) % ENTRY.itemsize
    found = np.frombuffer(data[:whole], ENTRY)
    sums = np.zeros(1 << 16, np.int64)
    np.add.at(sums, found["bucket"], found["count"].astype(np.int64))
    there = np.flatnonzero(sums)
    return there, sums[there]


def merge(histograms: Iterable[bytes]) -> bytes:
    return encode(*decode(b"".join(histograms)))


def percentile(data: bytes, share: float) -> int | None:
    """At most how long it took in that share of cases, from 0 to 1; None if there are none."""
    buckets, counts = decode(data)
    if not len(buckets):
        return None
    ends = np.cumsum(counts)
    rank = ranks(ends[-1:], share)
    return int(highest_of(buckets[np.searchsorted(ends, rank)])[0])


def ranks(counts: Integers, share: float) -> Integers:
    """Which one, counted from 1, of so many has the share at or below it."""
    found: Integers = np.clip(np.ceil(counts * share).astype(np.int64), 1, np.maximum(counts, 1))
    return found
