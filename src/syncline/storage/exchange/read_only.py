"""Files that are only looked at: what a recovery would cut or remove seems gone, and is not."""

from collections.abc import Sequence

from syncline.storage.files import File, Files, Lock, MappedFile


class _ReadOnlyFile:
    def __init__(self, file: File) -> None:
        self._file = file
        self._end: int | None = None

    @property
    def path(self) -> str:
        return self._file.path

    def read(self, offset: int, length: int) -> bytes:
        if self._end is not None:
            length = min(length, max(0, self._end - offset))
        return self._file.read(offset, length)

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        raise ValueError(f"{self.path} is only read")

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)

    def sync(self) -> None:
        return

    def size(self) -> int:
        size = self._file.size()
        return size if self._end is None else min(size, self._end)

    def truncate(self, size: int) -> None:
        self._end = size if self._end is None else min(size, self._end)

    def reserve(self, size: int) -> None:
        raise ValueError(f"{self.path} is only read")

    def forget_cached(self, offset: int, length: int) -> None:
        self._file.forget_cached(offset, length)

    def expect_reads(self, offset: int, length: int) -> None:
        self._file.expect_reads(offset, length)

    def map(self, *, writable: bool) -> MappedFile:
        if writable:
            raise ValueError(f"{self.path} is only read")
        return self._file.map(writable=False)

    def claim(self) -> bool:
        return False

    def close(self) -> None:
        self._file.close()


class ReadOnlyFiles:
    """The files below, as far as looking goes."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return _ReadOnlyFile(self._files.open(path, writable=False))

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list(self, folder: str) -> list[str]:
        return self._files.list(folder)

    def make_folder(self, path: str) -> None:
        raise ValueError(f"{path} is only read")

    def rename(self, source: str, target: str) -> None:
        raise ValueError(f"{source} is only read")

    def link(self, source: str, target: str) -> bool:
        return False

    def is_linked(self, path: str) -> bool:
        return self._files.is_linked(path)

    def remove(self, path: str) -> None:
        return

    def remove_folder(self, path: str) -> None:
        return

    def sync_folder(self, path: str) -> None:
        return

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)

    def free_bytes(self, folder: str) -> int:
        return self._files.free_bytes(folder)
