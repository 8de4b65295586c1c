"""Digests compared with the sets that they stand for, and set right where they differ.

Everything here works on a connection of its own, so any thread may run it while others write. A set
and its digest are read from one moment; a repair holds up other writers for as long as it reads one
set that is wrong.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from syncline.storage.files import Files
from syncline.storage.records.base import DigestMismatch, RecordCounts
from syncline.storage.records.rows import digest_from_row, digest_to_row
from syncline.storage.records.schema import DIGEST_COLUMNS, TOTAL_COLUMNS
from syncline.storage.records.sqlite_connection import (
    check_schema,
    connect_only_to_look,
    explained,
    snapshot,
    transaction,
)
from syncline.values.digests import EMPTY_DIGEST, SetDigest, digest_of
from syncline.values.queue_records import ServiceRole

READ_COUNT: Final = 4_096
_DAMAGE_COUNT_MAX: Final = 100

DIGEST_SELECT: Final = f"SELECT {', '.join(DIGEST_COLUMNS)} FROM digests WHERE service = ?"
COUNTS_SELECT: Final = f"SELECT {', '.join(TOTAL_COLUMNS)} FROM totals"
_SERVICES: Final = "SELECT number, service_id, role FROM services"
_SERVICE: Final = f"{_SERVICES} WHERE service_id = ?"
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
class RecordsReport:
    """What reading all of a file gave. `damage` is in SQLite's words."""

    version: int
    kept_counts: RecordCounts
    found_counts: RecordCounts
    mismatches: tuple[DigestMismatch, ...]
    damage: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.mismatches and not self.damage and self.kept_counts == self.found_counts


def page_select(role: ServiceRole) -> str:
    """Ids of a service behind one of them, in order: from the index alone."""
    service, member = _columns(role)
    return (
        f"SELECT {member} FROM queues WHERE {service} = ? AND {member} > ? "
        f"ORDER BY {member} LIMIT ?"
    )


def _columns(role: ServiceRole) -> tuple[str, str]:
    if role is ServiceRole.NOTIFIER:
        return "notifier_service", "notifier_id"
    return "service", "recipient_id"


def recompute(
    connection: sqlite3.Connection, number: int, role: ServiceRole
) -> tuple[SetDigest | None, SetDigest]:
    """The digest that is kept, and that of the set."""
    row = connection.execute(DIGEST_SELECT, (number,)).fetchone()
    kept = None if row is None else digest_from_row(row)
    found = digest_of(_members(connection, number, role), kept.version if kept else 0)
    return kept, found


def recompute_by_id(connection: sqlite3.Connection, service_id: bytes) -> SetDigest:
    """The digest of the set, as of one moment."""
    with snapshot(connection):
        for number, _, role in connection.execute(_SERVICE, (service_id,)).fetchall():
            return recompute(connection, number, ServiceRole(role))[1]
    return EMPTY_DIGEST


def _members(connection: sqlite3.Connection, number: int, role: ServiceRole) -> Iterator[bytes]:
    text, after = page_select(role), b""
    while page := connection.execute(text, (number, after, READ_COUNT)).fetchall():
        for (member,) in page:
            yield member
        after = page[-1][0]


def verify_digests(connection: sqlite3.Connection) -> list[DigestMismatch]:
    """Each service by itself, so that no moment is held for long."""
    mismatches: list[DigestMismatch] = []
    for service in connection.execute(_SERVICES).fetchall():
        with snapshot(connection):
            mismatches += _mismatch(connection, *service)
    return mismatches


def repair_digests(connection: sqlite3.Connection) -> list[DigestMismatch]:
    """The wrong ones only, looked at again while nobody else can write."""
    repaired: list[DigestMismatch] = []
    for wrong in verify_digests(connection):
        with transaction(connection):
            for service in connection.execute(_SERVICE, (wrong.service_id,)).fetchall():
                for mismatch in _mismatch(connection, *service):
                    _put_digest(connection, service[0], mismatch.found)
                    repaired.append(mismatch)
    return repaired


def _mismatch(
    connection: sqlite3.Connection, number: int, service_id: bytes, role: str
) -> list[DigestMismatch]:
    kept, found = recompute(connection, number, ServiceRole(role))
    if kept == found:
        return []
    return [DigestMismatch(service_id, ServiceRole(role), kept, found)]


def _put_digest(connection: sqlite3.Connection, number: int, digest: SetDigest) -> None:
    values = digest_to_row(replace(digest, version=digest.version + 1))
    places = ", ".join("?" * (1 + len(values)))
    connection.execute(
        f"REPLACE INTO digests (service, {', '.join(DIGEST_COLUMNS)}) VALUES ({places})",
        (number, *values),
    )


def repair_counts(connection: sqlite3.Connection) -> tuple[RecordCounts, RecordCounts]:
    """Set the counters to what is there; what they were and are."""
    with transaction(connection):
        kept = RecordCounts(*connection.execute(COUNTS_SELECT).fetchone())
        counted = connection.execute(_COUNT).fetchone()
        changes = ", ".join(f"{name} = ?" for name in TOTAL_COLUMNS)
        if kept != RecordCounts(*counted):
            connection.execute(f"UPDATE totals SET {changes}", counted)
    return kept, RecordCounts(*counted)


def examine(folder: str, path: str, files: Files) -> RecordsReport:
    """Read and check all of a file that nobody works on; it and its WAL stay as they are.

    Raises ForeignFolderError, NewerFormatError, CorruptionError if nothing of it can be read.
    """
    index = f"{path}-shm"
    had_index = files.exists(index)
    try:
        with (
            closing(connect_only_to_look(path, has_wal=files.exists(f"{path}-wal"))) as connection,
            explained(path, "reading"),
        ):
            version = check_schema(connection, folder, path)
            damage = connection.execute(f"PRAGMA integrity_check({_DAMAGE_COUNT_MAX})").fetchall()
            return RecordsReport(
                version,
                RecordCounts(*connection.execute(COUNTS_SELECT).fetchone()),
                RecordCounts(*connection.execute(_COUNT).fetchone()),
                tuple(verify_digests(connection)),
                tuple(text for (text,) in damage if text != "ok"),
            )
    finally:
        if not had_index and files.exists(index):
            files.remove(index)
