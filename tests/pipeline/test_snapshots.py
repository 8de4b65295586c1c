"""Snapshots: the sets of a router as of one moment, sorted, with the digests of their ranges."""

import itertools
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import (
    CorruptionError,
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    TableError,
)
from syncline.kernels.prefix_digests import DigestSums, depth_for, prefix_digests
from syncline.kernels.xxh3 import ID_BYTES
from syncline.pipeline import snapshots
from syncline.pipeline.jobs.reconcile import DifferingRanges, can_have
from syncline.pipeline.row_groups import RowGroup
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, RANGE_DIGESTS
from syncline.pipeline.snapshot_tables import snapshot_of
from syncline.pipeline.snapshot_tables import snapshots as known_snapshots
from syncline.pipeline.snapshots import RowWriter, association_rows, export_snapshot
from syncline.pipeline.tables import Load, Table, TableSpec
from syncline.storage import id_sets
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.digests import digest_of
from tests.pipeline.record_folders import RecordsFolder
from tests.storage.records.under_test import queue_id, service_id

MASK = (1 << 64) - 1
ids_lists = st.lists(st.binary(min_size=24, max_size=24), max_size=40)


def as_ids(ids: list[bytes]) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 24)


def whole_number(high: int, low: int) -> int:
    return (high & MASK) << 64 | low & MASK


def rows_of(tables: Path, spec: TableSpec, snapshot: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for each in snapshot_of(tables, spec, snapshot).files:
        rows += pq.ParquetFile(each.path).read().to_pylist()
    return rows


@given(ids_lists, st.integers(0, 16))
def test_digests_of_prefixes_are_those_of_plain_python(ids: list[bytes], depth: int) -> None:
    found = prefix_digests(as_ids(ids), depth)
    expected: dict[int, list[bytes]] = {}
    for each in ids:
        prefix = int.from_bytes(each[:2], "big") >> (16 - depth)
        expected.setdefault(prefix, []).append(each)
    assert found.prefixes.tolist() == sorted(expected)
    for place, prefix in enumerate(found.prefixes.tolist()):
        digest = digest_of(expected[prefix])
        assert found.counts[place] == digest.count
        xor = whole_number(int(found.xor_high[place]), int(found.xor_low[place]))
        assert xor.to_bytes(16, "big") == digest.xor_xxh3
        total = 0
        for part in found.sums[:, place].tolist():
            total = (total << 32) + part
        assert (total % (1 << 128)).to_bytes(16, "big") == digest.sum128


@given(ids_lists, st.integers(0, 40), st.integers(0, 16))
def test_digests_of_pieces_add_up(ids: list[bytes], cut: int, depth: int) -> None:
    sums = DigestSums(depth)
    sums.add(as_ids(ids[:cut]))
    sums.add(as_ids(ids[cut:]))
    found, whole = sums.digests(), prefix_digests(as_ids(ids), depth)
    for name in ("prefixes", "counts", "xor_high", "xor_low", "sums"):
        assert np.array_equal(getattr(found, name), getattr(whole, name))


def test_ranges_are_as_many_as_make_them_small() -> None:
    assert [depth_for(count) for count in (0, 256, 257, 512, 1_000_000, 1 << 40)] == [
        *(0, 0, 1, 1, 12, 16)
    ]
    with pytest.raises(ValueError, match="17"):
        prefix_digests(as_ids([]), 17)


def test_a_snapshot_holds_every_set_in_order_with_its_digests(tmp_path: Path) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(*range(2_000))
    tables = tmp_path / "tables"
    report = export_snapshot(folder.folder, tables)
    assert (report.set_count, report.is_new) == (3, True)
    expected = folder.sets()
    assert report.id_count == sum(map(len, expected.values()))
    rows = rows_of(tables, ASSOCIATIONS, report.snapshot)
    assert [(row["service"], row["role"], row["id"]) for row in rows] == [
        (service, role, each) for (service, role), ids in sorted(expected.items()) for each in ids
    ]
    claims = {row["service"]: row for row in rows_of(tables, CLAIMS, report.snapshot)}
    assert [claims[service_id(n)]["count"] for n in (1, 2, 3)] == [2_000, 667, 0]
    ranges = rows_of(tables, RANGE_DIGESTS, report.snapshot)
    for (service, role), ids in expected.items():
        mine = [row for row in ranges if (row["service"], row["role"]) == (service, role)]
        assert {row["depth"] for row in mine} <= {depth_for(len(ids))}
        for column in ("count", "sum_3", "sum_2", "sum_1", "sum_0"):
            assert sum(row[column] for row in mine) == claims[service][column]  # type: ignore[misc]
        xor = 0
        for row in mine:
            xor ^= whole_number(row["xor_high"], row["xor_low"])  # type: ignore[arg-type]
        assert xor.to_bytes(16, "big") == folder.records.digest(service).xor_xxh3
    folder.stop()


def test_the_same_sets_are_taken_once_and_changed_ones_anew(tmp_path: Path) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(1, 2, 3)
    tables = tmp_path / "tables"
    first = export_snapshot(folder.folder, tables)
    again = export_snapshot(folder.folder, tables)
    assert (again.snapshot, again.is_new, again.id_count) == (first.snapshot, False, 4)
    folder.remove(2)
    second = export_snapshot(folder.folder, tables)
    assert second.snapshot != first.snapshot
    assert known_snapshots(tables) == sorted([first.snapshot, second.snapshot])
    assert len(rows_of(tables, ASSOCIATIONS, first.snapshot)) == 4
    assert len(rows_of(tables, ASSOCIATIONS, second.snapshot)) == 3
    # Stopped, it is the same file: the router has brought its WAL in.
    folder.stop()
    assert not export_snapshot(folder.folder, tables).is_new


def test_taking_a_snapshot_changes_no_byte_of_a_stopped_folder(tmp_path: Path) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(1, 2, 3)
    folder.stop()

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}

    before = contents()
    export_snapshot(folder.folder, tmp_path / "tables")
    assert contents() == before


@pytest.mark.parametrize("stays", [True, False])
def test_a_router_that_begins_to_work_on_the_folder_meanwhile_is_noticed(
    tmp_path: Path, stays: bool
) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(1, 2, 3)
    folder.stop()
    tables = tmp_path / "tables"
    started: list[SqliteRecords] = []

    def start(_count: int) -> None:
        if not started:
            started.append(SqliteRecords.open(folder.folder, DiskFiles()))
            started[0].delete_queue(queue_id(3))
            commit(started[0])
            if not stays:
                # Its WAL is gone with it, and the file is another one.
                started[0].close()

    with pytest.raises(StorageError, match="began to work"):
        export_snapshot(folder.folder, tables, on_ids=start)
    assert known_snapshots(tables) == []
    # Beside a router that works, and after it, all is of one moment.
    report = export_snapshot(folder.folder, tables)
    assert (report.is_new, report.id_count) == (True, 2)
    if stays:
        started[0].close()


@pytest.mark.parametrize(
    "error",
    [
        CorruptionError("records.sqlite", 0, "ids come out of order"),
        sqlite3.DatabaseError("database disk image is malformed"),
    ],
)
def test_damage_that_a_router_has_done_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(1, 2, 3)
    folder.stop()

    def torn(*_arguments: object) -> object:
        os.utime(tmp_path / "data" / "records.sqlite")
        raise error

    monkeypatch.setattr(snapshots, "_claims", torn)
    with pytest.raises(StorageError, match="began to work"):
        export_snapshot(folder.folder, tmp_path / "tables")


def test_row_groups_and_files_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(snapshots, "_FILE_ROWS", 300)
    monkeypatch.setattr(id_sets, "PAGE_ROWS", 70)
    folder = RecordsFolder(tmp_path / "data")
    folder.add(*range(500))
    folder.stop()
    tables = tmp_path / "tables"
    report = export_snapshot(folder.folder, tables)
    files = snapshot_of(tables, ASSOCIATIONS, report.snapshot).files
    footers = [pq.read_metadata(each.path) for each in files]
    groups = [f.row_group(n).num_rows for f in footers for n in range(f.num_row_groups)]
    assert sorted(groups) == [67, *[100] * 6]
    assert sorted(footer.num_rows for footer in footers) == [67, 300, 300]


def test_what_is_left_of_a_large_set_is_a_row_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(snapshots, "_OWN_GROUP_ROWS", 20)
    ids = np.arange(250 * ID_BYTES, dtype=np.uint8).reshape(250, ID_BYTES)
    with Table(tmp_path, ASSOCIATIONS).begin({}) as load:
        with RowWriter(load, "s") as rows:
            for service, count in ((b"a", 250), (b"b", 19), (b"c", 130)):
                rows.add(association_rows(service, "M", ids[:count]))
                rows.end_set()
        (path,) = load.folder.rglob("*.parquet")
        footer = pq.read_metadata(path)
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    # The second is small, and shares with the third.
    assert groups == [100, 100, 50, 100, 49]


def test_a_hundred_differences_in_fifty_million_ids_need_a_fifth_of_the_row_groups() -> None:
    """By the size of row groups and of ranges alone, wherever the ids that differ are."""
    count, chance = 50_000_000, random.Random(7)
    depth = depth_for(count)
    differs = np.zeros(1 << depth, np.bool_)
    differs[[chance.randrange(1 << depth) for _ in range(100)]] = True
    services = (b"s" * 24, b"s" * 24)
    edges = [
        (number * snapshots.ROW_GROUP_ROWS * (1 << 64) // count).to_bytes(9, "big")[1:].ljust(24)
        for number in range(count // snapshots.ROW_GROUP_ROWS + 1)
    ]
    groups = [
        RowGroup("file", number, snapshots.ROW_GROUP_ROWS, services, (first, last))
        for number, (first, last) in enumerate(itertools.pairwise(edges))
    ]
    ranges = {(b"s" * 24, "M"): DifferingRanges(depth, differs)}
    assert sum(can_have(group, ranges) for group in groups) <= 0.2 * len(groups)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_crash_before_any_commit_leaves_no_snapshot_and_a_repeat_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.add(1, 2, 3)
    folder.stop()
    tables = tmp_path / "tables"
    commit = Load.commit
    count = 0

    class CrashError(Exception):
        pass

    def crashing(load: Load, *arguments: Any) -> int:
        nonlocal count
        count += 1
        if count == step:
            raise CrashError
        return commit(load, *arguments)

    monkeypatch.setattr(Load, "commit", crashing)
    with pytest.raises(CrashError):
        export_snapshot(folder.folder, tables)
    assert known_snapshots(tables) == []
    monkeypatch.setattr(Load, "commit", commit)
    report = export_snapshot(folder.folder, tables)
    assert report.is_new
    assert len(rows_of(tables, ASSOCIATIONS, report.snapshot)) == 4
    assert len(rows_of(tables, CLAIMS, report.snapshot)) == 3
    assert len(rows_of(tables, RANGE_DIGESTS, report.snapshot)) == 2


def test_folders_without_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folder = RecordsFolder(tmp_path / "data")
    folder.stop()
    with pytest.raises(ForeignFolderError):
        export_snapshot(str(tmp_path / "empty"), tmp_path / "tables")
    with pytest.raises(TableError, match="no snapshot"):
        snapshot_of(tmp_path / "tables", ASSOCIATIONS, "none")
    with sqlite3.connect(tmp_path / "data" / "records.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(NewerFormatError):
        export_snapshot(folder.folder, tmp_path / "tables")
    (tmp_path / "data" / "records.sqlite").write_bytes(b"")
    with pytest.raises(CorruptionError, match="empty"):
        export_snapshot(folder.folder, tmp_path / "tables")
    (tmp_path / "data" / "records.sqlite").unlink()
    with pytest.raises(ForeignFolderError, match=r"records\.sqlite"):
        export_snapshot(folder.folder, tmp_path / "tables")
