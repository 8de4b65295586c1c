"""A disk without room: new messages are refused, everything else goes on, and nothing is lost.

On a small file system in memory, which needs root; and with a limit on the size of a file, which
anybody may set. The limit is no disk for a log: it also forbids to write where blocks are.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from syncline.errors import StorageError, StoreFullError
from syncline.storage.base import Batch, Store, StreamKind, commit, run_jobs
from syncline.storage.files import DiskFiles, Files
from syncline.testing.clock import START_MS
from syncline.values import limits
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from tests.crash.flawed_files import CarelessFiles
from tests.crash.mounting import mounted_memory, why_no_mounting
from tests.crash.subjects import open_subject

DISK_BYTES = 4 << 20
FILLER_BYTES = 2 << 20
# Larger than what a store needs to start, smaller than a segment or a few messages of a journal.
FILE_BYTES_MAX = 20_000
PAYLOAD_BYTES = 3_000
# More than the disk holds.
APPEND_COUNT_MAX = 4 * DISK_BYTES // PAYLOAD_BYTES

KINDS = ["log", "journal"]
SMALL, LIMITED = "small disk", "limit on files"
WAYS = [("log", SMALL), ("journal", SMALL), ("journal", LIMITED)]
STREAMS = [StreamId(bytes([number]) * STREAM_ID_BYTES) for number in range(4)]


@dataclass(slots=True)
class Disk:
    """A folder on a disk that can be filled up and given room again."""

    folder: Path
    fill: Callable[[], None]
    make_room: Callable[[], None]


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    way = _small_disk if request.param == SMALL else _limited_files
    with way(tmp_path) as made:
        yield made


@contextmanager
def _small_disk(parent: Path) -> Iterator[Disk]:
    reason = why_no_mounting()
    if reason is not None:
        pytest.skip(reason)
    with mounted_memory(parent / "disk", DISK_BYTES) as folder:
        yield _disk_at(folder)


def _disk_at(folder: Path) -> Disk:
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    filler.write_bytes(bytes(FILLER_BYTES))
    return Disk(folder, fill, filler.unlink)


@contextmanager
def _limited_files(folder: Path) -> Iterator[Disk]:
    """A file that grows past the limit fails like a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size_max: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, before[1]))

    try:
        yield Disk(folder, lambda: limit(FILE_BYTES_MAX), lambda: limit(before[0]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@dataclass(slots=True)
class Router:
    """An owner of a store, who knows what was acknowledged and what was read."""

    kind: str
    folder: Path
    files: Files = field(default_factory=DiskFiles)
    store: Store = field(init=False)
    kept: dict[StreamId, dict[int, bytes]] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(7))

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = open_subject(self.kind, self.files, str(self.folder / "data"))

    def create_streams(self) -> None:
        for stream in STREAMS:
            self.store.create(stream, StreamKind.QUEUE, 0, START_MS)
            self.kept[stream] = {}
        commit(self.store)

    def append(self, stream: StreamId) -> None:
        """Raises StoreFullError, from wherever the store meets the end of the disk."""
        payload = self.random.randbytes(PAYLOAD_BYTES)
        seq = self.store.append(stream, payload, START_MS)
        commit(self.store)
        self.kept[stream][seq] = payload

    def append_until_full(self) -> StorageError:
        """Append to the streams in turn until there is no room; what the store said then."""
        for number in range(APPEND_COUNT_MAX):
            try:
                run_jobs(self.store)
                self.append(STREAMS[number % len(STREAMS)])
            except StoreFullError as error:
                return error
        raise AssertionError("the disk never filled up")

    def acknowledge(self, stream: StreamId, count: int) -> None:
        seqs = sorted(self.kept[stream])[:count]
        self.store.truncate_before(stream, seqs[-1] + 1)
        commit(self.store)
        for seq in seqs:
            del self.kept[stream][seq]

    def check(self) -> None:
        """What can be read is what was kept, no more and no less."""
        assert self.seen() == self.kept
        assert not self.store.damage()

    def seen(self) -> dict[StreamId, dict[int, bytes]]:
        return {
            stream: {
                entry.seq: entry.payload
                for entry in self.store.read(stream, 1, APPEND_COUNT_MAX, 2 * DISK_BYTES)
            }
            for stream in self.store.streams()
        }


@pytest.mark.parametrize(("kind", "disk"), WAYS, indirect=["disk"])
def test_a_full_disk_refuses_messages_and_nothing_else(disk: Disk, kind: str) -> None:
    router = Router(kind, disk.folder)
    router.create_streams()
    for stream in STREAMS:
        router.append(stream)
        router.append(stream)
    disk.fill()
    # It stays refused, and says so each time.
    for _ in range(3):
        assert "free some space" in str(router.append_until_full())
    router.check()
    # Reading and acknowledging go on.
    for stream in STREAMS:
        router.acknowledge(stream, 1)
    router.check()

    disk.make_room()

    for stream in STREAMS:
        router.append(stream)
    router.check()
    router.store.close()
    router.open()
    router.check()
    router.store.close()


@pytest.mark.parametrize(("kind", "disk"), WAYS, indirect=["disk"])
def test_a_store_on_a_full_disk_opens_or_says_why(disk: Disk, kind: str) -> None:
    router = Router(kind, disk.folder)
    router.create_streams()
    for stream in STREAMS:
        router.append(stream)
    disk.fill()
    router.append_until_full()
    router.store.close()

    with suppress(StoreFullError):
        router.open()
        router.check()
        router.store.close()

    disk.make_room()
    router.open()
    router.check()
    router.append(STREAMS[0])
    router.check()
    router.store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_store_on_a_full_disk_is_refused_and_made_once_there_is_room(
    tmp_path: Path, kind: str
) -> None:
    with _small_disk(tmp_path) as disk:
        disk.fill()
        filler = disk.folder / "filler"
        os.truncate(filler, filler.stat().st_size - 2 * 4096)
        with pytest.raises(StorageError, match="free some space"):
            Router(kind, disk.folder).create_streams()
        disk.make_room()
        router = Router(kind, disk.folder)
        router.create_streams()
        router.append(STREAMS[0])
        router.check()
        router.store.close()


def test_what_is_staged_while_a_refusal_is_on_its_way_is_kept(tmp_path: Path) -> None:
    """The journal refuses the batch after a refused one too; work goes on meanwhile."""
    with _limited_files(tmp_path) as disk:
        router = Router("journal", disk.folder)
        router.create_streams()
        store = router.store
        disk.fill()
        store.append(STREAMS[0], bytes(FILE_BYTES_MAX), START_MS)
        refused = taken(store)
        store.append(STREAMS[1], b"builds on a state that will not be", START_MS)
        with pytest.raises(StoreFullError):
            store.write_batch(refused)
        store.finish_batch(refused)
        follower = taken(store)
        router.kept[STREAMS[2]][store.append(STREAMS[2], b"kept", START_MS)] = b"kept"
        with pytest.raises(StoreFullError):
            store.write_batch(follower)
        store.finish_batch(follower)
        disk.make_room()
        commit(store)
        router.append(STREAMS[1])
        router.check()
        store.close()


@pytest.mark.parametrize(
    ("kind", "disk"), [("log", SMALL), ("journal", LIMITED)], indirect=["disk"]
)
def test_a_store_that_does_not_notice_the_end_of_the_disk_is_caught(
    disk: Disk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is read from memory: what the disk did not take has to be missed at once.
    monkeypatch.setattr(limits, "recent_bytes_max", 0)
    router = Router(kind, disk.folder, CarelessFiles())
    router.create_streams()
    disk.fill()
    is_caught = False
    for number in range(APPEND_COUNT_MAX):
        try:
            router.append(STREAMS[number % len(STREAMS)])
            router.check()
        except AssertionError:
            is_caught = True
            break
    disk.make_room()
    with suppress(StorageError):
        router.store.close()
    assert is_caught


def taken(store: Store) -> Batch:
    batch = store.take_batch()
    assert batch is not None
    return batch
