"""The audit of deliveries, against DuckDB on the same files.

DuckDB counts what was expected, delivered, lost, twice, late and not acknowledged for each document
and hour, with percentiles; the job finds the same, and judges all its other rules besides. Then
only the last hour is new: the job goes on from its carry, DuckDB would begin again.
"""

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from bench.pipeline.audit_events import LATE_MS, Maker, Planted, write_hours
from bench.pipeline.setting import Setting
from bench.support.figures import Figure, at_most, at_most_ratio
from bench.support.processes import BenchError
from syncline.kernels.delivery import Rules
from syncline.kernels.latency import buckets_of
from syncline.pipeline.auditing.facts import Facts, Log
from syncline.pipeline.auditing.groups import NEW, log_groups
from syncline.pipeline.auditing.settling import Settling
from syncline.pipeline.jobs.audit import LOST_AFTER_MS, AuditReport, audit, settled_buckets
from syncline.pipeline.schemas import DELIVERY_AUDIT, DELIVERY_CARRY, DELIVERY_FINDINGS, EVENTS
from syncline.pipeline.tables import Table

# Of five events one is an append.
_EVENTS_EACH = 4.9
_OUTPUTS = (DELIVERY_AUDIT, DELIVERY_FINDINGS, DELIVERY_CARRY)
_BYTES_EACH = 60
_QUERY = """
WITH appended AS (
    SELECT stream, seq, time_ms FROM events WHERE kind = 1
), readers AS (
    SELECT stream, session, first, time_ms, seq AS acknowledges FROM events WHERE event = 4
), given AS (
    SELECT stream, session, seq, min(time_ms) AS time_ms, count(*) AS times
    FROM events WHERE event = 6 GROUP BY ALL
), acknowledged AS (
    SELECT stream, session, max(seq) AS seq FROM events WHERE event = 8 GROUP BY ALL
), pairs AS (
    SELECT a.stream, a.time_ms // 3600000 AS hour, g.times, k.seq >= a.seq AS is_acked,
        r.acknowledges,
        -- Of values that are not there, the greatest is another.
        CASE WHEN g.time_ms IS NOT NULL
            THEN greatest(g.time_ms - greatest(a.time_ms, r.time_ms), 0) END AS took_ms
    FROM appended a
    JOIN readers r ON a.stream = r.stream AND a.seq >= r.first
    LEFT JOIN given g ON a.stream = g.stream AND r.session = g.session AND a.seq = g.seq
    LEFT JOIN acknowledged k ON a.stream = k.stream AND r.session = k.session
)
SELECT stream, hour, count(*) AS expected, count(took_ms) AS delivered,
    count(*) - count(took_ms) AS lost, sum(times - 1)::BIGINT AS duplicate,
    count_if(took_ms > {late_ms}) AS late,
    count_if(acknowledges = 1 AND took_ms IS NOT NULL AND NOT coalesce(is_acked, false))
        AS unacknowledged,
    quantile_disc(took_ms, [0.5, 0.95, 0.99]) AS percentiles
FROM pairs GROUP BY ALL
"""

Totals = dict[str, int]


def measure(setting: Setting) -> list[Figure]:
    bench = _Audit(setting)
    try:
        return bench.figures()
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)


class _Audit:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.folder = setting.folder / "audit"
        self._whole = self.folder / "whole"
        # All hours but the last were audited there.
        self._before = self.folder / "before"
        self._planted = Planted()

    def figures(self) -> list[Figure]:
        setting = self._setting
        setting.check_space(2 * setting.plan.audit_event_count * _BYTES_EACH)
        self._make()
        self._check_rows()
        times = setting.both_orders(
            {
                "audit": lambda: self._job(self._fresh(self._whole)),
                "DuckDB": self._duckdb,
                "audit of one hour": lambda: self._job(self._copy_of_before()),
            },
            self._check,
        )
        setting.details["audit"] = {name: each.all_seconds for name, each in times.items()}
        ours, theirs = times["audit"].seconds, times["DuckDB"].seconds
        hour = times["audit of one hour"].seconds
        count = f"{self._planted.event_count:,} events"
        exchanges, joins = self._plan()
        return [
            Figure(
                f"audit, {count}, s",
                ours,
                "DuckDB",
                theirs,
                ours / theirs,
                at_most_ratio("<= 1.5 x DuckDB", 1.5),
            ),
            Figure(
                "audit of the last hour, s",
                hour,
                "DuckDB, all",
                theirs,
                hour / theirs,
                at_most_ratio("< 1.0 x DuckDB", 1.0),
            ),
            Figure("audit: exchanges in the plan", exchanges, bar=at_most("= 1", 1)),
            Figure("audit: joins in the plan", joins, bar=at_most("= 0", 0)),
            Figure(
                "audit: planted and not found, or found and not planted",
                0,
                bar=at_most("= 0", 0),
                note="checked after every run",
            ),
        ]

    # The data.

    def _make(self) -> None:
        plan = self._setting.plan
        maker = Maker(self._setting.random(7), plan.audit_document_count)
        appends = int(plan.audit_event_count / plan.audit_hour_count / _EVENTS_EACH)
        hours = []
        for number in range(plan.audit_hour_count):
            self._setting.doing(f"making hour {number + 1} of {plan.audit_hour_count}")
            hours.append(maker.hour(number, appends))
        *most, last = hours
        self._planted = maker.planted
        write_hours(self._before, most, 1)
        self._setting.doing("the audit of all hours but the last")
        audit(self._setting.spark, self._before)
        write_hours(self._before, [last], 2)
        self._whole.mkdir()
        (self._whole / EVENTS.name).symlink_to(self._before / EVENTS.name)

    def _fresh(self, tables: Path) -> Path:
        for spec in _OUTPUTS:
            shutil.rmtree(tables / spec.name, ignore_errors=True)
        return tables

    def _copy_of_before(self) -> Path:
        tables = self.folder / "hour"
        shutil.rmtree(tables, ignore_errors=True)
        tables.mkdir()
        (tables / EVENTS.name).symlink_to(self._before / EVENTS.name)
        for spec in _OUTPUTS:
            shutil.copytree(self._before / spec.name, tables / spec.name)
        return tables

    # Contestants.

    def _job(self, tables: Path) -> Totals:
        report: AuditReport = audit(self._setting.spark, tables, is_over=True)
        return {
            "lost": report.lost_count,
            **{
                rule: count
                for rule, count in report.findings.items()
                if rule in ("duplicate", "late", "unacknowledged")
            },
            "faults": report.fault_count,
        }

    def _rows(self) -> Any:
        files = [str(each.path) for each in Table(self._before, EVENTS).version().files]
        with duckdb.connect() as connection:
            connection.execute(
                "CREATE VIEW events AS SELECT * FROM read_parquet(?)".replace("?", repr(files))
            )
            found: Any = connection.sql(_QUERY.format(late_ms=LATE_MS))
            return found.to_arrow_table()

    def _duckdb(self) -> Totals:
        table = self._rows()
        names = ("lost", "duplicate", "late", "unacknowledged")
        return {
            name: int(np.nansum(table.column(name).to_numpy(zero_copy_only=False)))
            for name in names
        }

    # Checks.

    def _check(self, name: str, found: Totals) -> None:
        planted = self._planted
        wanted = {"lost": planted.lost, "duplicate": planted.duplicate, "late": planted.late}
        if name == "audit of one hour":
            # The rest was found before.
            return
        for rule, count in wanted.items():
            if found.get(rule, 0) != count:
                raise BenchError(f"{name} found {found.get(rule, 0)} {rule}, planted were {count}")
        if "faults" in found and found["faults"] != planted.lost + planted.duplicate:
            raise BenchError(f"{name} found {found['faults']} faults")

    def _check_rows(self) -> None:
        """Every row, counts and percentiles: ours in one run, ours in two, and DuckDB's."""
        self._job(self._fresh(self._whole))
        table = self._rows()
        theirs = {
            (row["stream"], row["hour"]): (
                *(
                    row[name]
                    for name in ("expected", "delivered", "lost", "late", "unacknowledged")
                ),
                *(_bucket(each) for each in row["percentiles"] or (None,) * 3),
            )
            for row in table.to_pylist()
        }
        ours = _audit_rows(self._whole)
        if ours != theirs:
            differing = [key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)]
            raise BenchError(
                f"{len(differing)} rows differ, as {differing[0]}: {ours.get(differing[0])} and "
                f"{theirs.get(differing[0])}"
            )
        tables = self._copy_of_before()
        self._job(tables)
        added = _audit_rows(tables)
        if {key: row[:5] for key, row in added.items()} != {
            key: row[:5] for key, row in ours.items()
        }:
            raise BenchError("two runs do not add up to one")

    def _plan(self) -> tuple[int, int]:
        groups = log_groups(Table(self._before, EVENTS).version().files, NEW)
        facts = Facts({bytes(16): Log()})
        rules = Rules(LATE_MS, LOST_AFTER_MS, is_over=False)
        settling = Settling(1, facts.for_kernel(), rules, {})
        tasks = [each.group for each in groups]
        frame: Any = settled_buckets(self._setting.spark, tasks, facts, settling)
        plan: str = frame._jdf.queryExecution().sparkPlan().toString()
        executed: str = frame._jdf.queryExecution().executedPlan().toString()
        return executed.count("Exchange "), plan.count("Join")


def _bucket(value: int | None) -> int | None:
    return None if value is None else int(buckets_of(np.array([value], np.int64))[0])


def _audit_rows(tables: Path) -> dict[tuple[bytes, int], tuple[int | None, ...]]:
    found: dict[tuple[bytes, int], tuple[int | None, ...]] = {}
    for each in Table(tables, DELIVERY_AUDIT).version().files:
        for row in pq.ParquetFile(each.path).read().to_pylist():
            key = row["stream"], row["hour_ms"] // 3_600_000
            counts = [
                row[name] for name in ("expected", "delivered", "lost", "late", "unacknowledged")
            ]
            if not any(counts):
                continue
            percentiles = [_bucket(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms")]
            if key in found:
                # Counts add up; percentiles would have to be made of both histograms.
                before = found[key]
                counts = [
                    (mine or 0) + (more or 0) for mine, more in zip(before, counts, strict=False)
                ]
            found[key] = (*counts, *percentiles)
    return found
