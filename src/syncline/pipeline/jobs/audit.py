"""`audit`: what became of everything that was appended, and whatever should not have happened.

1. Workers read the row groups of `events` that are new, and those of the last carry, and pack what
   is needed of them, a block for each bucket of streams.
2. Blocks are sent to where their bucket belongs: the only exchange. There is no join.
3. Workers settle whole streams (`syncline.kernels.delivery`), and write what comes of it.

A run is named by the version of `events` that it has read up to. It writes three tables, the carry
last; the first commit says which version and which rules it is about. So a run that was cut off is
done again as it was begun, and what has landed of it stays: the results are the same.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from syncline.errors import ConfigError, ExpectationError
from syncline.kernels.delivery import Rules
from syncline.kernels.delivery_tally import FAULTS, RULES, SIGNS
from syncline.pipeline.arrow import batch_of_rows
from syncline.pipeline.auditing.facts import Facts, gather
from syncline.pipeline.auditing.groups import (
    CARRIED,
    NEW,
    ROLLED_BACK,
    LogGroup,
    RowGroup,
    log_groups,
    worked_through,
)
from syncline.pipeline.auditing.packing import PACKED, Packing
from syncline.pipeline.auditing.settling import SETTLED, UNNAMED, Settled, Settling
from syncline.pipeline.schemas import (
    DELIVERY_AUDIT,
    DELIVERY_CARRY,
    DELIVERY_FINDINGS,
    EVENTS,
    spark_schema,
)
from syncline.pipeline.sources.rows import DAY_MS, Unread
from syncline.pipeline.tables import Load, Table, TableSpec

LATE_MS: Final = 5_000
LOST_AFTER_MS: Final = 1_800_000
# Under which the tables keep how far they have come.
SOURCE: Final = "audit"
# Rows of a bucket, which is what a worker has in memory at a time, and of a task.
_BUCKET_ROWS: Final = 1 << 18
_TASK_ROWS: Final = 1 << 22
_BUCKET_COUNT_MAX: Final = 1 << 13
_TASKS_EACH: Final = 2
# In the order in which they are committed.
_TABLES: Final = (DELIVERY_FINDINGS, DELIVERY_AUDIT, DELIVERY_CARRY)
_POSITION_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`findings` are numbers of sequences by rule; `pending` what is not decided yet.

    `version` is that of `delivery_audit`. Messages that wait in queues are in `waiting_count`.
    """

    run: int
    version: int | None
    is_new: bool
    appended_count: int
    expected_count: int
    delivered_count: int
    lost_count: int
    fault_count: int
    sign_count: int
    pending_count: int
    unknown_count: int
    waiting_count: int
    clock_back_count: int
    findings: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: up to which version of `events`, since which, and by which rules."""

    number: int
    since: int | None
    rules: Rules

    @property
    def progress(self) -> int:
        """Grows with the version, and for one version when all that is open is judged."""
        return 2 * self.number + self.rules.is_over + 1

    def inputs(self) -> dict[str, object]:
        return {
            "events": self.number,
            "since": self.since,
            "late_ms": self.rules.late_ms,
            "lost_after_ms": self.rules.lost_after_ms,
            "is_over": self.rules.is_over,
        }

    @classmethod
    def read(cls, inputs: dict[str, Any]) -> "_Run":
        rules = Rules(inputs["late_ms"], inputs["lost_after_ms"], inputs["is_over"])
        return cls(inputs["events"], inputs["since"], rules)


def audit(
    spark: SparkSession,
    tables: Path,
    *,
    late_ms: int = LATE_MS,
    lost_after_ms: int = LOST_AFTER_MS,
    is_over: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Raises TableError if there are no events, CommitConflictError, ExpectationError.

    `is_over`: routers are stopped and all they wrote is there, so nothing is pending any more.
    `on_step` hears of every step of every commit: tests stop there.
    """
    check_rules(late_ms, lost_after_ms)
    events = Table(tables, EVENTS).version()
    rules = Rules(late_ms, lost_after_ms, is_over)
    findings, audits, carries = (Table(tables, spec, on_step) for spec in _TABLES)
    done = carries.progress(SOURCE) or 0
    begun = max(findings.progress(SOURCE) or 0, audits.progress(SOURCE) or 0)
    reports: list[AuditReport] = []
    if begun > done:
        # The findings are committed first: they say what was begun.
        run = _Run.read(findings.lineage(findings.version().number)["inputs"])
        reports.append(_carry_out(spark, tables, run, done, on_step))
        done = run.progress
    run = _Run(events.number, _last_run(carries), rules)
    if run.progress > done:
        reports.append(_carry_out(spark, tables, run, done, on_step))
    if reports:
        return _added_up(reports)
    return _told_before(audits, carries)


def check_rules(late_ms: int, lost_after_ms: int) -> None:
    """Raises ConfigError."""
    if not 0 <= late_ms <= lost_after_ms:
        raise ConfigError(
            f"late_ms has to be from 0 to lost_after_ms, not {late_ms} with {lost_after_ms}"
        )


def _last_run(carries: Table) -> int | None:
    if carries.progress(SOURCE) is None:
        return None
    found = carries.lineage(carries.version().number)["inputs"]["events"]
    return cast(int, found)


# --------------------------------------------------------------------------------------- one run


def _carry_out(
    spark: SparkSession, tables: Path, run: _Run, done: int, on_step: Callable[[str], None]
) -> AuditReport:
    """`done` is how far the runs before have come."""
    events = Table(tables, EVENTS)
    carries = Table(tables, DELIVERY_CARRY, on_step)
    with ExitStack() as stack:
        loads = {
            spec.name: stack.enter_context(
                Table(tables, spec, on_step).begin({SOURCE: run.progress})
            )
            for spec in _TABLES
        }
        # What has landed before the run was cut off is not written again.
        open_ = {name: load for name, load in loads.items() if not load.is_done}
        if not open_:
            # Another one has done the same meanwhile.
            return _told_before(Table(tables, DELIVERY_AUDIT), carries)
        # Before anything is read: what another run lands from here on refuses this one its commit.
        for load in open_.values():
            load.check_progress({SOURCE: done})
        new, carried, facts = _inputs(events, carries, run)
        gather(spark, facts, new)
        tasks = [each.group for each in (*new, *carried, *_rolled_back(events, run, facts))]
        folders = {name: str(load.folder) for name, load in open_.items()}
        settling = Settling(run.number, facts.for_kernel(), run.rules, folders)
        settled = Settled()
        if tasks:
            for row in settled_buckets(spark, tasks, facts, settling).collect():
                settled.add(row["report"])
        _add_stretches(settled, facts, open_.get(DELIVERY_FINDINGS.name), run.number)
        if settled.counts["broken"]:
            raise ExpectationError(
                f"nothing was loaded: in {settled.counts['broken']} rows of "
                f"{DELIVERY_AUDIT.name} the verdicts do not add up to what was expected"
            )
        version = _commit(loads, settled, facts, run)
    return _report(run, version, settled)


def _inputs(
    events: Table, carries: Table, run: _Run
) -> tuple[list[LogGroup], list[LogGroup], Facts]:
    """Row groups that are new since the last run, those that it left, and what it knew."""
    known: set[Path] = set()
    carried: list[LogGroup] = []
    facts = Facts()
    if run.since is not None:
        known = {each.path for each in events.version(run.since).files}
        version = carries.version()
        facts = Facts.read(carries.lineage(version.number)["facts"])
        carried = log_groups(version.files, CARRIED)
    files = [each for each in events.version(run.number).files if each.path not in known]
    return log_groups(files, NEW), carried, facts


def _rolled_back(events: Table, run: _Run, facts: Facts) -> Iterator[LogGroup]:
    """Row groups of earlier runs with rows that, as is known now, a restore has taken."""
    if run.since is None or not facts.new_branches:
        return
    lowest = min(facts.branches[store] for store in facts.new_branches)
    old = events.version(run.since).skipping("position", lowest, _POSITION_MAX)
    for each in log_groups(old.files, ROLLED_BACK):
        store = each.has_only("store")
        if store is None or bytes(store) in facts.new_branches:
            yield each


def settled_buckets(
    spark: SparkSession, tasks: list[RowGroup], facts: Facts, settling: Settling
) -> DataFrame:
    """What workers report of the streams that the row groups are about."""
    row_count = sum(each.row_count for each in tasks)
    core_count = spark.sparkContext.defaultParallelism
    # As many for each core, so that none has to wait for one that got more.
    turn_count = max(_TASKS_EACH, -(-row_count // (_TASK_ROWS * core_count)))
    part_count = turn_count * core_count
    bucket_count = _BUCKET_COUNT_MAX
    while bucket_count > 1 and (bucket_count // 2) * _BUCKET_ROWS >= row_count:
        bucket_count //= 2
    starts = {
        store: np.array(sorted(place for place, _ in log.starts), np.int64)
        for store, log in facts.logs.items()
    }
    packing = Packing(bucket_count, starts, dict(facts.branches))
    packed = worked_through(spark, tasks, packing.pack, PACKED)
    placed = packed.repartitionById(part_count, packed["bucket"] % part_count)
    return placed.mapInArrow(cast(Any, settling.settle), spark_schema(SETTLED))


def _add_stretches(settled: Settled, facts: Facts, load: Load | None, run: int) -> None:
    """Stretches that are not known are findings, too: of no stream, and no fault of anybody."""
    names = {int(Unread.DAMAGE): "damage", int(Unread.GAP): "gap"}
    rows = [
        (run, store, None, names[kind], False, None, None, None, place, None, ms, ms // DAY_MS)
        for store, place, _, ms, kind in facts.new_stretches
        if kind in names
    ]
    settled.findings.update(str(row[3]) for row in rows)
    if load is None or not rows:
        return
    for day in sorted({int(row[-1]) for row in rows}):
        batch = batch_of_rows([row for row in rows if row[-1] == day], DELIVERY_FINDINGS.schema)
        table: Any = cast(Any, pa).Table.from_batches([batch])
        value = table.column("day")[0].as_py()
        folder = load.folder / f"day={value}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"stretches{UNNAMED}"
        cast(Any, pq).write_table(table.drop_columns(["day"]), path, compression="zstd")
        files = settled.files.setdefault(DELIVERY_FINDINGS.name, [])
        files.append((str(path), batch.num_rows))


# --------------------------------------------------------------------------------------- landing


def _commit(loads: dict[str, Load], settled: Settled, facts: Facts, run: _Run) -> int:
    """Returns the version of `delivery_audit`."""
    lineage = {
        "job": SOURCE,
        "inputs": run.inputs(),
        "observed": {**settled.counts, **settled.findings},
        "counts": dict(settled.counts),
        "findings": dict(settled.findings),
    }
    versions: dict[str, int] = {}
    for spec in _TABLES:
        load = loads[spec.name]
        versions[spec.name] = load.based_on
        if load.is_done:
            continue
        row_count = 0
        for path, count in settled.files.get(spec.name, []):
            # Only what a task has reported counts.
            Path(path).rename(path.removesuffix(UNNAMED) + ".parquet")
            row_count += count
        extra, replaces = _of_carry(spec, facts, run)
        versions[spec.name] = load.commit(
            {**lineage, **extra}, replaces=replaces, row_count=row_count
        )
    return versions[DELIVERY_AUDIT.name]


def _of_carry(
    spec: TableSpec, facts: Facts, run: _Run
) -> tuple[dict[str, object], dict[str, str] | None]:
    """The carry takes the place of the last one, and its commit has what is known of logs."""
    if spec is not DELIVERY_CARRY:
        return {}, None
    replaces = None if run.since is None else {"run": str(run.since)}
    return {"facts": facts.kept(is_over=run.rules.is_over)}, replaces


def _report(
    run: _Run, version: int | None, settled: Settled, *, is_new: bool = True
) -> AuditReport:
    counts, findings = settled.counts, settled.findings
    return AuditReport(
        run.number,
        version,
        is_new,
        counts["appended"],
        counts["expected"],
        counts["delivered"],
        counts["lost"],
        sum(findings[rule] for rule in FAULTS),
        sum(findings[rule] for rule in SIGNS),
        counts["pending"],
        counts["unknown"],
        counts["waiting"],
        counts["clock_back"],
        {rule: findings[rule] for rule in RULES if findings[rule]},
    )


def _told_before(audits: Table, carries: Table) -> AuditReport:
    found = carries.lineage(carries.version().number)
    settled = Settled()
    settled.counts.update(found["counts"])
    settled.findings.update(found["findings"])
    run = _Run.read(found["inputs"])
    return _report(run, audits.version().number, settled, is_new=False)


def _added_up(reports: list[AuditReport]) -> AuditReport:
    """Of a run that had been cut off and the one behind it. What is open is as of the last."""
    *_, last = reports
    findings = {
        rule: sum(each.findings.get(rule, 0) for each in reports)
        for rule in RULES
        if any(rule in each.findings for each in reports)
    }
    return AuditReport(
        last.run,
        last.version,
        last.is_new,
        sum(each.appended_count for each in reports),
        sum(each.expected_count for each in reports),
        sum(each.delivered_count for each in reports),
        sum(each.lost_count for each in reports),
        sum(each.fault_count for each in reports),
        sum(each.sign_count for each in reports),
        last.pending_count,
        sum(each.unknown_count for each in reports),
        last.waiting_count,
        sum(each.clock_back_count for each in reports),
        findings,
    )
