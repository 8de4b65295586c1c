"""The rows of a log in plain Python, one record at a time: what the kernels must agree with."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from syncline.errors import CorruptionError
from syncline.kernels.log_records import HEADER_BYTES
from syncline.pipeline.sources.rows import SCHEMA
from syncline.storage.documents import decode_entry
from syncline.storage.log.format import (
    IS_DOCUMENT,
    KIND_MASK,
    QUOTA_BITS,
    QUOTA_MASK,
    SEQUENCE,
    UNREAD_BITS,
    UNREAD_MASK,
    RecordKind,
    ack_rows,
)
from syncline.storage.log.runs import Run
from syncline.storage.log.scan import DamagedStretch, RawRecord, WholeBatch, batches, records_of
from syncline.values.events import author_number, decode_events

# The columns of COMPARED.
Row = tuple[Any, ...]
COMPARED = (
    "position",
    "part",
    "kind",
    "is_from_run",
    "stream",
    "seq",
    "time_ms",
    "flags",
    "last",
    "unread",
    "quota",
    "event",
    "session",
    "first",
    "detail",
    "length",
    "body",
)


NO_EVENT = (None, None, None, None)


def signed(number: int) -> int:
    """A number of 64 bits as SQL has it."""
    return int.from_bytes(number.to_bytes(8, "little"), "little", signed=True)


def rows_of_segment(data: bytes, start: int, tag: int, number_behind: int = 0) -> list[Row]:
    """Of every record that the log's own scan keeps."""
    rows: list[Row] = []
    for part in batches(data, start, None, number_behind=number_behind, tag=tag):
        if isinstance(part, WholeBatch):
            for raw in records_of(data, start, part):
                rows += rows_of_record(data, start, raw)
        elif isinstance(part, DamagedStretch):
            for raw in part.records:
                rows += rows_of_record(data, start, raw)
    return rows


def rows_of_record(data: bytes, start: int, raw: RawRecord) -> Iterator[Row]:
    position, kind_byte, length, stream, last_unread, time_quota = raw
    kind, flags = kind_byte & KIND_MASK, kind_byte & ~KIND_MASK
    at = position - start + HEADER_BYTES
    payload = data[at : at + length]
    last, unread = last_unread >> UNREAD_BITS, last_unread & UNREAD_MASK
    time_ms, quota = time_quota >> QUOTA_BITS, time_quota & QUOTA_MASK
    if kind == RecordKind.ACKNOWLEDGEMENTS:
        for part, (acked, acked_last, acked_unread) in enumerate(ack_rows(payload)):
            seq = acked_last - acked_unread
            yield (
                *(position, part, kind, False, acked, seq, time_ms, flags),
                *(acked_last, acked_unread, quota, *NO_EVENT, 0, None),
            )
        return
    if kind == RecordKind.EVENTS:
        for part, event in enumerate(decode_events(payload)):
            about = event.stream if any(event.stream) else None
            numbers = map(signed, (event.session, event.first, event.detail))
            yield (
                *(position, part, kind, False, about, signed(event.last), event.time_ms),
                *(None, None, None, None, event.kind, *numbers, 0, None),
            )
        return
    seq_found: int | None = None
    if kind in (RecordKind.MESSAGE, RecordKind.QUOTA_MARKER):
        seq_found = last
    elif kind in (RecordKind.SNAPSHOT, RecordKind.CURSOR) and length >= SEQUENCE.size:
        # A router gives out far fewer; what is beyond shows as below zero.
        seq_found = int.from_bytes(payload[: SEQUENCE.size], "little", signed=True)
        payload = payload[SEQUENCE.size :]
    is_update = kind == RecordKind.MESSAGE and flags & IS_DOCUMENT
    detail = author_of(payload) if is_update else None
    yield (
        *(position, 0, kind, False, stream, seq_found, time_ms, flags),
        *(last, unread, quota, None, None, None, detail, len(payload), payload),
    )


def author_of(entry: bytes) -> int | None:
    try:
        return author_number(decode_entry(entry)[0])
    except CorruptionError:
        return None


def rows_of_run(run: Run) -> list[Row]:
    """Of every row of a run that its own reader finds whole."""
    rows: list[Row] = []
    for index in range(run.row_count):
        raw = run.row_at(index)
        reason, payload = run.read_row(raw)
        if reason:
            continue
        from syncline.storage.log.run_rows import parse_row

        row = parse_row(index, raw)
        rows.append(
            (
                *(row.position, 0, row.kind & KIND_MASK, True, raw[:24], row.seq, row.time_ms),
                *(None, None, None, None, *NO_EVENT, row.length, payload),
            )
        )
    return rows


def as_rows(found: Iterable[pa.RecordBatch]) -> list[Row]:
    """What batches of the source hold, in the form of this module."""
    rows: list[Row] = []
    for batch in found:
        assert batch.schema == SCHEMA
        batch.validate(full=True)
        rows += zip(*(batch.column(name).to_pylist() for name in COMPARED), strict=True)
    return rows


def read_rows(found: Iterable[pa.RecordBatch]) -> list[Row]:
    """Without those for what could not be read."""
    return [row for row in as_rows(found) if row[2] >= 0]


def unread_rows(found: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for row in as_rows(found) if row[2] < 0]
