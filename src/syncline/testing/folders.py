"""Names of the simulated file system: what folders hold, and which changes of it are durable.

A change of names (create, rename, remove) is durable once every folder it touches was synced. After
a power cut some of the others are there too: a prefix in the order in which they were made, a
prefix in each folder, or any of them. Always:

- A rename happens whole or not at all.
- A change comes with every earlier one of the same name or the same file, as in the journal of a
  file system: a rename onto a name never outlives an earlier rename away from it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from syncline.testing.page_cache import FileContents


class Folder:
    """Names as the program sees them, and as the device has them."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Folder | FileContents
Place = tuple[Folder, str]
Names = dict[Folder, dict[str, Node]]


@dataclass(eq=False, slots=True)
class NameChange:
    """`node` left `source` (None: it is new) for `target` (None: it was removed)."""

    node: Node
    source: Place | None
    target: Place | None
    unsynced: set[Folder] = field(default_factory=set[Folder])

    def __post_init__(self) -> None:
        self.unsynced.update(folder for folder, _ in self.places())

    def places(self) -> list[Place]:
        return [place for place in (self.source, self.target) if place is not None]


class NameJournal:
    """Changes of names that are not durable yet, in order."""

    def __init__(self) -> None:
        self._changes: list[NameChange] = []

    def __len__(self) -> int:
        return len(self._changes)

    def record(self, node: Node, source: Place | None, target: Place | None) -> None:
        """Change the names as the program sees them."""
        if source is not None:
            del source[0].entries[source[1]]
        if target is not None:
            target[0].entries[target[1]] = node
        self._changes.append(NameChange(node, source, target))

    def sync(self, folder: Folder) -> None:
        for change in self._changes:
            change.unsynced.discard(folder)
        chosen = _with_earlier(self._changes, [not change.unsynced for change in self._changes])
        for change, is_durable in zip(self._changes, chosen, strict=True):
            if is_durable:
                _apply(change, {place[0]: place[0].durable for place in change.places()})
        self._changes = [
            change
            for change, is_durable in zip(self._changes, chosen, strict=True)
            if not is_durable
        ]

    def forget(self, folder: Folder) -> None:
        """A failed sync: the program goes on seeing names that the device will never have."""
        self._changes = [
            change
            for change in self._changes
            if all(place[0] is not folder for place in change.places())
        ]

    def after_power_cut(self, random: Random) -> Names:
        """Names of each folder that a surviving change touched."""
        names: Names = {}
        chosen = _with_earlier(self._changes, _draw(self._changes, random))
        for change, survives in zip(self._changes, chosen, strict=True):
            if survives:
                for folder, _ in change.places():
                    names.setdefault(folder, dict(folder.durable))
                _apply(change, names)
        return names

    def copy(self, copied: Callable[[Node], Node]) -> "NameJournal":
        journal = NameJournal()
        for change in self._changes:
            twin = NameChange(
                copied(change.node), _moved(change.source, copied), _moved(change.target, copied)
            )
            twin.unsynced = {_as_folder(copied(folder)) for folder in change.unsynced}
            journal._changes.append(twin)
        return journal


class FolderTree:
    """All folders and files, found by path."""

    def __init__(self, root: Folder | None = None, journal: NameJournal | None = None) -> None:
        self._root = root or Folder()
        self._journal = journal or NameJournal()

    def find(self, path: str) -> Node | None:
        node: Node = self._root
        for name in path.split("/"):
            if not name:
                continue
            found = node.entries.get(name) if isinstance(node, Folder) else None
            if found is None:
                return None
            node = found
        return node

    def folder(self, path: str) -> Folder:
        """Raises FileNotFoundError."""
        node = self.find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(path)
        return node

    def contents(self, path: str) -> FileContents:
        """Raises FileNotFoundError."""
        node = self.find(path)
        if not isinstance(node, FileContents):
            raise FileNotFoundError(path)
        return node

    def place(self, path: str) -> Place:
        """Raises FileNotFoundError if the folder of `path` does not exist."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.folder(parent), name

    def used_bytes(self) -> int:
        """Each file once, however many names it has."""
        return sum(node.size for node in set(_files_below(self._root)))

    def name_count(self, node: Node) -> int:
        return sum(found is node for found in _files_below(self._root))

    def record(self, node: Node, source: Place | None, target: Place | None) -> None:
        self._journal.record(node, source, target)

    def sync(self, folder: Folder) -> None:
        self._journal.sync(folder)

    def fail_sync(self, folder: Folder) -> None:
        self._journal.forget(folder)

    def after_power_cut(self, random: Random, *, tears_words: bool) -> "FolderTree":
        names = self._journal.after_power_cut(random)
        copies: dict[Node, Node] = {}

        def restored(node: Node) -> Node:
            if node in copies:
                return copies[node]
            if isinstance(node, FileContents):
                copies[node] = node.after_power_cut(random, tears_words=tears_words)
                return copies[node]
            twin = copies[node] = Folder()
            found = names.get(node, node.durable)
            # Sorted, so that chance is spent in the same order each time.
            twin.durable = {name: restored(found[name]) for name in sorted(found)}
            twin.entries = dict(twin.durable)
            return twin

        return FolderTree(_as_folder(restored(self._root)))

    def after_kill(
        self, under_way: FileContents | None
    ) -> "tuple[FolderTree, FileContents | None]":
        """The same tree for the next process, and the twin of the file being written to."""
        copies: dict[Node, Node] = {}

        def copied(node: Node) -> Node:
            if node in copies:
                return copies[node]
            if isinstance(node, FileContents):
                copies[node] = node.after_kill()
                return copies[node]
            twin = copies[node] = Folder()
            twin.entries = {name: copied(inner) for name, inner in node.entries.items()}
            twin.durable = {name: copied(inner) for name, inner in node.durable.items()}
            return twin

        tree = FolderTree(_as_folder(copied(self._root)), self._journal.copy(copied))
        twin = None if under_way is None else copied(under_way)
        assert not isinstance(twin, Folder)
        return tree, twin


def _files_below(folder: Folder) -> Iterator[FileContents]:
    for node in folder.entries.values():
        if isinstance(node, Folder):
            yield from _files_below(node)
        else:
            yield node


def _apply(change: NameChange, names: Names) -> None:
    if change.source is not None:
        folder, name = change.source
        if names[folder].get(name) is change.node:
            del names[folder][name]
    if change.target is not None:
        folder, name = change.target
        names[folder][name] = change.node


def _draw(changes: Sequence[NameChange], random: Random) -> list[bool]:
    count = len(changes)
    if not count:
        return []
    way = random.random()
    if way < 0.2:
        return [False] * count
    if way < 0.4:
        return [True] * count
    if way < 0.6:
        moment = random.randint(0, count)
        return [index < moment for index in range(count)]
    if way < 0.8:
        moments: dict[Folder, int] = {}
        for change in changes:
            for folder, _ in change.places():
                if folder not in moments:
                    moments[folder] = random.randint(0, count)
        return [
            all(index < moments[folder] for folder, _ in change.places())
            for index, change in enumerate(changes)
        ]
    return [random.random() < 0.5 for _ in changes]


def _with_earlier(changes: Sequence[NameChange], chosen: Iterable[bool]) -> list[bool]:
    """Add to the chosen changes every earlier one of the same name or the same file."""
    result = list(chosen)
    needed: set[Place | Node] = set()
    for index in range(len(changes) - 1, -1, -1):
        change = changes[index]
        touched: set[Place | Node] = {change.node, *change.places()}
        if result[index] or not needed.isdisjoint(touched):
            result[index] = True
            needed |= touched
    return result


def _moved(place: Place | None, copied: Callable[[Node], Node]) -> Place | None:
    return None if place is None else (_as_folder(copied(place[0])), place[1])


def _as_folder(node: Node) -> Folder:
    assert isinstance(node, Folder)
    return node
