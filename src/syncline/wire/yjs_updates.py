"""State vectors and updates of Yjs, encoding v1: as much of them as routing needs.

    state vector  varUint n, then n times: varUint client, varUint clock (the next one expected)
    update        structs, then deletions
    structs       varUint n, then n times: varUint m, varUint client, varUint first clock, m structs
    deletions     varUint n, then n times: varUint client, varUint m, m times: varUint clock, length
    struct        info byte, then by its low 5 bits: 0 removed for good or 10 a gap, both with
                  varUint length; 1 to 9 an item: its place, then its content of that kind

`check_update` refuses what no Yjs client writes, before it is stored: one such update, once stored,
would be folded at every start. The library that folds takes the process down for some of it:
lengths of zero, clocks past 2^31-1, a client that comes twice, an item that follows itself, shared
types nested so deep that deleting the outermost exhausts the stack. Content of kind 2, which Yjs
has not written for years, it writes out otherwise than it read it. Whether the other items that one
refers to fit it is not looked at: that takes the document.

Structs are read by `syncline.wire.yjs_structs`.
"""

from bisect import bisect_right

from syncline.errors import LimitExceededError
from syncline.values import limits
from syncline.wire.lib0 import Reader
from syncline.wire.yjs_structs import Id, Watcher, skip_deletions, skip_structs, typed_text

EMPTY_UPDATE = b"\x00\x00"


def decode_state_vector(data: bytes) -> dict[int, int]:
    """The next expected clock of each client."""
    reader = Reader(data)
    count = reader.count(each_bytes_min=2)
    if count > limits.state_vector_client_count_max:
        raise LimitExceededError(
            "the number of clients in a state vector", count, limits.state_vector_client_count_max
        )
    vector: dict[int, int] = {}
    for _ in range(count):
        client = reader.var_uint()
        vector[client] = reader.var_uint()
    reader.finish()
    return vector


def is_typed_text(data: bytes) -> bool:
    """Whether this is, beyond doubt, an update: one short text in ASCII, put between others.

    `check_update` takes it, and so does every library; most of what is not this is an update too.
    """
    return typed_text(data) is not None


def check_update(data: bytes) -> None:
    """Raise MalformedMessageError or LimitExceededError for what cannot be an update."""
    if is_typed_text(data):
        return
    types = _Types()
    reader = Reader(data)
    skip_structs(reader, types)
    skip_deletions(reader, lambda client, end: None)
    if types.count > limits.update_depth_max:
        # Hardly ever: it may be deep, or only large. What it refers to may stand behind it.
        nesting = _Nesting()
        skip_structs(Reader(data), nesting)
        depth = nesting.depth()
        if depth > limits.update_depth_max:
            raise LimitExceededError(
                "the depth of shared types in an update", depth, limits.update_depth_max
            )


def nested_type_count(update: bytes) -> int:
    """How many shared types of an update lie in others. Raises as `check_update` does."""
    types = _Types()
    skip_structs(Reader(update), types)
    return types.count


def nested_type_count_max(update: bytes) -> int:
    """No more than this, in a hundredth of the time: so many bytes look as if one began there."""
    return len(update) - len(update.translate(None, _BEGIN_OF_TYPE))


# Content of kind 7, wherever it belongs.
_BEGIN_OF_TYPE = bytes(range(7, 256, 32))


class _Types(Watcher):
    """How many shared types of an update lie in others."""

    def __init__(self) -> None:
        self.count = 0

    def type_in_another(self) -> None:
        self.count += 1


class _Nesting(Watcher):
    """How deep the items of an update lie."""

    wants_items = True

    def __init__(self) -> None:
        # Of each client: where its items begin, the parent or neighbour of each, and how much
        # deeper than that it lies.
        self._starts: dict[int, list[int]] = {}
        self._places: dict[int, list[tuple[Id | None, int]]] = {}

    def item(self, at: Id, parent: Id | None, left: Id | None, right: Id | None) -> None:
        client, clock = at
        self._starts.setdefault(client, []).append(clock)
        self._places.setdefault(client, []).append(
            (parent or left or right, int(parent is not None))
        )

    def depth(self) -> int:
        """Of the item that lies deepest, in types of this update alone."""
        deepest = 0
        known: dict[Id, int] = {}
        for client, starts in self._starts.items():
            for start in starts:
                deepest = max(deepest, self._depth_of((client, start), known))
        return deepest

    def _depth_of(self, item: Id, known: dict[Id, int]) -> int:
        """Not by recursion: a chain may have as many links as an update has items."""
        chain: list[tuple[Id, int]] = []
        at: Id | None = item
        while at is not None and at not in known:
            client, index = at[0], bisect_right(self._starts.get(at[0], ()), at[1]) - 1
            if index < 0:
                # It came before this update.
                break
            start = (client, self._starts[client][index])
            if start in known:
                at = start
                break
            other, step = self._places[client][index]
            # Until it is known what it leads to: items that lie in one another end here.
            known[start] = 0
            chain.append((start, step))
            at = other
        depth = known.get(at, 0) if at is not None else 0
        for start, step in reversed(chain):
            depth += step
            known[start] = depth
        return depth
