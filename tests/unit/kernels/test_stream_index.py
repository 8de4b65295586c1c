"""Rows by stream, beside a dictionary of lists."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from syncline.kernels.stream_index import NOT_FOUND, STREAM_BYTES, StreamIndex, unique_streams

# Ids that are told apart by their first word, and ids that are not, however often they come.
RANDOM = st.binary(min_size=STREAM_BYTES, max_size=STREAM_BYTES)
ALIKE = st.integers(0, 5).map(lambda number: b"the same" + number.to_bytes(16, "big"))
STREAMS = st.lists(st.sampled_from([RANDOM, ALIKE]).flatmap(lambda ids: ids), max_size=40) | (
    st.lists(RANDOM, min_size=1, max_size=5).flatmap(
        lambda ids: st.lists(st.sampled_from(ids), max_size=40)
    )
)


@given(STREAMS, st.lists(RANDOM | ALIKE, max_size=5))
def test_every_stream_is_found_with_its_rows_and_no_other(
    streams: list[bytes], others: list[bytes]
) -> None:
    index = StreamIndex(np.frombuffer(b"".join(streams), np.uint8).reshape(-1, STREAM_BYTES))
    expected: dict[bytes, list[int]] = defaultdict(list)
    for row, stream in enumerate(streams):
        expected[stream].append(row)
    assert len(index) == len(expected)
    assert {index.stream(number): index.rows(number) for number in range(len(index))} == expected
    asked = [*expected, *others]
    found = [index.find(stream) for stream in asked]
    assert index.find_many(asked).tolist() == found
    for stream, number in zip(asked, found, strict=True):
        is_there = number != NOT_FOUND
        assert is_there == (stream in expected)
        assert not is_there or index.stream(number) == stream


@given(STREAMS)
def test_each_stream_is_named_once_and_every_row_knows_its_own(streams: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(streams), np.uint8).reshape(-1, STREAM_BYTES)
    unique, place = unique_streams(rows)
    named = [stream.tobytes() for stream in unique]
    assert sorted(named) == sorted(set(streams))
    assert [named[number] for number in place.tolist()] == streams
