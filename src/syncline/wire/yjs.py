"""The frames of y-websocket (docs/formats/yjs.md): sync, awareness and auth, to values and back.

    0 sync              varUint step, varUint8Array
                          step 0: my state vector, send me what I lack
                          step 1: the answer, an update
                          step 2: an update
    1 awareness         varUint8Array, read by `syncline.wire.awareness`
    2 auth              varUint 0 (denied), varString reason; from the router alone
    3 query awareness   nothing

A frame is one WebSocket message in binary. What is inside an update is not looked at here:
`syncline.wire.yjs_updates` does.
"""

from typing import assert_never

from msgspec import Struct

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire.lib0 import Reader, var_bytes, var_string


class SyncStep1(Struct, frozen=True, gc=False):
    """Asks for what a state vector lacks; the answer is `SyncStep2`, even if that is empty."""

    state_vector: bytes


class SyncStep2(Struct, frozen=True, gc=False):
    """The answer to `SyncStep1`."""

    update: bytes


class SyncUpdate(Struct, frozen=True, gc=False):
    """A change of the document."""

    update: bytes


class AwarenessUpdate(Struct, frozen=True, gc=False):
    """Who is present, as bytes that `syncline.wire.awareness` reads."""

    update: bytes


class AuthDenied(Struct, frozen=True, gc=False):
    """The router lets the client not in."""

    reason: str


class QueryAwareness(Struct, frozen=True, gc=False):
    """Asks for everybody's awareness."""


Frame = SyncStep1 | SyncStep2 | SyncUpdate | AwarenessUpdate | AuthDenied | QueryAwareness

_SYNC, _AWARENESS, _AUTH, _QUERY_AWARENESS = range(4)
_STEPS = (SyncStep1, SyncStep2, SyncUpdate)
_DENIED = 0


def decode(data: bytes | bytearray | memoryview, bytes_max: int = limits.frame_bytes_max) -> Frame:
    """What a peer sent in one WebSocket message.

    Raises LimitExceededError if it is too large, MalformedMessageError if it is no frame.
    """
    if len(data) > bytes_max:
        raise LimitExceededError("the size of the frame in bytes", len(data), bytes_max)
    reader = Reader(bytes(data))
    frame = _read(reader)
    reader.finish()
    return frame


def read_short_update(data: bytes, bytes_max: int = limits.frame_bytes_max) -> bytes | None:
    """The update in a frame that holds one of less than 128 bytes: what somebody types.

    None for all other frames, which `decode` reads or refuses.
    """
    size = len(data) - 3
    if (
        0 <= size < 0x80
        and data[2] == size
        and data.startswith(b"\x00\x02")
        and len(data) <= bytes_max
    ):
        return data[3:]
    return None


def _read(reader: Reader) -> Frame:
    kind = reader.var_uint()
    if kind == _SYNC:
        step = reader.var_uint()
        if step >= len(_STEPS):
            raise MalformedMessageError(f"{step} is no step of a sync; there are 0, 1 and 2")
        return _STEPS[step](reader.var_bytes())
    if kind == _AWARENESS:
        return AwarenessUpdate(reader.var_bytes())
    if kind == _AUTH:
        if reader.var_uint() != _DENIED:
            raise MalformedMessageError("an auth frame has kind 0, permission denied")
        return AuthDenied(reader.var_string())
    if kind == _QUERY_AWARENESS:
        return QueryAwareness()
    raise MalformedMessageError(
        f"{kind} is no type of a frame; there are sync, awareness, auth and query awareness, 0 to 3"
    )


def encode(frame: Frame) -> bytes:
    """One WebSocket message. An update is encoded once for all readers."""
    match frame:
        case SyncStep1(state_vector=state_vector):
            return b"\x00\x00" + var_bytes(state_vector)
        case SyncStep2(update=update):
            return b"\x00\x01" + var_bytes(update)
        case SyncUpdate(update=update):
            return encode_update(update)
        case AwarenessUpdate(update=update):
            return b"\x01" + var_bytes(update)
        case AuthDenied(reason=reason):
            return b"\x02\x00" + var_string(reason)
        case QueryAwareness():
            return b"\x03"
        case _:
            assert_never(frame)


def encode_update(update: bytes) -> bytes:
    """`encode` of a `SyncUpdate`, which is nearly all that is ever sent."""
    return b"\x00\x02" + var_bytes(update)
