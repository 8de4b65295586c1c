"""The bench of queues measures what it says, and ends with its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.queues.pieces import measure_pieces
from bench.support.processes import ROOT, child_environment


def test_the_pieces_of_a_cycle_add_up() -> None:
    pieces = measure_pieces(1_024)
    assert min(pieces.seal_us, pieces.open_us, pieces.check_us, pieces.body_us) > 0
    assert min(pieces.tls_write_us, pieces.tls_read_us) > 0
    assert pieces.cycle_us > 3 * pieces.seal_us + 2 * pieces.open_us + 2 * pieces.check_us


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_whole_bench_runs_and_ends_with_its_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.queues", "--size", "smoke", "--folder", str(tmp_path)],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "queues"
    assert [figure["bar"] for figure in last["figures"]] == [
        ">= 1,500",
        ">= 0.5",
        ">= 4,000",
        "< 0.05 s",
        "< 5 s",
        "< 300 MB",
        "<= 60 KB",
        None,
    ]
    assert all(figure["ours"] is not None for figure in last["figures"])
