"""A sorted column of ids in PostgreSQL, as reconciliation reads it.

It speaks through a connection of psycopg 3, and needs nothing of that package by itself: whoever
opens the connection has it. `bytea` is compared byte by byte whatever the collation, so an index on
it gives ids in our order.

The server joins the ids of a page before it sends them. A million of them take 0.3 s that way; as
rows of a cursor 0.7 s, and as rows of COPY, which come one by one, 1.7 s.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from syncline.core.reconciliation.sets import RangeDigest
from syncline.kernels.xxh3 import ID_BYTES
from syncline.storage.sql_id_sets import PAGE_ROWS, SqlIdSet


class Rows(Protocol):
    """What a statement gave."""

    def fetchone(self) -> tuple[Any, ...] | None: ...


class Connection(Protocol):
    """The little that is asked of `psycopg.Connection`."""

    @property
    def autocommit(self) -> bool: ...

    def execute(
        self, query: bytes, params: Sequence[Any] | None = None, /, *, binary: bool = False
    ) -> Rows: ...


class PostgresIdSet(SqlIdSet):
    """Ids that `SELECT id FROM source` gives; each `%s` in it is filled by `parameters`."""

    mark = "%s"
    # PostgreSQL wants a name for a SELECT in brackets.
    alias = " AS source"

    def __init__(
        self,
        connection: Connection,
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
        row = self._row(statement, parameters)
        return None if row is None else row[0]

    def _pages(self, start: bytes, end: bytes) -> Iterator[bytes]:
        comparison, after = ">=", start
        while True:
            row = self._row(
                # The order of a subselect is that in which it is joined, as long as nothing comes
                # between; `iterate` looks whether that is so.
                "SELECT count(*), string_agg(id, ''::bytea), bool_and(octet_length(id) = %s)"
                f" FROM (SELECT id FROM {self._source}"
                f" WHERE id {comparison} %s AND id < %s ORDER BY id LIMIT %s) AS page",
                (ID_BYTES, *self._parameters, after, end, PAGE_ROWS),
            )
            assert row is not None, "an aggregate gives one row"
            count, joined, have_length = row
            if not count:
                return
            if not have_length:
                raise self._wrong_length()
            yield joined
            if count < PAGE_ROWS:
                return
            comparison, after = ">", joined[-ID_BYTES:]

    def _row(self, statement: str, parameters: Sequence[object]) -> tuple[Any, ...] | None:
        # In binary form: as text, every byte would come as two digits.
        return self._connection.execute(statement.encode(), parameters, binary=True).fetchone()


@contextmanager
def one_moment(connection: Connection) -> Generator[None]:
    """Whatever is read within is as it was at the start, whoever writes meanwhile.

    The connection must be one with autocommit, and not be in a transaction."""
    if not connection.autocommit:
        raise ValueError("a connection without autocommit has begun a transaction of its own")
    connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        # The moment is that of the first statement, so there is one at once.
        connection.execute(b"SELECT 1")
        yield
    finally:
        connection.execute(b"ROLLBACK")
