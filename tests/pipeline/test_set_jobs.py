"""`digest` and `reconcile`: what the ids come to, and exactly the ids that differ."""

import json
import random
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from syncline.errors import TableError
from syncline.pipeline import snapshots
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.digest import PARTIAL, Hashes, digest, service_digests
from syncline.pipeline.jobs.reconcile import (
    EXTRA,
    MISSING,
    DifferingRanges,
    can_have,
    compared_ranges,
    reconcile,
    verdicts,
)
from syncline.pipeline.repair_plan import write_plan
from syncline.pipeline.row_groups import RowGroup
from syncline.pipeline.schemas import (
    CLAIMS,
    DRIFT_ITEMS,
    RANGE_DIGESTS,
    SERVICE_DIGESTS,
    spark_schema,
)
from syncline.pipeline.snapshot_tables import snapshot_of
from syncline.pipeline.snapshots import export_snapshot
from syncline.pipeline.tables import Table
from syncline.values.ids import StreamId
from tests.pipeline.record_folders import RecordsFolder
from tests.storage.records.under_test import notifier_id, queue_id, service_id

Items = set[tuple[bytes, str, bytes, str]]


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def items_of(spark: SparkSession, tables: Path, run: str) -> Items:
    version = Table(tables, DRIFT_ITEMS).version().skipping("run", run, run)
    rows = read_version(spark, DRIFT_ITEMS, version).collect()
    found = [(bytes(r.service), r.role, bytes(r.id), r.verdict) for r in rows]
    assert len(found) == len(set(found))
    return set(found)


def read_digests(spark: SparkSession, tables: Path, snapshot: str) -> list[Row]:
    version = snapshot_of(tables, SERVICE_DIGESTS, snapshot)
    return read_version(spark, SERVICE_DIGESTS, version).collect()


def expected_items(router: RecordsFolder, wanted: RecordsFolder) -> Items:
    """By Python's own sets."""
    has, wants = router.sets(), wanted.sets()
    items: Items = set()
    for service, role in has:
        there, other = set(has[service, role]), set(wants[service, role])
        items |= {(service, role, each, MISSING) for each in other - there}
        items |= {(service, role, each, EXTRA) for each in there - other}
    return items


def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many row groups of few ids, as if there were many ids."""
    monkeypatch.setattr(snapshots, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(snapshots, "_FILE_ROWS", 500)


# -------------------------------------------------------------------------------------------- jobs


def test_digests_are_those_that_the_router_claims_and_a_wrong_claim_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    folder = RecordsFolder(tmp_path / "data")
    folder.add(*range(700))
    tables = tmp_path / "tables"
    first = export_snapshot(folder.folder, tables)
    report = digest(spark, tables, first.snapshot)
    assert (report.set_count, report.id_count, report.mismatch_count) == (3, 934, 0)
    assert report.is_new
    rows = read_digests(spark, tables, first.snapshot)
    for row in rows:
        kept = folder.records.digest(bytes(row.service))
        assert row["count"] == row.claimed_count == kept.count
        assert np.array([row.xor_high, row.xor_low], ">i8").tobytes() == kept.xor_xxh3
        assert np.array([row.md5_high, row.md5_low], ">i8").tobytes() == kept.xor_md5
    again = digest(spark, tables, first.snapshot)
    assert (again.version, again.is_new, again.id_count) == (report.version, False, 934)

    # Without MD5, which comes later and takes the place of what was there.
    shutil.rmtree(tables / SERVICE_DIGESTS.name)
    fast = digest(spark, tables, first.snapshot, hashes=Hashes.XXH3)
    assert (fast.set_count, fast.mismatch_count, fast.hashes) == (3, 0, Hashes.XXH3)
    assert Table(tables, SERVICE_DIGESTS).lineage(fast.version)["inputs"]["hashes"] == "xxh3"
    (path,) = {each.path for each in Table(tables, SERVICE_DIGESTS).version().files}
    assert {row["md5_high"] for row in rows_of(pq.read_table(path, partitioning=None))} == {None}
    full = digest(spark, tables, first.snapshot)
    assert (full.is_new, full.version, full.hashes) == (True, fast.version + 1, Hashes.BOTH)
    assert sorted(read_digests(spark, tables, first.snapshot)) == sorted(rows)
    known = digest(spark, tables, first.snapshot, hashes=Hashes.XXH3)
    assert (known.is_new, known.version, known.hashes) == (False, full.version, Hashes.BOTH)

    folder.stop()
    with sqlite3.connect(tmp_path / "data" / "records.sqlite") as connection:
        connection.execute("UPDATE digests SET md5_low = md5_low + 1 WHERE count = 700")
        # As far as numbers go: a claim must not make the job fail.
        connection.execute("UPDATE digests SET sum_0 = -9223372036854775808 WHERE count < 700")
    connection.close()
    second = export_snapshot(folder.folder, tables)
    # Of three sets two have a sum that is wrong; the MD5 of the third is not looked at.
    assert digest(spark, tables, second.snapshot, hashes=Hashes.XXH3).mismatch_count == 2
    wrong = digest(spark, tables, second.snapshot)
    assert wrong.mismatch_count == 3
    lineage = Table(tables, SERVICE_DIGESTS).lineage(wrong.version)
    assert lineage["inputs"]["snapshot"] == second.snapshot
    assert len(read_digests(spark, tables, first.snapshot)) == 3


def test_exactly_the_ids_that_differ_are_found_and_few_row_groups_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    router, wanted = RecordsFolder(tmp_path / "a", 1), RecordsFolder(tmp_path / "b", 2)
    router.add(*range(6_000))
    wanted.add(*range(6_000))
    router.remove(17, 300, 4_242)
    wanted.remove(9, 5_000)
    tables = tmp_path / "tables"
    names = [export_snapshot(each.folder, tables).snapshot for each in (router, wanted)]
    report = reconcile(spark, tables, *names)
    expected = expected_items(router, wanted)
    assert items_of(spark, tables, report.run) == expected
    # 300, 4242 and 9 have notifiers as well.
    assert (report.missing_count, report.extra_count) == (5, 3)
    assert 5 <= report.differing_range_count <= 8
    # A range has some 256 ids at most: four row groups of 100 on either side.
    assert report.read_row_group_count <= 8 * report.differing_range_count
    assert report.read_row_group_count < 0.4 * report.row_group_count
    assert report.digested_row_group_count == 0
    again = reconcile(spark, tables, *names)
    assert not again.is_new
    assert (again.version, again.missing_count, again.extra_count) == (report.version, 5, 3)

    plan = tmp_path / "plan.jsonl"
    assert write_plan(spark, tables, names[0], names[1], plan) == 8
    head, *lines = [json.loads(line) for line in plan.read_text().splitlines()]
    assert (head["count"], head["router"], head["wanted"]) == (8, *names)
    assert {"action": "associate", "service": str(StreamId(service_id(1))), "role": "M"} | {
        "id": str(StreamId(queue_id(17)))
    } in lines
    assert {"action": "dissociate", "service": str(StreamId(service_id(2))), "role": "N"} | {
        "id": str(StreamId(notifier_id(9)))
    } in lines
    assert [path.name for path in tmp_path.glob("plan*")] == ["plan.jsonl"]
    for each in (router, wanted):
        each.stop()

    # The same without the stored digests of ranges: they are computed on the way.
    shutil.rmtree(tables / RANGE_DIGESTS.name)
    shutil.rmtree(tables / DRIFT_ITEMS.name)
    raw = reconcile(spark, tables, *names)
    assert items_of(spark, tables, raw.run) == expected
    assert raw.digested_row_group_count == raw.row_group_count == report.row_group_count
    assert raw.differing_range_count <= 8
    assert raw.read_row_group_count < 0.4 * raw.row_group_count


def test_equal_snapshots_read_no_row_group_and_different_ones_read_all(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    first, second = RecordsFolder(tmp_path / "a", 1), RecordsFolder(tmp_path / "b", 2)
    other = RecordsFolder(tmp_path / "c", 3)
    for each, numbers in ((first, range(400)), (second, range(400)), (other, range(300, 1_500))):
        each.add(*numbers)
    tables = tmp_path / "tables"
    a, b, c = [export_snapshot(f.folder, tables).snapshot for f in (first, second, other)]
    equal = reconcile(spark, tables, a, b)
    assert (equal.missing_count, equal.extra_count, equal.read_row_group_count) == (0, 0, 0)
    # Sets of different size have ranges of different size, too.
    different = reconcile(spark, tables, a, c)
    assert different.read_row_group_count == different.row_group_count
    assert items_of(spark, tables, different.run) == expected_items(first, other)
    for folder in (first, second, other):
        folder.stop()


def test_a_snapshot_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = RecordsFolder(tmp_path / "data")
    folder.stop()
    tables = tmp_path / "tables"
    known = export_snapshot(folder.folder, tables).snapshot
    with pytest.raises(TableError, match="absent"):
        reconcile(spark, tables, known, "absent")
    with pytest.raises(TableError, match="absent"):
        digest(spark, tables, "absent")
    with pytest.raises(TableError, match="not reconciled"):
        write_plan(spark, tables, known, known, tmp_path / "plan.jsonl")
    # Sets without ids come to nothing, and that is what is claimed.
    report = digest(spark, tables, known)
    assert (report.set_count, report.id_count, report.mismatch_count) == (3, 0, 0)
    equal = reconcile(spark, tables, known, known)
    assert (equal.missing_count, equal.extra_count, equal.range_count) == (0, 0, 0)


# ------------------------------------------------------------------------------------- transforms


def test_ranges_are_compared_at_the_depth_that_both_have(spark: SparkSession) -> None:
    chance = random.Random(5)
    service = b"s" * 24

    def digests(depth: int, cells: dict[int, int]) -> DataFrame:
        """Rows as if each id had a hash of one small number."""
        rows = [
            ("snap", service, "M", depth, prefix, 1, value, value, value, 0, 0, 0)
            for prefix, value in cells.items()
        ]
        return spark.createDataFrame(rows, spark_schema(RANGE_DIGESTS.schema))

    fine = {prefix: chance.randrange(1, 1 << 20) for prefix in range(16)}
    coarse: dict[int, list[int]] = {}
    for prefix, value in fine.items():
        coarse.setdefault(prefix >> 2, []).append(value)
    rows = []
    for prefix, values in coarse.items():
        xor = 0
        for value in values:
            xor ^= value
        total = sum(values) + (1 if prefix == 2 else 0)
        rows.append(("snap", service, "M", 2, prefix, 4, xor, xor, total, 0, 0, 0))
    other = spark.createDataFrame(rows, spark_schema(RANGE_DIGESTS.schema))
    compared = compared_ranges(digests(4, fine), other)
    found = {row.prefix: (row.depth, row.differs) for row in compared.collect()}
    assert found == {0: (2, False), 1: (2, False), 2: (2, True), 3: (2, False)}
    plan = plan_of(compared)
    assert plan.count("Exchange hashpartitioning") == 1
    assert "SortMergeJoin" not in plan


def test_digests_are_compared_with_claims_by_one_shuffle_and_no_join(spark: SparkSession) -> None:
    partial = spark.createDataFrame(
        [(b"a" * 24, "M", 1, 5, 6, 1, 2, 3, 4, 7, 8), (b"a" * 24, "M", 1, 5, 7, 1, 2, 3, 4, 7, 9)],
        spark_schema(PARTIAL),
    )
    claims = spark.createDataFrame(
        [("s", b"a" * 24, "M", 2, 0, 1, 2, 4, 6, 8, 0, 1, 3), ("s", b"b" * 24, "N", *[0] * 9, 1)],
        spark_schema(CLAIMS.schema),
    )
    compared = service_digests(partial, claims, Hashes.BOTH)
    rows = {bytes(row.service): row for row in compared.collect()}
    assert [rows[each * 24].matches for each in (b"a", b"b")] == [True, True]
    assert (rows[b"a" * 24]["count"], rows[b"b" * 24]["count"]) == (2, 0)
    # Nobody has claimed it.
    unclaimed = service_digests(partial, claims.where("role = 'N'"), Hashes.BOTH).collect()
    assert {(row.role, row.claimed_count, row.matches) for row in unclaimed} == {
        ("M", None, False),
        ("N", 0, True),
    }
    plan = plan_of(compared)
    assert plan.count("Exchange hashpartitioning") == 1
    assert "Join" not in plan


def test_verdicts_are_those_of_python_sets_by_one_shuffle(spark: SparkSession) -> None:
    chance = random.Random(6)
    rows: list[tuple[bytes, str, bytes, int]] = []
    sides: dict[tuple[bytes, str, bytes], int] = {}
    for _ in range(300):
        key = (chance.choice([b"a", b"b"]) * 24, "M", bytes([chance.randrange(120)]) * 24)
        side = chance.choice([1, 2])
        rows.append((*key, side))
        sides[key] = sides.get(key, 0) | side
    frame = spark.createDataFrame(rows, "service binary, role string, id binary, side int")
    found = verdicts(frame)
    assert {(bytes(r.service), r.role, bytes(r.id), r.verdict) for r in found.collect()} == {
        (*key, EXTRA if side == 1 else MISSING) for key, side in sides.items() if side != 3
    }
    assert plan_of(found).count("Exchange hashpartitioning") == 1


def test_row_groups_are_left_out_only_if_they_cannot_have_a_wanted_id() -> None:
    differs = np.zeros(1 << 8, np.bool_)
    differs[0x20] = True
    ranges = {(b"m" * 24, "M"): DifferingRanges(8, differs)}

    def group(services: tuple[bytes, bytes] | None, ids: tuple[bytes, bytes] | None) -> RowGroup:
        return RowGroup("file", 0, 1, services, ids)

    one = (b"m" * 24, b"m" * 24)
    assert can_have(group(one, (b"\x10" * 24, b"\x20" * 24)), ranges)
    assert can_have(group(one, (b"\x20\xff" * 12, b"\x90" * 24)), ranges)
    assert not can_have(group(one, (b"\x21" * 24, b"\xff" * 24)), ranges)
    assert not can_have(group((b"a" * 24, b"b" * 24), (b"\x00" * 24, b"\xff" * 24)), ranges)
    assert can_have(group((b"a" * 24, b"z" * 24), (b"\x99" * 24, b"\x99" * 24)), ranges)
    assert can_have(group(None, None), ranges)
