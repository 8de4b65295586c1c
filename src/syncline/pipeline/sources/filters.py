"""Which rows are wanted: comparisons that Spark hands over, decided before bodies are read.

A comparison with nothing is never true, as in SQL. Filters are plain values and travel to workers.
"""

import datetime
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from syncline.kernels.log_records import Flags, Integers, Voids
from syncline.pipeline.arrow import values_of
from syncline.pipeline.sources.rows import DAY_MS

# By which rows are told apart while they are arrays.
COLUMNS: Final = frozenset({"kind", "stream", "seq", "position", "day", "event"})

_EPOCH: Final = datetime.date(1970, 1, 1)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """`column` compared with one of `values`: with the only one, or `in` with any of them."""

    column: str
    comparison: str
    values: tuple[int | bytes, ...]


def row_filter(column: str, comparison: str, values: Sequence[object]) -> RowFilter | None:
    """None if it is none that can be decided here: then Spark has to."""
    if column not in COLUMNS or (comparison != "in" and comparison not in _COMPARISONS):
        return None
    if column == "stream" and comparison not in ("=", "in"):
        return None
    plain: list[int | bytes] = []
    for value in values:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            plain.append((value - _EPOCH).days)
        elif isinstance(value, bytes | bytearray):
            plain.append(bytes(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            plain.append(value)
        else:
            return None
    wants_bytes = column == "stream"
    if any(isinstance(value, bytes) is not wants_bytes for value in plain):
        return None
    return RowFilter(column, comparison, tuple(plain))


@dataclass(frozen=True, slots=True)
class FilterColumns:
    """The columns that filters look at; without `has_…`, every row has a value.

    Without `events`, no row is one.
    """

    positions: Integers
    kinds: npt.NDArray[np.int8]
    streams: Voids
    sequences: Integers
    has_sequence: Flags | None
    times_ms: Integers
    has_stream: Flags | None = None
    events: npt.NDArray[np.int16] | None = None
    is_event: Flags | None = None


def wanted(filters: Sequence[RowFilter], columns: FilterColumns) -> Flags | None:
    """For each row whether all filters take it; None if there are none."""
    if not filters:
        return None
    found = np.ones(len(columns.positions), np.bool_)
    for each in filters:
        match each.column:
            case "stream":
                found &= _are_streams(columns.streams, each.values)
                if columns.has_stream is not None:
                    found &= columns.has_stream
            case "event":
                if columns.events is None or columns.is_event is None:
                    return np.zeros(len(found), np.bool_)
                found &= columns.is_event & _compared(columns.events.astype(np.int64), each)
            case "seq":
                found &= _compared(columns.sequences, each)
                if columns.has_sequence is not None:
                    found &= columns.has_sequence
            case "day":
                found &= _compared(columns.times_ms // DAY_MS, each)
            case "kind":
                found &= _compared(columns.kinds.astype(np.int64), each)
            case _:
                found &= _compared(columns.positions, each)
    return found


def wanted_rows(filters: Sequence[RowFilter], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same for rows that are made already, and few."""
    for each in filters:
        kept = [_takes(each, value) for value in values_of(batch, each.column)]
        batch = batch.filter(pa.array(kept, pa.bool_()))
    return batch


def _takes(each: RowFilter, value: object) -> bool:
    if value is None:
        return False
    if isinstance(value, datetime.date):
        value = (value - _EPOCH).days
    if each.comparison == "in":
        return value in each.values
    return bool(_COMPARISONS[each.comparison](value, each.values[0]))


def _compared(values: Integers, each: RowFilter) -> Flags:
    if each.comparison == "in":
        return np.isin(values, np.array(each.values, np.int64))
    compare = _COMPARISONS[each.comparison]
    return np.asarray(compare(values, each.values[0]), np.bool_)


def _are_streams(streams: Voids, values: tuple[int | bytes, ...]) -> Flags:
    rows = np.ascontiguousarray(streams).view(np.uint8).reshape(-1, streams.dtype.itemsize)
    found = np.zeros(len(streams), np.bool_)
    for value in values:
        if isinstance(value, bytes) and len(value) == rows.shape[1]:
            found |= (rows == np.frombuffer(value, np.uint8)).all(axis=1)
    return found
