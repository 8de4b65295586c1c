"""How far readers of documents were behind, by hour, and those that were behind most."""

from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.bins import unit_for
from syncline.pipeline.report.folding import (
    Reader,
    chosen,
    summing,
    with_column,
    worst_of_each,
)
from syncline.pipeline.schemas import CONSUMER_HEALTH
from syncline.pipeline.tables import Version

READERS_MAX: Final = 12
RELATIVE: Final = "relative"
ABSOLUTE: Final = "absolute"
# The row that ends a reader: how far it was behind does not matter any more.
_GONE: Final = "gone"

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class LagSlot:
    """`relative` and `absolute` are how often a reader was seen too far behind, by which rule."""

    at_ms: int
    look_count: int
    lag_ms_max: int
    relative: int
    absolute: int


@dataclass(frozen=True, slots=True)
class SlowReader:
    """A reader when it was behind most, on the newest day there is."""

    store: bytes
    stream: bytes
    session: int
    as_of_ms: int
    acked_seq: int
    head_seq: int
    lag_ms: int
    rule: str


@dataclass(frozen=True, slots=True)
class Readers:
    """`unit_ms` is how long a slot is."""

    unit_ms: int
    slots: tuple[LagSlot, ...]
    slowest: tuple[SlowReader, ...]


_SLOTS: Final = schema_of(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("looks", pa.int64()),
        pa.field("relative", pa.int64()),
        pa.field("absolute", pa.int64()),
        pa.field("lag_ms", pa.int64()),
    ]
)
_READER: Final = schema_of(
    [
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("session", pa.int64()),
        pa.field("as_of_ms", pa.int64()),
        pa.field("acked_seq", pa.int64()),
        pa.field("head_seq", pa.int64()),
        pa.field("lag_ms", pa.int64()),
        pa.field("rule", pa.string()),
    ]
)


def _present(rows: pa.Table) -> pa.Table:
    return chosen(rows, _pc.field("rule") != _GONE)


def _by_slot(rows: pa.Table, unit_ms: int) -> pa.Table:
    there: Any = _present(rows)
    slots = _pc.multiply(_pc.divide(there.column("as_of_ms"), unit_ms), unit_ms)
    found = with_column(there, "at_ms", slots)
    found = with_column(found, "looks", _pa.repeat(_pa.scalar(1, _pa.int64()), len(there)))
    for rule in (RELATIVE, ABSOLUTE):
        is_rule = _pc.fill_null(_pc.equal(there.column("rule"), rule), False)
        found = with_column(found, rule, is_rule.cast(_pa.int64()))
    return found


def gather_readers(reader: Reader, version: Version) -> Readers:
    unit_ms = unit_for(_span_ms(reader, version))
    counting = summing(
        _SLOTS,
        ("at_ms",),
        sums=("looks", RELATIVE, ABSOLUTE),
        highest=("lag_ms",),
        columns=("as_of_ms", "lag_ms", "rule"),
        prepared=lambda rows: _by_slot(rows, unit_ms),
    )
    slots = [
        LagSlot(
            int(row["at_ms"]),
            int(row["looks"]),
            int(row["lag_ms"] or 0),
            int(row[RELATIVE]),
            int(row[ABSOLUTE]),
        )
        for row in reader.folded(CONSUMER_HEALTH, version, counting)
    ]
    days = [day for each in version.files if (day := each.partition.get("day")) is not None]
    newest = version.skipping("day", max(days), max(days)) if days else version
    listing = worst_of_each(
        _READER,
        ("store", "stream", "session"),
        [("lag_ms", "descending"), ("as_of_ms", "descending")],
        READERS_MAX,
        prepared=_present,
    )
    slowest = [
        SlowReader(
            bytes(row["store"]),
            bytes(row["stream"]),
            int(row["session"] or 0),
            int(row["as_of_ms"]),
            int(row["acked_seq"] or 0),
            int(row["head_seq"] or 0),
            int(row["lag_ms"] or 0),
            str(row["rule"]),
        )
        for row in reader.folded(CONSUMER_HEALTH, newest, listing)
    ]
    return Readers(unit_ms, tuple(sorted(slots, key=lambda each: each.at_ms)), tuple(slowest))


def _span_ms(reader: Reader, version: Version) -> int:
    """From the first look to the last."""
    schema = schema_of([pa.field(name, pa.int64()) for name in ("one", "as_of_ms", "ago_ms")])

    def prepared(rows: pa.Table) -> pa.Table:
        ago = _pc.negate(cast(Any, rows).column("as_of_ms"))
        one = _pa.repeat(_pa.scalar(1, _pa.int64()), len(rows))
        return with_column(with_column(rows, "ago_ms", ago), "one", one)

    fold = summing(
        schema, ("one",), highest=("as_of_ms", "ago_ms"), columns=("as_of_ms",), prepared=prepared
    )
    found = reader.folded(CONSUMER_HEALTH, version, fold)
    return int(found[0]["as_of_ms"]) + int(found[0]["ago_ms"]) if found else 0
