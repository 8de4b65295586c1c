"""What the streams of documents hold, byte by byte. Page: docs/formats/documents.md

    entry      u8 version = 1 | u8 length of the author | author, UTF-8 | u64 clock, LE | body
    snapshot   MessagePack array: version = 1, name, kind, incarnation, clocks, state
               clocks: array of [author, clock, seq], the one that wrote last comes last

The snapshot carries the name: a stream is found by the hash of its document's name, and nothing
else knows it.
"""

import struct
from functools import lru_cache
from hashlib import blake2b

import msgspec

from syncline.errors import CorruptionError
from syncline.values.ids import STREAM_ID_BYTES, StreamId

ENTRY_VERSION = 1
SNAPSHOT_VERSION = 1

_CLOCK = struct.Struct("<Q")


class DocumentSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The folded document and the clocks of those who wrote it."""

    version: int
    name: str
    kind: str
    incarnation: bytes
    clocks: list[tuple[str, int, int]]
    state: bytes


_snapshot_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder = msgspec.msgpack.Decoder(DocumentSnapshot)


def stream_of(name: str) -> StreamId:
    """The stream of the document of that name."""
    digest = blake2b(name.encode(), digest_size=STREAM_ID_BYTES, person=b"syncline.doc")
    return StreamId(digest.digest())


def encode_entry(author: str, clock: int, body: bytes) -> bytes:
    return _entry_head(author) + _CLOCK.pack(clock) + body


@lru_cache(maxsize=1_024)
def _entry_head(author: str) -> bytes:
    name = author.encode()
    return bytes((ENTRY_VERSION, len(name))) + name


def decode_entry(payload: bytes) -> tuple[str, int, bytes]:
    """Author, clock and body. Raises CorruptionError."""
    if len(payload) < 2 or payload[0] != ENTRY_VERSION:
        raise CorruptionError("a document's stream", 0, "an entry of no known version")
    body_at = 2 + payload[1] + _CLOCK.size
    if len(payload) < body_at:
        raise CorruptionError("a document's stream", 0, "an entry is cut short")
    try:
        author = payload[2 : 2 + payload[1]].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("a document's stream", 2, "an author is not UTF-8") from error
    (clock,) = _CLOCK.unpack_from(payload, body_at - _CLOCK.size)
    return author, clock, payload[body_at:]


def encode_snapshot(snapshot: DocumentSnapshot) -> bytes:
    return _snapshot_encoder.encode(snapshot)


def decode_snapshot(payload: bytes) -> DocumentSnapshot:
    """Raises CorruptionError."""
    try:
        snapshot = _snapshot_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("a document's snapshot", 0, str(error)) from error
    if snapshot.version != SNAPSHOT_VERSION:
        raise CorruptionError("a document's snapshot", 0, "it is of no known version")
    return snapshot
