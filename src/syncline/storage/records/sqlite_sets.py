"""The set of a service in `records.sqlite`, and the digest that is kept of it.

Both are read by whoever holds a read transaction, so that they are of one moment. What is counted
and hashed here comes from the ids themselves.
"""

import sqlite3
from collections.abc import Generator
from typing import Final, TypeVar

from syncline.core.reconciliation.sets import END
from syncline.kernels.md5 import xor_md5
from syncline.kernels.ranges import BUCKET_COUNT
from syncline.kernels.xxh3 import Ids, xor_and_sum, xxh3_128
from syncline.storage.id_sets import SqliteIdSet
from syncline.storage.records.rows import digest_from_row
from syncline.storage.records.schema import DIGEST_COLUMNS
from syncline.values.digests import SetDigest, digest_from_numbers
from syncline.values.queue_records import ServiceRole

_Result = TypeVar("_Result")

# Read at once: a piece of the id space holds so many prefixes of two bytes.
_BUCKETS_AT_ONCE: Final = 256
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


def walk(ids: SqliteIdSet) -> Generator[int, None, SetDigest]:
    """Compute the digest of a set; each step reads one piece and yields how many ids it had."""
    count = xor = total = xor_of_md5 = 0
    for first in range(0, BUCKET_COUNT, _BUCKETS_AT_ONCE):
        piece_count = 0
        for rows in ids.iterate(*_piece(first)):
            piece_count += len(rows)
            piece_xor, piece_sum, piece_md5 = _hashed(rows)
            xor, total, xor_of_md5 = xor ^ piece_xor, total + piece_sum, xor_of_md5 ^ piece_md5
        count += piece_count
        yield piece_count
    return digest_from_numbers(count, xor_of_md5, xor, total, ids.version())


def run_out(steps: Generator[int, None, _Result]) -> _Result:
    """Take all steps; what comes at the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _piece(first: int) -> tuple[bytes, bytes]:
    after = first + _BUCKETS_AT_ONCE
    return first.to_bytes(2, "big"), END if after == BUCKET_COUNT else after.to_bytes(2, "big")


def _hashed(rows: Ids) -> tuple[int, int, int]:
    return *xor_and_sum(*xxh3_128(rows)), int.from_bytes(xor_md5(rows), "big")
