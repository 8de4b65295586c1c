"""A small server of WebSockets in a process of its own: what a face may do, and nothing else.

    /echo       sends back what comes
    /below/…    sends its path, then echoes
    /flood      sends whatever fits from the first message on, as long as the peer is writable
    /shared     sends what comes to everybody else
    /stats      plain HTTP: connections that handlers know of, bytes that wait for readers, how
                connections ended, and sockets that are not gone yet

Its first line of output is its port. SIGTERM stops it in order.
"""

import asyncio
import json
import signal
import sys
from typing import Any

import uvloop
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from syncline.server.faces import Accepted, Peer, Rejected, Upgrade
from syncline.server.frames import frame
from syncline.server.gathering import WebSockets
from syncline.server.listener import listen, make_server
from syncline.server.websocket import WebSocketLimits

LARGE = bytes(64 * 1024)

peers: set[Peer] = set()
ends: list[tuple[int, str]] = []


class Echo:
    def __init__(self, greeting: bytes = b"") -> None:
        self.peer: Peer
        self.greeting = greeting

    def opened(self, peer: Peer) -> None:
        self.peer = peer
        peers.add(peer)
        if self.greeting:
            peer.send(self.greeting, is_text=True)

    def received(self, data: bytes, is_text: bool) -> None:
        if data == b"fail":
            raise RuntimeError("a mistake of the handler")
        self.peer.send(data, is_text=is_text)

    def drained(self) -> None:
        pass

    def closed(self, code: int, reason: str) -> None:
        peers.discard(self.peer)
        ends.append((code, reason))


class Flood(Echo):
    def received(self, data: bytes, is_text: bool) -> None:
        self.drained()

    def drained(self) -> None:
        while self.peer.is_writable:
            self.peer.send(LARGE, is_text=False)


class Shared(Echo):
    def received(self, data: bytes, is_text: bool) -> None:
        framed = frame(data, is_text=is_text)
        for peer in peers:
            if peer is not self.peer:
                peer.send_framed(framed)


def echo(upgrade: Upgrade) -> Accepted | Rejected:
    if upgrade.query.get("refuse"):
        return Rejected(401, "no token")
    spoken = "echo.v1" if "echo.v1" in upgrade.subprotocols else None
    return Accepted(Echo(), spoken)


def stats_app(sockets: WebSockets) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        stats = {
            "connections": len(peers),
            "waiting": [peer.waiting_bytes for peer in peers],
            "ends": ends,
            "sockets": sockets.connection_count,
        }
        await JSONResponse(stats)(scope, receive, send)

    return app


async def run(limits: dict[str, Any]) -> None:
    sockets = WebSockets(WebSocketLimits(**limits))
    sockets.register("/echo", echo)
    sockets.register("/flood", lambda _upgrade: Accepted(Flood()))
    sockets.register("/shared", lambda _upgrade: Accepted(Shared()))
    sockets.register("/below/", lambda upgrade: Accepted(Echo(upgrade.path.encode())))
    server = make_server(
        stats_app(sockets),
        connection_count_max=100,
        request_seconds_max=int(limits.get("heartbeat_seconds", 20)),
        stop_seconds_max=5,
        web_sockets=sockets,
    )
    listener = listen("127.0.0.1", 0)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await stopped.wait()
    server.should_exit = True
    await sockets.close_all(5)
    await serving


def main() -> None:
    kind, limits = sys.argv[1], json.loads(sys.argv[2])
    factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(limits))


if __name__ == "__main__":
    main()
