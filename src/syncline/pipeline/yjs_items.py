"""Whether two states of a Yjs document hold the same, however they are written.

The same document can be encoded in many ways: an item may be cut in two, what was deleted may be
kept or thrown away, and what waits for its predecessors may stand merged or by itself. So beneath
the bytes, a state is a set of items, each with its place and content, and a set of ids that are
deleted; of an item that is deleted nothing else matters. These two are brought into one form here.

    run    items of one client with consecutive clocks, each put right behind the one before it
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pycrdt

from syncline.errors import MalformedMessageError, ProtocolError
from syncline.values import limits
from syncline.wire.lib0 import Reader

_HAS_LEFT, _HAS_RIGHT, _HAS_KEY = 0x80, 0x40, 0x20
_KIND = 0x1F
_REMOVED, _DELETED, _TEXTS, _TEXT, _VALUES, _GAP = 0, 1, 2, 4, 8, 10
# What may be cut anywhere; all else is one item.
_LONG: Final = (_TEXTS, _TEXT, _VALUES)
# Shared types that have a name.
_NAMED_TYPES: Final = (3, 5)
# Of numbers in values: bytes and form.
_FLOATS: Final = {124: (4, ">f"), 123: (8, ">d")}

_decode = msgspec.msgpack.Decoder(list[bytes]).decode

# Client and clock.
Id = tuple[int, int]
# Left and right neighbour, and without both the parent and perhaps a key.
Place = tuple[Id | None, Id | None, "str | Id | None", str | None]
Ranges = list[tuple[int, int]]


class _Structs(Reader):
    """Reads values as well, each in one form: libraries write objects in any order."""

    __slots__ = ()

    def any_value(self, depth_left: int = limits.json_depth_max) -> Any:
        if depth_left < 0:
            raise MalformedMessageError("a value in a Yjs update is nested too deep")
        tag = self.byte()
        match tag:
            case 125:
                return self.var_int()
            case 124 | 123:
                size, form = _FLOATS[tag]
                number: float = struct.unpack(form, self._take(size))[0]
                # As text: what is no number is equal to itself then.
                return int(number) if number.is_integer() else ("float", number.hex())
            case 122:
                return int.from_bytes(self._take(8), "big", signed=True)
            case 119:
                return self.var_string()
            case 116:
                return self.var_bytes()
            case 118:
                count = self.count(each_bytes_min=2)
                pairs = {self.var_string(): self.any_value(depth_left - 1) for _ in range(count)}
                return "{", *sorted(pairs.items(), key=lambda pair: pair[0])
            case 117:
                count = self.count(each_bytes_min=1)
                return "[", *(self.any_value(depth_left - 1) for _ in range(count))
            case _:
                # true, false, null and undefined are their tags alone, apart from all numbers.
                return ("tag", tag)

    def json_text(self) -> Any:
        text = self.var_string()
        try:
            return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")
        except msgspec.MsgspecError:
            return text


@dataclass(slots=True)
class _Run:
    clock: int
    end: int
    place: Place
    kind: int
    content: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """What an update holds, by client. Equal if and only if they hold the same."""

    runs: dict[int, list[_Run]]
    deleted: dict[int, Ranges]
    # What it has at all, deleted or not.
    known: dict[int, Ranges]


@dataclass(frozen=True, slots=True)
class _Held:
    """What an empty document makes of some updates."""

    taken_in: Items
    # Items that wait for others, and deletions of items that are not there.
    waiting: dict[int, Ranges]
    deleted_before: set[tuple[int, int, int]]


def holds_same(one: bytes, other: bytes) -> bool:
    """Of two states as the router stores them: a list of updates each.

    Raises ValueError for what is no such state.
    """
    try:
        return _held(_decode(one)) == _held(_decode(other))
    except (msgspec.MsgspecError, ProtocolError) as error:
        raise ValueError("this is no state of a Yjs document") from error


def _held(updates: list[bytes]) -> _Held:
    """Of all of them at once: one after the other, a document may leave some waiting for what it
    has got since.

    What else is deleted comes with an item: of two values under one key, the loser is. And what
    waits may have been taken in for a while, or not. So while any item waits for an update that
    never came, no more is asked than which items there are.
    """
    whole = pycrdt.merge_updates(*updates)
    doc = pycrdt.Doc[Any]()
    doc.apply_update(whole)
    found = items_of([doc.get_update()])
    rest = items_of([pycrdt.get_update(whole, doc.get_state())])
    taken_in = Items({}, {}, found.known) if rest.known else found
    return _Held(taken_in, rest.known, _of_nobody(rest.deleted, found.known, rest.known))


def _of_nobody(deleted: dict[int, Ranges], *known: dict[int, Ranges]) -> set[tuple[int, int, int]]:
    """Deletions of what none of them has: client, start and end."""
    found: set[tuple[int, int, int]] = set()
    for client, ranges in deleted.items():
        there = _joined([each for some in known for each in some.get(client, [])])
        for start, end in ranges:
            found.update((client, *part) for part in _outside(start, end, there))
    return found


def items_of(updates: Iterable[bytes]) -> Items:
    """All of them together. Raises ProtocolError."""
    structs: dict[int, list[_Run]] = {}
    deleted: dict[int, Ranges] = {}
    known: dict[int, Ranges] = {}
    for update in updates:
        reader = _Structs(update)
        for _ in range(reader.var_uint()):
            count, client, clock = reader.var_uint(), reader.var_uint(), reader.var_uint()
            for _ in range(count):
                start = clock
                is_there, clock = _read_struct(reader, client, clock, structs, deleted)
                if is_there:
                    known.setdefault(client, []).append((start, clock))
        for _ in range(reader.var_uint()):
            client = reader.var_uint()
            for _ in range(reader.var_uint()):
                start = reader.var_uint()
                deleted.setdefault(client, []).append((start, start + reader.var_uint()))
    gone = {client: _joined(ranges) for client, ranges in deleted.items()}
    runs = {
        client: _in_one_form(client, each, gone.get(client, [])) for client, each in structs.items()
    }
    there = {client: _joined(ranges) for client, ranges in known.items()}
    return Items({client: each for client, each in runs.items() if each}, gone, there)


def _read_struct(
    reader: _Structs,
    client: int,
    clock: int,
    structs: dict[int, list[_Run]],
    deleted: dict[int, Ranges],
) -> tuple[bool, int]:
    """Whether it is one at all, and where the next one begins."""
    info = reader.byte()
    kind = info & _KIND
    if kind == _GAP:
        return False, clock + reader.var_uint()
    if kind == _REMOVED:
        end = clock + reader.var_uint()
        deleted.setdefault(client, []).append((clock, end))
        return True, end
    place = _read_place(reader, info)
    if kind == _DELETED:
        end = clock + reader.var_uint()
        deleted.setdefault(client, []).append((clock, end))
        return True, end
    content = _read_content(reader, kind)
    end = clock + len(content)
    structs.setdefault(client, []).append(_Run(clock, end, place, kind, content))
    return True, end


def _read_place(reader: _Structs, info: int) -> Place:
    left = (reader.var_uint(), reader.var_uint()) if info & _HAS_LEFT else None
    right = (reader.var_uint(), reader.var_uint()) if info & _HAS_RIGHT else None
    if left is not None or right is not None:
        return left, right, None, None
    is_root = reader.var_uint() == 1
    parent = reader.var_string() if is_root else (reader.var_uint(), reader.var_uint())
    return None, None, parent, reader.var_string() if info & _HAS_KEY else None


def _read_content(reader: _Structs, kind: int) -> tuple[Any, ...]:
    """One value for each clock that it takes."""
    match kind:
        case 2:
            return tuple(reader.var_string() for _ in range(reader.var_uint()))
        case 3:
            return (reader.var_bytes(),)
        case 4:
            # Clocks count as JavaScript does: two for what is outside the basic plane.
            units = reader.var_string().encode("utf-16-le")
            return tuple(units[at : at + 2] for at in range(0, len(units), 2))
        case 5:
            return (reader.json_text(),)
        case 6:
            return ((reader.var_string(), reader.json_text()),)
        case 7:
            type_number = reader.var_uint()
            return ((type_number, reader.var_string() if type_number in _NAMED_TYPES else None),)
        case 8:
            return tuple(reader.any_value() for _ in range(reader.var_uint()))
        case 9:
            return ((reader.var_string(), reader.any_value()),)
        case _:
            raise MalformedMessageError(f"{kind} is no kind of content in a Yjs update")


def _joined(ranges: Ranges) -> Ranges:
    found: Ranges = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _in_one_form(client: int, structs: list[_Run], deleted: Ranges) -> list[_Run]:
    """Without what is deleted, without what comes twice, and in runs as long as can be."""
    found: list[_Run] = []
    known = 0
    for run in sorted(structs, key=lambda each: (each.clock, -each.end)):
        for start, end in _outside(max(run.clock, known), run.end, deleted):
            _append(client, found, _cut(client, run, start, end))
        known = max(known, run.end)
    return found


def _outside(start: int, end: int, deleted: Ranges) -> Iterable[tuple[int, int]]:
    for gone, back in deleted:
        if gone >= end:
            break
        if back > start:
            if gone > start:
                yield start, gone
            start = back
    if start < end:
        yield start, end


def _cut(client: int, run: _Run, start: int, end: int) -> _Run:
    place = run.place
    if start > run.clock:
        place = ((client, start - 1), place[1], None, None)
    content = run.content[start - run.clock : end - run.clock]
    return _Run(start, end, place, run.kind, content)


def _append(client: int, runs: list[_Run], run: _Run) -> None:
    last = runs[-1] if runs else None
    if (
        last is not None
        and run.kind in _LONG
        and last.kind == run.kind
        and last.end == run.clock
        and run.place[0] == (client, run.clock - 1)
        and run.place[1] == last.place[1]
    ):
        last.end = run.end
        last.content += run.content
    else:
        runs.append(run)
