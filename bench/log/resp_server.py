"""A small RESP front over the real store and the real committer, for the clients that Redis has.

It speaks the five commands that the rounds use, with the replies that Redis gives:

    XADD key * f body        append; replies with the id `<seq>-0`; an id must be the next one
    XRANGE key - + COUNT 1   the next message that waits
    XDEL key id              acknowledge: a position, so whatever stands before it goes as well
    XLEN key, PING

A key of 24 bytes is a queue id as it is; others are hashed.

What is appended in one turn of the loop, by whatever connections, is staged at once and waited for
once; its replies come after the sync that covers it, one write for each connection. Only appends
wait: an acknowledgement is answered at once and is on the disk a moment later (`_ACK_SECONDS_MAX`
at most), because one that is lost costs no more than a second delivery.

    python -m bench.log.resp_server --folder DATA --port N [--store log]

`--store none` is the front alone, over queues in memory that store nothing (`bare_queues`).
"""

import argparse
import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol, cast

import hiredis
import uvloop

from bench.log.bare_queues import BareQueues, NoCommitter
from bench.log.ours import now_ms, open_ours
from bench.log.resp_rows import ACKNOWLEDGE, APPEND, READ, Row, RowReader
from syncline.errors import (
    MalformedMessageError,
    StorageError,
    StoreBusyError,
    SynclineError,
    UnknownQueueError,
)
from syncline.server.committer import Committer
from syncline.server.waiters import Told
from syncline.storage.base import Entry, Job, Store, StreamKind, StreamState
from syncline.values.ids import STREAM_ID_BYTES, StreamId

NO_STORE: Final = "none"

_JOB_PAUSE_SECONDS = 0.02
# How long senders wait before upkeep that is behind is asked again.
_BUSY_SECONDS = 0.005
_ACK_SECONDS_MAX = 0.02
_WORD_COUNTS = {APPEND: 5, READ: 6, ACKNOWLEDGE: 3, b"XLEN": 2, b"PING": 1}
_NAMES_MAX = 1_000_000
_IDS_MAX = 65_536
_LENGTHS_MAX = 64


class Names(dict[bytes, StreamId]):
    """Queue ids of keys, which are kept, so that the hash costs each queue once."""

    def __missing__(self, key: bytes) -> StreamId:
        if len(self) >= _NAMES_MAX:
            self.clear()
        is_id = len(key) == STREAM_ID_BYTES
        id_ = key if is_id else blake2b(key, digest_size=STREAM_ID_BYTES).digest()
        self[key] = found = StreamId(id_)
        return found


class IdReplies(dict[int, bytes]):
    """An id in a reply, by sequence, and what stands around it; those of low sequences are kept."""

    def __init__(self, before: bytes = b"", behind: bytes = b"") -> None:
        super().__init__()
        self._before = before
        self._behind = behind

    def __missing__(self, seq: int) -> bytes:
        entry_id = b"%d-0" % seq
        reply = b"%b$%d\r\n%b\r\n%b" % (self._before, len(entry_id), entry_id, self._behind)
        if seq < _IDS_MAX:
            self[seq] = reply
        return reply


class HeadReplies(dict[int, IdReplies]):
    """What stands before the body of a message that is read, by its length and sequence."""

    def __missing__(self, length: int) -> IdReplies:
        if len(self) >= _LENGTHS_MAX:
            self.clear()
        self[length] = found = IdReplies(b"*1\r\n*2\r\n", b"*2\r\n$1\r\nf\r\n$%d\r\n" % length)
        return found


class Queues(Protocol):
    """What the front calls of a store."""

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None: ...

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int: ...

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]: ...

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]: ...

    def truncate_before(self, stream: StreamId, seq: int) -> None: ...

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int: ...

    def state(self, stream: StreamId) -> StreamState: ...


class Commits(Protocol):
    """What the front calls of a committer."""

    def when_durable(self, told: Told) -> None: ...

    def flush(self) -> None: ...


class Turns:
    """What all connections have appended in this turn of the loop."""

    def __init__(self, store: Queues, committer: Commits) -> None:
        self.store = store
        self.names = Names()
        self.messages: list[tuple[StreamId, bytes]] = []
        self._committer = committer
        self._loop = asyncio.get_running_loop()
        # Whose messages they are, in order; and all connections that have a reply to wait for.
        self._shares: list[tuple[Face, int]] = []
        self._faces: dict[Face, None] = {}
        self.reply_to = IdReplies()
        self.head_of = HeadReplies()
        self._will_flush = False

    def add(self, face: "Face", count: int) -> None:
        """The last `count` messages are of this connection."""
        self._shares.append((face, count))

    def wait(self, face: "Face") -> None:
        """At the end of the turn, its replies wait for all that is staged."""
        if not self._faces:
            self._loop.call_soon(self._end)
        self._faces[face] = None

    def stage(self) -> None:
        """Stage what was appended so far; each connection gets its replies.

        If upkeep is behind the rest stays, to be tried again.
        """
        if not self.messages:
            return
        messages, self.messages = self.messages, []
        shares, self._shares = self._shares, []
        by_seq = self.reply_to
        now = now_ms()
        replies = [by_seq[seq] for seq in self.store.append_many(messages, now)]
        while len(replies) < len(messages):
            try:
                replies.append(self._append(*messages[len(replies)], now))
            except StoreBusyError:
                break
            rest = messages[len(replies) :]
            replies += [by_seq[seq] for seq in self.store.append_many(rest, now)]
        start = 0
        left: list[tuple[Face, int]] = []
        for face, count in shares:
            given = replies[start : start + count]
            face.replies += given
            start += count
            if len(given) < count:
                left.append((face, count - len(given)))
        self.messages = messages[len(replies) :] + self.messages
        self._shares = left + self._shares

    def _append(self, stream: StreamId, body: bytes, now: int) -> bytes:
        """One that was refused among many: a queue begins with its first message."""
        try:
            try:
                seq = self.store.append(stream, body, now)
            except UnknownQueueError:
                self.store.create(stream, StreamKind.QUEUE, 0, now)
                seq = self.store.append(stream, body, now)
        except StoreBusyError:
            raise
        except SynclineError as error:
            return error_reply(error)
        return self.reply_to[seq]

    def _end(self) -> None:
        self.stage()
        if self.messages:
            # Upkeep may need what is staged to be durable before it can go on.
            self._committer.flush()
            self._loop.call_later(_BUSY_SECONDS, self._end)
            return
        faces, self._faces = self._faces, {}
        waiting = [(face, face.hold_replies()) for face in faces]

        def told(failure: StorageError | None) -> None:
            for face, replies in waiting:
                face.told(replies, failure)

        self._committer.when_durable(told)

    def acknowledged(self) -> None:
        """Nobody waits for it, but it must not take long either."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_later(_ACK_SECONDS_MAX, self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        self._committer.flush()


class Face(asyncio.Protocol):
    """One connection. Replies leave in the order of the commands."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._store = turns.store
        self._names = turns.names
        self._reader = RowReader()
        self.replies: list[bytes] = []
        self._has_appended = False
        # Writes of replies that wait for the disk.
        self._waiting_count = 0
        self._transport: asyncio.Transport
        # Of rows whose words are all there, and of those that have only what differs.
        self._commands: Mapping[bytes, Callable[[Sequence[list[bytes]]], None]] = {
            APPEND: self._append_words,
            READ: self._read_words,
            ACKNOWLEDGE: self._acknowledge_words,
            b"XLEN": self._count,
            b"PING": self._pong,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            rows = self._reader.feed(data)
        except hiredis.ProtocolError:
            self._transport.abort()
            return
        for row in rows:
            self._handle(row)
        if self._has_appended or self._waiting_count:
            self._turns.wait(self)
        elif self.replies:
            self._transport.write(self._take_replies())

    def _handle(self, row: Row) -> None:
        name, words, is_shaped = row
        if not is_shaped:
            self._handle_words(name, cast(Sequence[list[bytes]], words))
        elif name == APPEND:
            self._append(cast(list[tuple[StreamId, bytes]], words))
        elif name == READ:
            self._read(cast(list[StreamId], words))
        else:
            pairs = cast(list[tuple[StreamId, bytes]], words)
            self._acknowledge([(stream, int(seq) + 1) for stream, seq in pairs])

    def _handle_words(self, name: bytes, row: Sequence[list[bytes]]) -> None:
        handle = self._commands.get(name)
        try:
            if handle is None or set(map(len, row)) != {_WORD_COUNTS[name]}:
                raise MalformedMessageError("unknown command, or with words missing")
            handle(row)
        except (SynclineError, ValueError) as error:
            # Nothing was done yet: whoever is at fault is told, and the others are served.
            if len(row) > 1:
                for words in row:
                    self._handle_words(name, [words])
            else:
                self.replies.append(error_reply(error))

    # Waiting for the disk.

    def hold_replies(self) -> bytes:
        """The replies so far: `told` gives them back."""
        self._has_appended = False
        self._waiting_count += 1
        return self._take_replies()

    def told(self, replies: bytes, failure: StorageError | None) -> None:
        self._waiting_count -= 1
        if failure is None:
            self._transport.write(replies)
        else:
            self._transport.abort()

    def _take_replies(self) -> bytes:
        replies = b"".join(self.replies)
        self.replies.clear()
        return replies

    # Commands. What comes behind an append meets what it left, so that is staged first.

    def _append(self, messages: list[tuple[StreamId, bytes]]) -> None:
        self._has_appended = True
        self._turns.messages += messages
        self._turns.add(self, len(messages))

    def _append_words(self, row: Sequence[list[bytes]]) -> None:
        self._has_appended = True
        names, turns = self._names, self._turns
        for _, key, wanted_id, _, body in row:
            stream = names[key]
            if wanted_id != b"*":
                turns.stage()
                next_seq = self._next_seq(stream)
                if wanted_id != b"%d-0" % next_seq:
                    text = b"-ERR the next id of this queue is %d-0\r\n" % next_seq
                    self.replies.append(text)
                    continue
            self._append([(stream, body)])

    def _next_seq(self, stream: StreamId) -> int:
        try:
            return self._store.state(stream).next
        except UnknownQueueError:
            return 1

    def _read_words(self, row: Sequence[list[bytes]]) -> None:
        if any(words[5] != b"1" for words in row):
            raise MalformedMessageError("one message of a queue at a time: COUNT 1")
        self._read([self._names[words[1]] for words in row])

    def _read(self, streams: list[StreamId]) -> None:
        self._turns.stage()
        replies, head_of = self.replies, self._turns.head_of
        for head in self._store.read_heads(streams):
            if head is None:
                replies.append(b"*0\r\n")
            else:
                payload = head.payload
                # Copied once, when all replies are joined.
                replies += (head_of[len(payload)][head.seq], payload, b"\r\n")

    def _acknowledge_words(self, row: Sequence[list[bytes]]) -> None:
        names = self._names
        self._acknowledge([(names[key], int(id_.partition(b"-")[0]) + 1) for _, key, id_ in row])

    def _acknowledge(self, wanted: list[tuple[StreamId, int]]) -> None:
        self._turns.stage()
        count = self._store.truncate_many(wanted)
        self._turns.acknowledged()
        self.replies += [b":1\r\n"] * count
        for stream, seq in wanted[count:]:
            self.replies.append(self._acknowledge_one(stream, seq))

    def _acknowledge_one(self, stream: StreamId, seq: int) -> bytes:
        try:
            self._store.truncate_before(stream, seq)
        except SynclineError as error:
            return error_reply(error)
        return b":1\r\n"

    def _count(self, row: Sequence[list[bytes]]) -> None:
        self._turns.stage()
        for words in row:
            try:
                unread_count = self._store.state(self._names[words[1]]).unread_count
            except UnknownQueueError:
                unread_count = 0
            self.replies.append(b":%d\r\n" % unread_count)

    def _pong(self, row: Sequence[list[bytes]]) -> None:
        self._turns.stage()
        self.replies += [b"+PONG\r\n"] * len(row)


def error_reply(error: Exception) -> bytes:
    return b"-ERR %s\r\n" % str(error).encode()


async def keep_house(store: Store) -> None:
    """Seal, merge and prepare files, off the loop; until it is cancelled."""
    ended = asyncio.Event()

    async def do(job: Job) -> None:
        store.finish_job(job, await asyncio.to_thread(store.run_job, job))
        ended.set()

    async with asyncio.TaskGroup() as jobs:
        while True:
            ended.clear()
            while (job := store.take_job()) is not None:
                jobs.create_task(do(job))
            with suppress(TimeoutError):
                async with asyncio.timeout(_JOB_PAUSE_SECONDS):
                    await ended.wait()


async def serve(folder: str, port: int, kind: str) -> None:
    if kind == NO_STORE:
        await answer(BareQueues(), NoCommitter(), port)
        return
    store = open_ours(Path(folder), kind=kind)
    committer = Committer.on_thread(store)
    async with asyncio.TaskGroup() as tasks:
        house = tasks.create_task(keep_house(store))
        await answer(store, committer, port)
        house.cancel()
    await committer.close()
    store.close()


async def answer(store: Queues, committer: Commits, port: int) -> None:
    """Until SIGTERM."""
    loop = asyncio.get_running_loop()
    turns = Turns(store, committer)
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    server = await loop.create_server(lambda: Face(turns), "127.0.0.1", port)
    await stopping.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, prog="bench.log.resp_server")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", default="log")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.folder, arguments.port, arguments.store))
