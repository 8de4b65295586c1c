"""The disk behind a door that keeps bad news to itself. Made to be caught."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.files import DiskFiles, File


class _FlawedFile:
    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _DeafFile(_FlawedFile):
    def sync(self) -> None:
        with suppress(DeviceError):
            self._file.sync()

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self._file.write_blocks(offset, blocks)
        self.sync()


class _CarelessFile(_FlawedFile):
    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        with suppress(StoreFullError):
            self._file.write(offset, pieces)

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)
        self._file.sync()

    def reserve(self, size: int) -> None:
        with suppress(StoreFullError):
            self._file.reserve(size)


class DeafFiles(DiskFiles):
    """A sync that fails is taken for one that did not."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return cast(File, _DeafFile(super().open(path, create=create, writable=writable)))

    def sync_folder(self, path: str) -> None:
        with suppress(DeviceError):
            super().sync_folder(path)


class CarelessFiles(DiskFiles):
    """A write that found no room is taken for one that did."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return cast(File, _CarelessFile(super().open(path, create=create, writable=writable)))
