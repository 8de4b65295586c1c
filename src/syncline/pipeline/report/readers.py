"""How far readers of documents were behind, by hour, and those that were behind most.

A reader has many rows; it is one subscription, named by its log, document, session and where it
joined, and counts once.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.bins import unit_for
from syncline.pipeline.report.folding import (
    Fold,
    Reader,
    chosen,
    summing,
    with_column,
    worst_of_each,
)
from syncline.pipeline.schemas import CONSUMER_HEALTH
from syncline.pipeline.tables import Version

READERS_MAX: Final = 12
# So many that were too far behind are told apart, the furthest; of more, it is said that there are.
COUNTED_MAX: Final = 20_000
RELATIVE: Final = "relative"
ABSOLUTE: Final = "absolute"
# The row that ends a reader: how far it was behind does not matter any more.
_GONE: Final = "gone"

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class LagSlot:
    """`relative` and `absolute`: readers that were too far behind, by which rule.

    Each is in one slot alone, that in which it was furthest behind.
    """

    at_ms: int
    lag_ms_max: int
    relative: int
    absolute: int


@dataclass(frozen=True, slots=True)
class SlowReader:
    """A reader when it was behind most."""

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
    """`unit_ms` is how long a slot is; `slowest` are of the newest day there is.

    `behind_ms_max` is how far those were behind that were too far behind.
    """

    unit_ms: int
    slots: tuple[LagSlot, ...]
    slowest: tuple[SlowReader, ...]
    behind_ms_max: int

    @property
    def behind_count(self) -> int:
        """How many were too far behind, each once; `COUNTED_MAX` are that many or more."""
        return sum(slot.relative + slot.absolute for slot in self.slots)


_SLOTS: Final = schema_of(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("lag_ms", pa.int64()),
    ]
)
_READER: Final = schema_of(
    [
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("session", pa.int64()),
        pa.field("joined_position", pa.int64()),
        pa.field("as_of_ms", pa.int64()),
        pa.field("acked_seq", pa.int64()),
        pa.field("head_seq", pa.int64()),
        pa.field("lag_ms", pa.int64()),
        pa.field("rule", pa.string()),
    ]
)


_NAME: Final = ("store", "stream", "session", "joined_position")


def _present(rows: pa.Table) -> pa.Table:
    return chosen(rows, _pc.field("rule") != _GONE)


def _too_far_behind(rows: pa.Table) -> pa.Table:
    rules = _pa.array([RELATIVE, ABSOLUTE], _pa.string())
    return chosen(rows, _pc.is_in(_pc.field("rule"), value_set=rules))


def _by_slot(rows: pa.Table, unit_ms: int) -> pa.Table:
    there: Any = _present(rows)
    slots = _pc.multiply(_pc.divide(there.column("as_of_ms"), unit_ms), unit_ms)
    return with_column(there, "at_ms", slots)


def _furthest(count: int, prepared: Callable[[pa.Table], pa.Table]) -> Fold:
    """Readers, each once, as they were when they were furthest behind."""
    order = [("lag_ms", "descending"), ("as_of_ms", "descending")]
    return worst_of_each(_READER, _NAME, order, count, prepared=prepared)


def gather_readers(reader: Reader, version: Version) -> Readers:
    unit_ms = unit_for(_span_ms(reader, version))
    counting = summing(
        _SLOTS,
        ("at_ms",),
        highest=("lag_ms",),
        columns=("as_of_ms", "lag_ms", "rule"),
        prepared=lambda rows: _by_slot(rows, unit_ms),
    )
    behind = _slow_readers(reader, version, _furthest(COUNTED_MAX, _too_far_behind))
    counts = Counter((each.as_of_ms // unit_ms * unit_ms, each.rule) for each in behind)
    slots = [
        LagSlot(at_ms, lag_ms, counts[at_ms, RELATIVE], counts[at_ms, ABSOLUTE])
        for at_ms, lag_ms in sorted(
            (int(row["at_ms"]), int(row["lag_ms"] or 0))
            for row in reader.folded(CONSUMER_HEALTH, version, counting)
        )
    ]
    days = [day for each in version.files if (day := each.partition.get("day")) is not None]
    newest = version.skipping("day", max(days), max(days)) if days else version
    slowest = _slow_readers(reader, newest, _furthest(READERS_MAX, _present))
    furthest_ms = max((each.lag_ms for each in behind), default=0)
    return Readers(unit_ms, tuple(slots), tuple(slowest), furthest_ms)


def _slow_readers(reader: Reader, version: Version, fold: Fold) -> list[SlowReader]:
    return [
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
        for row in reader.folded(CONSUMER_HEALTH, version, fold)
    ]


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
