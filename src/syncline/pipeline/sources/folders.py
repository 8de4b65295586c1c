"""What there is to read in the data folder of a router, running or stopped, without touching it.

A log is a line of positions. Between two of them, rows come from the segments that are there. Where
a segment is not there any more, what was still wanted of it is in runs, and the rest is a gap: both
are read as one `GapPiece`, so no record comes twice.

- A segment that is still written to is left out, or read as far as it is certain (`Tail`).
- A sealed segment goes to the archive, if the router keeps one, and is read there.
- A segment is renamed before its bytes are used again, and no number ever comes back. So bytes that
  were read while it stayed in the log or in the archive are those of that segment.
- Runs that are merged meanwhile leave the folder; open files do not mind.

A folder that was restored holds parts of several logs (`storage.life`): what was copied belongs to
the log of the folder that the backup was made of, what came after to one of its own. So whatever is
restored, a log id and a position name a record for ever.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from syncline.errors import (
    CorruptionError,
    ForeignFolderError,
    NewerFormatError,
    StoreLockedError,
)
from syncline.storage.files import File, Files
from syncline.storage.folder import LOCK_NAME, read_format
from syncline.storage.life import LogPart, log_parts, read_lives
from syncline.storage.log.archive import FOLDER as ARCHIVE
from syncline.storage.log.format import (
    FORMAT_VERSION,
    align,
    store_tag,
)
from syncline.storage.log.manifest import read_manifest
from syncline.storage.log.reading import Around, first_batch, read_used
from syncline.storage.log.run_rows import RunMeta
from syncline.storage.log.scan import DamagedStretch, End, WholeBatch, batches

_KIND: Final = "log"
_LOOK_COUNT: Final = 10
_LOOK_PAUSE_SECONDS: Final = 0.02


class Tail(StrEnum):
    """How much of the segment that is still written to is read."""

    NONE = "none"
    # All but its last batch: a batch is begun only after the one before it has reached the disk.
    DURABLE = "durable"
    # All of it. The folder must be a backup, or one that no router has.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LogFolder:
    """A look at a folder. `closed` are the numbers of segments that get no more batches."""

    path: str
    store_id: bytes
    segment_bytes: int
    oldest_segment: int
    closed: tuple[int, ...]
    # The last one that holds a batch, None in a folder without any. Batches may be added to it.
    open_segment: int | None
    runs: tuple[RunMeta, ...]
    # Which positions belong to which log, in order; the last one is written to.
    parts: tuple[LogPart, ...]

    @property
    def tag(self) -> int:
        return store_tag(self.store_id)

    @property
    def log_id(self) -> bytes:
        """Of the log that is written to here."""
        return self.parts[-1].log_id

    @property
    def start(self) -> int:
        """The first position that any log of segments of this size has."""
        return self.segment_bytes

    @property
    def closed_end(self) -> int:
        """Where the open segment starts: all before it is as it will be."""
        if self.open_segment is None:
            return self.start
        return self.open_segment * self.segment_bytes


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Records of one segment from `start` up to `end`. `log_id` is that of all of them."""

    folder: str
    log_id: bytes
    tag: int
    segment_bytes: int
    number: int
    start: int
    end: int
    # Whether what was begun at its end and never completed is worth a row.
    reports_torn: bool
    # Whether a batch of the next segment can tell if the last one here is there.
    is_followed: bool = True

    @property
    def byte_count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class GapPiece:
    """Positions whose segments are not there: rows of runs stand in, as far as there are any."""

    folder: str
    log_id: bytes
    start: int
    end: int
    reason: str
    byte_count: int = 0


Piece = SegmentPiece | GapPiece

RECYCLED: Final = "the segments were used again before they were read"
MISSING: Final = "segments of the log are missing"


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/wal/{number:012d}.wal"


def segment_paths(folder: str, number: int) -> tuple[str, str]:
    """Where a segment can be, in the order in which it goes there."""
    return segment_path(folder, number), f"{folder}/{ARCHIVE}/{number:012d}.wal"


def look_at(folder: str, files: Files) -> LogFolder:
    """Raises ForeignFolderError for what is no log, NewerFormatError, CorruptionError."""
    found = read_format(folder, files)
    if found is None:
        reason = "it is empty" if files.exists(folder) else "it does not exist"
        raise ForeignFolderError(folder, reason)
    if found.kind != _KIND:
        raise ForeignFolderError(
            folder, f"it holds a {found.kind} store, and only a log has events"
        )
    if found.version > FORMAT_VERSION:
        raise NewerFormatError(folder, found.version, FORMAT_VERSION)
    state = read_manifest(files, folder)
    if state is None:
        raise CorruptionError(f"{folder}/CURRENT", 0, "the folder has a FORMAT and no manifest")
    numbers = _segment_numbers(files, f"{folder}/wal")
    if numbers is None:
        raise CorruptionError(f"{folder}/wal", 0, "the folder of the log is missing")
    # In this order: a segment that is moved meanwhile is in one of the two lists.
    archived = _segment_numbers(files, f"{folder}/{ARCHIVE}") or []
    tag = store_tag(found.store_id)
    while numbers and not _is_begun(files, folder, numbers[-1], state.segment_bytes, tag):
        # After a crash the one before it goes on.
        numbers.pop()
    # Up to there the table has what the log said: if no such batch is there, its end is lost.
    reached = state.checkpoint // state.segment_bytes
    if reached > max(numbers, default=1):
        numbers.append(reached)
    return LogFolder(
        folder,
        found.store_id,
        state.segment_bytes,
        state.oldest_segment,
        tuple(sorted({*numbers[:-1], *archived})),
        numbers[-1] if numbers else None,
        tuple(state.runs),
        log_parts(found.store_id, read_lives(files, folder)),
    )


def end_of(folder: LogFolder, tail: Tail, files: Files) -> int:
    """The position up to which the log can be read now. Raises StoreLockedError for `STOPPED`."""
    if tail is Tail.NONE or folder.open_segment is None:
        return folder.closed_end
    if tail is Tail.STOPPED:
        _check_stopped(folder, files)
    last_batch, end = _last_batch(folder, folder.open_segment, files)
    return end if tail is Tail.STOPPED else last_batch


def went_back_to(folder: LogFolder, position: int, files: Files) -> int | None:
    """Where the log ends, if that is before a position that it had reached once; else None.

    A backup may well end earlier than its log. It has no lock, as no router has ever had it.
    """
    end = folder.closed_end
    if end >= position or not files.exists(f"{folder.path}/{LOCK_NAME}"):
        return None
    if folder.open_segment is not None:
        _, end = _last_batch(folder, folder.open_segment, files)
    return end if end < position else None


def _last_batch(folder: LogFolder, number: int, files: Files) -> tuple[int, int]:
    """Where the last whole batch of the open segment begins, and where the next one would."""
    found = read_segment(files, folder.path, number, folder.segment_bytes, folder.tag)
    last_batch = end = folder.closed_end
    for part in () if found is None else found.parts:
        match part:
            case WholeBatch(header=header):
                last_batch = header.position
                end = align(header.end)
            case DamagedStretch(end=behind):
                # The last one only where the device cannot read what may have been acknowledged.
                end = behind
            case End():
                break
    return last_batch, end


def pieces_between(
    folder: LogFolder, part: LogPart, start: int, end: int, piece_bytes_max: int
) -> list[Piece]:
    """What to read of one log for the positions from `start` up to `end`."""
    size = folder.segment_bytes
    start = max(start, part.start, folder.start)
    end = end if part.end is None else min(end, part.end)
    if start >= end:
        return []
    there = {*folder.closed, folder.open_segment}
    pieces: list[Piece] = []
    missing: list[int] = []
    for number in range(start // size, -(-end // size)):
        if number in there:
            pieces += _gap(folder, part.log_id, missing, (start, end), piece_bytes_max)
            missing = []
            first, behind = max(start, number * size), min(end, (number + 1) * size)
            is_closed = number != folder.open_segment
            pieces.append(
                SegmentPiece(
                    folder.path, part.log_id, folder.tag, size, number, first, behind, is_closed
                )
            )
        else:
            missing.append(number)
    return pieces + _gap(folder, part.log_id, missing, (start, end), piece_bytes_max)


def packed(pieces: Sequence[Piece], bytes_max: int) -> list[tuple[Piece, ...]]:
    """In order, as many together as `bytes_max` allows, each at least one."""
    packs: list[list[Piece]] = []
    room = -1
    for piece in pieces:
        if piece.byte_count > room:
            packs.append([])
            room = bytes_max
        packs[-1].append(piece)
        room -= piece.byte_count
    return [tuple(pack) for pack in packs]


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment, and what a scan of it found: to look at its checksums once is enough."""

    data: bytes
    parts: tuple[WholeBatch | DamagedStretch | End, ...]


def read_segment(
    files: Files, folder: str, number: int, segment_bytes: int, tag: int, number_behind: int = 0
) -> SegmentBytes | None:
    """Its bytes up to its last batch; None if it is not there, or was taken away meanwhile.

    `number_behind` is that of the first batch of the next segment, 0 if that is not known.

    Where there is damage, headers are not to be trusted, and it is all of its bytes: any of them
    may be one of a record that can be saved.
    """
    start = number * segment_bytes
    file = open_segment(files, folder, number)
    if file is None:
        return None
    around = Around(file)
    try:
        data = read_used(around, start, segment_bytes)
        found = scanned(data, start, tag, number_behind, around.unreadable)
        if any(isinstance(part, DamagedStretch) for part in found.parts):
            data = around.read(0, segment_bytes)
            found = scanned(data, start, tag, number_behind, around.unreadable)
    finally:
        file.close()
    is_there = any(files.exists(path) for path in segment_paths(folder, number))
    return found if is_there else None


def scanned(
    data: bytes,
    start: int,
    tag: int,
    number_behind: int = 0,
    unreadable: Collection[int] = (),
) -> SegmentBytes:
    """`start` is the position of its first byte. Zeros stand in for `unreadable` blocks."""
    parts = batches(data, start, None, number_behind=number_behind, tag=tag, unreadable=unreadable)
    return SegmentBytes(data, tuple(parts))


def open_segment(files: Files, folder: str, number: int) -> File | None:
    """In the log or in the archive; None if it is in neither."""
    for path in segment_paths(folder, number):
        try:
            return files.open(path, writable=False)
        except FileNotFoundError:
            continue
    return None


def _gap(
    folder: LogFolder,
    log_id: bytes,
    missing: Sequence[int],
    between: tuple[int, int],
    piece_bytes_max: int,
) -> list[Piece]:
    """One stretch, in as many pieces as the runs that cover it make worth while."""
    if not missing:
        return []
    size = folder.segment_bytes
    covering = sum(
        run.file_bytes
        for run in folder.runs
        if run.lowest_position < (missing[-1] + 1) * size
        and run.highest_position >= missing[0] * size
    )
    count = min(len(missing), max(1, -(-covering // piece_bytes_max)))
    edges = [missing[0] + len(missing) * step // count for step in range(count + 1)]
    pieces: list[Piece] = []
    for low, high in pairwise(edges):
        is_recycled = high <= folder.oldest_segment
        pieces.append(
            GapPiece(
                folder.path,
                log_id,
                max(between[0], low * size),
                min(between[1], high * size),
                RECYCLED if is_recycled else MISSING,
                covering // count,
            )
        )
    return pieces


def _segment_numbers(files: Files, folder: str) -> list[int] | None:
    """None if there is no such folder."""
    try:
        names = files.list(folder)
    except FileNotFoundError:
        return None
    stems = [name.removesuffix(".wal") for name in names if name.endswith(".wal")]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _is_begun(files: Files, folder: str, number: int, segment_bytes: int, tag: int) -> bool:
    """Whether a segment holds a whole batch. If not, its router died while it wrote the first one,
    and goes on in the segment before."""
    start = number * segment_bytes
    file = open_segment(files, folder, number)
    if file is None:
        # It is not the last one any more: the router has taken it away meanwhile.
        return True
    try:
        return first_batch(Around(file), start, segment_bytes, tag) is not None
    finally:
        file.close()


def _check_stopped(folder: LogFolder, files: Files) -> None:
    path = f"{folder.path}/{LOCK_NAME}"
    # A backup has none, and gets none by being looked at.
    if not files.exists(path):
        return
    for _ in range(_LOOK_COUNT - 1):
        try:
            files.lock(path).release()
        except StoreLockedError:
            # Maybe by somebody who only looks as well, and lets go at once.
            time.sleep(_LOOK_PAUSE_SECONDS)
        else:
            return
    files.lock(path).release()
