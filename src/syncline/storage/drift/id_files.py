"""Files of ids: one on each line, in base64url or hex; or `.bin`, 24 bytes each and nothing else.

    line      blanks, an id or nothing, blanks, maybe `#` and a comment; then LF or CRLF

- Nothing is left out in silence: what is no id, and what is there twice, is counted and told with
  its line. Of each, the first few are told.
- A file is read in pieces. What is held of it is its ids and the numbers of their lines, for which
  there is room from the start: an id takes at least 33 bytes of the file.
- A file is written beside its place and renamed: there is the old one or the new one, whole.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.core.reconciliation.sets import Snapshot
from syncline.errors import LimitExceededError
from syncline.kernels import ranges
from syncline.kernels.id_texts import (
    BASE64_CHARACTERS,
    HEX_CHARACTERS,
    Texts,
    from_base64,
    from_hex,
    to_base64,
    to_hex,
)
from syncline.kernels.xxh3 import ID_BYTES, Ids
from syncline.storage.drift.comparing import Followed, RandomBytes, unfollowed
from syncline.storage.files import File, Files
from syncline.values.limits import KIB, MIB

BINARY_SUFFIX: Final = ".bin"
# Six gigabytes of memory, some.
ID_COUNT_MAX: Final = 100_000_000
# Places that are told of each kind; all are counted.
TOLD_COUNT_MAX: Final = 10
# Longer lines are comments, or none of ours.
LINE_BYTES_MAX: Final = 4 * KIB

_PIECE_BYTES: Final = 4 * MIB
_WRITTEN_ROWS: Final = 65_536
_SHOWN_BYTES_MAX: Final = 40
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LINE_FEED: Final = 10
_RETURN: Final = 13
_NO_IDS: Final = np.zeros((0, ID_BYTES), np.uint8)
# By the characters of an id.
_READERS: Final = {BASE64_CHARACTERS: from_base64, HEX_CHARACTERS: from_hex}

Numbers = npt.NDArray[np.int64]


class IdForm(Enum):
    BASE64 = "base64url"
    HEX = "hex"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Malformed:
    """What is no id, and where: its line, or its number among the ids of a binary file."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An id that is there already, in an earlier line."""

    line: int
    first_line: int
    id: bytes


@dataclass(frozen=True, slots=True)
class IdFile:
    """What a file holds. The lists tell the first of those that are counted."""

    path: str
    form: IdForm
    ids: Snapshot
    comment_count: int
    malformed_count: int
    malformed: tuple[Malformed, ...]
    duplicate_count: int
    duplicates: tuple[Duplicate, ...]


def read_id_file(path: str, files: Files, followed: Followed = unfollowed) -> IdFile:
    """Raises FileNotFoundError, and LimitExceededError for more ids than are read at once."""
    file = files.open(path, writable=False)
    try:
        return _read(file, followed)
    finally:
        file.close()


def form_of(path: str, like: IdForm) -> IdForm:
    """How a file of this name is written: its name says whether as text, and `like` as which."""
    if path.lower().endswith(BINARY_SUFFIX):
        return IdForm.BINARY
    return IdForm.BASE64 if like is IdForm.BINARY else like


def write_id_file(
    path: str,
    ids: Snapshot,
    form: IdForm,
    files: Files,
    random_bytes: RandomBytes,
    followed: Followed = unfollowed,
) -> None:
    """In place of what is there; durable on return. In order, each once."""
    draft = f"{path}.{random_bytes(6).hex()}.new"
    file = files.open(draft, create=True)
    try:
        try:
            offset = 0
            for piece in _written(ids.rows, form):
                file.write(offset, [piece])
                offset += len(piece)
                followed(len(piece))
            file.sync()
        finally:
            file.close()
        files.rename(draft, path)
    except BaseException:
        files.remove(draft)
        raise
    files.sync_folder(posixpath.dirname(path) or ".")


def _written(rows: Ids, form: IdForm) -> Iterator[bytes]:
    for start in range(0, len(rows), _WRITTEN_ROWS):
        part = rows[start : start + _WRITTEN_ROWS]
        if form is IdForm.BINARY:
            yield part.tobytes()
        else:
            texts = to_base64(part) if form is IdForm.BASE64 else to_hex(part)
            ends = np.full((len(part), 1), _LINE_FEED, np.uint8)
            yield np.concatenate((texts, ends), axis=1).tobytes()


# ----------------------------------------------------------------------------------------- reading


def _read(file: File, followed: Followed) -> IdFile:
    is_binary = form_of(file.path, IdForm.BASE64) is IdForm.BINARY
    found = _Found.of(file, ID_BYTES if is_binary else BASE64_CHARACTERS + 1)
    if is_binary:
        _read_binary(file, found, followed)
        form = IdForm.BINARY
    else:
        _read_text(file, found, followed)
        form = IdForm.HEX if found.hex_count > found.count - found.hex_count else IdForm.BASE64
    ids, duplicate_count, duplicates = found.set()
    return IdFile(
        file.path,
        form,
        ids,
        found.comment_count,
        found.malformed_count,
        tuple(found.malformed),
        duplicate_count,
        duplicates,
    )


@dataclass(slots=True)
class _Found:
    """What was read so far."""

    path: str
    rows: Ids
    lines: Numbers
    count: int = 0
    hex_count: int = 0
    comment_count: int = 0
    malformed_count: int = 0
    malformed: list[Malformed] = field(default_factory=list[Malformed])

    @classmethod
    def of(cls, file: File, id_bytes: int) -> "_Found":
        # The system gives memory where it is written to, so room costs nothing.
        room = min((file.size() + 1) // id_bytes, ID_COUNT_MAX)
        return cls(file.path, np.empty((room, ID_BYTES), np.uint8), np.empty(room, np.int64))

    def add(self, ids: Ids, lines: Numbers) -> None:
        end = self.count + len(ids)
        if end > len(self.rows):
            raise LimitExceededError(f"the number of ids in {self.path}", end, len(self.rows))
        self.rows[self.count : end] = ids
        self.lines[self.count : end] = lines
        self.count = end

    def refuse(self, line: int, reason: str) -> None:
        self.malformed_count += 1
        if len(self.malformed) < TOLD_COUNT_MAX:
            self.malformed.append(Malformed(line, reason))

    def set(self) -> tuple[Snapshot, int, tuple[Duplicate, ...]]:
        """The ids in order, each once; how many were there more than once, and some of those."""
        rows, lines = self.rows[: self.count], self.lines[: self.count]
        order = _order(rows)
        rows = rows[order]
        is_again = np.zeros(len(rows), np.bool_)
        is_again[1:] = (rows[1:] == rows[:-1]).all(axis=1)
        places = np.flatnonzero(is_again)
        if not len(places):
            return Snapshot(rows, is_sorted=True), 0, ()
        firsts = np.flatnonzero(~is_again)
        # Lines ascend among equal ids, since sorting kept their order.
        told = places[np.argsort(lines[order[places]], kind="stable")[:TOLD_COUNT_MAX]]
        before = firsts[np.searchsorted(firsts, told, "right") - 1]
        duplicates = tuple(
            Duplicate(int(lines[order[place]]), int(lines[order[first]]), rows[place].tobytes())
            for place, first in zip(told, before, strict=True)
        )
        return Snapshot(rows[firsts], is_sorted=True), len(places), duplicates


def _order(rows: Ids) -> Numbers:
    """In which they ascend; equal ones as they came."""
    heads = ranges.keys(rows)
    order = np.argsort(heads, kind="stable")
    heads = heads[order]
    if not (heads[1:] == heads[:-1]).any():
        return order
    words = rows.view(">u8").reshape(-1, 3)
    return np.lexsort((words[:, 2], words[:, 1], words[:, 0]))


def _read_binary(file: File, found: _Found, followed: Followed) -> None:
    piece_bytes = _PIECE_BYTES - _PIECE_BYTES % ID_BYTES
    for data in _pieces(file, piece_bytes, followed):
        whole = len(data) - len(data) % ID_BYTES
        rows = np.frombuffer(data[:whole], np.uint8).reshape(-1, ID_BYTES)
        found.add(rows, np.arange(found.count + 1, found.count + 1 + len(rows)))
        if whole < len(data):
            found.refuse(found.count + 1, f"the file ends after {len(data) - whole} bytes of it")


def _read_text(file: File, found: _Found, followed: Followed) -> None:
    """Whole lines at a time. Of a line that does not end for long, only the beginning is kept."""
    line, rest, is_cut = 1, b"", False
    for number, data in enumerate(_pieces(file, _PIECE_BYTES, followed)):
        data = data.removeprefix(_BYTE_ORDER_MARK) if number == 0 else data
        if is_cut:
            _, ends, data = data.partition(b"\n")
            if not ends:
                continue
            is_cut = False
            _take_line(found, line, rest)
            line, rest = line + 1, b""
        end = data.rfind(b"\n") + 1
        if end:
            line += _take_lines(found, line, rest + data[:end])
            rest = data[end:]
        else:
            rest += data
        # One byte more may be the first half of its end.
        if len(rest) > LINE_BYTES_MAX + 1:
            rest, is_cut = rest[: LINE_BYTES_MAX + 1], True
    if rest:
        _take_line(found, line, rest)


def _take_line(found: _Found, line: int, text: bytes) -> None:
    _add_in_order(
        found, line, [(ids := _odd_line(found, line, text), np.zeros(len(ids), np.int64))]
    )


def _pieces(file: File, piece_bytes: int, followed: Followed) -> Iterator[bytes]:
    """Up to the size that it had when reading began."""
    size = file.size()
    for offset in range(0, size, piece_bytes):
        data = file.read(offset, min(piece_bytes, size - offset))
        followed(len(data))
        yield data


def _take_lines(found: _Found, first_line: int, data: bytes) -> int:
    """How many there are. `data` ends with one."""
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(characters == _LINE_FEED)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    lengths = ends - starts
    lengths -= (lengths > 0) & (characters[ends - 1] == _RETURN)
    taken: list[tuple[Ids, Numbers]] = []
    is_left = np.ones(len(ends), np.bool_)
    for size, read in _READERS.items():
        places = np.flatnonzero(lengths == size)
        if len(places):
            ids, are_ids = read(_texts(characters, starts[places], size))
            places = places[are_ids]
            is_left[places] = False
            found.hex_count += len(places) if size == HEX_CHARACTERS else 0
            taken.append((ids[are_ids], places))
    for place in np.flatnonzero(is_left).tolist():
        start = int(starts[place])
        ids = _odd_line(found, first_line + place, data[start : start + int(lengths[place])])
        taken.append((ids, np.full(len(ids), place)))
    _add_in_order(found, first_line, taken)
    return len(ends)


def _texts(characters: npt.NDArray[np.uint8], starts: Numbers, size: int) -> Texts:
    texts: Texts = np.lib.stride_tricks.sliding_window_view(characters, size)[starts]
    return texts


def _add_in_order(found: _Found, first_line: int, taken: list[tuple[Ids, Numbers]]) -> None:
    """By their lines: of two equal ids, the upper one is the first."""
    if len(taken) > 1:
        places = np.concatenate([each for _, each in taken])
        order = np.argsort(places)
        taken = [(np.concatenate([ids for ids, _ in taken])[order], places[order])]
    for ids, places in taken:
        found.add(ids, places + first_line)


def _odd_line(found: _Found, line: int, text: bytes) -> Ids:
    """The id in a line that is not an id alone; none if it has none, which is noted."""
    content, mark, _ = text[: LINE_BYTES_MAX + 1].partition(b"#")
    content = content.strip()
    if mark and not content:
        found.comment_count += 1
    elif len(text) > LINE_BYTES_MAX:
        found.refuse(line, f"it is longer than {LINE_BYTES_MAX} bytes")
    elif content:
        read = _READERS.get(len(content))
        if read is not None:
            ids, are_ids = read(np.frombuffer(content, np.uint8).reshape(1, -1))
            if are_ids[0]:
                found.hex_count += len(content) == HEX_CHARACTERS
                return ids
        found.refuse(line, _no_id(content))
    return _NO_IDS


def _no_id(content: bytes) -> str:
    shown = content[:_SHOWN_BYTES_MAX].decode("ascii", "backslashreplace")
    shown = shown if shown.isprintable() else ascii(shown)[1:-1]
    more = "…" if len(content) > _SHOWN_BYTES_MAX else ""
    return (
        f"{shown}{more} is no id, which has {BASE64_CHARACTERS} characters in base64url or "
        f"{HEX_CHARACTERS} in hex"
    )
