"""The codec of the sync protocol: frames to messages and back, in JSON or MessagePack.

The messages are in `syncline.wire.sync_messages`, what they carry in `syncline.wire.sync_bodies`,
the rules on docs/formats/sync.md. The router uses `decode_client` and `encode_server`, a client
the other two.

One mutation goes to many readers, and only `epoch` differs between them. It is the last field, so a
frame is a head that is encoded once per encoding and a tail that is encoded once per subscription:

    head = encode_shared(mutation, "json")              once for all readers in JSON
    tail = encode_epoch(subscription.epoch, "json")     once for a subscription
    frame = head + tail
"""

from typing import Any, Literal

import msgspec
from msgspec import json, msgpack

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire import names
from syncline.wire.faults import describe
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import ClientMessage, OfDocument, ServerMessage

VERSION = 1
SUBPROTOCOLS: dict[str, Encoding] = {"syncline.v1.json": "json", "syncline.v1.msgpack": "msgpack"}

_Sender = Literal["client", "router"]

_decoders: dict[tuple[_Sender, Encoding], "json.Decoder[Any] | msgpack.Decoder[Any]"] = {
    ("client", "json"): json.Decoder(ClientMessage),
    ("client", "msgpack"): msgpack.Decoder(ClientMessage),
    ("router", "json"): json.Decoder(ServerMessage),
    ("router", "msgpack"): msgpack.Decoder(ServerMessage),
}
_encoders: dict[Encoding, json.Encoder | msgpack.Encoder] = {
    "json": json.Encoder(),
    "msgpack": msgpack.Encoder(),
}


def decode_client(
    data: bytes | bytearray | memoryview,
    encoding: Encoding,
    bytes_max: int = limits.frame_bytes_max,
) -> ClientMessage:
    """What a client sent in one frame.

    Raises LimitExceededError if the frame is too large, and MalformedMessageError with the field
    at fault if it is no message. A body in it is not looked at yet. The message does not refer to
    `data`, whose buffer may be used again.
    """
    message: ClientMessage = _decode(data, "client", encoding, bytes_max)
    return message


def decode_server(
    data: bytes | bytearray | memoryview,
    encoding: Encoding,
    bytes_max: int = limits.state_frame_bytes_max,
) -> ServerMessage:
    """What the router sent in one frame; raises as `decode_client` does."""
    message: ServerMessage = _decode(data, "router", encoding, bytes_max)
    return message


def encode_client(message: ClientMessage, encoding: Encoding) -> bytes:
    """One frame of a client."""
    return _encoders[encoding].encode(message)


def encode_server(message: ServerMessage, encoding: Encoding) -> bytes:
    """One frame of the router."""
    return _encoders[encoding].encode(message)


def encode_shared(message: OfDocument, encoding: Encoding) -> bytes:
    """A frame without its epoch: the head that all readers share, to be followed by a tail."""
    frame = _encoders[encoding].encode(message)
    return frame[: -len(encode_epoch(message.epoch, encoding))]


def encode_epoch(epoch: int, encoding: Encoding) -> bytes:
    """The tail of a frame: its epoch, and the end of the map if that has one."""
    return b"%d}" % epoch if encoding == "json" else msgpack.encode(epoch)


# ------------------------------------------------------------------------------------------- rules

_whole = f"a whole number from 0 to {limits.clock_max}"
_common_rules = {
    "client": names.client_rule,
    "clock": f"a whole number from 1 to {limits.clock_max}",
    "document": names.document_rule,
    "epoch": _whole,
    "from": "a map of `incarnation` and `seq`",
    "incarnation": "a text of 1 to 64 characters",
    "kind": "`json`, `yjs` or `bytes`",
    "nonce": f"a text of at most 64 characters or {_whole}",
    "policy": "`clean`, `intent` or `resume`",
    "seq": f"a whole number from 0 to {limits.sequence_max}",
    "token": f"a text of at most {limits.token_bytes_max} characters",
    "version": _whole,
}
_rules: dict[_Sender, dict[str, str]] = {
    "client": _common_rules
    | {"type": "hello, subscribe, unsubscribe, mutation, ack, presence, ping or token"},
    "router": _common_rules
    | {
        "type": "welcome, subscribed, state, mutation, ack, presence, unsubscribed, evicted, "
        "error or pong"
    },
}
_no_map = "the frame must be a map with text as keys and the key `type`"


# ----------------------------------------------------------------------------------------- reading


def _decode(
    data: bytes | bytearray | memoryview, sender: _Sender, encoding: Encoding, bytes_max: int
) -> Any:
    if len(data) > bytes_max:
        raise LimitExceededError("the size of the frame in bytes", len(data), bytes_max)
    try:
        # A body is a view of what it was decoded from, and the transport may use its buffer again.
        message = _decoders[sender, encoding].decode(bytes(data))
    except msgspec.ValidationError as error:
        raise MalformedMessageError(describe(str(error), _rules[sender], _no_map)) from None
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"the frame is no message in {encoding}: {error}") from None
    except UnicodeDecodeError:
        raise MalformedMessageError("text in the frame is no UTF-8") from None
    except RecursionError:
        raise LimitExceededError(
            "the nesting of the frame", limits.json_depth_max + 1, limits.json_depth_max
        ) from None
    document = getattr(message, "document", None)
    if document is not None and not names.is_document_name(document):
        raise MalformedMessageError(f"the field `document` must be {names.document_rule}")
    return message
