"""The data folder: whose it is, which format it has, and that one process has it.

    <folder>/LOCK      held for the life of the process that works here
    <folder>/FORMAT    one line: `syncline <kind> <format version> <store id as hex>`
    <folder>/FORMAT.unfinished    in its place while the folder is filled (`storage.unfinished`)

- FORMAT appears whole or not at all: written beside its place, synced, renamed, the folder synced.
- A folder that something else wrote is left as it was found, without so much as a lock file.
- Whoever sees a store's FORMAT after `claim_folder` holds the lock until it releases it.
"""

import errno
import posixpath
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from syncline.errors import (
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    StoreLockedError,
)
from syncline.storage.files import File, Files, Lock

LOCK_NAME = "LOCK"
FORMAT_NAME = "FORMAT"
UNFINISHED_NAME = "FORMAT.unfinished"
STORE_ID_BYTES = 16

_FORMAT_DRAFT_NAME = "FORMAT.new"
# Made for the router that will serve from here, before it does (`syncline certificate make`).
CERTIFICATES_NAME = "certificates"
# What a start that was cut short may leave behind: the folder is still as good as empty.
_LEFTOVER_NAMES = {LOCK_NAME, _FORMAT_DRAFT_NAME, CERTIFICATES_NAME}
_FORMAT_BYTES_MAX = 256
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """What the FORMAT line says."""

    kind: str
    version: int
    store_id: bytes

    def line(self) -> bytes:
        return f"syncline {self.kind} {self.version} {self.store_id.hex()}\n".encode()


def claim_folder(
    folder: str, files: Files, kind: str, version: int, random_bytes: Callable[[int], bytes]
) -> tuple[bytes, Lock]:
    """Make `folder` a store of `kind`, or find that it is one; return its id and the lock on it.

    Raises ForeignFolderError for a folder of another kind or maker, NewerFormatError for one of a
    later version, CorruptionError for an unreadable FORMAT, StoreLockedError while another process
    has it, StorageError where it cannot be made or written. Then nothing is locked.
    """
    with _explained(folder):
        _make(folder, files)
        # Looking first keeps a lock file out of folders that are not ours.
        _check(folder, read_format(folder, files), kind, version)
        lock = files.lock(posixpath.join(folder, LOCK_NAME))
        try:
            # Looking again: another process may have made the store before the lock was ours.
            found = read_format(folder, files)
            _check(folder, found, kind, version)
            if found is None:
                found = FolderFormat(kind, version, random_bytes(STORE_ID_BYTES))
                _write_format(folder, files, found)
            else:
                # Whoever wrote it may have been killed before its name was durable.
                files.sync_folder(folder)
        except BaseException:
            lock.release()
            raise
    return found.store_id, lock


def lock_to_read(files: Files, folder: str) -> Lock:
    """The lock on a folder that stays as it is, also where this user may only read it.

    Raises StoreLockedError, and StorageError where nobody can tell whether it is held.
    """
    path = posixpath.join(folder, LOCK_NAME)
    try:
        return files.lock(path)
    except DeviceError as error:
        if _denied(error) is None:
            raise
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        # Whoever works on a folder has made one.
        return _NoLock()
    except DeviceError as error:
        if _denied(error) is None:
            raise
        raise StorageError(
            f"{path} cannot be read by this user, so nobody knows whether a router has the folder; "
            "run this as the user that the folder belongs to"
        ) from error
    if not file.claim():
        file.close()
        raise StoreLockedError(folder)
    return _ReadLock(file)


class _ReadLock:
    def __init__(self, file: File) -> None:
        self._file = file

    def release(self) -> None:
        self._file.close()


class _NoLock:
    def release(self) -> None: ...


def read_format(folder: str, files: Files) -> FolderFormat | None:
    """Say what store the folder holds; None if it is missing or as good as empty.

    Raises ForeignFolderError for anything that Syncline did not write or wrote only half of,
    CorruptionError for a FORMAT that cannot be read.
    """
    with _explained(folder):
        if not files.exists(folder):
            return None
        if not files.is_folder(folder):
            raise ForeignFolderError(folder, "it is a file")
        names = files.list(folder)
        if FORMAT_NAME in names:
            return _parse_format(folder, _read_line(posixpath.join(folder, FORMAT_NAME), files))
    if UNFINISHED_NAME in names:
        reason = "an import, export or backup into it was cut short; remove it and start that again"
        raise ForeignFolderError(folder, reason)
    strange = [name for name in names if name not in _LEFTOVER_NAMES]
    if strange:
        raise ForeignFolderError(folder, f"it holds {strange[0]!r} and no {FORMAT_NAME} file")
    return None


def _make(folder: str, files: Files) -> None:
    if files.exists(folder):
        return
    parent = posixpath.dirname(folder.rstrip("/")) or "."
    if not files.is_folder(parent):
        raise StorageError(
            f"the data folder {folder} cannot be made: there is no folder {parent}; make that first"
        )
    files.make_folder(folder)
    files.sync_folder(parent)


def _check(folder: str, found: FolderFormat | None, kind: str, version: int) -> None:
    if found is None:
        return
    if found.kind != kind:
        raise ForeignFolderError(folder, f"it holds a {found.kind} store, not a {kind} store")
    if found.version > version:
        raise NewerFormatError(folder, found.version, version)


def _read_line(path: str, files: Files) -> bytes:
    file = files.open(path, writable=False)
    try:
        return file.read(0, _FORMAT_BYTES_MAX)
    finally:
        file.close()


def _parse_format(folder: str, line: bytes) -> FolderFormat:
    words = line.decode("ascii", "replace").split()
    if words and words[0] != "syncline":
        raise ForeignFolderError(folder, f"its {FORMAT_NAME} file was not written by Syncline")
    try:
        _, kind, version, store_id = words
        found = FolderFormat(kind, int(version), bytes.fromhex(store_id))
    except ValueError:
        found = None
    # Written again from what was understood, it must be the same bytes: nothing is half read.
    is_whole = (
        found is not None
        and found.line() == line
        and found.version >= 1
        and len(found.store_id) == STORE_ID_BYTES
    )
    if found is None or not is_whole:
        path = posixpath.join(folder, FORMAT_NAME)
        raise CorruptionError(path, 0, "not a line `syncline <kind> <version> <store id>`")
    return found


def _write_format(folder: str, files: Files, found: FolderFormat) -> None:
    draft = posixpath.join(folder, _FORMAT_DRAFT_NAME)
    file = files.open(draft, create=True)
    try:
        file.truncate(0)
        file.write(0, [found.line()])
        file.sync()
    finally:
        file.close()
    files.rename(draft, posixpath.join(folder, FORMAT_NAME))
    files.sync_folder(folder)


@contextmanager
def _explained(folder: str) -> Generator[None]:
    """Say what to do about missing permissions; every other failure passes as it is."""
    try:
        yield
    except (OSError, DeviceError) as error:
        denied = _denied(error)
        if denied is None:
            raise
        raise StorageError(
            f"the data folder {folder} cannot be used: {denied.strerror}; "
            "give this user the right to read and write it, or choose another folder"
        ) from error


def _denied(error: OSError | DeviceError) -> OSError | None:
    """What the system said, if it was that this user has no right to it."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return cause if isinstance(cause, OSError) and cause.errno in _NOT_ALLOWED else None
