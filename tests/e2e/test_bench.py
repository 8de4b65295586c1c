"""The bench measures what it says: messages are stored, peers are named, the last line is JSON."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.log.ours import as_stream, open_ours
from bench.log.resp import check_stored_body, connected, count_stored, make_queues, request
from bench.log.resp_server import NO_STORE
from bench.log.sockets import our_server
from bench.log.worker import check_ours
from bench.support.processes import ROOT, BenchError, child_environment, run_worker
from bench.support.redis_benchmark import key
from bench.support.workload import Workload
from syncline.storage.base import commit

MESSAGE_COUNT = 96
TASK = {
    "task": "append",
    "store": "Syncline",
    "queue_count": 8,
    "body_bytes": 1024,
    "in_flight": 16,
    "message_count": MESSAGE_COUNT,
}


def test_our_appends_are_really_stored(tmp_path: Path) -> None:
    result = run_worker("bench.log.worker", {**TASK, "folder": str(tmp_path / "data")})
    assert result["message_count"] == MESSAGE_COUNT
    assert result["per_second"] > 0
    expected: dict[bytes, list[bytes]] = {}
    for batch in Workload.make(8, 1024).batches(MESSAGE_COUNT, 16):
        for queue, body in batch:
            expected.setdefault(queue, []).append(body)
    store = open_ours(tmp_path / "data", has_job_process=False)
    found = {
        bytes(stream): [entry.payload for entry in store.read(stream, 0, 1024, 1 << 24)]
        for stream in store.streams()
    }
    store.close()
    assert {queue: bodies for queue, bodies in found.items() if bodies} == expected


def test_a_message_that_is_not_stored_is_noticed(tmp_path: Path) -> None:
    task = {**TASK, "folder": str(tmp_path / "data")}
    run_worker("bench.log.worker", task)
    batches = Workload.make(8, 1024).batches(MESSAGE_COUNT, 16)
    check_ours(task, batches)
    store = open_ours(tmp_path / "data", has_job_process=False)
    stream = as_stream(batches[0][0][0])
    store.truncate_before(stream, store.state(stream).first + 1)
    commit(store)
    store.close()
    with pytest.raises(BenchError):
        check_ours(task, batches)


@pytest.mark.parametrize("kind", ["log", NO_STORE])
def test_our_front_answers_as_redis_does(tmp_path: Path, kind: str) -> None:
    with our_server(tmp_path / "data", kind) as server:
        make_queues(server.port, 4)
        assert count_stored(server.port, 4) == 0
        with connected(server.port) as link:
            append = request(b"XADD", key(1), b"*", b"f", b"body")
            read = request(b"XRANGE", key(1), b"-", b"+", b"COUNT", b"1")
            assert link.ask([append, append]) == [b"2-0", b"3-0"]
            assert link.ask([read]) == [[[b"2-0", [b"f", b"body"]]]]
            assert link.ask([request(b"XDEL", key(1), b"2-0"), read]) == [
                1,
                [[b"3-0", [b"f", b"body"]]],
            ]
        assert count_stored(server.port, 4) == 1
        check_stored_body(server.port, 4, b"body")
        with pytest.raises(BenchError):
            check_stored_body(server.port, 4, b"another")


def test_our_front_survives_bytes_that_are_no_command(tmp_path: Path) -> None:
    with our_server(tmp_path / "data", "log") as server:
        with socket.create_connection(("127.0.0.1", server.port), 10) as link:
            link.sendall(b"*nonsense\r\n")
            assert link.recv(100) == b""
        with connected(server.port) as link:
            replies = link.ask([request(b"PING"), request(b"NONSENSE"), request(b"XADD", b"k")])
        assert str(replies[0]) == "PONG" or replies[0] == b"PONG"
        assert all(isinstance(reply, Exception) for reply in replies[1:])


@pytest.mark.parametrize("kind", ["log", NO_STORE])
def test_deliver_and_acknowledge_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    with our_server(tmp_path / "data", kind) as server:
        result = run_worker(
            "bench.log.resp_client",
            {
                "port": server.port,
                "server_pid": server.pid,
                "connections": 4,
                "pipelined": 8,
                "trip_count": 3,
                "cycle_count": 2,
                "queue_count": 64,
                "body_bytes": 1024,
            },
        )
        assert result["message_count"] == 4 * 8 * 3 * 2
        assert count_stored(server.port, 64) == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_whole_bench_runs_and_ends_with_its_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.log",
            "--size",
            "smoke",
            "--no-install",
            "--folder",
            str(tmp_path),
        ],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "log"
    keys = {"name", "ours", "peer", "peer_value", "ratio", "bar", "holds"}
    assert all(set(figure) == keys for figure in last["figures"])
    bars = [figure["bar"] for figure in last["figures"]]
    for promised in (
        "<= 1/60",
        "<= 1.20 x payload",
        "<= 0.8 x RocksDB",
        "<= 0.6 x Redis",
        ">= 2 x the best embedded peer",
        ">= 1.2 x Redis always",
        ">= 2 x Redis always",
        ">= 1.0 x Redis always",
        "<= 0.5 s plus interpreter start",
        "<= 64 B mapped",
        "no heap object",
        "<= 80",
        "<= 128 B",
        "0 lost",
    ):
        assert promised in bars
    # What was not measured is said, not guessed.
    assert all(figure["holds"] is None for figure in last["figures"] if figure["ours"] is None)
    lost = next(figure for figure in last["figures"] if figure["bar"] == "0 lost")
    assert lost["ours"] == 0
