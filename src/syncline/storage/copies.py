"""Copies of a data folder with a list of hashes, so that a copy can prove that it is whole.

A backup is a data folder plus `BACKUP.json`, written last: without it the copy was cut short.

    {"format": 1, "made_ms": 1700000000000, "folders": ["wal"],
     "files": [{"path": "wal/000000000000.wal", "bytes": 67108864, "sha256": "…"}]}

Every step yields the bytes it has just dealt with, so that whoever waits sees them move.
"""

import hashlib
import posixpath
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import msgspec

from syncline.errors import ConfigError, CorruptionError
from syncline.storage.base import Damage
from syncline.storage.files import Files
from syncline.storage.folder import CERTIFICATES_NAME, FORMAT_NAME, LOCK_NAME
from syncline.values.limits import MIB

MANIFEST_NAME = "BACKUP.json"
MANIFEST_FORMAT = 1

_FREE_PLACE = "choose a folder that is empty or not there yet"
_CHUNK_BYTES = 1 * MIB
_MANIFEST_BYTES_MAX = 64 * MIB


@dataclass(frozen=True, slots=True)
class CopiedFile:
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CopyManifest:
    format: int
    made_ms: int
    folders: tuple[str, ...]
    files: tuple[CopiedFile, ...]

    @property
    def byte_count(self) -> int:
        return sum(file.bytes for file in self.files)

    def without_format(self) -> "CopyManifest":
        """What a copy has before it is a store."""
        files = tuple(file for file in self.files if file.path != FORMAT_NAME)
        return replace(self, files=files)


def walk(files: Files, folder: str) -> tuple[list[str], list[str]]:
    """Folders and files below `folder`, as relative paths; the lock and the manifest left out."""
    folders: list[str] = []
    found: list[str] = []
    pending = [""]
    while pending:
        inside = pending.pop()
        for name in files.list(posixpath.join(folder, inside) if inside else folder):
            path = posixpath.join(inside, name)
            if files.is_folder(posixpath.join(folder, path)):
                folders.append(path)
                pending.append(path)
            elif path not in (LOCK_NAME, MANIFEST_NAME):
                found.append(path)
    return sorted(folders), sorted(found)


def folder_bytes(files: Files, folder: str) -> int:
    _, found = walk(files, folder)
    return sum(_size(files, posixpath.join(folder, path)) for path in found)


def check_empty(files: Files, folder: str) -> None:
    """Raises ConfigError for a target that holds anything, or that cannot be made."""
    if not files.exists(folder):
        parent = posixpath.dirname(folder.rstrip("/")) or "."
        if not files.is_folder(parent):
            raise ConfigError(
                f"the folder {folder} cannot be made: there is no folder {parent}; make that first"
            )
        return
    if not files.is_folder(folder):
        raise ConfigError(f"{folder} is a file; {_FREE_PLACE}")
    if files.list(folder):
        raise ConfigError(f"{folder} is not empty; {_FREE_PLACE}")


def check_no_backup(files: Files, folder: str) -> None:
    """For whoever is going to change the folder: the list of hashes would not be true any more, and
    its log would not know that it was restored. Raises ConfigError for a backup."""
    if files.exists(posixpath.join(folder, MANIFEST_NAME)):
        raise ConfigError(
            f"{folder} is a backup, and would not be whole any more; make a data folder of it with "
            "`syncline restore`, and use that"
        )


def copy_folder(
    files: Files, source: str, target: str, *, has_format: bool = True
) -> Generator[int]:
    """Copy a data folder that nobody works on. FORMAT comes last: half a copy is no store.

    Without `has_format` it does not come at all, until `copy_format` makes a store of the copy.
    """
    check_empty(files, target)
    folders, found = walk(files, source)
    if not has_format:
        found.remove(FORMAT_NAME)
    files.make_folder(target)
    for path in folders:
        files.make_folder(posixpath.join(target, path))
    for path in sorted(found, key=lambda path: path == FORMAT_NAME):
        yield from _copy_file(files, posixpath.join(source, path), posixpath.join(target, path))
    for path in reversed(folders):
        files.sync_folder(posixpath.join(target, path))
    files.sync_folder(target)
    files.sync_folder(posixpath.dirname(target.rstrip("/")) or ".")


def copy_format(files: Files, source: str, target: str) -> None:
    for _ in _copy_file(
        files, posixpath.join(source, FORMAT_NAME), posixpath.join(target, FORMAT_NAME)
    ):
        pass
    files.sync_folder(target)


def copy_certificates(files: Files, source: str, target: str) -> Generator[int]:
    """Copy those of a data folder into a copy: without them the router has another address."""
    folder = posixpath.join(source, CERTIFICATES_NAME)
    if not files.exists(folder):
        return
    copied = posixpath.join(target, CERTIFICATES_NAME)
    files.make_folder(copied)
    for name in files.list(folder):
        yield from _copy_file(files, posixpath.join(folder, name), posixpath.join(copied, name))
    files.sync_folder(copied)
    files.sync_folder(target)


def write_manifest(files: Files, folder: str, made_ms: int) -> Generator[int, None, CopyManifest]:
    """Hash a finished copy and put the list beside it."""
    folders, found = walk(files, folder)
    hashed: list[CopiedFile] = []
    for path in found:
        copied = yield from _hash_file(files, folder, path)
        hashed.append(copied)
    manifest = CopyManifest(MANIFEST_FORMAT, made_ms, tuple(folders), tuple(hashed))
    file = files.open(posixpath.join(folder, MANIFEST_NAME), create=True)
    try:
        file.truncate(0)
        file.write(0, [msgspec.json.format(msgspec.json.encode(manifest))])
        file.sync()
    finally:
        file.close()
    files.sync_folder(folder)
    return manifest


def read_manifest(files: Files, folder: str) -> CopyManifest:
    """Raises ConfigError for a folder that is no finished backup."""
    path = posixpath.join(folder, MANIFEST_NAME)
    if not files.is_folder(folder):
        raise ConfigError(f"there is no folder {folder}; name a backup")
    if not files.exists(path):
        raise ConfigError(
            f"{folder} has no {MANIFEST_NAME}, so no backup ended there; name one that did"
        )
    file = files.open(path, writable=False)
    try:
        text = file.read(0, _MANIFEST_BYTES_MAX)
    finally:
        file.close()
    try:
        manifest = msgspec.json.decode(text, type=CopyManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(path, 0, "it is no list of files") from error
    _check_paths(path, manifest)
    return manifest


def check_copy(files: Files, folder: str, manifest: CopyManifest) -> Generator[int]:
    """Read everything again. Raises CorruptionError for the first file that is not as it was."""
    for found in compare_copy(files, folder, manifest):
        if isinstance(found, Damage):
            raise CorruptionError(found.file, found.offset, found.reason)
        yield found


def compare_copy(files: Files, folder: str, manifest: CopyManifest) -> Generator[int | Damage]:
    """Read everything again; gives every file that is not as it was."""
    _, found = walk(files, folder)
    listed = {file.path for file in manifest.files}
    for path in sorted(listed.symmetric_difference(found)):
        reason = "it is missing" if path in listed else "it is not on the list of the backup"
        yield Damage(posixpath.join(folder, path), 0, reason)
    for wanted in manifest.files:
        if wanted.path not in found:
            continue
        copied = yield from _hash_file(files, folder, wanted.path)
        if copied != wanted:
            reason = "it differs from what was backed up"
            yield Damage(posixpath.join(folder, wanted.path), 0, reason)


def _check_paths(path: str, manifest: CopyManifest) -> None:
    """A list from elsewhere must not lead out of its folder."""
    for name in [*manifest.folders, *(file.path for file in manifest.files)]:
        if posixpath.isabs(name) or ".." in name.split("/") or not name:
            raise CorruptionError(path, 0, f"it names {name!r}, which is outside")


def _size(files: Files, path: str) -> int:
    file = files.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()


def _chunks(files: Files, path: str) -> Iterator[bytes]:
    file = files.open(path, writable=False)
    try:
        offset = 0
        while chunk := file.read(offset, _CHUNK_BYTES):
            yield chunk
            offset += len(chunk)
    finally:
        file.close()


def _copy_file(files: Files, source: str, target: str) -> Generator[int]:
    copy = files.open(target, create=True)
    try:
        offset = 0
        for chunk in _chunks(files, source):
            copy.write(offset, [chunk])
            offset += len(chunk)
            yield len(chunk)
        copy.sync()
    finally:
        copy.close()


def _hash_file(files: Files, folder: str, path: str) -> Generator[int, None, CopiedFile]:
    digest = hashlib.sha256()
    size = 0
    for chunk in _chunks(files, posixpath.join(folder, path)):
        digest.update(chunk)
        size += len(chunk)
        yield len(chunk)
    return CopiedFile(path, size, digest.hexdigest())
