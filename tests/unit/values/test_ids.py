"""Stream ids: 24 bytes, 32 characters, nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.values.ids import STREAM_ID_BYTES, STREAM_ID_CHARACTERS, StreamId


@given(st.binary(min_size=STREAM_ID_BYTES, max_size=STREAM_ID_BYTES))
def test_an_id_is_the_same_after_text(value: bytes) -> None:
    stream = StreamId(value)
    assert len(str(stream)) == STREAM_ID_CHARACTERS
    assert StreamId.parse(str(stream)) == stream == value


def test_an_id_is_written_in_base64url() -> None:
    stream = StreamId(bytes([0xFB, 0xFF, 0xBE] * 8))
    assert str(stream) == "-_--" * 8
    assert repr(stream) == f"StreamId('{'-_--' * 8}')"
    assert StreamId.parse("-_--" * 8) == stream


def test_equal_ids_are_one_key() -> None:
    assert {StreamId(b"a" * 24): 1}[StreamId(b"a" * 24)] == 1
    assert StreamId(b"a" * 24) != StreamId(b"b" * 24)


@pytest.mark.parametrize("length", [0, 1, 23, 25, 1_000])
def test_bytes_of_another_length_are_refused_with_both_lengths(length: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"has 24 bytes, this one has {length}"):
        StreamId(bytes(length))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "32 base64url characters, this one has 0"),
        ("A" * 31, "32 base64url characters, this one has 31"),
        ("A" * 33, "32 base64url characters, this one has 33"),
        ("+" * 32, "base64url"),
        ("/" * 32, "base64url"),
        ("A" * 31 + "=", "24 bytes, this one has 23"),
        ("A" * 30 + "==", "24 bytes, this one has 22"),
        ("A" * 31 + "\n", "base64url"),
        ("A" * 28 + " A A", "base64url"),
        ("é" * 32, "base64url"),
        ("\ud800" * 32, "base64url"),
        ("../../../../../../../../../etc/pa", "base64url"),
    ],
)
def test_text_that_is_no_id_is_refused(text: str, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        StreamId.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        stream = StreamId.parse(text)
    except MalformedMessageError:
        return
    assert str(stream) == text
