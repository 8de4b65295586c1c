"""The smallest store that keeps its promises, to show that the crash kit tells good from bad.

One file of batches, each with its length and checksum, read from the start when opened. A job
writes it anew beside its place and renames it. The other classes here each break one promise on
purpose.
"""

import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from syncline.storage.base import Batch, Job
from syncline.storage.files import File, Files, Lock
from syncline.storage.memory import MemoryStore, _Disk, _ImageBatch
from syncline.storage.options import StoreOptions

_FRAME = struct.Struct("<II")
_COMPACT_BYTES = 30_000


@dataclass(frozen=True, slots=True)
class _Compaction:
    name: ClassVar[str] = "compact"


class TinyStore(MemoryStore):
    """What is staged and visible is kept as in memory; only batches reach the file."""

    checks_crc: ClassVar[bool] = True

    _files: Files
    _file: File
    _lock: Lock
    _size: int
    _compact_at: int = _COMPACT_BYTES
    _is_compacting: bool = False

    @classmethod
    def open(
        cls,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> Self:
        files.make_folder(folder)
        files.sync_folder(folder.rpartition("/")[0])
        lock = files.lock(f"{folder}/LOCK")
        file = files.open(f"{folder}/log", create=True)
        disk = _Disk()
        size = 0
        while (frame := cls._read_frame(file, size)) is not None:
            size += _FRAME.size + len(frame)
            _put_images(disk, frame)
        # What is served must not be taken back: the cut, the content and the name become durable.
        file.truncate(size)
        file.sync()
        files.sync_folder(folder)
        store = cls(folder, disk)
        store._files, store._file, store._lock, store._size = files, file, lock, size
        return store

    @classmethod
    def _read_frame(cls, file: File, offset: int) -> bytes | None:
        head = file.read(offset, _FRAME.size)
        if len(head) < _FRAME.size:
            return None
        length, crc = _FRAME.unpack(head)
        frame = file.read(offset + _FRAME.size, length)
        if not length or len(frame) < length or (cls.checks_crc and zlib.crc32(frame) != crc):
            return None
        return frame

    def write_batch(self, batch: Batch) -> None:
        assert isinstance(batch, _ImageBatch)
        self._append(_frame(dict(batch.images)))
        self._file.sync()
        super().write_batch(batch)

    def _append(self, frame: bytes) -> None:
        self._file.write(self._size, [frame])
        self._size += len(frame)

    def take_job(self) -> Job | None:
        if self._is_compacting or self._size <= self._compact_at:
            return None
        self._is_compacting = True
        return _Compaction()

    def run_job(self, job: Job) -> object:
        return None

    def finish_job(self, job: Job, result: object) -> None:
        self._is_compacting = False
        path = f"{self._folder}/log"
        frame = _frame(dict(self._disk.streams))
        file = self._files.open(f"{path}.new", create=True)
        file.truncate(0)
        file.write(0, [frame])
        self._sync_new(file)
        self._files.rename(f"{path}.new", path)
        self._files.sync_folder(self._folder)
        self._file.close()
        self._file, self._size = file, len(frame)
        self._compact_at = self._size + _COMPACT_BYTES

    def _sync_new(self, file: File) -> None:
        file.sync()

    def close(self) -> None:
        super().close()
        self._file.close()
        self._lock.release()


class EarlyStore(TinyStore):
    """Acknowledges a batch and writes it with the next one."""

    _held: bytes = b""

    def write_batch(self, batch: Batch) -> None:
        assert isinstance(batch, _ImageBatch)
        if self._held:
            self._append(self._held)
        self._held = _frame(dict(batch.images))
        self._file.sync()
        MemoryStore.write_batch(self, batch)


class BlindStore(TinyStore):
    """Trusts what it reads."""

    checks_crc = False


class HastyStore(TinyStore):
    """Renames a file that was not synced."""

    def _sync_new(self, file: File) -> None:
        pass


class TrustingStore(TinyStore):
    """Serves what it found in the page cache without making it durable."""

    @classmethod
    def open(
        cls,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> Self:
        if not files.exists(f"{folder}/log"):
            return super().open(folder, files, options, now_ms=now_ms, random_bytes=random_bytes)
        lock = files.lock(f"{folder}/LOCK")
        file = files.open(f"{folder}/log")
        disk = _Disk()
        size = 0
        while (frame := cls._read_frame(file, size)) is not None:
            size += _FRAME.size + len(frame)
            _put_images(disk, frame)
        store = cls(folder, disk)
        store._files, store._file, store._lock, store._size = files, file, lock, size
        return store


def _frame(images: object) -> bytes:
    data = pickle.dumps(images)
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def _put_images(disk: _Disk, frame: bytes) -> None:
    for stream, image in pickle.loads(frame).items():
        if image is None:
            disk.streams.pop(stream, None)
        else:
            disk.streams[stream] = image
