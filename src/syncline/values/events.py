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

from xxhash import xxh64_intdigest

from syncline.values.ids import STREAM_ID_BYTES

EVENT_ROW: Final = Struct("<Q24sQQQQ")
EVENT_ROW_BYTES: Final = EVENT_ROW.size
NO_STREAM: Final = bytes(STREAM_ID_BYTES)

_KIND_BITS: Final = 8
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_AUTHOR_SEED: Final = 42
_SIGN: Final = 1 << 63
_MASK64: Final = (1 << 64) - 1
_pack = EVENT_ROW.pack


class EventKind(IntEnum):
    """With what `first`, `last` and `detail` are; 0 where nothing is said."""

    # The router; every session before it is over. Of a log that was restored, stream: the log that
    # it branched off from; first: the position at which it did. detail: 1 if nothing else is noted
    # until the next start.
    STARTED = 1
    CONNECTED = 2  # stream: its service, if any; detail: its face
    DISCONNECTED = 3
    # first: the sequence from which on it is to get everything; last: 1 if it acknowledges;
    # detail: the number of its author
    SUBSCRIBED = 4
    UNSUBSCRIBED = 5  # last: the head when it left, of a document
    DELIVERED = 6  # first to last; detail: how many of these it wrote itself and was not sent
    RESENT = 7  # first to last; the delivery that repeats them follows
    ACKNOWLEDGED = 8  # last: up to which sequence
    EVICTED = 9  # first: the head then; last: up to which sequence it had acknowledged
    ASSOCIATED = 10  # a queue or notifier; detail: the service, its first 8 bytes
    DISSOCIATED = 11  # the same
    DISPLACED = 12  # stream: the service; session: who has lost it
    DROPPED = 13  # first: so many events before this one are missing
    # A mutation that was stored before was not stored again; last: its sequence, 0 if not known
    REPEATED = 14
    EXPIRED = 15  # last: up to which sequence messages were given up; detail: a Reason


class Reason(IntEnum):
    """Why messages were given up that nobody had acknowledged."""

    AGE = 0
    NO_MESSAGE = 1  # what the operator put into the queue is nothing that can be delivered


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


def author_number(author: str | bytes) -> int:
    """By which an author is known; the name itself is in the entries it wrote.

    XXH64, as a signed number: what `xxhash64` of the name's bytes is in Spark.
    """
    name = author.encode() if isinstance(author, str) else author
    number = xxh64_intdigest(name, _AUTHOR_SEED)
    return number - 2 * _SIGN if number & _SIGN else number


def encode_event(
    kind: int,
    time_ms: int,
    stream: bytes = NO_STREAM,
    session: int = 0,
    first: int = 0,
    last: int = 0,
    detail: int = 0,
) -> bytes:
    """`detail` may be negative: of it, the 64 bits are kept."""
    return _pack(time_ms << _KIND_BITS | kind, stream, session, first, last, detail & _MASK64)


def decode_events(rows: bytes) -> Iterator[Event]:
    """What is left over at the end of `rows` is no row."""
    whole = len(rows) - len(rows) % EVENT_ROW_BYTES
    for time_kind, stream, session, first, last, detail in EVENT_ROW.iter_unpack(rows[:whole]):
        yield Event(
            time_kind & _KIND_MASK, time_kind >> _KIND_BITS, stream, session, first, last, detail
        )
