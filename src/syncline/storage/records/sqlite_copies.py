"""A copy of `records.sqlite` while it is worked on, as of one moment."""

import sqlite3
from collections.abc import Generator
from contextlib import closing

from syncline.storage.files import Files
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite_connection import connect_reader, explained
from syncline.values.limits import MIB

_PAGE_CACHE_BYTES = 1 * MIB


def copy_records(folder: str, target_folder: str, files: Files) -> Generator[int]:
    """Copy into a folder that is there and has no records yet; yields bytes copied.

    Steps may be taken on any thread. Others write meanwhile: the copy holds what was durable when
    it began. Durable itself at the end. Nothing happens in a folder without records.
    """
    source, target = f"{folder}/{FILE_NAME}", f"{target_folder}/{FILE_NAME}"
    if not files.exists(source):
        return
    copy = files.open(target, create=True)
    try:
        if copy.size():
            raise ValueError(f"{target} is there already")
        with (
            closing(connect_reader(source, _PAGE_CACHE_BYTES)) as reading,
            explained(target, "copying"),
            closing(sqlite3.connect(target, isolation_level=None)) as writing,
        ):
            # Half a copy is thrown away, a whole one is synced below.
            writing.execute("PRAGMA journal_mode = OFF").fetchone()
            writing.execute("PRAGMA synchronous = OFF")
            # In one step: in several, a change by others would make it begin anew.
            reading.backup(writing)
        copy.sync()
        yield copy.size()
    finally:
        copy.close()
    files.sync_folder(target_folder)
