"""Sets of ids in memory, in SQLite and in PostgreSQL give the same answers."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import xxhash

from syncline.core.reconciliation.initiator import Initiator, Mode
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import END, IdSet, RangeDigest, rows_between
from syncline.errors import CorruptionError
from syncline.kernels import compiled
from syncline.storage.id_sets import SqliteIdSet
from syncline.storage.postgres_id_sets import PostgresIdSet, one_moment
from syncline.storage.sql_id_sets import PAGE_ROWS, SqlIdSet
from tests.reconciliation import Drift, Session, check_result, random_ids, snapshot
from tests.storage.postgres_server import missing, postgres_server

# Whoever starts a server waits for it.
pytestmark = pytest.mark.timeout(120)

ZEROS, ONES = bytes(24), b"\xff" * 24
EDGES = [
    ZEROS,
    bytes(23) + b"\1",
    bytes(8) + b"\xff" * 16,
    b"\0\xff" * 12,
    b"\x7f" + b"\xff" * 23,
    b"\x80" + bytes(23),
    b"\xff" * 8 + bytes(16),
    b"\xff\0" * 12,
    b"\xff" * 23 + b"\xfe",
    ONES,
]
IDS = sorted({*EDGES, *random_ids(Random(1), 60), *random_ids(Random(2), 9, b"\x41" * 8)})
OTHERS = sorted(random_ids(Random(3), 20))
BOUNDS = [b"", b"\0", b"\x40", b"\x41" * 8, b"\x80", b"\xff" * 8, ZEROS, ONES, IDS[30], END]


class SqliteTable:
    """Ids of several services in one table, and a connection that reads them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ids.sqlite"
        self.connection = self.connected()
        self.connection.execute("PRAGMA journal_mode = wal")
        self.connection.execute("CREATE TABLE associations (service BLOB, queue BLOB)")
        self.connection.execute("CREATE INDEX by_service ON associations (service, queue)")

    def connected(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._path, isolation_level=None)
        opened.execute("PRAGMA synchronous = off")
        return opened

    def add(self, service: bytes, ids: Iterable[bytes | None]) -> None:
        """By another connection."""
        writer = self.connected()
        rows = [(service, id_) for id_ in ids]
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO associations VALUES (?, ?)", rows)
        writer.execute("COMMIT")
        writer.close()

    def ids(self, service: bytes, digest: Callable[[], RangeDigest] | None = None) -> SqliteIdSet:
        source = "(SELECT queue AS id FROM associations WHERE service = ?)"
        return SqliteIdSet(
            self.connection, source, (service,), version=lambda: 4, digest=digest, path="a table"
        )

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        self.connection.execute("BEGIN")
        self.connection.execute("SELECT count(*) FROM associations").fetchone()
        yield
        self.connection.execute("ROLLBACK")


class PostgresTable:
    """The same in PostgreSQL."""

    def __init__(self, conninfo: str, psycopg: Any) -> None:
        self._conninfo, self._psycopg = conninfo, psycopg
        self.connection = self.connected()
        self.connection.execute("DROP TABLE IF EXISTS associations")
        self.connection.execute("CREATE TABLE associations (service bytea, queue bytea)")
        self.connection.execute("CREATE INDEX by_service ON associations (service, queue)")

    def connected(self) -> Any:
        return self._psycopg.connect(self._conninfo, autocommit=True)

    def add(self, service: bytes, ids: Iterable[bytes | None]) -> None:
        rows = [(service, id_) for id_ in ids]
        with self.connected() as writer:
            writer.cursor().executemany("INSERT INTO associations VALUES (%s, %s)", rows)

    def ids(self, service: bytes, digest: Callable[[], RangeDigest] | None = None) -> PostgresIdSet:
        source = "(SELECT queue AS id FROM associations WHERE service = %s)"
        return PostgresIdSet(
            self.connection, source, (service,), version=lambda: 4, digest=digest, path="a table"
        )

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        with one_moment(self.connection):
            yield


Table = SqliteTable | PostgresTable


@pytest.fixture(scope="module")
def postgres() -> Iterator[tuple[str, Any]]:
    psycopg = pytest.importorskip(
        "psycopg", reason="psycopg is missing; install the extra postgres"
    )
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with postgres_server() as conninfo:
        yield conninfo, psycopg


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    opened: Table
    if request.param == "sqlite":
        opened = SqliteTable(tmp_path)
    else:
        opened = PostgresTable(*request.getfixturevalue("postgres"))
    rows = [(b"one", id_) for id_ in IDS] + [(b"two", id_) for id_ in OTHERS]
    Random(4).shuffle(rows)
    for service in (b"one", b"two"):
        opened.add(service, [id_ for owner, id_ in rows if owner == service])
    yield opened
    opened.connection.close()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven ids a page: then all that is asked here has several."""
    monkeypatch.setattr("syncline.storage.id_sets.PAGE_ROWS", 7)
    monkeypatch.setattr("syncline.storage.postgres_id_sets.PAGE_ROWS", 7)


@dataclass(frozen=True)
class Answers:
    """All that a set says about a range."""

    ids: list[bytes]
    digest: RangeDigest
    lower_bound: bytes | None


def asked(ids: IdSet, start: bytes, end: bytes) -> Answers:
    rows = rows_between(ids, start, end)
    return Answers([row.tobytes() for row in rows], ids.digest(start, end), ids.lower_bound(start))


def expected(ids: Iterable[bytes], start: bytes, end: bytes) -> Answers:
    """In plain Python."""
    inside = sorted(id_ for id_ in ids if start <= id_ < end)
    xor = total = 0
    for id_ in inside:
        xor ^= xxhash.xxh3_128_intdigest(id_)
        total += xxhash.xxh3_128_intdigest(id_)
    first = min((id_ for id_ in ids if id_ >= start), default=None)
    return Answers(inside, RangeDigest(len(inside), xor, total % 2**128), first)


# -------------------------------------------------------------------------------------- conforming


@pytest.mark.parametrize("ids", [IDS, []], ids=["some", "none"])
def test_a_snapshot_answers_for_every_range(ids: list[bytes]) -> None:
    ours = snapshot(ids, 4)
    assert (ours.size(), ours.version()) == (len(ids), 4)
    for start, end in product(BOUNDS, BOUNDS):
        assert asked(ours, start, end) == expected(ids, start, end)


@pytest.mark.usefixtures("small_pages")
def test_a_table_answers_for_every_range(table: Table) -> None:
    ours = table.ids(b"one")
    for start, end in product(BOUNDS, BOUNDS):
        assert asked(ours, start, end) == expected(IDS, start, end)


@pytest.mark.usefixtures("small_pages")
def test_a_range_from_id_to_id_has_the_first_and_not_the_last(table: Table) -> None:
    ours = table.ids(b"one")
    for start, end in pairwise(IDS):
        assert asked(ours, start, end) == expected(IDS, start, end)
        assert [row.tobytes() for row in rows_between(ours, start, end)] == [start]


def test_size_and_version_are_those_of_the_source(table: Table) -> None:
    ours = table.ids(b"one")
    assert (ours.size(), ours.version()) == (len(IDS), 4)
    assert table.ids(b"two").size() == len(OTHERS)


def test_a_service_without_ids_is_an_empty_set(table: Table) -> None:
    ours = table.ids(b"none")
    assert ours.size() == 0
    assert list(ours.iterate(b"", END)) == []
    assert asked(ours, b"", END) == Answers([], RangeDigest(0, 0, 0), None)


@pytest.mark.parametrize("count", [PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1])
def test_pages_of_many_ids_fit_together(table: Table, count: int) -> None:
    many = random_ids(Random(count), count)
    table.add(b"many", many)
    assert asked(table.ids(b"many"), b"", END) == expected(many, b"", END)


def test_a_kept_digest_answers_for_the_whole(table: Table) -> None:
    ours = table.ids(b"one", lambda: RangeDigest(3, 1, 2))
    assert ours.digest(b"", END) == RangeDigest(3, 1, 2)
    assert ours.size() == 3
    assert ours.digest(b"", b"\x80") == expected(IDS, b"", b"\x80").digest


def test_what_is_read_within_one_moment_is_of_that_moment(table: Table) -> None:
    ours = table.ids(b"one")
    more = random_ids(Random(9), 50)
    with table.one_moment():
        pages = ours.iterate(b"", b"\x80")
        seen = [row.tobytes() for row in next(pages)]
        table.add(b"one", more)
        seen += [row.tobytes() for rows in pages for row in rows]
        assert seen == expected(IDS, b"", b"\x80").ids
        assert ours.size() == len(IDS)
        assert asked(ours, b"\x10", END) == expected(IDS, b"\x10", END)
    assert asked(ours, b"\x10", END) == expected([*IDS, *more], b"\x10", END)
    assert ours.size() == len(IDS) + len(more)


@pytest.mark.parametrize("mode", list(Mode))
def test_tables_reconcile_with_a_snapshot(table: Table, mode: Mode) -> None:
    mine = IDS[:20] + IDS[25:] + OTHERS[:7]
    session = Session(
        Initiator(snapshot(mine), lambda: bytes(8), mode=mode),
        Responder(table.ids(b"one"), b"saltsalt"),
    )
    check_result(session.run(), Drift(frozenset(mine), frozenset(IDS)))


# ------------------------------------------------------------------------------------------ damage


class PagesOfThree(SqlIdSet):
    """Ids as they are given, whatever a database would do."""

    def __init__(self, ids: list[bytes]) -> None:
        super().__init__("nowhere", version=lambda: 0)
        self._ids = ids

    def _first(self, *_: object) -> object:
        raise NotImplementedError

    def _pages(self, *_: object) -> Iterator[bytes]:
        for at in range(0, len(self._ids), 3):
            yield b"".join(self._ids[at : at + 3])


@pytest.mark.parametrize(
    "wrong",
    [[b"short"], [bytes(25)], [b""], [b"\x42" * 23, b"\x43" * 25]],
    ids=["short", "long", "empty", "together right"],
)
def test_an_id_of_another_length_is_damage(table: Table, wrong: list[bytes]) -> None:
    table.add(b"one", wrong)
    ours = table.ids(b"one")
    with pytest.raises(CorruptionError, match=r"a table .* 24 bytes"):
        ours.digest(b"", END)
    with pytest.raises(CorruptionError, match="24 bytes"):
        ours.lower_bound(wrong[0])


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("place", [0, 3, 5])
def test_an_id_that_is_there_twice_is_damage(table: Table, place: int) -> None:
    table.add(b"one", [IDS[place]])
    with pytest.raises(CorruptionError, match="more than once"):
        table.ids(b"one").digest(b"", END)


@pytest.mark.parametrize("ids", [[0, 1, 2, 2, 3, 4], [0, 1, 3, 2, 4, 5], [0, 2, 1, 3, 4, 5]])
def test_pages_that_do_not_follow_one_another_are_damage(ids: list[int]) -> None:
    with pytest.raises(CorruptionError, match="out of order"):
        list(PagesOfThree([IDS[number] for number in ids]).iterate(b"", END))


def test_no_id_is_no_member(table: Table) -> None:
    table.add(b"one", [None])
    ours = table.ids(b"one")
    assert ours.size() == len(IDS)
    assert asked(ours, b"", END) == expected(IDS, b"", END)


# ----------------------------------------------------------------------------------------- reading


def test_a_large_set_makes_the_compiled_kernels_ready_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(compiled, "ROWS_WORTHWHILE", 10)
    monkeypatch.setattr(compiled, "prepare", counts.append)
    list(PagesOfThree(IDS[:9]).iterate(b"", END))
    assert counts == []
    list(PagesOfThree(IDS[:27]).iterate(b"", END))
    assert counts == [12]


def test_ranges_are_found_by_the_index(postgres: tuple[str, Any]) -> None:
    table = PostgresTable(*postgres)
    # A table of a few rows is read as a whole unless that is forbidden.
    table.connection.execute("SET enable_seqscan = off")
    table.connection.execute("SET enable_bitmapscan = off")
    explained: list[str] = []

    class Explaining:
        autocommit = True

        def execute(self, query: bytes, params: object = None, /, *, binary: bool = False) -> Any:
            found = table.connection.execute(b"EXPLAIN " + query, params)
            explained.extend(row[0].strip() for row in found)
            return table.connection.execute(query, params, binary=binary)

    source = "(SELECT queue AS id FROM associations WHERE service = %s)"
    ours = PostgresIdSet(Explaining(), source, (b"one",), version=lambda: 0)
    assert list(ours.iterate(b"\x10", b"\x20")) == []
    assert ours.lower_bound(b"\x10") is None
    conditions = [line for line in explained if line.startswith("Index Cond")]
    assert len(conditions) == 2
    assert all("service = " in line and "queue >= " in line for line in conditions)
    assert "queue < " in conditions[0]
    assert not [line for line in explained if "Sort" in line or "Filter" in line]
    table.connection.close()


@pytest.mark.usefixtures("small_pages")
def test_ids_come_in_order_whatever_the_server_reads_them_by(postgres: tuple[str, Any]) -> None:
    table = PostgresTable(*postgres)
    table.add(b"one", reversed(IDS))
    for way in ("indexscan", "indexonlyscan", "bitmapscan"):
        table.connection.execute(f"SET enable_{way} = off")
    assert asked(table.ids(b"one"), b"", END) == expected(IDS, b"", END)
    table.connection.close()


def test_one_moment_ends_with_its_transaction(postgres: tuple[str, Any]) -> None:
    table = PostgresTable(*postgres)
    idle = table.connection.info.transaction_status
    with pytest.raises(ZeroDivisionError), one_moment(table.connection):
        raise ZeroDivisionError
    assert table.connection.info.transaction_status == idle
    refused = postgres[1].errors.ReadOnlySqlTransaction
    with one_moment(table.connection), pytest.raises(refused):
        table.connection.execute("DELETE FROM associations")
    assert table.connection.info.transaction_status == idle
    table.connection.close()


def test_one_moment_wants_a_connection_that_is_in_no_transaction(
    postgres: tuple[str, Any],
) -> None:
    table = PostgresTable(*postgres)
    table.connection.autocommit = False
    with pytest.raises(ValueError, match="autocommit"), one_moment(table.connection):
        raise AssertionError
    table.connection.close()
