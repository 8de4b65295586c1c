"""A real router: real sockets, real signals, kill -9, and everything an operator gets wrong."""

import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from itertools import product
from pathlib import Path

import httpx
import pytest

from syncline.wire.smp.addresses import RouterAddress
from tests.e2e.router_process import (
    RouterProcess,
    run_cli,
    run_without_powers,
    running,
)

pytestmark = pytest.mark.timeout(90)

STORES = ["log", "journal"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def router(folder: Path) -> Iterator[RouterProcess]:
    with running(folder) as made:
        yield made


@pytest.mark.parametrize("store", [*STORES, "memory"])
def test_create_append_read_acknowledge_delete(folder: Path, store: str) -> None:
    with running(folder, "--store", store) as router:
        queue = router.create(quota=5)
        assert [router.append(queue, b"m%d" % index) for index in range(3)] == [1, 2, 3]
        client = router.client
        acknowledged = client.post(f"/api/queues/{queue}/acknowledge", json={"seq": 2})
        assert acknowledged.json() == {"first": 3}
        assert router.seqs(queue) == [3]
        batch = (2).to_bytes(4, "big") + b"m4"
        answer = client.post(f"/api/queues/{queue}/messages:batch", content=batch)
        assert answer.json() == {"first_seq": 4, "count": 1}
        listed = {"queues": [queue], "unreadable": [], "after": None}
        assert client.get("/api/queues").json() == listed
        assert client.delete(f"/api/queues/{queue}").status_code == 204
        assert client.get("/api/queues").json()["queues"] == []
        assert "syncline_commit_batches_total" in client.get("/metrics").text
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["damaged_places"]) == (200, 0)
        assert router.stop() == 0


def test_a_router_that_keeps_all_in_memory_names_no_folder(folder: Path) -> None:
    with running(folder, "--store", "memory") as router:
        assert router.announcement["folder"] is None
    assert not folder.exists()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_keeps_everything(folder: Path, store: str, number: int) -> None:
    with running(folder, "--store", store) as router:
        queue = router.create()
        for index in range(20):
            router.append(queue, b"m%d" % index)
        router.client.post(f"/api/queues/{queue}/acknowledge", json={"seq": 5})
        assert router.stop(number) == 0
        assert '"stopped"' in router.errors.read_text()
    with running(folder) as router:
        assert router.announcement["streams"] == 1
        assert router.seqs(queue) == list(range(6, 21))


def test_a_stop_answers_requests_that_wait(router: RouterProcess) -> None:
    queue = router.create()
    answers: list[httpx.Response] = []

    def wait() -> None:
        with httpx.Client(base_url=router.url, timeout=60) as client:
            answers.append(client.get(f"/api/queues/{queue}/messages?wait_ms=30000"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until_requests_wait(router)
    assert router.stop() == 0
    waiting.join(30)
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"messages": []})]


def until_requests_wait(router: RouterProcess) -> None:
    for _ in range(2_000):
        if "syncline_waiting_readers 1.0" in router.client.get("/metrics").text:
            return
    raise AssertionError("the reader never came")


@pytest.mark.parametrize("store", STORES)
def test_kill_9_loses_nothing_that_was_acknowledged(folder: Path, store: str) -> None:
    """Writers go on until the process dies under them, twice."""
    answered: dict[str, int] = {}
    settings = ("--store", store, "--set", "store.segment_bytes=65536")
    for _ in range(2):
        with running(folder, *settings) as router:
            for queue, last in answered.items():
                assert router.seqs(queue)[:last] == list(range(1, last + 1))
            queues = [router.create() for _ in range(4)]
            enough = [threading.Event() for _ in queues]
            writers = [
                threading.Thread(target=write_until_cut, args=(router.url, queue, answered, event))
                for queue, event in zip(queues, enough, strict=True)
            ]
            for writer in writers:
                writer.start()
            assert all(event.wait(30) for event in enough)
            router.kill()
            for writer in writers:
                writer.join(30)
    with running(folder) as router:
        for queue, last in answered.items():
            assert router.seqs(queue)[:last] == list(range(1, last + 1)), "acknowledged and gone"
        assert router.client.get("/readyz").json()["damaged_places"] == 0
    assert len(answered) == 8
    assert run_cli("verify", folder).returncode == 0


@pytest.mark.parametrize(("store", "stream_count"), [("log", 1), ("journal", None)])
def test_a_router_tells_no_count_of_queues_that_it_has_yet_to_make(
    folder: Path, store: str, stream_count: int | None
) -> None:
    with running(folder, "--store", store) as router:
        router.create()
        router.kill()
    with running(folder) as router:
        assert router.announcement["streams"] == stream_count


def write_until_cut(
    url: str, queue: str, answered: dict[str, int], enough: threading.Event
) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        try:
            for index in range(100_000):
                body = bytes(index % 900)
                answer = client.post(f"/api/queues/{queue}/messages", content=body)
                answered[queue] = answer.json()["seq"]
                if answered[queue] >= 20:
                    enough.set()
        except httpx.TransportError:
            return


def test_a_second_router_on_the_folder_is_told_who_has_it(router: RouterProcess) -> None:
    port = router.url.rsplit(":", 1)[1]
    smp_port = str(RouterAddress.parse(router.announcement["smp"]).port)
    # On the same ports, as it happens to people, on one of them, and on others.
    for wanted, smp_wanted in product((port, "0"), (smp_port, "0")):
        second = run_cli(
            "serve",
            *("--data", router.folder, "--port", wanted, "--set", f"smp.port={smp_wanted}"),
        )
        assert second.returncode == 2
        assert f"in use by another router (process {router.process.pid})" in second.stderr
        assert "Traceback" not in second.stderr
    assert router.client.get("/readyz").status_code == 200


def test_a_port_in_use_is_said_so(router: RouterProcess, tmp_path: Path) -> None:
    port = router.url.rsplit(":", 1)[1]
    second = run_cli("serve", "--data", tmp_path / "other", "--port", port)
    assert second.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in second.stderr


def test_a_port_of_smp_in_use_is_said_so(router: RouterProcess, tmp_path: Path) -> None:
    port = RouterAddress.parse(router.announcement["smp"]).port
    arguments = ("--port", "0", "--set", f"smp.port={port}")
    second = run_cli("serve", "--data", tmp_path / "other", *arguments)
    assert second.returncode == 2
    assert f"port {port}" in second.stderr
    assert "in use" in second.stderr
    assert "folder" not in second.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "http.prot=1"], "did you mean http.port?"),
        (["--set", "http.port=x"], "write a whole number"),
        (["--port", "99999"], "between 0 and 65535"),
        (["--host", "0.0.0.0"], "set http.allow_remote and a token"),
        (["--host", "256.1.1.1", "--set", "http.allow_remote=true"], "no token is set"),
        (["--store", "paper"], "choose one of auto, log, journal, memory"),
        (["--config", "missing.toml"], "cannot be read"),
        (["--set", "http.token_file=missing"], "cannot be read"),
    ],
)
def test_a_bad_configuration_is_one_sentence(
    folder: Path, arguments: list[str], sentence: str
) -> None:
    result = run_cli("serve", "--data", folder, *arguments)
    assert result.returncode == 2
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not folder.exists()


def test_an_unknown_variable_is_refused(folder: Path) -> None:
    result = run_cli("serve", "--data", folder, SYNCLINE_HTTP_PROT="1")
    assert result.returncode == 2
    assert "did you mean SYNCLINE_HTTP_PORT?" in " ".join(result.stderr.split())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "data", tmp_path / "no" / "such"):
        result = run_cli("serve", "--data", folder, "--port", "0")
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert str(folder) in result.stderr


def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "closed"
    parent.mkdir(mode=0o555)
    result = run_without_powers("serve", "-d", parent / "data", "-p", "0")
    assert result.returncode == 2, result.stderr
    assert "give this user the right to read and write it" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(parent.iterdir()) == []


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    result = run_cli("serve", "--data", tmp_path, "--port", "0")
    assert result.returncode == 2
    assert "choose an empty folder" in " ".join(result.stderr.split())
    assert [each.name for each in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_folder_of_a_later_version_is_refused(folder: Path) -> None:
    with running(folder) as router:
        router.stop()
    line = (folder / "FORMAT").read_text().split()
    line[2] = str(int(line[2]) + 1)
    (folder / "FORMAT").write_text(" ".join(line) + "\n")
    result = run_cli("serve", "--data", folder, "--port", "0")
    assert result.returncode == 2
    assert "start it with the version that wrote it" in " ".join(result.stderr.split())


def test_bad_requests_are_answered_and_change_nothing(router: RouterProcess) -> None:
    queue = router.create()
    client = router.client
    for name in ("short", queue + "A", queue[:-1]):
        answer = client.post(f"/api/queues/{name}/messages", content=b"x")
        assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")
    large = bytes(4 * 1024 * 1024 + 1)
    answer = client.post(f"/api/queues/{queue}/messages", content=large)
    assert (answer.status_code, answer.json()["error"]) == (413, "LIMIT")
    assert router.append(queue, large[:-1]) == 1
    assert router.seqs(queue) == [1]


def test_a_token_opens_what_it_should(folder: Path, tmp_path: Path) -> None:
    token = "correct-horse-battery"
    secret = tmp_path / "token"
    secret.write_text(token + "\n")
    with running(folder, "--set", f"http.token_file={secret}") as router:
        assert router.client.get("/api/queues").status_code == 401
        assert router.client.get("/readyz").status_code == 200
        headers = {"authorization": f"Bearer {token}"}
        assert router.client.get("/api/queues", headers=headers).status_code == 200
        router.stop()
        assert token not in router.errors.read_text()


def test_logs_are_json_lines_without_ids(router: RouterProcess) -> None:
    queue = router.create()
    router.append(queue, b"a secret body")
    router.stop()
    text = router.errors.read_text()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events == ["serving", "stopped"]
    assert queue not in text


def exchange(router: RouterProcess, *pieces: bytes) -> bytes:
    """Send raw bytes and read until the router closes."""
    port = int(router.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        received = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65_536):
                received += data
        except (BrokenPipeError, ConnectionResetError):
            pass
        return received


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_a_large_head_is_refused_however_it_comes(router: RouterProcess, before: bytes) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-long: "
    answer = exchange(router, before + head + b"a" * 40_000 + b"\r\n\r\n")
    assert b"HTTP/1.1 431" in answer, answer[:100]
    answer = exchange(router, before + head + b"a" * 30_000 + b"\r\n\r\n")
    assert b"HTTP/1.1 431" not in answer, answer[:100]


def test_endless_heads_are_cut_off(router: RouterProcess) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
    answer = exchange(router, head, b"x-long: " + b"a" * 200_000)
    assert answer.startswith(b"HTTP/1.1 431"), answer[:100]
    many = b"".join(b"x-%d: y\r\n" % index for index in range(20_000))
    assert exchange(router, head, many).startswith(b"HTTP/1.1 431")
    assert exchange(router, b"GET /" + b"a" * 200_000).startswith(b"HTTP/1.1 431")
    assert router.client.get("/readyz").status_code == 200


def test_every_answer_says_what_time_it_is(router: RouterProcess) -> None:
    """Also the second, on a connection that was silent meanwhile."""
    for _ in range(2):
        before = int(time.time())
        dated = router.client.get("/healthz").headers["date"]
        assert before <= parsedate_to_datetime(dated).timestamp() <= time.time()
        time.sleep(1.1)


def test_slow_heads_and_bodies_are_cut_off(folder: Path) -> None:
    with running(folder, "--set", "http.request_seconds_max=1") as router:
        queue = router.create()
        assert exchange(router, b"GET /healthz HTT").startswith(b"HTTP/1.1 408")
        assert exchange(router).startswith(b"HTTP/1.1 408")
        head = b"POST /api/queues/%s/messages HTTP/1.1\r\n" % queue.encode()
        head += b"host: localhost\r\ncontent-length: 10\r\n\r\n12345"
        answer = exchange(router, head)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert router.seqs(queue) == []


def test_too_many_connections_are_turned_away(folder: Path) -> None:
    with running(folder, "--set", "http.connection_count_max=3") as router:
        port = int(router.url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(3)]
        assert held[0].send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert held[0].recv(4_096).startswith(b"HTTP/1.1 200")
        assert exchange(router).startswith(b"HTTP/1.1 503")
        for connection in held:
            connection.close()
        assert router.client.get("/healthz").status_code == 200


def test_connections_leave_files_for_the_store(folder: Path) -> None:
    with running(folder) as router:
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        port = int(router.url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(128)]
        assert held[-1].recv(4_096).startswith(b"HTTP/1.1 503")
        assert len(os.listdir(f"/proc/{router.process.pid}/fd")) < 80
        for connection in held:
            connection.close()
        # Once it has noticed that they are gone.
        while router.client.get("/healthz").status_code != 200:
            time.sleep(0.05)


@pytest.mark.parametrize("store", STORES)
def test_a_store_goes_on_while_connections_have_taken_all_the_files_that_they_may(
    folder: Path, store: str
) -> None:
    settings = ("--store", store, "--set", "store.segment_bytes=65536")
    with running(folder, *settings) as router, ExitStack() as stack:
        queues = [router.create() for _ in range(20)]
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (200, 200))
        http_port = httpx.URL(router.url).port
        smp_port = RouterAddress.parse(router.announcement["smp"]).port
        for port in (http_port, smp_port) * 150:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        for _ in range(5):
            for queue in queues:
                router.append(queue, bytes(5_000))
        assert all(router.seqs(queue) == [1, 2, 3, 4, 5] for queue in queues)
        assert router.process.poll() is None


def test_what_is_no_http_is_refused(router: RouterProcess) -> None:
    assert exchange(router, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400")


class RouterOnFailingDisk(RouterProcess):
    """Every sync fails from the moment on that the file `fail` lies beside the data folder."""

    command = (
        sys.executable,
        "-c",
        """
import errno, os, sys
from pathlib import Path
from syncline.cli import main
sync, write = os.fdatasync, os.pwritev
flag = Path(sys.argv[sys.argv.index("--data") + 1]).with_name("fail")
def check():
    if flag.exists():
        raise OSError(errno.EIO, "broken")
def failing_sync(descriptor):
    check()
    sync(descriptor)
def failing_write(descriptor, pieces, offset, flags=0):
    if flags & os.RWF_DSYNC:
        check()
    return write(descriptor, pieces, offset, flags)
os.fdatasync, os.pwritev = failing_sync, failing_write
main()
""",
    )


@pytest.mark.parametrize("store", STORES)
def test_a_failed_device_ends_the_router_and_loses_nothing(folder: Path, store: str) -> None:
    router = RouterOnFailingDisk(folder, "--store", store)
    try:
        queue = router.create()
        assert router.append(queue, b"safe") == 1
        folder.with_name("fail").touch()
        answer = router.client.post(f"/api/queues/{queue}/messages", content=b"not safe")
        assert (answer.status_code, answer.json()["error"]) == (503, "STORAGE")
        assert router.process.wait(30) == 3
        said = router.errors.read_text()
        assert "nothing unsaved was acknowledged" in said
        assert "Traceback" not in said
    finally:
        router.close()
    with running(folder) as again:
        assert again.seqs(queue)[:1] == [1]


def test_too_little_space_refuses_new_messages_only(folder: Path) -> None:
    with running(folder) as router:
        queue = router.create()
        router.append(queue, b"one")
        router.stop()
    with running(folder, "--set", f"store.free_bytes_min={1 << 50}") as router:
        answer = router.client.post(f"/api/queues/{queue}/messages", content=b"two")
        assert (answer.status_code, answer.json()["error"]) == (507, "STORE_FULL")
        assert router.client.get("/readyz").status_code == 503
        assert router.seqs(queue) == [1]
        acknowledged = router.client.post(f"/api/queues/{queue}/acknowledge", json={"seq": 1})
        assert acknowledged.json() == {"first": 2}
        assert router.stop() == 0


def test_upkeep_goes_on_while_it_serves(folder: Path) -> None:
    """Enough to fill several small segments: they are sealed, and all is there afterwards."""
    with running(folder, "--set", "store.segment_bytes=65536") as router:
        queue = router.create()
        message = bytes(1_000)
        batch = (len(message).to_bytes(4, "big") + message) * 20
        for _ in range(30):
            answer = router.client.post(f"/api/queues/{queue}/messages:batch", content=batch)
            assert answer.status_code == 201, answer.text
        text = router.client.get("/metrics").text
        assert "syncline_upkeep_jobs_total{" in text
        assert router.seqs(queue) == list(range(1, 601))
        router.stop()
    assert run_cli("verify", folder).returncode == 0
