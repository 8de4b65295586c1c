"""How much was logged and when, what of it is not wanted any more, and what could not be read.

Everything but the plan is taken of `events` in one pass over small columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.kernels.log_records import EVENTS as EVENTS_KIND
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.bins import unit_for
from syncline.pipeline.report.documents import newest_run
from syncline.pipeline.report.folding import (
    Reader,
    chosen,
    counted,
    highest_rows,
    summing,
    with_column,
)
from syncline.pipeline.schemas import EVENTS, TRUNCATION_PLAN
from syncline.pipeline.sources.rows import DAY_MS, Unread
from syncline.pipeline.tables import Version
from syncline.values.events import EventKind

STRETCHES_MAX: Final = 100
HELD_STREAMS_MAX: Final = 12
# Upper ends of the ages that held bytes are sorted into, and how they are called.
AGES: Final = (
    (3_600_000, "under 1 h"),
    (DAY_MS, "1 h to 1 day"),
    (7 * DAY_MS, "1 to 7 days"),
    (30 * DAY_MS, "7 to 30 days"),
    (None, "over 30 days"),
)
NO_AGE: Final = "not known"
_MESSAGE: Final = 1
_SNAPSHOT: Final = 6
_DROPPED: Final = int(EventKind.DROPPED)
_STARTED: Final = int(EventKind.STARTED)
_UNREAD_KINDS: Final = (Unread.DAMAGE, Unread.GAP)

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class LogSlot:
    """Bytes of bodies that were logged from a time on."""

    at_ms: int
    message_count: int
    message_bytes: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a log that nothing is known of."""

    store: bytes
    kind: str
    position: int
    byte_count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Logged:
    """What `events` says, in slots of `unit_ms`.

    `dropped_count` are events that a router did not note, `silent_count` starts of routers that
    noted none at all.
    """

    unit_ms: int
    slots: tuple[LogSlot, ...]
    stretches: tuple[Stretch, ...]
    stretch_count: int
    unread_bytes: int
    torn_count: int
    dropped_count: int
    silent_count: int = 0

    @property
    def unknown_count(self) -> int:
        """Stretches of which something may be missing that was there once."""
        return self.stretch_count + bool(self.dropped_count) + self.silent_count


@dataclass(frozen=True, slots=True)
class Holder:
    """Streams whose rest is held by one kind of holder."""

    held_by: str
    stream_count: int
    reclaimable_count: int
    reclaimable_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class HeldStream:
    store: bytes
    stream: bytes
    held_by: str
    session: int | None
    held_bytes: int
    reclaimable_bytes: int
    oldest_held_ms: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Of the newest run."""

    run: int
    holders: tuple[Holder, ...]
    held_by_age: Mapping[str, int]
    largest: tuple[HeldStream, ...]


# ----------------------------------------------------------------------------------------- events

_SLOTS: Final = schema_of(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("kind", pa.int8()),
        pa.field("event", pa.int16()),
        pa.field("count", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("first", pa.int64()),
    ]
)


def _by_slot(rows: pa.Table, unit_ms: int) -> pa.Table:
    """Only what is asked for later stays apart: events are one group, but for what was left out."""
    kinds = _pc.fill_null(cast(Any, rows).column("event"), 0)
    is_dropped = _pc.equal(kinds, _DROPPED)
    details = _pc.fill_null(cast(Any, rows).column("detail"), 0)
    is_silent = _pc.and_(_pc.equal(kinds, _STARTED), _pc.not_equal(details, 0))
    first = _pc.if_else(is_dropped, cast(Any, rows).column("first"), 0)
    event = _pc.if_else(is_dropped, _DROPPED, _pc.if_else(is_silent, _STARTED, 0))
    event = event.cast(_pa.int16())
    # Not the column `day`: a clock may have been so far off that no calendar has it.
    at_ms = _pc.multiply(_pc.divide(cast(Any, rows).column("time_ms"), unit_ms), unit_ms)
    whole = with_column(with_column(counted(rows), "first", first), "event", event)
    whole = with_column(whole, "at_ms", at_ms)
    # Further parts of a damaged place are streams that it may have concerned.
    return chosen(whole, (_pc.field("kind") >= 0) | (_pc.field("part") == 0))


_STRETCH: Final = schema_of(
    [
        pa.field("kind", pa.int8()),
        pa.field("store", pa.binary()),
        pa.field("position", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("body", pa.binary()),
    ]
)


def _first_parts(rows: pa.Table) -> pa.Table:
    kinds = _pa.array(sorted(map(int, _UNREAD_KINDS)), _pa.int8())
    is_unread = _pc.is_in(_pc.field("kind"), value_set=kinds)
    return chosen(rows, is_unread & (_pc.field("part") == 0))


def gather_logged(reader: Reader, version: Version) -> Logged:
    unit_ms = unit_for(_span_ms(version))
    adding = summing(
        _SLOTS,
        ("at_ms", "kind", "event"),
        sums=("count", "length", "first"),
        columns=("kind", "part", "event", "length", "first", "detail", "time_ms"),
        prepared=lambda rows: _by_slot(rows, unit_ms),
    )
    rows = reader.folded(EVENTS, version, adding)
    # Rows of what could not be read have no time, and are in a partition of their own.
    apart = Version(
        version.table,
        version.number,
        tuple(each for each in version.files if each.partition.get("day") is None),
    )
    listing = highest_rows(
        _STRETCH,
        [("length", "descending"), ("store", "ascending"), ("position", "ascending")],
        STRETCHES_MAX,
        prepared=_first_parts,
        columns=("kind", "part", "store", "position", "length", "body"),
    )
    stretches = tuple(
        Stretch(
            bytes(row["store"]),
            Unread(int(row["kind"])).name.lower(),
            int(row["position"]),
            int(row["length"]),
            bytes(row["body"] or b"").decode(errors="replace"),
        )
        for row in reader.folded(EVENTS, apart, listing)
    )
    unread = [row for row in rows if row["kind"] in _UNREAD_KINDS]
    return Logged(
        unit_ms,
        _slots(rows),
        stretches,
        sum(int(row["count"]) for row in unread),
        sum(int(row["length"]) for row in unread),
        sum(int(row["count"]) for row in rows if row["kind"] == Unread.TORN),
        sum(int(row["first"] or 0) for row in rows if row["kind"] == EVENTS_KIND),
        sum(int(row["count"]) for row in rows if row["event"] == _STARTED),
    )


def _slots(rows: list[dict[str, Any]]) -> tuple[LogSlot, ...]:
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for row in rows:
        if row["at_ms"] is not None and row["kind"] in (_MESSAGE, _SNAPSHOT):
            amounts = (int(row["count"]), int(row["length"] or 0))
            found.setdefault(int(row["at_ms"]), {})[int(row["kind"])] = amounts
    return tuple(
        LogSlot(at, *found[at].get(_MESSAGE, (0, 0)), found[at].get(_SNAPSHOT, (0, 0))[1])
        for at in sorted(found)
    )


def _span_ms(version: Version) -> int:
    """From the first row to the last, as the files say; of no file, or one that says nothing, 0."""
    bounds = [each.bounds.get("time_ms", (None, None)) for each in version.files]
    lows = [low for low, _ in bounds if isinstance(low, int)]
    highs = [high for _, high in bounds if isinstance(high, int)]
    return max(highs) - min(lows) if lows and highs else 0


# ------------------------------------------------------------------------------------------- plan

_HOLDERS: Final = schema_of(
    [
        pa.field("held_by", pa.string()),
        pa.field("age", pa.int32()),
        pa.field("count", pa.int64()),
        pa.field("reclaimable_count", pa.int64()),
        pa.field("reclaimable_bytes", pa.int64()),
        pa.field("held_bytes", pa.int64()),
    ]
)
_HELD: Final = schema_of(
    [
        pa.field("held_bytes", pa.int64()),
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("held_by", pa.string()),
        pa.field("session", pa.int64()),
        pa.field("reclaimable_bytes", pa.int64()),
        pa.field("oldest_held_ms", pa.int64()),
    ]
)


def gather_plan(reader: Reader, version: Version) -> Plan | None:
    """None if there is no run in it. Ages are those at the end of what the run has read."""
    newest = newest_run(version)
    if newest is None:
        return None
    sums = ("count", "reclaimable_count", "reclaimable_bytes", "held_bytes")
    counting = summing(
        _HOLDERS,
        ("held_by", "age"),
        sums=sums,
        columns=("held_by", "oldest_held_ms", "as_of_ms", *sums[1:]),
        prepared=lambda rows: with_column(counted(rows), "age", _ages(rows)),
    )
    listing = highest_rows(
        _HELD,
        [("held_bytes", "descending"), ("store", "ascending"), ("stream", "ascending")],
        HELD_STREAMS_MAX,
    )
    rows = reader.folded(TRUNCATION_PLAN, newest, counting)
    largest = tuple(
        HeldStream(
            bytes(row["store"]),
            bytes(row["stream"]),
            str(row["held_by"]),
            row["session"],
            int(row["held_bytes"]),
            int(row["reclaimable_bytes"]),
            row["oldest_held_ms"],
        )
        for row in reader.folded(TRUNCATION_PLAN, newest, listing)
        if row["held_bytes"]
    )
    names = [*(name for _, name in AGES), NO_AGE]
    held_by_age = dict.fromkeys(names, 0)
    for row in rows:
        held_by_age[names[int(row["age"])]] += int(row["held_bytes"] or 0)
    if not held_by_age[NO_AGE]:
        del held_by_age[NO_AGE]
    return Plan(int(newest.files[0].partition["run"] or 0), _holders(rows), held_by_age, largest)


def _ages(rows: pa.Table) -> object:
    """Which of `AGES` each row is in; one behind the last if that is not known."""
    there: Any = rows
    age_ms = _pc.subtract(there.column("as_of_ms"), there.column("oldest_held_ms"))
    place = _pa.repeat(_pa.scalar(0, _pa.int32()), len(rows))
    for end_ms, _ in AGES[:-1]:
        place = _pc.add(place, _pc.greater_equal(age_ms, end_ms).cast(_pa.int32()))
    return _pc.fill_null(place, len(AGES)).cast(_pa.int32())


def _holders(rows: list[dict[str, Any]]) -> tuple[Holder, ...]:
    found: dict[str, list[int]] = {}
    for row in rows:
        sums = found.setdefault(str(row["held_by"]), [0, 0, 0, 0])
        names = ("count", "reclaimable_count", "reclaimable_bytes", "held_bytes")
        for place, name in enumerate(names):
            sums[place] += int(row[name] or 0)
    holders = [Holder(name, *sums) for name, sums in found.items()]
    return tuple(sorted(holders, key=lambda each: (-each.held_bytes, each.held_by)))
