"""RocksDB through rocksdict: one synced WriteBatch per group of messages."""

from collections.abc import Sequence
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from bench.peers.embedded import Positions, found
from bench.support.workload import Message


class RocksDbStore:
    def __init__(self, folder: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = Rdict(str(folder), options)
        self._synced = WriteOptions()
        self._synced.sync = True
        self._positions = Positions()

    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        batch = WriteBatch(raw_mode=True)
        append, pop = self._positions.append, self._positions.pop
        for queue, body in messages:
            batch.put(append(queue), body)
        for queue in acknowledged:
            batch.delete(pop(queue))
        self._database.write(batch, self._synced)

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        head = self._positions.head
        return [found(self._database.get(head(queue))) for queue in queues]

    def count(self) -> int:
        return len(list(self._database.keys()))

    def close(self) -> None:
        self._database.close()
