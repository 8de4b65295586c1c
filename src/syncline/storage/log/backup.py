"""Copies an open store, hot: files that never change as they are, the table and the log as of now.

The table is copied first, then the log up to the end it had at the start. The copy of the table may
miss the changes made while it was copied, and each slot says up to which position it is true;
replay of the copied log brings it up to date, as after a crash. Slots that are ahead of the copied
log cannot exist: the end is taken again after the table is copied.

The steps may be taken on another thread than the owner's: they read files of their own, bytes of
the table one slice at a time, and numbers that are set before what they stand for can be seen.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from syncline.errors import ForeignFolderError
from syncline.storage.files import File, Files
from syncline.storage.folder import FolderFormat
from syncline.storage.log.format import FORMAT_VERSION
from syncline.storage.log.manifest import write_manifest
from syncline.storage.log.opening import FOLDERS, OpenedLog, table_path
from syncline.storage.log.upkeep import Upkeep

_CHUNK_BYTES: Final = 1 << 20


def back_up(
    opened: OpenedLog, target: str, durable_end: Callable[[], int], upkeep: Upkeep
) -> Generator[int]:
    """Copy into `target`, a folder that is empty or not there yet; yields bytes copied.

    0 while it waits for a job to end, which the owner has to take over.
    """
    files = opened.files
    if files.exists(target) and files.list(target):
        raise ForeignFolderError(target, "it is not empty")
    upkeep.pause()
    try:
        while upkeep.is_working:
            yield 0
        files.make_folder(target)
        for name in FOLDERS:
            files.make_folder(f"{target}/{name}")
        yield from _copy_table(opened, target)
        end = durable_end()
        for name, _ in opened.runs.runs():
            yield from _copy_file(files, opened.runs.path(name), f"{target}/runs/{name}", None)
        yield from _copy_log(opened, f"{target}/wal", end)
        for name in FOLDERS:
            files.sync_folder(f"{target}/{name}")
        write_manifest(files, target, opened.manifest.state)
        _write_format(files, target, opened.store_id)
    finally:
        upkeep.resume()


def _copy_table(opened: OpenedLog, target: str) -> Iterator[int]:
    copies: dict[int, File] = {}
    try:
        for number, offset, data in opened.table.copy_chunks(_CHUNK_BYTES):
            if number not in copies:
                copies[number] = opened.files.open(table_path(target, number), create=True)
            copies[number].write(offset, [data])
            yield len(data)
        for copy in copies.values():
            copy.sync()
    finally:
        for copy in copies.values():
            copy.close()


def _copy_log(opened: OpenedLog, target: str, end: int) -> Iterator[int]:
    """Each live segment, the last one up to `end` and whole in size."""
    segment_bytes = opened.segments.segment_bytes
    for number in opened.segments.numbers:
        wanted = min(segment_bytes, end - number * segment_bytes)
        if wanted < 0:
            continue
        source = opened.segments.path(number)
        copy = f"{target}/{number:012d}.wal"
        yield from _copy_file(opened.files, source, copy, (wanted, segment_bytes))


def _copy_file(
    files: Files, source: str, target: str, lengths: tuple[int, int] | None
) -> Iterator[int]:
    """Copy a file; with `lengths` only so much of it, filled with zeros to the second."""
    read = files.open(source, writable=False)
    copy = files.open(target, create=True)
    try:
        wanted, size = lengths if lengths is not None else (read.size(), read.size())
        for offset in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - offset)
            data = read.read(offset, max(0, min(length, wanted - offset)))
            copy.write(offset, [data + bytes(length - len(data))])
            yield length
        copy.sync()
    finally:
        read.close()
        copy.close()


def _write_format(files: Files, target: str, store_id: bytes) -> None:
    """Last of all: without it the folder is no store."""
    file = files.open(f"{target}/FORMAT", create=True)
    try:
        file.write(0, [FolderFormat("log", FORMAT_VERSION, store_id).line()])
        file.sync()
    finally:
        file.close()
    files.sync_folder(target)
