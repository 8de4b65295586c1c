"""Digests and counters compared with what they stand for, and set right where they differ.

Everything here works on a connection of its own, so any thread may run it while others write. A set
and its digest are read from one moment; a repair holds up other writers for as long as it writes a
row.
"""

import sqlite3
from collections.abc import Generator
from dataclasses import dataclass, fields, replace
from typing import Final

from syncline.errors import CorruptionError
from syncline.storage.records.base import DigestMismatch, RecordCounts
from syncline.storage.records.rows import digest_to_row
from syncline.storage.records.schema import DIGEST_COLUMNS, FILE_NAME, TOTAL_COLUMNS
from syncline.storage.records.sqlite_connection import snapshot, transaction
from syncline.storage.records.sqlite_sets import (
    kept_digest,
    member_columns,
    numbered_set,
    stored_set,
)
from syncline.storage.set_digests import digest_of_set, run_out, walk
from syncline.values.digests import EMPTY_DIGEST, SetDigest, digest_from_numbers
from syncline.values.queue_records import ServiceRole

COUNTS_SELECT: Final = f"SELECT {', '.join(TOTAL_COLUMNS)} FROM totals"
_SERVICE_IDS: Final = "SELECT service_id FROM services ORDER BY service_id"
_SERVICE: Final = "SELECT number, role FROM services WHERE service_id = ?"
_MAKE_DIGEST: Final = """
    INSERT INTO digests (service) SELECT number FROM services WHERE service_id = ?
    ON CONFLICT (service) DO NOTHING
"""
_PUT_DIGEST: Final = f"""
    UPDATE digests SET {", ".join(f"{name} = ?" for name in DIGEST_COLUMNS)} WHERE service = ?
"""
_COUNT: Final = """
    SELECT
        (SELECT count(*) FROM queues),
        (SELECT count(*) FROM queues WHERE notifier_id NOTNULL),
        (SELECT count(*) FROM queues WHERE link_id NOTNULL),
        (SELECT count(*) FROM queues WHERE service NOTNULL),
        (SELECT count(*) FROM queues WHERE notifier_service NOTNULL),
        (SELECT count(*) FROM services),
        (SELECT count(*) FROM deleted)
"""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A digest that is wrong: how it was found, and what is to be taken off it."""

    mismatch: DigestMismatch
    error: DigestMismatch


def page_select(role: ServiceRole) -> str:
    """Ids of a service behind one of them, in order: from the index alone."""
    service, member = member_columns(role)
    return (
        f"SELECT {member} FROM queues WHERE {service} = ? AND {member} > ? "
        f"ORDER BY {member} LIMIT ?"
    )


def recompute(connection: sqlite3.Connection, service_id: bytes, path: str) -> SetDigest:
    """The digest of the set, as of one moment."""
    with snapshot(connection):
        return digest_of_set(stored_set(connection, service_id, path))


def verify_digests(connection: sqlite3.Connection, path: str) -> list[DigestMismatch]:
    """Each service by itself, so that no moment is held for long."""
    found = (verify_digest(connection, each, path) for each in service_ids(connection))
    return [each for each in found if each is not None]


def verify_digest(
    connection: sqlite3.Connection, service_id: bytes, path: str
) -> DigestMismatch | None:
    return run_out(walk_digest(connection, service_id, path))


def walk_digest(
    connection: sqlite3.Connection, service_id: bytes, path: str
) -> Generator[int, None, DigestMismatch | None]:
    """Compare a set, read step by step at one moment, with its digest of that moment."""
    with snapshot(connection):
        for number, role in connection.execute(_SERVICE, (service_id,)).fetchall():
            kept = kept_digest(connection, number)
            ids = numbered_set(connection, number, ServiceRole(role), path)
            found = yield from walk(ids, 0 if kept is None else kept.count)
            if kept != found:
                return DigestMismatch(service_id, ServiceRole(role), kept, found)
    return None


def find_wrong(connection: sqlite3.Connection, service_id: bytes, path: str) -> Wrong | None:
    """Ready for `take_off`: if there is no digest at all, one is made that follows the set."""
    mismatch = verify_digest(connection, service_id, path)
    if mismatch is None or mismatch.kept is not None:
        return None if mismatch is None else Wrong(mismatch, mismatch)
    with transaction(connection):
        connection.execute(_MAKE_DIGEST, (service_id,))
    again = verify_digest(connection, service_id, path)
    # An empty set has the digest that was made: then there is nothing to take off but time.
    return Wrong(mismatch, again or replace(mismatch, kept=EMPTY_DIGEST, found=EMPTY_DIGEST))


def take_off(connection: sqlite3.Connection, error: DigestMismatch) -> int | None:
    """Take what is wrong off a digest; its version then, None if the service has gone.

    Others have written since the set was read. That matters nothing: all parts of a digest are
    sums, so the error in it stays the same whatever comes and goes. But only one may take it off.
    """
    kept = error.kept
    assert kept is not None
    with transaction(connection):
        for number, _ in connection.execute(_SERVICE, (error.service_id,)).fetchall():
            now = kept_digest(connection, number)
            # One that was deleted and made anew begins with version 0.
            if now is not None and now.version >= kept.version:
                put = _moved(now, kept, error.found)
                connection.execute(_PUT_DIGEST, (*digest_to_row(put), number))
                return put.version
    return None


def _moved(digest: SetDigest, start: SetDigest, end: SetDigest) -> SetDigest:
    """A digest after all that leads from `start` to `end`, its version one up."""
    return digest_from_numbers(
        digest.count + end.count - start.count,
        _number(digest.xor_md5) ^ _number(start.xor_md5) ^ _number(end.xor_md5),
        _number(digest.xor_xxh3) ^ _number(start.xor_xxh3) ^ _number(end.xor_xxh3),
        _number(digest.sum128) + _number(end.sum128) - _number(start.sum128),
        digest.version + 1,
    )


def _number(hashed: bytes) -> int:
    return int.from_bytes(hashed, "big")


def service_ids(connection: sqlite3.Connection) -> list[bytes]:
    return [service_id for (service_id,) in connection.execute(_SERVICE_IDS).fetchall()]


# ------------------------------------------------------------------------------------ counts


def read_counts(connection: sqlite3.Connection) -> tuple[RecordCounts, RecordCounts]:
    """What is kept and what is there, as of one moment."""
    with snapshot(connection):
        kept = connection.execute(COUNTS_SELECT).fetchone()
        if kept is None:
            raise CorruptionError(FILE_NAME, 0, "the row of totals is missing")
        return RecordCounts(*kept), RecordCounts(*connection.execute(_COUNT).fetchone())


def repair_counts(connection: sqlite3.Connection) -> tuple[RecordCounts, RecordCounts]:
    """Take what is wrong off the counters, as `take_off` does; what they were and should be."""
    kept, found = read_counts(connection)
    if kept != found:
        errors = [
            getattr(found, each.name) - getattr(kept, each.name) for each in fields(RecordCounts)
        ]
        changes = ", ".join(f"{name} = {name} + ?" for name in TOTAL_COLUMNS)
        with transaction(connection):
            connection.execute(f"UPDATE totals SET {changes}", errors)
    return kept, found
