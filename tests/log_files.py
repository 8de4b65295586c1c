"""Files of the log store made by hand, from the format's own encoders: segments, tables, runs."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from syncline.storage.files import Files
from syncline.storage.log import format as log_format
from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    CLASS_ENTRY,
    CLASS_SNAPSHOT,
    HAS_SNAPSHOT,
    RECORD_HEADER_BYTES,
    SEQUENCE,
    SLOT_BYTES,
    SLOT_NEVER_USED,
    SLOT_USED,
    TABLE_HEADER_BYTES,
    RecordKind,
    Slot,
)
from syncline.storage.log.run_writer import NewRow

SEGMENT_BYTES = 64 * 1024
EPOCH = 3
# Of tables made here.
SLOT_KEY = log_format.slot_key(log_format.NO_TABLE_KEY)


def stream_id(number: int) -> bytes:
    """Ids spread like random ones, the same in each run."""
    return random.Random(number).randbytes(24)


def entry_row(
    stream: bytes,
    seq: int,
    payload: bytes,
    *,
    position: int = 100,
    time_ms: int = 1_000,
    kind: int = RecordKind.MESSAGE,
) -> NewRow:
    return log_format.run_key(stream, CLASS_ENTRY, seq), position, time_ms, kind, payload


def snapshot_row(stream: bytes, seq: int, state: bytes, *, position: int = 100) -> NewRow:
    key = log_format.run_key(stream, CLASS_SNAPSHOT, seq)
    return key, position, 1_000, RecordKind.SNAPSHOT, state


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record before it has a position."""

    kind: int
    stream: bytes
    seq: int = 0
    payload: bytes = b""
    time_ms: int = 1_000
    quota: int = 0


def message(stream: bytes, seq: int, payload: bytes, time_ms: int = 1_000) -> NewRecord:
    return NewRecord(RecordKind.MESSAGE, stream, seq, payload, time_ms)


def snapshot(stream: bytes, up_to: int, state: bytes) -> NewRecord:
    payload = SEQUENCE.pack(up_to) + state
    return NewRecord(RecordKind.SNAPSHOT | HAS_SNAPSHOT, stream, up_to, payload)


class SegmentBuilder:
    """Fills a segment batch by batch, and remembers where each record went."""

    def __init__(
        self,
        number: int,
        *,
        first_batch: int = 1,
        previous_crc: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.number = number
        self.start = number * segment_bytes
        self.next_batch = first_batch
        self.previous_crc = previous_crc
        self.data = bytearray(segment_bytes)
        self.end = 0
        self.positions: list[int] = []

    def add(self, records: Sequence[NewRecord], epoch: int = EPOCH) -> list[int]:
        """One batch; the positions of its records."""
        position = self.start + self.end
        at = position + BATCH_HEADER_BYTES
        parts: list[bytes] = []
        positions: list[int] = []
        for record in records:
            head, _ = log_format.encode_record(
                at,
                epoch,
                record.kind,
                record.stream,
                record.seq,
                0,
                record.time_ms,
                record.quota,
                record.payload,
            )
            parts += [head, record.payload]
            positions.append(at)
            at += RECORD_HEADER_BYTES + len(record.payload)
        body = b"".join(parts)
        header, self.previous_crc = log_format.encode_batch_header(
            epoch, self.next_batch, position, 5_000, len(positions), [body], self.previous_crc
        )
        whole = header + body
        assert self.end + len(whole) <= len(self.data), "the segment is full"
        self.data[self.end : self.end + len(whole)] = whole
        self.end = log_format.align(self.end + len(whole))
        self.next_batch += 1
        self.positions += positions
        return positions


def slot(
    stream: bytes,
    *,
    first: int = 1,
    next_seq: int = 1 << 20,
    born: int = 0,
    flags: int = 0,
    state: int = SLOT_USED,
) -> Slot:
    return Slot(stream, born, first, next_seq, born, 0, flags, state)


def table_image(slots: Iterable[Slot], capacity: int = 64, generation: int = 1) -> bytes:
    """A table that holds these slots, each placed by linear probing."""
    table = bytearray(TABLE_HEADER_BYTES + capacity * SLOT_BYTES)
    header = log_format.encode_table_header(capacity, 0, 0, 0, generation)
    table[: len(header)] = header
    for found in slots:
        index = log_format.slot_index(found.stream, capacity, SLOT_KEY)
        while table[slot_offset(index) + log_format.SLOT_STATE_OFFSET] != SLOT_NEVER_USED:
            index = (index + 1) % capacity
        image = log_format.encode_slot(
            found.stream,
            found.born,
            found.first,
            found.next,
            found.applied,
            found.quota,
            found.flags,
            found.state,
        )
        table[slot_offset(index) : slot_offset(index) + SLOT_BYTES] = image
    return bytes(table)


def slot_offset(index: int) -> int:
    return TABLE_HEADER_BYTES + index * SLOT_BYTES


def find_slot(table: bytes, stream: bytes) -> int:
    """The index of a stream's slot, or -1: one stream at a time, as plainly as can be."""
    capacity = (len(table) - TABLE_HEADER_BYTES) // SLOT_BYTES
    index = log_format.slot_index(stream, capacity, SLOT_KEY)
    for _ in range(capacity):
        image = table[slot_offset(index) : slot_offset(index) + SLOT_BYTES]
        if image[log_format.SLOT_STATE_OFFSET] == SLOT_NEVER_USED:
            return -1
        if image[:24] == stream:
            return index
        index = (index + 1) % capacity
    return -1


def put(files: Files, path: str, data: bytes) -> None:
    """Write a whole file and make it durable."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, [data])
        file.sync()
    finally:
        file.close()


def take(files: Files, path: str) -> bytes:
    file = files.open(path, writable=False)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
