"""Repair plans: what to do to a router so that its sets are those that are wanted.

A text file, a JSON object a line (docs/formats/tables.md, "Repair plan"):

    head      format, version, router, wanted, count
    repair    action, service, role, id; `count` of them, sorted by service, role and id

A plan is read in full before anything is done by it: one that is cut short, that goes on, that is
of something else or has a line that makes no sense is refused as a whole. Then it is read again,
once for each kind of action, so that a long one takes no memory.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from syncline.errors import ConfigError, MalformedMessageError, NewerFormatError
from syncline.storage.drift.comparing import Followed, unfollowed
from syncline.storage.files import File, Files
from syncline.values.ids import StreamId
from syncline.values.limits import KIB, MIB
from syncline.values.queue_records import ServiceRole
from syncline.values.repairs import Action, Repair

FORMAT: Final = "syncline repair plan"
VERSION: Final = 1
# The name of a snapshot begins with so many characters of the id of its store.
STORE_CHARACTERS: Final = 8
LINE_BYTES_MAX: Final = 4 * KIB

# Lines that are told of at once.
_FOLLOWED_COUNT: Final = 1_024
_PIECE_BYTES: Final = 1 * MIB
_HEX_DIGITS: Final = frozenset("0123456789abcdef")
_NAME_REST_CHARACTERS: Final = 16
_NAME_CHARACTERS_MAX: Final = 200

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    router: str
    wanted: str
    count: int


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["associate", "dissociate"]
    service: str
    role: Literal["M", "N"]
    id: str


@dataclass(frozen=True, slots=True)
class PlanHead:
    """`router` and `wanted` are snapshots: of the router as it was, and as it should be."""

    router: str
    wanted: str
    count: int

    @property
    def store(self) -> str:
        """How the id of the router's store begins, in hex."""
        return self.router[:STORE_CHARACTERS]


class Plan:
    """One that was read in full; see the module."""

    def __init__(self, file: File, head: PlanHead) -> None:
        self.head = head
        self._file = file

    def repairs(self, action: Action) -> Iterator[Repair]:
        """In the order of the file. Raises ConfigError if that was changed meanwhile."""
        for repair in _repairs(self._file, lambda head: head == self.head):
            if repair.action is action:
                yield repair


@contextmanager
def read_plan(path: str, files: Files, followed: Followed = unfollowed) -> Generator[Plan]:
    """Told of the repairs as they are read. Raises ConfigError, NewerFormatError, StorageError."""
    if not files.exists(path) or files.is_folder(path):
        raise ConfigError(f"there is no repair plan {path}")
    file = files.open(path, writable=False)
    try:
        heads: list[PlanHead] = []

        def keep(head: PlanHead) -> bool:
            heads.append(head)
            return True

        for number, _ in enumerate(_repairs(file, keep), 1):
            if number % _FOLLOWED_COUNT == 0:
                followed(_FOLLOWED_COUNT)
        yield Plan(file, heads[0])
    finally:
        file.close()


def encode_head(head: PlanHead) -> str:
    line = _Head(FORMAT, VERSION, head.router, head.wanted, head.count)
    return msgspec.json.encode(line).decode() + "\n"


def encode_repair(repair: Repair) -> str:
    line = {
        "action": repair.action.value,
        "service": str(repair.service),
        "role": repair.role.value,
        "id": str(repair.id),
    }
    return msgspec.json.encode(line).decode() + "\n"


# ----------------------------------------------------------------------------------------- reading


def _repairs(file: File, is_wanted: Callable[[PlanHead], bool]) -> Iterator[Repair]:
    """All, and then it is known that there are no more and no fewer."""
    lines = enumerate(_lines(file), 1)
    head = _head(file.path, next(lines, (1, b""))[1])
    if not is_wanted(head):
        raise _refused(file.path, 1, "it was changed while it was read")
    count, last = 0, (b"", "", b"")
    for number, line in lines:
        repair = _repair(file.path, number, line)
        place = (repair.service, repair.role.value, repair.id)
        if place <= last:
            raise _refused(file.path, number, "it does not come behind the line before it")
        count, last = count + 1, place
        yield repair
    if count != head.count:
        raise _refused(file.path, count + 1, f"there are {count} repairs and not {head.count}")


def _head(path: str, line: bytes) -> PlanHead:
    found = _decoded(path, 1, line, _Head)
    if found.format != FORMAT:
        raise _refused(path, 1, "it is not the beginning of a repair plan")
    if found.version > VERSION:
        raise NewerFormatError(path, found.version, VERSION)
    head = PlanHead(found.router, found.wanted, found.count)
    has_names = _is_name(head.router) and 0 < len(head.wanted) <= _NAME_CHARACTERS_MAX
    if found.version != VERSION or found.count < 0 or not has_names:
        raise _refused(path, 1, "it is not the beginning of a repair plan")
    return head


def _is_name(text: str) -> bool:
    store, _, rest = text.partition("-")
    has_length = (len(store), len(rest)) == (STORE_CHARACTERS, _NAME_REST_CHARACTERS)
    return has_length and _HEX_DIGITS.issuperset(store + rest)


def _repair(path: str, number: int, line: bytes) -> Repair:
    found = _decoded(path, number, line, _Line)
    try:
        service, id_ = StreamId.parse(found.service), StreamId.parse(found.id)
    except MalformedMessageError as error:
        raise _refused(path, number, str(error)) from error
    return Repair(Action(found.action), service, ServiceRole(found.role), id_)


def _decoded(path: str, number: int, line: bytes, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        what = "a repair" if kind is _Line else "the beginning of a repair plan"
        raise _refused(path, number, f"it is not {what}: {error}") from error


def _lines(file: File) -> Iterator[bytes]:
    """Without their ends. The last one has one too, or it may have been longer once."""
    rest, offset, number = b"", 0, 0
    while piece := file.read(offset, _PIECE_BYTES):
        offset += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise _refused(file.path, number, "it is longer than any line of a repair plan")
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise _refused(file.path, number + 1, "it is longer than any line of a repair plan")
    if rest:
        raise _refused(file.path, number + 1, "it is cut short")


def _refused(path: str, number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used as a repair plan, line {number}: {reason}; "
        "`syncline pipeline reconcile --plan` writes one"
    )
