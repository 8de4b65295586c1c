"""What the messages of a document carry: mutations, states and presence, by kind and encoding.

Inside the router a body is bytes, whatever encoding it came in:

    kind     a mutation                  a state
    json     JSON text of an object      JSON text of any value
    yjs      a Yjs update                a Yjs update
    bytes    any bytes                   MessagePack array of `bin`, the updates in order

On the wire a `json` body is the value itself; the others are base64 text in JSON and `bin` in
MessagePack. A JSON text goes to readers in JSON as it came: it is looked at once, when it is read
here, and never written anew. Each `read_` raises MalformedMessageError or LimitExceededError for
what a peer sent; each `write_` trusts its input.
"""

import re
from binascii import b2a_base64
from collections.abc import Iterable
from math import isfinite
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, json, msgpack

from syncline.errors import LimitExceededError, MalformedMessageError, ProtocolError
from syncline.values import limits
from syncline.values.kinds import Kind

Encoding = Literal["json", "msgpack"]

_json_bytes = json.Decoder(bytes)
_msgpack_bytes = msgpack.Decoder(bytes)
_json_updates = json.Decoder(list[bytes])
_msgpack_updates = msgpack.Decoder(list[bytes])
_json_value = json.Decoder()
_msgpack_value = msgpack.Decoder()
_has_long_number = re.compile(rb"[0-9]{19}").search

# What msgspec raises for bytes that a peer sent: text that is no UTF-8 and nesting without end
# come as errors of their own.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_mutation(raw: Raw, kind: Kind, encoding: Encoding) -> bytes:
    """The body of a mutation."""
    if kind is not Kind.JSON:
        return _read_bytes(raw, encoding, "mutation")
    return read_patch(raw, encoding)[0]


def read_patch(raw: Raw, encoding: Encoding) -> tuple[bytes, dict[str, Any]]:
    """The body of a mutation of kind `json`, and what it says: nobody need decode it again."""
    body, value = _read_json(raw, encoding, "mutation")
    if not isinstance(value, dict):
        raise MalformedMessageError(
            "the field `mutation` must be a JSON object, a merge patch of the document"
        )
    return body, cast("dict[str, Any]", value)


def write_mutation(body: bytes, kind: Kind, encoding: Encoding) -> Raw:
    """What `read_mutation` reads in that encoding."""
    return _write_json(body, encoding) if kind is Kind.JSON else _write_bytes(body, encoding)


def read_state(raw: Raw, kind: Kind, encoding: Encoding) -> bytes:
    """The body of a state."""
    if kind is Kind.BYTES:
        return _read_updates(raw, encoding)
    if kind is Kind.YJS:
        return _read_bytes(raw, encoding, "state")
    return _read_json(raw, encoding, "state")[0]


def write_state(body: bytes, kind: Kind, encoding: Encoding) -> Raw:
    """What `read_state` reads in that encoding."""
    if kind is Kind.BYTES:
        return Raw(json.encode(split_updates(body)) if encoding == "json" else body)
    return write_mutation(body, kind, encoding)


def split_updates(state: bytes) -> list[bytes]:
    """The updates in the state of a document of kind `bytes`."""
    return _msgpack_updates.decode(state)


def read_presence(raw: Raw, encoding: Encoding) -> bytes:
    """The JSON text of a client's presence, `null` if it takes it away."""
    body = _read_json(raw, encoding, "state")[0]
    if len(body) > limits.presence_bytes_max:
        raise LimitExceededError(
            "the size of `state` in bytes", len(body), limits.presence_bytes_max
        )
    return body


def write_presence(body: bytes, encoding: Encoding) -> Raw:
    """What `read_presence` reads in that encoding."""
    return _write_json(body, encoding)


# ------------------------------------------------------------------------------------------- bytes


def _read_bytes(raw: Raw, encoding: Encoding, field: str) -> bytes:
    decoder = _json_bytes if encoding == "json" else _msgpack_bytes
    try:
        return decoder.decode(raw)
    except _UNREADABLE as error:
        raise MalformedMessageError(f"the field `{field}` must be {_written(encoding)}") from error


def _read_updates(raw: Raw, encoding: Encoding) -> bytes:
    decoder = _json_updates if encoding == "json" else _msgpack_updates
    try:
        updates = decoder.decode(raw)
    except _UNREADABLE as error:
        raise MalformedMessageError(
            f"the field `state` must be a list of updates, each {_written(encoding)}"
        ) from error
    return bytes(raw) if encoding == "msgpack" else msgpack.encode(updates)


def _write_bytes(body: bytes, encoding: Encoding) -> Raw:
    if encoding == "json":
        return Raw(b'"%b"' % b2a_base64(body, newline=False))
    return Raw(msgpack.encode(body))


def _written(encoding: Encoding) -> str:
    return "standard base64 with padding" if encoding == "json" else "MessagePack bin"


# -------------------------------------------------------------------------------------------- JSON


def _read_json(raw: Raw, encoding: Encoding, field: str) -> tuple[bytes, object]:
    """The JSON text of a value, and the value."""
    if encoding == "json":
        value = _decode(_json_value, raw, field)
        text = bytes(raw)
        _check_text(text, value, field)
        return text, value
    value = _decode(_msgpack_value, raw, field)
    check_value(value, field)
    return json.encode(value), value


def _decode(decoder: "json.Decoder[Any] | msgpack.Decoder[Any]", raw: Raw, field: str) -> object:
    try:
        return decoder.decode(raw)
    except RecursionError as error:
        raise _too_deep(field) from error
    except _UNREADABLE as error:
        raise MalformedMessageError(
            f"the field `{field}` is no JSON value: text must be UTF-8 without half surrogate "
            "pairs, and numbers must be finite"
        ) from error


def _check_text(text: bytes, value: object, field: str) -> None:
    # Each level of nesting takes a bracket, and an integer that MessagePack cannot carry takes 19
    # digits. Few texts have either: counting and searching is much cheaper than walking.
    if (
        text.count(b"{") + text.count(b"[") > limits.json_depth_max
        or _has_long_number(text) is not None
    ):
        check_value(value, field)


def check_value(value: object, field: str) -> None:
    """Raise unless both encodings can carry it: plain, of 64-bit integers, and not too deep."""
    level: list[object] = [value]
    for _ in range(limits.json_depth_max + 1):
        level = [member for item in level for member in _members(item, field)]
        if not level:
            return
    raise _too_deep(field)


def _members(item: object, field: str) -> Iterable[object]:
    if isinstance(item, list):
        return cast("list[object]", item)
    if isinstance(item, dict):
        members = cast("dict[object, object]", item)
        if not all(isinstance(key, str) for key in members):
            raise MalformedMessageError(f"the keys of a map in the field `{field}` must be text")
        return members.values()
    _check_scalar(item, field)
    return ()


def _check_scalar(item: object, field: str) -> None:
    match item:
        case None | bool() | str():
            pass
        case int():
            if not -(1 << 63) <= item < 1 << 64:
                raise _too_wide(field)
        case float():
            if not isfinite(item):
                raise MalformedMessageError(f"a number in the field `{field}` must be finite")
        case _:
            raise MalformedMessageError(
                f"the field `{field}` must be plain JSON: without bin, timestamps or extensions"
            )


def _too_deep(field: str) -> ProtocolError:
    depth = limits.json_depth_max
    return LimitExceededError(f"the nesting of the field `{field}`", depth + 1, depth)


def _too_wide(field: str) -> ProtocolError:
    return MalformedMessageError(
        f"a whole number in the field `{field}` must fit into 64 bits; send it as text"
    )


def _write_json(body: bytes, encoding: Encoding) -> Raw:
    return Raw(body) if encoding == "json" else Raw(msgpack.encode(_json_value.decode(body)))
