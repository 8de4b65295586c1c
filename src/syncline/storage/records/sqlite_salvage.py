"""What can be read of a damaged `records.sqlite`, written into a new one that takes its place.

Rows are read from the tables alone, never through an index. Where that fails, the next place that
can be read is looked for, and what lies between is cut in half and tried again, until what cannot
be read is known to the row. A row is taken for a record only if all of it makes sense, and goes
through the same door as those of a router: so ids are given out once, and digests and counters are
those of what is there.

- A queue whose service, link or notifier cannot be read is kept without it.
- The version of a set is higher than it was.
- The damaged file is not changed before the new one is whole and durable.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from syncline.errors import SynclineError
from syncline.storage.files import Files
from syncline.storage.records.base import RecordCounts, commit
from syncline.storage.records.rows import (
    SERVICE_SELECT,
    QueueRow,
    queue_from_row,
    service_from_row,
)
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_checks import COUNTS_SELECT, read_counts
from syncline.storage.records.sqlite_connection import connect_writer, explained, transaction
from syncline.storage.records.sqlite_reports import looked_at
from syncline.values.ids import STREAM_ID_BYTES
from syncline.values.limits import MIB

# Beside the damaged file until it is whole.
_NEW_FOLDER: Final = "records.salvaged"
_NUMBER_MAX: Final = (1 << 62) - 1
_NO_LIMIT: Final = -1
_PREFIX_BYTES: Final = 6
# Tries to read what cannot be read, altogether, and ranges tried in one damaged place.
_FAILURE_COUNT_MAX: Final = 500_000
_RANGE_COUNT_MAX: Final = 20_000
_ROWS_PER_BATCH: Final = 1_000
_PAGE_CACHE_BYTES: Final = 16 * MIB

_SERVICES: Final = SERVICE_SELECT.replace("SELECT", "SELECT number,", 1)
_DIGESTS: Final = "SELECT service, version FROM digests"
_QUEUES: Final = """
    SELECT number, recipient_id, recipient_keys, secret, sender_id, sender_key, mode, status,
        block_reason, block_ttl_seconds, used_day, service,
        notifier_id, notifier_key, notifier_secret, notifier_service, link_id
    FROM queues
"""
_LINK: Final = "SELECT fixed, user FROM links WHERE queue = ?"
_DELETED: Final = """
    SELECT recipient_id FROM deleted WHERE recipient_id >= ? AND recipient_id < ?
    ORDER BY recipient_id LIMIT ?
"""
_PUT_DELETED: Final = """
    INSERT INTO deleted SELECT ?1
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE recipient_id = ?1)
    ON CONFLICT DO NOTHING
"""
_RAISE_VERSION: Final = """
    UPDATE digests SET version = version + ?
    WHERE service = (SELECT number FROM services WHERE service_id = ?)
"""

# What a row of a damaged page may do to whoever makes a record of it.
_NONSENSE: Final = (SynclineError, ValueError, KeyError, TypeError, OverflowError)


_Row = tuple[Any, ...]
# From one place to another, and how many.
_Ask = Callable[[int, int, int], sqlite3.Cursor]
_Following = Callable[[_Row], int]


@dataclass(slots=True)
class Salvage:
    """What came of it: what the counters of the damaged file said, and those of the new one.

    Rows that were read and made no sense are counted; of those in a range that cannot be read
    nothing is known but what the counters said.
    """

    kept_counts: RecordCounts | None = None
    saved_counts: RecordCounts = field(default_factory=RecordCounts)
    senseless_count: int = 0
    lost_link_count: int = 0
    lost_notifier_count: int = 0
    lost_association_count: int = 0
    has_given_up: bool = False


def salvage(folder: str, files: Files) -> Generator[int, None, Salvage]:
    """Replace the records of a folder that this process has locked; yields rows read.

    Raises CorruptionError if nothing can be read, ForeignFolderError, NewerFormatError.
    """
    path, new_folder = f"{folder}/{FILE_NAME}", f"{folder}/{_NEW_FOLDER}"
    result = Salvage()
    _clear(new_folder, files)
    try:
        with looked_at(folder, path, files) as connection:
            files.make_folder(new_folder)
            yield from _Salvaging(connection, new_folder, files, result).run()
        files.sync_folder(new_folder)
    except BaseException:
        _clear(new_folder, files)
        raise
    # First what belongs to the damaged file: SQLite would take it for a part of the new one.
    for name in (f"{path}-wal", f"{path}-shm"):
        if files.exists(name):
            files.remove(name)
    files.rename(f"{new_folder}/{FILE_NAME}", path)
    files.sync_folder(folder)
    _clear(new_folder, files)
    return result


def _clear(folder: str, files: Files) -> None:
    if files.exists(folder):
        for name in files.list(folder):
            files.remove(f"{folder}/{name}")
        files.remove_folder(folder)


class _Salvaging:
    def __init__(
        self, connection: sqlite3.Connection, folder: str, files: Files, result: Salvage
    ) -> None:
        self._connection = connection
        self._path = f"{folder}/{FILE_NAME}"
        self._records = SqliteRecords.open(folder, files)
        self._result = result
        self._service_ids: dict[int, bytes] = {}
        self._failure_count = 0

    def run(self) -> Generator[int]:
        try:
            with suppress(sqlite3.DatabaseError, TypeError):
                self._result.kept_counts = self._kept_counts()
            yield from self._save_services()
            yield from self._save_queues()
        finally:
            self._records.close()
        with closing(connect_writer(self._path, _PAGE_CACHE_BYTES)) as writing:
            yield from self._save_deleted(writing)
            yield from self._raise_versions(writing)
            self._result.saved_counts = read_counts(writing)[0]

    def _save_services(self) -> Generator[int]:
        for row in self._numbered(_SERVICES, "services", "number"):
            number, *rest = row
            try:
                record = service_from_row(tuple(rest))
                self._records.create_service(record)
            except _NONSENSE:
                self._result.senseless_count += 1
                continue
            self._service_ids[number] = record.service_id
            yield 1
        commit(self._records)

    def _save_queues(self) -> Generator[int]:
        row_count = 0
        for row in self._numbered(_QUEUES, "queues", "number"):
            row_count += 1
            try:
                self._save_queue(row)
            except _NONSENSE:
                self._result.senseless_count += 1
            if row_count % _ROWS_PER_BATCH == 0:
                commit(self._records)
                yield _ROWS_PER_BATCH
        commit(self._records)
        yield row_count % _ROWS_PER_BATCH

    def _save_queue(self, row: _Row) -> None:
        number, *first, service, notifier_id, key, secret, notifier_service, link_id = row
        link: tuple[bytes | None, bytes | None] = (None, None)
        if link_id is not None:
            link = self._link(number)
            if None in link:
                self._result.lost_link_count += 1
                link_id = None
        if notifier_id is not None and (key is None or secret is None):
            self._result.lost_notifier_count += 1
            notifier_id = None
        values = (
            *first,
            self._service_ids.get(service),
            notifier_id,
            key,
            secret,
            self._service_ids.get(notifier_service),
            link_id,
            *link,
        )
        record = queue_from_row(cast(QueueRow, values))
        self._records.create_queue(record)
        lost = (service, notifier_service if notifier_id is not None else None)
        self._result.lost_association_count += sum(
            each is not None and each not in self._service_ids for each in lost
        )

    def _link(self, number: int) -> tuple[bytes | None, bytes | None]:
        with suppress(sqlite3.DatabaseError):
            row = self._connection.execute(_LINK, (number,)).fetchone()
            if row is not None and all(isinstance(each, bytes) for each in row):
                return row[0], row[1]
        return None, None

    def _save_deleted(self, writing: sqlite3.Connection) -> Generator[int]:
        def ask(low: int, high: int, count_max: int) -> sqlite3.Cursor:
            last = (high + 1).to_bytes(_PREFIX_BYTES + 1, "big")
            after = b"\xff" * 25 if last[0] else last[1:]
            bounds = (low.to_bytes(_PREFIX_BYTES, "big"), after)
            return self._connection.execute(_DELETED, (*bounds, count_max))

        def following(row: _Row) -> int:
            # Others may begin with the same bytes; one that is read again is there already.
            return int.from_bytes(bytes(row[0][:_PREFIX_BYTES]), "big")

        found = self._readable(ask, following, 0, (1 << 8 * _PREFIX_BYTES) - 1)
        with explained(self._path, "writing"), transaction(writing):
            for (recipient_id,) in found:
                if len(recipient_id) == STREAM_ID_BYTES:
                    writing.execute(_PUT_DELETED, (recipient_id,))
                    yield 1

    def _raise_versions(self, writing: sqlite3.Connection) -> Generator[int]:
        with explained(self._path, "writing"), transaction(writing):
            for number, version in self._numbered(_DIGESTS, "digests", "service"):
                service_id = self._service_ids.get(number)
                if service_id is not None and isinstance(version, int) and version >= 0:
                    writing.execute(_RAISE_VERSION, (min(version, 1 << 62) + 1, service_id))
                    yield 1

    # Reading what is damaged.

    def _numbered(self, text: str, table: str, column: str) -> Iterator[_Row]:
        """Rows by their number, which is their first column."""
        where = f"{text} WHERE {column} BETWEEN ? AND ? ORDER BY {column} LIMIT ?"

        def ask(low: int, high: int, count_max: int) -> sqlite3.Cursor:
            return self._connection.execute(where, (low, high, count_max))

        def following(row: _Row) -> int:
            number: int = row[0]
            return number + 1

        last = _NUMBER_MAX
        with suppress(sqlite3.DatabaseError, TypeError):
            (last,) = self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()
        return self._readable(ask, following, 0, last or 0)

    def _readable(self, ask: _Ask, following: _Following, low: int, last: int) -> Iterator[_Row]:
        """Rows of a range, some of them twice; `following` is where to go on behind one."""
        while low <= last and not self._result.has_given_up:
            reached = yield from _rows(ask, following, low, last)
            if reached is None:
                return
            # Where there is damage, rows between two damaged places may be readable all the same.
            low = self._end_of_damage(ask, reached, last)
            yield from self._halved(ask, following, reached, low - 1)

    def _end_of_damage(self, ask: _Ask, start: int, last: int) -> int:
        """A place behind `start` from which reading goes on; behind `last` if there is none."""
        bad, step = start, 1
        while not self._is_readable(ask, good := min(bad + step, last + 1), last):
            bad, step = good, 2 * step
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._is_readable(ask, middle, last):
                good = middle
            else:
                bad = middle
        return good

    def _is_readable(self, ask: _Ask, low: int, last: int) -> bool:
        if low > last:
            return True
        try:
            ask(low, last, 1).fetchone()
        except sqlite3.DatabaseError:
            self._count_failure()
            return False
        return True

    def _halved(self, ask: _Ask, following: _Following, low: int, high: int) -> Iterator[_Row]:
        """Wide ranges are tried before narrow ones: what is given up at the end is little."""
        ranges = deque([(low, high)])
        for _ in range(_RANGE_COUNT_MAX):
            if not ranges or self._result.has_given_up:
                return
            low, high = ranges.popleft()
            reached = yield from _rows(ask, following, low, high)
            if reached is not None:
                self._count_failure()
                middle = (reached + high) // 2
                halves = ((reached, middle), (middle + 1, high))
                ranges.extend(half for half in halves if half[0] <= half[1] and half != (low, high))

    def _count_failure(self) -> None:
        self._failure_count += 1
        self._result.has_given_up |= self._failure_count >= _FAILURE_COUNT_MAX

    def _kept_counts(self) -> RecordCounts:
        return RecordCounts(*self._connection.execute(COUNTS_SELECT).fetchone())


def _rows(
    ask: _Ask, following: _Following, low: int, high: int
) -> Generator[_Row, None, int | None]:
    """Rows of a range up to the first that cannot be read; where that is, None if there is none."""
    reached = low
    # The module `sqlite3` looks at a row's follower before it gives the row out, so the last one is
    # asked for by itself.
    for count_max in (_NO_LIMIT, 1):
        try:
            for row in ask(reached, high, count_max):
                yield row
                reached = max(reached, following(row))
            if count_max == _NO_LIMIT:
                return None
        except sqlite3.DatabaseError:
            pass
    return reached if reached <= high else None
