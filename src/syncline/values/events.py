"""What happened between the router and its peers, as the log keeps it for whoever checks it later.

What was appended and acknowledged is in the log anyway. Events say the rest: who was there, who
read what, and what was handed to whom. They hold positions, ids and times, never content.

Row, 64 bytes, little-endian:
     0  8  time << 8 | kind   milliseconds since 1970
     8 24  stream             a queue, a document, a service; zeros: none
    32  8  session            a connection; numbers start anew with every start of the router
    40  8  first              by kind
    48  8  last               by kind
    56  8  detail             by kind
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from syncline.values.ids import STREAM_ID_BYTES

EVENT_ROW: Final = Struct("<Q24sQQQQ")
EVENT_ROW_BYTES: Final = EVENT_ROW.size
NO_STREAM: Final = bytes(STREAM_ID_BYTES)

_KIND_BITS: Final = 8
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_pack = EVENT_ROW.pack


class EventKind(IntEnum):
    """With what `first`, `last` and `detail` are; 0 where nothing is said."""

    STARTED = 1  # the router; every session before it is over
    CONNECTED = 2  # stream: its service, if any; detail: its face
    DISCONNECTED = 3
    SUBSCRIBED = 4  # first: the sequence from which on it reads; detail: its author, hashed
    UNSUBSCRIBED = 5
    DELIVERED = 6  # first to last
    RESENT = 7  # first to last
    ACKNOWLEDGED = 8  # last: up to which sequence
    EVICTED = 9  # last: up to which sequence it had acknowledged
    ASSOCIATED = 10  # a queue or notifier; detail: the service, its first 8 bytes
    DISSOCIATED = 11  # the same
    DISPLACED = 12  # stream: the service; session: who has lost it
    DROPPED = 13  # first: so many events before this one are missing


class Face(IntEnum):
    """Where a session comes in."""

    DOCUMENTS = 1  # whatever the protocol
    SMP = 2
    HTTP = 3
    MQTT = 4


class Event(NamedTuple):
    """`kind` is a number: a later version may have written one that is not known here."""

    kind: int
    time_ms: int
    stream: bytes
    session: int
    first: int
    last: int
    detail: int


def encode_event(
    kind: int,
    time_ms: int,
    stream: bytes = NO_STREAM,
    session: int = 0,
    first: int = 0,
    last: int = 0,
    detail: int = 0,
) -> bytes:
    return _pack(time_ms << _KIND_BITS | kind, stream, session, first, last, detail)


def decode_events(rows: bytes) -> Iterator[Event]:
    """What is left over at the end of `rows` is no row."""
    whole = len(rows) - len(rows) % EVENT_ROW_BYTES
    for time_kind, stream, session, first, last, detail in EVENT_ROW.iter_unpack(rows[:whole]):
        yield Event(
            time_kind & _KIND_MASK, time_kind >> _KIND_BITS, stream, session, first, last, detail
        )
