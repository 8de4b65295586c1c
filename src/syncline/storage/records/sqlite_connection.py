"""Connections to `records.sqlite`: how they are made, what they compute, what their errors mean.

SQLite reaches the file by itself, so this is a second door to the file system beside
`storage.files`. It commits with a sync (WAL, `synchronous=FULL`).
"""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from hashlib import md5
from struct import Struct
from typing import Final
from urllib.parse import quote

from xxhash import xxh3_128_digest

from syncline.errors import (
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    StoreFullError,
    StoreLockedError,
)
from syncline.storage.files import Files
from syncline.storage.records import schema
from syncline.values.limits import KIB

# Strict tables.
_SQLITE_VERSION_MIN: Final = (3, 37, 0)
# Only a repair of digests ever holds up another writer, for as long as it writes one row.
_BUSY_SECONDS: Final = 120.0
# Frames of the WAL after which it is brought into the file: the larger, the more changes of one
# page are written once.
_CHECKPOINT_FRAMES: Final = 4_096
_WAL_BYTES_KEPT: Final = 4 * _CHECKPOINT_FRAMES * 4 * KIB

# A file that is being made: it gets its name once it has its tables.
_DRAFT_ENDING: Final = ".new"
_DRAFT_CACHE_BYTES: Final = 256 * KIB

_two_halves = Struct(">qq").unpack

# A full disk leaves no room for the index of the WAL either.
_FULL: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT}
_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CLOSED_TO_US: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


def connect_writer(path: str, page_cache_bytes: int) -> sqlite3.Connection:
    """One that may change associations. Used by one thread at a time, whichever."""
    with explained(path, "opening"):
        connection = _connect(path, page_cache_bytes)
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_FRAMES}").fetchone()
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}").fetchone()
            # What a statement would have to undo is kept in memory: no statement here changes much.
            connection.execute("PRAGMA temp_store = MEMORY")
            # What was deleted is wiped where that costs no extra page.
            connection.execute("PRAGMA secure_delete = FAST").fetchone()
            register_hashes(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def connect_reader(path: str, page_cache_bytes: int) -> sqlite3.Connection:
    with explained(path, "opening"):
        connection = _connect(path, page_cache_bytes)
        try:
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


def connect_only_to_look(path: str, *, has_wal: bool) -> sqlite3.Connection:
    """For a file that nobody works on: it and its WAL stay as they are."""
    how = "mode=ro" if has_wal else "immutable=1"
    with explained(path, "opening"):
        return sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, isolation_level=None)


def _connect(path: str, page_cache_bytes: int) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, _SQLITE_VERSION_MIN))
        raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old; {wanted} is needed")
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA cache_size = {-page_cache_bytes // KIB}")
    return connection


def make_database(folder: str, files: Files) -> None:
    """Make the file with its tables, and give it its name last: one without tables is damaged."""
    path = f"{folder}/{schema.FILE_NAME}"
    draft = f"{path}{_DRAFT_ENDING}"
    for left_over in (draft, f"{draft}-wal", f"{draft}-shm"):
        if files.exists(left_over):
            files.remove(left_over)
    # SQLite would let others read it.
    files.open(draft, create=True).close()
    writer = closing(connect_writer(draft, _DRAFT_CACHE_BYTES))
    with explained(draft, "writing"), writer as connection:
        _migrate(connection, 0)
    # Closing brings in the WAL, and says nothing where there was no room for that.
    if files.exists(f"{draft}-wal"):
        raise StoreFullError(draft)
    files.rename(draft, path)
    files.sync_folder(folder)


def prepare_schema(connection: sqlite3.Connection, folder: str, path: str) -> None:
    """Bring the file to the version that is known here, in steps that are whole or not done.

    Raises ForeignFolderError for a database of something else, NewerFormatError, CorruptionError
    for one without anything.
    """
    with explained(path, "reading"):
        _migrate(connection, check_schema(connection, folder, path))


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for statements in schema.MIGRATIONS[version:]:
        version += 1
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version}")


def check_schema(connection: sqlite3.Connection, folder: str, path: str) -> int:
    """The version of the tables. Raises as `prepare_schema` does."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (table_count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not (application or version or table_count):
        # It gets its name with its tables, so somebody or something emptied it.
        raise CorruptionError(path, 0, "it is empty")
    if application != schema.APPLICATION_ID:
        raise ForeignFolderError(folder, f"its {schema.FILE_NAME} was not written by Syncline")
    if version > len(schema.MIGRATIONS):
        raise NewerFormatError(path, version, len(schema.MIGRATIONS))
    return int(version)


def bring_in_wal(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError as error:
        # No room for a longer file: what is in the WAL is durable there.
        if error.sqlite_errorcode not in _FULL:
            raise


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All of it or nothing; for writing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite may have rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """For reading several things from one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        # An error of the device may have ended it.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _Hashes:
    """Both hashes of an id, computed once for the statement that asks for their halves."""

    def __init__(self) -> None:
        self._member = b""
        self._halves: tuple[int, ...] = ()

    def half(self, number: int) -> Callable[[bytes], int]:
        def computed(member: bytes) -> int:
            if member != self._member:
                digest = md5(member, usedforsecurity=False).digest()
                self._halves = _two_halves(digest) + _two_halves(xxh3_128_digest(member))
                self._member = member
            return self._halves[number]

        return computed


def register_hashes(connection: sqlite3.Connection) -> None:
    hashes = _Hashes()
    for number, name in enumerate(schema.HASH_FUNCTIONS):
        connection.create_function(name, 1, hashes.half(number), deterministic=True)


@contextmanager
def explained(path: str, operation: str) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, path, operation) from error


def storage_error(error: sqlite3.Error, path: str, operation: str) -> Exception:
    """What SQLite says, in our words. Our own mistakes come back as they are."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error
    kind = code & 0xFF
    if code in _FULL:
        return StoreFullError(path)
    if kind in _DAMAGED:
        return CorruptionError(path, 0, str(error))
    if kind in _BUSY:
        return StoreLockedError(path)
    if kind in _CLOSED_TO_US:
        return StorageError(
            f"{path} cannot be used: {error}; give this user the right to read and write it"
        )
    if kind in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        return DeviceError(path, operation, f"{error} ({error.sqlite_errorname.lower()})")
    return error
