"""The codec of the sync protocol: frames to messages and back, and what it says of bad ones."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire import sync
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import (
    Acknowledge,
    ClientMessage,
    Evicted,
    Failure,
    Hello,
    Mutate,
    Mutation,
    OfDocument,
    Ping,
    Pong,
    Position,
    Presence,
    Receipt,
    RenewToken,
    ServerMessage,
    ShowPresence,
    State,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
JSON: Encoding = "json"


def body(value: object, encoding: Encoding) -> Raw:
    return Raw(encode(value, encoding))


def encode(value: object, encoding: Encoding) -> bytes:
    return msgspec.json.encode(value) if encoding == "json" else msgspec.msgpack.encode(value)


def client_messages(encoding: Encoding) -> list[ClientMessage]:
    return [
        Hello(client="tab-1", version=1, token="t", policy="resume"),
        Hello(client="tab-1", version=1),
        Subscribe(document="d", kind=Kind.YJS, since=Position(incarnation="i", seq=7)),
        Subscribe(document="d"),
        Unsubscribe(document="d", epoch=3),
        Unsubscribe(document="d"),
        Mutate(document="d", clock=1, mutation=body({"a": [1]}, encoding), epoch=3),
        Acknowledge(document="d", seq=9, epoch=3),
        ShowPresence(document="d", state=body(None, encoding), epoch=3),
        Ping(nonce="n"),
        Ping(nonce=5),
        Ping(),
        RenewToken(token="t2"),
    ]


def server_messages(encoding: Encoding) -> list[ServerMessage]:
    return [
        Welcome(session="s", version=1, limits={"a": 1}, heartbeat_ms=5000, restored=["d"]),
        *of_document(encoding),
        Failure(code="malformed", message="m", retriable=False, document="d", clock=2),
        Failure(code="malformed", message="m", retriable=False),
        Pong(nonce=5),
    ]


def of_document(encoding: Encoding, epoch: int = 3) -> list[OfDocument]:
    return [
        Subscribed(
            document="d",
            kind=Kind.BYTES,
            incarnation="i",
            seq=4,
            resumed=False,
            may_write=True,
            clock=0,
            epoch=epoch,
        ),
        State(document="d", seq=4, state=body({"a": 1}, encoding), epoch=epoch),
        Mutation(
            document="d",
            seq=5,
            client="tab-2",
            clock=1,
            mutation=body({"a": None}, encoding),
            epoch=epoch,
        ),
        Receipt(document="d", clock=1, seq=6, epoch=epoch),
        Presence(document="d", states={"tab-2": body({"x": 1}, encoding)}, epoch=epoch),
        Unsubscribed(document="d", code="busy", message="m", retriable=True, epoch=epoch),
        Unsubscribed(document="d", epoch=epoch),
        Evicted(document="d", seq=2, epoch=epoch),
    ]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_messages_of_a_client_come_back(encoding: Encoding) -> None:
    for message in client_messages(encoding):
        assert sync.decode_client(sync.encode_client(message, encoding), encoding) == message


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_messages_of_the_router_come_back(encoding: Encoding) -> None:
    for message in server_messages(encoding):
        assert sync.decode_server(sync.encode_server(message, encoding), encoding) == message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("epoch", [0, 7, 200, 70_000, 1 << 33, limits.epoch_max])
def test_a_shared_head_and_a_tail_are_a_frame(encoding: Encoding, epoch: int) -> None:
    tail = sync.encode_epoch(epoch, encoding)
    for mine, theirs in zip(of_document(encoding, epoch), of_document(encoding, 12), strict=True):
        assert sync.encode_shared(theirs, encoding) + tail == sync.encode_server(mine, encoding)


def test_a_body_is_relayed_as_it_came() -> None:
    text = b'{ "b" : 1.50,\n "a":"\\u00e9" , "b":2 }'
    frame = b'{"type":"mutation","document":"d","epoch":1,"clock":1,"mutation": %b }' % text
    message = sync.decode_client(frame, JSON)
    assert isinstance(message, Mutate)
    relayed = Mutation(document="d", seq=1, client="c", clock=1, mutation=message.mutation, epoch=2)
    assert b'"mutation":%b,' % text in sync.encode_server(relayed, JSON)


def test_a_message_outlives_the_buffer_it_came_in() -> None:
    buffer = bytearray(b'{"type":"presence","document":"d","epoch":1,"state":"here"}')
    message = sync.decode_client(memoryview(buffer), JSON)
    buffer[:] = bytes(len(buffer))
    assert isinstance(message, ShowPresence)
    assert bytes(message.state) == b'"here"'


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_unknown_keys_are_ignored(encoding: Encoding) -> None:
    frame = encode(
        {"later": [{"x": 1}], "type": "ack", "seq": 1, "document": "d", "epoch": 2}, encoding
    )
    assert sync.decode_client(frame, encoding) == Acknowledge(document="d", seq=1, epoch=2)


def test_an_absent_field_may_be_null() -> None:
    frame = b'{"type":"subscribe","document":"d","from":null}'
    assert sync.decode_client(frame, JSON) == Subscribe(document="d")


def test_subprotocols_name_the_encodings() -> None:
    assert set(sync.SUBPROTOCOLS.values()) == set(ENCODINGS)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "mutations"}, "type"),
        ({"type": 1}, "type"),
        ({"type": "welcome"}, "type"),
        ({"document": ""}, "document"),
        ({"document": "é" * 101}, "document"),
        ({"document": "a\nb"}, "document"),
        ({"document": None}, "document"),
        ({"clock": 0}, "clock"),
        ({"clock": 1 << 53}, "clock"),
        ({"clock": True}, "clock"),
        ({"clock": 1.5}, "clock"),
        ({"clock": "1"}, "clock"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 1 << 53}, "epoch"),
        ({"type": "ack", "seq": 1 << 40}, "seq"),
        ({"type": "ack", "seq": -1}, "seq"),
        ({"type": "ack"}, "seq"),
        ({"type": "presence"}, "state"),
        ({"type": "hello", "version": 1}, "client"),
        ({"type": "hello", "version": 1, "client": "a b"}, "client"),
        ({"type": "hello", "version": 1, "client": "a\n"}, "client"),
        ({"type": "hello", "version": "1", "client": "a"}, "version"),
        ({"type": "hello", "version": 1, "client": "a", "policy": "dirty"}, "policy"),
        ({"type": "hello", "version": 1, "client": "a", "token": "s3cret" * 1366}, "token"),
        ({"type": "token", "token": ["s3cret"]}, "token"),
        ({"type": "subscribe", "kind": "xml"}, "kind"),
        ({"type": "subscribe", "from": 4}, "from"),
        ({"type": "subscribe", "from": {"seq": 1}}, "incarnation"),
        ({"type": "subscribe", "from": {"incarnation": "i", "seq": -1}}, "from.seq"),
        ({"type": "ping", "nonce": {}}, "nonce"),
        ({"type": "ping", "nonce": "n" * 65}, "nonce"),
        ({"type": "s3cret"}, "type"),
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bad_field_is_named_and_not_repeated(
    change: dict[str, Any], field: str, encoding: Encoding
) -> None:
    good = {"type": "mutation", "document": "d", "epoch": 1, "clock": 1, "mutation": {}}
    sync.decode_client(encode(good, encoding), encoding)
    with pytest.raises(MalformedMessageError, match=f"`{field}`") as raised:
        sync.decode_client(encode(good | change, encoding), encoding)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("missing", ["type", "document", "epoch", "clock", "mutation"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields: dict[str, Any] = {"type": "mutation", "document": "d", "epoch": 1, "clock": 1}
    fields["mutation"] = {}
    del fields[missing]
    with pytest.raises(MalformedMessageError, match=f"`{missing}` is missing"):
        sync.decode_client(encode(fields, JSON), JSON)


def test_a_bad_field_of_the_router_is_named() -> None:
    with pytest.raises(MalformedMessageError, match="`heartbeat_ms` must be of the type"):
        sync.decode_server(
            b'{"type":"welcome","session":"s","version":1,"limits":{},"heartbeat_ms":"x",'
            b'"restored":[]}',
            JSON,
        )
    with pytest.raises(MalformedMessageError, match="`type` must be welcome"):
        sync.decode_server(b'{"type":"hello"}', JSON)


@pytest.mark.parametrize(
    ("encoding", "frame", "said"),
    [
        ("json", b"", "no message in json"),
        ("json", b"nonsense", "no message in json"),
        ("json", b"[]", "must be a map"),
        ("json", b'"ping"', "must be a map"),
        ("json", b'{"type":"ping"}{}', "no message in json"),
        ("json", b'{"type":"ping","nonce":NaN}', "no message in json"),
        ("json", b'{"type":"ping","nonce":"\\ud800"}', "no message in json"),
        ("json", b'{"type":"ping","nonce":"\xff"}', "no UTF-8"),
        ("json", b"\xef\xbb\xbf{}", "no message in json"),
        ("json", b'{"type":"ping","type":"pong"}', "`type` must be"),
        ("msgpack", b"", "no message in msgpack"),
        ("msgpack", b"\x90", "must be a map"),
        ("msgpack", b"\x81\x01\xa4ping", "must be a map with text as keys"),
        ("msgpack", b"\x81\xa4type\xa4ping\xc0", "no message in msgpack"),
        ("msgpack", b"\xdf\xff\xff\xff\xff", "no message in msgpack"),
        ("msgpack", b"\x81\xa4type\xdb\xff\xff\xff\xff", "no message in msgpack"),
        ("msgpack", b"\x81\xdb\xff\xff\xff\xff", "no message in msgpack"),
        ("msgpack", b"\x82\xa4type\xa4ping\xa5nonce\xa1\xff", "no UTF-8"),
        ("msgpack", b"\xc1", "no message in msgpack"),
        ("msgpack", b'{"type":"ping"}', "no message in msgpack|must be a map"),
    ],
)
def test_bytes_that_are_no_message(encoding: Encoding, frame: bytes, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        sync.decode_client(frame, encoding)


@pytest.mark.parametrize(
    ("encoding", "frame"),
    [
        ("json", b'{"type":"ping","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        ("msgpack", b"\x82\xa4type\xa4ping\xa1x" + b"\x91" * 50_000 + b"\xc0"),
    ],
)
def test_nesting_has_an_end(encoding: Encoding, frame: bytes) -> None:
    with pytest.raises(LimitExceededError, match="nesting"):
        sync.decode_client(frame, encoding)


def test_a_frame_has_a_largest_size() -> None:
    frame = sync.encode_client(Ping(), JSON)
    assert sync.decode_client(frame, JSON, bytes_max=len(frame)) == Ping()
    with pytest.raises(LimitExceededError) as raised:
        sync.decode_client(frame, JSON, bytes_max=len(frame) - 1)
    assert (raised.value.value, raised.value.limit) == (len(frame), len(frame) - 1)
    with pytest.raises(LimitExceededError):
        sync.decode_client(b" " * (limits.frame_bytes_max + 1), JSON)
    with pytest.raises(LimitExceededError):
        sync.decode_server(b" " * 3, JSON, bytes_max=2)


def test_a_message_does_not_show_its_token() -> None:
    for message in (Hello(client="c", version=1, token="s3cret"), RenewToken(token="s3cret")):
        assert "s3cret" not in repr(message)
