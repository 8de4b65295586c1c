"""Queues in memory that store nothing: what a RESP front in Python costs before there is a store.

A dictionary of deques and a committer that tells at once. What our server takes beyond this front
is the price of the store; what this front takes, no store behind it can win back.
"""

from collections import deque
from collections.abc import Iterable

from syncline.errors import UnknownQueueError
from syncline.server.waiters import Told
from syncline.storage.base import Entry, StreamKind, StreamState
from syncline.values.ids import StreamId


class BareQueues:
    """As much of `storage.base.Store` as the front calls."""

    def __init__(self) -> None:
        self._waiting: dict[StreamId, deque[Entry]] = {}
        self._next: dict[StreamId, int] = {}

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        self._waiting[stream] = deque()
        self._next[stream] = 1

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        if stream not in self._next:
            raise UnknownQueueError(stream.hex())
        seq = self._next[stream]
        self._next[stream] = seq + 1
        self._waiting[stream].append(Entry(seq, now_ms, payload))
        return seq

    def append_many(self, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
        seqs: list[int] = []
        following, waiting = self._next, self._waiting
        for stream, payload in messages:
            seq = following.get(stream)
            if seq is None:
                break
            following[stream] = seq + 1
            waiting[stream].append(Entry(seq, now_ms, payload))
            seqs.append(seq)
        return seqs

    def read_heads(self, streams: Iterable[StreamId]) -> list[Entry | None]:
        waiting = self._waiting
        return [queue[0] if (queue := waiting[stream]) else None for stream in streams]

    def truncate_before(self, stream: StreamId, seq: int) -> None:
        self.truncate_many([(stream, seq)])

    def truncate_many(self, positions: Iterable[tuple[StreamId, int]]) -> int:
        waiting = self._waiting
        count = 0
        for stream, seq in positions:
            queue = waiting[stream]
            while queue and queue[0].seq < seq:
                queue.popleft()
            count += 1
        return count

    def state(self, stream: StreamId) -> StreamState:
        if stream not in self._next:
            raise UnknownQueueError(stream.hex())
        following = self._next[stream]
        first = following - len(self._waiting[stream])
        return StreamState(StreamKind.QUEUE, first, following, quota=0, is_blocked=False)


class NoCommitter:
    """Nothing is made durable, so nobody waits."""

    def when_durable(self, told: Told) -> None:
        told(None)

    def flush(self) -> None:
        pass
