"""SMP over real WebSockets: on the port of HTTP, and on the port of SMP over TLS."""

import asyncio
import secrets
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from syncline.client.smp import queues
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import INTERACTIVE, SmpLink
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import padded
from syncline.wire.smp.commands import Ping
from syncline.wire.smp.hellos import ClientHello, encode_client_hello
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Msg, Pong
from syncline.wire.smp.transmissions import BLOCK_BYTES
from tests.e2e.router_process import RouterProcess, running
from tests.e2e.smp_web_client import (
    WAIT_SECONDS,
    WebClient,
    encoded,
    is_proved,
    trusting_context,
    web_client,
)

pytestmark = pytest.mark.timeout(120)

PORTS = ["http", "smp"]
CHALLENGE = bytes(range(32))


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


def fingerprint_of(router: RouterProcess) -> bytes:
    return address_of(router).fingerprint


def url_of(router: RouterProcess, port: str) -> str:
    if port == "http":
        return router.url.replace("http://", "ws://")
    return f"wss://127.0.0.1:{address_of(router).port}"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    # Smaller than a block: what is set for documents must not keep blocks out.
    settings = {"SYNCLINE_WEBSOCKET_MESSAGE_BYTES_MAX": "2048"}
    with running(tmp_path_factory.mktemp("router") / "data", **settings) as started:
        yield started


# ------------------------------------------------------------------------------------ what it does


@pytest.mark.parametrize("port", PORTS)
async def test_a_queue_is_made_written_and_read(router: RouterProcess, port: str) -> None:
    async with web_client(url_of(router, port), encoded(CHALLENGE)) as client:
        hello = await client.read_hello()
        assert is_proved(hello, CHALLENGE)
        await client.greet(fingerprint_of(router))
        queue = await queues.create(client)
        key = PrivateKey.new(KeyKind.ED25519, secrets.token_bytes)
        async with web_client(url_of(router, port)) as sender:
            await sender.read_hello()
            await sender.greet(fingerprint_of(router))
            await queues.secure_as_sender(sender, queue.sender_id, key)
            for body in (b"hello", bytes(16_048)):
                await queues.send(sender, queue.sender_id, body, key)
                entity_id, message = await client.event()
                assert entity_id == queue.recipient_id
                assert isinstance(message, Msg)
                opened = queues.opened(queue, message)
                assert queues.body_of(opened) == body
                assert await queues.acknowledge(client, queue, opened.message_id) is None


async def test_it_is_the_same_router_by_every_way(router: RouterProcess) -> None:
    link = await SmpLink.connect(address_of(router), INTERACTIVE)
    queue = await queues.create(link)
    for port in PORTS:
        async with web_client(url_of(router, port)) as sender:
            await sender.read_hello()
            await sender.greet(fingerprint_of(router))
            await queues.send(sender, queue.sender_id, port.encode())
    message = await queues.subscribe(link, queue)
    bodies: list[bytes | None] = []
    while len(bodies) < len(PORTS):
        if message is None:
            event = await link.next_event()
            assert isinstance(event.message, Msg)
            message = queues.opened(queue, event.message)
        bodies.append(queues.body_of(message))
        message = await queues.acknowledge(link, queue, message.message_id)
    await link.close()
    assert bodies == [b"http", b"smp"]


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("version", [6, 10, 11, 17, 20])
async def test_every_version_is_spoken(router: RouterProcess, port: str, version: int) -> None:
    async with web_client(url_of(router, port)) as client:
        hello = await client.read_hello()
        assert (hello.versions.min, hello.versions.max) == (6, 20)
        await client.greet(fingerprint_of(router), version)
        assert await client.request(Ping()) == Pong()


@pytest.mark.parametrize("port", PORTS)
async def test_many_blocks_go_both_ways(router: RouterProcess, port: str) -> None:
    async with web_client(url_of(router, port)) as client:
        await client.read_hello()
        await client.greet(fingerprint_of(router))
        queue = await queues.create(client, subscribes=False)
        for number in range(100):
            await queues.send(client, queue.sender_id, b"%d" % number * 4_000)
        await queues.subscribe(client, queue)
        _, first = await client.event()
        assert isinstance(first, Msg)
        message: queues.QueueMessage | None = queues.opened(queue, first)
        found: list[bytes | None] = []
        while message is not None:
            found.append(queues.body_of(message))
            message = await queues.acknowledge(client, queue, message.message_id)
        assert found == [b"%d" % number * 4_000 for number in range(100)]


# ------------------------------------------------------------------------------- who the router is


@pytest.mark.parametrize("port", PORTS)
async def test_the_proof_is_over_challenge_and_session(router: RouterProcess, port: str) -> None:
    session_ids: set[bytes] = set()
    for challenge in (CHALLENGE, secrets.token_bytes(32)):
        async with web_client(url_of(router, port), encoded(challenge)) as client:
            hello = await client.read_hello()
            assert is_proved(hello, challenge)
            assert not is_proved(hello, bytes(32))
            assert len(hello.session_id) == 32
            session_ids.add(hello.session_id)
    assert len(session_ids) == 2


async def test_over_tls_the_session_is_that_of_tls(router: RouterProcess) -> None:
    async with web_client(url_of(router, "smp")) as client:
        hello = await client.read_hello()
        tls = client.socket.transport.get_extra_info("ssl_object")
        assert isinstance(tls, ssl.SSLObject)
        assert hello.session_id == tls.get_channel_binding("tls-unique")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "challenge",
    [None, "", encoded(bytes(31)), encoded(bytes(33)), "!" * 43, "A" * 42, "A" * 44, "A" * 4_000],
)
async def test_what_is_no_challenge_is_answered_without_a_proof(
    router: RouterProcess, port: str, challenge: str | None
) -> None:
    async with web_client(url_of(router, port), challenge) as client:
        assert (await client.read_hello()).proof is None
        await client.greet(fingerprint_of(router))
        assert await client.request(Ping()) == Pong()


@pytest.mark.parametrize("port", PORTS)
async def test_a_challenge_may_stand_behind_other_things(router: RouterProcess, port: str) -> None:
    url = f"{url_of(router, port)}/?first=1&challenge={encoded(CHALLENGE)}&challenge=no"
    async with web_client(url) as client:
        assert is_proved(await client.read_hello(), CHALLENGE)


# --------------------------------------------------------------------------------- what it refuses


async def ended(client: WebClient) -> int | None:
    """The code that the router closed with; 1006 if it did so without a word."""
    async with asyncio.timeout(WAIT_SECONDS):
        await client.socket.wait_closed()
    return client.socket.close_code


async def status(url: str, **more: Any) -> int:
    """What a request for a WebSocket is answered with."""
    try:
        async with web_client(url, **more):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("x" * BLOCK_BYTES, 1003),
        ("", 1003),
        (b"", 1008),
        (bytes(1), 1008),
        (bytes(BLOCK_BYTES - 1), 1008),
        (bytes(BLOCK_BYTES + 1), 1009),
        (bytes(1 << 20), 1009),
    ],
    ids=["text", "empty text", "empty", "one", "short", "long", "large"],
)
@pytest.mark.parametrize("has_session", [False, True])
async def test_anything_but_a_block_ends_the_session(
    router: RouterProcess, port: str, message: str | bytes, code: int, has_session: bool
) -> None:
    async with web_client(url_of(router, port)) as client:
        await client.read_hello()
        if has_session:
            await client.greet(fingerprint_of(router))
            assert await client.request(Ping()) == Pong()
        await client.socket.send(message)
        assert await ended(client) == code


@pytest.mark.parametrize("port", PORTS)
async def test_a_block_may_come_in_fragments(router: RouterProcess, port: str) -> None:
    async with web_client(url_of(router, port)) as client:
        hello = await client.read_hello()
        assert hello.key is not None
        ours = padded(encode_client_hello(ClientHello(20, fingerprint_of(router))), BLOCK_BYTES)
        await client.socket.send([ours[:1], ours[1:10_000], ours[10_000:]])
        ping = b"\x01" + b"\x00\x1f" + b"\x00\x18" + b"c" * 24 + b"\x00" + b"PING"
        await client.socket.send(padded(ping, BLOCK_BYTES))
        assert b"PONG" in await client.block()


@pytest.mark.parametrize("port", PORTS)
async def test_a_block_that_is_not_for_this_session_ends_it(
    router: RouterProcess, port: str
) -> None:
    async with web_client(url_of(router, port)) as client:
        await client.read_hello()
        await client.greet(fingerprint_of(router))
        await client.socket.send(bytes(BLOCK_BYTES))
        assert await ended(client) == 1000


@pytest.mark.parametrize("port", PORTS)
async def test_a_client_that_means_another_router_hears_nothing(
    router: RouterProcess, port: str
) -> None:
    async with web_client(url_of(router, port)) as client:
        await client.read_hello()
        hello = ClientHello(20, bytes(32))
        await client.socket.send(padded(encode_client_hello(hello), BLOCK_BYTES))
        assert await ended(client) == 1000


async def test_a_client_that_says_nothing_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path / "data", SYNCLINE_SMP_HANDSHAKE_SECONDS_MAX="1") as router:
        async with web_client(url_of(router, "http")) as client:
            await client.read_hello()
            assert await ended(client) == 1006


@pytest.mark.parametrize("port", PORTS)
async def test_compression_is_not_agreed_on(router: RouterProcess, port: str) -> None:
    async with web_client(url_of(router, port), compression="deflate") as client:
        assert client.socket.response is not None
        assert "sec-websocket-extensions" not in client.socket.response.headers
        await client.read_hello()


@pytest.mark.parametrize("port", PORTS)
async def test_pages_of_every_origin_may_connect_to_queues_and_only_to_these(
    router: RouterProcess, port: str
) -> None:
    headers: dict[str, Any] = {"origin": "https://elsewhere.example"}
    async with web_client(url_of(router, port), **headers) as client:
        await client.read_hello()
    assert await status(f"{url_of(router, port)}/sync", **headers) == 403


async def test_under_other_paths_there_are_no_queues(router: RouterProcess) -> None:
    assert await status(f"{url_of(router, 'http')}/nothing") == 404


# ------------------------------------------------------------------------- the port of SMP and HTTP


def https(router: RouterProcess) -> httpx.Client:
    return httpx.Client(
        base_url=f"https://localhost:{address_of(router).port}",
        verify=trusting_context(),
        trust_env=False,
    )


def test_everything_of_http_is_served_over_tls(router: RouterProcess) -> None:
    with https(router) as client:
        assert client.get("/healthz").json() == {"status": "alive"}
        created = client.post("/api/queues", json={}, headers={"origin": str(client.base_url)})
        assert created.status_code == 201
        queue = created.json()["queue"]
        body = secrets.token_bytes(1 << 20)
        for _ in range(3):
            sent = client.post(f"/api/queues/{queue}/messages", content=body)
            assert sent.status_code == 201
        # Several megabytes through a socket that takes less at a time.
        answer = client.get(f"/api/queues/{queue}/messages").json()
        assert len(answer["messages"]) == 3
        foreign = client.post("/api/queues", json={}, headers={"origin": "http://localhost"})
        assert foreign.status_code == 403
    assert router.seqs(queue) == [1, 2, 3]


def test_an_open_request_over_tls_gets_its_answer_when_the_router_stops(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data") as router,
        https(router) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        queue = router.create()
        before = router.client.get("/metrics").text
        assert "syncline_waiting_readers 0.0" in before
        query = {"wait_ms": 30_000}
        reading = thread.submit(client.get, f"/api/queues/{queue}/messages", params=query)
        while "syncline_waiting_readers 1.0" not in router.client.get("/metrics").text:
            assert not reading.done()
        assert router.stop() == 0
        assert reading.result(WAIT_SECONDS).json() == {"messages": []}


async def test_documents_are_served_over_tls(router: RouterProcess) -> None:
    async with connect(
        f"{url_of(router, 'smp')}/yjs/document",
        ssl=trusting_context(),
        server_hostname="localhost",
        proxy=None,
    ) as client:
        # The first step of Yjs: what is there?
        await client.send(b"\x00\x00\x01\x00")
        async with asyncio.timeout(WAIT_SECONDS):
            assert await client.recv()


async def test_without_a_server_name_http_is_plain_smp(router: RouterProcess) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", address_of(router).port, ssl=trusting_context(), server_hostname=""
    )
    async with asyncio.timeout(WAIT_SECONDS):
        hello = await reader.readexactly(BLOCK_BYTES)
    writer.transport.abort()
    assert hello[2:6] == b"\x00\x06\x00\x14"


TOKEN = "a token that nobody guesses".replace(" ", "-")
KEY = "a key that tokens are signed with, long enough"


@pytest.mark.parametrize(
    ("settings", "is_served"),
    [
        ({}, False),
        ({"SYNCLINE_HTTP_TOKEN": TOKEN}, False),
        ({"SYNCLINE_HTTP_TOKEN": TOKEN, "SYNCLINE_HTTP_ALLOW_REMOTE": "true"}, False),
        (
            {
                "SYNCLINE_HTTP_TOKEN": TOKEN,
                "SYNCLINE_HTTP_ALLOW_REMOTE": "true",
                "SYNCLINE_DOCUMENTS_TOKEN_KEY": KEY,
            },
            True,
        ),
    ],
    ids=["nothing", "token", "allowed", "all"],
)
async def test_what_is_open_on_this_machine_is_not_open_to_others(
    tmp_path: Path, settings: dict[str, str], is_served: bool
) -> None:
    # A name that is no address and not `localhost` may be anything; this one is loopback.
    with running(tmp_path / "data", SYNCLINE_SMP_HOST="127.1", **settings) as router:
        with https(router) as client:
            headers = {"authorization": f"Bearer {TOKEN}"}
            assert client.get("/api/queues", headers=headers).status_code == (
                200 if is_served else 404
            )
        url = url_of(router, "smp")
        # A face of documents asks for its token by itself.
        assert await status(f"{url}/sync") == (101 if is_served else 404)
        async with web_client(url, encoded(CHALLENGE)) as web:
            assert is_proved(await web.read_hello(), CHALLENGE)


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with running(tmp_path / "data", SYNCLINE_SMP_WEB_SOCKETS="false") as router:
        assert await status(url_of(router, "http")) == 404
        with pytest.raises((OSError, EOFError, InvalidHandshake)):
            async with web_client(url_of(router, "smp")):
                pass


async def test_without_documents_there_are_still_queues(tmp_path: Path) -> None:
    with running(tmp_path / "data", SYNCLINE_DOCUMENTS_ENABLED="false") as router:
        for port in PORTS:
            async with web_client(url_of(router, port)) as client:
                await client.read_hello()


async def test_a_router_that_stops_says_goodbye(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        clients = [web_client(url_of(router, port)) for port in PORTS]
        async with clients[0] as one, clients[1] as two:
            for client in (one, two):
                await client.read_hello()
                await client.greet(fingerprint_of(router))
                assert await client.request(Ping()) == Pong()
            stopping = asyncio.create_task(asyncio.to_thread(router.stop))
            assert [await ended(client) for client in (one, two)] == [1001, 1001]
            assert await stopping == 0
