"""Messages as the log keeps them."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp.stored import StoredMessage, marker_id
from tests.unit.wire.smp.vectors import CORR_ID


@pytest.mark.parametrize("flags", [b"", b"T", b"Fabcdef"])
@pytest.mark.parametrize("body", [b"", b" hello", bytes(16_088)], ids=len)
def test_a_message_comes_back(flags: bytes, body: bytes) -> None:
    message = StoredMessage(CORR_ID, flags, body)
    payload = message.encoded()
    assert payload == b"\x01" + CORR_ID + bytes((len(flags),)) + flags + body
    assert StoredMessage.decode(payload) == message


def test_a_payload_that_is_cut_short_is_refused() -> None:
    payload = StoredMessage(CORR_ID, b"T", b"").encoded()
    for cut in range(len(payload)):
        with pytest.raises(MalformedMessageError):
            StoredMessage.decode(payload[:cut])


def test_another_version_is_refused() -> None:
    payload = StoredMessage(CORR_ID, b"T", b"hello").encoded()
    for version in (0, 2):
        with pytest.raises(MalformedMessageError, match="is no message"):
            StoredMessage.decode(bytes((version,)) + payload[1:])


def test_a_message_id_has_24_bytes() -> None:
    with pytest.raises(ValueError, match="24 bytes"):
        StoredMessage(CORR_ID[1:], b"T", b"").encoded()


def test_a_marker_has_the_same_id_at_each_delivery_and_no_other_has_it() -> None:
    secret, other = bytes(32), bytes(31) + b"\x01"
    ids = {
        marker_id(of, sequence, time_ms)
        for of in (secret, other)
        for sequence in (1, 2, 1 << 40)
        for time_ms in (0, 1, 1_700_000_000_000)
    }
    assert len(ids) == 18
    assert {len(each) for each in ids} == {24}
    assert marker_id(secret, 1, 0) in ids


def test_a_body_is_not_shown() -> None:
    assert "hello" not in repr(StoredMessage(CORR_ID, b"T", b"hello"))
