"""The bench of queues measures what it says, and ends with its figures."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bench.queues.pieces import measure_pieces
from bench.queues.profiled import part_of
from bench.support.processes import ROOT, child_environment


def test_the_pieces_of_a_cycle_add_up() -> None:
    pieces = measure_pieces(1_024)
    assert min(pieces.seal_us, pieces.open_us, pieces.check_us, pieces.body_us) > 0
    assert min(pieces.tls_write_us, pieces.tls_read_us) > 0
    assert pieces.cycle_us > 3 * pieces.seal_us + 2 * pieces.open_us + 2 * pieces.check_us


def frame_in(*modules: str) -> FrameType:
    """Of a function in the last of these modules, called from the one before it, and so on."""
    if not modules:
        frame = inspect.currentframe()
        assert frame is not None
        return frame
    scope: dict[str, Any] = {"__name__": modules[0]}
    exec("def call(do, *rest): return do(*rest)", scope)
    frame = scope["call"](frame_in, *modules[1:])
    assert isinstance(frame, FrameType)
    return frame


@pytest.mark.parametrize(
    ("modules", "part"),
    [
        (["syncline.server.smp.session", "syncline.wire.smp.chains"], "blocks and bodies"),
        (["syncline.wire.smp.chains", "syncline.wire.smp.sodium", "nacl.x"], "blocks and bodies"),
        (["syncline.wire.smp.authorizations", "syncline.wire.smp.sodium"], "signatures"),
        (["syncline.server.smp.openssl", "OpenSSL.SSL"], "TLS"),
        (["syncline.server.smp.router", "asyncio.x"], "carrying out commands"),
        (["syncline.server.smp.sending", "syncline.storage.log.store"], "store"),
    ],
)
def test_cpu_time_belongs_to_the_innermost_part(modules: list[str], part: str) -> None:
    loop = ["syncline.cli.serving", "asyncio.runners"]
    assert part_of(frame_in(*loop, *modules)) == part
    assert part_of(frame_in(*loop)) == "event loop"


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
