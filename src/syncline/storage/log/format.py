"""The bytes of the log, drawn field by field; the page is docs/formats/log.md.

Pure: bytes in, values out. A reader trusts neither length nor checksum: every number is checked
against the room there is before it is used. All numbers are little-endian but where said.

A segment is a file of fixed size, filled with zeros or with the remains of older batches. Batches
start on a 4 KiB block, so that writing one never touches the block of another that is acknowledged.

Batch header, 48 bytes:
     0  4  magic "SLB1"
     4  4  epoch           grows with every opening of the store
     8  8  number          gap-free over the life of the store
    16  8  position        of this header in the log: segment number x segment bytes + offset
    24  8  time            milliseconds since 1970 when the batch was closed
    32  4  length          bytes of all records that follow
    36  4  record count
    40  4  previous crc    crc field of the batch before: batches are a chain
    44  4  crc             CRC32C of bytes 0-43 and of all records, from the tag

Record, 48 bytes and its payload:
     0  4  crc             CRC32C of bytes 4-47 and the payload, from position, epoch and tag
     4  4  kind << 24 | payload length
     8 24  stream
    32  8  last << 24 | unread   the stream once this record is applied: the highest sequence
                                 given out and how many entries wait
    40  8  time << 16 | quota    milliseconds since 1970

Position and epoch are not stored in a record but start its checksum: remains in a recycled segment
and records written to the wrong place never validate. Both checksums also start from the store's
tag, the first four bytes of its id: a message that looks like a batch or a record is none.

The kind byte holds the record kind in its low five bits, then what the stream is after the record:
0x20 has a snapshot, 0x40 blocked by its quota, 0x80 a document. So every record of a stream is a
whole image of its slot in the table, and replay needs no more than the last one.

Payload by kind: message: the message. Snapshot: 8 bytes up-to sequence, then the state. Cursor: 8
bytes position, then the name. Acknowledgements: rows of 32 bytes (24 stream, 8 last << 24 |
unread); the record itself names no stream. Cursors: count of 4 bytes, then for each 8 bytes
position, 1 byte length, name. Events: rows as `values.events` has them; the record itself names no
stream, and nothing of a stream depends on it.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final, cast

import google_crc32c

from syncline.values import limits
from syncline.values.ids import STREAM_ID_BYTES

FORMAT_VERSION: Final = 1
BLOCK_BYTES: Final = 4096
BATCH_MAGIC: Final = b"SLB1"
NO_STREAM: Final = bytes(STREAM_ID_BYTES)

BATCH_HEADER: Final = struct.Struct("<4sIQQQIIII")
BATCH_HEADER_BYTES: Final = BATCH_HEADER.size
_BATCH_BODY: Final = struct.Struct("<4sIQQQIII")
RECORD_HEADER: Final = struct.Struct("<II24sQQ")
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
# The header without its checksum, which is computed over it.
RECORD_BODY: Final = struct.Struct("<I24sQQ")
ACK_ROW: Final = struct.Struct("<24sQ")
ACK_ROW_BYTES: Final = ACK_ROW.size
SEQUENCE: Final = struct.Struct("<Q")
_CURSOR_COUNT: Final = struct.Struct("<I")
_CURSOR: Final = struct.Struct("<QB")
CRC: Final = struct.Struct("<I")

LENGTH_MASK: Final = 0xFF_FFFF
UNREAD_BITS: Final = 24
UNREAD_MASK: Final = (1 << UNREAD_BITS) - 1
QUOTA_BITS: Final = 16
QUOTA_MASK: Final = (1 << QUOTA_BITS) - 1
KIND_MASK: Final = 0x1F

# The library has no types of its own.
crc32c_extend = cast(
    Callable[[int, bytes], int],
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]
)


class RecordKind(IntEnum):
    MESSAGE = 1
    QUOTA_MARKER = 2
    CREATE = 3
    DELETE = 4
    ACKNOWLEDGEMENTS = 5
    SNAPSHOT = 6
    CURSOR = 7
    DROP_CURSOR = 8
    CURSORS = 9
    EVENTS = 10


# Flags in the kind byte, and in the slots of the table.
HAS_SNAPSHOT: Final = 0x20
IS_BLOCKED: Final = 0x40
IS_DOCUMENT: Final = 0x80

_KINDS: Final = frozenset(int(kind) for kind in RecordKind)


def checksum_seed(position: int, epoch: int) -> int:
    """What the checksum of the record at `position` starts from."""
    return (position ^ (position >> 32) * 0x9E3779B1 ^ epoch * 0x85EBCA6B) & 0xFFFF_FFFF


def store_tag(store_id: bytes) -> int:
    """What tells this store's records from bytes that a peer made up and had stored as a message.

    No peer ever sees it, or a checksum that it went into.
    """
    return int.from_bytes(store_id[:4], "little")


def align(position: int) -> int:
    """The next block boundary."""
    return (position + BLOCK_BYTES - 1) & -BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class BatchHeader:
    epoch: int
    number: int
    position: int
    time_ms: int
    length: int
    record_count: int
    previous_crc: int
    crc: int

    @property
    def end(self) -> int:
        """Position behind the last record; the next batch starts on the block after it."""
        return self.position + BATCH_HEADER_BYTES + self.length


@dataclass(frozen=True, slots=True)
class Record:
    """A record that passed its checksum. `position` is that of its header."""

    position: int
    kind: RecordKind
    flags: int
    stream: bytes
    last_seq: int
    unread_count: int
    time_ms: int
    quota: int
    payload: bytes


def encode_batch_header(
    epoch: int,
    number: int,
    position: int,
    time_ms: int,
    record_count: int,
    records: Sequence[bytes],
    previous_crc: int,
    tag: int = 0,
) -> tuple[bytes, int]:
    """The header and its crc, which the next batch carries.

    `records` are the bytes of all records, in pieces of any size; `tag` is the store's.
    """
    length = sum(map(len, records))
    head = _BATCH_BODY.pack(
        BATCH_MAGIC, epoch, number, position, time_ms, length, record_count, previous_crc
    )
    crc = crc32c_extend(tag, head)
    for piece in records:
        crc = crc32c_extend(crc, piece)
    return head + CRC.pack(crc), crc


def is_batch_whole(data: bytes, offset: int, header: BatchHeader, tag: int) -> bool:
    """Whether header and records of the batch at `offset` pass the header's checksum."""
    start = offset + BATCH_HEADER_BYTES
    crc = crc32c_extend(tag, data[offset : start - CRC.size])
    return crc32c_extend(crc, data[start : start + header.length]) == header.crc


def parse_batch_header(data: bytes | memoryview, offset: int, position: int) -> BatchHeader | None:
    """The header at `offset`, if it looks like one written for `position`; its crc is unchecked."""
    if offset + BATCH_HEADER_BYTES > len(data):
        return None
    magic, epoch, number, found, time_ms, length, count, previous, crc = BATCH_HEADER.unpack_from(
        data, offset
    )
    if magic != BATCH_MAGIC or found != position:
        return None
    room = len(data) - offset - BATCH_HEADER_BYTES
    if length > room or count * RECORD_HEADER_BYTES > length or count == 0:
        return None
    return BatchHeader(epoch, number, position, time_ms, length, count, previous, crc)


def claimed_length(data: bytes, offset: int) -> tuple[int, int]:
    """For which position the batch header at `offset` was written, and the length of its records.

    Both unchecked; (0, 0) if it is cut off.
    """
    if offset + BATCH_HEADER_BYTES > len(data):
        return 0, 0
    _, _, _, position, _, length, *_ = BATCH_HEADER.unpack_from(data, offset)
    return position, length


def encode_record(
    position: int,
    epoch: int,
    kind: int,
    stream: bytes,
    last_seq: int,
    unread_count: int,
    time_ms: int,
    quota: int,
    payload: bytes,
) -> tuple[bytes, int]:
    """The header of a record (its payload follows) and its crc. `kind` includes the flags."""
    body = RECORD_BODY.pack(
        kind << 24 | len(payload),
        stream,
        last_seq << UNREAD_BITS | unread_count,
        time_ms << QUOTA_BITS | quota,
    )
    crc = crc32c_extend(crc32c_extend(checksum_seed(position, epoch), body), payload)
    return CRC.pack(crc) + body, crc


def parse_record(
    data: bytes | memoryview, offset: int, end: int, position: int, epoch: int
) -> Record | None:
    """The record at `offset`, or None unless it ends by `end` and passes its checksum."""
    if offset < 0 or offset + RECORD_HEADER_BYTES > end:
        return None
    crc, kind_length, stream, last_unread, time_quota = RECORD_HEADER.unpack_from(data, offset)
    length = kind_length & LENGTH_MASK
    kind = kind_length >> 24
    start = offset + RECORD_HEADER_BYTES
    if start + length > end or kind & KIND_MASK not in _KINDS:
        return None
    payload = bytes(data[start : start + length])
    seed = checksum_seed(position, epoch)
    if crc32c_extend(crc32c_extend(seed, bytes(data[offset + 4 : start])), payload) != crc:
        return None
    return Record(
        position,
        RecordKind(kind & KIND_MASK),
        kind & ~KIND_MASK,
        stream,
        last_unread >> UNREAD_BITS,
        last_unread & UNREAD_MASK,
        time_quota >> QUOTA_BITS,
        time_quota & QUOTA_MASK,
        payload,
    )


def encode_cursors(cursors: Mapping[bytes, int]) -> bytes:
    parts = [_CURSOR_COUNT.pack(len(cursors))]
    for name, seq in cursors.items():
        parts.append(_CURSOR.pack(seq, len(name)) + name)
    return b"".join(parts)


def cursors_bytes(names: Collection[bytes]) -> int:
    """What `encode_cursors` makes of cursors with these names."""
    return _CURSOR_COUNT.size + len(names) * _CURSOR.size + sum(map(len, names))


def parse_cursors(payload: bytes) -> dict[bytes, int] | None:
    """None if the payload is not exactly what `encode_cursors` makes."""
    if len(payload) < _CURSOR_COUNT.size:
        return None
    (count,) = _CURSOR_COUNT.unpack_from(payload)
    if count > limits.cursors_per_stream_max:
        return None
    cursors: dict[bytes, int] = {}
    offset = _CURSOR_COUNT.size
    for _ in range(count):
        if offset + _CURSOR.size > len(payload):
            return None
        seq, length = _CURSOR.unpack_from(payload, offset)
        offset += _CURSOR.size
        name = payload[offset : offset + length]
        if len(name) != length:
            return None
        cursors[name] = seq
        offset += length
    return cursors if offset == len(payload) else None


def ack_rows(payload: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Stream, last sequence and unread count of each row; an odd rest is left out."""
    whole = len(payload) - len(payload) % ACK_ROW_BYTES
    for stream, last_unread in ACK_ROW.iter_unpack(payload[:whole]):
        yield stream, last_unread >> UNREAD_BITS, last_unread & UNREAD_MASK


# ---- The queue table: a header block, then slots ----
#
# Slot, 64 bytes, so that none crosses a sector:
#      0 24  stream
#     24  8  born       position of the CREATE record: entries before it belong to a stream of the
#                       same id that was deleted
#     32  8  first      lowest sequence still wanted
#     40  8  next       sequence of the next entry
#     48  8  applied    position of the last record that changed the slot
#     56  2  quota
#     58  1  flags      as in the kind byte
#     59  1  state      0 never used, 1 used, 2 deleted (the stream stays readable)
#     60  4  crc        CRC32C of bytes 0-59
#
# Header block, 4096 bytes of which 52 are used:
#      0  8  magic "SLTABLE1"
#      8  8  capacity   number of slots
#     16  8  applied    log position up to which the counts below are true
#     24  8  used slots
#     32  8  deleted slots
#     40  4  generation
#     44  4  zero
#     48  4  crc        CRC32C of bytes 0-47

SLOT: Final = struct.Struct("<24sQQQQHBBI")
SLOT_BYTES: Final = SLOT.size
_SLOT_BODY: Final = struct.Struct("<24sQQQQHBB")
SLOT_APPLIED_OFFSET: Final = 48
SLOT_STATE_OFFSET: Final = 59
SLOT_NEVER_USED: Final = 0
_EMPTY_SLOT: Final = bytes(SLOT_BYTES)
SLOT_USED: Final = 1
SLOT_DELETED: Final = 2
TABLE_MAGIC: Final = b"SLTABLE1"
TABLE_HEADER: Final = struct.Struct("<8sQQQQII")
TABLE_HEADER_BYTES: Final = BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Slot:
    stream: bytes
    born: int
    first: int
    next: int
    applied: int
    quota: int
    flags: int
    state: int


def encode_slot(
    stream: bytes,
    born: int,
    first: int,
    next_seq: int,
    applied: int,
    quota: int,
    flags: int,
    state: int,
) -> bytes:
    image = _SLOT_BODY.pack(stream, born, first, next_seq, applied, quota, flags, state)
    return image + CRC.pack(crc32c_extend(0, image))


def parse_slot(image: bytes) -> Slot | None:
    """None if the image fails its checksum. A slot never used is all zeros and gives state 0."""
    stream, born, first, next_seq, applied, quota, flags, state, crc = SLOT.unpack(image)
    if image != _EMPTY_SLOT and (state == SLOT_NEVER_USED or crc32c_extend(0, image[:-4]) != crc):
        return None
    return Slot(stream, born, first, next_seq, applied, quota, flags, state)


def encode_table_header(
    capacity: int, applied: int, used: int, deleted: int, generation: int
) -> bytes:
    head = TABLE_HEADER.pack(TABLE_MAGIC, capacity, applied, used, deleted, generation, 0)
    return head + CRC.pack(crc32c_extend(0, head))


@dataclass(frozen=True, slots=True)
class TableHeader:
    capacity: int
    applied: int
    used_count: int
    deleted_count: int
    generation: int


def parse_table_header(data: bytes) -> TableHeader | None:
    if len(data) < TABLE_HEADER.size + CRC.size:
        return None
    magic, capacity, applied, used, deleted, generation, _ = TABLE_HEADER.unpack_from(data)
    (crc,) = CRC.unpack_from(data, TABLE_HEADER.size)
    if magic != TABLE_MAGIC or crc32c_extend(0, data[: TABLE_HEADER.size]) != crc:
        return None
    return TableHeader(capacity, applied, used, deleted, generation)


# Where the search for a stream starts: a hash of its id under the store's own key, scaled to the
# capacity. Ids come from peers, and structured ones, or ones made to meet in the same slots, must
# not make searches long. The six 32-bit words of the id are multiplied by six secret numbers: that
# sum is 2-universal in its upper half (two ids meet by chance alone, whatever they are), which no
# fixed multiplier gives. The steps behind it part ids that stand in a row.

TABLE_KEY_BYTES: Final = 16
NO_TABLE_KEY: Final = bytes(TABLE_KEY_BYTES)
_MIX_FIRST: Final = 0xBF58476D1CE4E5B9
_MIX_SECOND: Final = 0x94D049BB133111EB
_ID_WORDS: Final = struct.Struct("<6I")
_MULTIPLIERS: Final = struct.Struct("<7Q")
_ALL_64_BITS: Final = (1 << 64) - 1

# What is added, then a multiplier for each word of an id.
SlotKey = tuple[int, int, int, int, int, int, int]


def slot_key(table_key: bytes) -> SlotKey:
    """The numbers that the store's table key stands for: the first words of its BLAKE2b digest."""
    return cast(SlotKey, _MULTIPLIERS.unpack_from(blake2b(table_key).digest()))


def slot_index(stream: bytes, capacity: int, key: SlotKey) -> int:
    """Where the search for a stream starts. `kernels.slots.start_slots` is the same for many."""
    a, b, c, d, e, f = _ID_WORDS.unpack(stream)
    k, ka, kb, kc, kd, ke, kf = key
    mixed = (k + a * ka + b * kb + c * kc + d * kd + e * ke + f * kf) & _ALL_64_BITS
    mixed = (mixed ^ mixed >> 32) * _MIX_FIRST & _ALL_64_BITS
    mixed = (mixed ^ mixed >> 29) * _MIX_SECOND & _ALL_64_BITS
    index: int = (mixed * capacity) >> 64
    return index


# ---- Runs: what was still wanted when its segment was sealed ----
#
# A run is one immutable file: payloads, then index rows sorted by their first 32 bytes, then a
# footer.
#
# Index row, 64 bytes:
#      0 24  stream
#     24  8  class << 56 | sequence, BIG-endian: rows sort as plain bytes
#            class 0 an entry; class 1 a snapshot, whose sequence is the one it covers
#     32  8  position   in the log, where it was first written
#     40  8  time
#     48  8  offset     of the payload in this file
#     56  4  kind << 24 | payload length
#     60  4  crc        CRC32C of bytes 0-59 and the payload
#
# A snapshot's payload is the bare state: its up-to sequence is in the row.
#
# Footer, 64 bytes, the last of the file:
#      0  8  magic "SLRUN001"
#      8  8  row count
#     16  8  index offset  (the index ends where the footer starts)
#     24  8  lowest time
#     32  8  highest time
#     40  8  lowest position
#     48  8  highest position
#     56  4  index crc     CRC32C of all rows
#     60  4  crc           CRC32C of bytes 0-59

RUN_KEY: Final = struct.Struct(">24sQ")
RUN_KEY_BYTES: Final = RUN_KEY.size
RUN_ROW: Final = struct.Struct("<QQQII")
RUN_ROW_BYTES: Final = RUN_KEY.size + RUN_ROW.size
RUN_MAGIC: Final = b"SLRUN001"
RUN_FOOTER: Final = struct.Struct("<8sQQQQQQI")
RUN_FOOTER_BYTES: Final = RUN_FOOTER.size + CRC.size
CLASS_ENTRY: Final = 0
CLASS_SNAPSHOT: Final = 1
CLASS_BITS: Final = 56


def run_key(stream: bytes, row_class: int, seq: int) -> bytes:
    return RUN_KEY.pack(stream, row_class << CLASS_BITS | seq)
