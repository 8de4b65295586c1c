"""Files on the real disk as one process has them, which can be killed.

`kill` closes what the process had open and gives its locks back, as the system does; whatever was
written stays, synced or not. What a power cut takes away is the matter of the crash suite, so
syncing costs nothing here.
"""

from collections.abc import Sequence

from syncline.storage.files import DiskFiles, File, Files, Lock, MappedFile


class _ProcessFile:
    def __init__(self, file: File, owned: set["_ProcessFile | _ProcessLock"]) -> None:
        self._file = file
        self._owned = owned
        owned.add(self)

    @property
    def path(self) -> str:
        return self._file.path

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self._file.write(offset, pieces)

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self._file.write_blocks(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self._file.write_blocks(offset, blocks)

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def reserve(self, size: int) -> None:
        self._file.reserve(size)

    def forget_cached(self, offset: int, length: int) -> None:
        self._file.forget_cached(offset, length)

    def expect_reads(self, offset: int, length: int) -> None:
        self._file.expect_reads(offset, length)

    def map(self, *, writable: bool) -> MappedFile:
        return self._file.map(writable=writable)

    def claim(self) -> bool:
        return self._file.claim()

    def close(self) -> None:
        # Only once: the number of a closed descriptor may belong to another file by now.
        if self in self._owned:
            self._owned.remove(self)
            self._file.close()


class _ProcessLock:
    def __init__(self, lock: Lock, owned: set["_ProcessFile | _ProcessLock"]) -> None:
        self._lock = lock
        self._owned = owned
        owned.add(self)

    def release(self) -> None:
        if self in self._owned:
            self._owned.remove(self)
            self._lock.release()

    close = release


class ProcessFiles:
    """The real file system, as long as the process lives; the next one may use it after `kill`."""

    def __init__(self) -> None:
        self._files: Files = DiskFiles()
        self._owned: set[_ProcessFile | _ProcessLock] = set()

    @property
    def open_count(self) -> int:
        return len(self._owned)

    def kill(self) -> None:
        for owned in list(self._owned):
            owned.close()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return _ProcessFile(self._files.open(path, create=create, writable=writable), self._owned)

    def lock(self, path: str) -> Lock:
        return _ProcessLock(self._files.lock(path), self._owned)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list(self, folder: str) -> list[str]:
        return self._files.list(folder)

    def make_folder(self, path: str) -> None:
        self._files.make_folder(path)

    def rename(self, source: str, target: str) -> None:
        self._files.rename(source, target)

    def link(self, source: str, target: str) -> bool:
        return self._files.link(source, target)

    def is_linked(self, path: str) -> bool:
        return self._files.is_linked(path)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        self._files.remove_folder(path)

    def sync_folder(self, path: str) -> None:
        pass

    def free_bytes(self, folder: str) -> int:
        return self._files.free_bytes(folder)
