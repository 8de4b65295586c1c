"""Rows of events: what is written is read, and rubbish at the end is no row."""

from hypothesis import given
from hypothesis import strategies as st

from syncline.values.events import EVENT_ROW_BYTES, Event, EventKind, decode_events, encode_event

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
    ]
    assert [int(kind) for kind in EventKind] == list(range(1, 14))
