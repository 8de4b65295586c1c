"""The set of a service in `records.sqlite`, and the digest that is kept of it.

Both are read by whoever holds a read transaction, so that they are of one moment.
"""

import sqlite3
from typing import Final

from syncline.storage.id_sets import SqliteIdSet
from syncline.storage.records.rows import digest_from_row
from syncline.storage.records.schema import DIGEST_COLUMNS
from syncline.values.digests import SetDigest
from syncline.values.queue_records import ServiceRole

# No service has this number, so its set is empty.
_NO_NUMBER: Final = 0

DIGEST_SELECT: Final = f"SELECT {', '.join(DIGEST_COLUMNS)} FROM digests WHERE service = ?"
_SERVICE: Final = "SELECT number, role FROM services WHERE service_id = ?"
_VERSION: Final = """
    SELECT version FROM services JOIN digests ON service = number WHERE service_id = ?
"""


def member_columns(role: ServiceRole) -> tuple[str, str]:
    """Of a queue: the service that an id belongs to, and that id."""
    if role is ServiceRole.NOTIFIER:
        return "notifier_service", "notifier_id"
    return "service", "recipient_id"


def stored_set(connection: sqlite3.Connection, service_id: bytes, path: str) -> SqliteIdSet:
    """As of the transaction that is open, which begins here if nothing was read before."""
    row = connection.execute(_SERVICE, (service_id,)).fetchone()
    if row is None:
        return numbered_set(connection, _NO_NUMBER, ServiceRole.MESSAGING, path)
    return numbered_set(connection, row[0], ServiceRole(row[1]), path)


def numbered_set(
    connection: sqlite3.Connection, number: int, role: ServiceRole, path: str
) -> SqliteIdSet:
    service, member = member_columns(role)
    kept = kept_digest(connection, number)
    version = kept.version if kept else 0
    source = f"(SELECT {member} AS id FROM queues WHERE {service} = ?)"
    return SqliteIdSet(connection, source, (number,), version=lambda: version, path=path)


def kept_digest(connection: sqlite3.Connection, number: int) -> SetDigest | None:
    row = connection.execute(DIGEST_SELECT, (number,)).fetchone()
    return None if row is None else digest_from_row(row)


def kept_version(connection: sqlite3.Connection, service_id: bytes) -> int | None:
    row = connection.execute(_VERSION, (service_id,)).fetchone()
    return None if row is None else int(row[0])
