"""A sorted column of ids in SQLite, as reconciliation reads it.

Ranges are read by the index on the column, a page at a time; nothing is held in memory beyond
what was asked for. All answers of one question must come from the same state of the database:
whoever asks holds a read transaction meanwhile.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from syncline.core.reconciliation.sets import END, RangeDigest
from syncline.errors import CorruptionError
from syncline.kernels.xxh3 import ID_BYTES, Ids, xor_and_sum, xxh3_128

_PAGE_ROWS: Final = 16_384
_SUM_MASK: Final = (1 << 128) - 1


class SqliteIdSet:
    """Ids that `SELECT id FROM source` gives, in any order and each once.

    `source` is a table, or a SELECT in brackets, with a column `id` of 24 bytes that an index
    sorts; `parameters` fill its question marks. `version` is asked for the number that changes with
    the set, and `digest` for what is kept of the whole, if anything is.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        source: str,
        parameters: Sequence[object] = (),
        *,
        version: Callable[[], int],
        digest: Callable[[], RangeDigest] | None = None,
    ) -> None:
        self._connection = connection
        self._source = source
        self._parameters = tuple(parameters)
        self._version = version
        self._whole = digest

    def size(self) -> int:
        if self._whole is not None:
            return self._whole().count
        row = self._connection.execute(
            f"SELECT count(*) FROM {self._source}", self._parameters
        ).fetchone()
        return int(row[0])

    def version(self) -> int:
        return self._version()

    def lower_bound(self, start: bytes) -> bytes | None:
        row = self._connection.execute(
            f"SELECT id FROM {self._source} WHERE id >= ? ORDER BY id LIMIT 1",
            (*self._parameters, start),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        cursor = self._connection.execute(
            f"SELECT id FROM {self._source} WHERE id >= ? AND id < ? ORDER BY id",
            (*self._parameters, start, end),
        )
        while page := cursor.fetchmany(_PAGE_ROWS):
            joined = b"".join([row[0] for row in page])
            if len(joined) != len(page) * ID_BYTES:
                raise CorruptionError(self._source, 0, f"an id does not have {ID_BYTES} bytes")
            yield np.frombuffer(joined, np.uint8).reshape(-1, ID_BYTES)

    def digest(self, start: bytes, end: bytes) -> RangeDigest:
        if self._whole is not None and start == b"" and end == END:
            return self._whole()
        count, xor, total = 0, 0, 0
        for rows in self.iterate(start, end):
            page_xor, page_sum = xor_and_sum(*xxh3_128(rows))
            count, xor, total = count + len(rows), xor ^ page_xor, total + page_sum
        return RangeDigest(count, xor, total & _SUM_MASK)
