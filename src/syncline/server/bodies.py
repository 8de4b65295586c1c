"""Reads request bodies within a size and a time, and takes batches of messages apart.

A batch as `application/octet-stream` is a run of messages, each behind its length:

    length   4 bytes, big-endian, unsigned
    message  so many bytes

as `application/json` a list of base64 texts.
"""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits

LENGTH_BYTES = 4

Struct = TypeVar("Struct", bound=msgspec.Struct)


async def read_body(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """Raises LimitExceededError, MalformedMessageError, TimeoutError."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise LimitExceededError("the body in bytes", int(announced), bytes_max)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds_max):
            async for piece in request.stream():
                size += len(piece)
                if size > bytes_max:
                    raise LimitExceededError("the body in bytes", size, bytes_max)
                pieces.append(piece)
    except ClientDisconnect as error:
        raise MalformedMessageError("the body ended before its length") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decode(kind: type[Struct], body: bytes) -> Struct:
    """Read a JSON object; an empty body is an empty one. Raises MalformedMessageError."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"the body is not what is wanted here: {error}") from error


def split_batch(body: bytes, content_type: str, message_bytes_max: int) -> list[bytes]:
    """Raises MalformedMessageError, LimitExceededError; then no message of it is taken."""
    if content_type.partition(";")[0].strip().lower() == "application/json":
        messages = _decode_list(body)
    else:
        messages = _split_lengths(body)
    if not messages:
        raise MalformedMessageError("a batch holds at least one message")
    if len(messages) > limits.read_count_max:
        raise LimitExceededError("messages in a batch", len(messages), limits.read_count_max)
    largest = max(map(len, messages))
    if largest > message_bytes_max:
        raise LimitExceededError("a message in bytes", largest, message_bytes_max)
    return messages


def _decode_list(body: bytes) -> list[bytes]:
    try:
        return msgspec.json.decode(body, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"a JSON batch is a list of base64 texts: {error}") from error


def _split_lengths(body: bytes) -> list[bytes]:
    messages: list[bytes] = []
    position = 0
    while position < len(body):
        start = position + LENGTH_BYTES
        end = start + int.from_bytes(body[position:start], "big")
        # A cut length field is behind the end by itself.
        if end > len(body):
            raise MalformedMessageError(f"the batch ends inside the message at byte {position}")
        messages.append(body[start:end])
        position = end
    return messages


def number_in(request: Request, name: str, default: int) -> int:
    """A number of the query. Raises MalformedMessageError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    # More digits than any limit has would only cost time to read.
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise MalformedMessageError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
