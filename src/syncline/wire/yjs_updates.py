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

Nearly every update is what a keystroke makes, and nearly every struct of a large one is a piece of
text between others: both are matched as a whole, which costs a fifth of reading number by number
(bench: documents).
"""

import re
from bisect import bisect_right
from collections.abc import Callable

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire.lib0 import Reader, small_number

EMPTY_UPDATE = b"\x00\x00"

_HAS_LEFT, _HAS_RIGHT, _HAS_KEY = 0x80, 0x40, 0x20
_KIND = 0x1F
_REMOVED, _GAP = 0, 10
_OLD_JSON, _TYPE = 2, 7
# Shared types by their number; XML elements and hooks have a name.
_TYPE_COUNT = 7
_NAMED_TYPES = frozenset((3, 5))


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


# Written as short as it can be: then numbers are equal if their bytes are, and one is less than
# another if it has fewer bytes, or as many and less from the end.
_NUMBER = rb"(\x00|[\x80-\xff]{0,6}[\x01-\x7f]|[\x80-\xff]{7}[\x01-\x0f])"
# Below 2^28: with a short text behind it a clock is far from its limit.
_CLOCK = rb"(\x00|[\x80-\xff]{0,3}[\x01-\x7f])"
# A text item between others, up to its length; ids of one neighbour, or of both.
_TEXT_ITEM = rb"(?:[\x84\x44\xa4\x64]%b%b|[\xc4\xe4]%b%b%b%b)([\x01-\x7f])" % (
    (_NUMBER, _CLOCK) * 3
)
_match_text_item = re.compile(_TEXT_ITEM).match
_match_typed = re.compile(rb"\x01\x01%b%b%b" % (_NUMBER, _CLOCK, _TEXT_ITEM)).match


def is_typed_text(data: bytes) -> bool:
    """Whether this is, beyond doubt, an update: one short text in ASCII, put between others.

    `check_update` takes it, and so does every library; most of what is not this is an update too.
    """
    found = _match_typed(data)
    if found is None:
        return False
    client, clock, one, at_one, left, at_left, right, at_right, length = found.groups()
    start, end = found.end(), len(data) - 1
    return (
        length[0] == end - start
        and data[end] == 0
        and data[start:end].isascii()
        and _is_earlier(client, clock, one or left, at_one or at_left)
        and (one is not None or _is_earlier(client, clock, right, at_right))
    )


def _is_earlier(client: bytes, clock: bytes, other: bytes, at: bytes) -> bool:
    """Whether an item may refer to another: it is somebody else's, or came before."""
    if other != client:
        return True
    return len(at) < len(clock) or (len(at) == len(clock) and at[::-1] < clock[::-1])


def check_update(data: bytes) -> None:
    """Raise MalformedMessageError or LimitExceededError for what cannot be an update."""
    if is_typed_text(data):
        return
    nesting = _Nesting()
    reader = Reader(data)
    _skip_structs(reader, nesting)
    clients: set[int] = set()
    for _ in range(_count_clients(reader)):
        _add(clients, reader.var_uint())
        for _ in range(reader.count(each_bytes_min=2)):
            _check_clock(reader.var_uint() + _length(reader))
    reader.finish()
    if nesting.type_count > limits.update_depth_max:
        # Hardly ever: it may be deep, or only large. What it refers to may stand behind it.
        nesting = _Nesting(keeps_places=True)
        _skip_structs(Reader(data), nesting)
        depth = nesting.depth()
        if depth > limits.update_depth_max:
            raise LimitExceededError(
                "the depth of shared types in an update", depth, limits.update_depth_max
            )


def _skip_structs(reader: Reader, nesting: "_Nesting") -> None:
    clients: set[int] = set()
    for _ in range(_count_clients(reader)):
        struct_count = reader.count(each_bytes_min=2)
        client, clock = reader.var_uint(), reader.var_uint()
        _add(clients, client)
        for _ in range(struct_count):
            clock += _skip_struct(reader, client, clock, nesting)
            _check_clock(clock)


def _add(clients: set[int], client: int) -> None:
    if client in clients:
        raise MalformedMessageError("a Yjs update has each client once")
    clients.add(client)


def _count_clients(reader: Reader) -> int:
    count = reader.count(each_bytes_min=2)
    if count > limits.update_client_count_max:
        raise LimitExceededError(
            "the number of clients in an update", count, limits.update_client_count_max
        )
    return count


def _check_clock(clock: int) -> None:
    if clock > limits.update_clock_max:
        raise LimitExceededError("a clock in an update", clock, limits.update_clock_max)


def _length(reader: Reader) -> int:
    return _not_zero(reader.var_uint())


def _not_zero(length: int) -> int:
    if length == 0:
        raise MalformedMessageError("a length in a Yjs update is zero")
    return length


# ----------------------------------------------------------------------------------------- structs


_Id = tuple[int, int]


class _Nesting:
    """How many shared types of an update lie in others; and, if it keeps places, how deep."""

    def __init__(self, *, keeps_places: bool = False) -> None:
        self.type_count = 0
        self.keeps_places = keeps_places
        # Of each client: where its items begin, the parent or neighbour of each, and how much
        # deeper than that it lies.
        self._starts: dict[int, list[int]] = {}
        self._places: dict[int, list[tuple[_Id | None, int]]] = {}

    def add(
        self, item: _Id, parent: _Id | None, neighbour: _Id | None, *, is_type: bool = False
    ) -> None:
        """An item lies in its parent, or where its neighbour lies."""
        self.type_count += is_type and (parent or neighbour) is not None
        if self.keeps_places:
            client, clock = item
            self._starts.setdefault(client, []).append(clock)
            self._places.setdefault(client, []).append(
                (parent or neighbour, int(parent is not None))
            )

    def depth(self) -> int:
        """Of the item that lies deepest, in types of this update alone."""
        deepest = 0
        known: dict[_Id, int] = {}
        for client, starts in self._starts.items():
            for start in starts:
                deepest = max(deepest, self._depth_of((client, start), known))
        return deepest

    def _depth_of(self, item: _Id, known: dict[_Id, int]) -> int:
        """Not by recursion: a chain may have as many links as an update has items."""
        chain: list[tuple[_Id, int]] = []
        at: _Id | None = item
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


def _skip_struct(reader: Reader, client: int, clock: int, nesting: _Nesting) -> int:
    """Its length, which is how far the clock advances. Client and clock are its own."""
    if (found := reader.match(_match_text_item)) is not None:
        return _skip_matched_text(reader, found, client, clock, nesting)
    info = reader.byte()
    kind = info & _KIND
    if kind in (_REMOVED, _GAP):
        return _length(reader)
    if kind == _OLD_JSON:
        raise MalformedMessageError(
            "content of kind 2 in a Yjs update; copy the document with a Yjs of today"
        )
    skip_content = _CONTENTS.get(kind)
    if skip_content is None:
        raise MalformedMessageError(f"{kind} is no kind of content in a Yjs update")
    parent, neighbour = _skip_place(reader, info, client, clock)
    length = skip_content(reader)
    nesting.add((client, clock), parent, neighbour, is_type=kind == _TYPE)
    return length


def _skip_matched_text(
    reader: Reader, found: re.Match[bytes], client: int, clock: int, nesting: _Nesting
) -> int:
    one, at_one, left, at_left, right, at_right, length = found.groups()
    _check_before(one or left, at_one or at_left, client, clock)
    if nesting.keeps_places:
        neighbour = small_number(one or left), small_number(at_one or at_left)
        nesting.add((client, clock), None, neighbour)
    if right is not None:
        _check_before(right, at_right, client, clock)
    return _text_length(reader.text(length[0]))


def _check_before(other: bytes, at: bytes, client: int, clock: int) -> None:
    if small_number(other) == client and small_number(at) >= clock:
        raise _refers_to_later()


def _skip_place(
    reader: Reader, info: int, client: int, clock: int
) -> tuple[_Id | None, _Id | None]:
    """Where an item belongs: in a parent and perhaps under a key, or else beside others.

    The parent if it is an item, and the neighbour if there is one.
    """
    left = _read_id(reader, client, clock) if info & _HAS_LEFT else None
    right = _read_id(reader, client, clock) if info & _HAS_RIGHT else None
    if left is not None or right is not None:
        return None, left or right
    parent = None
    if reader.var_uint() == 1:
        reader.var_string()
    else:
        parent = _read_id(reader, client, clock)
    if info & _HAS_KEY:
        reader.var_string()
    return parent, None


def _read_id(reader: Reader, client: int, clock: int) -> _Id:
    """The id of an item that was there before the item of that client and clock."""
    other = reader.var_uint()
    earlier = reader.var_uint()
    _check_clock(earlier)
    if other == client and earlier >= clock:
        raise _refers_to_later()
    return other, earlier


def _refers_to_later() -> MalformedMessageError:
    return MalformedMessageError("an item in a Yjs update refers to itself or to a later one")


def _skip_binary(reader: Reader) -> int:
    reader.var_bytes()
    return 1


def _skip_text(reader: Reader) -> int:
    return _not_zero(_text_length(reader.var_string()))


def _text_length(text: str) -> int:
    # Clocks count as JavaScript does: two for what is outside the basic plane.
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _skip_embed(reader: Reader) -> int:
    reader.var_string()
    return 1


def _skip_format(reader: Reader) -> int:
    reader.var_string()
    reader.var_string()
    return 1


def _skip_type(reader: Reader) -> int:
    kind = reader.var_uint()
    if kind >= _TYPE_COUNT:
        raise MalformedMessageError(f"{kind} is no shared type of Yjs")
    if kind in _NAMED_TYPES:
        reader.var_string()
    return 1


def _skip_values(reader: Reader) -> int:
    count = reader.count(each_bytes_min=1)
    for _ in range(count):
        reader.skip_any()
    return _not_zero(count)


def _skip_document(reader: Reader) -> int:
    reader.var_string()
    reader.skip_any()
    return 1


_CONTENTS: dict[int, Callable[[Reader], int]] = {
    1: _length,
    3: _skip_binary,
    4: _skip_text,
    5: _skip_embed,
    6: _skip_format,
    7: _skip_type,
    8: _skip_values,
    9: _skip_document,
}
