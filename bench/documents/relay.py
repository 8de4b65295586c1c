"""A bare relay: what comes in goes to everyone else on the same path, and that is all.

    python -m bench.documents.relay PORT

No document, no parsing, no disk. What a WebSocket relay in Python costs at least, measured beside
the servers that do some work.
"""

import asyncio
import sys
from collections import defaultdict

import picows
import uvloop

_rooms: dict[bytes, set[picows.WSTransport]] = defaultdict(set)


class Member(picows.WSListener):
    def __init__(self, room: set[picows.WSTransport]) -> None:
        self._room = room

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._room.add(transport)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._room.discard(transport)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            transport.disconnect()
        if frame.msg_type != picows.WSMsgType.BINARY:
            return
        message = frame.get_payload_as_bytes()
        for other in self._room:
            if other is not transport:
                other.send(picows.WSMsgType.BINARY, message)


async def serve(port: int) -> None:
    server = await picows.ws_create_server(
        lambda request: Member(_rooms[request.path]), "127.0.0.1", port
    )
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
