"""Envelopes of Action Cable, against the shapes its clients send and expect."""

import json

import pytest
from msgspec import Raw

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.wire import cable
from syncline.wire.cable import (
    AskHistory,
    AskPresence,
    Channel,
    ClientCommand,
    Confirmed,
    Data,
    Disconnect,
    HistoryConfirmed,
    HistoryRejected,
    HistoryRequest,
    Join,
    Leave,
    Perform,
    Ping,
    Pong,
    Rejected,
    ServerEvent,
    StreamPosition,
    Subscribe,
    Unsubscribe,
    Welcome,
    Whisper,
)
from tests.cable_events import decode_event

IDENTIFIER = '{"channel":"SyncChannel","path":"issues/1"}'
QUOTED = json.dumps(IDENTIFIER)

COMMANDS: list[tuple[str, ClientCommand]] = [
    (f'{{"command":"subscribe","identifier":{QUOTED}}}', Subscribe(identifier=IDENTIFIER)),
    (f'{{"command":"unsubscribe","identifier":{QUOTED}}}', Unsubscribe(identifier=IDENTIFIER)),
    (
        f'{{"command":"message","identifier":{QUOTED},"data":"{{\\"update\\":\\"AAA=\\"}}"}}',
        Perform(identifier=IDENTIFIER, data='{"update":"AAA="}'),
    ),
    (
        f'{{"command":"whisper","identifier":{QUOTED},"data":{{"awareness":"AQA="}}}}',
        Whisper(identifier=IDENTIFIER, data=Raw(b'{"awareness":"AQA="}')),
    ),
    (
        f'{{"command":"subscribe","identifier":{QUOTED},"history":'
        '{"since":1690000000.0,"streams":{"issues/1":{"epoch":"i1","offset":7}}}}',
        Subscribe(
            identifier=IDENTIFIER,
            history=HistoryRequest(1690000000.0, {"issues/1": StreamPosition("i1", 7)}),
        ),
    ),
    (
        f'{{"command":"history","identifier":{QUOTED},"history":{{"since":null,"streams":{{}}}}}}',
        AskHistory(identifier=IDENTIFIER, history=HistoryRequest()),
    ),
    ('{"command":"pong"}', Pong()),
    (f'{{"command":"join","identifier":{QUOTED}}}', Join(identifier=IDENTIFIER)),
    (f'{{"command":"leave","identifier":{QUOTED}}}', Leave(identifier=IDENTIFIER)),
    (f'{{"command":"presence","identifier":{QUOTED}}}', AskPresence(identifier=IDENTIFIER)),
]

EVENTS: list[tuple[str, ServerEvent]] = [
    ('{"type":"welcome"}', Welcome()),
    (
        '{"type":"welcome","sid":"s1","restored":true,"restored_ids":["a"]}',
        Welcome(sid="s1", restored=True, restored_ids=["a"]),
    ),
    ('{"type":"ping","message":1690000000}', Ping(message=1690000000)),
    (
        f'{{"type":"confirm_subscription","identifier":{QUOTED}}}',
        Confirmed(identifier=IDENTIFIER),
    ),
    (f'{{"type":"reject_subscription","identifier":{QUOTED}}}', Rejected(identifier=IDENTIFIER)),
    (
        f'{{"type":"confirm_history","identifier":{QUOTED}}}',
        HistoryConfirmed(identifier=IDENTIFIER),
    ),
    (f'{{"type":"reject_history","identifier":{QUOTED}}}', HistoryRejected(identifier=IDENTIFIER)),
    (
        '{"type":"disconnect","reason":"server_restart","reconnect":true}',
        Disconnect(reason="server_restart", reconnect=True),
    ),
    (
        f'{{"identifier":{QUOTED},"message":{{"update":"AAA="}}}}',
        Data(identifier=IDENTIFIER, message=Raw(b'{"update":"AAA="}')),
    ),
    (
        f'{{"identifier":{QUOTED},"message":null,"stream_id":"d","epoch":"i1","offset":7}}',
        Data(identifier=IDENTIFIER, message=Raw(b"null"), stream_id="d", epoch="i1", offset=7),
    ),
]


@pytest.mark.parametrize(("frame", "command"), COMMANDS)
def test_commands(frame: str, command: ClientCommand) -> None:
    assert cable.decode_command(frame.encode()) == command
    assert cable.encode(command) == frame.encode()


@pytest.mark.parametrize(("frame", "event"), EVENTS)
def test_events(frame: str, event: ServerEvent) -> None:
    assert decode_event(frame.encode()) == event
    assert cable.encode(event) == frame.encode()


def test_since_may_be_off() -> None:
    frame = b'{"command":"history","identifier":"i","history":{"since":false,"streams":{}}}'
    command = cable.decode_command(frame)
    assert isinstance(command, AskHistory)
    assert command.history.since is False


def test_a_head_a_payload_and_a_tail_are_a_frame() -> None:
    head, payload = cable.encode_head(IDENTIFIER), b'{"update":"AAA="}'
    plain = Data(identifier=IDENTIFIER, message=Raw(payload))
    assert head + payload + cable.encode_tail() == cable.encode(plain)
    placed = Data(
        identifier=IDENTIFIER, message=Raw(payload), stream_id="é", epoch='"', offset=1 << 39
    )
    tail = cable.encode_tail("é", StreamPosition('"', 1 << 39))
    assert head + payload + tail == cable.encode(placed)


def test_an_identifier_comes_back_byte_for_byte() -> None:
    identifier = '{ "path":"é/\\u00e9",\t"channel" : "C"}'
    frame = cable.encode(Subscribe(identifier=identifier))
    command = cable.decode_command(frame)
    assert isinstance(command, Subscribe)
    assert cable.encode(Confirmed(identifier=command.identifier)).endswith(
        frame.split(b'"identifier":')[1]
    )


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"", "no JSON object"),
        (b"nonsense", "no JSON object"),
        (b"[]", "the key `command`"),
        (b"{}", "`command` is missing"),
        (b'{"command":"s3cret"}', "`command` must be subscribe"),
        (b'{"command":"subscribe"}', "`identifier` is missing"),
        (b'{"command":"subscribe","identifier":{"channel":"C"}}', "`identifier` must be"),
        (b'{"command":"subscribe","identifier":"%b"}' % (b"x" * 2049), "`identifier` must be"),
        (b'{"command":"message","identifier":"i","data":{}}', "`data` must be a text"),
        (b'{"command":"message","identifier":"i"}', "`data` is missing"),
        (b'{"command":"whisper","identifier":"i"}', "`data` is missing"),
        (b'{"command":"history","identifier":"i"}', "`history` is missing"),
        (b'{"command":"history","identifier":"i","history":[]}', "`history` must be"),
        (
            b'{"command":"history","identifier":"i","history":{"streams":{"s":{"epoch":1,'
            b'"offset":1}}}}',
            "`history.streams` must be",
        ),
        (b'{"command":"message","identifier":"i","data":"\\ud800"}', "no JSON object"),
        (b'{"command":"message","identifier":"\xff","data":""}', "no UTF-8"),
    ],
)
def test_no_command(frame: bytes, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said) as raised:
        cable.decode_command(frame)
    assert "s3cret" not in str(raised.value)


def test_frames_are_bounded() -> None:
    with pytest.raises(LimitExceededError, match="size"):
        cable.decode_command(b'{"command":"pong"}', bytes_max=17)
    with pytest.raises(LimitExceededError, match="nesting"):
        cable.decode_command(b'{"command":"pong","x":' + b"[" * 50_000)


@pytest.mark.parametrize(
    ("identifier", "channel"),
    [
        (IDENTIFIER, Channel("SyncChannel", "issues/1", None)),
        ('{"channel":"C","document":"d","path":"p","id":"i"}', Channel("C", "d", None)),
        ('{"channel":"C","path":"p","id":"i","client":"tab-1"}', Channel("C", "p", "tab-1")),
        ('{"channel":"C","id":5}', Channel("C", "C/5", None)),
        ('{"channel":"C","id":"é","more":[{}]}', Channel("C", "C/é", None)),
    ],
)
def test_identifiers(identifier: str, channel: Channel) -> None:
    assert cable.read_identifier(identifier) == channel


@pytest.mark.parametrize(
    ("identifier", "said"),
    [
        ("", "must be a JSON object"),
        ("SyncChannel", "must be a JSON object"),
        ("[]", "the key `channel`"),
        ("[" * 2_000, "must be a JSON object"),
        ("\ud800", "must be a JSON object"),
        ('{"channel":"C","path":"\\ud800"}', "must be a JSON object"),
        ('{"path":"p"}', "`channel` is missing"),
        ('{"channel":"","path":"p"}', "`channel` must be the name"),
        ('{"channel":"C"}', "in `document`, `path` or `id`"),
        ('{"channel":"C","path":7}', "`path` must be a text"),
        ('{"channel":"C","id":true}', "`id` must be a text or a whole number"),
        ('{"channel":"C","path":""}', "1 to 200 bytes"),
        ('{"channel":"C","path":"a\\nb"}', "1 to 200 bytes"),
        ('{"channel":"C","id":"%s"}' % ("x" * 199), "1 to 200 bytes"),
        ('{"channel":"C","path":"p","client":"a b"}', "`client` must be an id"),
    ],
)
def test_no_identifiers(identifier: str, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        cable.read_identifier(identifier)
