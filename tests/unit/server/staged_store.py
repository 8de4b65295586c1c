"""A store that is nothing but its commit: named writes, staged, taken, written, finished."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from syncline.storage.base import Batch, Store


@dataclass(slots=True)
class StagedBatch:
    names: list[str]
    byte_count: int

    @property
    def record_count(self) -> int:
        return len(self.names)


@dataclass
class StagedStore:
    """Every write has a name and a size. `on_write` may block or raise in place of the disk."""

    on_write: Callable[[], None] = lambda: None
    staged: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    held_back: list[str] = field(default_factory=list[str])
    durable: list[str] = field(default_factory=list[str])
    visible: list[str] = field(default_factory=list[str])
    taken: StagedBatch | None = None
    batches: list[list[str]] = field(default_factory=list[list[str]])

    def stage(self, name: str, byte_count: int = 100_000) -> None:
        self.staged.append((name, byte_count))

    def acknowledge(self, name: str) -> None:
        self.held_back.append(name)

    def as_store(self) -> Store:
        return cast(Store, self)

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        assert self.taken is None, "two batches in flight"
        names: list[str] = []
        if acknowledgements:
            names, self.held_back = self.held_back, []
        writes, self.staged = self.staged, []
        names = names + [name for name, _ in writes]
        if not names:
            return None
        self.taken = StagedBatch(names, sum(size for _, size in writes))
        self.batches.append(names)
        return self.taken

    def write_batch(self, batch: Batch) -> None:
        assert batch is self.taken
        self.on_write()
        self.durable += self.taken.names

    def finish_batch(self, batch: Batch) -> None:
        assert batch is self.taken
        self.visible += [name for name in self.taken.names if name in self.durable]
        self.taken = None

    @property
    def waiting_bytes(self) -> int:
        taken = self.taken.byte_count if self.taken else 0
        return taken + sum(size for _, size in self.staged)


@dataclass
class CuttingStore(StagedStore):
    """As the log does it: a batch is closed when full, acknowledgements go into the open one only.

    A write carries the acknowledgements that are held back for its stream: here, for any.
    """

    batch_bytes_max: int = 250_000
    acknowledgement_room: int = 2
    closed: list[list[tuple[str, int]]] = field(default_factory=list[list[tuple[str, int]]])
    carries_acknowledgements: bool = False

    def stage(self, name: str, byte_count: int = 100_000) -> None:
        if self.staged and self._open_bytes + byte_count > self.batch_bytes_max:
            self._close()
        if self.carries_acknowledgements:
            self._take_acknowledgements()
        self.staged.append((name, byte_count))

    @property
    def held_back_count(self) -> int:
        return len(self.held_back)

    @property
    def _open_bytes(self) -> int:
        return sum(size for _, size in self.staged)

    def _close(self) -> None:
        self.closed.append(self.staged)
        self.staged = []

    def _take_acknowledgements(self) -> None:
        room = self.acknowledgement_room
        self.staged += [(name, 16) for name in self.held_back[:room]]
        self.held_back = self.held_back[room:]

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        assert self.taken is None, "two batches in flight"
        if not self.closed:
            if acknowledgements:
                self._take_acknowledgements()
            if not self.staged:
                return None
            self._close()
        writes = self.closed.pop(0)
        names = [name for name, _ in writes]
        self.taken = StagedBatch(names, sum(size for _, size in writes))
        self.batches.append(names)
        return self.taken

    @property
    def waiting_bytes(self) -> int:
        taken = self.taken.byte_count if self.taken else 0
        closed = sum(size for batch in self.closed for _, size in batch)
        return taken + closed + self._open_bytes
