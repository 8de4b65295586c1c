"""The source `syncline`: all rows of a log once, what is missing as rows, errors that say which."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.errors import (
    ConfigError,
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StoreLockedError,
)
from syncline.pipeline.sources.folders import (
    MISSING,
    RECYCLED,
    SegmentPiece,
    Tail,
    look_at,
    packed,
    segment_path,
)
from syncline.pipeline.sources.reading import Wish, read_piece
from syncline.pipeline.sources.rows import Unread
from syncline.pipeline.sources.source import (
    SourceOptions,
    available,
    planned,
    read_partition,
)
from syncline.storage.base import commit
from syncline.storage.files import DiskFiles, File
from syncline.storage.folder import LOCK_NAME
from syncline.storage.log import reading
from syncline.storage.log.format import BLOCK_BYTES
from syncline.storage.log.manifest import read_manifest
from syncline.storage.log.runs import Run
from syncline.storage.log.scan import WholeBatch, batches
from tests.pipeline.log_rows import (
    COMPARED,
    Row,
    as_rows,
    rows_of_run,
    rows_of_segment,
)
from tests.pipeline.routers import START_MS, Router, busy_router, stream_id

FILES = DiskFiles()


def options(*folders: str, **others: str) -> SourceOptions:
    return SourceOptions.of({"paths": json.dumps(folders), **others})


def rows_read(*folders: str, **others: str) -> list[Row]:
    """All rows of folders, read as tasks would."""
    chosen = options(*folders, **others)
    parts = planned(chosen, chosen.starts, {**available(chosen), **chosen.ends}, ())
    return [row for part in parts for row in as_rows(read_partition(part))]


def rows_of_closed(folder: str) -> list[Row]:
    """What plain Python finds in all segments but the last."""
    found = look_at(folder, FILES)
    rows: list[Row] = []
    for number in found.closed:
        data = Path(segment_path(folder, number)).read_bytes()
        rows += rows_of_segment(data, number * found.segment_bytes, found.tag)
    return rows


def overwrite(path: str, offset: int, data: bytes) -> None:
    file = FILES.open(path)
    file.write(offset, [data])
    file.close()


# ------------------------------------------------------------------------------------ whole folders


def test_all_closed_segments_are_read_and_the_open_one_is_not(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    found = look_at(router.folder, FILES)
    rows = rows_read(router.folder)
    assert len(found.closed) >= 4
    assert rows == rows_of_closed(router.folder)
    assert max(row[0] for row in rows) < found.closed_end
    router.stop()


def test_durable_tail_leaves_the_last_batch_out(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    before = rows_read(router.folder, tail=Tail.DURABLE)
    assert stream_id(3) not in [row[4] for row in before if row[2] == 4]
    # Once a batch follows, the one before it is known to have reached the disk.
    router.append(1, 1)
    after = rows_read(router.folder, tail=Tail.DURABLE)
    assert after[: len(before)] == before
    assert [row[2] for row in after[len(before) :]] == [8, 4]
    router.stop()


def test_stopped_tail_is_read_whole_and_only_if_nobody_has_the_folder(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    with pytest.raises(StoreLockedError):
        rows_read(router.folder, tail=Tail.STOPPED)
    router.stop()
    rows = rows_read(router.folder, tail=Tail.STOPPED)
    assert [row[2] for row in rows[-2:]] == [8, 4]
    messages = [row for row in rows if row[2] == 1 and row[4] == stream_id(2)]
    assert [row[5] for row in messages] == list(range(1, 121))


def test_who_only_looks_at_a_stopped_folder_is_in_nobodys_way(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    somebody = FILES.lock(f"{router.folder}/{LOCK_NAME}")
    letting_go = Timer(0.05, somebody.release)
    letting_go.start()
    assert rows_read(router.folder, tail=Tail.STOPPED)
    letting_go.join()


def test_a_backup_gets_no_lock_by_being_read(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    (tmp_path / "copy").mkdir()
    for _ in router.store.backup(str(tmp_path / "copy")):
        pass
    router.stop()
    before = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert rows_read(str(tmp_path / "copy"), tail=Tail.STOPPED)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == before


def test_looking_changes_no_byte_of_a_folder(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()

    def contents() -> dict[str, bytes]:
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files if path.name != "LOCK"}

    before = contents()
    rows_read(router.folder, tail=Tail.STOPPED)
    assert contents() == before


def test_positions_between_are_read_and_no_others(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    everything = rows_read(router.folder)
    cut = look_at(router.folder, FILES).segment_bytes * 3 + 8 * 4096
    store = router.store_id.hex()
    first = rows_read(router.folder, ends=json.dumps({store: cut}))
    second = rows_read(router.folder, starts=json.dumps({store: cut}))
    assert first + second == everything
    assert first
    assert second
    router.stop()


def test_bodies_can_be_left_out(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    body = COMPARED.index("body")
    with_bodies, without = rows_read(router.folder), rows_read(router.folder, bodies="false")
    assert [row[:body] for row in with_bodies] == [row[:body] for row in without]
    assert {row[body] for row in without} == {None}
    router.stop()


def test_pieces_are_packed_by_size() -> None:
    pieces = [SegmentPiece("f", b"", 0, 100, n, n * 100, n * 100 + 100, True) for n in range(1, 8)]
    packs = packed(pieces, 250)
    assert [len(pack) for pack in packs] == [2, 2, 2, 1]
    assert [piece for pack in packs for piece in pack] == pieces
    assert [len(pack) for pack in packed(pieces, 50)] == [1] * 7
    assert packed([], 50) == []


# ----------------------------------------------------------------------------- what cannot be read


def test_a_damaged_batch_is_a_row_and_costs_no_other(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    whole = rows_of_closed(router.folder)
    overwrite(segment_path(router.folder, 3), 4096 * 2 + 200, b"\xff" * 20)
    rows = rows_read(router.folder)
    damage = [row for row in rows if row[2] < 0]
    assert [row[2] for row in damage if row[1] == 0] == [Unread.DAMAGE]
    (stretch,) = [row for row in damage if row[1] == 0]
    read = [row for row in rows if row[2] >= 0]
    assert read == rows_of_closed(router.folder)
    lost = [row for row in whole if row not in read]
    assert lost
    assert all(stretch[0] <= row[0] < stretch[0] + stretch[15] for row in lost)


def test_recycled_segments_are_a_gap_with_the_rows_that_runs_have(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    before = {(row[0], row[1]): row for row in rows_read(router.folder)}
    # The router seals what is full, and uses the files again.
    router.seal()
    for _ in range(3):
        router.append(2, 100, 400)
        router.seal()
    found = look_at(router.folder, FILES)
    assert found.runs
    assert found.closed[0] > 1
    rows = rows_read(router.folder)
    gaps = [row for row in rows if row[2] == Unread.GAP]
    assert gaps[0][0] == found.segment_bytes
    assert found.open_segment is not None
    missing = set(range(1, found.open_segment)) - set(found.closed)
    assert sum(row[15] for row in gaps) == len(missing) * found.segment_bytes
    assert {row[-1].decode() for row in gaps} == {RECYCLED}
    keys = [(row[0], row[1]) for row in rows if row[2] >= 0]
    assert len(keys) == len(set(keys))
    from_runs = {row[0]: row for row in rows if row[3] and row[2] >= 0}
    # What was wanted still, among it all messages of a queue that nobody reads.
    for position, row in from_runs.items():
        if (position, 0) in before:
            original = before[position, 0]
            assert (row[2], row[4:7], row[-2:]) == (original[2], original[4:7], original[-2:])
    seqs = [row[5] for row in rows if row[2] == 1 and row[4] == stream_id(2)]
    assert sorted(seqs) == list(range(1, max(seqs) + 1))
    router.stop()


def test_a_missing_segment_in_the_middle_is_told_from_a_recycled_one(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    Path(segment_path(router.folder, 3)).unlink()
    found = look_at(router.folder, FILES)
    gaps = [row for row in rows_read(router.folder) if row[2] == Unread.GAP]
    assert [(row[0], row[15], row[-1].decode()) for row in gaps] == [
        (3 * found.segment_bytes, found.segment_bytes, MISSING)
    ]


def test_a_segment_that_goes_after_planning_becomes_a_gap(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    chosen = options(router.folder)
    parts = planned(chosen, {}, available(chosen), ())
    router.stop()
    Path(segment_path(router.folder, 2)).rename(tmp_path / "spare.wal")
    rows = [row for part in parts for row in as_rows(read_partition(part))]
    assert [(row[2], row[0] // 65_536) for row in rows if row[2] < 0] == [(Unread.GAP, 2)]


def test_records_behind_a_header_that_lies_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 4096)
    router = Router(tmp_path / "data")
    router.create(1)
    router.append(1, 20, 4_000)
    router.stop()
    found = look_at(router.folder, FILES)
    # By its header the last batch of the segment is short: what lies behind it looks unused.
    data = bytearray(Path(segment_path(router.folder, 1)).read_bytes())
    last = max(
        part.header.position - found.segment_bytes
        for part in batches(bytes(data), found.segment_bytes, None, tag=found.tag)
        if isinstance(part, WholeBatch)
    )
    overwrite(segment_path(router.folder, 1), last + 32, (240).to_bytes(4, "little"))
    rows = rows_read(router.folder)
    assert [row[2] for row in rows if row[2] < 0 and row[1] == 0] == [Unread.DAMAGE]
    saved = [row for row in rows if row[2] >= 0 and row[0] > found.segment_bytes + last]
    assert [row[5] for row in saved if row[0] < 2 * found.segment_bytes] == [11, 12, 13, 14, 15]


class TakenAway(DiskFiles):
    """A file system on which one file goes away just after it was opened."""

    def __init__(self, path: str, target: str) -> None:
        self._path = path
        self._target = target

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        file = super().open(path, create=create, writable=writable)
        if path == self._path:
            Path(path).rename(self._target)
        return file


def test_a_segment_that_is_taken_away_while_it_is_read_becomes_a_gap(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    # It is used again for others from then on: what was read may be half of each.
    files = TakenAway(segment_path(router.folder, 2), str(tmp_path / "spare.wal"))
    found = look_at(router.folder, FILES)
    size, tag = found.segment_bytes, found.tag
    piece = SegmentPiece(router.folder, router.store_id, tag, size, 2, 2 * size, 3 * size, True)
    rows = as_rows(read_piece(files, piece, Wish()))
    assert [(row[0], row[2]) for row in rows] == [(2 * size, Unread.GAP)]


def test_a_manifest_that_is_replaced_meanwhile_is_looked_at_again(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    before = look_at(router.folder, FILES)
    (manifest,) = (tmp_path / "data").glob("MANIFEST.*")
    newer = manifest.with_name("MANIFEST.99")

    class Rotating(DiskFiles):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
            if path == str(manifest) and manifest.exists():
                manifest.rename(newer)
                (tmp_path / "data" / "CURRENT").write_text("MANIFEST.99\n")
            return super().open(path, create=create, writable=writable)

    assert look_at(router.folder, Rotating()) == before
    # Without a CURRENT that can be read, the newest one that is whole counts.
    (tmp_path / "data" / "CURRENT").write_text("nothing\n")
    assert look_at(router.folder, FILES) == before
    newer.write_text("damaged")
    with pytest.raises(CorruptionError):
        look_at(router.folder, FILES)


def test_damage_in_a_run_is_a_row_with_its_stream(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.seal()
    for _ in range(3):
        router.append(2, 100, 400)
        router.seal()
    router.stop()
    name = look_at(router.folder, FILES).runs[0].name
    path = f"{router.folder}/runs/{name}"
    overwrite(path, 40, b"\x00\x01\x02\x03")
    rows = rows_read(router.folder)
    damage = [row for row in rows if row[2] == Unread.DAMAGE and row[3]]
    assert len([row for row in damage if row[1] == 0]) == 1
    run = Run.open(FILES, path)
    expected = rows_of_run(run)
    run.close()
    assert damage[1][4] in {row[4] for row in expected}
    found = {row[0]: row for row in rows if row[3] and row[2] >= 0}
    assert all(found[row[0]] == row for row in expected if row[0] in found)


def test_a_run_that_is_lost_is_a_row(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    router.seal()
    for _ in range(3):
        router.append(2, 100, 400)
        router.seal()
    router.stop()
    name = look_at(router.folder, FILES).runs[0].name
    Path(f"{router.folder}/runs/{name}").unlink()
    reasons = [row[-1].decode() for row in rows_read(router.folder) if row[2] == Unread.DAMAGE]
    assert reasons
    assert all(name in reason for reason in reasons)


# ------------------------------------------------------------------------------------------ errors


def test_folders_that_hold_no_log_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "FORMAT").write_text(f"syncline journal 1 {'0' * 32}\n")
    for name in ("empty", "photos", "journal", "nowhere"):
        with pytest.raises(ForeignFolderError):
            rows_read(str(tmp_path / name))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    router = Router(tmp_path / "data")
    router.stop()
    store = router.store_id.hex()
    (tmp_path / "data" / "FORMAT").write_text(f"syncline log 2 {store}\n")
    with pytest.raises(NewerFormatError):
        rows_read(router.folder)


def test_a_folder_without_a_manifest_is_damaged(tmp_path: Path) -> None:
    router = Router(tmp_path / "data")
    router.stop()
    for path in [*(tmp_path / "data").glob("MANIFEST.*"), tmp_path / "data" / "CURRENT"]:
        path.unlink()
    with pytest.raises(CorruptionError):
        rows_read(router.folder)


def test_a_new_folder_has_no_rows(tmp_path: Path) -> None:
    router = Router(tmp_path / "data")
    assert rows_read(router.folder) == []
    assert rows_read(router.folder, tail=Tail.DURABLE) == []
    router.stop()


def test_copies_of_one_log_are_not_read_together(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    (tmp_path / "copy").mkdir()
    for _ in router.store.backup(str(tmp_path / "copy")):
        pass
    router.stop()
    with pytest.raises(ConfigError):
        rows_read(router.folder, str(tmp_path / "copy"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tail": "all"},
        {"bodies": "perhaps"},
        {"partition_bytes": "0"},
        {"batch_bytes": "0"},
        {"starts": "[]"},
        {"paths": "{"},
    ],
    ids=str,
)
def test_options_that_are_not_understood_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        SourceOptions.of({"path": "folder", **wrong})


# ------------------------------------------------------------------------------------------- Spark


def frame_rows(frame: DataFrame) -> list[Row]:
    """In the order of the log, with bytes as bytes."""
    found = frame.select(*COMPARED).collect()
    rows = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in found]
    return sorted(rows, key=lambda row: (row[0], row[1]))


def test_spark_reads_what_plain_python_reads(spark: SparkSession, tmp_path: Path) -> None:
    first, second = busy_router(tmp_path / "a", 1), busy_router(tmp_path / "b", 2)
    expected = rows_of_closed(first.folder) + rows_of_closed(second.folder)
    reader = spark.read.format("syncline").option("partition_bytes", "131072")
    frame = reader.option("paths", json.dumps([first.folder, second.folder])).load()
    assert frame_rows(frame) == sorted(expected, key=lambda row: (row[0], row[1]))
    stores = {bytes(row.store) for row in frame.select("store").distinct().collect()}
    assert stores == {first.store_id, second.store_id}
    for router in (first, second):
        router.stop()


def test_filters_reach_the_source_and_change_no_answer(spark: SparkSession, tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    frame = spark.read.format("syncline").load(router.folder)
    day = F.lit("2023-12-10").cast("date")
    asked = {
        "kind": F.col("kind") == 1,
        "stream": F.col("stream") == F.lit(bytes(stream_id(2))),
        "seq": F.col("seq") > 30,
        "day": F.col("day") <= day,
    }
    everything = rows_of_closed(router.folder)
    expected = {
        "kind": [row for row in everything if row[2] == 1],
        "stream": [row for row in everything if row[4] == stream_id(2)],
        "seq": [row for row in everything if row[5] is not None and row[5] > 30],
        "day": [row for row in everything if row[6] < START_MS + 2 * 86_400_000],
    }
    for name, condition in asked.items():
        chosen = frame.where(condition)
        assert frame_rows(chosen) == expected[name], name
        plan = chosen._jdf.queryExecution().optimizedPlan().toString()
        # Spark is left with no more than whether there is a value.
        assert "isnotnull" in plan or "Filter" not in plan, plan
        assert not any(sign in plan for sign in (" = ", " > ", " <= ")), plan
    router.stop()


def test_a_wrong_folder_is_named_in_sparks_error(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="it does not exist"):
        spark.read.format("syncline").load(str(tmp_path / "nowhere")).count()


def test_a_stream_gives_every_row_once_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    router = busy_router(tmp_path / "data")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(batch_bytes: int = 1 << 30) -> list[Row]:
        stream = spark.readStream.format("syncline").option("tail", Tail.DURABLE)
        query = (
            stream.option("batch_bytes", batch_bytes)
            .load(router.folder)
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()
        read_counts.append(len([each for each in query.recentProgress if each.numInputRows]))
        return frame_rows(spark.read.parquet(out))

    read_counts: list[int] = []
    # Two segments at a time, which is as little as a trigger reads.
    first = run(2 * 65_536)
    assert read_counts[-1] == -(-len(look_at(router.folder, FILES).closed) // 2) + 1
    assert first == rows_read(router.folder, tail=Tail.DURABLE)
    # As if the query had been cut off before its last batch was written.
    last = str(read_counts[-1] - 1)
    for folder in (tmp_path / "checkpoint" / "commits", tmp_path / "out" / "_spark_metadata"):
        (folder / last).unlink()
        (folder / f".{last}.crc").unlink()
    assert run() == first
    assert read_counts[-1] == 1
    assert run() == first
    assert read_counts[-1] == 0
    router.append(1, 60, 300)
    router.append(2, 1)
    third = run()
    assert third[: len(first)] == first
    assert third == rows_read(router.folder, tail=Tail.DURABLE)
    assert len(third) > len(first) + 50
    assert read_counts[-1] == 1
    commit(router.store)
    router.stop()


# --------------------------------------------------------------------- blocks that cannot be read


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    """From now on the device cannot read a block of each file whose name ends like this."""
    some_file = FILES.open(__file__, writable=False)
    some_file.close()
    file_type: Any = type(some_file)
    read = file_type.read

    def checked(file: Any, offset: int, length: int) -> bytes:
        is_met = offset < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < offset + length
        if file.path.endswith(name) and is_met:
            raise DeviceError(file.path, "reading", "input/output error")
        found: bytes = read(file, offset, length)
        return found

    monkeypatch.setattr(file_type, "read", checked)


@pytest.mark.parametrize(("name", "block"), [("2.wal", 3), ("2.wal", 0), ("7.wal", 0)])
def test_a_block_that_the_device_cannot_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    whole = rows_read(router.folder, tail=Tail.STOPPED)
    unreadable(monkeypatch, name, block)
    found = rows_read(router.folder, tail=Tail.STOPPED)
    damaged = [row for row in found if row[2] == Unread.DAMAGE and row[1] == 0]
    assert [row[0] for row in damaged] == [int(name[0]) * 65_536 + block * BLOCK_BYTES]
    assert {row for row in found if row[2] >= 0} < set(whole)
    # What comes behind is read.
    assert max(row[0] for row in found) == max(row[0] for row in whole)


def test_an_unreadable_end_of_a_stopped_log_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(tmp_path / "data")
    router.create(1)
    router.append(1, 10)
    router.stop()
    (end,) = available(options(router.folder, tail=Tail.STOPPED)).values()
    last = (end - 65_536) // BLOCK_BYTES - 1
    unreadable(monkeypatch, "1.wal", last)
    assert list(available(options(router.folder, tail=Tail.STOPPED)).values()) == [end]
    found = rows_read(router.folder, tail=Tail.STOPPED)
    damaged = [row for row in found if row[2] == Unread.DAMAGE and row[1] == 0]
    assert [row[0] for row in damaged] == [65_536 + last * BLOCK_BYTES]


def test_a_row_of_a_run_that_the_device_cannot_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = busy_router(tmp_path / "data")
    router.seal()
    router.stop()
    whole = rows_read(router.folder, tail=Tail.STOPPED)
    unreadable(monkeypatch, ".run", 0)
    found = rows_read(router.folder, tail=Tail.STOPPED)
    damaged = [row for row in found if row[2] == Unread.DAMAGE and row[1] == 0 and row[3]]
    assert damaged
    lost = {row for row in whole if row[2] >= 0} - set(found)
    assert len(lost) == len(damaged)


# ------------------------------------------------------------- what is not there, wherever it was


def cut_before_a_gap(paths: list[Path]) -> None:
    """The end of a segment, and the one behind it."""
    paths[1].write_bytes(paths[1].read_bytes()[: 5 * BLOCK_BYTES])
    paths[2].unlink()


def neighbours_swapped(paths: list[Path]) -> None:
    first, second = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(second)
    paths[2].write_bytes(first)


@pytest.mark.parametrize("break_it", [cut_before_a_gap, neighbours_swapped])
def test_whatever_is_not_there_lies_in_a_stretch_that_is_told(
    tmp_path: Path, break_it: Callable[[list[Path]], None]
) -> None:
    router = busy_router(tmp_path / "data")
    router.stop()
    whole = {row[:3] for row in rows_read(router.folder)}
    break_it(sorted((tmp_path / "data" / "wal").glob("*.wal")))
    found = rows_read(router.folder)
    stretches = [(row[0], row[0] + row[15]) for row in found if row[2] < 0]
    missing = whole - {row[:3] for row in found}
    assert missing
    assert [each for each in missing if not any(a <= each[0] < b for a, b in stretches)] == []


@pytest.mark.parametrize("tail", list(Tail))
def test_an_end_that_is_lost_is_told_as_far_as_the_table_had_come(
    tmp_path: Path, tail: Tail
) -> None:
    router = Router(tmp_path / "data", archive_bytes_max=1 << 30)
    router.create(1)
    router.append(1, 400, 500)
    router.acknowledge(1, 400)
    router.seal()
    router.stop()
    state = read_manifest(FILES, router.folder)
    assert state is not None
    for path in (tmp_path / "data").rglob("*.wal"):
        path.write_bytes(bytes(65_536))
    rows = rows_read(router.folder, tail=tail)
    assert {row[2] for row in rows} == {Unread.GAP}
    assert max(row[0] + row[15] for row in rows) == state.checkpoint // 65_536 * 65_536
