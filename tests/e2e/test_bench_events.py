"""The bench of events runs both sides, and says what they cost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.support.processes import ROOT, child_environment


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_whole_bench_runs_and_ends_with_its_figures(tmp_path: Path) -> None:
    details = tmp_path / "details.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.events", "--size", "smoke"),
            *("--folder", str(tmp_path), "--details", str(details)),
        ],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "events"
    assert [figure["peer"] for figure in last["figures"]] == ["without", "without"]
    assert all(figure["ratio"] > 0 for figure in last["figures"])
    for rounds in json.loads(details.read_text()).values():
        assert [len(each) for each in rounds.values()] == [1, 1]
