"""What is inside of boxes, against bytes of the reference."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp import bodies
from syncline.wire.smp.bodies import Notification, QuotaReached, ReceivedMessage
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.versions import body_bytes_max
from tests.unit.wire.smp.vectors import CORR_ID

TIME_S = 1_700_000_000
BOX = SecretBox(bytes(range(32)))


def test_a_message_has_the_bytes_of_the_reference() -> None:
    message = ReceivedMessage(TIME_S, b"T", b"hello")
    encoded = bytes.fromhex("000000006553f100542068656c6c6f")
    assert bodies.encode_received(message) == encoded
    assert bodies.decode_received(encoded) == message
    assert message.wants_notification
    assert not ReceivedMessage(TIME_S, b"F", b"").wants_notification


def test_a_quota_marker_has_the_bytes_of_the_reference() -> None:
    encoded = bytes.fromhex("51554f544120000000006553f100")
    assert bodies.encode_received(QuotaReached(TIME_S)) == encoded
    assert bodies.decode_received(encoded) == QuotaReached(TIME_S)


def test_a_notification_has_the_bytes_of_the_reference() -> None:
    notification = Notification(CORR_ID, TIME_S)
    encoded = bytes.fromhex(f"18{CORR_ID.hex()}000000006553f100")
    assert bodies.encode_notification(notification) == encoded
    assert bodies.decode_notification(encoded) == notification
    assert bodies.decode_notification(encoded + b"later") == notification


def test_the_sender_id_of_a_correlation_id_is_that_of_the_reference() -> None:
    assert bodies.sender_id_of(CORR_ID).hex() == "7ce370fd7d776358c31812d464b7b390708c52dce0010b0f"


def test_flags_end_at_a_space_and_only_the_first_counts() -> None:
    time = bytes(8)
    assert bodies.decode_received(time + b"F ") == ReceivedMessage(0, b"F", b"")
    assert bodies.decode_received(time + b"Tabc  x y") == ReceivedMessage(0, b"T", b" x y")


def test_a_message_that_starts_like_a_marker_is_none() -> None:
    message = ReceivedMessage(TIME_S, b"F", b"QUOTA ")
    assert bodies.decode_received(bodies.encode_received(message)) == message


@pytest.mark.parametrize("body", [b"", b"hello", bytes(16_048), bytes(16_088)], ids=len)
def test_all_boxed_messages_have_the_same_length(body: bytes) -> None:
    message = ReceivedMessage(TIME_S, b"F", body)
    boxed = bodies.seal_received(BOX, CORR_ID, message)
    assert len(boxed) == 16_122
    assert bodies.seal_received(BOX, CORR_ID, message) == boxed
    assert bodies.open_received(BOX, CORR_ID, boxed) == message
    assert len(bodies.seal_received(BOX, CORR_ID, QuotaReached(TIME_S))) == 16_122


def test_the_largest_body_of_every_version_fits() -> None:
    for version in range(6, 21):
        message = ReceivedMessage(TIME_S, b"Tabcdef", bytes(body_bytes_max(version)))
        assert len(bodies.seal_received(BOX, CORR_ID, message)) == 16_122


def test_a_boxed_notification_has_144_bytes() -> None:
    notification = Notification(CORR_ID, TIME_S)
    boxed = bodies.seal_notification(BOX, CORR_ID, notification)
    assert len(boxed) == 144
    assert bodies.open_notification(BOX, CORR_ID, boxed) == notification


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"QUOTA ", b"QUOTA 1234567", b"QUOTA 123456789", bytes(8), bytes(8) + b"T"),
        *(bytes(8) + b"X hello", bytes(8) + b" T hello", bytes(7) + b"T hello"),
    ],
)
def test_no_message(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        bodies.decode_received(data)


@pytest.mark.parametrize("data", [b"", b"\x18", b"\x00" + bytes(7)])
def test_no_notification(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        bodies.decode_notification(data)


def test_a_body_is_not_shown() -> None:
    assert "hello" not in repr(ReceivedMessage(TIME_S, b"T", b"hello"))
