"""A message as the log keeps it: the payload of one entry of its queue's stream.

    stored = u8 version (1), 24 message id, short flags, tail body        docs/formats/smp.md

The time is the entry's own. The body is as it was sent; it is boxed for its recipient at each
delivery. A quota marker is an entry without a payload, so its id is made from what is known of it.
"""

from hashlib import blake2b
from typing import Final, Self

import msgspec

from syncline.errors import MalformedMessageError
from syncline.wire.smp.primitives import i64, short

STORED_VERSION: Final = 1
MESSAGE_ID_BYTES: Final = 24
_HEAD: Final = bytes((STORED_VERSION,))
_FLAGS_AT: Final = 1 + MESSAGE_ID_BYTES


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A struct: two are made for each message (bench: queues)."""

    message_id: bytes
    flags: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"StoredMessage(message_id={self.message_id!r}, flags={self.flags!r})"

    def encoded(self) -> bytes:
        if len(self.message_id) != MESSAGE_ID_BYTES:
            raise ValueError("a message id has 24 bytes")
        return _HEAD + self.message_id + short(self.flags) + self.body

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises MalformedMessageError for what no router stored."""
        if len(payload) <= _FLAGS_AT or payload[0] != STORED_VERSION:
            raise MalformedMessageError("an entry of the log is no message")
        body_at = _FLAGS_AT + 1 + payload[_FLAGS_AT]
        if body_at > len(payload):
            raise MalformedMessageError("the flags of a stored message pass its end")
        return cls(payload[1:_FLAGS_AT], payload[_FLAGS_AT + 1 : body_at], payload[body_at:])


def marker_id(secret: bytes, sequence: int, time_ms: int) -> bytes:
    """The message id of a quota marker: the same at each delivery, and nobody else can guess it.

    It is a nonce too, so no two markers of a queue have the same one.
    """
    marker = blake2b(digest_size=MESSAGE_ID_BYTES, key=secret, person=b"quota marker")
    marker.update(i64(sequence) + i64(time_ms))
    return marker.digest()
