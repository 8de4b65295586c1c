"""The contents of one simulated file: what the device has, and what only the page cache knows.

`FileContents` keeps the durable bytes and, in order, every change since the last sync. A sync
applies the changes to the durable bytes; a power cut applies some of them (`survival` draws which):

- A change may be there, be missing, or be torn between sectors of 512 bytes.
- The size is that of some moment since the last sync. It may run ahead of the data, which then
  reads as zeros.
- A page changed through a map is treated alike. With `tears_words` it may also be torn inside a
  sector, as when the device copies a page while the program is changing it.
- A failed sync marks its pages clean: the cache still shows them, the device never gets them.

Copies made for a crash share their bytes until one side writes.
"""

import mmap
import weakref
from random import Random

from syncline.testing.survival import SECTOR_BYTES, Change, Resize, Write, survivors

# A mapped file may still grow; address space is reserved for that and costs nothing until touched.
_MAP_RESERVE_BYTES = 16 * 1024 * 1024


class FileContents:
    """One file of the simulated device, whatever names it has."""

    __slots__ = (
        "__weakref__",
        "_cache",
        "_durable",
        "_is_cache_shared",
        "_is_durable_shared",
        "_is_mapped",
        "_lost",
        "_pending",
        "_seen",
        "size",
    )

    def __init__(self, durable: bytearray | None = None) -> None:
        self._durable = bytearray() if durable is None else durable
        self._cache: bytearray | mmap.mmap = self._durable
        self._is_durable_shared = True
        self._is_cache_shared = True
        self._is_mapped = False
        # What a writable view showed at the last look; None while nobody has one.
        self._seen: bytes | None = None
        self._pending: list[Change] = []
        self._lost: list[Change] = []
        self.size = len(self._durable)

    # As the program sees it.

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._cache[offset : min(offset + length, self.size)])

    def write(self, offset: int, data: bytes, *, is_mapped: bool = False) -> None:
        if not data:
            return
        end = offset + len(data)
        self._own_cache()
        self._extend_to(end)
        self._cache[offset:end] = data
        self._pending.append(Write(offset, data, is_mapped))
        self._look_again()

    def truncate(self, size: int) -> None:
        if size == self.size:
            return
        self._own_cache()
        if size > self.size:
            self._extend_to(size)
        elif self._is_mapped:
            self._cache[size : self.size] = bytes(self.size - size)
            self.size = size
        else:
            del self._cache[size:]
            self.size = size
        self._pending.append(Resize(size))
        self._look_again()

    def sync(self) -> None:
        """Everything changed so far is on the device."""
        if not self._pending:
            return
        if self._is_durable_shared:
            self._durable = bytearray(self._durable)
            self._is_durable_shared = False
        for change in self._pending:
            _apply(self._durable, change)
        self._pending = []

    def fail_sync(self) -> None:
        """The device refused: the kernel gives the changes up and takes the pages for clean."""
        self._lost += self._pending
        self._pending = []

    def forget_cached(self) -> None:
        """Read again from the device what is not waiting to be written there."""
        if not self._lost:
            return
        content = bytearray(self._durable)
        for change in self._pending:
            _apply(content, change)
        self._lost = []
        if self._is_mapped:
            self._own_cache()
            length = max(self.size, len(content))
            self._cache[:length] = bytes(content).ljust(length, b"\0")
        else:
            self._cache = content
            self._is_cache_shared = False
        self.size = len(content)
        self._look_again()

    # Maps.

    def map(self) -> mmap.mmap:
        """The pages of the file, shared with every reader; longer than the file."""
        if not self._is_mapped:
            pages = mmap.mmap(
                -1,
                max(_MAP_RESERVE_BYTES, 2 * self.size),
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            )
            pages[: self.size] = bytes(self._cache[: self.size])
            self._cache = pages
            self._is_cache_shared = False
            self._is_mapped = True
        assert isinstance(self._cache, mmap.mmap)
        return self._cache

    def watch(self) -> None:
        """A writable view was handed out: changes no longer pass through `write`."""
        self._seen = bytes(self._cache[: self.size])

    def absorb(self) -> None:
        """Find what was changed through views and remember it as unsynced, sector by sector."""
        if self._seen is None:
            return
        now = bytes(self._cache[: self.size])
        if now == self._seen:
            return
        for start in range(0, self.size, SECTOR_BYTES):
            part = now[start : start + SECTOR_BYTES]
            if part != self._seen[start : start + SECTOR_BYTES]:
                self._pending.append(Write(start, part, is_mapped=True))
        self._seen = now

    # After a crash.

    def after_power_cut(self, random: Random, *, tears_words: bool) -> "FileContents":
        if not self._pending:
            self._is_durable_shared = True
            return FileContents(self._durable)
        return FileContents(
            survivors(self._durable, self._pending, random, tears_words=tears_words)
        )

    def after_kill(self) -> "FileContents":
        copy = FileContents(self._durable)
        self._is_durable_shared = True
        if self._is_mapped:
            copy._cache = bytearray(self._cache[: self.size])
            copy._is_cache_shared = False
        else:
            copy._cache = self._cache
            self._is_cache_shared = True
        copy.size = self.size
        copy._pending = list(self._pending)
        copy._lost = list(self._lost)
        return copy

    def damage(self, offset: int, data: bytes) -> None:
        """Change bytes on the device and in the cache behind the program's back."""
        self.sync()
        self.write(offset, data)
        self.sync()

    # Inside.

    def _own_cache(self) -> None:
        if self._is_cache_shared:
            self._cache = bytearray(self._cache)
            self._is_cache_shared = False

    def _extend_to(self, size: int) -> None:
        if size <= self.size:
            return
        if isinstance(self._cache, bytearray):
            self._cache.extend(bytes(size - self.size))
        elif size > len(self._cache):
            raise NotImplementedError("a mapped file grew past what the simulation reserved")
        self.size = size

    def _look_again(self) -> None:
        if self._seen is not None:
            self._seen = bytes(self._cache[: self.size])


class SimulatedMap:
    """A map of a simulated file; `path` is for messages."""

    def __init__(self, contents: FileContents, *, writable: bool) -> None:
        self._contents = contents
        self._pages = contents.map()
        self._size = contents.size
        self._writable = writable
        self._views: list[weakref.ref[memoryview]] = []

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, step = part.indices(self._size)
        return self._pages[start:stop:step]

    def __setitem__(self, part: slice, value: bytes, /) -> None:
        if not self._writable:
            raise TypeError("this map is for reading")
        start, stop, _ = part.indices(self._size)
        if stop - start != len(value):
            raise IndexError("a map cannot change its size")
        self._contents.absorb()
        self._contents.write(start, bytes(value), is_mapped=True)

    def __len__(self) -> int:
        return self._size

    def view(self) -> memoryview:
        view = memoryview(self._pages)[: self._size]
        if not self._writable:
            view = view.toreadonly()
        elif not self._views:
            self._contents.watch()
        self._views.append(weakref.ref(view))
        return view

    def close(self) -> None:
        self._contents.absorb()
        if any(_is_in_use(reference()) for reference in self._views):
            raise BufferError("views of this map are still in use")
        self._views.clear()


def _is_in_use(view: memoryview | None) -> bool:
    if view is None:
        return False
    try:
        return len(view) >= 0
    except ValueError:  # released
        return False


def _apply(content: bytearray, change: Change) -> None:
    match change:
        case Write(offset=offset, data=data):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Resize(size=size):
            if size < len(content):
                del content[size:]
            else:
                content.extend(bytes(size - len(content)))
