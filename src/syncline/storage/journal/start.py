"""What stands in the data folder beside the queues, and how an opening brings it in order.

    <folder>/LAYOUT     how ids are cut into paths; while queues move, also how they were cut
    <folder>/CLEAN      the process before ended in order: what it wrote is on the device, counted
    <folder>/messages   the queues

- CLEAN is gone, durably, before anything is written.
- A changed layout moves every queue before the store is used. LAYOUT names both layouts meanwhile,
  so that the next opening goes on where a crash has stopped this one.
"""

import re
from dataclasses import dataclass
from typing import Final

from syncline.errors import CorruptionError
from syncline.storage.files import Files
from syncline.storage.journal.folders import FolderTree, walk
from syncline.storage.journal.format import crc32c_extend
from syncline.storage.journal.layout import (
    ROOT_NAME,
    Layout,
    encode_layout,
    migration,
    parse_layout,
)

LAYOUT_NAME: Final = "LAYOUT"
CLEAN_NAME: Final = "CLEAN"
_DRAFT_SUFFIX = ".new"
_LINE_BYTES_MAX = 512
_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_CLEAN = re.compile(
    rb"streams=" + _NUMBER + rb" bytes=" + _NUMBER + rb" files=" + _NUMBER
    + rb" swept_ms=" + _NUMBER + rb" crc=[0-9a-f]{8}\n"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CleanMark:
    """What the process before left: counters, and when it last swept the folders."""

    stream_count: int
    byte_count: int
    file_count: int
    swept_ms: int

    def line(self) -> bytes:
        text = b"streams=%d bytes=%d files=%d swept_ms=%d" % (
            self.stream_count,
            self.byte_count,
            self.file_count,
            self.swept_ms,
        )
        return b"%b crc=%08x\n" % (text, crc32c_extend(0, text))


def take_clean_mark(folder: str, files: Files) -> CleanMark | None:
    """Read the mark and remove it, durably; None if the process before did not end in order."""
    path = f"{folder}/{CLEAN_NAME}"
    if not files.exists(path):
        return None
    line = _read(files, path)
    files.remove(path)
    files.sync_folder(folder)
    found = _CLEAN.fullmatch(line)
    if found is None:
        return None
    mark = CleanMark(*(int(word) for word in found.groups()))
    return mark if mark.line() == line else None


def leave_clean_mark(folder: str, files: Files, mark: CleanMark) -> None:
    """To be called once everything is synced."""
    _write(files, folder, CLEAN_NAME, mark.line())


def prepare_root(folder: str, files: Files, layout: Layout) -> str:
    """Make the folder of the queues and bring it to this layout; return its path.

    Raises CorruptionError for an unreadable LAYOUT.
    """
    root = f"{folder}/{ROOT_NAME}"
    path = f"{folder}/{LAYOUT_NAME}"
    if not files.exists(path):
        # It is made before the first queue is, so a tree without it has lost it.
        if files.exists(root):
            raise CorruptionError(path, 0, "the file is missing, so nobody knows how ids are cut")
        _write(files, folder, LAYOUT_NAME, encode_layout(layout))
    current, source = _read_layout(files, path)
    files.make_folder(root)
    files.sync_folder(folder)
    if source is not None:
        _move_all(files, folder, root, source, current)
    if current != layout:
        _write(files, folder, LAYOUT_NAME, encode_layout(layout, current))
        _move_all(files, folder, root, current, layout)
    return root


def read_layouts(folder: str, files: Files) -> list[Layout]:
    """Where queues may be: one layout, two while they move. Raises CorruptionError."""
    path = f"{folder}/{LAYOUT_NAME}"
    if not files.exists(path):
        return []
    current, source = _read_layout(files, path)
    return [current] if source is None else [current, source]


def _read_layout(files: Files, path: str) -> tuple[Layout, Layout | None]:
    found = parse_layout(_read(files, path))
    if found is None:
        raise CorruptionError(path, 0, "not a line `fragments=<count> characters=<length>`")
    return found


def _move_all(files: Files, folder: str, root: str, source: Layout, target: Layout) -> None:
    sources = FolderTree(root, source, files, is_durable=True)
    targets = FolderTree(root, target, files, is_durable=True)
    # A level may be left from a migration that was cut short before it was synced.
    targets.is_suspect = True
    for move in migration(walk(files, root, source), source, target):
        old, new = f"{root}/{move.source}", f"{root}/{move.target}"
        if files.exists(new):
            continue
        targets.ensure_parents(new)
        files.rename(old, new)
        # The new name first: were the old one gone alone, so would be the queue.
        files.sync_folder(new.rpartition("/")[0])
        files.sync_folder(old.rpartition("/")[0])
        sources.remove_empty_parents(old)
    _write(files, folder, LAYOUT_NAME, encode_layout(target))


def _read(files: Files, path: str) -> bytes:
    file = files.open(path, writable=False)
    try:
        return file.read(0, _LINE_BYTES_MAX)
    finally:
        file.close()


def _write(files: Files, folder: str, name: str, line: bytes) -> None:
    draft = f"{folder}/{name}{_DRAFT_SUFFIX}"
    file = files.open(draft, create=True)
    try:
        file.truncate(0)
        file.write(0, [line])
        file.sync()
    finally:
        file.close()
    files.rename(draft, f"{folder}/{name}")
    files.sync_folder(folder)
