"""What the audit has counted: by hour, by rule, and the streams that waited longest.

Rows of several runs of the audit add up, and so do the counts that percentiles are taken of.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from syncline.kernels.latency import decode, highest_of, merge, percentile
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.folding import (
    Fold,
    Reader,
    chosen,
    counted,
    shaped,
    summing,
    with_column,
    worst_of_each,
)
from syncline.pipeline.schemas import DELIVERY_AUDIT, DELIVERY_FINDINGS
from syncline.pipeline.tables import Version

COUNTS: Final = (
    "appended",
    "expected",
    "delivered",
    "lost",
    "duplicate",
    "resent",
    "late",
    "interrupted",
    "unacknowledged",
    "unknown",
)
# The worst first: in this order faults are told and listed.
FAULT_RULES: Final = (
    "lost",
    "rolled_back",
    "undurable",
    "to_author",
    "after_unsubscribe",
    "unexpected",
    "duplicate",
    "sequence_gap",
)
FINDINGS_MAX: Final = 200
SLOW_STREAMS_MAX: Final = 12
SHARES: Final = (0.5, 0.95, 0.99)

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds from stored to delivered."""

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class Hour:
    """`latency` is None if nothing was delivered."""

    hour_ms: int
    counts: Mapping[str, int]
    latency: Percentiles | None


@dataclass(frozen=True, slots=True)
class SlowStream:
    """`worst_ms` is the highest 99th percentile of an hour; the rest is about all hours."""

    store: bytes
    stream: bytes
    worst_ms: int
    worst_hour_ms: int
    delivered: int
    latency: Percentiles | None


@dataclass(frozen=True, slots=True)
class Delivery:
    hours: tuple[Hour, ...]
    totals: Mapping[str, int]
    latency: Percentiles | None
    # How many took so many milliseconds or more, up to twice as many.
    took: tuple[tuple[int, int], ...]
    slowest: tuple[SlowStream, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    store: bytes
    stream: bytes | None
    seq: int | None
    last_seq: int | None
    session: int | None
    position: int | None
    appended_ms: int | None
    found_ms: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts are of sequences: a finding may be about a range of them.

    `worst` are faults alone, no more than `FINDINGS_MAX` of the `row_count` that there are.
    """

    faults: Mapping[str, int]
    signs: Mapping[str, int]
    worst: tuple[Finding, ...]
    row_count: int

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())


# ------------------------------------------------------------------------------------------ hours


def gather_delivery(reader: Reader, version: Version) -> Delivery:
    merged = reader.folded(DELIVERY_AUDIT, version, _latency_fold(("hour_ms",)))
    sketches = {int(row["hour_ms"]): bytes(row["latency"]) for row in merged}
    rows = reader.folded(DELIVERY_AUDIT, version, _HOURS)
    hours = tuple(
        Hour(
            int(row["hour_ms"]),
            {name: int(row[name] or 0) for name in COUNTS},
            percentiles(sketches.get(int(row["hour_ms"]))),
        )
        for row in sorted(rows, key=lambda row: int(row["hour_ms"]))
    )
    totals = {name: sum(hour.counts[name] for hour in hours) for name in COUNTS}
    whole = merge(sketches.values())
    return Delivery(hours, totals, percentiles(whole), doublings(whole), _slowest(reader, version))


def percentiles(sketch: bytes | None) -> Percentiles | None:
    """None if nothing is in it."""
    found = [percentile(sketch or b"", share) for share in SHARES]
    known = [each for each in found if each is not None]
    return Percentiles(*known) if len(known) == len(SHARES) else None


def doublings(sketch: bytes) -> tuple[tuple[int, int], ...]:
    """Counts from 0, 1, 2, 4, 8 … milliseconds on, as far as there are any."""
    buckets, counts = decode(sketch)
    if not len(buckets):
        return ()
    bits = np.frexp(highest_of(buckets).astype(np.float64))[1].astype(np.int64)
    sums = np.bincount(bits, counts).astype(np.int64)
    return tuple((1 << bit >> 1, int(count)) for bit, count in enumerate(sums.tolist()))


_HOURS: Final = summing(
    schema_of([pa.field(name, pa.int64()) for name in ("hour_ms", *COUNTS)]),
    ("hour_ms",),
    sums=COUNTS,
)


def _latency_fold(keys: tuple[str, ...], streams: frozenset[bytes] | None = None) -> Fold:
    """Sketches merged by `keys`; of these streams alone, if they are given."""
    kinds = {"hour_ms": pa.int64(), "store": pa.binary(), "stream": pa.binary()}
    schema = schema_of(
        [
            *(pa.field(name, kinds[name]) for name in keys),
            pa.field("delivered", pa.int64()),
            pa.field("latency", pa.binary()),
        ]
    )

    def merged(rows: pa.Table) -> pa.Table:
        grouped: dict[tuple[object, ...], tuple[int, list[bytes]]] = {}
        columns: list[list[Any]] = [cast(Any, rows).column(name).to_pylist() for name in keys]
        sketches: list[bytes | None] = cast(Any, rows).column("latency").to_pylist()
        counts: list[int | None] = cast(Any, rows).column("delivered").to_pylist()
        for *key, count, sketch in zip(*columns, counts, sketches, strict=True):
            known, parts = grouped.get(tuple(key), (0, []))
            if sketch:
                parts.append(sketch)
            grouped[tuple(key)] = (known + int(count or 0), parts)
        made: dict[str, list[Any]] = {
            name: [key[place] for key in grouped] for place, name in enumerate(keys)
        }
        made["delivered"] = [count for count, _ in grouped.values()]
        made["latency"] = [merge(parts) for _, parts in grouped.values()]
        return cast(pa.Table, _pa.table(made, schema=schema))

    def first(rows: pa.Table) -> pa.Table:
        if streams is None:
            return merged(rows)
        wanted = _pa.array(sorted(streams), pa.binary())
        return merged(chosen(rows, _pc.is_in(_pc.field("stream"), value_set=wanted)))

    read = tuple(dict.fromkeys((*keys, "stream", "delivered", "latency")))
    return Fold(read, schema, first, merged)


_SLOW: Final = schema_of(
    [
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("p99_ms", pa.int64()),
        pa.field("hour_ms", pa.int64()),
    ]
)


def _slowest(reader: Reader, version: Version) -> tuple[SlowStream, ...]:
    fold = worst_of_each(
        _SLOW,
        ("store", "stream"),
        [("p99_ms", "descending"), ("hour_ms", "descending")],
        SLOW_STREAMS_MAX,
        prepared=lambda rows: chosen(rows, _pc.field("p99_ms") >= 0),
    )
    worst = reader.folded(DELIVERY_AUDIT, version, fold)
    streams = frozenset(bytes(row["stream"]) for row in worst)
    if not streams:
        return ()
    whole = {
        (bytes(row["store"]), bytes(row["stream"])): row
        for row in reader.folded(
            DELIVERY_AUDIT, version, _latency_fold(("store", "stream"), streams)
        )
    }
    found: list[SlowStream] = []
    for row in worst:
        store, stream = bytes(row["store"]), bytes(row["stream"])
        about = whole[store, stream]
        found.append(
            SlowStream(
                store,
                stream,
                int(row["p99_ms"]),
                int(row["hour_ms"]),
                int(about["delivered"]),
                percentiles(bytes(about["latency"])),
            )
        )
    return tuple(found)


# --------------------------------------------------------------------------------------- findings

_RULES: Final = schema_of(
    [
        pa.field("rule", pa.string()),
        pa.field("is_fault", pa.bool_()),
        pa.field("count", pa.int64()),
        pa.field("sequences", pa.int64()),
    ]
)
_FINDING: Final = schema_of(
    [
        pa.field("rule", pa.string()),
        pa.field("is_fault", pa.bool_()),
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("seq", pa.int64()),
        pa.field("last_seq", pa.int64()),
        pa.field("session", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("appended_ms", pa.int64()),
        pa.field("found_ms", pa.int64()),
    ]
)
_NEWEST_FIRST: Final = [
    ("rule", "ascending"),
    ("found_ms", "descending"),
    ("store", "ascending"),
    ("stream", "ascending"),
    ("seq", "ascending"),
    ("session", "ascending"),
    ("position", "ascending"),
]


def _newest_of_each_rule(rows: pa.Table) -> pa.Table:
    there: Any = chosen(rows, _pc.field("is_fault"))
    there = there.take(_pc.sort_indices(there, sort_keys=_NEWEST_FIRST))
    rules = there.column("rule").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, rules[1:] != rules[:-1]]) if len(rules) else np.zeros(0)
    lengths = np.diff(np.r_[starts, len(rules)]).astype(np.int64)
    ranks = np.arange(len(rules)) - np.repeat(starts, lengths)
    return shaped(there.filter(_pa.array(ranks < FINDINGS_MAX)), _FINDING)


def _with_sequences(rows: pa.Table) -> pa.Table:
    there: Any = rows
    more = _pc.fill_null(_pc.subtract(there.column("last_seq"), there.column("seq")), 0)
    return with_column(counted(rows), "sequences", _pc.add(_pc.max_element_wise(more, 0), 1))


def gather_findings(reader: Reader, version: Version) -> Findings:
    counting = summing(
        _RULES,
        ("rule", "is_fault"),
        sums=("count", "sequences"),
        columns=("rule", "is_fault", "seq", "last_seq"),
        prepared=_with_sequences,
    )
    by_rule = reader.folded(DELIVERY_FINDINGS, version, counting)
    columns = tuple(cast(Any, _FINDING).names)
    listing = Fold(columns, _FINDING, _newest_of_each_rule, _newest_of_each_rule)
    listed = reader.folded(DELIVERY_FINDINGS, version, listing)
    faults = {str(row["rule"]): int(row["sequences"]) for row in by_rule if row["is_fault"]}
    signs = {str(row["rule"]): int(row["sequences"]) for row in by_rule if not row["is_fault"]}
    row_count = sum(int(row["count"]) for row in by_rule if row["is_fault"])
    return Findings(
        {rule: faults[rule] for rule in sorted(faults, key=severity)},
        {rule: signs[rule] for rule in sorted(signs, key=lambda rule: (-signs[rule], rule))},
        tuple(_shares(map(_finding, listed))),
        row_count,
    )


def severity(rule: str) -> tuple[int, str]:
    """A key to sort rules by; those that are not known come last."""
    is_known = rule in FAULT_RULES
    return (FAULT_RULES.index(rule) if is_known else len(FAULT_RULES), rule)


def _finding(row: Mapping[str, Any]) -> Finding:
    return Finding(
        str(row["rule"]),
        bytes(row["store"] or b""),
        row["stream"],
        row["seq"],
        row["last_seq"],
        row["session"],
        row["position"],
        row["appended_ms"],
        row["found_ms"],
    )


def _shares(findings: Iterable[Finding]) -> list[Finding]:
    """No more than `FINDINGS_MAX`: a rule with thousands does not push the others out."""
    by_rule: dict[str, list[Finding]] = {}
    for each in findings:
        by_rule.setdefault(each.rule, []).append(each)
    room = FINDINGS_MAX
    kept: dict[str, list[Finding]] = {}
    # The shortest lists first: what they leave of their share goes to the longer ones.
    for done, rule in enumerate(sorted(by_rule, key=lambda rule: (len(by_rule[rule]), rule))):
        share = room // (len(by_rule) - done)
        kept[rule] = by_rule[rule][:share]
        room -= len(kept[rule])
    return [each for rule in sorted(kept, key=severity) for each in kept[rule]]
