"""Real WebSockets: other people's client, and bytes that no client would send."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from syncline.server.frames import close_frame, frame, ping_frame, pong_frame
from tests.documents import ROOT
from tests.e2e.router_process import environment, running
from tests.unit.server.socket_rig import masked, masked_close

pytestmark = pytest.mark.timeout(60)

WAIT_SECONDS = 20
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HEAD = {
    "host": "127.0.0.1",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
}


class SocketServer:
    def __init__(self, loop: str, limits: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.socket_server", loop, json.dumps(limits)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.port}/stats").json()
        return found

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(4_000):
            stats = self.stats()
            if is_so(stats):
                return stats
        raise AssertionError(f"it never came to that: {self.stats()}")

    def raw(self) -> "Raw":
        return Raw(self.port)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Raw:
    """A socket that sends whatever it is told."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, path: str, **changes: str | None) -> bytes:
        """The head of the answer, and of a refusal what follows it."""
        headers = HEAD | {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f"GET {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        return self.answer()

    def answer(self) -> bytes:
        found = self.receive_until(b"\r\n\r\n")
        return found if found.startswith(b"HTTP/1.1 101") else found + self.rest()

    def upgraded(self, path: str) -> "Raw":
        answer = self.ask(path)
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return self

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = self.socket.recv(size - len(found))
            assert data, f"ended after {found!r}"
            found += data
        return found

    def receive_until(self, end: bytes) -> bytes:
        found = b""
        while not found.endswith(end):
            data = self.socket.recv(1)
            if not data:
                return found
            found += data
        return found

    def rest(self) -> bytes:
        """Everything until the other side ends."""
        found = b""
        try:
            while data := self.socket.recv(65_536):
                found += data
        except ConnectionResetError:
            pass
        return found

    def close(self) -> None:
        self.socket.close()


@contextmanager
def serving(loop: str = "uvloop", **limits: Any) -> Iterator[SocketServer]:
    with closing(SocketServer(loop, limits)) as server:
        yield server


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[SocketServer]:
    with serving(request.param, message_bytes_max=100_000, close_seconds_max=2) as made:
        yield made


@pytest.fixture
def raw(server: SocketServer) -> Iterator[Raw]:
    with closing(server.raw()) as made:
        yield made


# What clients do.


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_messages_go_there_and_back(server: SocketServer, length: int) -> None:
    with connect(server.url("/echo"), max_size=None) as client:
        for message in (b"\xff" * length, "ä" * (length // 2)):
            client.send(message)
            assert client.recv(WAIT_SECONDS) == message


def test_many_messages_keep_their_order(server: SocketServer) -> None:
    with connect(server.url("/echo")) as client:
        for index in range(1_000):
            client.send(str(index))
        assert [client.recv(WAIT_SECONDS) for _ in range(1_000)] == [str(n) for n in range(1_000)]


def test_fragments_and_pings_between_them(server: SocketServer) -> None:
    with connect(server.url("/echo")) as client:
        client.send(part for part in ("one ", "two ", "three"))
        assert client.ping().wait(WAIT_SECONDS)
        assert client.recv(WAIT_SECONDS) == "one two three"


def test_everybody_else_gets_it(server: SocketServer) -> None:
    with ExitStack() as stack:
        writer, *readers = [stack.enter_context(connect(server.url("/shared"))) for _ in range(6)]
        server.until(lambda stats: stats["connections"] == 6)
        for index in range(20):
            writer.send(bytes((index,)))
        expected = [bytes((index,)) for index in range(20)]
        for reader in readers:
            assert [reader.recv(WAIT_SECONDS) for _ in range(20)] == expected


def test_a_path_below_a_face_is_decoded(server: SocketServer) -> None:
    with connect(server.url("/below/caf%C3%A9/a%2Fb?x=1")) as client:
        assert client.recv(WAIT_SECONDS) == "/below/café/a/b"


def test_a_subprotocol_is_agreed_on(server: SocketServer) -> None:
    with connect(server.url("/echo"), subprotocols=[_sub("other"), _sub("echo.v1")]) as client:
        assert client.subprotocol == "echo.v1"
    with connect(server.url("/echo"), subprotocols=[_sub("other")]) as client:
        assert client.subprotocol is None


def _sub(name: str) -> Any:
    return name


def test_compression_is_declined(server: SocketServer, raw: Raw) -> None:
    """So there is nothing that unpacks to a thousand times its size."""
    with connect(server.url("/echo"), compression="deflate") as client:
        assert client.response is not None
        assert "sec-websocket-extensions" not in client.response.headers
        assert client.protocol.extensions == []
        client.send("x" * 10_000)
        assert client.recv(WAIT_SECONDS) == "x" * 10_000
    answer = raw.ask("/echo", sec_websocket_extensions="permessage-deflate")
    assert b"extensions" not in answer.lower()
    raw.send(masked(b"\xcaH\xcd\xc9\xc9\x07\x00", 0xC1))
    assert raw.rest()[:4] == close_frame(1002, "a reserved bit is set; no extension is agreed")[:4]


def test_a_goodbye_is_answered(server: SocketServer) -> None:
    before = len(server.stats()["ends"])
    with connect(server.url("/echo")) as client:
        client.close(4000, "enough")
    assert (client.close_code, client.close_reason) == (4000, "")
    ends = server.until(lambda stats: len(stats["ends"]) > before)["ends"]
    assert ends[-1] == [4000, "enough"]


def test_the_handshake_is_answered_as_it_must_be(raw: Raw) -> None:
    answer = raw.ask("/echo", connection="keep-alive, Upgrade")
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: " + ACCEPT + b"\r\n" in answer


def test_http_goes_on_beside_it(server: SocketServer) -> None:
    with connect(server.url("/echo")), httpx.Client() as client:
        answers = [client.get(f"http://127.0.0.1:{server.port}/stats") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]


# What nobody may do.


@pytest.mark.parametrize(
    ("path", "changes", "status", "sentence"),
    [
        ("/nothing", {}, 404, "no WebSocket"),
        ("/echo/", {}, 404, "no WebSocket"),
        ("/echo?refuse=1", {}, 401, "no token"),
        ("/echo", {"sec_websocket_version": "12"}, 426, "version 13"),
        ("/echo", {"sec_websocket_version": None}, 426, "version 13"),
        ("/echo", {"sec_websocket_key": None}, 400, "16 bytes"),
        ("/echo", {"sec_websocket_key": "c2hvcnQ="}, 400, "16 bytes"),
        ("/echo", {"sec_websocket_key": "!" * 24}, 400, "16 bytes"),
        ("/echo", {"host": None}, 400, "no host"),
        ("/echo", {"host": "evil.example"}, 403, "this machine"),
        ("/echo", {"origin": "https://evil.example"}, 403, "websocket.origins"),
        ("/echo", {"origin": "null"}, 403, "websocket.origins"),
        ("/echo", {"content_length": "5"}, 400, "no body"),
        ("/below/%FF", {}, 400, "UTF-8"),
        ("/echo?" + "a=1&" * 100, {}, 400, "query"),
    ],
)
def test_a_handshake_is_refused_in_words(
    raw: Raw, path: str, changes: dict[str, str | None], status: int, sentence: str
) -> None:
    answer = raw.ask(path, **changes)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert sentence.encode() in answer


def test_a_page_of_the_same_host_gets_in(raw: Raw) -> None:
    answer = raw.ask("/echo", host="localhost:80", origin="http://LOCALHOST")
    assert answer.startswith(b"HTTP/1.1 101")


def test_frames_before_the_answer_are_refused(raw: Raw) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in HEAD.items()).encode()
    raw.send(b"GET /echo HTTP/1.1\r\n" + head + b"\r\n" + masked(b"early"))
    answer = raw.answer()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"before you send frames" in answer


def test_a_handshake_does_not_overtake_an_open_request(raw: Raw) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in HEAD.items()).encode()
    raw.send(b"GET /stats HTTP/1.1\r\nhost: x\r\n\r\nGET /echo HTTP/1.1\r\n" + head + b"\r\n")
    answer = raw.rest()
    assert b"HTTP/1.1 101" not in answer
    assert b"the request before this one" in answer


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    with serving(heartbeat_seconds=1) as server, closing(server.raw()) as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: webso")
        assert raw.rest().startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x04open", 1002),
        (masked(b"x", 0xC2), 1002),
        (masked(b"x", 0x87), 1002),
        (masked(b"x", 0x80), 1002),
        (masked(b"x", 0x01) + masked(b"y", 0x81), 1002),
        (masked(b"\xc3\x28", 0x81), 1007),
        (masked(b"a", 0x01) + masked(b"\xc3", 0x80), 1007),
        (b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009),
        (masked(b"x" * 60_000, 0x02) + masked(b"x" * 60_000, 0x00), 1009),
        (masked_close(1006), 1002),
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
        (bytes(range(256)) * 20, 1002),
    ],
)
def test_hostile_bytes_end_the_connection_with_a_code(
    server: SocketServer, raw: Raw, data: bytes, code: int
) -> None:
    raw.upgraded("/echo").send(masked(b"first") + data)
    answer = raw.rest()
    echoed = frame(b"first", is_text=False)
    assert answer.startswith(echoed)
    assert answer[len(echoed)] == 0x88
    assert int.from_bytes(answer[len(echoed) + 2 : len(echoed) + 4], "big") == code
    with connect(server.url("/echo")) as client:
        client.send("others go on")
        assert client.recv(WAIT_SECONDS) == "others go on"


def test_another_client_understands_why(server: SocketServer) -> None:
    with connect(server.url("/echo")) as client:
        client.send(b"x" * 100_001)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(WAIT_SECONDS)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009
    assert "100000 bytes" in caught.value.rcvd.reason


def test_a_mistake_of_a_handler_ends_its_connection_alone(server: SocketServer) -> None:
    before = len(server.stats()["ends"])
    with connect(server.url("/echo")) as other:
        with connect(server.url("/echo")) as client:
            client.send(b"fail")
            with pytest.raises(ConnectionClosed):
                client.recv(WAIT_SECONDS)
        assert server.until(lambda stats: len(stats["ends"]) > before)["ends"][-1] == [1006, ""]
        other.send("still here")
        assert other.recv(WAIT_SECONDS) == "still here"


def test_one_byte_at_a_time_is_read_all_the_same(raw: Raw) -> None:
    raw.upgraded("/echo")
    message = masked(b"x" * 130)
    for position in range(len(message)):
        raw.send(message[position : position + 1])
    assert raw.receive(134) == frame(b"x" * 130, is_text=False)


def test_a_flood_of_pings_that_are_never_read_is_bounded() -> None:
    limits: dict[str, Any] = {
        "waiting_bytes_max": 100_000,
        "slow_seconds_max": 1,
        "close_seconds_max": 1,
    }
    fast: dict[str, Any] = {"messages_per_second": 1_000_000, "bytes_per_second": 1 << 30}
    with serving(**limits, **fast) as server, closing(server.raw()) as raw:
        raw.upgraded("/echo")
        pings = masked(b"x" * 100, 0x89) * 100
        # More than the two kernels between us would take.
        for _ in range(2_000):
            raw.send(pings)
        stats = server.until(lambda stats: bool(stats["ends"]))
        assert stats["ends"][-1][0] == 1008
        assert stats["ends"][-1][1].startswith("slow: ")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_reader_that_never_reads_costs_its_limit_and_is_cut_off(loop: str) -> None:
    limit = 200_000
    with (
        serving(loop, waiting_bytes_max=limit, slow_seconds_max=2, close_seconds_max=1) as server,
        closing(server.raw()) as raw,
        connect(server.url("/echo")) as other,
    ):
        raw.upgraded("/flood").send(masked(b"go"))
        full = server.until(lambda stats: max(stats["waiting"]) > limit // 2)
        assert max(full["waiting"]) <= limit
        other.send("others go on")
        assert other.recv(WAIT_SECONDS) == "others go on"
        stats = server.until(lambda stats: stats["sockets"] == 1)
        code, reason = stats["ends"][-1]
        assert (code, reason[:6]) == (1008, "slow: ")
        # It was cut off, so what it can still read is not all there was.
        assert close_frame(code, reason) not in raw.rest()


def test_a_reader_that_reads_late_is_told_why() -> None:
    limits: dict[str, Any] = {
        "waiting_bytes_max": 100_000,
        "slow_seconds_max": 1,
        "close_seconds_max": 10,
    }
    with serving(**limits) as server, closing(server.raw()) as raw:
        raw.upgraded("/flood").send(masked(b"go"))
        code, reason = server.until(lambda stats: bool(stats["ends"]))["ends"][-1]
        assert raw.rest().endswith(close_frame(code, reason))


def test_who_is_silent_is_pinged_and_given_up() -> None:
    with serving(heartbeat_seconds=1) as server, closing(server.raw()) as raw:
        raw.upgraded("/echo")
        assert raw.receive(2) == ping_frame()
        # A sign of life, then none.
        raw.send(masked(b"", 0x8A))
        assert raw.receive(2) == ping_frame()
        assert raw.rest()[2:].startswith((1008).to_bytes(2, "big") + b"slow: nothing")


def test_a_client_that_answers_pings_stays() -> None:
    with serving(heartbeat_seconds=1) as server, connect(server.url("/echo")) as client:
        with pytest.raises(TimeoutError):
            client.recv(3.5)
        client.send("still here")
        assert client.recv(WAIT_SECONDS) == "still here"


def test_who_sends_too_fast_is_slowed_down_without_an_error() -> None:
    with serving(messages_per_second=200) as server, connect(server.url("/echo")) as client:
        for index in range(400):
            client.send(str(index))
        assert [client.recv(WAIT_SECONDS) for _ in range(400)] == [str(n) for n in range(400)]


def test_connections_are_counted_per_address_and_in_all() -> None:
    with serving(connections_per_address_max=2) as server, connect(server.url("/echo")):
        with connect(server.url("/echo")):
            assert refusal(server) == 429
        server.until(lambda stats: stats["sockets"] == 1)
        assert refusal(server) is None
    with serving(connection_count_max=1) as server, connect(server.url("/echo")):
        assert refusal(server) == 503


def refusal(server: SocketServer) -> int | None:
    try:
        with connect(server.url("/echo")):
            return None
    except InvalidStatus as error:
        return error.response.status_code


# Stopping.


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_at_a_stop_everybody_is_told(loop: str) -> None:
    with serving(loop) as server, ExitStack() as stack:
        clients = [stack.enter_context(connect(server.url("/echo"))) for _ in range(3)]
        for client in clients:
            client.send("here")
            assert client.recv(WAIT_SECONDS) == "here"
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            with pytest.raises(ConnectionClosed) as caught:
                client.recv(WAIT_SECONDS)
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (
                1001,
                "going_away: the router stops",
            )
        assert server.process.wait(WAIT_SECONDS) == 0


def test_at_a_stop_nobody_waits_for_who_does_not_read() -> None:
    limits: dict[str, Any] = {"waiting_bytes_max": 100_000, "close_seconds_max": 1}
    with serving(**limits) as server, closing(server.raw()) as raw:
        raw.upgraded("/flood").send(masked(b"go"))
        server.until(lambda stats: max(stats["waiting"]) > 50_000)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_SECONDS) == 0


# The router itself.


def test_a_router_refuses_pages_of_others(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        port = int(router.url.rsplit(":", 1)[1])
        with closing(Raw(port)) as raw:
            assert b"HTTP/1.1 403" in raw.ask("/sync", origin="https://evil.example")
    with running(tmp_path / "data", "--set", "documents.enabled=false") as router:
        port = int(router.url.rsplit(":", 1)[1])
        with closing(Raw(port)) as raw:
            raw.send(b"GET /sync HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            assert b"HTTP/1.1 404" in raw.rest()


def test_pongs_come_back_from_the_other_side_too(raw: Raw) -> None:
    raw.upgraded("/echo").send(masked(b"are you there?", 0x89))
    assert raw.receive(16) == pong_frame(b"are you there?")
