"""What is inside of boxes: messages as recipients get them, and what notifiers cannot read.

    message       = i64 time, flags, SP, body              flags: `T` or `F`, then up to six others
                  | `QUOTA` SP i64 time                    the sender was turned away
    MSG body      = box_padded(queue secret, message id, message, 16106)
    notification  = short message id, i64 time
    NMSG metadata = box_padded(notifier secret, nonce, notification, 128)

Times are whole seconds since 1970. A time starts with a zero byte, so that the two kinds of message
are told apart. The length never depends on version or body: all boxed messages look alike.
"""

from dataclasses import dataclass
from hashlib import sha3_384
from typing import Final, TypeAlias

import msgspec

from syncline.errors import MalformedMessageError
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.primitives import Reader, i64, short

MESSAGE_PADDED_BYTES: Final = 16_106
NOTIFICATION_PADDED_BYTES: Final = 128
ID_BYTES: Final = 24

_QUOTA: Final = b"QUOTA "
_TIME_BYTES: Final = 8


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A struct: one is made for each message (bench: queues)."""

    time_s: int
    flags: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"ReceivedMessage(time_s={self.time_s}, flags={self.flags!r})"

    @property
    def wants_notification(self) -> bool:
        return self.flags.startswith(b"T")


@dataclass(frozen=True, slots=True)
class QuotaReached:
    """The queue was full at that time; its sender may send again once it has been emptied."""

    time_s: int


Received: TypeAlias = ReceivedMessage | QuotaReached


@dataclass(frozen=True, slots=True)
class Notification:
    message_id: bytes
    time_s: int


# ---------------------------------------------------------------------------------------- messages


def encode_received(received: Received) -> bytes:
    if isinstance(received, QuotaReached):
        return _QUOTA + i64(received.time_s)
    return i64(received.time_s) + received.flags + b" " + received.body


def decode_received(data: bytes) -> Received:
    """Raises MalformedMessageError."""
    if data.startswith(_QUOTA):
        reader = Reader(data[len(_QUOTA) :])
        time_s = reader.i64()
        reader.finish()
        return QuotaReached(time_s)
    space = data.find(b" ", _TIME_BYTES + 1)
    flags = data[_TIME_BYTES : _TIME_BYTES + 1]
    if space < 0 or flags not in (b"T", b"F"):
        raise MalformedMessageError("a message has no time and flags before its body")
    time_s = int.from_bytes(data[:_TIME_BYTES], "big", signed=True)
    return ReceivedMessage(time_s, flags, data[space + 1 :])


def seal_received(box: SecretBox, message_id: bytes, received: Received) -> bytes:
    """The body of MSG. The same message is the same bytes, however often it is delivered."""
    return box.box_padded(message_id, encode_received(received), MESSAGE_PADDED_BYTES)


def open_received(box: SecretBox, message_id: bytes, body: bytes) -> Received:
    return decode_received(box.open_padded(message_id, body))


# ----------------------------------------------------------------------------------- notifications


def encode_notification(notification: Notification) -> bytes:
    return short(notification.message_id) + i64(notification.time_s)


def decode_notification(data: bytes) -> Notification:
    """What follows is for later versions, and is ignored. Raises MalformedMessageError."""
    reader = Reader(data)
    return Notification(reader.short(), reader.i64())


def seal_notification(box: SecretBox, nonce: bytes, notification: Notification) -> bytes:
    """The metadata of NMSG."""
    return box.box_padded(nonce, encode_notification(notification), NOTIFICATION_PADDED_BYTES)


def open_notification(box: SecretBox, nonce: bytes, metadata: bytes) -> Notification:
    return decode_notification(box.open_padded(nonce, metadata))


# --------------------------------------------------------------------------------------------- ids


def sender_id_of(corr_id: bytes) -> bytes:
    """The only sender id that a client may choose: asking for it shows nothing of other queues."""
    return sha3_384(corr_id).digest()[:ID_BYTES]
