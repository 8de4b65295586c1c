"""The bench of the pipeline makes data that is what it says, and notices results that are wrong."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.pipeline import digest_peers, reconcile_peers
from bench.pipeline.digest import Claimed, Result
from bench.pipeline.digest_peers import Sums
from bench.pipeline.drift import Drift
from bench.pipeline.plan import PLANS
from bench.pipeline.reconcile import check_items
from bench.pipeline.sets import ROLE, digest_sets, files_of, random_set, shares, write_snapshot
from bench.pipeline.setting import Setting
from bench.support.processes import ROOT, BenchError, child_environment
from syncline.kernels.xxh3 import Ids
from syncline.pipeline.jobs.digest import DigestReport, Hashes
from syncline.pipeline.jobs.reconcile import EXTRA, MISSING
from syncline.values.digests import digest_of


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    screen = Console(quiet=True)
    return Setting(PLANS["smoke"], screen, screen.status(""), 7, tmp_path)


# -------------------------------------------------------------------------------------------- data


def test_sets_are_sorted_and_made_again_from_the_seed() -> None:
    ids = random_set(np.random.default_rng(1), 1_000)
    rows = [row.tobytes() for row in ids]
    assert rows == sorted(set(rows))
    assert rows == [row.tobytes() for row in random_set(np.random.default_rng(1), 1_000)]
    assert sum(shares(1_234)) == 1_234


def test_two_snapshots_differ_in_the_ids_that_are_told() -> None:
    drift = Drift(seed=3, count=5_000, far=300, near=60)

    def members(sets: Iterable[tuple[bytes, Ids]]) -> set[tuple[bytes, bytes]]:
        return {(service, row.tobytes()) for service, ids in sets for row in ids}

    router = members(drift.router())
    for wanted, is_near, count in (
        (members(drift.wanted()), False, 300),
        (members(drift.near_wanted()), True, 60),
    ):
        items = drift.items(is_near=is_near)
        assert len(items) == count
        missing = {(service, each) for service, _, each, verdict in items if verdict == MISSING}
        extra = {(service, each) for service, _, each, verdict in items if verdict == EXTRA}
        assert (missing, extra) == (wanted - router, router - wanted)


def test_peers_find_what_python_finds(setting: Setting) -> None:
    drift = Drift(seed=3, count=5_000, far=40, near=10)
    tables = setting.folder / "tables"
    write_snapshot(tables, "router", drift.router())
    write_snapshot(tables, "wanted", drift.wanted())
    files = [files_of(tables, name) for name in ("router", "wanted")]
    duck = reconcile_peers.Duck(files[0], files[1], 2, setting.folder)
    assert duck.anti_joins() == duck.pruned() == drift.items()

    write_snapshot(tables, "digest", digest_sets(setting, 3_000), has_claims=True)
    found = digest_peers.duckdb_md5(files_of(tables, "digest"), 2)
    claimed = Claimed.of(tables, "digest")
    claimed.check("DuckDB, MD5", found)
    for service, ids in digest_sets(setting, 3_000):
        expected = digest_of(row.tobytes() for row in ids)
        count, high, low, *_ = claimed.xxh3[service, ROLE]
        assert np.array([high, low], ">i8").tobytes() == expected.xor_xxh3
        number = int.from_bytes(expected.xor_md5, "little")
        assert claimed.md5[service, ROLE] == (count, number) == (len(ids), number)


# --------------------------------------------------------------------------------------- measuring


def test_everyone_runs_in_both_orders_and_a_wrong_result_ends_it(setting: Setting) -> None:
    order: list[str] = []

    def contestant(name: str) -> Callable[[], int]:
        def run() -> int:
            order.append(name)
            return len(name)

        return run

    def check(name: str, found: int) -> None:
        if found != 1:
            raise BenchError(f"{name} is wrong")

    times = setting.both_orders({name: contestant(name) for name in "abc"}, check, 2)
    assert order == ["a", "b", "c", "c", "b", "a"]
    assert times["a"].seconds == min(times["a"].all_seconds)
    with pytest.raises(BenchError, match="ab is wrong"):
        setting.both_orders({"ab": contestant("ab")}, check)


def test_wrong_digests_and_wrong_ids_are_noticed() -> None:
    name = (b"s" * 24, ROLE)
    right: Sums = {name: (2, 3, 4, 5, 6, 7, 8)}
    claimed = Claimed(right, {name: (2, 9)})
    claimed.check("Spark, XXH3", right)
    report = DigestReport("snapshot", 1, True, 1, 2, 0, Hashes.BOTH)
    claimed.check("whole job", report)
    wrong_sums: Sums = {name: (2, 3, 4, 5, 6, 7, 9)}
    wrong_results: list[tuple[str, Result]] = [
        ("Spark, XXH3", wrong_sums),
        ("Spark, XXH3", {}),
        ("DuckDB, MD5", {name: (2, 10)}),
        ("whole job", replace(report, mismatch_count=1)),
        ("whole job", replace(report, is_new=False)),
    ]
    for label, found in wrong_results:
        with pytest.raises(BenchError, match="not those of the ids"):
            claimed.check(label, found)
    item = (b"s" * 24, ROLE, b"i" * 24, MISSING)
    check_items("Spark", frozenset({item}), frozenset({item}))
    for wrong in (frozenset[tuple[bytes, str, bytes, str]](), frozenset({(*item[:3], EXTRA)})):
        with pytest.raises(BenchError, match="do not differ"):
            check_items("Spark", wrong, frozenset({item}))


def test_too_little_space_is_told_before_anything_is_made(setting: Setting) -> None:
    setting.check_space(1)
    with pytest.raises(BenchError, match="GB are free"):
        setting.check_space(1 << 60)


def test_without_workers_there_is_no_memory_of_them() -> None:
    # In a process of its own: the session of other tests has workers in the family of this one.
    program = (
        "from bench.pipeline.workers import WorkerMemory\n"
        "memory = WorkerMemory()\n"
        "memory.forget()\n"
        "print(memory.most_bytes())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0\n"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_bench_runs_and_ends_with_json(tmp_path: Path) -> None:
    details = tmp_path / "details.json"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "bench.pipeline", "--size", "smoke", "--seed", "1"]
    parts = ["--only", "digest", "--only", "reconcile"]
    options = ["--details", str(details), "--folder", str(scratch)]
    done = subprocess.run(
        [*command, *parts, *options],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "pipeline"
    assert {figure["name"].split()[0] for figure in last["figures"]} >= {"digest", "reconcile"}
    assert all(figure["ours"] is not None for figure in last["figures"])
    assert json.loads(details.read_text())
    assert not list(scratch.iterdir())
