"""Open files of the journal, no more than a bound, the least recently used closed first.

The owner reads and the committing thread writes through one pool, so it has a lock. A file in use
is never closed under its user; one that was let go of meanwhile is closed when its last user is
done.
"""

import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from syncline.storage.files import File, Files


@dataclass(slots=True)
class _Handle:
    file: File
    user_count: int = 0
    is_forgotten: bool = False


class HandlePool:
    """Paths to open files."""

    def __init__(self, files: Files, count_max: int) -> None:
        self._files = files
        self._count_max = max(1, count_max)
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def group_count(self) -> int:
        """How many files one user may hold at a time, so that others still find room."""
        return max(1, self._count_max // 2)

    @contextmanager
    def use(self, path: str, *, create: bool = False) -> Generator[File]:
        """The file, open until the end of the block. Raises FileNotFoundError unless `create`."""
        handle = self._acquire(path, create)
        try:
            yield handle.file
        finally:
            self._release(handle)

    def forget(self, folder: str) -> None:
        """Let go of what is open in a folder: its names are about to mean other files, or none."""
        prefix = f"{folder}/"
        with self._lock:
            for path in [path for path in self._handles if path.startswith(prefix)]:
                self._drop(path)

    def forget_file(self, path: str) -> None:
        with self._lock:
            if path in self._handles:
                self._drop(path)

    def close(self) -> None:
        with self._lock:
            for path in list(self._handles):
                self._drop(path)

    def _acquire(self, path: str, create: bool) -> _Handle:
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                self._make_room()
                handle = self._handles[path] = _Handle(self._files.open(path, create=create))
            self._handles.move_to_end(path)
            handle.user_count += 1
            return handle

    def _release(self, handle: _Handle) -> None:
        with self._lock:
            handle.user_count -= 1
            if handle.is_forgotten and not handle.user_count:
                handle.file.close()

    def _make_room(self) -> None:
        if len(self._handles) < self._count_max:
            return
        for path, handle in self._handles.items():
            if not handle.user_count:
                self._drop(path)
                return

    def _drop(self, path: str) -> None:
        handle = self._handles.pop(path)
        if handle.user_count:
            handle.is_forgotten = True
        else:
            handle.file.close()
