"""What is committed in `records.sqlite`, as the event loop looks at it."""

import sqlite3
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from syncline.storage.records.base import RecordCounts, page_count_max, service_count_max
from syncline.storage.records.rows import (
    QUEUE_SELECT,
    SERVICE_SELECT,
    Value,
    bound,
    digest_from_row,
    queue_from_row,
    service_from_row,
)
from syncline.storage.records.schema import DIGEST_COLUMNS
from syncline.storage.records.sqlite_checks import COUNTS_SELECT, page_select
from syncline.storage.records.sqlite_connection import storage_error
from syncline.values.digests import EMPTY_DIGEST, SetDigest
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord, ServiceRecord, ServiceRole

_QUEUE: Final = f"{QUEUE_SELECT} WHERE recipient_id = ?"
_BY_SENDER: Final = f"{QUEUE_SELECT} WHERE sender_id = ?"
_BY_NOTIFIER: Final = f"{QUEUE_SELECT} WHERE notifier_id = ?"
_BY_LINK: Final = f"{QUEUE_SELECT} WHERE link_id = ?"
_SERVICE: Final = f"{SERVICE_SELECT} WHERE service_id = ?"
_BY_FINGERPRINT: Final = f"{SERVICE_SELECT} WHERE fingerprint = ?"
_SERVICES: Final = f"{SERVICE_SELECT} ORDER BY service_id LIMIT {service_count_max}"
_DIGEST: Final = f"""
    SELECT {", ".join(DIGEST_COLUMNS)} FROM services JOIN digests ON service = number
    WHERE service_id = ?
"""
_NUMBER: Final = "SELECT number, role FROM services WHERE service_id = ?"
_DELETED: Final = "SELECT recipient_id FROM deleted LIMIT ?"
# Who may have an id, by what it is.
_TAKEN: Final = {
    "queue": "SELECT 1 FROM queues WHERE recipient_id = ?",
    "deleted": "SELECT 1 FROM deleted WHERE recipient_id = ?",
    "sender": "SELECT 1 FROM queues WHERE sender_id = ?",
    "notifier": "SELECT 1 FROM queues WHERE notifier_id = ?",
    "link": "SELECT 1 FROM queues WHERE link_id = ?",
}
_PAGES: Final = {role: page_select(role) for role in ServiceRole}


class SqliteReading:
    """`Durable`, and the looks at what is durable of `Records`. Each look is its own moment.

    Raises DeviceError, CorruptionError.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def close(self) -> None:
        self._connection.close()

    def queue(self, recipient_id: bytes) -> QueueRecord | None:
        return self._queue(_QUEUE, recipient_id)

    def by_sender(self, sender_id: bytes) -> QueueRecord | None:
        return self._queue(_BY_SENDER, sender_id)

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None:
        return self._queue(_BY_NOTIFIER, notifier_id)

    def by_link(self, link_id: bytes) -> QueueRecord | None:
        return self._queue(_BY_LINK, link_id)

    def has_any(self, ids: Mapping[str, bytes]) -> bool:
        return bool(ids) and bool(self._rows(_has_any(tuple(ids)), *ids.values()))

    def service(self, service_id: bytes) -> ServiceRecord | None:
        return self._service(_SERVICE, service_id)

    def service_by_fingerprint(self, fingerprint: bytes) -> ServiceRecord | None:
        return self._service(_BY_FINGERPRINT, fingerprint)

    def services(self) -> list[ServiceRecord]:
        return [service_from_row(row) for row in self._rows(_SERVICES)]

    def digest(self, service_id: bytes) -> SetDigest:
        rows = self._rows(_DIGEST, service_id)
        return digest_from_row(rows[0]) if rows else EMPTY_DIGEST

    def page(self, service_id: bytes, after: bytes | None, count_max: int) -> list[bytes]:
        count_max = min(count_max, page_count_max)
        for number, role in self._rows(_NUMBER, service_id):
            rows = self._rows(_PAGES[ServiceRole(role)], number, after or b"", count_max)
            return [member for (member,) in rows]
        return []

    def deleted_queues(self, count_max: int) -> list[StreamId]:
        rows = self._rows(_DELETED, min(count_max, page_count_max))
        return [StreamId(recipient_id) for (recipient_id,) in rows]

    def counts(self) -> RecordCounts:
        return RecordCounts(*self._rows(COUNTS_SELECT)[0])

    def _queue(self, text: str, key: bytes) -> QueueRecord | None:
        rows = self._rows(text, key)
        return queue_from_row(rows[0]) if rows else None

    def _service(self, text: str, key: bytes) -> ServiceRecord | None:
        rows = self._rows(text, key)
        return service_from_row(rows[0]) if rows else None

    def _rows(self, text: str, *values: Value) -> list[Any]:
        """What the columns of the statement hold. Read to its end, or the moment would last."""
        try:
            return self._connection.execute(text, bound(values)).fetchall()
        except sqlite3.Error as error:
            raise storage_error(error, self._path, "reading") from error


@cache
def _has_any(kinds: tuple[str, ...]) -> str:
    return " UNION ALL ".join(_TAKEN[kind] for kind in kinds) + " LIMIT 1"
