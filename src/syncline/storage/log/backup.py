"""Copies an open store, hot: files that never change as they are, the table and the log as of now.

The table is copied first, then the log up to the end it had at the start. The copy of the table may
miss the changes made while it was copied, and each slot says up to which position it is true;
replay of the copied log brings it up to date, as after a crash. Slots that are ahead of the copied
log cannot exist: the end is taken again after the table is copied.

The table may grow meanwhile, for a batch cannot wait for that. The copy has the generations that
the manifest listed at the start, and the manifest that listed them: what later ones say is in the
log, too.

The steps may be taken on another thread than the owner's: they read files of their own, bytes of
the table one slice at a time, and numbers that are set before what they stand for can be seen.
"""

import posixpath
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from syncline.errors import ForeignFolderError
from syncline.storage.files import File, Files, MappedFile
from syncline.storage.folder import FolderFormat
from syncline.storage.log.format import FORMAT_VERSION
from syncline.storage.log.manifest import ManifestState, write_manifest
from syncline.storage.log.opening import FOLDERS, OpenedLog, table_path
from syncline.storage.log.upkeep import Upkeep

_CHUNK_BYTES: Final = 1 << 20


def back_up(
    opened: OpenedLog, target: str, durable_end: Callable[[], int], upkeep: Upkeep
) -> Generator[int]:
    """Copy into `target`, a folder that is empty or not there yet; yields bytes copied.

    0 while it waits for the owner: for its turn, and for a job to end, which it has to take over.
    """
    files = opened.files
    if files.exists(target) and files.list(target):
        raise ForeignFolderError(target, "it is not empty")
    upkeep.pause()
    try:
        # The owner may be about to take a job: after its turn it has taken it, or will not.
        yield 0
        while upkeep.is_working:
            yield 0
        files.make_folder(target)
        for name in FOLDERS:
            files.make_folder(f"{target}/{name}")
        with _opened_tables(opened) as (state, tables):
            for number, table in zip(state.table_generations, tables, strict=True):
                yield from _copy_table(files, table, table_path(target, number))
        end = durable_end()
        for name, _ in opened.runs.runs():
            yield from _copy_file(files, opened.runs.path(name), f"{target}/runs/{name}", None)
        yield from _copy_log(opened, f"{target}/wal", end)
        for name in FOLDERS:
            files.sync_folder(f"{target}/{name}")
        write_manifest(files, target, state)
        _write_format(files, target, opened.store_id)
        # Its own name, too: a backup that is said to be done is there after a power cut.
        files.sync_folder(posixpath.dirname(target.rstrip("/")) or ".")
    finally:
        upkeep.resume()


@contextmanager
def _opened_tables(opened: OpenedLog) -> Generator[tuple[ManifestState, list[MappedFile]]]:
    """The manifest in force and the tables that it lists, which can be read even when they are
    removed."""
    with ExitStack() as stack:
        state, tables = opened.manifest.state, list[File]()
        while len(tables) < len(state.table_generations):
            path = table_path(opened.folder, state.table_generations[len(tables)])
            try:
                tables.append(opened.files.open(path, writable=False))
                stack.callback(tables[-1].close)
            except FileNotFoundError:
                if opened.manifest.state is state:
                    raise
                # The owner has just dropped it, and said so before.
                state, tables = opened.manifest.state, []
        maps: list[MappedFile] = []
        for table in tables:
            maps.append(table.map(writable=False))
            stack.callback(maps[-1].close)
        yield state, maps


def _copy_table(files: Files, table: MappedFile, target: str) -> Iterator[int]:
    copy = files.open(target, create=True)
    try:
        for offset in range(0, len(table), _CHUNK_BYTES):
            # From the map, not the file: the owner writes no slot while a slice is taken.
            data = table[offset : offset + _CHUNK_BYTES]
            copy.write(offset, [data])
            yield len(data)
        copy.sync()
    finally:
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
    with ExitStack() as stack:
        read = files.open(source, writable=False)
        stack.callback(read.close)
        copy = files.open(target, create=True)
        stack.callback(copy.close)
        wanted, size = lengths if lengths is not None else (read.size(), read.size())
        for offset in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - offset)
            data = read.read(offset, max(0, min(length, wanted - offset)))
            copy.write(offset, [data + bytes(length - len(data))])
            yield length
        copy.sync()


def _write_format(files: Files, target: str, store_id: bytes) -> None:
    """Last of all: without it the folder is no store."""
    file = files.open(f"{target}/FORMAT", create=True)
    try:
        file.write(0, [FolderFormat("log", FORMAT_VERSION, store_id).line()])
        file.sync()
    finally:
        file.close()
    files.sync_folder(target)
