"""All WebSockets together: faces by path, counts per address, one flush a turn, one end."""

import asyncio
from typing import cast

import pytest

from syncline.server.faces import Accepted, Rejected, Upgrade
from syncline.server.frames import close_frame
from syncline.server.gathering import WebSockets, address_key
from syncline.server.websocket import WebSocket, WebSocketLimits
from tests.unit.server.socket_rig import HandTransport, RecordingHandler, masked


def asked(path: str = "/sync", remote: str = "192.0.2.1") -> Upgrade:
    return Upgrade(path, headers={"host": "localhost"}, remote=remote)


def face(_upgrade: Upgrade) -> Accepted:
    return Accepted(RecordingHandler())


def opened(sockets: WebSockets, remote: str = "192.0.2.1") -> tuple[WebSocket, HandTransport]:
    upgrade = asked(remote=remote)
    accepted = sockets.decide(upgrade)
    assert isinstance(accepted, Accepted), accepted
    transport = HandTransport()
    transport.protocol = sockets.open(cast(asyncio.Transport, transport), upgrade, accepted)
    transport.protocol.start()
    return transport.protocol, transport


def status(answer: Accepted | Rejected) -> int:
    return answer.status if isinstance(answer, Rejected) else 101


def test_a_face_is_found_by_its_path() -> None:
    sockets = WebSockets(WebSocketLimits())
    assert status(sockets.decide(asked("/sync"))) == 503, "the router is starting"
    seen: list[tuple[str, str]] = []

    def named(name: str) -> None:
        def note(upgrade: Upgrade) -> Accepted:
            seen.append((name, upgrade.path))
            return face(upgrade)

        sockets.register(name, note)

    named("/sync")
    named("/yjs/")
    named("/yjs/inner/")
    for path in ("/sync", "/yjs/", "/yjs/a/b", "/yjs/inner/a", "/sync/", "/yjs", "/", "/synchro"):
        sockets.decide(asked(path))
    assert seen == [
        ("/sync", "/sync"),
        ("/yjs/", "/yjs/"),
        ("/yjs/", "/yjs/a/b"),
        ("/yjs/inner/", "/yjs/inner/a"),
    ]
    assert status(sockets.decide(asked("/other"))) == 404


async def test_connections_are_counted_until_they_are_gone() -> None:
    sockets = WebSockets(WebSocketLimits(connection_count_max=3, connections_per_address_max=2))
    sockets.register("/sync", face)
    held = [opened(sockets) for _ in range(2)]
    assert status(sockets.decide(asked())) == 429
    held.append(opened(sockets, "192.0.2.2"))
    assert status(sockets.decide(asked(remote="192.0.2.3"))) == 503
    held[0][0].close(1000)
    assert status(sockets.decide(asked())) == 503, "it has not ended yet"
    held[0][1].close()
    assert (sockets.connection_count, status(sockets.decide(asked()))) == (2, 101)
    sockets.abort_all()
    assert sockets.connection_count == 0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_an_address_is_what_somebody_has_one_of(one: str, other: str, is_same: bool) -> None:
    assert (address_key(one) == address_key(other)) is is_same


async def test_each_connection_gets_one_write_a_turn() -> None:
    sockets = WebSockets(WebSocketLimits())
    sockets.register("/sync", face)
    held = [opened(sockets) for _ in range(3)]
    for _ in range(4):
        for socket, _transport in held:
            socket.send_framed(b"\x82\x01x")
    assert [transport.writes for _, transport in held] == [[], [], []]
    await asyncio.sleep(0)
    assert [transport.writes for _, transport in held] == [[b"\x82\x01x" * 4]] * 3
    sockets.abort_all()


async def test_going_away_tells_all_and_lets_nobody_in() -> None:
    sockets = WebSockets(WebSocketLimits())
    sockets.register("/sync", face)
    held = [opened(sockets) for _ in range(3)]
    leaving = asyncio.create_task(sockets.close_all(60))
    await asyncio.sleep(0)
    expected = close_frame(1001, "going_away: the router stops")
    assert [transport.writes for _, transport in held] == [[expected]] * 3
    assert status(sockets.decide(asked())) == 503
    assert not leaving.done()
    for _, transport in held:
        transport.close()
    await leaving


async def test_who_does_not_go_is_cut_off() -> None:
    sockets = WebSockets(WebSocketLimits())
    sockets.register("/sync", face)
    _, transport = opened(sockets)
    await sockets.close_all(0.01)
    assert transport.was_aborted
    await sockets.close_all(60)


async def test_silence_is_watched_only_while_somebody_is_there() -> None:
    sockets = WebSockets(WebSocketLimits(heartbeat_seconds=0.02))
    ended = asyncio.Event()
    handler = RecordingHandler()
    handler.on_end = ended.set
    sockets.register("/sync", lambda _upgrade: Accepted(handler))
    assert sockets._heartbeat is None
    _, transport = opened(sockets)
    assert sockets._heartbeat is not None
    async with asyncio.timeout(10):
        await ended.wait()
    assert transport.writes[0] == b"\x89\x00"
    assert b"slow: nothing was heard" in transport.writes[-1]
    transport.close()
    assert sockets._heartbeat is None


async def test_who_shows_life_is_looked_at_once_an_interval() -> None:
    sockets = WebSockets(WebSocketLimits(heartbeat_seconds=8.0))
    sockets.register("/sync", face)
    loop = asyncio.get_running_loop()
    socket, _ = opened(sockets)
    looks: list[float] = []
    seconds = 0.0
    beat = socket.beat

    def counted(now: float) -> float:
        looks.append(now)
        return beat(now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(socket), "beat", lambda _self, now: counted(now))
        start = loop.time()
        patched.setattr(loop, "time", lambda: start + seconds)
        for passed in range(81):
            seconds = float(passed)
            socket.data_received(masked(b"x"))
            sockets._beat()
    assert 8 <= len(looks) <= 11
    socket.connection_lost(None)
    assert not any(sockets._slots.values()), "who left is not kept"


async def test_what_waits_for_all_readers_together_is_bounded() -> None:
    sockets = WebSockets(WebSocketLimits(all_waiting_bytes_max=1_000))
    sockets.register("/sync", face)
    (first, first_transport), (second, second_transport) = opened(sockets), opened(sockets)
    first_transport.room = second_transport.room = 0
    assert first.offer_framed(b"x" * 600, at_once=True)
    assert second.offer_framed(b"x" * 500, at_once=True)
    assert (first_transport.was_aborted, second_transport.was_aborted) == (True, False)
    assert sockets.connection_count == 1
    assert second in sockets._waiting._seen
    second.abort()
    assert second not in sockets._waiting._seen, "nobody is kept who has gone"
