"""The rows that the source `syncline` gives, as Arrow (docs/formats/tables.md, "Rows of the log").

A row is a record of the log, or one acknowledgement in a record. `store`, `position` and `part`
name it for ever: a position is used once in the life of a store.

What could not be read is a row as well, of a kind below zero: so it is counted by whoever counts
rows, and no reading of a log looks more complete than it was.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from syncline.kernels.log_records import (
    ACKNOWLEDGEMENTS,
    LAYOUTS,
    Bytes,
    Flags,
    Integers,
    RecordColumns,
    Voids,
)
from syncline.pipeline.arrow import names_and_types, record_batch, schema_of, without
from syncline.pipeline.sources.authors import details

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


@cache
def schema_with(names: tuple[str, ...]) -> pa.Schema:
    """The columns of these names, in the order of `SCHEMA`; all of them if none is named."""
    left_out = {name for name, _ in names_and_types(SCHEMA)} - set(names) if names else ()
    return without(SCHEMA, left_out)


def batch_of_records(
    store_id: bytes, found: RecordColumns, bodies: Bytes | None, schema: pa.Schema = SCHEMA
) -> pa.RecordBatch:
    """`bodies` are those of all rows in a row; without them the column is null.

    Only the columns of `schema` are made.
    """
    count = len(found)
    no_event = ~found.is_event

    def body() -> "Column":
        if bodies is None:
            return pa.nulls(count, pa.binary())
        has_body = (found.kinds != ACKNOWLEDGEMENTS) & ~found.is_event
        return _binary(bodies, found.body_lengths, has_body)

    makers: dict[str, Callable[[], Column]] = {
        "store": lambda: _repeated(store_id, count),
        "position": lambda: pa.array(found.positions),
        "part": lambda: pa.array(found.parts),
        "kind": lambda: pa.array(found.kinds),
        "is_from_run": lambda: pa.array(np.zeros(count, np.bool_)),
        "stream": lambda: fixed_binary(found.streams, found.has_stream),
        "seq": lambda: pa.array(found.sequences, mask=~found.has_sequence),
        "time_ms": lambda: pa.array(found.times_ms),
        "day": lambda: _days(found.times_ms),
        "flags": lambda: pa.array(found.flags, mask=found.is_event),
        "last": lambda: pa.array(found.last, mask=found.is_event),
        "unread": lambda: pa.array(found.unread, mask=found.is_event),
        "quota": lambda: pa.array(found.quotas, mask=found.is_event),
        "event": lambda: pa.array(found.events, mask=no_event),
        "session": lambda: pa.array(found.sessions, mask=no_event),
        "first": lambda: pa.array(found.firsts, mask=no_event),
        "detail": lambda: details(found),
        "length": lambda: pa.array(found.body_lengths),
        "body": body,
    }
    return _batch({name: makers[name]() for name in schema.names}, count, schema)


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
    columns: dict[str, Column] = {
        "store": _repeated(store_id, count),
        "position": pa.array(positions),
        "part": pa.array(np.zeros(count, np.int32)),
        "kind": pa.array(kinds),
        "is_from_run": pa.array(np.ones(count, np.bool_)),
        "stream": fixed_binary(streams),
        "seq": pa.array(sequences),
        "time_ms": pa.array(times_ms),
        "day": _days(times_ms),
        "length": pa.array(lengths),
    }
    if bodies is not None:
        columns["body"] = _binary(bodies, lengths, None)
    return _batch(columns, count)


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
    columns: dict[str, Column] = {
        "store": _repeated(store_id, count),
        "position": pa.array([position] * count, pa.int64()),
        "part": pa.array(range(count), pa.int32()),
        "kind": pa.array([kind] * count, pa.int8()),
        "is_from_run": pa.array([is_from_run] * count),
        "stream": pa.array([None, *suspects], pa.binary()),
        "seq": pa.array([seq] * count, pa.int64()),
        "length": pa.array([length] + [0] * len(suspects), pa.int64()),
        "body": pa.array([reason.encode()] * count, pa.binary()),
    }
    return _batch(columns, count)


def _batch(
    columns: "Mapping[str, Column]", count: int, schema: pa.Schema = SCHEMA
) -> pa.RecordBatch:
    """In the order of `schema`; a column that is not given is null."""
    found: list[Column] = []
    for each in cast(Any, schema):
        assert each.nullable or each.name in columns, f"{each.name} may not be null"
        given = columns.get(each.name)
        found.append(cast("Column", pa.nulls(count, each.type)) if given is None else given)
    return record_batch(found, schema)


def _repeated(value: bytes, count: int) -> "Column":
    return fixed_binary(np.frombuffer(value * count, f"V{len(value)}"))


def _days(times_ms: Integers) -> "Column":
    return pa.array((times_ms // DAY_MS).astype(np.int32)).cast(pa.date32())


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
