"""Identifiers with a kind.

A stream id is 24 bytes: random for queues, a hash of the name for documents. As text it is
base64url without padding, 32 characters.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Self

from syncline.errors import MalformedMessageError

STREAM_ID_BYTES = 24
STREAM_ID_CHARACTERS = 32


class StreamId(bytes):
    """Names one queue or document stream. A subclass of bytes: it is a key in hot loops."""

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        if len(value) != STREAM_ID_BYTES:
            raise MalformedMessageError(
                f"a queue id has {STREAM_ID_BYTES} bytes, this one has {len(value)}"
            )
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the 32 base64url characters that `str` gives."""
        if len(text) != STREAM_ID_CHARACTERS:
            raise MalformedMessageError(
                f"a queue id has {STREAM_ID_CHARACTERS} base64url characters, "
                f"this one has {len(text)}"
            )
        try:
            value = urlsafe_b64decode(text.encode("ascii"))
        except ValueError as error:
            raise MalformedMessageError("a queue id is written in base64url") from error
        stream = cls(value)
        if str(stream) != text:
            raise MalformedMessageError("a queue id is written in base64url")
        return stream

    def __str__(self) -> str:
        return urlsafe_b64encode(self).decode("ascii")

    def __repr__(self) -> str:
        return f"StreamId({str(self)!r})"
