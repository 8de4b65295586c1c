"""A file system in memory that forgets: the twin of `storage.files.DiskFiles` for crash tests.

It keeps apart what the program sees and what the device has. `crash` gives the file system as it is
after a power cut: of what was not synced, any part may be missing, torn or out of order (see
`page_cache` and `folders`). `kill` gives it as it is after the death of the process alone: the page
cache is whole, and still not durable. Neither touches the original, so one run of a scenario can be
crashed at each of its calls.

Everything that is left to chance comes from the `random.Random` handed in: same seed, same crash.

Ways to make a call go wrong: `crash_after` (the program stops there), `fail` (an error of the
device), `capacity_bytes` (a small disk), `flip_bit` and `cut` (damage), `ignored_calls` (a device
that lies).
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from syncline.errors import DeviceError, StoreFullError, StoreLockedError
from syncline.storage.files import File, Lock
from syncline.testing.folders import Folder, FolderTree, Node, Place
from syncline.testing.handles import Effect, SimulatedFile, SimulatedLock
from syncline.testing.page_cache import FileContents

# The calls that change what a crash may leave; the others only look.
CHANGING_CALLS = frozenset(
    {
        "create",
        "link",
        "make_folder",
        "remove",
        "remove_folder",
        "rename",
        "sync",
        "sync_folder",
        "truncate",
        "write",
    }
)
# A refusal for want of room leaves the device sound; any other failure does not.
_FULL_CALLS = frozenset({"create", "link", "make_folder", "truncate", "write"})
_MISSING = "no such file or directory"
_PLENTY_BYTES = 1 << 40


class SimulatedCrashError(BaseException):
    """The program ends here. Not an `Exception`, so that no handler of the program meets it."""


class SimulatedFiles:
    """See the module. `calls` counts every call by its kind, `call_count` all of them."""

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        ignored_calls: frozenset[str] = frozenset(),
        tears_words: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.tears_words = tears_words
        self.ignored_calls = ignored_calls
        self.calls: Counter[str] = Counter()
        self.call_count = 0
        self.open_file_count = 0
        # Called before each call is carried out, with its kind.
        self.before_call: Callable[[str], None] | None = None
        self._tree = FolderTree()
        self._locked: set[str] = set()
        self._mapped: dict[FileContents, None] = {}
        self._faults: dict[str, int] = {}
        self._crash_at = 0
        self._is_crashed = False
        self._write_under_way: tuple[FileContents, int, bytes] | None = None

    # Crashing.

    def crash_after(self, call_count: int) -> None:
        """Stop the program at the call with this number from now, before it has any effect."""
        self._crash_at = self.call_count + call_count

    def crash(self, random: Random) -> "SimulatedFiles":
        """The file system after a power cut at this moment."""
        self._absorb_maps()
        return self._successor(self._tree.after_power_cut(random, tears_words=self.tears_words))

    def kill(self, random: Random) -> "SimulatedFiles":
        """The file system after the process died: a write under way has come to any point."""
        self._absorb_maps()
        written, offset, data = self._write_under_way or (None, 0, b"")
        tree, twin = self._tree.after_kill(written)
        if twin is not None:
            twin.write(offset, data[: random.randint(0, len(data))])
        return self._successor(tree)

    def _successor(self, tree: FolderTree) -> "SimulatedFiles":
        files = SimulatedFiles(
            capacity_bytes=self.capacity_bytes,
            ignored_calls=self.ignored_calls,
            tears_words=self.tears_words,
        )
        files._tree = tree
        return files

    # Going wrong.

    def fail(self, call: str, nth: int = 1) -> None:
        """Let the nth call of this kind from now fail.

        A failed sync gives up what it should have saved. A failed write has written a part.
        """
        self._faults[call] = self.calls[call] + nth

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Change one bit on the device."""
        contents = self._tree.contents(path)
        byte = contents.read(offset, 1)[0] ^ (1 << bit)
        contents.damage(offset, bytes([byte]))

    def cut(self, path: str, size: int) -> None:
        """Shorten a file on the device."""
        contents = self._tree.contents(path)
        contents.truncate(size)
        contents.sync()

    # For tests to look at; not counted as calls.

    def read_all(self, path: str) -> bytes:
        contents = self._tree.contents(path)
        return contents.read(0, contents.size)

    def paths(self, folder: str) -> list[str]:
        """Every file below a folder."""
        found: list[str] = []
        for name, node in sorted(self._tree.folder(folder).entries.items()):
            path = f"{folder}/{name}"
            found += self.paths(path) if isinstance(node, Folder) else [path]
        return found

    # The Files protocol.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        node = self._tree.find(path)
        self._call("create" if create and node is None else "open", path)
        if node is None:
            if not create:
                raise FileNotFoundError(path)
            node = FileContents()
            self._tree.record(node, None, self._tree.place(path))
        if isinstance(node, Folder):
            raise DeviceError(path, "opening", "is a directory")
        self.open_file_count += 1
        return SimulatedFile(self, path, node, writable)

    def exists(self, path: str) -> bool:
        self._call("exists", path)
        return self._tree.find(path) is not None

    def is_folder(self, path: str) -> bool:
        self._call("is_folder", path)
        return isinstance(self._tree.find(path), Folder)

    def list(self, folder: str) -> list[str]:
        self._call("list", folder)
        return sorted(self._tree.folder(folder).entries)

    def make_folder(self, path: str) -> None:
        found = self._tree.find(path)
        self._call("make_folder" if found is None else "is_folder", path)
        if isinstance(found, FileContents):
            raise DeviceError(path, "making the folder", "file exists")
        if found is None:
            self._tree.record(Folder(), None, self._place(path, "making the folder"))

    def rename(self, source: str, target: str) -> None:
        self._call("rename", source)
        node, place = self._existing(source, "renaming")
        target_place = self._place(target, "renaming")
        if place != target_place:
            self._tree.record(node, place, target_place)

    def link(self, source: str, target: str) -> bool:
        self._call("link", source)
        node, _ = self._existing(source, "linking")
        if self._tree.find(target) is not None:
            raise DeviceError(source, "linking", "file exists")
        self._tree.record(node, None, self._place(target, "linking"))
        return True

    def is_linked(self, path: str) -> bool:
        self._call("is_linked", path)
        node, _ = self._existing(path, "looking at")
        return self._tree.name_count(node) > 1

    def remove(self, path: str) -> None:
        self._call("remove", path)
        node, place = self._existing(path, "removing")
        if isinstance(node, Folder):
            raise DeviceError(path, "removing", "is a directory")
        self._tree.record(node, place, None)

    def remove_folder(self, path: str) -> None:
        self._call("remove_folder", path)
        node, place = self._existing(path, "removing")
        if not isinstance(node, Folder):
            raise DeviceError(path, "removing", "not a directory")
        if node.entries:
            raise DeviceError(path, "removing", "directory not empty")
        self._tree.record(node, place, None)

    def sync_folder(self, path: str) -> None:
        folder = self._tree.folder(path)
        self._call("sync_folder", path, lambda: self._tree.fail_sync(folder))
        if "sync_folder" not in self.ignored_calls:
            self._tree.sync(folder)

    def lock(self, path: str) -> Lock:
        self._call("lock", path)
        if path in self._locked:
            raise StoreLockedError(path.rpartition("/")[0], "simulated")
        if self._tree.find(path) is None:
            self._tree.record(FileContents(), None, self._tree.place(path))
        self._locked.add(path)
        return SimulatedLock(self._locked, path)

    def free_bytes(self, folder: str) -> int:
        self._call("free_bytes", folder)
        return self._room_bytes()

    # For the handles.

    def file_call(self, kind: str, path: str, on_failure: Effect | None = None) -> None:
        self._call(kind, path, on_failure)

    def write_call(self, path: str, contents: FileContents, offset: int, data: bytes) -> None:
        """Carry out a write, as far as there is room."""
        self._write_under_way = (contents, offset, data)
        self._call("write", path, lambda: contents.write(offset, data[: len(data) // 2]))
        self._write_under_way = None
        if self.capacity_bytes is not None:
            missing = offset + len(data) - contents.size - self._room_bytes()
            if missing > 0:
                contents.write(offset, data[: max(0, len(data) - missing)])
                raise StoreFullError(path)
        contents.write(offset, data)

    def watch_map(self, contents: FileContents) -> None:
        self._mapped[contents] = None

    # Inside.

    def _call(self, kind: str, path: str, on_failure: Effect | None = None) -> None:
        if self._is_crashed:
            raise SimulatedCrashError(f"{kind} of {path} after the crash")
        self._absorb_maps()
        self.call_count += 1
        self.calls[kind] += 1
        if self.before_call is not None:
            self.before_call(kind)
        if self.call_count == self._crash_at:
            self._is_crashed = True
            raise SimulatedCrashError(f"{kind} of {path} is call {self.call_count}")
        if self._faults.get(kind) == self.calls[kind]:
            self._write_under_way = None
            if on_failure is not None:
                on_failure()
            if kind in _FULL_CALLS:
                raise StoreFullError(path, "no space left on device")
            raise DeviceError(path, kind.replace("_", " "), "input/output error")

    def _absorb_maps(self) -> None:
        for contents in self._mapped:
            contents.absorb()

    def _room_bytes(self) -> int:
        if self.capacity_bytes is None:
            return _PLENTY_BYTES
        return max(0, self.capacity_bytes - self._tree.used_bytes())

    def _place(self, path: str, operation: str) -> Place:
        try:
            return self._tree.place(path)
        except FileNotFoundError as error:
            raise DeviceError(path, operation, _MISSING) from error

    def _existing(self, path: str, operation: str) -> tuple[Node, Place]:
        place = self._place(path, operation)
        node = place[0].entries.get(place[1])
        if node is None:
            raise DeviceError(path, operation, _MISSING)
        return node, place
