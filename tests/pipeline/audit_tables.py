"""Histories of routers as tables of `events`, a version for each piece."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from syncline.kernels import delivery_rows as codes
from syncline.kernels.delivery_tally import COUNTS
from syncline.pipeline.auditing import facts as facts_module
from syncline.pipeline.auditing.facts import Facts
from syncline.pipeline.auditing.groups import RowGroup
from syncline.pipeline.auditing.packing import Packing
from syncline.pipeline.auditing.settling import Settling
from syncline.pipeline.jobs import audit as audit_module
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.sources.rows import SCHEMA
from syncline.pipeline.tables import Table, TableSpec
from tests.unit.kernels.delivery_histories import STORE, Log
from tests.unit.kernels.delivery_oracle import Row

DAY_MS = 86_400_000


def event_row(row: Row, store: bytes = STORE, *, is_document: bool = True) -> dict[str, Any]:
    """A row of `events`; the stream of number 0 is none."""
    kind = row.code - 100 if row.code > 100 else 10
    is_event = kind == 10
    stream = row.stream.to_bytes(24, "big") if row.stream else None
    return {
        "store": store,
        "position": row.place,
        "part": 0,
        "kind": kind,
        "is_from_run": False,
        "stream": stream,
        "seq": row.last,
        "time_ms": row.time_ms,
        "day": datetime.fromtimestamp(row.time_ms / 1000, UTC).date(),
        "flags": None if is_event else (0x80 if is_document else 0),
        "last": None if is_event else row.last,
        "unread": None if is_event else 0,
        "quota": None if is_event else 0,
        "event": row.code if is_event else None,
        "session": row.session if is_event else None,
        "first": row.first if is_event else None,
        "detail": row.detail if is_event or kind == 1 else None,
        "length": 0,
        "body": b"never read" if kind == 1 else None,
    }


def stretch_row(place: int, end: int, store: bytes = STORE) -> dict[str, Any]:
    nothing = dict.fromkeys(SCHEMA.names)
    told = {"store": store, "position": place, "part": 0, "kind": -3, "is_from_run": False}
    return {**nothing, **told, "length": end - place, "body": b"gone"}


def rows_of(log: Log) -> list[dict[str, Any]]:
    rows = [event_row(row, is_document=row.stream in log.documents) for row in log.rows]
    rows += [stretch_row(start, end) for start, end, _ in log.stretches]
    for place, _ in log.starts:
        behind = [row.time_ms for row in log.rows if row.place < place]
        rows.append(event_row(Row(0, codes.STARTED, place, max(behind, default=0))))
    return rows


def write_events(tables: Path, rows: Sequence[dict[str, Any]], batch: int) -> None:
    """A version of `events`, sorted as `ingest` does it, in row groups of a few."""
    with Table(tables, EVENTS).begin({"test": batch}) as load:
        days = sorted({row["day"] for row in rows}, key=str)
        for day in days:
            own = [row for row in rows if row["day"] == day]
            own.sort(key=lambda row: (row["stream"] or b"", row["seq"] or 0, row["position"]))
            folder = load.folder / f"day={'__HIVE_DEFAULT_PARTITION__' if day is None else day}"
            folder.mkdir(parents=True)
            table = pa.Table.from_pylist(own, SCHEMA).drop_columns(["day"])
            pq.write_table(table, folder / f"part-{batch}.parquet", row_group_size=64)
        load.commit({})


def read_rows(tables: Path, spec: TableSpec) -> list[dict[str, Any]]:
    files = Table(tables, spec).version().files
    return [row for each in files for row in pq.ParquetFile(each.path).read().to_pylist()]


def audit_counts(rows: Sequence[dict[str, Any]]) -> Counter[tuple[bytes, int, str]]:
    """What the rows of all runs add up to."""
    found: Counter[tuple[bytes, int, str]] = Counter()
    for row in rows:
        for what in COUNTS:
            if row[what]:
                found[row["stream"], row["hour_ms"], what] += row[what]
    return found


def finding_counts(rows: Sequence[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Ranges, taken apart."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        first = row["seq"] if row["seq"] is not None else 0
        last = first if row["last_seq"] is None else min(row["last_seq"], first + 200)
        for seq in range(first, last + 1):
            found[row["rule"], row["is_fault"], row["stream"], row["session"], seq] += 1
    return found


class Collected:
    """In place of a DataFrame."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def work_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers do is done here, without Spark: for tests of what is around it."""

    def collect(_: object, groups: Sequence[RowGroup], work: Any) -> list[dict[str, Any]]:
        return [row for group in groups for batch in work(group) for row in batch.to_pylist()]

    def settled_buckets(
        _: object, tasks: list[RowGroup], facts: Facts, settling: Settling
    ) -> Collected:
        starts = {
            store: np.array(sorted(place for place, _ in log.starts), np.int64)
            for store, log in facts.logs.items()
        }
        packing = Packing(4, starts, dict(facts.branches))
        packed = [batch for task in tasks for batch in packing.pack(task)]
        return Collected([row for batch in settling.settle(packed) for row in batch.to_pylist()])

    monkeypatch.setattr(facts_module, "_collect", collect)
    monkeypatch.setattr(audit_module, "settled_buckets", settled_buckets)
