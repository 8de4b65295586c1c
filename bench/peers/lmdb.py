"""LMDB with its default sync: one write transaction per group of messages."""

from collections.abc import Sequence
from pathlib import Path

import lmdb

from bench.peers.embedded import Positions, found
from bench.support.workload import Message

_MAP_BYTES = 16 * 1024**3


class LmdbStore:
    def __init__(self, folder: Path) -> None:
        self._environment = lmdb.open(str(folder), map_size=_MAP_BYTES)
        self._positions = Positions()

    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        append, pop = self._positions.append, self._positions.pop
        with self._environment.begin(write=True) as transaction:
            for queue, body in messages:
                transaction.put(append(queue), body)
            for queue in acknowledged:
                transaction.delete(pop(queue))

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        head = self._positions.head
        with self._environment.begin() as transaction:
            return [found(transaction.get(head(queue))) for queue in queues]

    def count(self) -> int:
        entry_count: int = self._environment.stat()["entries"]
        return entry_count

    def close(self) -> None:
        self._environment.close()
