"""Tells a data folder that was restored from the one that its backup was made of.

A restored folder has the ids, sequences and positions of the old one, and soon other updates under
them. Who remembers a place in the old one must not go on from there. So each restore begins a
*life*: random bytes on which everything depends that peers are told about a position, and the
position of the log at which the new folder goes its own way.

    LIFE = "SLLIFE01" | u32 count | u32 crc | { life }     the oldest first
    life = 16 random bytes | u64 branch | 16 bytes, the log that it branched off from

Numbers are little-endian; the crc is CRC32C of everything else, in order. At most 1,024 lives are
kept: then the oldest are forgotten. A file of 16 bytes without the magic is that of an earlier
version: one life, of which no branch is known.

A *log id* names what was written in one life: the store's id in the first one, after that a hash of
it under the life's bytes. So a log id and a position name a record for ever, whatever is restored.
"""

import posixpath
import struct
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from syncline.errors import CorruptionError
from syncline.storage.files import Files
from syncline.storage.log.format import crc32c_extend

LIFE_NAME: Final = "LIFE"
LIFE_BYTES: Final = 16
LOG_ID_BYTES: Final = 16
LIFE_COUNT_MAX: Final = 1_024
NO_LOG: Final = bytes(LOG_ID_BYTES)

_MAGIC: Final = b"SLLIFE01"
_COUNT: Final = struct.Struct("<I")
_CRC: Final = struct.Struct("<I")
_HEAD_BYTES: Final = len(_MAGIC) + _COUNT.size + _CRC.size
_ROW: Final = struct.Struct(f"<{LIFE_BYTES}sQ{LOG_ID_BYTES}s")
_FILE_BYTES_MAX: Final = _HEAD_BYTES + LIFE_COUNT_MAX * _ROW.size
_DRAFT_NAME: Final = "LIFE.new"
_PERSON: Final = b"syncline.log"


@dataclass(frozen=True, slots=True)
class Life:
    """One restore. `branch` is 0 and `former` zeros where an earlier version did not keep them."""

    seed: bytes
    branch: int = 0
    former: bytes = NO_LOG


@dataclass(frozen=True, slots=True)
class LogPart:
    """The positions of a folder that belong to one log: from `start` up to `end`, if it has one."""

    log_id: bytes
    start: int
    end: int | None


def begin_life(files: Files, folder: str, store_id: bytes, seed: bytes, branch: int) -> Life:
    """The folder goes its own way from position `branch` on. Durable on return.

    Raises CorruptionError for a LIFE that cannot be read.
    """
    lives = read_lives(files, folder)
    life = Life(seed, branch, log_id(store_id, lives))
    _write(files, folder, (*lives, life)[-LIFE_COUNT_MAX:])
    return life


def copy_life(files: Files, source: str, target: str) -> None:
    """A copy of a folder that was restored is one as well. Raises CorruptionError."""
    if lives := read_lives(files, source):
        _write(files, target, lives)


def read_lives(files: Files, folder: str) -> tuple[Life, ...]:
    """All that are known, the oldest first; none for a folder that was never restored.

    Raises CorruptionError.
    """
    path = posixpath.join(folder, LIFE_NAME)
    if not files.exists(path):
        return ()
    file = files.open(path, writable=False)
    try:
        data = file.read(0, _FILE_BYTES_MAX + 1)
    finally:
        file.close()
    return decode_lives(data, path)


def read_life(files: Files, folder: str) -> bytes:
    """The random bytes of the life that the folder is in; empty if it was never restored.

    Raises CorruptionError.
    """
    lives = read_lives(files, folder)
    return lives[-1].seed if lives else b""


def in_life(incarnation: bytes, life: bytes) -> bytes:
    """How an incarnation is known to peers, as long as it is."""
    if not life:
        return incarnation
    return blake2b(incarnation, digest_size=len(incarnation), key=life).digest()


def log_id(store_id: bytes, lives: tuple[Life, ...]) -> bytes:
    """The id of the log that the folder is writing."""
    if not lives:
        return store_id
    key = lives[-1].seed
    return blake2b(store_id, digest_size=LOG_ID_BYTES, key=key, person=_PERSON).digest()


def log_parts(store_id: bytes, lives: tuple[Life, ...]) -> tuple[LogPart, ...]:
    """Which positions of a folder belong to which log, in order; the last has no end."""
    parts: list[LogPart] = []
    start = 0
    for life in lives:
        # None where nothing was written between two restores.
        if life.branch > start:
            parts.append(LogPart(life.former, start, life.branch))
            start = life.branch
    return (*parts, LogPart(log_id(store_id, lives), start, None))


def life_with_records(lives: tuple[Life, ...]) -> Life | None:
    """The last life, with the log that has the records before its branch; None without any.

    Of a folder that was restored again before anything was written to it, that is not the log in
    between: no record is known by the id of that one.
    """
    if not lives:
        return None
    *former, _ = log_parts(NO_LOG, lives)
    return replace(lives[-1], former=former[-1].log_id if former else NO_LOG)


def encode_lives(lives: tuple[Life, ...]) -> bytes:
    head = _MAGIC + _COUNT.pack(len(lives))
    rows = b"".join(_ROW.pack(life.seed, life.branch, life.former) for life in lives)
    return head + _CRC.pack(crc32c_extend(crc32c_extend(0, head), rows)) + rows


def decode_lives(data: bytes, path: str) -> tuple[Life, ...]:
    """Raises CorruptionError, named by `path`: a wrong id would be worse than none."""
    if len(data) == LIFE_BYTES and not data.startswith(_MAGIC):
        return (Life(data),)
    head, rows = data[: _HEAD_BYTES - _CRC.size], data[_HEAD_BYTES:]
    if not data.startswith(_MAGIC) or len(data) < _HEAD_BYTES or len(data) > _FILE_BYTES_MAX:
        raise CorruptionError(path, 0, f"its {len(data)} bytes are no list of lives")
    (count,) = _COUNT.unpack_from(data, len(_MAGIC))
    if not count or len(rows) != count * _ROW.size:
        raise CorruptionError(path, len(_MAGIC), f"it has {len(data)} bytes for {count} lives")
    if _CRC.unpack_from(data, len(head)) != (crc32c_extend(crc32c_extend(0, head), rows),):
        raise CorruptionError(path, len(head), "it fails its checksum")
    lives = tuple(Life(*row) for row in _ROW.iter_unpack(rows))
    if any(later.branch < life.branch for life, later in pairwise(lives)):
        raise CorruptionError(path, _HEAD_BYTES, "a life branches off before the one before it")
    return lives


def _write(files: Files, folder: str, lives: tuple[Life, ...]) -> None:
    """Whole or not at all: written beside its place, synced, renamed."""
    draft = posixpath.join(folder, _DRAFT_NAME)
    file = files.open(draft, create=True)
    try:
        file.truncate(0)
        file.write(0, [encode_lives(lives)])
        file.sync()
    finally:
        file.close()
    files.rename(draft, posixpath.join(folder, LIFE_NAME))
    files.sync_folder(folder)
