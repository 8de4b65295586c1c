"""Records in SQLite, written in batches on the committer's thread.

The event loop never waits for the disk to write: changes are staged in layers in memory, and a
batch is one transaction with one sync, on a connection that only `write_batch` uses. Looking goes
through the layers, a cache of records, and then a second connection that reads.

- A layer is let go of only after its transaction is committed, or rolled back for good.
- The cache holds durable records alone, so a failed batch cannot spoil it. What the layers know is
  never looked for in it.
- What the reading connection shows is committed, so it is durable.
"""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Self

from syncline.core.reconciliation.sets import IdSet
from syncline.errors import (
    CorruptionError,
    StorageError,
    StoreFullError,
    StoreHeldError,
    StoreLockedError,
)
from syncline.storage.base import Batch
from syncline.storage.files import Files
from syncline.storage.records import sqlite_checks
from syncline.storage.records.base import (
    DigestMismatch,
    RecordCounts,
    RecordsOptions,
    RecordsReport,
    SetFollower,
    commit,
    never,
    write,
)
from syncline.storage.records.layers import Layer
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.set_changes import SetNews, Tidings, news_of
from syncline.storage.records.sqlite_connection import (
    bring_in_wal,
    connect_reader,
    connect_writer,
    explained,
    make_database,
    prepare_schema,
    snapshot,
    transaction,
)
from syncline.storage.records.sqlite_copies import copy_records
from syncline.storage.records.sqlite_reading import SqliteReading
from syncline.storage.records.sqlite_reports import report_steps
from syncline.storage.records.sqlite_sets import kept_version, stored_set
from syncline.storage.records.sqlite_writes import BatchWriter
from syncline.storage.records.staging import StagedRecords
from syncline.values.digests import SetDigest
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRecord


class SqliteRecords(StagedRecords):
    """See the module, and `storage.records.base.Records` for each method."""

    def __init__(
        self,
        folder: str,
        files: Files,
        options: RecordsOptions,
        writing: sqlite3.Connection,
        reading: sqlite3.Connection,
    ) -> None:
        self._folder = folder
        self._files = files
        self._options = options
        self._path = f"{folder}/{FILE_NAME}"
        self._writing = writing
        self._reading = SqliteReading(reading, self._path)
        # What ended all writing.
        self._failure: StorageError | None = None
        self._tidings = Tidings()
        # An error must not be taken off twice.
        self._repairing = Lock()
        super().__init__(self._reading, options.cache_bytes_max)

    @classmethod
    def open(cls, folder: str, files: Files, options: RecordsOptions | None = None) -> Self:
        """Open or make the records of a data folder that this process has locked.

        Raises NewerFormatError, ForeignFolderError for a file of something else, CorruptionError
        for a damaged one.
        """
        options = options or RecordsOptions()
        path = f"{folder}/{FILE_NAME}"
        if not files.exists(path):
            if files.exists(f"{path}-wal"):
                # SQLite would throw that away.
                raise CorruptionError(path, 0, "it is missing, and its WAL is there")
            make_database(folder, files)
        with closing(files.open(path, writable=False)) as file:
            if file.size() == 0:
                # SQLite would begin to write before anybody could look.
                raise CorruptionError(path, 0, "it is empty")
        writing = connect_writer(path, options.page_cache_bytes)
        try:
            prepare_schema(writing, folder, path)
            reading = connect_reader(path, options.page_cache_bytes)
        except BaseException:
            writing.close()
            raise
        return cls(folder, files, options, writing, reading)

    # Looking at what is durable.

    def digest(self, service_id: bytes) -> SetDigest:
        return self._reading.digest(service_id)

    def page(self, service_id: bytes, after: bytes | None, count_max: int) -> list[bytes]:
        return self._reading.page(service_id, after, count_max)

    def services(self) -> list[ServiceRecord]:
        return self._reading.services()

    def deleted_queues(self, count_max: int) -> list[StreamId]:
        return self._reading.deleted_queues(count_max)

    def counts(self) -> RecordCounts:
        return self._reading.counts()

    def follow_sets(self, follower: SetFollower | None) -> None:
        self._tidings.follower = follower

    # Checking and copying, each with a connection of its own.

    def recompute(self, service_id: bytes) -> SetDigest:
        with closing(self._another_reader()) as connection, explained(self._path, "reading"):
            return sqlite_checks.recompute(connection, service_id, self._path)

    @contextmanager
    def read_set(self, service_id: bytes) -> Generator[IdSet]:
        with (
            closing(self._another_reader()) as connection,
            explained(self._path, "reading"),
            snapshot(connection),
        ):
            yield stored_set(connection, service_id, self._path)

    def verify_digests(self) -> list[DigestMismatch]:
        with closing(self._another_reader()) as connection, explained(self._path, "reading"):
            return sqlite_checks.verify_digests(connection, self._path)

    def repair_digests(self) -> list[DigestMismatch]:
        found = map(self.repair_digest, [each.service_id for each in self.verify_digests()])
        return [each for each in found if each is not None]

    def repair_digest(self, service_id: bytes) -> DigestMismatch | None:
        connection = connect_writer(self._path, self._options.page_cache_bytes)
        with closing(connection), self._repairing, explained(self._path, "writing"):
            wrong = sqlite_checks.find_wrong(connection, service_id, self._path)
            if wrong is None:
                return None
            with self._tidings.order:
                version = sqlite_checks.take_off(connection, wrong.error)
                if version is None:
                    return None
                self._tidings.add_repair(service_id, version)
        return wrong.mismatch

    def service_ids(self) -> list[bytes]:
        with closing(self._another_reader()) as connection, explained(self._path, "reading"):
            return sqlite_checks.service_ids(connection)

    def walk_digest(self, service_id: bytes) -> Generator[int, None, DigestMismatch | None]:
        with closing(self._another_reader()) as connection, explained(self._path, "reading"):
            return (yield from sqlite_checks.walk_digest(connection, service_id, self._path))

    def check(
        self, *, repairs: bool = False, is_stopped: Callable[[], bool] = never
    ) -> Generator[int, None, RecordsReport]:
        with closing(self._another_reader()) as connection:
            report = yield from report_steps(
                connection, self._path, is_worked_on=True, is_stopped=is_stopped
            )
        # What is read from a damaged file may be less than what is there.
        if not repairs or report.damage:
            return report
        for mismatch in report.mismatches:
            self.repair_digest(mismatch.service_id)
            yield 0
        if report.kept_counts != report.found_counts:
            self._repair_counts()
        return replace(report, is_repaired=True)

    def _repair_counts(self) -> None:
        connection = connect_writer(self._path, self._options.page_cache_bytes)
        with closing(connection), self._repairing, explained(self._path, "writing"):
            sqlite_checks.repair_counts(connection)

    def checkpoint(self) -> None:
        """Bring the WAL into the file, as far as nobody reads from it; nobody waits for that.

        A batch does it too, once the WAL is large.
        """
        with closing(self._another_reader()) as connection, explained(self._path, "writing"):
            bring_in_wal(connection)

    def backup(self, folder: str) -> Generator[int]:
        """Copy into `folder`, which is there; each step yields bytes copied, on any thread."""
        return copy_records(self._folder, folder, self._files)

    def _another_reader(self) -> sqlite3.Connection:
        return connect_reader(self._path, self._options.page_cache_bytes)

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        return self._layers.take()

    def write_batch(self, batch: Batch) -> None:
        layer = self._taken(batch)
        if layer.failure is None:
            self._write(layer)
        layer.is_written = True
        if layer.failure is not None:
            raise layer.failure

    def finish_batch(self, batch: Batch) -> None:
        layer = self._taken(batch)
        if not layer.is_written:
            raise ValueError("a batch is finished after it was written")
        if layer.failure is None:
            self._take_over(layer)
        self._layers.let_go()
        self._tidings.tell()

    @property
    def waiting_bytes(self) -> int:
        return self._layers.waiting_bytes

    def close(self) -> None:
        try:
            # After a failed device nobody knows what is on the disk, and asking again proves
            # nothing.
            if self._failure is None:
                self._write_all()
        finally:
            self._reading.close()
            # The last to go brings the WAL into the file and removes it.
            self._writing.close()

    def _write_all(self) -> None:
        taken = self._layers.taken
        if taken is not None and taken.is_written:
            self.finish_batch(taken)
        elif taken is not None:
            write(self, taken)
        commit(self)

    def _taken(self, batch: Batch) -> Layer:
        if not isinstance(batch, Layer) or batch is not self._layers.taken:
            raise ValueError("only the batch that was taken last can be written and finished")
        return batch

    def _write(self, layer: Layer) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            with self._tidings.order, explained(self._path, "writing"):
                news: list[SetNews] = []
                with transaction(self._writing):
                    BatchWriter(self._writing, self._path).run(layer.operations)
                    if self._tidings.follower is not None:
                        version_of = partial(kept_version, self._writing)
                        news = news_of(layer.operations, version_of)
                self._tidings.add_batch(news)
        except StoreLockedError:
            # The transaction did not even begin.
            layer.failure = StoreHeldError(self._path)
        except StoreFullError as full:
            layer.failure = full
        except StorageError as failure:
            self._failure = failure
            raise
