"""What travels inside the envelopes of Action Cable (docs/formats/cable.md): frames of Yjs.

A frame is what `syncline.wire.yjs` reads, in base64. Three dialects share the keys, and one message
of the router suits them all, since each reads only the keys it knows:

    dialect     an update                                     its receipt
    plain       {"update"}                                    none
    reliable    {"action": "update", "clock", "update"}       {"op": "ack", "clock", "id"}
    numbered    {"update", "id"}                              {"ack"}

The router's updates have `op`, `id` (their sequence) and `update`, or `updates` for several with
the sequence of the last; a reliable client acknowledges with {"action": "ack", "id"}. Plain clients
take every message for a frame, so a receipt goes only to those who asked for one.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, json

from syncline.errors import LimitExceededError, MalformedMessageError, UnexpectedMessageError
from syncline.values import limits
from syncline.wire.faults import describe

Decoded = TypeVar("Decoded")

Clock = Annotated[int, Meta(ge=1, le=limits.clock_max)]
Number = Annotated[int, Meta(ge=0, le=limits.clock_max)]
Sequence = Annotated[int, Meta(ge=0, le=limits.sequence_max)]


# ------------------------------------------------------------------------------ client to router


class FrameSent(Struct, frozen=True, gc=False):
    """A Yjs frame. With a clock or a number, its author wants a receipt once it is stored."""

    frame: bytes
    clock: int | None = None
    number: int | None = None


class UpdatesApplied(Struct, frozen=True, gc=False):
    """Everything up to this sequence has arrived."""

    seq: int


ClientPayload = FrameSent | UpdatesApplied


class _Sent(Struct, gc=False):
    action: str | None = None
    update: bytes | None = None
    awareness: bytes | None = None
    clock: Clock | None = None
    id: Number | None = None


_sent = json.Decoder(_Sent)
_FRAME_ACTIONS = (None, "receive", "update")
_rules = {
    "ack": "a whole number",
    "action": "a text",
    "awareness": "standard base64 with padding",
    "clock": f"a whole number from 1 to {limits.clock_max}",
    "id": f"a whole number from 0 to {limits.clock_max}",
    "op": "`update`, `ack` or `resync`",
    "update": "standard base64 with padding",
    "updates": "a list of texts in standard base64 with padding",
}


def read_sent(data: str | bytes | Raw) -> ClientPayload:
    """What a client sent, from `data` of a command.

    Raises MalformedMessageError with the field at fault, and UnexpectedMessageError for an action
    that no channel has.
    """
    sent = _decode(_sent, data)
    if sent.action == "ack":
        if sent.id is None or sent.id > limits.sequence_max:
            raise MalformedMessageError(
                "the field `id` of an acknowledgement must be that of an update"
            )
        return UpdatesApplied(sent.id)
    if sent.action not in _FRAME_ACTIONS:
        raise UnexpectedMessageError("the field `action` must be `update`, `ack` or absent")
    frame = sent.update if sent.update is not None else sent.awareness
    if frame is None:
        raise MalformedMessageError("the field `update` is missing; it must be a Yjs frame, base64")
    return FrameSent(frame, sent.clock, None if sent.clock is not None else sent.id)


# ------------------------------------------------------------------------------ router to client


class Frame(Struct, frozen=True, gc=False):
    """A Yjs frame that has no place in the stream: steps of a sync, awareness."""

    update: bytes


class Update(Struct, frozen=True, gc=False, tag_field="op", tag="update"):
    """A stored update, as a Yjs frame, with its sequence."""

    id: Sequence
    update: bytes


class Updates(Struct, frozen=True, gc=False, tag_field="op", tag="update"):
    """Several stored updates in order, with the sequence of the last."""

    id: Sequence
    updates: list[bytes]


class Receipt(Struct, frozen=True, gc=False, tag_field="op", tag="ack"):
    """The update with this clock, and each before it, is stored; this one got the sequence `id`."""

    clock: Clock
    id: Sequence


class NumberedReceipt(Struct, frozen=True, gc=False):
    """The update with this number, and each before it, is stored."""

    ack: Number


class Resync(Struct, frozen=True, gc=False, tag_field="op", tag="resync"):
    """Too far behind: the place in the stream was given up at `id`. Start with step 1 again."""

    id: Sequence


_Tagged = Update | Receipt | Resync
ServerPayload = _Tagged | Updates | Frame | NumberedReceipt


class _Keys(Struct, gc=False):
    op: str | None = None
    ack: int | None = None
    updates: Raw = Raw()


_keys = json.Decoder(_Keys)
_tagged: json.Decoder[_Tagged] = json.Decoder(_Tagged)
_several = json.Decoder(Updates)
_frames = json.Decoder(Frame)
_numbered = json.Decoder(NumberedReceipt)
_encoder = json.Encoder()


def encode(payload: ServerPayload) -> bytes:
    """The JSON text that stands in `message` of an event. Bytes become base64."""
    return _encoder.encode(payload)


def read(message: bytes | Raw) -> ServerPayload:
    """What the router said, from `message` of an event."""
    keys = _decode(_keys, message)
    if keys.op == "update" and bytes(keys.updates):
        return _decode(_several, message)
    if keys.op is not None:
        return _decode(_tagged, message)
    if keys.ack is not None:
        return _decode(_numbered, message)
    return _decode(_frames, message)


def _decode(decoder: "json.Decoder[Decoded]", data: str | bytes | Raw) -> Decoded:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        no_map = "the message must be a JSON object with the key `update`"
        raise MalformedMessageError(describe(str(error), _rules, no_map)) from None
    except (msgspec.DecodeError, UnicodeError):
        raise MalformedMessageError("the message must be a JSON object") from None
    except RecursionError:
        raise LimitExceededError(
            "the nesting of the message", limits.json_depth_max + 1, limits.json_depth_max
        ) from None
