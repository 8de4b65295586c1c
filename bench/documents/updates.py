"""Yjs updates, made before any clock runs, and the clocks that an update covers.

Typing looks like people: runs of up to forty characters, then a jump to another place. One update
inserts one character, so it covers one clock of its author, and the number of clocks that a reader
has is the number of updates that were delivered to it. That stays true when a server merges
updates: a merged one covers more clocks.

An update is read only as far as needed (v1 encoding, docs of Yjs):

    update  = varint count, client*, deletions
    client  = varint structs, varint client, varint first clock, struct*
    struct  = info byte, [origin id], [right origin id], [parent, [key]], content
    id      = varint client, varint clock
"""

import marshal
import random
from collections.abc import Iterator
from pathlib import Path

from pycrdt import Doc, Map, Text, TransactionEvent

from bench.documents.framing import read_varint
from bench.support.processes import BenchError

TEXT = "text"
BLOBS = "blobs"
_RUN_MAX = 40
_LETTERS = "etaoinshrdlu "

Range = tuple[int, int, int]  # client, first clock, clock after the last


def typed_updates(client: int, count: int) -> list[bytes]:
    """`count` keystrokes of one author into the text of a new document."""
    document: Doc[Text] = Doc(client_id=client)
    text = document.get(TEXT, type=Text)
    made: list[bytes] = []
    recording = document.observe(lambda event: _record(event, made))
    for at, letter in _keystrokes(client, count):
        text.insert(at, letter)
    document.unobserve(recording)
    return made


def write_updates(updates: list[bytes], path: Path) -> None:
    """So that one process makes a long list, and all generators of a run have the same."""
    path.write_bytes(marshal.dumps(updates))


def read_updates(path: Path) -> list[bytes]:
    found: list[bytes] = marshal.loads(path.read_bytes())
    return found


def typed_text(client: int, count: int) -> str:
    """What a document holds after the first `count` of them."""
    text = bytearray()
    for at, letter in _keystrokes(client, count):
        text.insert(at, ord(letter))
    return text.decode()


def _keystrokes(client: int, count: int) -> Iterator[tuple[int, str]]:
    chance = random.Random(client)
    at = left = 0
    for length in range(count):
        if left == 0:
            at, left = chance.randint(0, length), chance.randint(1, _RUN_MAX)
        yield at, chance.choice(_LETTERS)
        at, left = at + 1, left - 1


def replaced_updates(client: int, count: int, size: int) -> list[bytes]:
    """`count` times the same key gets `size` new bytes: the document does not grow."""
    chance = random.Random(client)
    document: Doc[Map[bytes]] = Doc(client_id=client)
    blobs = document.get(BLOBS, type=Map[bytes])
    made: list[bytes] = []
    recording = document.observe(lambda event: _record(event, made))
    for _ in range(count):
        blobs["blob"] = chance.randbytes(size)
    document.unobserve(recording)
    return made


def _record(event: TransactionEvent, made: list[bytes]) -> None:
    made.append(event.update)


def text_of(updates: list[bytes]) -> str:
    document: Doc[Text] = Doc()
    for update in updates:
        document.apply_update(update)
    return str(document.get(TEXT, type=Text))


# ------------------------------------------------------------------------------ reading updates

_GC, _DELETED, _BINARY, _STRING, _ANY, _SKIP = 0, 1, 3, 4, 8, 10
_HAS_LEFT, _HAS_RIGHT, _HAS_KEY, _KIND_BITS = 0x80, 0x40, 0x20, 0x1F
_TAG_OF_BYTES = 116


def ranges_of(update: bytes) -> tuple[Range, ...]:
    """Which clocks of whom an update brings, deletions aside."""
    client_count, at = read_varint(update, 0)
    ranges: list[Range] = []
    for _ in range(client_count):
        struct_count, at = read_varint(update, at)
        client, at = read_varint(update, at)
        clock, at = read_varint(update, at)
        first = clock
        for _ in range(struct_count):
            is_skip = update[at] & _KIND_BITS == _SKIP
            length, at = _read_struct(update, at)
            if is_skip:
                ranges.append((client, first, clock))
                first = clock + length
            clock += length
        ranges.append((client, first, clock))
    return tuple(each for each in ranges if each[2] > each[1])


def _read_struct(data: bytes, at: int) -> tuple[int, int]:
    """How many clocks a struct takes, and where the next one starts."""
    info = data[at]
    kind, at = info & _KIND_BITS, at + 1
    if kind in (_GC, _SKIP):
        return read_varint(data, at)
    at = _skip_place(data, at, info)
    if kind == _DELETED:
        return read_varint(data, at)
    if kind == _BINARY:
        return 1, _skip_sized(data, at)
    length, at = read_varint(data, at)
    if kind == _STRING:  # ASCII, so a byte is a clock
        return length, at + length
    if kind != _ANY:
        raise BenchError(f"a server sent content of kind {kind}, which nobody wrote")
    for _ in range(length):
        if data[at] != _TAG_OF_BYTES:
            raise BenchError(f"a server sent a value with tag {data[at]}, which nobody wrote")
        at = _skip_sized(data, at + 1)
    return length, at


def _skip_place(data: bytes, at: int, info: int) -> int:
    """Past the neighbours, or the parent of one that has none."""
    for flag in (_HAS_LEFT, _HAS_RIGHT):
        if info & flag:
            at = _skip_id(data, at)
    if info & (_HAS_LEFT | _HAS_RIGHT):
        return at
    is_root, at = read_varint(data, at)
    at = _skip_sized(data, at) if is_root else _skip_id(data, at)
    return _skip_sized(data, at) if info & _HAS_KEY else at


def _skip_id(data: bytes, at: int) -> int:
    return read_varint(data, read_varint(data, at)[1])[1]


def _skip_sized(data: bytes, at: int) -> int:
    length, at = read_varint(data, at)
    return at + length
