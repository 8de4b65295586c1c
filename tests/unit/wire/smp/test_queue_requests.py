"""NEW in its four forms, beyond the bytes of the reference."""

import pytest

from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.commands import (
    LinkRequest,
    New,
    NotifierKeys,
    QueueRequest,
    decode_command,
    encode_command,
)
from syncline.wire.smp.failures import Failure, FailureError
from tests.unit.wire.smp.vectors import AUTH_KEY, CC, DD, DH_KEY

KEYS = b"NEW \x2c" + AUTH_KEY.encoded + b"\x2c" + DH_KEY.encoded
NOTIFIER = NotifierKeys(AUTH_KEY, DH_KEY)
CONTACT_LINK = QueueRequest(QueueMode.CONTACT, LinkRequest(CC, DD, b"fix", b"user"))
MESSAGING_LINK = QueueRequest(QueueMode.MESSAGING, LinkRequest(None, DD, b"fix", b"user"))


def refusal(version: int, data: bytes) -> Failure:
    with pytest.raises(FailureError) as refused:
        decode_command(version, data)
    return refused.value.failure


def form_of(version: int) -> str:
    if version >= 17:
        return "17-"
    return "15-16" if version >= 15 else "9-14" if version >= 9 else "6-8"


PLAIN = {"6-8": b"S", "9-14": b"0SF", "15-16": b"0S0", "17-": b"0S00"}


@pytest.mark.parametrize("version", range(6, 21))
def test_each_version_reads_its_own_form_and_no_other(version: int) -> None:
    for form, parameters in PLAIN.items():
        if form == form_of(version):
            new = decode_command(version, KEYS + parameters)
            assert isinstance(new, New)
            assert new.subscribes
            assert new.password is None
            assert encode_command(version, new) == KEYS + parameters
        else:
            assert refusal(version, KEYS + parameters) == failures.SYNTAX


@pytest.mark.parametrize("version", range(6, 9))
def test_before_9_a_queue_has_no_request(version: int) -> None:
    new = New(AUTH_KEY, DH_KEY, b"pw", subscribes=False)
    assert decode_command(version, KEYS + b"A\x02pwC") == new
    assert encode_command(version, new) == KEYS + b"A\x02pwC"
    assert decode_command(version, KEYS + b"A\x00S") == New(AUTH_KEY, DH_KEY, b"")
    assert encode_command(
        version, New(AUTH_KEY, DH_KEY, request=QueueRequest(QueueMode.MESSAGING))
    ) == (KEYS + b"S")
    assert refusal(version, KEYS + b"1\x02pwC") == failures.SYNTAX


@pytest.mark.parametrize("version", range(9, 15))
def test_from_9_to_14_a_flag_says_whether_the_sender_may_secure(version: int) -> None:
    for flag, mode in ((b"T", QueueMode.MESSAGING), (b"F", QueueMode.CONTACT)):
        new = New(AUTH_KEY, DH_KEY, request=QueueRequest(mode))
        assert decode_command(version, KEYS + b"0S" + flag) == new
        assert encode_command(version, new) == KEYS + b"0S" + flag
    assert encode_command(version, New(AUTH_KEY, DH_KEY)) == KEYS + b"0SF"
    assert refusal(version, KEYS + b"A\x02pwSF") == failures.SYNTAX


@pytest.mark.parametrize("version", range(15, 21))
@pytest.mark.parametrize(
    ("request_", "encoded"),
    [
        (None, b"0"),
        (QueueRequest(QueueMode.MESSAGING), b"1M0"),
        (QueueRequest(QueueMode.CONTACT), b"1C0"),
        (MESSAGING_LINK, b"1M1\x18" + DD + b"\x00\x03fix\x00\x04user"),
        (CONTACT_LINK, b"1C1\x18" + CC + b"\x18" + DD + b"\x00\x03fix\x00\x04user"),
    ],
)
def test_from_15_on_a_queue_is_asked_for_with_its_link(
    version: int, request_: QueueRequest | None, encoded: bytes
) -> None:
    new = New(AUTH_KEY, DH_KEY, b"pw", subscribes=False, request=request_)
    whole = KEYS + b"1\x02pwC" + encoded + (b"0" if version >= 17 else b"")
    assert encode_command(version, new) == whole
    assert decode_command(version, whole) == new


@pytest.mark.parametrize("version", range(6, 21))
def test_a_notifier_is_made_from_17_on(version: int) -> None:
    new = New(AUTH_KEY, DH_KEY, notifier=NOTIFIER)
    encoded = KEYS + b"0S01\x2c" + AUTH_KEY.encoded + b"\x2c" + DH_KEY.encoded
    if version >= 17:
        assert encode_command(version, new) == encoded
        assert decode_command(version, encoded) == new
    else:
        with pytest.raises(ValueError, match="no notifier"):
            encode_command(version, new)


@pytest.mark.parametrize("version", range(6, 15))
def test_a_link_is_not_dropped_in_silence(version: int) -> None:
    with pytest.raises(ValueError, match="has no link"):
        encode_command(version, New(AUTH_KEY, DH_KEY, request=CONTACT_LINK))


@pytest.mark.parametrize(
    "parameters",
    [b"0X00", b"0S1X00", b"0S1M", b"0S1M2", b"2S00", b"0S02", b"0S1m00", b"S00", b"0s00", b"0S000"],
)
def test_what_is_no_request(parameters: bytes) -> None:
    assert refusal(20, KEYS + parameters) == failures.SYNTAX


def test_only_a_contact_address_has_its_link_id_from_the_client() -> None:
    with pytest.raises(ValueError, match="link of a contact address"):
        QueueRequest(QueueMode.CONTACT, LinkRequest(None, DD, b"", b""))
    with pytest.raises(ValueError, match="link of a contact address"):
        QueueRequest(QueueMode.MESSAGING, LinkRequest(CC, DD, b"", b""))
