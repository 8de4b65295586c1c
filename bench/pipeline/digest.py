"""Digests of the sets of a snapshot: the job against others that hash the same ids.

Measured is what the job computes (`partial_digests` and `service_digests`, collected), as the
others only compute as well; what the whole job takes, with the files that it writes and its commit,
stands beside it.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq

from bench.pipeline import digest_peers as peers
from bench.pipeline.sets import BYTES_PER_ID, digest_sets, files_of, write_snapshot
from bench.pipeline.setting import Setting, Timed
from bench.support.figures import Figure, at_most, at_most_ratio
from bench.support.processes import BenchError
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.digest import (
    DigestReport,
    Hashes,
    digest,
    partial_digests,
    service_digests,
)
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, SERVICE_DIGESTS
from syncline.pipeline.snapshot_tables import snapshot_of

_NUMBERS = ("count", "xor_high", "xor_low", "sum_3", "sum_2", "sum_1", "sum_0")
Result = peers.Sums | peers.Md5s | DigestReport


def measure(setting: Setting) -> list[Figure]:
    bench = _Digest(setting)
    try:
        return bench.figures()
    finally:
        bench.close()


class _Digest:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._spark = setting.spark
        self._tables = setting.folder / "digest"
        self._two = peers.TwoProcesses()
        self._core_count = os.cpu_count() or 1

    def close(self) -> None:
        self._two.close()
        shutil.rmtree(self._tables, ignore_errors=True)

    def figures(self) -> list[Figure]:
        small, large = self._setting.plan.digest_counts
        self._setting.check_space(2 * (small + large) * BYTES_PER_ID)
        for count in (small, large):
            self._setting.doing(f"making {count:,} ids")
            sets = digest_sets(self._setting, count)
            write_snapshot(self._tables, str(count), sets, has_claims=True)
        # Workers are started, files are in the cache of the system, everything is imported.
        if self._setting.plan.turn_count > 1:
            self._rounds(small, "warm-up", turn_count=1)
        times = {count: self._rounds(count, f"{count:,} ids") for count in (small, large)}
        return self._judged(times[small], times[large], large)

    def _rounds(self, count: int, what: str, turn_count: int | None = None) -> dict[str, Timed]:
        name = str(count)
        files = files_of(self._tables, name)
        claimed = Claimed.of(self._tables, name)
        plain: dict[str, Callable[[], Result]] = {
            "Spark, XXH3, NumPy": lambda: self._job_xxh3(name),
            "two processes, XXH3, NumPy": lambda: self._two.digests(files),
            "mapInArrow, XXH3, NumPy": lambda: self._mapped_xxh3(name),
            "Spark, both hashes, NumPy": lambda: self._job_md5(name),
            "DuckDB, MD5": lambda: peers.duckdb_md5(files, self._core_count),
        }
        fast: dict[str, Callable[[], Result]] = {
            "Spark, XXH3, compiled": lambda: self._job_xxh3(name),
            "Spark, both hashes, compiled": lambda: self._job_md5(name),
            "DuckDB, MD5, again": lambda: peers.duckdb_md5(files, self._core_count),
            "whole job, both hashes, compiled": lambda: self._whole_job(name),
        }
        with numpy_alone(self._spark):
            found = self._setting.both_orders(plain, claimed.check, turn_count)
        found |= self._setting.both_orders(fast, claimed.check, turn_count)
        self._setting.details[f"digest, {what}"] = {
            name: timed.all_seconds for name, timed in found.items()
        }
        return found

    # Contestants.

    def _rows(self, snapshot: str, hashes: Hashes) -> list[Any]:
        associations = snapshot_of(self._tables, ASSOCIATIONS, snapshot)
        claims = snapshot_of(self._tables, CLAIMS, snapshot)
        partial = partial_digests(self._spark, associations, hashes)
        claimed = read_version(self._spark, CLAIMS, claims)
        return cast(list[Any], service_digests(partial, claimed, hashes).collect())

    def _job_xxh3(self, snapshot: str) -> peers.Sums:
        return _sums(self._rows(snapshot, Hashes.XXH3))

    def _job_md5(self, snapshot: str) -> peers.Md5s:
        return _md5s(self._rows(snapshot, Hashes.BOTH))

    def _mapped_xxh3(self, snapshot: str) -> peers.Sums:
        claims = snapshot_of(self._tables, CLAIMS, snapshot)
        partial = peers.scanned(self._spark, files_of(self._tables, snapshot))
        claimed = read_version(self._spark, CLAIMS, claims)
        return _sums(service_digests(partial, claimed, Hashes.XXH3).collect())

    def _whole_job(self, snapshot: str) -> DigestReport:
        shutil.rmtree(self._tables / SERVICE_DIGESTS.name, ignore_errors=True)
        return digest(self._spark, self._tables, snapshot)

    def _judged(self, small: dict[str, Timed], large: dict[str, Timed], count: int) -> list[Figure]:
        def against(ours: str, peer: str, limit: float) -> Figure:
            mine, other = large[ours].seconds, large[peer].seconds
            bar = at_most_ratio(f"<= {limit} x", limit)
            what = f"digest of {count:,}: {ours}, s"
            return Figure(what, mine, peer, other, mine / other, bar)

        numpy = "Spark, XXH3, NumPy"
        growth = large[numpy].seconds / small[numpy].seconds
        return [
            against(numpy, "two processes, XXH3, NumPy", 1.0),
            against(numpy, "mapInArrow, XXH3, NumPy", 0.3),
            against("Spark, both hashes, compiled", "DuckDB, MD5, again", 1.3),
            against("Spark, both hashes, NumPy", "DuckDB, MD5", 2.0),
            Figure("digest: growth for ten times the ids", growth, bar=at_most("<= 10", 10)),
            Figure(
                f"digest of {count:,}: Spark, XXH3, compiled, s",
                large["Spark, XXH3, compiled"].seconds,
            ),
            Figure(
                f"digest of {count:,}: whole job, both hashes, compiled, s",
                large["whole job, both hashes, compiled"].seconds,
            ),
        ]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What whoever made a snapshot says of its sets."""

    xxh3: peers.Sums
    md5: peers.Md5s

    @classmethod
    def of(cls, tables: Path, snapshot: str) -> "Claimed":
        files = snapshot_of(tables, CLAIMS, snapshot).files
        rows = [
            row for each in files for row in rows_of(pq.read_table(each.path, partitioning=None))
        ]
        return cls(_sums(rows), _md5s(rows))

    def check(self, name: str, found: Result) -> None:
        """Raises BenchError for digests that are not those of the ids."""
        if isinstance(found, DigestReport):
            is_right = found.is_new and found.mismatch_count == 0
            is_right = is_right and found.set_count == len(self.xxh3)
        else:
            is_right = found == (self.xxh3 if "XXH3" in name else self.md5)
        if not is_right:
            raise BenchError(f"{name}: the digests are not those of the ids")


def _sums(rows: Iterable[Any]) -> peers.Sums:
    return {
        (bytes(row["service"]), row["role"]): tuple(row[name] for name in _NUMBERS) for row in rows
    }


def _md5s(rows: Iterable[Any]) -> peers.Md5s:
    return {
        (bytes(row["service"]), row["role"]): (
            row["count"],
            peers.as_duckdb_has_it(row["md5_high"], row["md5_low"]),
        )
        for row in rows
    }


@contextmanager
def numpy_alone(spark: Any) -> Generator[None]:
    """Workers that are started meanwhile, and those of that kind, keep to NumPy."""
    environment: dict[str, str] = spark.sparkContext.environment
    environment["NUMBA_DISABLE_JIT"] = "1"
    try:
        yield
    finally:
        del environment["NUMBA_DISABLE_JIT"]
