"""A snapshot: all sets of ids that a router keeps, as of one moment, in tables.

Read from `records.sqlite` of a data folder, of a running router too, or of a backup, in one read
transaction, and without changing a byte of it. The sets come sorted from the index; they are
written as they come, and the digests of their ranges with them.

A file without a WAL is read as one that nobody changes. If a router begins to work on it meanwhile,
what was read may be of several moments, and the snapshot is not taken.

The rows of `associations` are committed last: a snapshot that has them has all the rest.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from sqlite3 import Connection
from sqlite3 import Error as SqliteError
from types import TracebackType
from typing import Any, Final, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from syncline.core.reconciliation.sets import END
from syncline.errors import ForeignFolderError, StorageError
from syncline.kernels.prefix_digests import DigestSums, Integers, PrefixDigests, depth_for
from syncline.kernels.xxh3 import ID_BYTES, Ids
from syncline.pipeline.arrow import names_and_types, table_of, without
from syncline.pipeline.places import writing_to
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, RANGE_DIGESTS
from syncline.pipeline.sources.rows import fixed_binary
from syncline.pipeline.tables import Load, Table, TableSpec
from syncline.storage.drift.repair_plans import STORE_CHARACTERS
from syncline.storage.files import DiskFiles
from syncline.storage.folder import read_format
from syncline.storage.id_sets import SqliteIdSet
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite_connection import (
    check_schema,
    connect_only_to_look,
    explained,
    snapshot,
)
from syncline.storage.records.sqlite_sets import numbered_set
from syncline.values.queue_records import ServiceRole

# Few enough that a range that differs costs little to read, many enough to compress.
ROW_GROUP_ROWS: Final = 65_536
_FILE_ROWS: Final = 64 * ROW_GROUP_ROWS
# Of bounds of a row group with several sets nothing follows: what is left of a large one gets its
# own. Small ones share.
_OWN_GROUP_ROWS: Final = ROW_GROUP_ROWS // 8
_SOURCE: Final = "snapshot"

_CLAIMS_SELECT: Final = """
    SELECT number, service_id, role, count, xxh3_high, xxh3_low, sum_3, sum_2, sum_1, sum_0,
           md5_high, md5_low, version
    FROM services JOIN digests ON service = number
    WHERE role IN ('M', 'N') ORDER BY service_id
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the router keeps of a set, in the order of the columns of `claims`."""

    number: int
    service: bytes
    role: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """`is_new` is False if the same snapshot was there already."""

    snapshot: str
    set_count: int
    id_count: int
    is_new: bool


def export_snapshot(
    folder: str, tables: Path, *, on_ids: Callable[[int], None] = lambda _: None
) -> SnapshotReport:
    """Take a snapshot. `on_ids` hears how many ids were written just now.

    The same sets in the same version give the same name, and are taken once. Raises
    ForeignFolderError for a folder without records, NewerFormatError, CorruptionError,
    PipelineError if the tables cannot be written, and StorageError if a router begins to work on a
    folder that none worked on before.
    """
    store_id, path = _records_of(folder)
    before = _FileState.of(path)
    with (
        closing(connect_only_to_look(path, has_wal=before.has_wal)) as connection,
        explained(path, "reading"),
        snapshot(connection),
        ExitStack() as loads,
    ):
        check_schema(connection, folder, path)
        with _left_alone(path, before):
            claims = _claims(connection)
            name = snapshot_name(store_id, claims)
            progress = {f"{_SOURCE}/{name}": 1}
            ids = loads.enter_context(Table(tables, ASSOCIATIONS).begin(progress))
            if ids.is_done:
                count = sum(_set_of(connection, claim, path).size() for claim in claims)
                return SnapshotReport(name, len(claims), count, False)
            ranges = loads.enter_context(Table(tables, RANGE_DIGESTS).begin(progress))
            claimed = loads.enter_context(Table(tables, CLAIMS).begin(progress))
            sets = [(claim, _set_of(connection, claim, path)) for claim in claims]
            with writing_to(tables):
                id_count = _write_sets(sets, name, ids, ranges, on_ids)
        with writing_to(tables):
            _write_claims(claims, name, claimed)
        lineage = {"job": _SOURCE, "inputs": {"store": store_id.hex()}}
        for load in (claimed, ranges, ids):
            if not load.is_done:
                load.commit(lineage)
    return SnapshotReport(name, len(claims), id_count, True)


@dataclass(frozen=True, slots=True)
class _FileState:
    """What changes when somebody works on a file of records."""

    has_wal: bool
    file: tuple[int, int, int]

    @classmethod
    def of(cls, path: str) -> Self:
        found = Path(path).stat()
        has_wal = Path(f"{path}-wal").exists()
        return cls(has_wal, (found.st_ino, found.st_size, found.st_mtime_ns))


@contextmanager
def _left_alone(path: str, before: _FileState) -> Generator[None]:
    """Raises StorageError if somebody began to work on a file that nobody worked on before."""
    if before.has_wal:
        # Then SQLite sees to it that one moment is read.
        yield
        return
    try:
        yield
    except (StorageError, SqliteError) as error:
        # Damage, maybe, that is none.
        if _FileState.of(path) != before:
            raise _begun(path) from error
        raise
    if _FileState.of(path) != before:
        raise _begun(path)


def _begun(path: str) -> StorageError:
    return StorageError(
        f"a router began to work on {path} while it was read; take the snapshot again"
    )


def snapshot_name(store_id: bytes, claims: Sequence[Claim]) -> str:
    """The same for the same sets: a set has another version after every change."""
    known = sha256()
    for claim in claims:
        known.update(claim.service + claim.role.encode() + repr(claim.numbers).encode())
    return f"{store_id.hex()[:STORE_CHARACTERS]}-{known.hexdigest()[:16]}"


def _records_of(folder: str) -> tuple[bytes, str]:
    found = read_format(folder, DiskFiles())
    path = f"{folder}/{FILE_NAME}"
    if found is None:
        raise ForeignFolderError(folder, "it holds no store")
    if not Path(path).is_file():
        raise ForeignFolderError(folder, f"it has no {FILE_NAME}, so there are no sets of ids")
    return found.store_id, path


def _claims(connection: Connection) -> list[Claim]:
    claims: list[Claim] = []
    for row in connection.execute(_CLAIMS_SELECT):
        number, service, role, *numbers = row
        claims.append(Claim(number, bytes(service), role, tuple(numbers)))
    return claims


def _set_of(connection: Connection, claim: Claim, path: str) -> SqliteIdSet:
    return numbered_set(connection, claim.number, ServiceRole(claim.role), path)


def _write_sets(
    sets: Sequence[tuple[Claim, SqliteIdSet]],
    name: str,
    ids: Load,
    ranges: Load,
    on_ids: Callable[[int], None],
) -> int:
    id_count = 0
    with RowWriter(ids, name) as id_rows, RowWriter(ranges, name) as range_rows:
        for claim, members in sets:
            sums = DigestSums(depth_for(members.size()))
            for page in members.iterate(b"", END):
                sums.add(page)
                id_rows.add(association_rows(claim.service, claim.role, page))
                on_ids(len(page))
                id_count += len(page)
            id_rows.end_set()
            range_rows.add(range_rows_of(claim.service, claim.role, sums.depth, sums.digests()))
    return id_count


def association_rows(service: bytes, role: str, ids: Ids) -> pa.Table:
    """Rows of `associations`, without the partition."""
    items = np.ascontiguousarray(ids).view(f"V{ID_BYTES}").reshape(-1)
    columns = {
        "service": pa.array([service] * len(ids), pa.binary()),
        "role": pa.array([role] * len(ids), pa.string()),
        "id": fixed_binary(items),
    }
    return table_of(columns, without(ASSOCIATIONS.schema, ["snapshot"]))


def range_rows_of(service: bytes, role: str, depth: int, found: PrefixDigests) -> pa.Table:
    """Rows of `range_digests`, without the partition."""
    count = len(found)
    columns: dict[str, object] = {
        "service": pa.array([service] * count, pa.binary()),
        "role": pa.array([role] * count, pa.string()),
        "depth": pa.array([depth] * count, pa.int32()),
        "prefix": pa.array(found.prefixes.astype(np.int32)),
        "count": pa.array(found.counts),
        "xor_high": pa.array(found.xor_high),
        "xor_low": pa.array(found.xor_low),
    }
    for part in range(4):
        sums: Integers = np.ascontiguousarray(found.sums[3 - part])
        columns[f"sum_{part}"] = pa.array(sums)
    return table_of(columns, without(RANGE_DIGESTS.schema, ["snapshot"]))


def _write_claims(claims: Sequence[Claim], name: str, load: Load) -> None:
    schema = without(CLAIMS.schema, ["snapshot"])
    rows = [(claim.service, claim.role, *claim.numbers) for claim in claims]
    names = [column for column, _ in names_and_types(schema)]
    columns = {column: [row[place] for row in rows] for place, column in enumerate(names)}
    with RowWriter(load, name) as writer:
        writer.add(table_of(columns, schema))


class RowWriter:
    """Files of one snapshot, in row groups of one size at most; a context manager."""

    def __init__(self, load: Load, name: str) -> None:
        self._folder = load.folder / f"snapshot={name}"
        self._folder.mkdir()
        self._spec: TableSpec = load.table.spec
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._writer: Any = None
        self._file_rows = 0
        self._file_count = 0

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        while self._waiting_rows >= ROW_GROUP_ROWS:
            self._write(ROW_GROUP_ROWS)

    def end_set(self) -> None:
        """What follows is of another set."""
        if self._waiting_rows >= _OWN_GROUP_ROWS:
            self._write(self._waiting_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._waiting_rows:
            self._write(self._waiting_rows)
        self._close()

    def _write(self, row_count: int) -> None:
        together: Any = cast(Any, pa).concat_tables(self._waiting)
        group = together.slice(0, row_count).combine_chunks()
        self._waiting = [together.slice(row_count)]
        self._waiting_rows -= row_count
        if self._writer is None:
            path = self._folder / f"part-{self._file_count:05d}.parquet"
            # A dictionary of ids that are all different would be a second copy of them.
            spelled_out = [name for name in group.schema.names if name in ("service", "role")]
            self._writer = cast(Any, pq).ParquetWriter(
                path, group.schema, compression="zstd", use_dictionary=spelled_out
            )
            self._file_count += 1
        self._writer.write_table(group, row_group_size=row_count)
        self._file_rows += row_count
        if self._file_rows >= _FILE_ROWS:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._file_rows = None, 0
