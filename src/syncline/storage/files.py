"""The only door to the file system.

Every store reads and writes through `Files`, so that `testing.files` can stand in with a file
system that forgets what was not synced. Here are the Protocols and the real one.

- A write is complete or it raises: short writes are continued, a full disk is StoreFullError.
- Whole blocks may go past the page cache (`write_blocks`): a log is written once and mostly read
  from memory, so a copy of it in the cache costs more than it saves (bench: log). They may be
  durable by the same call (`write_durably`).
- A failed sync is DeviceError and never tried again: the kernel marks the pages clean, and a second
  sync would report success for bytes that are not there.
- A new, renamed or removed name is durable only after `sync_folder` of its parent.
"""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from syncline.errors import DeviceError, StorageError, StoreFullError, StoreLockedError

# Blocks of another size, or a file system that cannot write them directly after all.
_NOT_DIRECTLY: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
# One pwritev takes no more pieces than this (IOV_MAX on Linux).
_PIECES_MAX = 1024
_AHEAD_BYTES = 128 * 1024
# A file system without links, or with enough of them on this file.
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Whoever is killed while it starts a process leaves its lock to that one, until it runs a program
# of its own: a moment, but a busy machine makes moments long.
_ORPHAN_TRY_COUNT = 200
_ORPHAN_PAUSE_SECONDS = 0.01


class MappedFile(Protocol):
    """Bytes of a file, shared with it. The kernel may write a changed page at any moment."""

    def __getitem__(self, part: slice, /) -> bytes: ...

    def __setitem__(self, part: slice, value: bytes, /) -> None: ...

    def __len__(self) -> int: ...

    def view(self) -> memoryview:
        """For NumPy. Release it (and arrays made of it) before `close`."""
        ...

    def close(self) -> None: ...


class File(Protocol):
    @property
    def path(self) -> str: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None: ...

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        """As `write`; past the page cache where the system can do that.

        For whole blocks of memory that begins with a page, at an offset that is a multiple of one.
        """
        ...

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        """As `write_blocks`, and these blocks are on the device when this returns; what was written
        before need not be."""
        ...

    def sync(self) -> None:
        """Contents and size are on the device when this returns (fdatasync)."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def reserve(self, size: int) -> None:
        """Make it as long as this, with zeros; the disk has room for them from now on."""
        ...

    def forget_cached(self, offset: int, length: int) -> None:
        """The next read comes from the device, where the system can do that."""
        ...

    def expect_reads(self, offset: int, length: int) -> None:
        """Advice: these bytes are going to be read, in no order."""
        ...

    def map(self, *, writable: bool) -> MappedFile:
        """Map the whole file as it is now."""
        ...

    def claim(self) -> bool:
        """Keep other processes from claiming this file until it is closed; False if one has it."""
        ...

    def close(self) -> None:
        """Once is enough; more often does nothing."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """Paths are text, `/` between names."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Raises FileNotFoundError unless `create`; `create` of an existing file opens it."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Names, sorted. Raises FileNotFoundError."""
        ...

    def make_folder(self, path: str) -> None:
        """One level; an existing one is fine."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces `target`."""
        ...

    def link(self, source: str, target: str) -> bool:
        """A second name for a file; False where the file system has no such thing.

        Raises DeviceError if there is a file of that name.
        """
        ...

    def is_linked(self, path: str) -> bool:
        """Whether the file has another name besides this one."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Raises StoreLockedError while another process holds it."""
        ...

    def free_bytes(self, folder: str) -> int: ...


def page_memory(byte_count: int) -> mmap.mmap:
    """Zeros in memory that begins with a page, for `write_blocks`; costs what is written to."""
    return mmap.mmap(-1, max(byte_count, mmap.PAGESIZE))


def _as_storage_error(error: OSError, path: str, operation: str) -> StorageError:
    if error.errno in _FULL:
        return StoreFullError(path, os.strerror(error.errno or 0).lower())
    return DeviceError(path, operation, os.strerror(error.errno or 0).lower())


class _DiskMap(mmap.mmap):
    """The map itself, so that reading and writing slices of it costs no call of ours."""

    def view(self) -> memoryview:
        return memoryview(self)


class _DiskFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        # The same file, past the page cache; None before it is asked for, -1 where that is refused.
        self._direct: int | None = None

    def read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _as_storage_error(error, self.path, "reading") from error
        return data

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        try:
            for start in range(0, len(pieces), _PIECES_MAX):
                offset = self._write_whole(offset, pieces[start : start + _PIECES_MAX])
        except OSError as error:
            raise _as_storage_error(error, self.path, "writing") from error

    def _write_whole(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        wanted = sum(map(len, pieces))
        written = os.pwritev(self._descriptor, pieces, offset)
        if written < wanted:
            # A nearly full disk gives a short write first and the error only on the next call.
            rest = memoryview(b"".join(pieces))
            while written < wanted:
                written += os.pwrite(self._descriptor, rest[written:], offset + written)
        return offset + wanted

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        if not self._write_directly(offset, blocks, 0):
            self.write(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        # One call: a thread that waits for the disk waits for the interpreter once, not twice.
        if not self._write_directly(offset, blocks, os.RWF_DSYNC):
            self.write(offset, blocks)
            self.sync()

    def _write_directly(self, offset: int, blocks: Sequence[memoryview], flags: int) -> bool:
        """Past the page cache. False if not all of it was written: whoever writes all of it again
        finds out why."""
        if self._direct is None:
            self._direct = _open_direct(self._descriptor)
        if self._direct < 0:
            return False
        try:
            return os.pwritev(self._direct, blocks, offset, flags) == sum(map(len, blocks))
        except OSError as error:
            if error.errno not in _NOT_DIRECTLY:
                raise _as_storage_error(error, self.path, "writing") from error
        os.close(self._direct)
        self._direct = -1
        return False

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # Never StoreFullError: whatever the reason, the pages may be lost by now.
            reason = os.strerror(error.errno or 0).lower()
            raise DeviceError(self.path, "syncing", reason) from error

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _as_storage_error(error, self.path, "measuring") from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _as_storage_error(error, self.path, "truncating") from error

    def reserve(self, size: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            raise _as_storage_error(error, self.path, "reserving room for") from error

    def forget_cached(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def expect_reads(self, offset: int, length: int) -> None:
        # In parts: of more than it reads ahead by itself the system takes the beginning alone.
        for start in range(offset, offset + length, _AHEAD_BYTES):
            os.posix_fadvise(self._descriptor, start, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def map(self, *, writable: bool) -> MappedFile:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            return _DiskMap(self._descriptor, self.size(), access=access)
        except OSError as error:
            raise _as_storage_error(error, self.path, "mapping") from error

    def claim(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        descriptors = self._direct, self._descriptor
        # Numbers are used again: a second time they may be those of another file.
        self._direct = self._descriptor = -1
        for descriptor in descriptors:
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def _open_direct(descriptor: int) -> int:
    """The same file once more, whatever its name is by now; -1 if it cannot be written directly."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return -1


class _DiskLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def _take_lock(descriptor: int) -> None:
    """Raises OSError if a process that lives has it; one that is gone is given time to let go."""
    for _ in range(_ORPHAN_TRY_COUNT):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_gone(_holder_of(descriptor)):
                raise
            time.sleep(_ORPHAN_PAUSE_SECONDS)
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder_of(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()


def _is_gone(holder: str) -> bool:
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        # Nobody can tell.
        return False
    return False


class DiskFiles:
    """The real file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        try:
            return _DiskFile(path, os.open(path, flags | os.O_CLOEXEC, 0o600))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _as_storage_error(error, path, "opening") from error

    def exists(self, path: str) -> bool:
        try:
            return Path(path).exists()
        except OSError as error:
            raise _as_storage_error(error, path, "looking for") from error

    def is_folder(self, path: str) -> bool:
        try:
            return Path(path).is_dir()
        except OSError as error:
            raise _as_storage_error(error, path, "looking for") from error

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise _as_storage_error(error, folder, "listing") from error

    def make_folder(self, path: str) -> None:
        try:
            Path(path).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _as_storage_error(error, path, "making the folder") from error

    def rename(self, source: str, target: str) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            raise _as_storage_error(error, source, "renaming") from error

    def link(self, source: str, target: str) -> bool:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise _as_storage_error(error, source, "linking") from error
        return True

    def is_linked(self, path: str) -> bool:
        try:
            return os.stat(path).st_nlink > 1
        except OSError as error:
            raise _as_storage_error(error, path, "looking at") from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as error:
            raise _as_storage_error(error, path, "removing") from error

    def remove_folder(self, path: str) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            raise _as_storage_error(error, path, "removing") from error

    def sync_folder(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise DeviceError(path, "syncing", reason) from error

    def lock(self, path: str) -> Lock:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _as_storage_error(error, path, "locking") from error
        try:
            _take_lock(descriptor)
        except OSError as error:
            holder = _holder_of(descriptor)
            os.close(descriptor)
            raise StoreLockedError(str(Path(path).parent), holder) from error
        # A courtesy to whoever meets the lock. A full disk has no room for it, and must open.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        return _DiskLock(descriptor)

    def free_bytes(self, folder: str) -> int:
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _as_storage_error(error, folder, "asking for the room of") from error
        return found.f_bavail * found.f_frsize
