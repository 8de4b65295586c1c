"""Which ids two snapshots differ in: the job against others that find the same ids.

Measured is the whole job, with the files that it writes and its commit; the others only give their
result back. From raw snapshots the job computes the range digests of both; from stored ones it
reads them, as the export has written them with the ids.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq

from bench.pipeline import reconcile_peers as peers
from bench.pipeline.digest import numpy_alone
from bench.pipeline.drift import Drift, Items
from bench.pipeline.sets import BYTES_PER_ID, files_of, write_ranges, write_snapshot
from bench.pipeline.setting import Setting, Timed
from bench.pipeline.workers import WorkerMemory
from bench.support.figures import Figure, at_most_ratio
from bench.support.processes import BenchError
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.jobs.reconcile import ReconcileReport, reconcile
from syncline.pipeline.schemas import DRIFT_ITEMS
from syncline.pipeline.tables import Table

_ROUTER, _WANTED, _NEAR = "router", "wanted", "near"
_OURS = "Spark, NumPy"
_OURS_COMPILED = "Spark, compiled"
_STORED = "Spark, stored digests"
_ANTI_JOINS = "DuckDB, two anti joins"
_PRUNED = "DuckDB, the same pruning"
_OUTER_JOIN = "Spark's full outer join"

Result = Items | ReconcileReport


def measure(setting: Setting) -> list[Figure]:
    bench = _Reconcile(setting)
    try:
        return bench.figures()
    finally:
        bench.close()


class _Reconcile:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._spark = setting.spark
        self._root = setting.folder / "reconcile"
        self._memory = WorkerMemory()
        self._core_count = os.cpu_count() or 1

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def figures(self) -> list[Figure]:
        plan = self._setting.plan
        small, large = (
            Drift(self._setting.seed, count, plan.difference_count, plan.stored_difference_count)
            for count in plan.reconcile_counts
        )
        self._setting.check_space(2 * (3 * large.count + 2 * small.count) * BYTES_PER_ID)
        for drift in (small, large):
            self._setting.doing(f"making 2 x {drift.count:,} ids")
            write_snapshot(self._tables(drift), _ROUTER, drift.router())
            write_snapshot(self._tables(drift), _WANTED, drift.wanted())
        if plan.turn_count > 1:
            self._raw(small, "warm-up", turn_count=1)
        times = self._raw(small, f"2 x {small.count:,}")
        memory = self._memory_of(small), self._memory_of(large)
        large_times = self._raw(large, f"2 x {large.count:,}")
        stored, report = self._stored(large)
        return [
            *self._judged(small, times, large, large_times),
            *self._judged_memory(small, large, memory),
            *self._judged_stored(large, stored, report),
        ]

    # From raw snapshots.

    def _raw(self, drift: Drift, what: str, turn_count: int | None = None) -> dict[str, Timed]:
        files = [files_of(self._tables(drift), name) for name in (_ROUTER, _WANTED)]
        duck = peers.Duck(files[0], files[1], self._core_count, self._root)
        contestants: dict[str, Callable[[], Result]] = {
            _OURS: lambda: self._job(drift, is_compiled=False),
            _ANTI_JOINS: duck.anti_joins,
            _PRUNED: duck.pruned,
            _OURS_COMPILED: lambda: self._job(drift),
        }
        if drift.count == self._setting.plan.reconcile_counts[0]:
            contestants[_OUTER_JOIN] = lambda: peers.outer_join(self._spark, files[0], files[1])
        return self._measured(contestants, drift, what, turn_count)

    def _job(
        self, drift: Drift, wanted: str = _WANTED, *, is_compiled: bool = True
    ) -> ReconcileReport:
        tables = self._tables(drift)
        # Else it would say that it has done that before.
        shutil.rmtree(tables / DRIFT_ITEMS.name, ignore_errors=True)
        with nullcontext() if is_compiled else numpy_alone(self._spark):
            return reconcile(self._spark, tables, _ROUTER, wanted)

    def _memory_of(self, drift: Drift) -> int:
        """The most that a worker had."""
        self._setting.doing(f"memory of workers at 2 x {drift.count:,}")
        self._memory.forget()
        self._job(drift)
        return self._memory.most_bytes()

    # From stored range digests.

    def _stored(self, drift: Drift) -> tuple[dict[str, Timed], ReconcileReport]:
        self._setting.doing("making range digests")
        tables = self._tables(drift)
        write_snapshot(tables, _NEAR, drift.near_wanted())
        write_ranges(tables, _ROUTER, drift.router())
        write_ranges(tables, _NEAR, drift.near_wanted())
        files = [files_of(tables, name) for name in (_ROUTER, _NEAR)]
        duck = peers.Duck(files[0], files[1], self._core_count, self._root)
        contestants: dict[str, Callable[[], Result]] = {
            _STORED: lambda: self._job(drift, _NEAR),
            _PRUNED: duck.pruned,
        }
        what = f"2 x {drift.count:,}, stored digests"
        times = self._measured(contestants, drift, what, is_near=True)
        report = self._job(drift, _NEAR)
        if report.digested_row_group_count:
            raise BenchError("the stored range digests were not used")
        return times, report

    # All of them.

    def _tables(self, drift: Drift) -> Path:
        return self._root / str(drift.count)

    def _measured(
        self,
        contestants: dict[str, Callable[[], Result]],
        drift: Drift,
        what: str,
        turn_count: int | None = None,
        *,
        is_near: bool = False,
    ) -> dict[str, Timed]:
        expected = drift.items(is_near=is_near)

        def check(name: str, found: Result) -> None:
            if isinstance(found, ReconcileReport):
                found = committed(self._tables(drift))
            check_items(name, found, expected)

        found = self._setting.both_orders(contestants, check, turn_count)
        self._setting.details[f"reconcile, {what}"] = {
            name: timed.all_seconds for name, timed in found.items()
        }
        return found

    # Figures.

    def _judged(
        self, small: Drift, times: dict[str, Timed], large: Drift, large_times: dict[str, Timed]
    ) -> list[Figure]:
        def against(
            drift: Drift, found: dict[str, Timed], ours: str, peer: str, limit: float | None
        ) -> Figure:
            mine, other = found[ours].seconds, found[peer].seconds
            bar = None if limit is None else at_most_ratio(f"<= {limit} x", limit)
            what = f"reconcile 2 x {drift.count:,}: {ours}, s"
            return Figure(what, mine, peer, other, mine / other, bar)

        return [
            against(large, large_times, _OURS, _ANTI_JOINS, 0.6),
            against(large, large_times, _OURS_COMPILED, _ANTI_JOINS, None),
            against(large, large_times, _OURS, _PRUNED, None),
            against(large, large_times, _OURS_COMPILED, _PRUNED, None),
            against(small, times, _OURS, _OUTER_JOIN, 0.33),
            against(small, times, _OURS, _ANTI_JOINS, None),
        ]

    def _judged_memory(self, small: Drift, large: Drift, memory: tuple[int, int]) -> list[Figure]:
        names = [f"2 x {drift.count:,}" for drift in (small, large)]
        least, most = (each / 1e6 for each in memory)
        # Of five times the ids: anything that kept them would show.
        bar = at_most_ratio("<= 1.2 x", 1.2)
        what = f"most memory of a worker at {names[1]}, MB"
        return [Figure(what, most, f"at {names[0]}", least, most / least, bar)]

    def _judged_stored(
        self, drift: Drift, times: dict[str, Timed], report: ReconcileReport
    ) -> list[Figure]:
        mine, other = times[_STORED].seconds, times[_PRUNED].seconds
        what = f"reconcile 2 x {drift.count:,}, {drift.near} differ"
        read, total = report.read_row_group_count, report.row_group_count
        return [
            Figure(
                f"{what}: {_STORED}, s",
                mine,
                _PRUNED,
                other,
                mine / other,
                at_most_ratio("< 1 x", 1.0),
            ),
            Figure(
                f"{what}: row groups read",
                read,
                "of",
                total,
                read / total,
                at_most_ratio("<= 0.2", 0.2),
            ),
        ]


def committed(tables: Path) -> Items:
    """What the job has found."""
    rows = [
        row
        for each in Table(tables, DRIFT_ITEMS).version().files
        for row in rows_of(pq.read_table(each.path, partitioning=None))
    ]
    return frozenset((row["service"], row["role"], row["id"], row["verdict"]) for row in rows)


def check_items(name: str, found: Items, expected: Items) -> None:
    """Raises BenchError unless all ids that differ were found, and no others."""
    if found != expected:
        wrong = len(found - expected), len(expected - found)
        raise BenchError(f"{name}: {wrong[0]} ids are told that do not differ, {wrong[1]} are not")
