"""The rows that the source `syncline` gives, as Arrow (docs/formats/tables.md, "Rows of the log").

A row is a record of the log, or one acknowledgement in a record. `store`, `position` and `part`
name it for ever: a position is used once in the life of a store.

What could not be read is a row as well, of a kind below zero: so it is counted by whoever counts
rows, and no reading of a log looks more complete than it was.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from syncline.kernels.log_records import (
    ACKNOWLEDGEMENTS,
    EVENTS,
    LAYOUTS,
    Bytes,
    Flags,
    Integers,
    RecordColumns,
    Voids,
)
from syncline.pipeline.arrow import record_batch, schema_of

if TYPE_CHECKING:
    Column = pa.Array[Any]

DAY_MS: Final = 86_400_000

SCHEMA: Final = schema_of(
    [
        pa.field("store", pa.binary(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("is_from_run", pa.bool_(), nullable=False),
        pa.field("stream", pa.binary()),
        pa.field("seq", pa.int64()),
        pa.field("time_ms", pa.int64()),
        pa.field("day", pa.date32()),
        pa.field("flags", pa.int16()),
        pa.field("last", pa.int64()),
        pa.field("unread", pa.int32()),
        pa.field("quota", pa.int32()),
        pa.field("event", pa.int16()),
        pa.field("session", pa.int64()),
        pa.field("first", pa.int64()),
        pa.field("detail", pa.int64()),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("body", pa.binary()),
    ]
)


class Unread(IntEnum):
    """Kinds of rows for what could not be read. `length` is that of the stretch of the log."""

    # Bytes that were acknowledged once and fail their check; `body` says why. With a part above 0
    # and a stream: a stream that it may have concerned.
    DAMAGE = -1
    # A batch that a crash cut off. It was never acknowledged.
    TORN = -2
    # Segments that are not there. What was still wanted of them may be in rows from runs.
    GAP = -3


KIND_NAMES: Final = {kind: layout.name for kind, layout in LAYOUTS.items()} | {
    kind.value: kind.name.lower() for kind in Unread
}


def batch_of_records(
    store_id: bytes, columns: RecordColumns, bodies: Bytes | None, *, has_bodies: bool
) -> pa.RecordBatch:
    """`bodies` are those of all rows in a row; without `has_bodies` the column is null."""
    count = len(columns)
    has_rows = np.isin(columns.kinds, (ACKNOWLEDGEMENTS, EVENTS))
    is_no_event = ~columns.is_event
    body: Column = (
        _binary(bodies, columns.body_lengths, ~has_rows)
        if has_bodies and bodies is not None
        else pa.nulls(count, pa.binary())
    )
    return _batch(
        store_id,
        count,
        positions=columns.positions,
        parts=columns.parts,
        kinds=columns.kinds,
        is_from_run=False,
        stream=fixed_binary(columns.streams, columns.has_stream),
        seq=pa.array(columns.sequences, mask=~columns.has_sequence),
        time_ms=columns.times_ms,
        flags=pa.array(columns.flags, mask=columns.is_event),
        last=pa.array(columns.last, mask=columns.is_event),
        unread=pa.array(columns.unread, mask=columns.is_event),
        quota=pa.array(columns.quotas, mask=columns.is_event),
        event=pa.array(columns.events, mask=is_no_event),
        session=pa.array(columns.sessions, mask=is_no_event),
        first=pa.array(columns.firsts, mask=is_no_event),
        detail=pa.array(columns.details, mask=is_no_event),
        lengths=columns.body_lengths,
        body=body,
    )


def batch_of_run(
    store_id: bytes,
    *,
    positions: Integers,
    kinds: npt.NDArray[np.int8],
    streams: Voids,
    sequences: Integers,
    times_ms: Integers,
    lengths: Integers,
    bodies: Bytes | None,
) -> pa.RecordBatch:
    """A run keeps entries and snapshots, and of the stream's state nothing."""
    count = len(positions)
    return _batch(
        store_id,
        count,
        positions=positions,
        parts=np.zeros(count, np.int32),
        kinds=kinds,
        is_from_run=True,
        stream=fixed_binary(streams),
        seq=pa.array(sequences),
        time_ms=times_ms,
        flags=pa.nulls(count, pa.int16()),
        last=pa.nulls(count, pa.int64()),
        unread=pa.nulls(count, pa.int32()),
        quota=pa.nulls(count, pa.int32()),
        event=pa.nulls(count, pa.int16()),
        session=pa.nulls(count, pa.int64()),
        first=pa.nulls(count, pa.int64()),
        detail=pa.nulls(count, pa.int64()),
        lengths=lengths,
        body=pa.nulls(count, pa.binary()) if bodies is None else _binary(bodies, lengths, None),
    )


def batch_of_unread(
    store_id: bytes,
    kind: Unread,
    position: int,
    length: int,
    reason: str,
    suspects: list[bytes],
    *,
    is_from_run: bool = False,
    seq: int | None = None,
) -> pa.RecordBatch:
    """One row for the stretch, and one for each stream that it may have concerned."""
    count = 1 + len(suspects)
    return record_batch(
        [
            pa.array([store_id] * count, pa.binary()),
            pa.array([position] * count, pa.int64()),
            pa.array(range(count), pa.int32()),
            pa.array([kind] * count, pa.int8()),
            pa.array([is_from_run] * count),
            pa.array([None, *suspects], pa.binary()),
            pa.array([seq] * count, pa.int64()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.date32()),
            pa.nulls(count, pa.int16()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int16()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int64()),
            pa.array([length] + [0] * len(suspects), pa.int64()),
            pa.array([reason.encode()] * count, pa.binary()),
        ],
        SCHEMA,
    )


def _batch(
    store_id: bytes,
    count: int,
    *,
    positions: Integers,
    parts: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int8],
    is_from_run: bool,
    stream: "Column",
    seq: "Column",
    time_ms: Integers,
    flags: "Column",
    last: "Column",
    unread: "Column",
    quota: "Column",
    event: "Column",
    session: "Column",
    first: "Column",
    detail: "Column",
    lengths: Integers,
    body: "Column",
) -> pa.RecordBatch:
    stores = np.frombuffer(store_id * count, f"V{len(store_id)}")
    days = pa.array((time_ms // DAY_MS).astype(np.int32)).cast(pa.date32())
    return record_batch(
        [
            fixed_binary(stores),
            pa.array(positions),
            pa.array(parts),
            pa.array(kinds),
            pa.array(np.full(count, is_from_run)),
            stream,
            seq,
            pa.array(time_ms),
            days,
            flags,
            last,
            unread,
            quota,
            event,
            session,
            first,
            detail,
            pa.array(lengths),
            body,
        ],
        SCHEMA,
    )


def fixed_binary(items: Voids, is_there: Flags | None = None) -> "Column":
    """A binary column of items that are all of one size; null where `is_there` is false."""
    size = items.dtype.itemsize
    values = np.ascontiguousarray(items)
    offsets = np.arange(len(items) + 1, dtype=np.int32) * np.int32(size)
    validity = _validity(is_there)
    buffers = [validity, pa.py_buffer(offsets.data), pa.py_buffer(values.view(np.uint8).data)]
    return pa.Array.from_buffers(pa.binary(), len(items), buffers)


def _binary(values: Bytes, lengths: Integers, is_there: npt.NDArray[np.bool_] | None) -> "Column":
    """A binary column over its bytes as they are; null where `is_there` is false."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    validity = _validity(is_there)
    buffers = [validity, pa.py_buffer(offsets.data), pa.py_buffer(values.data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _validity(is_there: Flags | None) -> pa.Buffer | None:
    if is_there is None or is_there.all():
        return None
    return pa.py_buffer(np.packbits(is_there, bitorder="little").data)
