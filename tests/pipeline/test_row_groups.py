"""What workers make of row groups: each set's ids, their digests, ranges and candidates."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncline.errors import SchemaError
from syncline.kernels.prefix_digests import depth_for, prefix_digests
from syncline.pipeline import row_groups as row_groups_module
from syncline.pipeline.jobs import reconcile as reconcile_module
from syncline.pipeline.jobs.digest import Hashes, digest_groups
from syncline.pipeline.jobs.reconcile import (
    DifferingRanges,
    candidates_in,
    ranges_in,
    sizes_of,
)
from syncline.pipeline.row_groups import (
    RowGroup,
    gathered,
    parts_of,
    read_groups,
    row_groups,
)
from syncline.pipeline.tables import DataFile, Version
from syncline.values.digests import digest_of

Row = tuple[bytes, str, bytes]

members = st.binary(min_size=24, max_size=24)
# Few services, of which some have both roles, as a router never has them.
rows_of_sets = st.lists(
    st.tuples(st.sampled_from([b"a" * 24, b"b" * 24, b"c" * 24]), st.sampled_from("MN"), members),
    max_size=40,
)


def written(path: Path, rows: Iterable[Row], group_rows: int, **options: Any) -> list[RowGroup]:
    """Row groups as a snapshot has them, in the order in which the rows are given."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (pa.binary(), pa.string(), pa.binary())
    table = pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(("service", "role", "id"), columns, kinds, strict=True)
        }
    )
    pq.write_table(table, path, row_group_size=group_rows, **options)
    file = DataFile(path, path.stat().st_size, table.num_rows, {}, {})
    return row_groups(Version("associations", 1, (file,)))


def by_set(rows: Iterable[Row]) -> dict[tuple[bytes, str], list[bytes]]:
    found: dict[tuple[bytes, str], list[bytes]] = {}
    for service, role, member in rows:
        found.setdefault((service, role), []).append(member)
    return found


def as_ids(found: list[bytes]) -> np.ndarray[Any, Any]:
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 24)


def random_rows(count: int, service_count: int, seed: int = 1) -> list[Row]:
    chance = random.Random(seed)
    services = [chance.randbytes(24) for _ in range(service_count)]
    return [(chance.choice(services), "M", chance.randbytes(24)) for _ in range(count)]


# ----------------------------------------------------------------------------------------- reading


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(rows_of_sets, st.integers(1, 12), st.booleans())
def test_every_id_is_read_once_and_with_its_set(
    tmp_path: Path, rows: list[Row], group_rows: int, is_sorted: bool
) -> None:
    given_rows = sorted(rows) if is_sorted else rows
    groups = written(tmp_path / "ids.parquet", given_rows, group_rows)
    found: list[Row] = []
    for group, read in read_groups(groups):
        assert read.counts.sum() == len(read.ids) == group.row_count
        assert (read.counts > 0).all()
        for (service, role), start, count in zip(read.sets, read.starts, read.counts, strict=True):
            ids = read.ids[start : start + count]
            found += [(service, role, each.tobytes()) for each in ids]
    assert sorted(found) == sorted(rows)


def test_ids_of_a_set_are_put_together_however_the_rows_are_mixed(tmp_path: Path) -> None:
    rows = [(b"ab"[each % 2 :][:1] * 24, "M", bytes([each]) * 24) for each in range(20)]
    ((_, found),) = read_groups(written(tmp_path / "ids.parquet", rows, 20))
    assert found.sets == [(b"a" * 24, "M"), (b"b" * 24, "M")]
    assert [row[0] for row in found.ids.tolist()] == [*range(0, 20, 2), *range(1, 20, 2)]


def test_a_row_group_of_one_set_is_known_by_its_bounds(tmp_path: Path) -> None:
    one = [(b"a" * 24, "M", bytes([each]) * 24) for each in range(4)]
    other = [(b"a" * 24, "N", b"x" * 24), (b"b" * 24, "N", b"x" * 24)]
    groups = written(tmp_path / "ids.parquet", [*one, *other], 2)
    assert [group.only for group in groups] == [(b"a" * 24, "M")] * 2 + [None]
    # Of a file that does not say, nothing is known, and all of it is read.
    silent = written(tmp_path / "silent.parquet", one, 2, write_statistics=False)
    assert [(group.only, group.services, group.ids) for group in silent] == [(None, None, None)] * 2
    assert [found.sets for _, found in read_groups(silent)] == [[(b"a" * 24, "M")]] * 2


def test_rows_without_a_service_are_in_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    columns = {"service": [b"a" * 24, None], "role": ["M", "M"], "id": [b"x" * 24, b"y" * 24]}
    pq.write_table(pa.table(columns), path)
    (group,) = row_groups(Version("associations", 1, (DataFile(path, 1, 2, {}, {}),)))
    assert (group.services, group.only) == (None, None)


@pytest.mark.parametrize("hostile", [b"short", b"x" * 25, None])
def test_ids_of_another_length_are_told_with_the_file(
    tmp_path: Path, hostile: bytes | None
) -> None:
    rows: list[Any] = [(b"a" * 24, "M", b"x" * 24), (b"a" * 24, "M", hostile)]
    groups = written(tmp_path / "hostile.parquet", rows, 10)
    with pytest.raises(SchemaError, match=r"hostile\.parquet has ids"):
        list(read_groups(groups))


# ----------------------------------------------------------------------------------------- working


@given(st.integers(0, 200), st.integers(1, 9))
def test_tasks_get_all_row_groups_in_order_and_none_gets_nothing(count: int, cores: int) -> None:
    groups = [RowGroup("file", number, 1, None, None) for number in range(count)]
    parts = parts_of(groups, cores)
    assert [group for part in parts for group in part] == groups
    assert all(parts)
    assert len(parts) <= 3 * cores
    if count > 20 * cores:
        assert len(parts[0]) > len(parts[-1])


def test_small_batches_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups_module, "_BATCH_ROWS", 10)
    batches = [pa.record_batch({"n": np.arange(size)}) for size in (3, 3, 0, 4, 12, 1, 0)]
    found = list(gathered(batches))
    assert [batch.num_rows for batch in found] == [10, 12, 1]
    whole = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert [value for batch in found for value in batch.column(0).to_pylist()] == whole
    assert list(gathered(batches[2:3])) == []


def test_digests_of_row_groups_add_up_to_those_of_the_sets(tmp_path: Path) -> None:
    rows = sorted(random_rows(500, 7))
    groups = written(tmp_path / "ids.parquet", rows, 60)
    for hashes in Hashes:
        xors: dict[bytes, list[int]] = {}
        for batch in digest_groups(groups, hashes):
            for row in batch.to_pylist():
                assert (row["md5_high"] is None) == (hashes is Hashes.XXH3)
                names = ("xor_high", "xor_low", "md5_high", "md5_low")
                halves = [row[name] or 0 for name in names]
                known = xors.setdefault(row["service"], [0, 0, 0, 0, 0])
                known[0] += row["count"]
                known[1:] = [a ^ b for a, b in zip(known[1:], halves, strict=True)]
        for (service, _), ids in by_set(rows).items():
            expected = digest_of(ids)
            count, *halves = xors[service]
            assert count == expected.count
            assert np.array(halves[:2], ">i8").tobytes() == expected.xor_xxh3
            if hashes is Hashes.BOTH:
                assert np.array(halves[2:], ">i8").tobytes() == expected.xor_md5


# ---------------------------------------------------------------------------------- range digests

Ranges = dict[tuple[bytes, str, int, int], list[int]]


def ranges_of(groups: list[RowGroup]) -> tuple[Ranges, int]:
    """Added up where they meet, and how many rows there were."""
    found: Ranges = {}
    row_count = 0
    for batch in ranges_in(groups, sizes_of(groups)):
        for row in batch.to_pylist():
            row_count += 1
            key = (row["service"], row["role"], row["depth"], row["prefix"])
            numbers = found.setdefault(key, [0] * 7)
            numbers[1] ^= row["xor_high"]
            numbers[2] ^= row["xor_low"]
            sums = [row[name] for name in ("count", "sum_3", "sum_2", "sum_1", "sum_0")]
            for place, value in zip((0, 3, 4, 5, 6), sums, strict=True):
                numbers[place] += value
    return found, row_count


def expected_ranges(rows: list[Row], depths: dict[bytes, int]) -> Ranges:
    found: Ranges = {}
    for (service, role), ids in by_set(rows).items():
        digests = prefix_digests(as_ids(ids), depths[service])
        for place, prefix in enumerate(digests.prefixes.tolist()):
            sums = digests.sums[:, place].tolist()
            halves = [int(digests.xor_high[place]), int(digests.xor_low[place])]
            numbers = [int(digests.counts[place]), *halves, *sums]
            found[service, role, depths[service], prefix] = numbers
    return found


def test_ranges_of_a_sorted_snapshot_are_those_that_its_export_would_have_stored(
    tmp_path: Path,
) -> None:
    rows = sorted(random_rows(6_000, 3))
    groups = written(tmp_path / "ids.parquet", rows, 500)
    found, row_count = ranges_of(groups)
    sizes = sizes_of(groups)
    # At most one row group too many at either end.
    for (service, _), ids in by_set(rows).items():
        assert len(ids) <= sizes[service] <= len(ids) + 1_000
    depths = {service: depth_for(size) for service, size in sizes.items()}
    assert found == expected_ranges(rows, depths)
    # A range is told once, and once more where it goes on in the next row group.
    assert row_count <= len(found) + len(groups)


def test_small_sets_inside_of_a_row_group_have_the_depth_of_their_size(tmp_path: Path) -> None:
    rows = sorted(random_rows(2_000, 40))
    groups = written(tmp_path / "ids.parquet", rows, 1_000)
    found, _ = ranges_of(groups)
    edges = {edge for group in groups for edge in group.services or ()}
    inside = {key[0]: key[2] for key in found if key[0] not in edges}
    assert len(inside) >= 36
    assert set(inside.values()) == {0}


@pytest.mark.parametrize("slot_count_max", [1 << 20, 64, 1])
def test_ranges_of_unsorted_ids_are_the_same_in_slots_that_do_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slot_count_max: int
) -> None:
    monkeypatch.setattr(reconcile_module, "_SLOT_COUNT_MAX", slot_count_max)
    # Of one service: what is known of it is its true size.
    rows = random_rows(5_000, 1)
    groups = written(tmp_path / "ids.parquet", rows, 500)
    found, row_count = ranges_of(groups)
    depth = depth_for(5_000)
    assert found == expected_ranges(rows, {rows[0][0]: depth})
    if slot_count_max > 1:
        assert row_count == len(found) == 1 << depth
    # Of several: the same sums, whatever the depth.
    mixed = random_rows(3_000, 5)
    groups = written(tmp_path / "mixed.parquet", mixed, 500)
    counted: dict[bytes, int] = {}
    for (service, _, _, _), numbers in ranges_of(groups)[0].items():
        counted[service] = counted.get(service, 0) + numbers[0]
    assert counted == {service: len(ids) for (service, _), ids in by_set(mixed).items()}


def test_candidates_are_the_ids_of_differing_ranges_and_no_others(tmp_path: Path) -> None:
    rows = sorted(random_rows(3_000, 3))
    services = sorted({service for service, _, _ in rows})
    groups = written(tmp_path / "ids.parquet", rows, 400)
    differs = np.zeros(1 << 4, np.bool_)
    differs[[3, 9]] = True
    ranges = {(services[1], "M"): DifferingRanges(4, differs)}
    found = [row for batch in candidates_in(groups, ranges) for row in batch.to_pylist()]
    expected = [row for row in rows if row[0] == services[1] and row[2][0] >> 4 in (3, 9)]
    assert [(row["service"], row["role"], row["id"]) for row in found] == expected
    assert {row["side"] for row in found} == {0}
    everything = [row for batch in candidates_in(groups, None) for row in batch.to_pylist()]
    assert [(row["service"], row["role"], row["id"]) for row in everything] == rows
