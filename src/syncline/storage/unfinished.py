"""A data folder while it is filled: it is no store until all of it is there.

    FORMAT.unfinished    in the place of FORMAT, until `finish` gives it its name

- The store that is filled sees its FORMAT as always; everybody else is told by `read_format` that
  the filling was cut short, and what to do about it.
- FORMAT gets its name last, when the store is closed and everything in it is durable.
"""

import posixpath

from syncline.storage.files import File, Files, Lock
from syncline.storage.folder import FORMAT_NAME, UNFINISHED_NAME


class UnfinishedFiles:
    """The files below, with the FORMAT of one folder under its other name."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._format = posixpath.join(folder, FORMAT_NAME)
        self._unfinished = posixpath.join(folder, UNFINISHED_NAME)

    def take_back(self) -> None:
        """Of a folder that is a store already, and of which more is to be copied."""
        self._files.rename(self._format, self._unfinished)
        self._files.sync_folder(self._folder)

    def finish(self) -> None:
        """Make a store of the folder. Whoever filled it has closed it."""
        self._files.rename(self._unfinished, self._format)
        self._files.sync_folder(self._folder)

    def _place(self, path: str) -> str:
        return self._unfinished if path == self._format else path

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return self._files.open(self._place(path), create=create, writable=writable)

    def exists(self, path: str) -> bool:
        return self._files.exists(self._place(path))

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list(self, folder: str) -> list[str]:
        names = self._files.list(folder)
        if folder != self._folder:
            return names
        # A FORMAT of that name is somebody else's, who was faster: then this folder is foreign.
        names = [name for name in names if name != FORMAT_NAME]
        return sorted(FORMAT_NAME if name == UNFINISHED_NAME else name for name in names)

    def make_folder(self, path: str) -> None:
        self._files.make_folder(path)

    def rename(self, source: str, target: str) -> None:
        self._files.rename(source, self._place(target))

    def link(self, source: str, target: str) -> bool:
        return self._files.link(source, target)

    def is_linked(self, path: str) -> bool:
        return self._files.is_linked(path)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        self._files.remove_folder(path)

    def sync_folder(self, path: str) -> None:
        self._files.sync_folder(path)

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)

    def free_bytes(self, folder: str) -> int:
        return self._files.free_bytes(folder)
