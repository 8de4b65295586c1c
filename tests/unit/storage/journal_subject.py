"""A journal store on simulated files, and a look at the files behind it."""

import random

from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.journal.layout import Layout
from syncline.storage.journal.store import JournalStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values import limits
from syncline.values.ids import StreamId

FOLDER = "/data"
# As small as in the tests of the design's first implementation: quota 3, four messages to a file.
SMALL = StoreOptions(file_message_count_max=4, state_line_count_max=8, open_file_count_max=8)
NOW_MS = 1_700_000_000_000


def stream_id(number: int) -> StreamId:
    return StreamId(random.Random(number).randbytes(24))


class JournalSubject:
    def __init__(
        self, files: SimulatedFiles | None = None, options: StoreOptions = SMALL, seed: int = 1
    ) -> None:
        self.files = files or SimulatedFiles()
        self.options = options
        self.now_ms = NOW_MS
        self._random = random.Random(seed)
        self.store = self.open()

    def open(self) -> JournalStore:
        return JournalStore.open(
            FOLDER,
            self.files,
            self.options,
            now_ms=self.now_ms,
            random_bytes=self._random.randbytes,
        )

    def reopen(self, options: StoreOptions | None = None) -> None:
        """Close in order, then open, perhaps with other options."""
        self.store.close()
        self.options = options or self.options
        self.store = self.open()

    def kill(self) -> None:
        """The process dies; what it wrote stays."""
        self.files = self.killed_files()
        self.store = self.open()

    def killed_files(self) -> SimulatedFiles:
        """The files as another process would find them, were this one to die now."""
        return self.files.kill(self._random)

    def power_cut(self) -> None:
        self.files = self.files.crash(self._random)
        self.store = self.open()

    # Doing.

    def create_queue(self, number: int = 1, quota: int = 3) -> StreamId:
        stream = stream_id(number)
        self.store.create(stream, StreamKind.QUEUE, quota, self.now_ms)
        commit(self.store)
        return stream

    def create_document(self, number: int = 1) -> StreamId:
        stream = stream_id(number)
        self.store.create(stream, StreamKind.DOCUMENT, 0, self.now_ms)
        commit(self.store)
        return stream

    def append(self, stream: StreamId, *payloads: bytes) -> None:
        """Each in a batch of its own."""
        for payload in payloads:
            self.store.append(stream, payload, self.now_ms)
            commit(self.store)

    def acknowledge(self, stream: StreamId, count: int = 1) -> None:
        for _ in range(count):
            self.store.truncate_before(stream, self.store.state(stream).first + 1)
            commit(self.store)

    def commit(self) -> None:
        commit(self.store)

    def run_jobs(self) -> int:
        return run_jobs(self.store)

    # Looking.

    def payloads(self, stream: StreamId) -> list[bytes]:
        found = self.store.read(stream, 0, limits.read_count_max, limits.read_bytes_max)
        return [entry.payload for entry in found]

    def lost(self) -> list[tuple[StreamId | None, int | None, int]]:
        """What damage has cost: stream, first sequence, how many."""
        return [
            (damage.stream, damage.first_lost_seq, damage.lost_count)
            for damage in self.store.damage()
            if damage.lost_count
        ]

    def folder(self, stream: StreamId) -> str:
        layout = Layout(self.options.path_fragment_count, self.options.path_fragment_characters)
        return f"{FOLDER}/messages/{layout.path(stream)}"

    def names(self, stream: StreamId, prefix: str = "") -> list[str]:
        folder = self.folder(stream)
        if not self.files.is_folder(folder):
            return []
        return [name for name in self.files.list(folder) if name.startswith(prefix)]

    def path(self, stream: StreamId, prefix: str) -> str:
        """The one file of a queue whose name starts like this."""
        [name] = self.names(stream, prefix)
        return f"{self.folder(stream)}/{name}"

    def state_line(self, stream: StreamId) -> dict[str, str]:
        line = self.files.read_all(f"{self.folder(stream)}/queue.log").splitlines()[-1]
        return dict(word.split("=", 1) for word in line.decode().split(" "))

    def message_path(self, stream: StreamId, role: str) -> str:
        return f"{self.folder(stream)}/messages.{self.state_line(stream)[role]}.log"

    def replace_file(self, path: str, data: bytes) -> None:
        """As it would be found on the device."""
        file = self.files.open(path, create=True)
        file.truncate(0)
        file.write(0, [data])
        file.sync()
        file.close()
        self.files.sync_folder(path.rpartition("/")[0])

    def remove_file(self, path: str) -> None:
        self.files.remove(path)
        self.files.sync_folder(path.rpartition("/")[0])

    def closed(self) -> None:
        """Close in order, to change files by hand before the next `open_again`."""
        self.store.close()

    def open_again(self) -> None:
        self.store = self.open()
