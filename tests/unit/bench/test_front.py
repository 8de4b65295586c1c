"""The RESP front of the bench, over a store that makes senders wait."""

import asyncio
from collections.abc import Iterable
from typing import cast

from bench.log.bare_queues import BareQueues
from bench.log.resp_server import Face, Turns
from syncline.errors import StoreBusyError
from syncline.server.waiters import Told
from syncline.storage.base import StreamKind
from syncline.values.ids import StreamId

QUEUE = StreamId(b"q" * 24)


class BusyQueues(BareQueues):
    """Takes one message, and no other before that is written: as a log whose upkeep is behind."""

    is_written = False

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        has_one = self.state(QUEUE).next > 1
        taken = list(messages) if self.is_written else list(messages)[: 0 if has_one else 1]
        return super().append_many(taken, now_ms)

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        if not self.is_written:
            raise StoreBusyError(1, 1)
        return super().append(stream, payload, now_ms)


class Commits:
    """Writes nothing before it is told to."""

    def __init__(self, queues: BusyQueues) -> None:
        self._queues = queues

    def flush(self) -> None:
        self._queues.is_written = True

    def when_durable(self, told: Told) -> None:
        self.flush()
        told(None)


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


async def test_what_is_staged_is_written_while_the_rest_waits_for_upkeep() -> None:
    """Upkeep of a log waits for streams that are at rest: nobody must leave one half written."""
    queues = BusyQueues()
    queues.create(QUEUE, StreamKind.QUEUE, 0, 1)
    face = Face(Turns(queues, Commits(queues)))
    transport = FakeTransport()
    face.connection_made(cast(asyncio.Transport, transport))
    command = b"*5\r\n$4\r\nXADD\r\n$24\r\n%b\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nx\r\n" % QUEUE
    face.data_received(command * 3)
    async with asyncio.timeout(5):
        while not transport.written:  # noqa: ASYNC110 a transport tells nobody
            await asyncio.sleep(0.001)
    assert transport.written == b"$3\r\n1-0\r\n$3\r\n2-0\r\n$3\r\n3-0\r\n"
