"""The associations of two data folders compared, service by service, and the second made like the
first.

- Looking changes nothing. A folder that nobody works on is locked meanwhile; one that a router
  works on is read beside it, each service as of one moment.
- A repair writes as a router does, through the records: digests change with the associations. It
  needs the folder for itself.
- What is decided about an id is decided from its record as it is then: an association that is not
  the one that was compared stays.
"""

import posixpath
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from syncline.core.reconciliation.initiator import Mode
from syncline.core.reconciliation.sets import IdSet
from syncline.errors import ForeignFolderError, StoreLockedError
from syncline.storage.drift.comparing import (
    Comparison,
    Followed,
    RandomBytes,
    compare,
    unfollowed,
)
from syncline.storage.files import Files, Lock
from syncline.storage.folder import LOCK_NAME
from syncline.storage.records.base import Records, commit
from syncline.storage.records.rows import (
    QUEUE_SELECT,
    SERVICE_SELECT,
    queue_from_row,
    service_from_row,
)
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_connection import (
    connect_only_to_look,
    explained,
    snapshot,
)
from syncline.storage.records.sqlite_reports import looked_at
from syncline.storage.records.sqlite_sets import kept_digest, member_columns, stored_set
from syncline.storage.set_digests import digest_of_set
from syncline.values.queue_records import QueueRecord, ServiceRecord, ServiceRole
from syncline.values.reconciliation import ID_BYTES
from syncline.values.repairs import service_of, with_service

# Records staged at once: at their largest, half of what may wait for the disk.
_BATCH_COUNT: Final = 256


@dataclass(frozen=True, slots=True)
class ServiceDrift:
    """One service in two folders. A digest is wrong if it is not that of its own set."""

    service_id: bytes
    first_role: ServiceRole | None
    second_role: ServiceRole | None
    comparison: Comparison
    is_first_digest_wrong: bool
    is_second_digest_wrong: bool

    @property
    def is_equal(self) -> bool:
        return (
            self.comparison.is_equal
            and self.first_role == self.second_role
            and not self.is_first_digest_wrong
            and not self.is_second_digest_wrong
        )


@dataclass(frozen=True, slots=True)
class ServiceRepair:
    """What was done, or would be. `absent`: ids, one after another, of queues that do not exist in
    the second folder. With a `refusal` nothing was done."""

    associated_count: int = 0
    dissociated_count: int = 0
    absent: bytes = b""
    is_service_made: bool = False
    is_digest_repaired: bool = False
    refusal: str | None = None

    @property
    def absent_count(self) -> int:
        return len(self.absent) // ID_BYTES


class FolderRecords:
    """The records of a folder, to look at. `is_worked_on`: a router has it meanwhile."""

    def __init__(self, connection: sqlite3.Connection, path: str, *, is_worked_on: bool) -> None:
        self.is_worked_on = is_worked_on
        self._connection = connection
        self._path = path

    def services(self) -> dict[bytes, ServiceRole]:
        """All, in the order of their ids."""
        with explained(self._path, "reading"):
            rows = self._connection.execute(
                "SELECT service_id, role FROM services ORDER BY service_id"
            ).fetchall()
        return {service_id: ServiceRole(role) for service_id, role in rows}

    def service(self, service_id: bytes) -> ServiceRecord | None:
        with explained(self._path, "reading"):
            row = self._connection.execute(
                f"{SERVICE_SELECT} WHERE service_id = ?", (service_id,)
            ).fetchone()
        return None if row is None else service_from_row(row)

    def has_certificate(self, fingerprint: bytes) -> bool:
        """Whether it is that of a service."""
        with explained(self._path, "reading"):
            row = self._connection.execute(
                "SELECT 1 FROM services WHERE fingerprint = ?", (fingerprint,)
            ).fetchone()
        return row is not None

    def queue(self, role: ServiceRole, member: bytes) -> QueueRecord | None:
        """The one that a service of this role knows by that id."""
        column = member_columns(role)[1]
        with explained(self._path, "reading"):
            row = self._connection.execute(
                f"{QUEUE_SELECT} WHERE {column} = ?", (member,)
            ).fetchone()
        return None if row is None else queue_from_row(row)

    @contextmanager
    def ids_of(self, service_id: bytes) -> Generator[IdSet]:
        """As of one moment. That of an unknown service is empty."""
        with explained(self._path, "reading"), snapshot(self._connection):
            yield stored_set(self._connection, service_id, self._path)

    def has_wrong_digest(self, service_id: bytes) -> bool:
        """Whether the digest beside the set is not that of its ids, as of one moment."""
        with self.ids_of(service_id) as ids:
            row = self._connection.execute(
                "SELECT number FROM services WHERE service_id = ?", (service_id,)
            ).fetchone()
            return row is not None and kept_digest(self._connection, row[0]) != digest_of_set(ids)


@contextmanager
def looked_into(folder: str, files: Files) -> Generator[FolderRecords]:
    """Raises ForeignFolderError for a folder without records of queues."""
    path = _records_path(folder, files)
    with _held(folder, files) as lock:
        is_worked_on = lock is None
        with looked_at(folder, path, files, is_worked_on=is_worked_on) as connection:
            yield FolderRecords(connection, path, is_worked_on=is_worked_on)


@contextmanager
def worked_on(folder: str, files: Files) -> Generator[tuple[FolderRecords, Records]]:
    """To change it. Raises StoreLockedError, and what `looked_into` raises."""
    path = _records_path(folder, files)
    lock = files.lock(posixpath.join(folder, LOCK_NAME))
    try:
        with (
            closing(SqliteRecords.open(folder, files)) as records,
            closing(connect_only_to_look(path, has_wal=True)) as connection,
        ):
            yield FolderRecords(connection, path, is_worked_on=False), records
    finally:
        lock.release()


def _records_path(folder: str, files: Files) -> str:
    path = posixpath.join(folder, FILE_NAME)
    if not files.exists(path):
        raise ForeignFolderError(folder, f"there is no {FILE_NAME}, so it has no SMP queues")
    return path


@contextmanager
def _held(folder: str, files: Files) -> Generator[Lock | None]:
    """Nobody begins to work on it meanwhile; None if somebody does."""
    lock: Lock | None = None
    with suppress(StoreLockedError):
        lock = files.lock(posixpath.join(folder, LOCK_NAME))
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


# --------------------------------------------------------------------------------------- comparing


def compare_service(
    first: FolderRecords,
    second: FolderRecords,
    service_id: bytes,
    random_bytes: RandomBytes,
    mode: Mode = Mode.SKETCH,
    followed: Followed = unfollowed,
) -> ServiceDrift:
    records = (first.service(service_id), second.service(service_id))
    with first.ids_of(service_id) as mine, second.ids_of(service_id) as theirs:
        comparison = compare(mine, theirs, random_bytes, mode, followed)
    first_role, second_role = (None if record is None else record.role for record in records)
    return ServiceDrift(
        service_id,
        first_role,
        second_role,
        comparison,
        first.has_wrong_digest(service_id),
        second.has_wrong_digest(service_id),
    )


# --------------------------------------------------------------------------------------- repairing


class FolderRepairer:
    """Makes the second folder like the first. Without `records` it only says what it would do."""

    def __init__(self, second: FolderRecords, records: Records | None) -> None:
        self._second = second
        self._records = records
        self._staged_count = 0

    def repair(
        self, service: ServiceRecord | None, drift: ServiceDrift, followed: Followed = unfollowed
    ) -> ServiceRepair:
        """`service` is the record of the first folder. Told of each id; durable on return."""
        refusal = self._refusal(service, drift)
        if service is None or refusal is not None:
            return ServiceRepair(refusal=refusal)
        is_service_made = drift.second_role is None
        if is_service_made and self._records is not None:
            self._records.create_service(service)
            commit(self._records)
        comparison = drift.comparison
        dissociated_count = 0
        for each in _ids(comparison.only_second, followed):
            dissociated_count += self._dissociate(service, each)
        associated_count, absent = 0, bytearray()
        for each in _ids(comparison.only_first, followed):
            if self._associate(service, each):
                associated_count += 1
            else:
                absent += each
        self._commit()
        if drift.is_second_digest_wrong and self._records is not None:
            self._records.repair_digest(service.service_id)
        return ServiceRepair(
            associated_count,
            dissociated_count,
            bytes(absent),
            is_service_made,
            drift.is_second_digest_wrong,
        )

    def _refusal(self, service: ServiceRecord | None, drift: ServiceDrift) -> str | None:
        if service is None:
            return "the first folder does not know the service, so it is left as it is"
        if drift.second_role is None and self._second.has_certificate(service.fingerprint):
            return "its certificate is that of another service in the second folder"
        if drift.second_role not in (None, service.role):
            return "it has another role in the second folder"
        if drift.comparison.failure is not None:
            return drift.comparison.failure
        return None

    def _associate(self, service: ServiceRecord, member: bytes) -> bool:
        """False if there is no queue with that id."""
        record = self._record(service.role, member)
        if record is None:
            return False
        self._update(with_service(record, service.role, service.service_id))
        return True

    def _dissociate(self, service: ServiceRecord, member: bytes) -> bool:
        """False if it is not the service's any more."""
        record = self._record(service.role, member)
        if record is None or service_of(record, service.role) != service.service_id:
            return False
        self._update(with_service(record, service.role, None))
        return True

    def _record(self, role: ServiceRole, member: bytes) -> QueueRecord | None:
        if self._records is None:
            return self._second.queue(role, member)
        if role is ServiceRole.NOTIFIER:
            return self._records.by_notifier(member)
        return self._records.queue(member)

    def _update(self, record: QueueRecord) -> None:
        if self._records is None:
            return
        self._records.update_queue(record)
        self._staged_count += 1
        if self._staged_count >= _BATCH_COUNT:
            self._commit()

    def _commit(self) -> None:
        if self._records is not None:
            commit(self._records)
        self._staged_count = 0


def _ids(joined: bytes, followed: Followed) -> Iterator[bytes]:
    for start in range(0, len(joined), ID_BYTES):
        yield joined[start : start + ID_BYTES]
        followed(1)
