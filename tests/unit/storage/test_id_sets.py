"""Ids in SQLite read like ids in memory, and reconcile with them."""

import sqlite3
from collections.abc import Iterator
from random import Random

import pytest

from syncline.core.reconciliation.initiator import Initiator, Mode
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import END, RangeDigest, rows_between
from syncline.errors import CorruptionError
from syncline.storage.id_sets import SqliteIdSet
from tests.reconciliation import Drift, Session, check_result, random_ids, snapshot

IDS = sorted(random_ids(Random(1), 700))
OTHERS = sorted(random_ids(Random(2), 50))
SOURCE = "(SELECT queue AS id FROM associations WHERE service = ?)"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE associations (service BLOB, queue BLOB)")
    connection.execute("CREATE UNIQUE INDEX by_service ON associations (service, queue)")
    rows = [(b"one", id_) for id_ in IDS] + [(b"two", id_) for id_ in OTHERS]
    Random(3).shuffle(rows)
    connection.executemany("INSERT INTO associations VALUES (?, ?)", rows)
    yield connection
    connection.close()


def stored(connection: sqlite3.Connection, service: bytes = b"one") -> SqliteIdSet:
    return SqliteIdSet(connection, SOURCE, (service,), version=lambda: 4)


BOUNDS = [
    (b"", END),
    (b"", b""),
    (b"\x40", b"\x80"),
    (IDS[10], IDS[400]),
    (IDS[10], IDS[10] + b"\0"),
    (b"\xf0", END),
]


@pytest.mark.parametrize(("start", "end"), BOUNDS)
def test_ranges_are_those_of_a_snapshot(
    connection: sqlite3.Connection, start: bytes, end: bytes
) -> None:
    ours, expected = stored(connection), snapshot(IDS)
    assert rows_between(ours, start, end).tobytes() == rows_between(expected, start, end).tobytes()
    assert ours.digest(start, end) == expected.digest(start, end)
    assert ours.lower_bound(start) == expected.lower_bound(start)


def test_size_and_version_are_those_of_the_source(connection: sqlite3.Connection) -> None:
    assert stored(connection).size() == len(IDS)
    assert stored(connection, b"two").size() == len(OTHERS)
    assert stored(connection, b"none").size() == 0
    assert stored(connection, b"none").lower_bound(b"") is None
    assert stored(connection).version() == 4


def test_ranges_are_found_by_the_index(connection: sqlite3.Connection) -> None:
    plan = connection.execute(
        f"EXPLAIN QUERY PLAN SELECT id FROM {SOURCE} WHERE id >= ? AND id < ? ORDER BY id",
        (b"one", b"", END),
    ).fetchall()
    assert [row[3] for row in plan] == [
        "SEARCH associations USING COVERING INDEX by_service (service=? AND queue>? AND queue<?)"
    ]


def test_a_kept_digest_answers_for_the_whole(connection: sqlite3.Connection) -> None:
    kept = RangeDigest(3, 1, 2)
    ours = SqliteIdSet(connection, SOURCE, (b"one",), version=lambda: 1, digest=lambda: kept)
    assert ours.digest(b"", END) == kept
    assert ours.size() == 3
    assert ours.digest(b"", b"\x80").count == snapshot(IDS).digest(b"", b"\x80").count


def test_an_id_of_another_length_is_damage(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO associations VALUES (?, ?)", (b"one", b"short"))
    with pytest.raises(CorruptionError):
        stored(connection).digest(b"", END)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_store_reconciles_with_a_store(connection: sqlite3.Connection, mode: Mode) -> None:
    connection.execute("CREATE TABLE ids (id BLOB PRIMARY KEY) WITHOUT ROWID")
    mine = IDS[:300] + IDS[340:] + OTHERS[:7]
    connection.executemany("INSERT INTO ids VALUES (?)", [(id_,) for id_ in mine])
    own = SqliteIdSet(connection, "ids", version=lambda: 1)
    session = Session(
        Initiator(own, lambda: bytes(8), mode=mode), Responder(stored(connection), b"saltsalt")
    )
    check_result(session.run(), Drift(frozenset(mine), frozenset(IDS)))
