"""Small tables as jobs would have written them, for tests of the report. No Spark is needed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from syncline.kernels.latency import buckets_of, encode, percentile
from syncline.pipeline.arrow import names_and_types, without
from syncline.pipeline.schemas import (
    CONSUMER_HEALTH,
    DELIVERY_AUDIT,
    DELIVERY_FINDINGS,
    DOCUMENT_STATES,
    DRIFT_ITEMS,
    EVENTS,
    SERVICE_DIGESTS,
    TRUNCATION_PLAN,
)
from syncline.pipeline.tables import Table, TableSpec

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1000
STORE = bytes(range(16))
# A log that goes on from the other one.
RESTORED = bytes(range(255, 239, -1))
HOSTILE = '<script>alert("1")</script>&amp;\u202e]]></style>'
# Milliseconds that ten deliveries took.
TEN = tuple(range(1, 11))
Row = Mapping[str, object]


def stream(number: int) -> bytes:
    return number.to_bytes(24, "big")


def day_of(time_ms: int) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def sketch(times_ms: Sequence[int]) -> bytes:
    buckets, counts = np.unique(buckets_of(np.array(times_ms, np.int64)), return_counts=True)
    return encode(buckets, counts)


def write(
    root: Path,
    spec: TableSpec,
    rows: Iterable[Row],
    *,
    job: str = "test",
    inputs: Mapping[str, object] | None = None,
    observed: Mapping[str, int] | None = None,
    row_group_size: int = 1024,
) -> int:
    """One load of rows; what a row does not say is null."""
    by_partition: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_partition.setdefault(tuple(row.get(name) for name in spec.partition_by), []).append(row)
    schema: Any = without(spec.schema, spec.partition_by)
    # What is never null need not be said.
    blank = {"part": 0, "is_from_run": False, "length": 0, "position": 0, "store": STORE}
    with Table(root, spec).begin({}) as load:
        for values, chosen in by_partition.items():
            folder = load.folder
            for name, value in zip(spec.partition_by, values, strict=True):
                text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")
                folder = folder / f"{name}={text}"
            folder.mkdir(parents=True, exist_ok=True)
            columns = {
                name: pa.array(
                    [row.get(name, blank.get(name)) for row in chosen], schema.field(name).type
                )
                for name, _ in names_and_types(schema)
            }
            table = cast(Any, pa).table(columns, schema=schema)
            pq.write_table(table, folder / "part.parquet", row_group_size=row_group_size)
        return load.commit(
            {"job": job, "inputs": dict(inputs or {}), "observed": dict(observed or {})}
        )


def audit_row(number: int, hour: int, times_ms: Sequence[int], **counts: object) -> Row:
    """What the audit says of one stream and hour; all that is not named is as it should be."""
    hour_ms = START_MS + hour * HOUR_MS
    found = sketch(times_ms)
    return {
        "run": 1,
        "store": STORE,
        "stream": stream(number),
        "is_document": True,
        "hour_ms": hour_ms,
        "day": day_of(hour_ms),
        "appended": len(times_ms),
        "expected": len(times_ms),
        "delivered": len(times_ms),
        **dict.fromkeys(("lost", "duplicate", "resent", "late"), 0),
        **dict.fromkeys(("interrupted", "unacknowledged", "unknown"), 0),
        "latency": found,
        "p50_ms": percentile(found, 0.5),
        "p95_ms": percentile(found, 0.95),
        "p99_ms": percentile(found, 0.99),
        **counts,
    }


def finding_row(rule: str, *, is_fault: bool, number: int = 1, seq: int = 1, **more: object) -> Row:
    found_ms = START_MS + seq * 1000
    return {
        "run": 1,
        "store": STORE,
        "stream": stream(number),
        "rule": rule,
        "is_fault": is_fault,
        "seq": seq,
        "last_seq": seq,
        "session": 7 << 4 | 1,
        "position": 4096 + seq,
        "appended_ms": found_ms - 500,
        "found_ms": found_ms,
        "day": day_of(found_ms),
        **more,
    }


def document_row(number: int, name: str, **more: object) -> Row:
    return {
        "run": 1,
        "store": STORE,
        "stream": stream(number),
        "name": name,
        "kind": "yjs",
        "is_deleted": False,
        "up_to_seq": 10,
        "state": b"state",
        "update_count": 10,
        "bytes_in": 4096,
        "bytes_out": 1024,
        "checked_count": 1,
        "mismatch_count": 0,
        **more,
    }


def health_row(
    number: int, time_ms: int, lag_ms: int, rule: str = "healthy", **more: object
) -> Row:
    return {
        "batch": 0,
        "as_of_ms": time_ms,
        "day": day_of(time_ms),
        "store": STORE,
        "stream": stream(number),
        "session": number << 4 | 1,
        "joined_position": 100 + number,
        "acked_seq": 3,
        "head_seq": 10,
        "lag_ms": lag_ms,
        "rule": rule,
        **more,
    }


def plan_row(number: int, held_by: str, **more: object) -> Row:
    return {
        "run": 1,
        "store": STORE,
        "stream": stream(number),
        "is_document": True,
        "held_by": held_by,
        "as_of_ms": START_MS,
        "reclaimable_count": 0,
        "reclaimable_bytes": 0,
        "held_bytes": 0,
        **more,
    }


def digest_row(snapshot: str, number: int, *, matches: bool) -> Row:
    facts = {"snapshot": snapshot, "service": stream(number), "role": "M", "matches": matches}
    return {**facts, "count": 1_000, "claimed_count": 1_000 if matches else 1_001}


def drift_row(run: str, number: int, verdict: str, service: int = 90) -> Row:
    facts = {"run": run, "service": stream(service), "role": "M"}
    return {**facts, "id": stream(number), "verdict": verdict}


def event_row(kind: int, time_ms: int | None, **more: object) -> Row:
    day = None if time_ms is None else day_of(time_ms)
    return {"store": STORE, "kind": kind, "time_ms": time_ms, "day": day, **more}


def healthy(root: Path) -> None:
    """A run in which all is well: two documents, three hours, 60 deliveries."""
    audited(root, [audit_row(number, hour, TEN) for number in (1, 2) for hour in range(3)], [])


def audited(
    root: Path, rows: Iterable[Row], findings: Iterable[Row], *, pending_count: int = 0
) -> None:
    """What an ingest and an audit have written."""
    messages = [
        event_row(1, START_MS + at, stream=stream(1), seq=at, length=100) for at in range(6)
    ]
    write(root, EVENTS, messages, job="ingest")
    inputs, observed = {"events": 1, "late_ms": 5_000}, {"pending": pending_count}
    for spec, chosen in ((DELIVERY_FINDINGS, findings), (DELIVERY_AUDIT, rows)):
        write(root, spec, chosen, job="audit", inputs=inputs, observed=observed)


def something_of_everything(root: Path) -> None:
    """Faults, signs, what could not be read, and names that are no good; of one log."""
    rows = [audit_row(1, 0, TEN), audit_row(2, 0, [500] * 4, late=3)]
    rows += [audit_row(1, 30, TEN, lost=2, delivered=8), audit_row(3, 30, [], interrupted=1)]
    findings = [finding_row("lost", is_fault=True, seq=5, last_seq=6)]
    findings += [finding_row("to_author", is_fault=True, number=2)]
    findings += [finding_row("resent", is_fault=False, seq=at) for at in range(4)]
    audited(root, rows, findings)
    # The second run of the audit settles more of an hour that was there before.
    more = [audit_row(1, 0, [9_000], run=2)]
    write(root, DELIVERY_AUDIT, more, job="audit", inputs={"events": 2})
    unread = [event_row(-1, None, position=64, length=4_096, body=HOSTILE.encode())]
    unread += [event_row(-1, None, position=64, part=1, stream=stream(1), length=0)]
    unread += [event_row(-2, None, position=900, length=70, body=b"torn")]
    unread += [
        event_row(10, START_MS, event=13, first=17),
        event_row(10, START_MS, event=6, first=5),
    ]
    unread += [event_row(6, START_MS + DAY_MS, length=2_048)]
    write(root, EVENTS, unread, job="ingest", inputs={"<folder>": {"a": [1]}})
    health = [health_row(1, START_MS, 250), health_row(1, START_MS + 5, 40_000, "relative")]
    health += [
        health_row(2, START_MS + HOUR_MS, 90),
        health_row(2, START_MS + HOUR_MS, 9**9, "gone"),
    ]
    write(root, CONSUMER_HEALTH, health, job="lag")
    documents = [document_row(1, HOSTILE), document_row(2, "plain", bytes_in=100, mismatch_count=1)]
    documents += [document_row(3, "gone", is_deleted=True, bytes_in=10**9)]
    write(root, DOCUMENT_STATES, documents, job="compact")
    plan = [
        plan_row(1, "reader", session=33, held_bytes=700, oldest_held_ms=START_MS - HOUR_MS - 1)
    ]
    plan += [plan_row(2, "nothing", reclaimable_count=9, reclaimable_bytes=5_000)]
    write(root, TRUNCATION_PLAN, plan, job="gc-plan")
    for number, wrong in enumerate((1, 0)):
        name = f"00010203-{number}"
        sets = [digest_row(name, 90 + at, matches=at >= wrong) for at in range(2)]
        write(root, SERVICE_DIGESTS, sets, job="digest", inputs={"snapshot": name})
        run = {"router": name, "wanted": "want-1"}
        items = [drift_row(f"{name}..want-1", at, "missing" if at else "extra") for at in range(3)]
        write(root, DRIFT_ITEMS, items[: 3 * wrong], job="reconcile", inputs=run)


def restored(root: Path) -> None:
    """What jobs add when the router of `something_of_everything` goes on from a backup."""
    start = event_row(10, START_MS, event=1, first=64, stream=STORE + bytes(8), store=RESTORED)
    gap = event_row(-3, None, position=7, length=99, body=b"gone", store=RESTORED)
    write(root, EVENTS, [start, {**start, "position": 90}, gap], job="ingest")
    write(root, DELIVERY_AUDIT, [audit_row(2, 1, [700] * 4, store=RESTORED)], job="audit")
    undone = finding_row("rolled_back", is_fault=True, number=2, store=RESTORED)
    write(root, DELIVERY_FINDINGS, [undone], job="audit")
    behind = health_row(2, START_MS + HOUR_MS, 50_000, "relative", store=RESTORED)
    write(root, CONSUMER_HEALTH, [behind], job="lag")
    documents = [
        document_row(2, "plain", store=store, bytes_in=100, mismatch_count=1, run=2)
        for store in (STORE, RESTORED)
    ]
    documents += [document_row(1, HOSTILE, store=store, run=2) for store in (STORE, RESTORED)]
    write(root, DOCUMENT_STATES, documents, job="compact")
    plan = [plan_row(2, "unread", held_bytes=90, store=store, run=2) for store in (STORE, RESTORED)]
    write(root, TRUNCATION_PLAN, plan, job="gc-plan")
