"""The tree of queue folders: walking it, making its levels durable, letting go of branches.

- After a process that ended in order, what can be seen is on the device. After any other, a folder
  is synced before anybody is told what is in it, and what is not.
- `.new.…` folders are queues being built, `.gone.…` folders queues being removed. Both are
  invisible to a walk; those of an earlier process are rubbish.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
        # What can be seen need not be on the device: the process before did not end in order.
        self.is_suspect = False
        self._files = files
        self._is_durable = is_durable
        # Levels that exist, durably, and folders whose names are those of the device.
        self._known: set[str] = set()
        self._settled: set[str] = set()

    def folder(self, stream: StreamId) -> str:
        return f"{self.root}/{self.layout.path(stream)}"

    def levels(self, folder: str) -> list[str]:
        """The folders above a queue's folder, from the root down."""
        names = folder[len(self.root) + 1 :].split("/")[:-1]
        return [self.root, *("/".join([self.root, *names[: end + 1]]) for end in range(len(names)))]

    def ensure_parents(self, folder: str) -> None:
        """Make every level above a queue's folder, durably."""
        levels = self.levels(folder)
        for parent, level in pairwise(levels):
            if level in self._known:
                continue
            if not self._files.is_folder(level):
                self._files.make_folder(level)
                self._sync(parent)
            self.settle_names(parent)
            _remember(self._known, level)

    def settle(self, folder: str) -> None:
        """Have it on the device that a queue's folder is there, or that it is not."""
        for level in self.levels(folder):
            if not self.is_suspect or not self._files.is_folder(level):
                return
            self.settle_names(level)

    def settle_names(self, folder: str) -> None:
        if self.is_suspect and folder not in self._settled:
            self._sync(folder)
            _remember(self._settled, folder)

    def remove_empty_parents(self, folder: str) -> None:
        """Remove the levels that a queue was the last one in. They may come back empty."""
        for level in reversed(self.levels(folder)[1:]):
            if self._files.list(level):
                return
            self._known.discard(level)
            self._files.remove_folder(level)

    def streams(self, after: StreamId | None = None) -> Iterator[StreamId]:
        """Every queue that has a folder, in the order of the ids as text."""
        return walk(self._files, self.root, self.layout, after, self.settle_names)

    def _sync(self, folder: str) -> None:
        if self._is_durable:
            self._files.sync_folder(folder)


def _remember(known: set[str], folder: str) -> None:
    if len(known) >= _KNOWN_FOLDER_COUNT_MAX:
        known.clear()
    known.add(folder)


def walk(
    files: Files,
    root: str,
    layout: Layout,
    after: StreamId | None = None,
    before_list: Callable[[str], None] | None = None,
) -> Iterator[StreamId]:
    """Queues in the order of their ids as text; one folder's names are held at a time and level."""
    start = layout.path(after).split("/") if after is not None else []
    yield from _Walk(files, root, layout, before_list).below("", start)


@dataclass(frozen=True, slots=True)
class _Walk:
    files: Files
    root: str
    layout: Layout
    before_list: Callable[[str], None] | None

    def below(self, path: str, start: list[str]) -> Iterator[StreamId]:
        """Queues below a path; `start` is what is left of the one that they come after."""
        level = path.count("/") + 1 if path else 0
        length = self.layout.name_characters(level)
        is_leaf = level == self.layout.fragment_count
        for name in self._names(f"{self.root}/{path}" if path else self.root):
            if len(name) != length or name.startswith(TRANSIENT_PREFIX):
                continue
            if start and (name < start[0] or (is_leaf and name == start[0])):
                continue
            inner = f"{path}/{name}" if path else name
            if not is_leaf:
                yield from self.below(inner, start[1:] if start and name == start[0] else [])
            elif (stream := self.layout.stream(inner)) is not None:
                yield stream

    def _names(self, folder: str) -> list[str]:
        try:
            if self.before_list is not None:
                self.before_list(folder)
            return self.files.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


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
    """Remove what is there of these files; return what was freed. A folder among them stays.

    Upkeep may be removing the same file: whoever comes second finds it gone.
    """
    freed = DiskUse()
    for name in sorted(names):
        path = f"{folder}/{name}"
        if files.is_folder(path):
            continue
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
