"""What a program holds of the simulated file system: open files and locks."""

from collections.abc import Callable, Sequence
from typing import Protocol

from syncline.errors import DeviceError
from syncline.storage.files import MappedFile
from syncline.testing.page_cache import FileContents, SimulatedMap

# What a call that fails does before it raises.
Effect = Callable[[], None]


class Device(Protocol):
    """What the handles need of `SimulatedFiles`."""

    open_file_count: int
    ignored_calls: frozenset[str]

    def file_call(self, kind: str, path: str, on_failure: Effect | None = None) -> None: ...

    def write_call(self, path: str, contents: FileContents, offset: int, data: bytes) -> None: ...

    def watch_map(self, contents: FileContents) -> None: ...


class SimulatedFile:
    def __init__(self, files: Device, path: str, contents: FileContents, writable: bool) -> None:
        self.path = path
        self._files = files
        self._contents = contents
        self._writable = writable
        self._is_open = True

    def read(self, offset: int, length: int) -> bytes:
        self._call("read")
        return self._contents.read(offset, length)

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self._require_writable("writing")
        self._files.write_call(self.path, self._contents, offset, b"".join(pieces))

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        # Past the page cache is not yet on the device, which has a cache of its own.
        self.write(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        # What a crash may leave of one call that does both: nothing, a part, or all of the write.
        self.write_blocks(offset, blocks)
        self.sync()

    def sync(self) -> None:
        self._call("sync", self._contents.fail_sync)
        if "sync" not in self._files.ignored_calls:
            self._contents.sync()

    def size(self) -> int:
        self._call("size")
        return self._contents.size

    def truncate(self, size: int) -> None:
        self._require_writable("truncating")
        self._call("truncate")
        self._contents.truncate(size)

    def reserve(self, size: int) -> None:
        self.write(self._contents.size, [bytes(max(0, size - self._contents.size))])

    def forget_cached(self, offset: int, length: int) -> None:
        # Whole files only: the range is advice, and a store asks for what it is about to read.
        self._call("forget_cached")
        self._contents.forget_cached()

    def expect_reads(self, offset: int, length: int) -> None:
        self._call("expect_reads")

    def map(self, *, writable: bool) -> MappedFile:
        self._call("map")
        if not self._contents.size:
            raise ValueError("cannot mmap an empty file")
        if writable:
            self._files.watch_map(self._contents)
        return SimulatedMap(self._contents, writable=writable)

    def claim(self) -> bool:
        self._call("claim")
        return True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._files.open_file_count -= 1

    def _call(self, kind: str, on_failure: Effect | None = None) -> None:
        if not self._is_open:
            raise ValueError(f"{kind} of {self.path}, which is closed")
        self._files.file_call(kind, self.path, on_failure)

    def _require_writable(self, operation: str) -> None:
        if not self._is_open:
            raise ValueError(f"{operation} {self.path}, which is closed")
        if not self._writable:
            raise DeviceError(self.path, operation, "bad file descriptor")


class SimulatedLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)
