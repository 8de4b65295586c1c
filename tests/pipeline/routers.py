"""Data folders as a router leaves them, written by the store itself, in small segments."""

import random
from pathlib import Path

from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.files import DiskFiles
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId

DAY_MS = 86_400_000
START_MS = 19_700 * DAY_MS


def stream_id(number: int) -> StreamId:
    return StreamId(random.Random(number).randbytes(24))


class Router:
    """An open store, worked on as a router would, in segments of 64 KiB."""

    def __init__(self, folder: Path, seed: int = 1, archive_bytes_max: int = 0) -> None:
        self.folder = str(folder)
        self.files = DiskFiles()
        self._random = random.Random(seed)
        self.now_ms = START_MS
        self._archive_bytes_max = archive_bytes_max
        self.store = self._open()

    def _open(self) -> LogStore:
        return LogStore.open(
            self.folder,
            self.files,
            StoreOptions(
                segment_bytes=limits.segment_bytes_min,
                archive_bytes_max=self._archive_bytes_max,
            ),
            now_ms=self.now_ms,
            random_bytes=self._random.randbytes,
        )

    @property
    def store_id(self) -> bytes:
        from syncline.storage.folder import read_format

        found = read_format(self.folder, self.files)
        assert found is not None
        return found.store_id

    def create(self, *numbers: int, kind: StreamKind = StreamKind.QUEUE) -> None:
        for number in numbers:
            self.store.create(stream_id(number), kind, 0, self.now_ms)
        commit(self.store)

    def append(self, number: int, count: int, size: int = 100) -> None:
        """Messages of a stream, some in a batch, a second apart."""
        for index in range(count):
            self.now_ms += 1_000
            self.store.append(stream_id(number), self._random.randbytes(size), self.now_ms)
            if index % 5 == 4:
                commit(self.store)
        commit(self.store)

    def acknowledge(self, number: int, seq: int) -> None:
        """Everything up to and including `seq`."""
        self.store.truncate_before(stream_id(number), seq + 1)
        commit(self.store)

    def seal(self) -> None:
        """What is due: segments that are full go to runs and are used again."""
        run_jobs(self.store)

    def stop(self) -> None:
        self.store.close()

    def start(self) -> None:
        """Once more, after `stop`."""
        self.store = self._open()

    def restart(self) -> None:
        self.stop()
        self.start()


def busy_router(folder: Path, seed: int = 1) -> Router:
    """Every kind of record, over several segments."""
    router = Router(folder, seed)
    router.create(1, 2, 3)
    router.create(9, kind=StreamKind.DOCUMENT)
    for turn in range(6):
        for number in (1, 2, 3, 9):
            router.append(number, 20, 150)
        router.acknowledge(1, 10 * turn + 5)
        router.store.put_snapshot(stream_id(9), 20 * turn + 20, b"state %d" % turn, router.now_ms)
        router.store.move_cursor(stream_id(9), b"reader", 20 * turn + 1)
        commit(router.store)
        router.now_ms += DAY_MS // 2
    router.store.drop_cursor(stream_id(9), b"reader")
    router.store.delete(stream_id(3))
    commit(router.store)
    return router
