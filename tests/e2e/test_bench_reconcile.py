"""The bench of reconciliation counts what was sent, and notices lists that are not true."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from bench.reconcile.drifts import KINDS, block_drift, even_drift, fresh_drift
from bench.reconcile.sessions import DETECTION_BYTES, play
from bench.support.processes import ROOT, BenchError, child_environment


def test_equal_sets_cost_the_detection_alone() -> None:
    random = np.random.default_rng(1)
    played = play(even_drift(random, 500, 0, 0), random)
    assert (played.byte_count, played.round_trips) == (DETECTION_BYTES, 1)


def test_a_session_costs_what_its_parts_have() -> None:
    random = np.random.default_rng(1)
    played = play(even_drift(random, 500, 10, 10), random)
    assert played.asked == ["Compare"]
    assert played.round_trips == 2
    # Twenty ids that differ: ten whole ids, cells, and the counts of the opening.
    assert DETECTION_BYTES + 10 * 22 + 30 * 9 + 250 < played.byte_count < 2_000
    assert played.block_count == 4


def test_lists_that_are_not_the_true_ones_are_noticed() -> None:
    random = np.random.default_rng(1)
    drift = even_drift(random, 500, 3, 3)
    with pytest.raises(BenchError, match="not the true"):
        play(replace(drift, extra=drift.extra[24:]), random)


def test_the_limit_is_what_a_list_needs() -> None:
    random = np.random.default_rng(1)
    # 24 bytes each, less what their order would say.
    assert 1_000 * 22 < even_drift(random, 0, 1_000, 0).limit_bytes < 1_000 * 24
    # A bit for each of my ids says which half is gone.
    assert even_drift(random, 1_000, 0, 500).limit_bytes == pytest.approx(1_000 / 8, rel=0.02)


def test_fresh_sets_are_of_every_kind() -> None:
    random = np.random.default_rng(1)
    kinds = set()
    for _ in range(40):
        kind, _, drift = fresh_drift(random, 300)
        kinds.add(kind)
        common = drift.mine.size() - len(drift.extra) // 24
        assert common + len(drift.missing) // 24 == drift.theirs.size()
    assert kinds == set(KINDS)
    assert block_drift(random, 300, 30).difference == 30


@pytest.mark.timeout(120)
def test_the_bench_runs_and_ends_with_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.reconcile", "--size", "smoke", "--seed", "1"],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "reconcile"
    named = {figure["name"]: figure for figure in last["figures"]}
    assert named["equal: B beyond SUBS and SOKS"]["ours"] == 0
    assert named["one lost: round trips"]["ours"] == 1
    assert named["fresh sets: round trips, most"]["holds"]
