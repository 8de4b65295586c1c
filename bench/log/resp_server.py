"""A small RESP front over the real store and the real committer, for the clients that Redis has.

It speaks the five commands that the rounds use, with the replies that Redis gives:

    XADD key * f body        append; replies with the id `<seq>-0`; an id must be the next one
    XRANGE key - + COUNT n   the next messages that wait
    XDEL key id              acknowledge: a position, so whatever stands before it goes as well
    XLEN key, PING

Each reply comes after the sync that covers what it speaks of, and what one connection is told in
one turn of the loop is one write.

    python -m bench.log.resp_server --folder DATA --port N [--store log]
"""

import argparse
import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast

import hiredis
import uvloop

from bench.log.ours import open_ours
from syncline.errors import (
    MalformedMessageError,
    StorageError,
    SynclineError,
    UnknownQueueError,
)
from syncline.server.committer import Committer
from syncline.storage.base import Store, StreamKind
from syncline.values import limits
from syncline.values.ids import STREAM_ID_BYTES, StreamId

_JOB_PAUSE_SECONDS = 0.02
_NAMES_MAX = 1_000_000


@dataclass(slots=True)
class Waiting:
    replies: bytes
    is_durable: bool = False


class Names(dict[bytes, StreamId]):
    """Queue ids of keys. Real ids are random; redis-benchmark can only count, so keys are hashed.

    They are kept, so that the hash costs each queue once; a peer that sends its ids needs neither.
    """

    def __missing__(self, key: bytes) -> StreamId:
        if len(self) >= _NAMES_MAX:
            self.clear()
        self[key] = found = StreamId(blake2b(key, digest_size=STREAM_ID_BYTES).digest())
        return found


class Face(asyncio.Protocol):
    """One connection. Replies leave in the order of the commands."""

    def __init__(self, store: Store, committer: Committer, names: Names) -> None:
        self._store = store
        self._committer = committer
        self._names = names
        self._reader = hiredis.Reader()
        self._replies: list[bytes] = []
        # Replies that wait for the disk, one for each time that the committer was asked. It keeps
        # the order among appends and among acknowledgements, not between the two.
        self._waiting: deque[Waiting] = deque()
        self._has_appended = False
        self._has_acknowledged = False
        self._now_ms = 0
        self._transport: asyncio.Transport
        self._commands: dict[bytes, Callable[[list[bytes]], None]] = {
            b"XADD": self._append,
            b"XRANGE": self._read,
            b"XDEL": self._acknowledge,
            b"XLEN": self._length,
            b"PING": lambda words: self._replies.append(b"+PONG\r\n"),
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._now_ms = time.time_ns() // 1_000_000
        self._reader.feed(data)
        gets, commands = self._reader.gets, self._commands
        try:
            while (words := gets()) is not False:
                handle = commands.get(words[0])
                if handle is None:
                    self._replies.append(b"-ERR unknown command\r\n")
                    continue
                try:
                    handle(words)
                except (SynclineError, ValueError) as error:
                    self._replies.append(b"-ERR %s\r\n" % str(error).encode())
        except hiredis.ProtocolError:
            self._transport.abort()
            return
        self._reply()

    def _reply(self) -> None:
        """At once if nothing has to wait, else behind what waits already."""
        if not self._replies:
            return
        replies = b"".join(self._replies)
        self._replies.clear()
        if self._has_appended or self._has_acknowledged or self._waiting:
            waiting = Waiting(replies)
            self._waiting.append(waiting)
            self._committer.when_durable(
                lambda failure: self._told(waiting, failure),
                acknowledgements=self._has_acknowledged,
            )
            self._has_appended = self._has_acknowledged = False
        else:
            self._transport.write(replies)

    def _told(self, waiting: Waiting, failure: StorageError | None) -> None:
        if failure is not None:
            self._transport.abort()
            return
        waiting.is_durable = True
        while self._waiting and self._waiting[0].is_durable:
            self._transport.write(self._waiting.popleft().replies)

    # Commands.

    def _append(self, words: list[bytes]) -> None:
        _, key, wanted_id, _, body = words
        stream = self._names[key]
        if wanted_id != b"*":
            self._check_next(stream, wanted_id)
        try:
            seq = self._store.append(stream, body, self._now_ms)
        except UnknownQueueError:
            self._store.create(stream, StreamKind.QUEUE, 0, self._now_ms)
            seq = self._store.append(stream, body, self._now_ms)
        self._has_appended = True
        entry_id = b"%d-0" % seq
        self._replies.append(b"$%d\r\n%b\r\n" % (len(entry_id), entry_id))

    def _check_next(self, stream: StreamId, wanted_id: bytes) -> None:
        try:
            next_seq = self._store.state(stream).next
        except UnknownQueueError:
            next_seq = 1
        if int(wanted_id.partition(b"-")[0]) != next_seq:
            raise MalformedMessageError(f"the next id of this queue is {next_seq}-0")

    def _read(self, words: list[bytes]) -> None:
        _, key, _, _, _, count = words
        try:
            entries = self._store.read(self._names[key], 0, int(count), limits.read_bytes_max)
        except UnknownQueueError:
            entries = []
        replies = self._replies
        replies.append(b"*%d\r\n" % len(entries))
        for entry in entries:
            entry_id, payload = b"%d-0" % entry.seq, entry.payload
            replies.append(
                b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nf\r\n$%d\r\n"
                % (len(entry_id), entry_id, len(payload))
            )
            # Not copied into the text before it: that is done once, when all replies are joined.
            replies.append(payload)
            replies.append(b"\r\n")

    def _acknowledge(self, words: list[bytes]) -> None:
        _, key, entry_id = words
        self._store.truncate_before(self._names[key], int(entry_id.partition(b"-")[0]) + 1)
        self._has_acknowledged = True
        self._replies.append(b":1\r\n")

    def _length(self, words: list[bytes]) -> None:
        try:
            unread_count = self._store.state(self._names[words[1]]).unread_count
        except UnknownQueueError:
            unread_count = 0
        self._replies.append(b":%d\r\n" % unread_count)


async def keep_house(store: Store) -> None:
    """Seal, merge and prepare files, off the loop."""
    while True:
        job = store.take_job()
        if job is None:
            await asyncio.sleep(_JOB_PAUSE_SECONDS)
        else:
            store.finish_job(job, await asyncio.to_thread(store.run_job, job))


async def serve(folder: str, port: int, kind: str) -> None:
    store = open_ours(Path(folder), kind=kind)
    committer = Committer.on_thread(store)
    loop = asyncio.get_running_loop()
    names = Names()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    server = await loop.create_server(lambda: Face(store, committer, names), "127.0.0.1", port)
    async with asyncio.TaskGroup() as tasks:
        house = tasks.create_task(keep_house(store))
        await stopping.wait()
        house.cancel()
    server.close()
    await committer.close()
    store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, prog="bench.log.resp_server")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", default="log")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.folder, arguments.port, arguments.store))
