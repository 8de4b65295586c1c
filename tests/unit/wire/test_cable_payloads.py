"""What travels inside the envelopes of Action Cable, in the dialects of its clients."""

import pytest
from msgspec import Raw

from syncline.errors import LimitExceededError, MalformedMessageError, UnexpectedMessageError
from syncline.wire import cable_payloads, yjs
from syncline.wire.cable_payloads import (
    ClientPayload,
    Frame,
    FrameSent,
    NumberedReceipt,
    Receipt,
    Resync,
    ServerPayload,
    Update,
    Updates,
    UpdatesApplied,
)
from syncline.wire.yjs import SyncStep1

STEP_1 = yjs.encode(SyncStep1(b"\0"))

SENT: list[tuple[str, ClientPayload]] = [
    ('{"update":"AAABAA=="}', FrameSent(STEP_1)),
    ('{"update":"AAABAA==","id":42}', FrameSent(STEP_1, number=42)),
    ('{"action":"update","clock":3,"update":"AAABAA=="}', FrameSent(STEP_1, clock=3)),
    ('{"action":"ack","id":9}', UpdatesApplied(9)),
]

SAID: list[tuple[bytes, ServerPayload]] = [
    (b'{"update":"AAABAA=="}', Frame(STEP_1)),
    (b'{"op":"update","id":9,"update":"AAABAA=="}', Update(9, STEP_1)),
    (b'{"op":"update","id":9,"updates":["AAABAA==",""]}', Updates(9, [STEP_1, b""])),
    (b'{"op":"ack","clock":3,"id":9}', Receipt(3, 9)),
    (b'{"ack":42}', NumberedReceipt(42)),
    (b'{"op":"resync","id":4}', Resync(4)),
]


@pytest.mark.parametrize(("data", "payload"), SENT)
def test_what_clients_send(data: str, payload: ClientPayload) -> None:
    assert cable_payloads.read_sent(data) == payload
    assert cable_payloads.read_sent(Raw(data.encode())) == payload


@pytest.mark.parametrize(("message", "payload"), SAID)
def test_what_the_router_says(message: bytes, payload: ServerPayload) -> None:
    assert cable_payloads.encode(payload) == message
    assert cable_payloads.read(Raw(message)) == payload


def test_an_update_of_the_router_is_a_frame_to_a_plain_client() -> None:
    message = cable_payloads.encode(Update(9, STEP_1))
    plain = cable_payloads.read(message.replace(b'"op":"update","id":9,', b""))
    assert plain == Frame(STEP_1)


@pytest.mark.parametrize(
    "data",
    ['{"action":"receive","update":"AAABAA=="}', '{"awareness":"AAABAA=="}'],
)
def test_other_ways_to_send_a_frame(data: str) -> None:
    assert cable_payloads.read_sent(data) == FrameSent(STEP_1)


def test_a_clock_goes_before_a_number() -> None:
    sent = cable_payloads.read_sent('{"action":"update","clock":3,"id":4,"update":""}')
    assert sent == FrameSent(b"", clock=3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "must be a JSON object"),
        ("\ud800", "must be a JSON object"),
        ("[]", "the key `update`"),
        ("{}", "`update` is missing"),
        ('{"update":null}', "`update` is missing"),
        ('{"update":"AAABAA"}', "`update` must be standard base64"),
        ('{"update":"AAA_AA=="}', "`update` must be standard base64"),
        ('{"update":[0]}', "`update` must be standard base64"),
        ('{"awareness":"!"}', "`awareness` must be standard base64"),
        ('{"update":"","clock":0}', "`clock` must be"),
        ('{"update":"","clock":"1"}', "`clock` must be"),
        ('{"update":"","id":-1}', "`id` must be"),
        ('{"update":"","id":1.5}', "`id` must be"),
        ('{"action":7}', "`action` must be a text"),
        ('{"action":"ack"}', "`id` of an acknowledgement"),
        ('{"action":"ack","id":1099511627776}', "`id` of an acknowledgement"),
    ],
)
def test_no_payload(data: str, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        cable_payloads.read_sent(data)


def test_an_action_that_no_channel_has() -> None:
    with pytest.raises(UnexpectedMessageError, match="`action`"):
        cable_payloads.read_sent('{"action":"destroy_all","update":""}')


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"{}", "`update` is missing"),
        (b"null", "the key `update`"),
        (b'{"op":"boo"}', "`op` must be"),
        (b'{"op":"ack","clock":1}', "`id` is missing"),
        (b'{"op":"update","id":1,"updates":["!"]}', "`updates` must be a list"),
        (b'{"ack":-1}', "`ack` must be"),
        (b'{"op":"resync","id":"x"}', "`id` must be"),
    ],
)
def test_nothing_the_router_says(message: bytes, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        cable_payloads.read(message)


def test_nesting_has_an_end() -> None:
    with pytest.raises(LimitExceededError, match="nesting"):
        cable_payloads.read_sent('{"x":' + "[" * 50_000)
