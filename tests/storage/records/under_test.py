"""The records that a test works on, of any backend: opened, closed, dropped and opened again."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from syncline.errors import SynclineError
from syncline.storage.files import DiskFiles
from syncline.storage.records import sqlite
from syncline.storage.records.base import Records, RecordsOptions, commit
from syncline.storage.records.memory import MemoryRecords
from syncline.storage.records.operations import Operation
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_writes import BatchWriter
from syncline.values.ids import StreamId
from syncline.values.queue_records import (
    BlockReason,
    LinkRecord,
    NotifierRecord,
    QueueMode,
    QueueRecord,
    QueueStatus,
    ServiceRecord,
    ServiceRole,
)

KINDS = ["memory", "sqlite"]
FILES = DiskFiles()
# Room for a handful of records, so that tests meet the cache and what lies below it.
SMALL = RecordsOptions(cache_bytes_max=3 * 1024, page_cache_bytes=64 * 1024)


def some_id(kind: str, number: int) -> bytes:
    """Ids spread like random ones, the same in each run."""
    return random.Random(f"{kind} {number}").randbytes(24)


def queue_id(number: int) -> StreamId:
    return StreamId(some_id("queue", number))


def sender_id(number: int) -> bytes:
    return some_id("sender", number)


def notifier_id(number: int) -> bytes:
    return some_id("notifier", number)


def link_id(number: int) -> bytes:
    return some_id("link", number)


def service_id(number: int) -> bytes:
    return some_id("service", number)


def fingerprint(number: int) -> bytes:
    return random.Random(f"fingerprint {number}").randbytes(32)


def queue(number: int, **changes: object) -> QueueRecord:
    record = QueueRecord(
        queue_id(number),
        (b"recipient key %d" % number,),
        some_id("secret", number) + bytes(8),
        sender_id(number),
        QueueMode.MESSAGING,
        used_day=20_000 + number,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def whole_queue(number: int, service: bytes | None, notifier_service: bytes | None) -> QueueRecord:
    """With everything that a record can have."""
    return queue(
        number,
        recipient_keys=(b"one", b"", b"three" * 30),
        mode=QueueMode.CONTACT,
        sender_key=b"sender key",
        link=LinkRecord(link_id(number), b"fixed" * 500, b"user" * 2_000),
        notifier=notifier(number, notifier_service),
        status=QueueStatus.BLOCKED,
        block=BlockReason("spam", 3_600),
        service_id=service,
    )


def notifier(number: int, service: bytes | None = None) -> NotifierRecord:
    return NotifierRecord(notifier_id(number), b"notifier key", b"notifier secret", service)


def service(number: int, role: ServiceRole = ServiceRole.MESSAGING) -> ServiceRecord:
    return ServiceRecord(
        service_id(number), role, (b"leaf" * 100, b"identity"), fingerprint(number), 1_700_000_000
    )


class RecordsUnderTest:
    """One data folder and the records that are open on it."""

    def __init__(self, kind: str, folder: Path, options: RecordsOptions = SMALL) -> None:
        self.kind = kind
        self.folder = folder
        self.options = options
        self.files = FILES if kind == "sqlite" else DiskFiles()
        folder.mkdir(exist_ok=True)
        self.records: Records = self.open()

    def open(self) -> Records:
        if self.kind == "sqlite":
            return SqliteRecords.open(str(self.folder), self.files, self.options)
        return MemoryRecords.open(str(self.folder), self.files)

    @property
    def sqlite(self) -> SqliteRecords:
        assert isinstance(self.records, SqliteRecords)
        return self.records

    def commit(self) -> None:
        commit(self.records)

    def reopen(self) -> None:
        self.records.close()
        self.records = self.open()

    def crash(self) -> None:
        """Drop the records as they are and open what they left."""
        if self.kind == "sqlite":
            left = copied(self.folder, self.folder.with_name(f"{self.folder.name}-left"))
            drop(self.sqlite)
            for path in self.folder.iterdir():
                path.unlink()
            left.rename(self.folder)
        self.records = self.open()

    def end(self) -> None:
        if self.kind == "sqlite":
            drop(self.sqlite)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """A batch written meanwhile finds no room: after all of its statements, before its end."""
        if isinstance(self.records, MemoryRecords):
            self.records.is_full = True
            try:
                yield
            finally:
                # A batch that was refused with the one before it never came to the disk.
                self.records.is_full = False
        else:
            with mock.patch.object(sqlite, "BatchWriter", _FullWriter):
                yield

    def write_failing(self, batch: object) -> None:
        with self.full_disk():
            self.records.write_batch(batch)  # type: ignore[arg-type]


class _FullWriter(BatchWriter):
    def run(self, operations: Iterable[Operation]) -> None:
        super().run(operations)
        raise sqlite_error(sqlite3.SQLITE_FULL, "SQLITE_FULL")


def sqlite_error(code: int, name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as the device has it")
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error


def drop(records: SqliteRecords) -> None:
    """Let go of its files without writing anything that is staged."""
    records._reading.close()
    records._writing.close()


def copied(folder: Path, target: Path) -> Path:
    """The files as they are now, without the index, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, target / name)
    return target


def outcome(act: Callable[[Records], object], records: Records) -> object:
    """What came of it: the value, or the class of the refusal."""
    try:
        return act(records)
    except (SynclineError, ValueError) as error:
        return type(error)
