"""One batch as statements of one transaction.

Operations are run in the order in which they were staged: each was allowed by what came before it.
Neighbours with the same statement are run together. An update names only the columns that change:
SQLite writes every index of a column that a statement names, whether or not its value differs.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Final, assert_never

from syncline.errors import CorruptionError
from syncline.storage.records.operations import (
    CreateQueue,
    CreateService,
    DeleteQueue,
    DeleteService,
    ForgetDeleted,
    Operation,
    RotateService,
    UpdateQueue,
)
from syncline.storage.records.rows import Value, bound, pack
from syncline.values.ids import StreamId
from syncline.values.queue_records import LinkRecord, NotifierRecord, QueueRecord, ServiceRole

# Columns that change together.
_PLAIN: Final = (
    "recipient_keys",
    "secret",
    "sender_key",
    "mode",
    "status",
    "block_reason",
    "block_ttl_seconds",
    "used_day",
)
_SERVICE: Final = ("service",)
_NOTIFIER: Final = ("notifier_id", "notifier_key", "notifier_secret", "notifier_service")
_NOTIFIER_SERVICE: Final = ("notifier_service",)
_LINK: Final = ("link_id",)

_CREATED: Final = ("recipient_id", "sender_id", *_PLAIN, *_SERVICE, *_NOTIFIER, *_LINK)
_DELETE_QUEUE: Final = "DELETE FROM queues WHERE recipient_id = ?"
_FORGET: Final = "DELETE FROM deleted WHERE recipient_id = ?"
_PUT_LINK: Final = """
    INSERT INTO links (queue, fixed, user)
    SELECT number, ?, ? FROM queues WHERE recipient_id = ?
    ON CONFLICT (queue) DO UPDATE SET fixed = excluded.fixed, user = excluded.user
"""
_DROP_LINK: Final = """
    DELETE FROM links WHERE queue = (SELECT number FROM queues WHERE recipient_id = ?)
"""
_CREATE_SERVICE: Final = """
    INSERT INTO services (service_id, role, chain, fingerprint, created_s) VALUES (?, ?, ?, ?, ?)
"""
_ROTATE_SERVICE: Final = "UPDATE services SET chain = ?, fingerprint = ? WHERE service_id = ?"
_DELETE_SERVICE: Final = "DELETE FROM services WHERE service_id = ?"
# Its associations before it, a few at a time: SQLite keeps what a statement may have to undo.
_DELETE_DIGEST: Final = """
    DELETE FROM digests WHERE service = (SELECT number FROM services WHERE service_id = ?)
"""
_CLEARED_COUNT: Final = 4_096
_CLEAR: Final = tuple(
    f"""
    UPDATE queues SET {column} = NULL WHERE number IN (
        SELECT number FROM queues
        WHERE {column} = (SELECT number FROM services WHERE service_id = ?) LIMIT {_CLEARED_COUNT}
    )
    """
    for column in ("service", "notifier_service")
)
_FIND_SERVICE: Final = "SELECT number FROM services WHERE service_id = ? AND role = ?"

_Statement = tuple[str, tuple[Value, ...]]
# Statements that must find exactly one row each; the others may find none.
_MAY_FIND_NONE: Final = {_FORGET, _DROP_LINK}


class BatchWriter:
    """Runs the operations of a batch inside a transaction that its user opens and ends."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._numbers: dict[bytes, int] = {}
        self._text = ""
        self._values: list[list[bytearray | int | str | None]] = []

    def run(self, operations: Iterable[Operation]) -> None:
        for text, values in chain.from_iterable(map(self._statements, operations)):
            if text != self._text:
                self._run_gathered()
                self._text = text
            self._values.append(bound(values))
        self._run_gathered()

    def _run_gathered(self) -> None:
        if not self._values:
            return
        found = self._connection.executemany(self._text, self._values).rowcount
        if found != len(self._values) and self._text not in _MAY_FIND_NONE:
            raise CorruptionError(
                self._path, 0, f"{len(self._values)} rows were to change and {found} were there"
            )
        self._values.clear()

    def _statements(self, operation: Operation) -> Iterator[_Statement]:
        match operation:
            case CreateQueue(record=record):
                yield self._create(record)
                if record.link is not None:
                    yield _put_link(record.recipient_id, record.link)
            case UpdateQueue(before=before, record=record):
                yield from self._update(before, record)
            case DeleteQueue(before=before):
                yield _DELETE_QUEUE, (before.recipient_id,)
            case ForgetDeleted(recipient_ids=ids):
                yield from ((_FORGET, (each,)) for each in ids)
            case CreateService(record=service):
                yield (
                    _CREATE_SERVICE,
                    (
                        service.service_id,
                        service.role.value,
                        pack(service.chain),
                        service.fingerprint,
                        service.created_s,
                    ),
                )
            case RotateService(record=service):
                yield (
                    _ROTATE_SERVICE,
                    (
                        pack(service.chain),
                        service.fingerprint,
                        service.service_id,
                    ),
                )
            case DeleteService(before=service):
                self._clear(service.service_id)
                yield _DELETE_SERVICE, (service.service_id,)
            case _:
                assert_never(operation)

    def _create(self, record: QueueRecord) -> _Statement:
        values = (
            record.recipient_id,
            record.sender_id,
            *_plain(record),
            self._service(record.service_id, ServiceRole.MESSAGING),
            *self._notifier(record.notifier),
            record.link_id,
        )
        # What is not there need not be named, and most queues have little.
        given = tuple([value is not None for value in values])
        return _create_text(given), tuple([value for value in values if value is not None])

    def _update(self, before: QueueRecord, record: QueueRecord) -> Iterator[_Statement]:
        columns: tuple[str, ...] = ()
        values: tuple[Value, ...] = ()
        if (plain := _plain(record)) != _plain(before):
            columns, values = _PLAIN, plain
        if record.service_id != before.service_id:
            columns += _SERVICE
            values += (self._service(record.service_id, ServiceRole.MESSAGING),)
        if record.notifier != before.notifier:
            notifier = self._notifier(record.notifier)
            if _without_service(record.notifier) == _without_service(before.notifier):
                columns, values = columns + _NOTIFIER_SERVICE, values + notifier[-1:]
            else:
                columns, values = columns + _NOTIFIER, values + notifier
        if record.link_id != before.link_id:
            columns, values = columns + _LINK, (*values, record.link_id)
        if columns:
            yield _update_text(columns), (*values, record.recipient_id)
        if record.link != before.link:
            if record.link is None:
                yield _DROP_LINK, (record.recipient_id,)
            else:
                yield _put_link(record.recipient_id, record.link)

    def _clear(self, service_id: bytes) -> None:
        """Without a digest, nothing is computed for the members that go."""
        self._run_gathered()
        # Its number may be another one's in the same batch.
        self._numbers.clear()
        self._connection.execute(_DELETE_DIGEST, (service_id,))
        for text in _CLEAR:
            while self._connection.execute(text, (service_id,)).rowcount == _CLEARED_COUNT:
                pass

    def _notifier(self, notifier: NotifierRecord | None) -> tuple[Value, ...]:
        if notifier is None:
            return (None, None, None, None)
        service = self._service(notifier.service_id, ServiceRole.NOTIFIER)
        return (notifier.notifier_id, notifier.key, notifier.secret, service)

    def _service(self, service_id: bytes | None, role: ServiceRole) -> int | None:
        """Its number. Staging has seen that it exists, so it does."""
        if service_id is None:
            return None
        number = self._numbers.get(service_id)
        if number is None:
            # It may be created by what is gathered.
            self._run_gathered()
            found = self._connection.execute(_FIND_SERVICE, (service_id, role.value)).fetchone()
            if found is None:
                raise CorruptionError(self._path, 0, "a service that was there is missing")
            number = self._numbers[service_id] = int(found[0])
        return number


@cache
def _create_text(given: tuple[bool, ...]) -> str:
    columns = [column for column, is_given in zip(_CREATED, given, strict=True) if is_given]
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO queues ({', '.join(columns)}) VALUES ({places})"


@cache
def _update_text(columns: tuple[str, ...]) -> str:
    changes = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE queues SET {changes} WHERE recipient_id = ?"


def _plain(record: QueueRecord) -> tuple[Value, ...]:
    block = record.block
    return (
        pack(record.recipient_keys),
        record.secret,
        record.sender_key,
        record.mode.value,
        record.status.value,
        None if block is None else block.reason,
        None if block is None else block.ttl_seconds,
        record.used_day,
    )


def _without_service(notifier: NotifierRecord | None) -> tuple[bytes, ...]:
    return () if notifier is None else (notifier.notifier_id, notifier.key, notifier.secret)


def _put_link(recipient_id: StreamId, link: LinkRecord) -> _Statement:
    return _PUT_LINK, (link.fixed, link.user, recipient_id)
