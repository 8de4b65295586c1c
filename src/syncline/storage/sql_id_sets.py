"""A sorted column of ids in a database, as reconciliation reads it; what all databases share.

Invariants:
- Ranges are read by the index on the column, a page at a time; nothing is held in memory beyond
  what was asked for.
- Ids come in order, each once and with 24 bytes; anything else is damage and is said so.
- All answers of one question must come from the same state of the database: whoever asks holds a
  transaction that sees one moment.

Reading many ids takes its time. It belongs in a worker thread, which is why the compiled kernels
are made ready here once a set turns out to be large enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from syncline.core.reconciliation.sets import END, RangeDigest
from syncline.errors import CorruptionError
from syncline.kernels import compiled, ranges
from syncline.kernels.xxh3 import ID_BYTES, Ids, xor_and_sum, xxh3_128

PAGE_ROWS: Final = 16_384
_SUM_MASK: Final = (1 << 128) - 1


class SqlIdSet(ABC):
    """Ids that `SELECT id FROM source` gives, in any order and each once.

    `source` is a table, or a SELECT in brackets, with a column `id` of 24 bytes that an index
    sorts; `parameters` fill the marks in it. `version` is asked for the number that changes with
    the set, and `digest` for what is kept of the whole, if anything is. Errors name `path`.
    """

    # How a statement marks what a parameter fills, and the name that it gives to a source.
    mark = "?"
    alias = ""

    def __init__(
        self,
        source: str,
        parameters: Sequence[object] = (),
        *,
        version: Callable[[], int],
        digest: Callable[[], RangeDigest] | None = None,
        path: str = "",
    ) -> None:
        self._source = f"{source}{self.alias}"
        self._parameters = tuple(parameters)
        self._version = version
        self._whole = digest
        self._path = path or source

    def size(self) -> int:
        if self._whole is not None:
            return self._whole().count
        found = self._first(f"SELECT count(id) FROM {self._source}", self._parameters)
        assert isinstance(found, int)
        return found

    def version(self) -> int:
        return self._version()

    def lower_bound(self, start: bytes) -> bytes | None:
        found = self._first(
            f"SELECT id FROM {self._source} WHERE id >= {self.mark} ORDER BY id LIMIT 1",
            (*self._parameters, start),
        )
        if found is None:
            return None
        if not isinstance(found, bytes) or len(found) != ID_BYTES:
            raise self._wrong_length()
        return found

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        before, last = 0, b""
        for joined in self._pages(start, end):
            rows = np.frombuffer(joined, np.uint8).reshape(-1, ID_BYTES)
            if rows[0].tobytes() <= last or not ranges.are_sorted(rows):
                raise self._damaged("ids come out of order, or more than once")
            yield rows
            last = rows[-1].tobytes()
            count = before + len(rows)
            if before < compiled.ROWS_WORTHWHILE <= count:
                compiled.prepare(count)
            before = count

    def digest(self, start: bytes, end: bytes) -> RangeDigest:
        if self._whole is not None and start == b"" and end == END:
            return self._whole()
        count, xor, total = 0, 0, 0
        for rows in self.iterate(start, end):
            page_xor, page_sum = xor_and_sum(*xxh3_128(rows))
            count, xor, total = count + len(rows), xor ^ page_xor, total + page_sum
        return RangeDigest(count, xor, total & _SUM_MASK)

    @abstractmethod
    def _first(self, statement: str, parameters: Sequence[object]) -> object:
        """The one value of the first row; None if there is no row."""

    @abstractmethod
    def _pages(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Ids of a range one after another, up to `PAGE_ROWS` at a time and never none."""

    def _damaged(self, reason: str) -> CorruptionError:
        return CorruptionError(self._path, 0, reason)

    def _wrong_length(self) -> CorruptionError:
        return self._damaged(f"an id does not have {ID_BYTES} bytes")
