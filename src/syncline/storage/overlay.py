"""Files that can be written without touching the disk: for tools that only look.

A store that opens a folder recovers it: it cuts torn ends, mends its table, starts new files. With
these files it does all that in memory, so that `inspect`, `verify` and `tail` leave the folder as
it was found. What is read comes from the files below; what is written stays here.

- Nothing below is opened for writing, made, renamed or removed. The lock is the one exception: it
  is held while looking, so that no router starts meanwhile.
- A file is a set of pages over the file below. One that is mapped is held whole.
- A file below is open only while somebody has the one above open.
"""

import posixpath
from collections.abc import Callable, Sequence

from syncline.errors import StorageError
from syncline.storage.files import File, Files, Lock, MappedFile
from syncline.storage.folder import lock_to_read
from syncline.values.limits import KIB

_PAGE_BYTES = 64 * KIB
_ZERO_PAGE = bytes(_PAGE_BYTES)


class _Node:
    """The contents of one file, whatever its name is by now."""

    def __init__(self, files: Files, below_path: str | None) -> None:
        self.below_path = below_path
        self.open_count = 0
        self._files = files
        self._below: File | None = None
        self.size = 0 if below_path is None else self._opened_below(below_path).size()
        # How much of the file below still shows; less once it was cut, even if it grew again.
        self._below_size = self.size
        self._original_size = self.size
        self._pages: dict[int, bytes | bytearray] = {}
        self._whole: bytearray | None = None

    @property
    def is_as_below(self) -> bool:
        is_uncut = self.size == self._below_size == self._original_size
        return is_uncut and not self._pages and self._whole is None

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if self._whole is not None:
            return bytes(self._whole[offset:end])
        pieces: list[bytes | bytearray] = []
        while offset < end:
            index, start = divmod(offset, _PAGE_BYTES)
            stop = min(_PAGE_BYTES, start + end - offset)
            pieces.append(self._page(index)[start:stop])
            offset += stop - start
        return b"".join(pieces)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        end = offset + len(data)
        if data and end > self.size:
            self.truncate(end)
        if self._whole is not None:
            self._whole[offset:end] = data
            return
        view = memoryview(data)
        while view:
            index, start = divmod(offset, _PAGE_BYTES)
            piece = view[: _PAGE_BYTES - start]
            self._write_page(index, start, piece)
            offset += len(piece)
            view = view[len(piece) :]

    def truncate(self, size: int) -> None:
        if size < self.size:
            self._below_size = min(self._below_size, size)
            last, start = divmod(size, _PAGE_BYTES)
            self._pages = {index: page for index, page in self._pages.items() if index <= last}
            if last in self._pages:
                self._pages[last] = self._pages[last][:start] + _ZERO_PAGE[start:]
        if self._whole is not None:
            # A new one: the old may be mapped, and a mapping does not change its size.
            self._whole = bytearray(self._whole[:size]) + bytes(max(0, size - len(self._whole)))
        self.size = size

    def whole(self) -> bytearray:
        if self._whole is None:
            self._whole = bytearray(self.read(0, self.size))
            self._pages.clear()
        return self._whole

    def let_go(self) -> None:
        if self._below is not None:
            self._below.close()
            self._below = None

    def _opened_below(self, path: str) -> File:
        if self._below is None:
            self._below = self._files.open(path, writable=False)
        return self._below

    def _page(self, index: int) -> bytes | bytearray:
        page = self._pages.get(index)
        if page is not None:
            return page
        offset = index * _PAGE_BYTES
        wanted = max(0, min(_PAGE_BYTES, self._below_size - offset))
        found = b""
        if self.below_path is not None and wanted:
            found = self._opened_below(self.below_path).read(offset, wanted)
        return found + _ZERO_PAGE[len(found) :]

    def _write_page(self, index: int, start: int, piece: memoryview) -> None:
        if len(piece) == _PAGE_BYTES and not any(piece):
            # New segments are filled with zeros; they need not take any memory.
            self._pages[index] = _ZERO_PAGE
            return
        page = self._page(index)
        if not isinstance(page, bytearray):
            page = bytearray(page)
        page[start : start + len(piece)] = piece
        self._pages[index] = page


class _OverlayMap:
    def __init__(self, node: _Node) -> None:
        self._content = node.whole()

    def __getitem__(self, part: slice, /) -> bytes:
        return bytes(self._content[part])

    def __setitem__(self, part: slice, value: bytes, /) -> None:
        assert len(self._content[part]) == len(value), "a mapping does not change its size"
        self._content[part] = value

    def __len__(self) -> int:
        return len(self._content)

    def view(self) -> memoryview:
        return memoryview(self._content)

    def close(self) -> None: ...


class _OverlayFile:
    def __init__(self, path: str, node: _Node, forget: Callable[[_Node], None]) -> None:
        self.path = path
        self._node = node
        self._forget = forget
        node.open_count += 1

    def read(self, offset: int, length: int) -> bytes:
        return self._node.read(offset, length)

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        for piece in pieces:
            self._node.write(offset, piece)
            offset += len(piece)

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self.write(offset, blocks)

    def sync(self) -> None: ...

    def size(self) -> int:
        return self._node.size

    def truncate(self, size: int) -> None:
        self._node.truncate(size)

    def reserve(self, size: int) -> None:
        self._node.truncate(max(size, self._node.size))

    def forget_cached(self, offset: int, length: int) -> None: ...

    def expect_reads(self, offset: int, length: int) -> None: ...

    def map(self, *, writable: bool) -> MappedFile:
        return _OverlayMap(self._node)

    def claim(self) -> bool:
        return True

    def close(self) -> None:
        self._node.open_count -= 1
        if self._node.open_count == 0:
            self._forget(self._node)


class _NoLock:
    def release(self) -> None: ...


class OverlayFiles:
    """`Files` over other `Files` that stay as they are. Close it when done."""

    def __init__(self, below: Files) -> None:
        self._below = below
        self._nodes: dict[str, _Node] = {}
        self._made_folders: set[str] = set()
        self._gone: set[str] = set()

    def close(self) -> None:
        for node in self._nodes.values():
            node.let_go()
        self._nodes.clear()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        path = posixpath.normpath(path)
        if not self.exists(path):
            if not create:
                raise FileNotFoundError(path)
            self._nodes[path] = _Node(self._below, None)
            self._gone.discard(path)
        return _OverlayFile(path, self._node(path), self._forget)

    def exists(self, path: str) -> bool:
        path = posixpath.normpath(path)
        return (
            path in self._nodes
            or path in self._made_folders
            or (path not in self._gone and self._below.exists(path))
        )

    def is_folder(self, path: str) -> bool:
        path = posixpath.normpath(path)
        if path in self._made_folders:
            return True
        return path not in self._nodes and path not in self._gone and self._below.is_folder(path)

    def list(self, folder: str) -> list[str]:
        folder = posixpath.normpath(folder)
        if not self.is_folder(folder):
            raise FileNotFoundError(folder)
        names: set[str] = set()
        if folder not in self._made_folders:
            below = self._below.list(folder)
            names = {name for name in below if posixpath.join(folder, name) not in self._gone}
        for path in [*self._nodes, *self._made_folders]:
            if posixpath.dirname(path) == folder:
                names.add(posixpath.basename(path))
        return sorted(names)

    def make_folder(self, path: str) -> None:
        path = posixpath.normpath(path)
        if not self.exists(path):
            self._made_folders.add(path)

    def rename(self, source: str, target: str) -> None:
        source, target = posixpath.normpath(source), posixpath.normpath(target)
        if self.is_folder(source):
            raise StorageError(f"{source} is a folder; folders are not renamed while only looking")
        node = self._node(source)
        self.remove(source)
        self._nodes[target] = node
        self._gone.discard(target)

    def link(self, source: str, target: str) -> bool:
        return False

    def is_linked(self, path: str) -> bool:
        # Two names below are two files here: what is written to one stays out of the other.
        return False

    def remove(self, path: str) -> None:
        path = posixpath.normpath(path)
        if not self.exists(path):
            raise FileNotFoundError(path)
        self._nodes.pop(path, None)
        self._gone.add(path)

    def remove_folder(self, path: str) -> None:
        path = posixpath.normpath(path)
        if self.list(path):
            raise StorageError(f"{path} is not empty")
        self._made_folders.discard(path)
        self._gone.add(path)

    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Hold the lock below, if somebody ever made one. Raises StoreLockedError."""
        if not self._below.exists(path):
            return _NoLock()
        return lock_to_read(self._below, posixpath.dirname(path))

    def free_bytes(self, folder: str) -> int:
        # Memory is what is used; the disk below may be full, which is no reason not to look.
        return 1 << 50

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            node = _Node(self._below, path)
            self._nodes[path] = node
        return node

    def _forget(self, node: _Node) -> None:
        node.let_go()
        path = node.below_path
        if path is not None and node.is_as_below and self._nodes.get(path) is node:
            del self._nodes[path]
