"""The tree of queue folders: walking it, making its levels durable, letting go of branches.

- A level is durable once its parent was synced in this process, or, after a clean end of the process
  before, if it is there at all.
- `.new.…` folders are queues being built, `.gone.…` folders queues being removed. Both are invisible to
  a walk; those of an earlier process are rubbish.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from syncline.errors import DeviceError
from syncline.storage.files import Files
from syncline.storage.journal.layout import TRANSIENT_PREFIX, Layout
from syncline.values.ids import StreamId

_KNOWN_FOLDER_COUNT_MAX: Final = 65_536


@dataclass(slots=True)
class DiskUse:
    """What queues take on the disk, or by how much that changes."""

    byte_count: int = 0
    file_count: int = 0

    def add(self, byte_count: int, file_count: int) -> None:
        self.byte_count += byte_count
        self.file_count += file_count


class FolderTree:
    """The folders below `root`, which exists."""

    def __init__(self, root: str, layout: Layout, files: Files, *, is_durable: bool) -> None:
        self.root = root
        self.layout = layout
        self.is_suspect = False
        self._files = files
        self._is_durable = is_durable
        self._known: set[str] = set()

    def folder(self, stream: StreamId) -> str:
        return f"{self.root}/{self.layout.path(stream)}"

    def ensure_parents(self, folder: str) -> None:
        """Make every level above a queue's folder, durably."""
        names = folder[len(self.root) + 1 :].split("/")[:-1]
        parent = self.root
        for name in names:
            level = f"{parent}/{name}"
            if level not in self._known:
                self._ensure(level, parent)
            parent = level

    def _ensure(self, level: str, parent: str) -> None:
        if self.is_suspect or not self._files.is_folder(level):
            self._files.make_folder(level)
            if self._is_durable:
                self._files.sync_folder(parent)
        if len(self._known) >= _KNOWN_FOLDER_COUNT_MAX:
            self._known.clear()
        self._known.add(level)

    def settle(self, folder: str) -> None:
        """Make the name of a queue's folder durable, and those of the levels above it."""
        self.ensure_parents(folder)
        self._files.sync_folder(folder.rpartition("/")[0])

    def remove_empty_parents(self, folder: str) -> None:
        """Remove the levels that a queue was the last one in. They may come back empty."""
        parent = folder.rpartition("/")[0]
        while parent != self.root and not self._files.list(parent):
            self._known.discard(parent)
            self._files.remove_folder(parent)
            parent = parent.rpartition("/")[0]

    def streams(self, after: StreamId | None = None) -> Iterator[StreamId]:
        """Every queue that has a folder, in the order of the ids as text."""
        return walk(self._files, self.root, self.layout, after)


def walk(
    files: Files, root: str, layout: Layout, after: StreamId | None = None
) -> Iterator[StreamId]:
    """Queues in the order of their ids as text; one folder's names are held at a time and level."""
    start = layout.path(after).split("/") if after is not None else []
    yield from _walk(files, root, "", layout, start)


def _walk(
    files: Files, root: str, path: str, layout: Layout, start: list[str]
) -> Iterator[StreamId]:
    level = path.count("/") + 1 if path else 0
    length = layout.name_characters(level)
    is_leaf = level == layout.fragment_count
    try:
        names = files.list(f"{root}/{path}" if path else root)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if len(name) != length or name.startswith(TRANSIENT_PREFIX):
            continue
        if start and (name < start[0] or (is_leaf and name == start[0])):
            continue
        below = f"{path}/{name}" if path else name
        if not is_leaf:
            rest = start[1:] if start and name == start[0] else []
            yield from _walk(files, root, below, layout, rest)
        elif (stream := layout.stream(below)) is not None:
            yield stream


def remove_tree(files: Files, folder: str) -> None:
    """Remove a folder and all that is in it."""
    for name in files.list(folder):
        path = f"{folder}/{name}"
        if files.is_folder(path):
            remove_tree(files, path)
        else:
            files.remove(path)
    files.remove_folder(folder)


def remove_files(files: Files, folder: str, names: Iterable[str]) -> DiskUse:
    """Remove what is there of these files; return what was freed.

    Upkeep may be removing the same file: whoever comes second finds it gone.
    """
    freed = DiskUse()
    for name in sorted(names):
        path = f"{folder}/{name}"
        try:
            file = files.open(path, writable=False)
        except FileNotFoundError:
            continue
        try:
            byte_count = file.size()
        finally:
            file.close()
        try:
            files.remove(path)
        except DeviceError:
            if files.exists(path):
                raise
        else:
            freed.add(byte_count, 1)
    return freed
