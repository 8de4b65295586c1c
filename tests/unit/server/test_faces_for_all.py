"""Faces with ways of their own to know who somebody is, beside those that judge by origin."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from syncline.server.faces import Accepted, Rejected, Upgrade
from syncline.server.gathering import WebSockets
from syncline.server.handshake import Request, read_upgrade
from syncline.server.websocket import WebSocketLimits
from tests.unit.server.socket_rig import HandTransport, RecordingHandler, masked

FOREIGN = {"host": "router.example", "origin": "https://elsewhere.example"}


def face(_upgrade: Upgrade) -> Accepted:
    return Accepted(RecordingHandler())


def asked(path: str, **headers: str) -> Upgrade:
    headers = {"host": "localhost"} | headers
    return Upgrade(path, headers=headers, remote="192.0.2.1", origin=headers.get("origin"))


def status(answer: Accepted | Rejected) -> int:
    return answer.status if isinstance(answer, Rejected) else 101


@pytest.fixture
def sockets() -> WebSockets:
    made = WebSockets(WebSocketLimits(message_bytes_max=10))
    made.register("/sync", face)
    made.register("/", face, is_for_all=True, limits=WebSocketLimits(message_bytes_max=20))
    return made


def test_every_page_may_use_what_is_for_all_under_every_name(sockets: WebSockets) -> None:
    assert status(sockets.decide(asked("/", **FOREIGN))) == 101
    assert status(sockets.decide(asked("/sync", **FOREIGN))) == 403
    assert status(sockets.decide(asked("/sync"))) == 101


def test_the_root_stands_for_itself_alone(sockets: WebSockets) -> None:
    for path in ("/nothing", "/sync/below", "//"):
        assert status(sockets.decide(asked(path))) == 404


def test_where_anybody_may_come_other_faces_are_not_there(sockets: WebSockets) -> None:
    assert status(sockets.decide(asked("/"), only_for_all=True)) == 101
    assert status(sockets.decide(asked("/sync"), only_for_all=True)) == 404
    assert status(sockets.decide(asked("/nothing"), only_for_all=True)) == 404


def test_there_may_be_too_many_of_these_too() -> None:
    limits = WebSocketLimits(connection_count_max=0)
    sockets = WebSockets(limits)
    sockets.register("/", face, is_for_all=True)
    assert status(sockets.decide(asked("/"))) == 503


async def test_each_face_has_its_own_limits(sockets: WebSockets) -> None:
    for path, size_max in (("/sync", 10), ("/", 20)):
        for size in (size_max, size_max + 1):
            upgrade = asked(path)
            accepted = sockets.decide(upgrade)
            assert isinstance(accepted, Accepted)
            transport = HandTransport()
            socket = sockets.open(cast(asyncio.Transport, transport), upgrade, accepted)
            transport.protocol = socket
            socket.start()
            socket.data_received(masked(bytes(size)))
            handler = cast(RecordingHandler, accepted.handler)
            assert len(handler.messages) == (size == size_max)
    sockets.abort_all()


def test_an_upgrade_knows_the_session_of_its_tls() -> None:
    headers = [
        (b"host", b"localhost"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    request = Request("GET", b"/?challenge=x", "1.1", headers, "192.0.2.1")
    for session_id in (None, b"s" * 32):
        upgrade = read_upgrade(replace(request, session_id=session_id))
        assert isinstance(upgrade, Upgrade)
        assert upgrade.session_id == session_id
