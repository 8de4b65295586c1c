"""The audit on tables: what was planted is found, in one run or in several, whatever is cut off."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from syncline.errors import CommitConflictError, ConfigError, TableError
from syncline.kernels import delivery_rows as codes
from syncline.kernels.delivery import Rules
from syncline.kernels.delivery_tally import FAULTS
from syncline.pipeline.auditing.facts import Facts
from syncline.pipeline.auditing.facts import Log as LogTimes
from syncline.pipeline.auditing.groups import NEW, log_groups
from syncline.pipeline.auditing.settling import Settling
from syncline.pipeline.jobs import audit as job
from syncline.pipeline.jobs.audit import audit, settled_buckets
from syncline.pipeline.schemas import (
    DELIVERY_AUDIT,
    DELIVERY_CARRY,
    DELIVERY_FINDINGS,
    EVENTS,
)
from syncline.pipeline.tables import Table
from tests.pipeline.audit_tables import (
    audit_counts,
    event_row,
    finding_counts,
    read_rows,
    rows_of,
    work_in_this_process,
    write_events,
)
from tests.unit.kernels.delivery_histories import STORE, Log
from tests.unit.kernels.delivery_oracle import Row, judge
from tests.unit.kernels.delivery_router import Router

SPECS = (DELIVERY_FINDINGS, DELIVERY_AUDIT, DELIVERY_CARRY)
RULES = Rules(5_000, 1_800_000, is_over=False)
START_MS = 1_700_000_000_000


class CrashError(Exception):
    """The process ends here."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Spark is not asked: workers are functions."""
    work_in_this_process(monkeypatch)
    return cast(SparkSession, None)


@pytest.fixture(scope="module")
def log() -> Log:
    """Of a router that breaks its promises, and was started more than once."""
    return Router(Random(20), breaks=True, dark_deletes=False).go(400)


def results(tables: Path) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    counts: Counter[tuple[Any, ...]] = Counter(audit_counts(read_rows(tables, DELIVERY_AUDIT)))
    return counts, finding_counts(read_rows(tables, DELIVERY_FINDINGS))


def cut(log: Log, *places: int) -> list[list[dict[str, Any]]]:
    """The rows of the log in pieces."""
    rows, edges = rows_of(log), [0, *places, 1 << 60]
    return [[row for row in rows if low <= row["position"] < high] for low, high in pairwise(edges)]


def test_what_the_job_finds_is_what_the_rules_say(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    write_events(tmp_path, rows_of(log), 1)
    report = audit(spark, tmp_path)
    wanted = judge(log.rows, set(log.documents), log.book(RULES))
    counts, findings = results(tmp_path)
    assert counts == {
        (stream.to_bytes(24, "big"), hour * 3_600_000, what): count
        for (stream, hour, what), count in wanted.counts.items()
    }
    plain = {key: count for key, count in findings.items() if key[0] not in ("gap", "damage")}
    assert plain == {
        (rule, rule in FAULTS, stream.to_bytes(24, "big"), None if who < 0 else who, seq): count
        for (rule, stream, who, seq), count in wanted.findings.items()
    }
    assert len(findings) - len(plain) == (1 if log.stretches else 0)
    assert report.run == 1
    assert report.is_new
    assert report.pending_count == wanted.pending
    assert report.waiting_count == wanted.waiting
    assert report.lost_count == sum(n for key, n in wanted.counts.items() if key[2] == "lost")
    assert report.fault_count == sum(n for key, n in wanted.findings.items() if key[0] in FAULTS)
    again = audit(spark, tmp_path)
    assert asdict(again) == {**asdict(report), "is_new": False}
    assert Table(tmp_path, DELIVERY_AUDIT).version().number == 1


def test_pieces_give_what_one_run_gives_and_old_rows_are_not_read_again(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    write_events(tmp_path / "whole", rows_of(log), 1)
    audit(spark, tmp_path / "whole")
    end = log.rows[-1].place
    for number, piece in enumerate(cut(log, end // 3, end // 2, end - 40), start=1):
        write_events(tmp_path / "pieces", piece, number)
        if number == 3:
            # Nobody looks at what an earlier run has read.
            for each in Table(tmp_path / "pieces", EVENTS).version(2).files:
                each.path.write_bytes(bytes(each.byte_count))
        audit(spark, tmp_path / "pieces")
    assert results(tmp_path / "pieces") == results(tmp_path / "whole")
    runs = {row["run"] for row in read_rows(tmp_path / "pieces", DELIVERY_AUDIT)}
    assert runs == {1, 2, 3, 4}
    # Of carries there is one, the last.
    files = Table(tmp_path / "pieces", DELIVERY_CARRY).version().files
    assert {each.partition["run"] for each in files} == {"4"}


def stopping_at(step: int) -> Callable[[str], None]:
    count = 0

    def on_step(_: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise CrashError

    return on_step


@pytest.mark.timeout(120)
def test_a_run_that_is_cut_off_at_any_step_is_finished_as_it_was_begun(
    here: SparkSession, tmp_path: Path, log: Log
) -> None:
    first, second, third = cut(log, log.rows[-1].place // 2, log.rows[-1].place - 300)
    before, whole = tmp_path / "before", tmp_path / "whole"
    write_events(before, first, 1)
    audit(here, before)
    write_events(before, second, 2)
    shutil.copytree(before, whole)
    steps: list[str] = []
    audit(here, whole, on_step=steps.append)
    write_events(whole, third, 3)
    audit(here, whole)
    wanted = results(whole)
    assert steps.count("committed") == 3
    # Of moves that follow one another, the first and the last are enough.
    tried = [
        number
        for number, step in enumerate(steps, start=1)
        if step != "moved" or "moved" not in (steps[number - 2], steps[min(number, len(steps) - 1)])
    ]
    for step in tried:
        tables = tmp_path / f"cut-{step}"
        shutil.copytree(before, tables)
        with pytest.raises(CrashError):
            audit(here, tables, on_step=stopping_at(step))
        # Meanwhile more has come, and somebody asks for other rules.
        write_events(tables, third, 3)
        audit(here, tables, late_ms=5_000)
        assert results(tables) == wanted, steps[step - 1]
        shutil.rmtree(tables)


def test_there_is_one_exchange_and_no_join(spark: SparkSession, tmp_path: Path, log: Log) -> None:
    write_events(tmp_path, rows_of(log), 1)
    groups = log_groups(Table(tmp_path, EVENTS).version().files, NEW)
    facts = Facts({STORE: LogTimes(newest_ms=START_MS)})
    settling = Settling(1, facts.for_kernel(), RULES, {})
    frame = settled_buckets(spark, [each.group for each in groups], facts, settling)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange") == 1
    assert "Join" not in plan
    assert "FileScan" not in plan


def test_what_a_restore_took_is_found_whichever_log_is_read_first(
    here: SparkSession, tmp_path: Path
) -> None:
    other = bytes(reversed(STORE))
    former = [event_row(Row(0, codes.STARTED, 5, START_MS))]
    former += [
        event_row(Row(1, codes.MESSAGE, seq * 100, START_MS + seq, last=seq)) for seq in range(1, 6)
    ]
    started = event_row(Row(0, codes.STARTED, 300, START_MS + 50, first=300), other)
    started["stream"] = STORE.ljust(24, b"\0")
    restored = [started, event_row(Row(1, codes.MESSAGE, 340, START_MS + 60, last=3), other)]
    for name, parts in {
        "at once": [former + restored],
        "in order": [former, restored],
        "turned round": [restored, former],
    }.items():
        for number, rows in enumerate(parts, start=1):
            write_events(tmp_path / name, rows, number)
            audit(here, tmp_path / name)
        found = [
            (row["store"], row["seq"], row["last_seq"])
            for row in read_rows(tmp_path / name, DELIVERY_FINDINGS)
            if row["is_fault"]
        ]
        assert found == [(STORE, 3, 5)], name


def test_what_waited_in_a_queue_when_it_was_restored_is_unknown(
    here: SparkSession, tmp_path: Path
) -> None:
    other = bytes(reversed(STORE))
    former = [event_row(Row(0, codes.STARTED, 5, START_MS))]
    former += [
        event_row(Row(1, codes.MESSAGE, seq * 100, START_MS, last=seq), is_document=False)
        for seq in range(1, 6)
    ]
    # The first is acknowledged. The others wait, of which the backup has two.
    former += [
        event_row(Row(1, codes.ACKNOWLEDGED, 110, START_MS, 2, last=1)),
        event_row(Row(1, codes.PASSED, 111, START_MS, last=1), is_document=False),
    ]
    started = event_row(Row(0, codes.STARTED, 350, START_MS + 50, first=350), other)
    started["stream"] = STORE.ljust(24, b"\0")
    # There all of them are let go of, without a word.
    passed = Row(1, codes.PASSED, 360, START_MS + 60, last=3)
    restored = [started, event_row(passed, other, is_document=False)]
    for name, parts in {"at once": [former + restored], "in order": [former, restored]}.items():
        reports = []
        for number, rows in enumerate(parts, start=1):
            write_events(tmp_path / name, rows, number)
            reports.append(audit(here, tmp_path / name))
        totals = [
            sum(getattr(report, f"{what}_count") for report in reports)
            for what in ("expected", "delivered", "unknown", "lost")
        ]
        assert totals == [3, 1, 2, 0], name
        assert reports[-1].findings == {"rolled_back": 2}
        assert reports[-1].waiting_count == 0


def test_a_session_that_is_gone_gets_nothing(here: SparkSession, tmp_path: Path) -> None:
    gone, there, later = 1 << 4 | 2, 2 << 4 | 2, 1 << 4 | 2
    rows = [
        Row(0, codes.STARTED, 1, START_MS),
        Row(3, codes.MESSAGE, 10, START_MS, last=1),
        Row(3, codes.MESSAGE, 11, START_MS, last=2),
        Row(3, codes.DELIVERED, 20, START_MS + 1, gone, 1, 1),
        Row(3, codes.DELIVERED, 21, START_MS + 1, there, 1, 1),
        Row(0, codes.DISCONNECTED, 30, START_MS + 2, gone),
        Row(3, codes.DELIVERED, 40, START_MS + 3, there, 2, 2),
        Row(3, codes.DELIVERED, 50, START_MS + 4, gone, 2, 2),
        # Numbers of sessions begin anew.
        Row(0, codes.STARTED, 60, START_MS + 10),
        Row(3, codes.DELIVERED, 70, START_MS + 20, later, 2, 2),
    ]
    told = [event_row(row, is_document=False) for row in rows]
    for name, parts in {"at once": [told], "apart": [told[:7], told[7:]]}.items():
        for number, part in enumerate(parts, start=1):
            write_events(tmp_path / name, part, number)
            audit(here, tmp_path / name)
        found = [
            (row["rule"], row["stream"], row["session"], row["seq"], row["position"])
            for row in read_rows(tmp_path / name, DELIVERY_FINDINGS)
        ]
        assert found == [("after_unsubscribe", (3).to_bytes(24, "big"), gone, 2, 50)], name


def test_what_happened_while_a_router_noted_nothing_is_unknown(
    here: SparkSession, tmp_path: Path
) -> None:
    rows = [
        Row(0, codes.STARTED, 1, START_MS, detail=1),
        Row(3, codes.MESSAGE, 10, START_MS, last=1),
        Row(3, codes.PASSED, 20, START_MS + 5_000, last=1),
        Row(3, codes.MESSAGE, 30, START_MS + 9_000, last=2),
        # This one notes what it does, and lets go of a message that nobody had.
        Row(0, codes.STARTED, 60, START_MS + 10_000),
        Row(3, codes.MESSAGE, 70, START_MS + 10_000, last=3),
        Row(3, codes.ACKNOWLEDGED, 80, START_MS + 20_000, 2, last=2),
        Row(3, codes.PASSED, 81, START_MS + 20_000, last=2),
        Row(3, codes.PASSED, 90, START_MS + 30_000, last=3),
        Row(3, codes.MESSAGE, 99, START_MS + 40_000, last=4),
    ]
    told = [event_row(row, is_document=False) for row in rows]
    for name, parts in {"at once": [told], "apart": [told[:2], told[2:4], told[4:]]}.items():
        reports = []
        for number, part in enumerate(parts, start=1):
            write_events(tmp_path / name, part, number)
            reports.append(audit(here, tmp_path / name))
        totals = [
            sum(getattr(report, f"{what}_count") for report in reports)
            for what in ("expected", "unknown", "delivered", "lost", "fault")
        ]
        assert totals == [3, 1, 1, 1, 1], name


def test_an_empty_table_is_a_report_of_nothing_and_none_is_an_error(
    here: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TableError, match="events"):
        audit(here, tmp_path)
    with pytest.raises(ConfigError):
        audit(here, tmp_path, late_ms=10, lost_after_ms=5)
    with Table(tmp_path, EVENTS).begin({}):
        pass
    report = audit(here, tmp_path)
    assert (report.run, report.appended_count, report.fault_count) == (0, 0, 0)
    assert audit(here, tmp_path) == replace(report, is_new=False)
    rows = [
        Row(1, codes.SUBSCRIBED, 5, START_MS, 17, 1, 0),
        Row(1, codes.MESSAGE, 9, START_MS, last=1),
    ]
    write_events(tmp_path, [event_row(row) for row in rows], 1)
    assert audit(here, tmp_path).pending_count == 1
    # Now nothing more will come. What was written in the last second may have been delivered.
    over = audit(here, tmp_path, is_over=True)
    assert (over.is_new, over.pending_count, over.unknown_count) == (True, 0, 1)
    assert not audit(here, tmp_path).is_new


@pytest.mark.parametrize("is_over", [True, False])
def test_a_run_that_another_has_overtaken_lands_nothing(
    here: SparkSession,
    tmp_path: Path,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    is_over: bool,
) -> None:
    write_events(tmp_path, rows_of(log), 1)
    carry_out = cast(Any, job)._carry_out

    def overtaken(*arguments: Any) -> object:
        """It knows already what it is to do; the other one has not landed yet."""
        monkeypatch.setattr(job, "_carry_out", carry_out)
        audit(here, tmp_path)
        return carry_out(*arguments)

    monkeypatch.setattr(job, "_carry_out", overtaken)
    if is_over:
        with pytest.raises(CommitConflictError):
            audit(here, tmp_path, is_over=True)
    else:
        # It is the same that the other one has found.
        assert not audit(here, tmp_path).is_new
    write_events(tmp_path / "alone", rows_of(log), 1)
    audit(here, tmp_path / "alone")
    assert results(tmp_path) == results(tmp_path / "alone")
