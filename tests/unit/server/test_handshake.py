"""The opening handshake and the rules of origins, without a connection."""

import pytest

from syncline.server.faces import Rejected, Upgrade
from syncline.server.handshake import (
    Request,
    read_upgrade,
    refuse_origin,
    rejecting_answer,
    switching_answer,
)
from syncline.server.origins import is_origin

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def request(
    target: bytes = b"/sync", *more: tuple[bytes, bytes], method: str = "GET", version: str = "1.1"
) -> Request:
    headers = [
        (b"host", b"localhost:8080"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", KEY.encode()),
        *more,
    ]
    return Request(method, target, version, headers, "192.0.2.1")


def read(asked: Request) -> Upgrade:
    upgrade = read_upgrade(asked)
    assert isinstance(upgrade, Upgrade), upgrade
    return upgrade


def test_a_request_is_read() -> None:
    upgrade = read(
        request(
            b"/yjs/caf%C3%A9%20au%2Flait?token=one&token=two&empty=&x=%26",
            (b"Sec-WebSocket-Protocol", b"a, b"),
            (b"sec-websocket-protocol", b"c,, \xe9,"),
            (b"Origin", b"https://app.example"),
        )
    )
    assert upgrade.path == "/yjs/café au/lait"
    assert upgrade.query == {"token": "one", "empty": "", "x": "&"}
    assert upgrade.subprotocols == ("a", "b", "c")
    assert (upgrade.remote, upgrade.origin) == ("192.0.2.1", "https://app.example")
    assert upgrade.headers["host"] == "localhost:8080"


def test_a_token_does_not_show_when_a_request_is_printed() -> None:
    upgrade = read(
        request(
            b"/sync?token=hidden",
            (b"authorization", b"Bearer hidden"),
            (b"sec-websocket-protocol", b"hidden"),
        )
    )
    assert "hidden" not in repr(upgrade)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(method="POST"), 400),
        (request(version="1.0"), 400),
        (request(b"/sync", (b"transfer-encoding", b"chunked")), 400),
        (request(b"/sync", (b"content-length", b"1")), 400),
        (request(b"/sync", (b"sec-websocket-version", b"8")), 426),
        (request(b"/sync", (b"sec-websocket-key", b"another")), 400),
        (request(b"/%ff"), 400),
        (request(b"/a?b=%ff"), 400),
        (request(b"//"), 200),
        (request(b"/a?" + b"b=1&" * 65), 400),
    ],
)
def test_a_request_that_is_none_is_rejected(asked: Request, status: int) -> None:
    upgrade = read_upgrade(asked)
    assert (upgrade.status if isinstance(upgrade, Rejected) else 200) == status


def test_the_example_of_the_standard_is_answered_as_there() -> None:
    answer = switching_answer(read(request()), "chat")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert answer.endswith(b"\r\nsec-websocket-protocol: chat\r\n\r\n")
    assert b"protocol" not in switching_answer(read(request()), None).split(b"\r\n", 1)[1]


def test_a_refusal_says_what_helps() -> None:
    answer = rejecting_answer(Rejected(426, "spoken here: 13"))
    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert b"sec-websocket-version: 13\r\n" in answer
    assert answer.endswith(b"content-length: 16\r\n" + answer.partition(b"16\r\n")[2])
    assert answer.endswith(b"\r\n\r\nspoken here: 13\n")
    assert b"www-authenticate: Bearer\r\n" in rejecting_answer(Rejected(401, "x"))
    assert b"retry-after: 1\r\n" in rejecting_answer(Rejected(503, "x"))


def refused(
    origin: str | None,
    origins: tuple[str, ...],
    host: str = "localhost:8080",
    is_open: bool = False,
) -> bool:
    upgrade = Upgrade("/sync", headers={"host": host}, origin=origin)
    found = refuse_origin(upgrade, origins, is_open=is_open)
    assert found is None or found.status == 403
    return found is not None


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "LocalHost:8080", True),
        ("https://app.example", "app.example", True),
        ("https://app.example", "app.example:443", True),
        ("https://app.example:443", "app.example", True),
        ("http://app.example", "app.example:80", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://app.example", "app.example:80", False),
        ("http://localhost:3000", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("http://localhost:8080.evil.example", "localhost:8080", False),
        ("http://evil.example/localhost:8080", "localhost:8080", False),
        ("http://localhost:8080@evil.example", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("http://[", "localhost:8080", False),
    ],
)
def test_same_is_the_host_that_was_asked(origin: str, host: str, is_same: bool) -> None:
    assert refused(origin, ("same",), host) is not is_same


def test_only_listed_pages_get_in() -> None:
    listed = ("https://app.example",)
    assert not refused("https://app.example", listed)
    assert not refused("https://APP.example:443", listed)
    assert refused("http://app.example", listed)
    assert refused("http://localhost:8080", listed), "same is not listed"
    assert refused("https://app.example", ())
    assert not refused("https://any.example", ("*",))


def test_programs_that_are_no_browsers_send_no_origin() -> None:
    assert not refused(None, ())


@pytest.mark.parametrize("origin", [None, "http://evil.example:8080"])
def test_without_tokens_the_host_must_be_this_machine(origin: str | None) -> None:
    """Or a page whose name its owner points here would be same to itself."""
    assert refused(origin, ("same",), "evil.example:8080", is_open=True)
    for host in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"):
        assert not refused(None, ("same",), host, is_open=True)
        assert not refused(f"http://{host}", ("same",), host, is_open=True)


@pytest.mark.parametrize("text", ["https://app.example", "http://localhost:3000"])
def test_an_origin_is_told_from_an_address(text: str) -> None:
    assert is_origin(text)
    for other in (
        "",
        "same",
        text + "/",
        text + "/page",
        text.partition("://")[2],
        "ftp://x",
        "https://",
    ):
        assert not is_origin(other)
