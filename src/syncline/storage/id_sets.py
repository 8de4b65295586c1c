"""A sorted column of ids in SQLite, as reconciliation reads it.

Whoever asks holds a read transaction meanwhile: `syncline.storage.sql_id_sets` says why.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from syncline.core.reconciliation.sets import RangeDigest
from syncline.kernels.xxh3 import ID_BYTES
from syncline.storage.sql_id_sets import PAGE_ROWS, SqlIdSet


class SqliteIdSet(SqlIdSet):
    """Ids that `SELECT id FROM source` gives; question marks in it are filled by `parameters`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        source: str,
        parameters: Sequence[object] = (),
        *,
        version: Callable[[], int],
        digest: Callable[[], RangeDigest] | None = None,
        path: str = "",
    ) -> None:
        super().__init__(source, parameters, version=version, digest=digest, path=path)
        self._connection = connection

    def _first(self, statement: str, parameters: Sequence[object]) -> object:
        row = self._connection.execute(statement, tuple(parameters)).fetchone()
        return None if row is None else row[0]

    def _pages(self, start: bytes, end: bytes) -> Iterator[bytes]:
        cursor = self._connection.execute(
            f"SELECT id FROM {self._source} WHERE id >= ? AND id < ? ORDER BY id",
            (*self._parameters, start, end),
        )
        while page := cursor.fetchmany(PAGE_ROWS):
            ids = [row[0] for row in page]
            # All are bytes: whatever else a column may hold is less than any of these.
            if set(map(len, ids)) != {ID_BYTES}:
                raise self._wrong_length()
            yield b"".join(ids)
