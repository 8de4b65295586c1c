"""All of `records.sqlite` read and checked: its structure, its digests, its counters.

What cannot be read is noted and the rest is read all the same, as far as it goes.
"""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Final

from syncline.errors import CorruptionError, StorageError
from syncline.storage.files import Files
from syncline.storage.records.base import DigestMismatch, RecordCounts, RecordsReport, never
from syncline.storage.records.sqlite_checks import read_counts, service_ids, walk_digest
from syncline.storage.records.sqlite_connection import (
    check_schema,
    connect_only_to_look,
    explained,
    storage_error,
)
from syncline.storage.set_digests import run_out

TABLES: Final = ("services", "digests", "queues", "links", "deleted", "totals")
_DAMAGE_COUNT_MAX: Final = 100
# Steps of SQLite's machine between two questions whether to stop: some milliseconds.
_STEPS_AT_ONCE: Final = 100_000

# One for the whole file, which nobody may change meanwhile, or one for each table and its indexes.
_WHOLE: Final = (f"PRAGMA integrity_check({_DAMAGE_COUNT_MAX})",)
_TABLE_BY_TABLE: Final = tuple(f"PRAGMA integrity_check({table})" for table in TABLES)


def report_steps(
    connection: sqlite3.Connection,
    path: str,
    *,
    is_worked_on: bool,
    is_stopped: Callable[[], bool],
) -> Generator[int, None, RecordsReport]:
    """Each step yields how many ids it read. Raises DeviceError, StorageError if it is stopped."""
    connection.set_progress_handler(lambda: int(is_stopped()), _STEPS_AT_ONCE)
    kept = found = None
    damage: list[str] = []
    mismatches: list[DigestMismatch] = []
    for text in _TABLE_BY_TABLE if is_worked_on else _WHOLE:
        with _noted(damage, path, is_stopped):
            damage += [line for (line,) in connection.execute(text) if line != "ok"]
        yield 0
    with _noted(damage, path, is_stopped):
        kept, found = read_counts(connection)
    yield 0
    services: list[bytes] = []
    with _noted(damage, path, is_stopped):
        services = service_ids(connection)
    for service_id in services:
        with _noted(damage, path, is_stopped):
            mismatch = yield from walk_digest(connection, service_id, path)
            mismatches += [] if mismatch is None else [mismatch]
    return RecordsReport(
        kept, found, tuple(mismatches), tuple(dict.fromkeys(damage[:_DAMAGE_COUNT_MAX]))
    )


@contextmanager
def _noted(damage: list[str], path: str, is_stopped: Callable[[], bool]) -> Generator[None]:
    """Damage is noted, a failed device is an error."""
    try:
        yield
    except CorruptionError as error:
        damage.append(error.reason)
    except sqlite3.Error as error:
        if is_stopped():
            raise StorageError(f"the check of {path} was stopped") from error
        meant = storage_error(error, path, "reading")
        if not isinstance(meant, CorruptionError):
            raise meant from error
        damage.append(meant.reason)


def examine(folder: str, path: str, files: Files) -> RecordsReport:
    """Check a file that nobody works on; it and its WAL stay as they are.

    Raises ForeignFolderError, NewerFormatError, CorruptionError if nothing of it can be read.
    """
    return run_out(examine_steps(folder, path, files))


def examine_steps(folder: str, path: str, files: Files) -> Generator[int, None, RecordsReport]:
    """The same, each step yielding how many ids it read."""
    with looked_at(folder, path, files) as connection:
        return (yield from report_steps(connection, path, is_worked_on=False, is_stopped=never))


def count_records(folder: str, path: str, files: Files) -> RecordCounts:
    """What is in a file that nobody works on. Raises as `examine` does."""
    with looked_at(folder, path, files) as connection:
        return read_counts(connection)[1]


@contextmanager
def looked_at(
    folder: str, path: str, files: Files, *, is_worked_on: bool = False
) -> Generator[sqlite3.Connection]:
    """`is_worked_on`: somebody else may write to it meanwhile. Raises as `examine` does."""
    index = f"{path}-shm"
    had_index = files.exists(index)
    # Who works on it may begin to write at any moment: then its WAL has to be looked at.
    has_wal = is_worked_on or files.exists(f"{path}-wal")
    try:
        with (
            closing(connect_only_to_look(path, has_wal=has_wal)) as connection,
            explained(path, "reading"),
        ):
            check_schema(connection, folder, path)
            yield connection
    finally:
        # Where somebody works it belongs to them too.
        if not is_worked_on and not had_index and files.exists(index):
            files.remove(index)
