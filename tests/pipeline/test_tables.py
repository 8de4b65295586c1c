"""Tables: a load lands whole or not at all, once, and never over another one."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from syncline.errors import (
    CommitConflictError,
    ConfigError,
    ExpectationError,
    PipelineError,
    SchemaError,
    TableError,
)
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.tables import LOG_NAME, STAGING_NAME, Load, Table, TableSpec, Version

SPEC = TableSpec(
    "numbers",
    schema_of(
        [
            pa.field("day", pa.date32()),
            pa.field("number", pa.int64()),
            pa.field("id", pa.binary()),
        ]
    ),
    partition_by=("day",),
    statistics=("number",),
)


class CrashError(Exception):
    """The process ends here."""


def write(load: Load, day: str, numbers: list[int], name: str = "part") -> None:
    folder = load.folder / f"day={day}"
    folder.mkdir(exist_ok=True)
    columns = {"number": pa.array(numbers, pa.int64()), "id": [b"%d" % n for n in numbers]}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=2)


def load_numbers(table: Table, numbers: list[int], batch: int, day: str = "2024-01-01") -> bool:
    """One load, as a job would do it; whether there was anything to do."""
    with table.begin({"source": batch}) as load:
        if load.is_done:
            return False
        write(load, day, numbers)
        write(load, "2024-02-02", numbers[:1], "other")
        load.commit({"batch": batch})
        return True


def numbers_of(version: Version) -> list[int]:
    found: list[int] = []
    for each in version.files:
        rows = pq.ParquetFile(each.path).read(columns=["number"]).to_pylist()
        found += [row["number"] for row in rows]
    return sorted(found)


def test_a_load_is_a_version_and_earlier_ones_stay(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1, 2, 3], 1)
    load_numbers(table, [7, 8], 2)
    assert numbers_of(table.version()) == [1, 1, 2, 3, 7, 7, 8]
    assert numbers_of(table.version(1)) == [1, 1, 2, 3]
    assert numbers_of(table.version(0)) == []
    assert table.version().row_count == 7
    assert table.lineage(1) == {
        "batch": 1,
        "row_count": 4,
        "schema": SPEC.schema_hash,
        "code": table.lineage(2)["code"],
    }
    assert not list((table.path / STAGING_NAME).iterdir())


def test_a_load_that_landed_is_not_done_again(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    assert load_numbers(table, [1], 5)
    assert not load_numbers(table, [1], 5)
    assert not load_numbers(table, [1], 4)
    assert table.progress("source") == 5
    assert table.progress("another") is None
    assert table.version().number == 1


def stopping_at(step: int) -> Callable[[str], None]:
    count = 0

    def on_step(_: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise CrashError

    return on_step


STEPS = ["staged", "checked", "moved", "moved", "committed"]


def test_the_steps_of_a_load_are_those_that_are_tried(tmp_path: Path) -> None:
    steps: list[str] = []
    load_numbers(Table(tmp_path, SPEC, steps.append), [1], 1)
    assert steps == STEPS


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_a_crash_at_any_step_leaves_all_or_nothing_and_a_repeat_mends_it(
    tmp_path: Path, step: int
) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1, 2], 1)
    with pytest.raises(CrashError):
        load_numbers(Table(tmp_path, SPEC, stopping_at(step)), [5, 6], 2)
    landed = STEPS[step - 1] == "committed"
    assert numbers_of(table.version()) == ([1, 1, 2, 5, 5, 6] if landed else [1, 1, 2])
    assert load_numbers(table, [5, 6], 2) is not landed
    assert numbers_of(table.version()) == [1, 1, 2, 5, 5, 6]


def test_what_a_crash_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1, 2], 1)
    with pytest.raises(CrashError):
        load_numbers(Table(tmp_path, SPEC, stopping_at(3)), [5, 6], 2)
    (table.path / STAGING_NAME / "killed").mkdir()
    (table.path / STAGING_NAME / "killed" / "part.parquet").write_bytes(b"half")
    now_s = (table.path / STAGING_NAME / "killed" / "part.parquet").stat().st_mtime
    before = numbers_of(table.version())
    assert table.sweep(3_600, now_s) == []
    assert len(table.sweep(3_600, now_s + 3_601)) == 2
    assert numbers_of(table.version()) == before
    assert numbers_of(table.version(1)) == before


def test_of_two_writers_from_one_version_the_second_lands_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1], 1)
    with table.begin({"slow": 1}) as slow:
        write(slow, "2024-01-01", [100])
        load_numbers(Table(tmp_path, SPEC), [2], 2)
        with pytest.raises(CommitConflictError) as refused:
            slow.commit({})
    assert refused.value.version == 1
    assert refused.value.retriable
    assert numbers_of(table.version()) == [1, 1, 2, 2]
    assert table.progress("slow") is None


def test_a_partition_is_replaced_in_one_moment(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1, 2, 3], 1)
    with table.begin({"source": 2}) as load:
        write(load, "2024-01-01", [9])
        load.commit({}, replaces={"day": "2024-01-01"})
    assert numbers_of(table.version()) == [1, 9]
    assert numbers_of(table.version(1)) == [1, 1, 2, 3]


def test_files_are_skipped_by_what_is_stored_of_them(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1, 5, 3], 1)
    load_numbers(table, [20, 12], 2)
    found = table.version()
    assert sorted(each.bounds["number"] for each in found.files) == [
        (1, 1),
        (1, 5),
        (12, 20),
        (20, 20),
    ]
    assert numbers_of(found.skipping("number", 4, 12)) == [1, 3, 5, 12, 20]
    assert numbers_of(found.skipping("number", 6, 11)) == []
    assert numbers_of(found.skipping("day", "2024-02-01", "2024-02-28")) == [1, 20]


def test_fewer_rows_than_there_were_to_be_do_not_land(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    with table.begin({"source": 1}) as load:
        write(load, "2024-01-01", [1, 2])
        with pytest.raises(ExpectationError):
            load.commit({}, row_count=3)
    assert table.version().row_count == 0


def test_rows_with_other_columns_do_not_land(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    with table.begin({"source": 1}) as load:
        pq.write_table(pa.table({"number": [1]}), load.folder / "part.parquet")
        with pytest.raises(SchemaError, match="partitions"):
            load.commit({})
    with table.begin({"source": 1}) as load:
        (load.folder / "day=2024-01-01").mkdir()
        rows = pa.table({"number": ["text"], "id": [b""]})
        pq.write_table(rows, load.folder / "day=2024-01-01" / "part.parquet")
        with pytest.raises(SchemaError, match="number"):
            load.commit({})
    assert table.version().row_count == 0


def test_a_table_with_other_columns_is_not_written_to(tmp_path: Path) -> None:
    load_numbers(Table(tmp_path, SPEC), [1], 1)
    other = TableSpec("numbers", pa.schema([pa.field("day", pa.date32())]), ("day",))
    with pytest.raises(SchemaError, match="number"), Table(tmp_path, other).begin({}):
        pass


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="numbers"):
        Table(tmp_path, SPEC).version()
    assert Table(tmp_path, SPEC).progress("source") is None


def test_a_version_that_never_was_is_an_error(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1], 1)
    with pytest.raises(TableError, match="version 7"):
        table.version(7)


@pytest.mark.parametrize("damage", ["garbage", "empty", "gone", "cut"])
def test_a_damaged_version_is_an_error_and_those_before_it_are_not(
    tmp_path: Path, damage: str
) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1], 1)
    load_numbers(table, [2], 2)
    log = table.path / "_delta_log" / f"{2:020d}.json"
    if damage == "garbage":
        log.write_text("{garbage")
    elif damage == "empty":
        log.write_bytes(b"")
    else:
        (added, *_) = [
            json.loads(line)["add"]["path"]
            for line in log.read_text().splitlines()
            if "add" in json.loads(line)
        ]
        path = table.path / added
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TableError):
        table.version()
    assert numbers_of(table.version(1)) == [1, 1]


def test_an_empty_commit_is_named_by_whoever_opens_the_table(tmp_path: Path) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1], 1)
    load_numbers(table, [2], 2)
    commits = sorted((table.path / LOG_NAME).glob("*.json"))
    commits[1].write_bytes(b"")
    for opened in (table.version, lambda: table.progress("source"), lambda: table.version(1)):
        with pytest.raises(TableError, match=r"version 1 is empty .*00001\.json"):
            opened()
    with pytest.raises(TableError, match="version 1 is empty"), table.begin({}):
        pass


class Syncs:
    """What was synced, in order: paths below `root`, and whether version `number` was there."""

    def __init__(self, root: Path, number: int) -> None:
        self._root = root
        self._commit = root / SPEC.name / LOG_NAME / f"{number:020d}.json"
        self.before: list[str] = []
        self.after: list[str] = []

    def note(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(self._root)
        (self.after if self._commit.exists() else self.before).append(str(path))


def test_a_version_is_on_the_disk_with_all_names_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path, 1)
    monkeypatch.setattr("os.fsync", syncs.note)
    load_numbers(Table(tmp_path, SPEC), [1, 2, 3], 1)
    log = f"numbers/{LOG_NAME}"
    # The table was made; then the files, and last of all the folders that they are in.
    assert set(syncs.before[:5]) == {".", "numbers", log, f"{log}/{0:020d}.json"}
    assert [name.rpartition("/")[2] for name in syncs.before[5:7]] == [
        "part.parquet",
        "other.parquet",
    ]
    assert syncs.before[7:] == ["numbers", "numbers/day=2024-01-01", "numbers/day=2024-02-02"]
    assert set(syncs.after) == {".", "numbers", log, f"{log}/{1:020d}.json"}


def test_a_version_that_a_crash_left_is_on_the_disk_before_another_is_based_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CrashError):
        load_numbers(Table(tmp_path, SPEC, stopping_at(len(STEPS))), [1], 1)
    syncs = Syncs(tmp_path, 1)
    monkeypatch.setattr("os.fsync", syncs.note)
    with Table(tmp_path, SPEC).begin({"source": 1}) as load:
        assert load.is_done
    log = f"numbers/{LOG_NAME}"
    assert set(syncs.after) == {".", "numbers", log, f"{log}/{1:020d}.json"}


def test_folders_that_lead_to_a_table_are_named_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path, 0)
    monkeypatch.setattr("os.fsync", syncs.note)
    with Table(tmp_path / "some" / "tables", SPEC).begin({}):
        pass
    assert syncs.before[:3] == ["some/tables", "some", "."]


def test_a_table_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("no folder")
    with (
        pytest.raises(PipelineError, match="numbers cannot be written: not a directory"),
        Table(tmp_path / "tables", SPEC).begin({}),
    ):
        pass


@pytest.mark.parametrize("name", ["a%41", "%2e%2e", "a\\b"])
def test_a_path_that_would_be_taken_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no place for tables"):
        Table(tmp_path / name, SPEC)


@pytest.mark.parametrize("name", ["100%", "a %b", "ä#?&", "a[1]{2}*"])
def test_any_other_path_is_itself(tmp_path: Path, name: str) -> None:
    table = Table(tmp_path / name, SPEC)
    load_numbers(table, [1], 1)
    assert numbers_of(table.version()) == [1, 1]
    assert table.path.is_relative_to(tmp_path / name)


def test_a_table_that_cannot_be_made_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeltaError("no such place\nand pages of more")

    monkeypatch.setattr(DeltaTable, "create", refuse)
    with (
        pytest.raises(TableError, match=r"cannot be made in .* \(no such place\)$"),
        Table(tmp_path, SPEC).begin({}),
    ):
        pass


@pytest.mark.parametrize("lineage", ["{broken", "[1]", "7", 7])
def test_a_lineage_that_cannot_be_read_is_an_error(tmp_path: Path, lineage: object) -> None:
    table = Table(tmp_path, SPEC)
    load_numbers(table, [1], 1)
    path = table.path / LOG_NAME / f"{1:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["syncline"] = lineage
    path.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(TableError, match="the commit of version 1 cannot be read"):
        table.lineage(1)
