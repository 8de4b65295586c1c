"""Rows of events: what is written is read, and rubbish at the end is no row."""

from hypothesis import given
from hypothesis import strategies as st

from syncline.values.events import (
    EVENT_ROW_BYTES,
    Event,
    EventKind,
    author_number,
    decode_events,
    encode_event,
)

numbers = st.integers(0, (1 << 64) - 1)
events = st.builds(
    Event,
    st.integers(0, 255),
    st.integers(0, (1 << 56) - 1),
    st.binary(min_size=24, max_size=24),
    numbers,
    numbers,
    numbers,
    numbers,
)


@given(st.lists(events), st.binary(max_size=EVENT_ROW_BYTES - 1))
def test_events_read_back_in_order(noted: list[Event], rest: bytes) -> None:
    rows = b"".join(encode_event(*event) for event in noted)
    assert len(rows) == 64 * len(noted)
    assert list(decode_events(rows + rest)) == noted


def test_numbers_of_kinds_never_change() -> None:
    assert [kind.name for kind in EventKind] == [
        "STARTED",
        "CONNECTED",
        "DISCONNECTED",
        "SUBSCRIBED",
        "UNSUBSCRIBED",
        "DELIVERED",
        "RESENT",
        "ACKNOWLEDGED",
        "EVICTED",
        "ASSOCIATED",
        "DISSOCIATED",
        "DISPLACED",
        "DROPPED",
        "REPEATED",
        "EXPIRED",
    ]
    assert [int(kind) for kind in EventKind] == list(range(1, 16))


def test_the_number_of_an_author_never_changes_and_fits_a_row() -> None:
    # As Spark's xxhash64 has them, see tests/pipeline/test_ingest.py.
    numbers = {
        "": -7_444_071_767_201_028_348,
        "a": -8_582_455_328_737_087_284,
        "ä": 7_417_751_083_862_048_809,
    }
    for author, number in numbers.items():
        assert author_number(author) == author_number(author.encode()) == number
        (event,) = decode_events(encode_event(EventKind.SUBSCRIBED, 0, detail=number))
        assert event.detail == number % 2**64
    assert min(numbers.values()) < 0
