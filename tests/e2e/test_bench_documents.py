"""The bench of documents measures what it says: all deliveries arrive, losses are noticed."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import picows
import pytest

from bench.documents import fan_out, kill, playing
from bench.documents.links import Door
from bench.documents.playing import CLIENT
from bench.documents.relay import Member
from bench.documents.servers import BareRelay, Syncline, running, start_server
from bench.documents.setting import play
from bench.documents.updates import typed_updates, write_updates
from bench.support.processes import ROOT, BenchError, child_environment, stop

FAN_OUT = {
    "reader_count": 3,
    "window": 16,
    "warm_count": 10,
    "warm_seconds": 0.05,
    "seconds": 0.2,
    "rest_seconds": 0.0,
}


@pytest.fixture
def updates_file(tmp_path: Path) -> Path:
    path = tmp_path / "updates"
    write_updates(typed_updates(CLIENT, 20_000), path)
    return path


def test_our_router_delivers_everything_that_is_counted(tmp_path: Path, updates_file: Path) -> None:
    with running(Syncline(), tmp_path / "data", tmp_path / "log") as found:
        result = play(found, "fan_out", updates_file=str(updates_file), **FAN_OUT)
    assert result["delivery_count"] > 0
    assert result["cpu_seconds"] > 0
    assert result["updates_per_frame"] >= 1


def test_the_bare_relay_needs_no_documents(tmp_path: Path) -> None:
    task = {"update_count": 20, "warm_count": 5, "reader_count": 3, "per_second": 500}
    with running(BareRelay(), None, tmp_path / "log") as found:
        result = play(found, "paced", **task)
    assert result["delivery_count"] == 3 * 15
    assert 0 < result["p50_ms"] <= result["p99_ms"]


def test_what_our_router_relayed_is_there_after_it_was_killed(tmp_path: Path) -> None:
    found = start_server(Syncline(), tmp_path / "data", tmp_path / "log")
    try:
        task = {"acknowledged_by": "relay", "acknowledged_count": 20, "update_count": 200}
        result = play(found, "kill", document="kept", **task)
    finally:
        stop(found.process)
    assert 20 <= result["acknowledged_count"] <= 200
    with running(Syncline(), tmp_path / "data", tmp_path / "log") as found:
        back = play(found, "survivors", document="kept", quiet_seconds=0.3)
    assert result["acknowledged_count"] <= back["update_count"] <= 200


class Forgetful(Member):
    """Relays every frame but the tenth."""

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        self._count = getattr(self, "_count", 0) + 1
        if self._count != 10:
            super().on_ws_frame(transport, frame)


@asynccontextmanager
async def forgetful_relay() -> AsyncIterator[Door]:
    members: set[picows.WSTransport] = set()
    server = await picows.ws_create_server(lambda request: Forgetful(members), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Door(f"ws://127.0.0.1:{port}/{{document}}", "bare")
        for member in list(members):
            member.disconnect(graceful=False)
        await asyncio.sleep(0)


async def test_a_delivery_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_DRAIN_SECONDS_MAX", 0.2)
    task = {"update_count": 20, "warm_count": 5, "reader_count": 2, "per_second": 2_000}
    async with forgetful_relay() as door:
        with pytest.raises(BenchError, match="a reader has 9 of 20 updates"):
            await fan_out.paced(door, task)


async def test_a_text_that_is_not_what_was_written_is_noticed(tmp_path: Path) -> None:
    with running(Syncline(), tmp_path / "data", tmp_path / "log") as found:
        door = Door(found.server.url(found.port), found.server.style)
        writer = await door.open_writer("document")
        reader = await door.open_reader("document")
        for update in typed_updates(CLIENT + 1, 5):
            writer.send_update(update)
        await playing.drain([reader], 5)
        with pytest.raises(BenchError):
            await kill.survivors(door, {"document": "document", "quiet_seconds": 0.3})
        writer.close()
        reader.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_whole_bench_runs_and_ends_with_its_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.documents", "--size", "smoke", "--no-install"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--details", str(tmp_path / "details")],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "documents"
    keys = {"name", "ours", "peer", "peer_value", "ratio", "bar", "holds"}
    assert all(set(figure) == keys for figure in last["figures"])
    bars = [figure["bar"] for figure in last["figures"]]
    for promised in (
        ">= 1.0 x Hocuspocus",
        ">= 6 x y-websocket server",
        "<= 1.5 ms, or both <= 2 x the bare relay",
        "<= 4 ms, or both <= 2 x the bare relay",
        "<= 0.7 x Hocuspocus",
        "<= 1.0 x y-websocket server",
        "<= 20 KB",
        "zero (< 1 ms per second)",
        "<= 0.5 x Hocuspocus",
        "0 lost",
        "<= its byte limit, 4,194,304",
    ):
        assert promised in bars
    # What was not measured is said, not guessed.
    assert all(figure["holds"] is None for figure in last["figures"] if figure["ours"] is None)
    lost = next(figure for figure in last["figures"] if figure["bar"] == "0 lost")
    assert lost["ours"] == 0
    assert "fan-out" in json.loads((tmp_path / "details").read_text())
