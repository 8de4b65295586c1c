"""The envelopes of Action Cable (docs/formats/cable.md): a client's commands, the router's events.

Spoken are `actioncable-v1-json`, and of `actioncable-v1-ext-json` sessions, offsets and history.
Frames are text, one JSON object each. What a document says travels inside, as `data` of a command
and `message` of an event: `syncline.wire.cable_payloads` reads that.

An identifier is a key and nothing else to the protocol: it comes back as it came, byte for byte.
What the router needs of it is in `read_identifier`.

One update goes to many readers, each under an identifier of its own:

    head = encode_head(subscription.identifier)     once for a subscription
    tail = encode_tail(stream, position)            once for all readers
    frame = head + payload + tail
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, json

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire import names
from syncline.wire.faults import describe

JSON = "actioncable-v1-json"
EXTENDED = "actioncable-v1-ext-json"
SUBPROTOCOLS = (EXTENDED, JSON)

Decoded = TypeVar("Decoded")

Identifier = Annotated[str, Meta(max_length=limits.cable_identifier_characters_max)]
Offset = Annotated[int, Meta(ge=0, le=limits.sequence_max)]
Reason = Literal["unauthorized", "invalid_request", "server_restart", "remote"]


class StreamPosition(Struct, frozen=True, gc=False):
    """How far a client has read a stream: the life of the document, and a sequence of it."""

    epoch: Annotated[str, Meta(max_length=64)]
    offset: Offset


class HistoryRequest(Struct, frozen=True, gc=False):
    """What a client wants sent again. `since` is a time in seconds, and false if it is off."""

    since: float | bool | None = None
    streams: dict[str, StreamPosition] = {}


# ------------------------------------------------------------------------------ client to router


class Command(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="command"):
    """What every command has in common: a map with the key `command`."""


class Subscribe(Command, tag="subscribe", frozen=True, kw_only=True):
    identifier: Identifier
    history: HistoryRequest | None = None


class Unsubscribe(Command, tag="unsubscribe", frozen=True, kw_only=True):
    identifier: Identifier


class Perform(Command, tag="message", frozen=True, kw_only=True):
    """`data` is JSON again, as text."""

    identifier: Identifier
    data: str


class Whisper(Command, tag="whisper", frozen=True, kw_only=True):
    """For the other subscribers, never stored. `data` is any JSON value."""

    identifier: Identifier
    data: Raw


class AskHistory(Command, tag="history", frozen=True, kw_only=True):
    identifier: Identifier
    history: HistoryRequest


class Pong(Command, tag="pong", frozen=True, kw_only=True):
    pass


class Join(Command, tag="join", frozen=True, kw_only=True):
    """Read so that a client that sends it is not cut off; presence of this kind is not offered."""

    identifier: Identifier


class Leave(Command, tag="leave", frozen=True, kw_only=True):
    """As `Join`."""

    identifier: Identifier


class AskPresence(Command, tag="presence", frozen=True, kw_only=True):
    """As `Join`."""

    identifier: Identifier


ClientCommand = (
    Subscribe | Unsubscribe | Perform | Whisper | AskHistory | Pong | Join | Leave | AskPresence
)


# ------------------------------------------------------------------------------ router to client


class Event(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every event but `Data` has in common: a map with the key `type`."""


class Welcome(Event, tag="welcome", frozen=True, kw_only=True):
    """The session id and what was restored are for `actioncable-v1-ext-json` alone."""

    sid: str | None = None
    restored: bool = False
    restored_ids: list[str] | None = None


class Ping(Event, tag="ping", frozen=True, kw_only=True):
    """`message` is a time in seconds."""

    message: int


class Confirmed(Event, tag="confirm_subscription", frozen=True, kw_only=True):
    identifier: str


class Rejected(Event, tag="reject_subscription", frozen=True, kw_only=True):
    identifier: str


class HistoryConfirmed(Event, tag="confirm_history", frozen=True, kw_only=True):
    identifier: str


class HistoryRejected(Event, tag="reject_history", frozen=True, kw_only=True):
    identifier: str


class Disconnect(Event, tag="disconnect", frozen=True, kw_only=True):
    """The connection ends; if `reconnect` is false the client does not come back by itself."""

    reason: Reason
    reconnect: bool


class Data(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A message of a subscription; where it stands in the stream only in the extended protocol."""

    identifier: str
    message: Raw
    stream_id: str | None = None
    epoch: str | None = None
    offset: int | None = None


TypedEvent = Welcome | Ping | Confirmed | Rejected | HistoryConfirmed | HistoryRejected | Disconnect
ServerEvent = TypedEvent | Data


# -------------------------------------------------------------------------------------- codec

_rules = {
    "command": "subscribe, unsubscribe, message, history, whisper, pong, join, leave or presence",
    "data": "a text that is JSON again",
    "epoch": "a text of at most 64 characters",
    "history": "a map of `since` and `streams`",
    "identifier": f"a text of at most {limits.cable_identifier_characters_max} characters",
    "offset": f"a whole number from 0 to {limits.sequence_max}",
    "since": "a time in seconds",
    "streams": "a map of stream ids to `epoch` and `offset`",
}
_encoder = json.Encoder()
_commands: json.Decoder[ClientCommand] = json.Decoder(ClientCommand)


def decode_command(
    data: bytes | bytearray | memoryview, bytes_max: int = limits.frame_bytes_max
) -> ClientCommand:
    """What a client sent in one frame.

    Raises LimitExceededError if the frame is too large or too deep, and MalformedMessageError with
    the field at fault if it is no command.
    """
    return _decode(_commands, data, bytes_max, "command")


def encode(message: ClientCommand | ServerEvent) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def encode_head(identifier: str) -> bytes:
    """What comes before the payload in the frames of a subscription."""
    return b'{"identifier":%b,"message":' % _encoder.encode(identifier)


def encode_tail(stream: str | None = None, position: StreamPosition | None = None) -> bytes:
    """What comes after the payload: in the extended protocol, where it stands in its stream."""
    if stream is None or position is None:
        return b"}"
    return b',"stream_id":%b,"epoch":%b,"offset":%d}' % (
        _encoder.encode(stream),
        _encoder.encode(position.epoch),
        position.offset,
    )


def _decode(
    decoder: "json.Decoder[Decoded]", data: bytes | bytearray | memoryview, bytes_max: int, key: str
) -> Decoded:
    if len(data) > bytes_max:
        raise LimitExceededError("the size of the frame in bytes", len(data), bytes_max)
    try:
        return decoder.decode(bytes(data))
    except msgspec.ValidationError as error:
        no_map = f"the frame must be a JSON object with the key `{key}`"
        raise MalformedMessageError(describe(str(error), _rules, no_map)) from None
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"the frame is no JSON object: {error}") from None
    except UnicodeDecodeError:
        raise MalformedMessageError("text in the frame is no UTF-8") from None
    except RecursionError:
        raise LimitExceededError(
            "the nesting of the frame", limits.json_depth_max + 1, limits.json_depth_max
        ) from None


# --------------------------------------------------------------------------------- identifiers


class Channel(Struct, frozen=True, gc=False):
    """What an identifier asks for."""

    name: str
    document: str
    # Names the replica across reconnects, where the subscription has the parameter `client`.
    client: str | None


class _Parameters(Struct, gc=False):
    channel: Annotated[str, Meta(min_length=1)]
    document: str | None = None
    path: str | None = None
    id: str | int | None = None
    client: Annotated[str, Meta(pattern=names.client_pattern)] | None = None


_parameters = json.Decoder(_Parameters)
_parameter_rules = {
    "channel": "the name of a channel",
    "client": names.client_rule,
    "document": "a text",
    "path": "a text",
    "id": "a text or a whole number",
}


def read_identifier(identifier: str) -> Channel:
    """The channel and the document that an identifier names.

    The document is the parameter `document`, else `path`, else `<channel>/<id>`: ids are unique
    within a channel only. Raises MalformedMessageError if there is none or it is no name.
    """
    try:
        found = _parameters.decode(identifier)
    except msgspec.ValidationError as error:
        no_map = "an identifier must be a JSON object with the key `channel`, as text"
        reason = describe(str(error), _parameter_rules, no_map)
        raise MalformedMessageError(f"in the identifier, {reason}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise MalformedMessageError("an identifier must be a JSON object, as text") from None
    document = found.document if found.document is not None else found.path
    if document is None:
        if found.id is None:
            raise MalformedMessageError(
                "an identifier names its document in `document`, `path` or `id`; add one of them"
            )
        document = f"{found.channel}/{found.id}"
    return Channel(found.channel, names.check_document(document), found.client)
