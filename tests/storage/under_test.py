"""The store that a test works on, of any backend: opened, closed, killed and opened again."""

import random
from pathlib import Path

from syncline.storage.base import Entry, Store, StreamKind, commit, run_jobs
from syncline.storage.memory import MemoryStore
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.process_files import ProcessFiles

# Small, so that files are changed, sealed, merged and compacted within a test.
SMALL = StoreOptions(
    segment_bytes=limits.segment_bytes_min,
    file_message_count_max=8,
    state_line_count_max=4,
    open_file_count_max=8,
    open_queue_count_max=2,
)


def stream_id(number: int) -> StreamId:
    """Ids spread like random ones, the same in each run."""
    return StreamId(random.Random(number).randbytes(24))


class StoreUnderTest:
    """One data folder and the store that is open on it. `kind` is a backend or a class."""

    def __init__(
        self,
        kind: str | type[MemoryStore],
        folder: Path,
        *,
        does_upkeep: bool = False,
        options: StoreOptions = SMALL,
    ) -> None:
        self.kind = kind
        self.folder = str(folder)
        self.does_upkeep = does_upkeep
        self.options = options
        self.files = ProcessFiles()
        self.now_ms = 1_700_000_000_000
        self._random = random.Random(7)
        self.store: Store = self.open()

    def open(self) -> Store:
        """A store on the folder as it is now."""
        chance = self._random.randbytes
        if isinstance(self.kind, str):
            return open_store(
                self.kind,
                self.folder,
                self.files,
                self.options,
                now_ms=self.now_ms,
                random_bytes=chance,
            )
        return self.kind.open(
            self.folder, self.files, self.options, now_ms=self.now_ms, random_bytes=chance
        )

    def reopen(self) -> None:
        """Close in order, then open."""
        self.store.close()
        assert self.files.open_count == 0, "a closed store left files open"
        self.store = self.open()

    def crash(self) -> None:
        """Drop the store as it is and open what it left."""
        self.files.kill()
        self.store = self.open()

    def end(self) -> None:
        self.store.close()
        self.files.kill()

    # What nearly every test does.

    def create_queue(self, number: int = 1, quota: int = 0) -> StreamId:
        stream = stream_id(number)
        self.store.create(stream, StreamKind.QUEUE, quota, self.now_ms)
        return stream

    def create_document(self, number: int = 1) -> StreamId:
        stream = stream_id(number)
        self.store.create(stream, StreamKind.DOCUMENT, 0, self.now_ms)
        return stream

    def append(self, stream: StreamId, *payloads: bytes) -> list[int]:
        return [self.store.append(stream, payload, self.now_ms) for payload in payloads]

    def commit(self) -> None:
        commit(self.store)
        if self.does_upkeep:
            run_jobs(self.store)

    def entries(self, stream: StreamId) -> list[Entry]:
        """All that can be read, page by page."""
        found: list[Entry] = []
        from_seq = 1
        while page := self.store.read(
            stream, from_seq, limits.read_count_max, limits.read_bytes_max
        ):
            found += page
            from_seq = page[-1].seq + 1
        return found

    def payloads(self, stream: StreamId) -> list[bytes]:
        return [entry.payload for entry in self.entries(stream)]
