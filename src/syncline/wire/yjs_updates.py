"""State vectors and updates of Yjs, encoding v1: as much of them as routing needs.

    state vector  varUint n, then n times: varUint client, varUint clock (the next one expected)
    update        structs, then deletions
    structs       varUint n, then n times: varUint m, varUint client, varUint first clock, m structs
    deletions     varUint n, then n times: varUint client, varUint m, m times: varUint clock, length
    struct        info byte, then by its low 5 bits: 0 removed for good or 10 a gap, both with
                  varUint length; 1 to 9 an item: its place, then its content of that kind

`check_update` refuses garbage before it is stored. It looks at lengths and tags, not at what an
item refers to: that takes the document, and is found out when the update is folded into it.
"""

from collections.abc import Callable, Mapping

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire.lib0 import Reader, var_uint

EMPTY_UPDATE = b"\x00\x00"
EMPTY_STATE_VECTOR = b"\x00"

_HAS_LEFT, _HAS_RIGHT, _HAS_KEY = 0x80, 0x40, 0x20
_KIND = 0x1F
_REMOVED, _GAP = 0, 10
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


def encode_state_vector(vector: Mapping[int, int]) -> bytes:
    """What `decode_state_vector` reads; the highest client comes first, as Yjs writes it."""
    parts = [var_uint(len(vector))]
    for client in sorted(vector, reverse=True):
        parts += var_uint(client), var_uint(vector[client])
    return b"".join(parts)


def check_update(data: bytes, walk_count_max: int = limits.update_walk_count_max) -> None:
    """Raise MalformedMessageError or LimitExceededError for what cannot be an update.

    At most `walk_count_max` clients, structs and ranges are looked at, so that its cost is bounded;
    what comes after them in a larger update is believed until it is folded.
    """
    reader = Reader(data)
    if _skip_structs(reader, walk_count_max):
        return
    if _skip_deletions(reader, walk_count_max):
        return
    reader.finish()


def _skip_structs(reader: Reader, walk_left: int) -> bool:
    """Whether it stopped on the way."""
    for _ in range(_count_clients(reader)):
        struct_count = reader.count(each_bytes_min=2)
        _skip_id(reader)
        for _ in range(min(struct_count, walk_left)):
            _skip_struct(reader)
        walk_left -= 1 + struct_count
        if walk_left < 0:
            return True
    return False


def _skip_deletions(reader: Reader, walk_left: int) -> bool:
    """Whether it stopped on the way."""
    for _ in range(_count_clients(reader)):
        reader.var_uint()
        range_count = reader.count(each_bytes_min=2)
        for _ in range(min(range_count, walk_left)):
            _skip_id(reader)
        walk_left -= 1 + range_count
        if walk_left < 0:
            return True
    return False


def _count_clients(reader: Reader) -> int:
    count = reader.count(each_bytes_min=2)
    if count > limits.update_client_count_max:
        raise LimitExceededError(
            "the number of clients in an update", count, limits.update_client_count_max
        )
    return count


# ----------------------------------------------------------------------------------------- structs


def _skip_struct(reader: Reader) -> None:
    info = reader.byte()
    kind = info & _KIND
    if kind in (_REMOVED, _GAP):
        reader.var_uint()
        return
    skip_content = _CONTENTS.get(kind)
    if skip_content is None:
        raise MalformedMessageError(f"{kind} is no kind of content in a Yjs update")
    _skip_place(reader, info)
    skip_content(reader)


def _skip_place(reader: Reader, info: int) -> None:
    """Where an item belongs: between two others, or else in a parent and perhaps under a key."""
    if info & _HAS_LEFT:
        _skip_id(reader)
    if info & _HAS_RIGHT:
        _skip_id(reader)
    if info & (_HAS_LEFT | _HAS_RIGHT):
        return
    if reader.var_uint() == 1:
        reader.var_string()
    else:
        _skip_id(reader)
    if info & _HAS_KEY:
        reader.var_string()


def _skip_id(reader: Reader) -> None:
    reader.var_uint()
    reader.var_uint()


def _skip_deleted(reader: Reader) -> None:
    reader.var_uint()


def _skip_texts(reader: Reader) -> None:
    for _ in range(reader.count(each_bytes_min=1)):
        reader.var_string()


def _skip_binary(reader: Reader) -> None:
    reader.var_bytes()


def _skip_text(reader: Reader) -> None:
    reader.var_string()


def _skip_format(reader: Reader) -> None:
    reader.var_string()
    reader.var_string()


def _skip_type(reader: Reader) -> None:
    kind = reader.var_uint()
    if kind >= _TYPE_COUNT:
        raise MalformedMessageError(f"{kind} is no shared type of Yjs")
    if kind in _NAMED_TYPES:
        reader.var_string()


def _skip_values(reader: Reader) -> None:
    for _ in range(reader.count(each_bytes_min=1)):
        reader.skip_any()


def _skip_document(reader: Reader) -> None:
    reader.var_string()
    reader.skip_any()


_CONTENTS: dict[int, Callable[[Reader], None]] = {
    1: _skip_deleted,
    2: _skip_texts,
    3: _skip_binary,
    4: _skip_text,
    5: _skip_text,  # an embedded object, as JSON
    6: _skip_format,
    7: _skip_type,
    8: _skip_values,
    9: _skip_document,
}
