"""Histograms of how long things took: exact where it matters, and they add up."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from syncline.kernels.latency import (
    BUCKET_COUNT,
    ENTRY,
    MS_MAX,
    buckets_of,
    decode,
    encode,
    highest_of,
    merge,
    percentile,
)

TIMES = st.lists(st.one_of(st.integers(0, 100), st.integers(0, 10**9)), max_size=60)


def histogram(times: list[int]) -> bytes:
    buckets, counts = np.unique(buckets_of(np.array(times, np.int64)), return_counts=True)
    return encode(buckets, counts)


def test_buckets_are_exact_at_first_and_then_narrower_than_a_sixteenth() -> None:
    values = np.arange(100_000)
    buckets = buckets_of(values)
    assert set(np.diff(buckets).tolist()) == {0, 1}
    highest = highest_of(buckets)
    assert (highest[:32] == values[:32]).all()
    assert (highest >= values).all()
    assert ((highest - values) * 16 < np.maximum(values, 1)).all()
    assert (buckets_of(highest) == buckets).all()


def test_no_time_is_outside_of_the_scale() -> None:
    values = np.array([-1, -(1 << 63), MS_MAX, (1 << 63) - 1])
    found = buckets_of(values)
    assert found[:2].tolist() == [0, 0]
    assert found[2] == found[3] < BUCKET_COUNT


@given(TIMES, st.sampled_from((0.0, 0.5, 0.95, 0.99, 1.0)))
def test_a_percentile_is_that_of_the_sorted_list_or_little_above(
    times: list[int], share: float
) -> None:
    found = percentile(histogram(times), share)
    if not times:
        assert found is None
        return
    rank = min(max(math.ceil(len(times) * share), 1), len(times))
    true = sorted(times)[rank - 1]
    assert found is not None
    assert true <= found
    assert (found - true) * 16 < max(true, 1)


@given(TIMES, TIMES)
def test_histograms_of_parts_add_up_to_that_of_the_whole(some: list[int], more: list[int]) -> None:
    assert merge([histogram(some), histogram(more)]) == histogram(some + more)
    assert percentile(histogram(some) + histogram(more), 0.5) == percentile(
        histogram(some + more), 0.5
    )


@given(st.binary(max_size=40))
def test_any_bytes_are_a_histogram(data: bytes) -> None:
    buckets, counts = decode(data)
    assert (np.diff(buckets) > 0).all()
    assert (counts > 0).all()


@pytest.mark.parametrize("count", [1, (1 << 32) - 1, 1 << 32, 5 * ((1 << 32) - 1) + 7])
def test_a_count_that_an_entry_has_no_room_for_is_spread(count: int) -> None:
    data = encode(np.array([3, 9]), np.array([count, 2]))
    buckets, counts = decode(data)
    assert buckets.tolist() == [3, 9]
    assert counts.tolist() == [count, 2]
    assert len(data) == ENTRY.itemsize * (1 + -(-count // ((1 << 32) - 1)))
