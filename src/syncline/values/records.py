"""What is made durable: the closed union of the writes that a step may ask for.

A record says what is to be true afterwards, in absolute terms ("everything below 17 is gone"), so
that carrying one out twice changes nothing more. `storage.applying` stages them on a store.
"""

from dataclasses import dataclass
from enum import IntEnum

from syncline.values.ids import StreamId


class StreamKind(IntEnum):
    """What a stream is for."""

    QUEUE = 1
    DOCUMENT = 2


@dataclass(frozen=True, slots=True)
class CreateStream:
    stream: StreamId
    kind: StreamKind
    quota: int  # 0: none
    now_ms: int


@dataclass(frozen=True, slots=True)
class AppendEntry:
    stream: StreamId
    payload: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class TruncateStream:
    """Let go of every entry below `before_seq`: an acknowledgement, or a document's truncation."""

    stream: StreamId
    before_seq: int


@dataclass(frozen=True, slots=True)
class DeleteStream:
    stream: StreamId


@dataclass(frozen=True, slots=True)
class PutSnapshot:
    stream: StreamId
    up_to_seq: int
    payload: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class MoveCursor:
    stream: StreamId
    name: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class DropCursor:
    stream: StreamId
    name: bytes


Record = (
    CreateStream
    | AppendEntry
    | TruncateStream
    | DeleteStream
    | PutSnapshot
    | MoveCursor
    | DropCursor
)
