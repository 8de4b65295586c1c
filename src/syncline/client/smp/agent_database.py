"""The file of an agent's store: how it is opened, read and written.

- There are two connections: one that alone writes, on whatever thread, one transaction at a time;
  and one that only reads, and so never waits for the disk to take a write.
- What the reading connection shows is committed, and so durable (WAL, `synchronous=FULL`).
- A store in memory has one connection for both, and is used from one thread at a time.
"""

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from syncline.client.smp import agent_schema
from syncline.errors import ConfigError, NewerFormatError, StorageError, StoreFullError

# Two programs may use one store, such as a sender and a reader: one waits for the other.
_BUSY_SECONDS: Final = 10.0
# A full disk leaves no room for the index of the WAL either.
_FULL: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}

# A row as SQLite gives it.
Row = tuple[Any, ...]


class AgentDatabase:
    """See the module."""

    def __init__(self, path: Path | str) -> None:
        """Opens the file, or makes it. `:memory:` keeps nothing. Raises ConfigError for what is no
        store, and NewerFormatError for one of a later version."""
        self.path = str(path)
        self.is_in_memory = self.path == ":memory:"
        # Wherever the program goes meanwhile.
        self._uri = "" if self.is_in_memory else f"{Path(path).absolute().as_uri()}?mode=rw"
        # One for each connection. To read is never waited for long.
        self._lock, self._reader_lock = Lock(), Lock()
        if not self.is_in_memory:
            _make_private(Path(path))
        self._db = _connect(self.path)
        self._reader = self._db
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(
                f"{self.path} is no store of an agent ({error}); choose another file"
            ) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        agent_schema.prepare(self._db)
        [version] = self._one("PRAGMA user_version")
        [has_tables] = self._one("SELECT EXISTS (SELECT 1 FROM sqlite_master)")
        if version > agent_schema.SCHEMA_VERSION:
            raise NewerFormatError(self.path, version, agent_schema.SCHEMA_VERSION)
        if version == 0 and has_tables:
            raise ConfigError(f"{self.path} is a database of something else; choose another file")
        if version == 0:
            self._create()
        if not self.is_in_memory:
            self._reader = _connect(self._uri, is_uri=True)
            self._reader.execute("PRAGMA query_only = ON")

    def _create(self) -> None:
        try:
            agent_schema.create(self._db)
        except sqlite3.OperationalError:
            # Another program made it at the same moment, or it cannot be made at all.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            [version] = self._one("PRAGMA user_version")
            if version != agent_schema.SCHEMA_VERSION:
                raise

    def close(self) -> None:
        """Waits for a write that is under way on another thread."""
        with self._lock, self._reader_lock:
            self._reader.close()
            self._db.close()

    def _one(self, statement: str, values: Sequence[object] = ()) -> Row:
        rows = self._all(statement, values)
        if not rows:
            raise ConfigError(f"{self.path} has no such row; was it deleted by another program?")
        return rows[0]

    def _all(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        with self._reader_lock:
            return self._reader.execute(statement, values).fetchall()

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """One transaction, whole or not at all, and durable after the block. Raises StorageError if
        the disk does not take it."""
        with self._lock, _explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled it back already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _apart(self) -> Generator[sqlite3.Connection]:
        """A connection of its own, for whoever reads everything and takes its time."""
        if self.is_in_memory:
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return
        with closing(_connect(self._uri, is_uri=True)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            agent_schema.prepare(connection)
            yield connection


def _connect(path: str, *, is_uri: bool = False) -> sqlite3.Connection:
    # Transactions are begun by hand, on whatever thread.
    return sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=is_uri
    )


@contextmanager
def _explained(path: str) -> Generator[None]:
    """What the disk did, in our words. What breaks a rule of the tables comes as it is."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in _FULL:
            raise StoreFullError(path) from error
        raise StorageError(f"{path} cannot be written: {error}") from error


def _make_private(path: Path) -> None:
    """The file holds keys: nobody but its owner may read it. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a store: {error.strerror}") from error
