"""What a Yjs update brings, and what must be there before it: whether it fits a document.

begins, ends   of each client, the clocks of its structs in the update
needs          of each of them, the clock that the document must have reached: where they begin, or
               behind the last gap among them
refers         of any client, the clock that must be reached before the update or with it
"""

from collections.abc import Mapping
from functools import lru_cache

from syncline.wire.lib0 import Reader, small_number, var_uint
from syncline.wire.yjs_structs import Id, Watcher, skip_deletions, skip_structs, typed_text

# Honest updates are through after two or three.
_PASSES_MAX = 8


class Extent(Watcher):
    """See the module. `heads` are the next clocks of a document, by client."""

    wants_items = True
    # Whether to store an update is not asked here.
    takes_old_json = True
    __slots__ = ("begins", "ends", "needs", "refers")

    def __init__(self) -> None:
        self.begins: dict[int, int] = {}
        self.needs: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.refers: dict[int, int] = {}

    def missing(self, heads: Mapping[int, int]) -> Id | None:
        """A client and the clock that it must have reached first; None: the update fits."""
        for client, clock in self.needs.items():
            if clock > heads.get(client, 0):
                return client, clock
        for client, clock in self.refers.items():
            if clock > heads.get(client, 0) and clock > self.ends.get(client, 0):
                return client, clock
        return None

    def follows(self, heads: Mapping[int, int]) -> bool:
        """Whether nothing of what it brings is there already."""
        return all(heads.get(client, 0) == clock for client, clock in self.needs.items())

    # Of the structs.

    def client(self, client: int, begin: int, end: int) -> None:
        self.begins[client] = begin
        self.needs.setdefault(client, begin)
        self.ends[client] = end

    def item(self, at: Id, parent: Id | None, left: Id | None, right: Id | None) -> None:
        for other in (parent, left, right):
            if other is not None and other[0] != at[0]:
                self.refer(other[0], other[1] + 1)

    def gap(self, client: int, end: int) -> None:
        self.needs[client] = end

    def refer(self, client: int, end: int) -> None:
        if end > self.refers.get(client, 0):
            self.refers[client] = end


def fitting_part(update: bytes, heads: Mapping[int, int]) -> bytes:
    """The structs of an update that fit a document by themselves; deletions stay behind.

    Of each client those up to the first that does not fit. Raises as `extent_of` does.
    """
    structs = _Structs(len(update))
    skip_structs(Reader(update), structs)
    reached = dict(heads)
    # What fits of one client may be what another's waits for.
    for _ in range(_PASSES_MAX):
        if not sum(section.reach(reached) for section in structs.sections):
            break
    parts = [section.part(update) for section in structs.sections if section.fitting_count]
    return b"".join([var_uint(len(parts)), *parts, b"\x00"])


class _Section:
    """The structs of one client, and how many of them fit."""

    def __init__(self, client: int, begin: int, start: int) -> None:
        self.client = client
        self.begin = begin
        # Where the first begins in the update; of each where it ends, the clock behind it and
        # what it refers to, or None for a gap.
        self.start = start
        self.structs: list[tuple[int, int, list[Id] | None]] = []
        self.fitting_count = 0

    def reach(self, reached: dict[int, int]) -> bool:
        """Count on, as long as they fit; whether any did."""
        before = self.fitting_count
        if self.begin <= reached.get(self.client, 0):
            for _, end, others in self.structs[before:]:
                if others is None or any(at >= reached.get(who, 0) for who, at in others):
                    break
                reached[self.client] = max(end, reached.get(self.client, 0))
                self.fitting_count += 1
        return self.fitting_count > before

    def part(self, update: bytes) -> bytes:
        end, _, _ = self.structs[self.fitting_count - 1]
        head = var_uint(self.fitting_count) + var_uint(self.client) + var_uint(self.begin)
        return head + update[self.start : end]


class _Structs(Watcher):
    wants_items = True
    takes_old_json = True

    def __init__(self, byte_count: int) -> None:
        self._byte_count = byte_count
        self.sections: list[_Section] = []
        self._others: list[Id] | None = []

    def begin(self, client: int, begin: int, left: int) -> None:
        self.sections.append(_Section(client, begin, self._byte_count - left))
        self._others = []

    def item(self, at: Id, parent: Id | None, left: Id | None, right: Id | None) -> None:
        self._others = [each for each in (parent, left, right) if each is not None]

    def gap(self, client: int, end: int) -> None:
        self._others = None

    def struct(self, end: int, left: int) -> None:
        self.sections[-1].structs.append((self._byte_count - left, end, self._others))
        self._others = []


def extent_of(update: bytes) -> Extent:
    """Raises MalformedMessageError or LimitExceededError for what is no update."""
    extent = Extent()
    reader = Reader(update)
    skip_structs(reader, extent)
    skip_deletions(reader, extent.refer)
    return extent


def typed_on(update: bytes, heads: Mapping[int, int]) -> Id | None:
    """The client and its next clock, if this is typed text that fits and brings nothing twice.

    None says nothing: `extent_of` tells. This takes a third of its time.
    """
    parts = typed_text(update)
    if parts is None:
        return None
    client, clock, one, at_one, left, at_left, right, at_right, length = parts
    author, begin = _client(client), small_number(clock)
    if heads.get(author, 0) != begin:
        return None
    # Its own came before it.
    neighbours = ((one, at_one),) if one is not None else ((left, at_left), (right, at_right))
    for other, at in neighbours:
        if other != client and heads.get(_client(other), 0) <= small_number(at):
            return None
    return author, begin + length[0]


# The same few again and again.
_client = lru_cache(maxsize=1_024)(small_number)
