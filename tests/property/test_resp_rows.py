"""Commands that are read in rows are those that were sent, however they are cut and mixed."""

from itertools import pairwise

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.log.resp import request
from bench.log.resp_rows import ACKNOWLEDGE, APPEND, READ, Row, RowReader
from syncline.values.ids import STREAM_ID_BYTES

keys = st.binary(min_size=STREAM_ID_BYTES, max_size=STREAM_ID_BYTES)
any_words = st.lists(st.binary(max_size=30), min_size=1, max_size=6)
bodies = st.binary(max_size=40) | st.integers(0, 300).map(bytes)

commands = st.one_of(
    st.builds(lambda key, body: [b"XADD", key, b"*", b"f", body], keys, bodies),
    st.builds(lambda key: [b"XRANGE", key, b"-", b"+", b"COUNT", b"1"], keys),
    st.builds(lambda key, seq: [b"XDEL", key, b"%d-0" % seq], keys, st.integers(0, 10_000_000_000)),
    # Nearly the same, and anything else.
    st.builds(lambda key, id_: [b"XADD", key, id_, b"f", b"x"], keys, st.binary(max_size=3)),
    st.builds(lambda key, id_: [b"XDEL", key, id_], keys, st.binary(max_size=5)),
    st.builds(lambda key: [b"XRANGE", key, b"-", b"+", b"COUNT", b"2"], keys),
    st.builds(lambda key: [b"XADD", key, b"*", b"f", b"x"], st.binary(max_size=30)),
    any_words,
)
# Many of one kind in a row, as in a pipeline.
pipelines = st.lists(
    st.tuples(commands, st.integers(1, 40)).map(lambda pair: [pair[0]] * pair[1]), max_size=6
).map(lambda rows: [words for row in rows for words in row])


def words_of(row: Row) -> list[list[bytes]]:
    """All words of its commands again."""
    found: list[list[bytes]] = []
    for words in row.words:
        if not row.is_shaped:
            assert isinstance(words, list)
            assert words[0] == row.name
            found.append(words)
        elif row.name == READ:
            assert isinstance(words, bytes)
            found.append([READ, words, b"-", b"+", b"COUNT", b"1"])
        elif row.name == APPEND:
            found.append([APPEND, words[0], b"*", b"f", words[1]])  # type: ignore[list-item]
        else:
            assert row.name == ACKNOWLEDGE
            found.append([ACKNOWLEDGE, words[0], words[1] + b"-0"])  # type: ignore[list-item, operator]
    return found


@given(pipelines, st.lists(st.integers(0, 1 << 14), max_size=8))
def test_what_is_read_is_what_was_sent(pipeline: list[list[bytes]], cuts: list[int]) -> None:
    data = b"".join(request(*words) for words in pipeline)
    reader = RowReader()
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    found: list[list[bytes]] = []
    for start, end in pairwise(places):
        for row in reader.feed(data[start:end]):
            found += words_of(row)
    assert found == pipeline


@given(keys, st.integers(1, 40))
def test_each_byte_may_come_by_itself(key: bytes, count: int) -> None:
    pipeline = [[b"XADD", key, b"*", b"f", b"body"]] * count + [[b"PING"]]
    data = b"".join(request(*words) for words in pipeline)
    reader = RowReader()
    rows = [row for at in range(len(data)) for row in reader.feed(data[at : at + 1])]
    assert [words for row in rows for words in words_of(row)] == pipeline


def test_rows_are_read_together() -> None:
    pipeline = [[b"XDEL", bytes(24), b"17-0"]] * 16 + [
        [b"XRANGE", bytes(24), b"-", b"+", b"COUNT", b"1"]
    ] * 16
    rows = RowReader().feed(b"".join(request(*words) for words in pipeline))
    assert [(row.name, len(row.words), row.is_shaped) for row in rows] == [
        (ACKNOWLEDGE, 16, True),
        (READ, 16, True),
    ]


def test_what_is_no_command_is_told() -> None:
    reader = RowReader()
    reader.feed(request(b"XADD", bytes(24), b"*", b"f", b"body"))
    with pytest.raises(hiredis.ProtocolError):
        reader.feed(b"nonsense\r\n" * 10)
