"""The structs of a Yjs update, passed over one by one: see `syncline.wire.yjs_updates`.

Nearly every update is what a keystroke makes, and nearly every struct of a large one is a piece of
text between others: both are matched as a whole, which costs a fifth of reading number by number
(bench: documents).
"""

import re
from collections.abc import Callable
from typing import Any

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire.lib0 import Reader, small_number

_HAS_LEFT, _HAS_RIGHT, _HAS_KEY = 0x80, 0x40, 0x20
_KIND = 0x1F
_REMOVED, _GAP = 0, 10
_OLD_JSON, _TYPE = 2, 7
# Shared types by their number; XML elements and hooks have a name.
_TYPE_COUNT = 7
_NAMED_TYPES = frozenset((3, 5))

Id = tuple[int, int]


class Watcher:
    """Hears of the structs while they are passed over; of items only if it wants to."""

    __slots__ = ()
    wants_items = False
    takes_old_json = False

    def begin(self, client: int, begin: int, left: int) -> None:
        """The structs of a client follow, the first of that clock; so many bytes are left."""

    def struct(self, end: int, left: int) -> None:
        """One was passed: the clock behind it, and how many bytes are left."""

    def client(self, client: int, begin: int, end: int) -> None:
        """All structs of a client were passed: clocks from `begin` to below `end`."""

    def item(self, at: Id, parent: Id | None, left: Id | None, right: Id | None) -> None:
        """An item lies in its parent, or where its neighbours lie."""

    def type_in_another(self) -> None:
        """An item is a shared type, and is not known to lie at the top of the document."""

    def gap(self, client: int, end: int) -> None:
        """Something is missing, up to that clock."""


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


def typed_text(data: bytes) -> tuple[Any, ...] | None:
    """The parts of an update that is, beyond doubt, one short text between others.

    Client and clock as they are written; those of its neighbour if it has one, and None twice;
    or None twice and those of its left and right neighbours; the length of the text.
    """
    found = _match_typed(data)
    if found is None:
        return None
    parts = found.groups()
    client, clock, one, at_one, left, at_left, right, at_right, length = parts
    start, end = found.end(), len(data) - 1
    is_one = (
        length[0] == end - start
        and data[end] == 0
        and data[start:end].isascii()
        and _is_earlier(client, clock, one or left, at_one or at_left)
        and (one is not None or _is_earlier(client, clock, right, at_right))
    )
    return parts if is_one else None


def _is_earlier(client: bytes, clock: bytes, other: bytes, at: bytes) -> bool:
    """Whether an item may refer to another: it is somebody else's, or came before."""
    if other != client:
        return True
    return len(at) < len(clock) or (len(at) == len(clock) and at[::-1] < clock[::-1])


def skip_structs(reader: Reader, watcher: Watcher) -> None:
    """All of an update, up to the deletions. Raises MalformedMessageError or LimitExceededError."""
    clients: set[int] = set()
    for _ in range(count_clients(reader)):
        struct_count = reader.count(each_bytes_min=2)
        client, clock = reader.var_uint(), reader.var_uint()
        add_client(clients, client)
        begin = clock
        watcher.begin(client, clock, reader.left)
        for _ in range(struct_count):
            clock += _skip_struct(reader, client, clock, watcher)
            check_clock(clock)
            if watcher.wants_items:
                watcher.struct(clock, reader.left)
        watcher.client(client, begin, clock)


def skip_deletions(reader: Reader, deleted: Callable[[int, int], None]) -> None:
    """The rest of an update; `deleted` hears the client and the end of each range."""
    clients: set[int] = set()
    for _ in range(count_clients(reader)):
        client = reader.var_uint()
        add_client(clients, client)
        for _ in range(reader.count(each_bytes_min=2)):
            end = reader.var_uint() + _length(reader)
            check_clock(end)
            deleted(client, end)
    reader.finish()


def add_client(clients: set[int], client: int) -> None:
    if client in clients:
        raise MalformedMessageError("a Yjs update has each client once")
    clients.add(client)


def count_clients(reader: Reader) -> int:
    count = reader.count(each_bytes_min=2)
    if count > limits.update_client_count_max:
        raise LimitExceededError(
            "the number of clients in an update", count, limits.update_client_count_max
        )
    return count


def check_clock(clock: int) -> None:
    if clock > limits.update_clock_max:
        raise LimitExceededError("a clock in an update", clock, limits.update_clock_max)


def _length(reader: Reader) -> int:
    return _not_zero(reader.var_uint())


def _not_zero(length: int) -> int:
    if length == 0:
        raise MalformedMessageError("a length in a Yjs update is zero")
    return length


def _skip_struct(reader: Reader, client: int, clock: int, watcher: Watcher) -> int:
    """Its length, which is how far the clock advances. Client and clock are its own."""
    if (found := reader.match(_match_text_item)) is not None:
        return _skip_matched_text(reader, found, client, clock, watcher)
    info = reader.byte()
    kind = info & _KIND
    if kind in (_REMOVED, _GAP):
        length = _length(reader)
        if kind == _GAP:
            watcher.gap(client, clock + length)
        return length
    if kind == _OLD_JSON and not watcher.takes_old_json:
        raise MalformedMessageError(
            "content of kind 2 in a Yjs update; copy the document with a Yjs of today"
        )
    skip_content = _CONTENTS.get(kind)
    if skip_content is None:
        raise MalformedMessageError(f"{kind} is no kind of content in a Yjs update")
    parent, left, right = _skip_place(reader, info, client, clock)
    if kind == _TYPE and (parent or left or right) is not None:
        watcher.type_in_another()
    if watcher.wants_items:
        watcher.item((client, clock), parent, left, right)
    return skip_content(reader)


def _skip_matched_text(
    reader: Reader, found: re.Match[bytes], client: int, clock: int, watcher: Watcher
) -> int:
    one, at_one, left, at_left, right, at_right, length = found.groups()
    _check_before(one or left, at_one or at_left, client, clock)
    if right is not None:
        _check_before(right, at_right, client, clock)
    if watcher.wants_items:
        neighbour = small_number(one or left), small_number(at_one or at_left)
        other = None if right is None else (small_number(right), small_number(at_right))
        watcher.item((client, clock), None, neighbour, other)
    return _text_length(reader.text(length[0]))


def _check_before(other: bytes, at: bytes, client: int, clock: int) -> None:
    if small_number(other) == client and small_number(at) >= clock:
        raise _refers_to_later()


def _skip_place(
    reader: Reader, info: int, client: int, clock: int
) -> tuple[Id | None, Id | None, Id | None]:
    """Where an item belongs: in a parent and perhaps under a key, or else beside others.

    The parent if it is an item, and the neighbours, left and right, that there are.
    """
    left = _read_id(reader, client, clock) if info & _HAS_LEFT else None
    right = _read_id(reader, client, clock) if info & _HAS_RIGHT else None
    if left is not None or right is not None:
        return None, left, right
    parent = None
    if reader.var_uint() == 1:
        reader.var_string()
    else:
        parent = _read_id(reader, client, clock)
    if info & _HAS_KEY:
        reader.var_string()
    return parent, None, None


def _read_id(reader: Reader, client: int, clock: int) -> Id:
    """The id of an item that was there before the item of that client and clock."""
    other = reader.var_uint()
    earlier = reader.var_uint()
    check_clock(earlier)
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


def _skip_old_json(reader: Reader) -> int:
    count = reader.count(each_bytes_min=1)
    for _ in range(count):
        reader.var_string()
    return _not_zero(count)


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
    2: _skip_old_json,
    3: _skip_binary,
    4: _skip_text,
    5: _skip_embed,
    6: _skip_format,
    7: _skip_type,
    8: _skip_values,
    9: _skip_document,
}
