"""Runs: written once, found by key, checked row by row."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import CorruptionError, StoreFullError
from syncline.kernels.rows import ROW
from syncline.storage.base import Damage
from syncline.storage.files import DiskFiles, Files
from syncline.storage.log.format import (
    CRC,
    RUN_FOOTER,
    RUN_FOOTER_BYTES,
    RUN_KEY_BYTES,
    RUN_MAGIC,
    RUN_ROW,
    RUN_ROW_BYTES,
    RecordKind,
    crc32c_extend,
    run_key,
)
from syncline.storage.log.run_writer import WRITE_BYTES, NewRow, RunWriter
from syncline.storage.log.runs import Run, RunMeta, write_run
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.log_files import entry_row, put, snapshot_row, stream_id, take

A, B, C = sorted(stream_id(number) for number in range(3))
PATH = "/runs/r-1-1.run"


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_folder("/runs")
    made.sync_folder("/")
    return made


@pytest.fixture(params=["simulated", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, str]]:
    """Files and the path of a run: both file systems read the same."""
    if request.param == "disk":
        yield DiskFiles(), f"{tmp_path}/r-1-1.run"
    else:
        made = SimulatedFiles()
        made.make_folder("/runs")
        yield made, PATH


def sample_rows() -> list[NewRow]:
    return [
        entry_row(A, 1, b"a one", position=10, time_ms=70),
        entry_row(A, 2, b"", position=11, time_ms=71, kind=RecordKind.QUOTA_MARKER),
        snapshot_row(A, 1, b"state", position=12),
        entry_row(B, 7, b"b seven", position=9, time_ms=90),
        entry_row(B, 8, b"b eight" * 9, position=20, time_ms=65),
    ]


def payloads(run: Run, stream: bytes, from_seq: int = 0, count_max: int = 100) -> list[bytes]:
    return [run.payload(row) for row in run.entries(stream, from_seq, count_max)]


def test_what_was_written_is_found(place: tuple[Files, str]) -> None:
    files, path = place
    meta = write_run(files, path, sample_rows())
    run = Run.open(files, path, meta)
    assert payloads(run, A) == [b"a one", b""]
    assert payloads(run, B) == [b"b seven", b"b eight" * 9]
    assert payloads(run, C) == []
    kinds = [row.kind for row in run.entries(A, 0, 9)]
    assert kinds == [RecordKind.MESSAGE, RecordKind.QUOTA_MARKER]
    found = run.snapshot(A)
    assert found is not None
    assert (found.seq, found.position, run.payload(found)) == (1, 12, b"state")
    assert run.snapshot(B) is None
    assert run.verify() == []
    run.close()


def test_bounds_are_those_of_the_rows(place: tuple[Files, str]) -> None:
    files, path = place
    meta = write_run(files, path, sample_rows())
    size = len(take(files, path))
    assert meta == RunMeta("r-1-1.run", 5, size, 65, 1_000, 9, 20, meta.index_crc)
    run = Run.open(files, path)
    assert run.meta == meta
    assert (run.row_count, run.data_bytes) == (5, size)
    assert (run.lowest_time_ms, run.highest_time_ms) == (65, 1_000)
    assert (run.lowest_position, run.highest_position) == (9, 20)
    run.close()


def test_entries_start_and_stop_where_asked(files: SimulatedFiles) -> None:
    rows = [entry_row(A, seq, b"%d" % seq) for seq in range(5, 30)]
    write_run(files, PATH, [*rows, entry_row(B, 6, b"other")])
    run = Run.open(files, PATH)
    assert payloads(run, A, 0, 2) == [b"5", b"6"]
    assert payloads(run, A, 28) == [b"28", b"29"]
    assert payloads(run, A, 30) == []
    assert payloads(run, A, 7, 0) == []
    run.close()


def test_ids_that_end_in_zeros_are_kept_apart(files: SimulatedFiles) -> None:
    streams = [b"x" * 23 + b"\0", b"x" * 22 + b"\0\0", bytes(24), b"\xff" * 24]
    write_run(files, PATH, [entry_row(stream, 1, stream[-3:]) for stream in streams])
    run = Run.open(files, PATH)
    assert [payloads(run, stream) for stream in streams] == [[stream[-3:]] for stream in streams]
    assert sorted(run.rows(0, 9)["stream"].tolist()) == sorted(streams)
    run.close()


def test_rows_may_come_in_any_order(files: SimulatedFiles) -> None:
    rows = sample_rows()
    Random(1).shuffle(rows)
    write_run(files, PATH, rows)
    run = Run.open(files, PATH)
    assert run.verify() == []
    assert payloads(run, B) == [b"b seven", b"b eight" * 9]
    run.close()


def test_of_equal_keys_the_highest_position_stays(files: SimulatedFiles) -> None:
    rows = [entry_row(A, 1, b"%d" % position, position=position) for position in (2, 256, 255)]
    meta = write_run(files, PATH, rows)
    run = Run.open(files, PATH)
    assert meta.row_count == 1
    assert payloads(run, A) == [b"256"]
    run.close()


def test_rows_are_given_as_columns(files: SimulatedFiles) -> None:
    write_run(files, PATH, sample_rows())
    run = Run.open(files, PATH)
    rows = run.rows(1, 3)
    assert rows["stream"].tolist() == [A, A, B]
    assert rows["class_seq"].tolist() == [2, 1 << 56 | 1, 7]
    assert rows["position"].tolist() == [11, 12, 9]
    assert rows["time_ms"].tolist() == [71, 1_000, 90]
    assert (rows["kind_length"] & 0xFFFFFF).tolist() == [0, 5, 7]
    assert len(run.rows(3, 100)) == 2
    run.close()


# ------------------------------------------------------------------------------------- writing


def test_a_planned_run_is_the_same_as_one_that_is_sorted_at_the_end(files: SimulatedFiles) -> None:
    rows = [entry_row(A, seq, bytes([seq % 256]) * 100) for seq in range(1, 40_000)]
    first = write_run(files, PATH, rows)
    path = "/runs/planned.run"
    with RunWriter(files, path, sum(len(row[4]) for row in rows)) as writer:
        for row in rows:
            writer.add(*row)
        second = writer.finish()
    assert second is not None
    assert second.index_crc == first.index_crc
    assert files.read_all(path) == files.read_all(PATH)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.integers(1, 9),
            st.integers(1, 300),
            st.integers(0, 300),
            st.binary(max_size=40),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 40),
)
def test_rows_that_come_as_an_array_are_written_as_single_ones(
    drawn: list[tuple[bytes, int, int, int, bytes]], portion: int
) -> None:
    rows = [
        entry_row(stream, seq, payload, position=position, time_ms=time_ms)
        for stream, seq, position, time_ms, payload in drawn
    ]
    # Of two with the same key and the same position nobody could say which one stays.
    rows = list({(row[0], row[1]): row for row in rows}.values())
    files = SimulatedFiles()
    files.make_folder("/runs")
    expected = write_run(files, PATH, rows)
    path = "/runs/array.run"
    with RunWriter(files, path) as writer:
        for start in range(0, len(rows), portion):
            part = rows[start : start + portion]
            array = np.zeros(len(part), ROW)
            for place, (key, position, time_ms, kind, payload) in enumerate(part):
                head = RUN_ROW.pack(position, time_ms, 0, kind << 24 | len(payload), 0)
                array[place] = np.frombuffer(key + head, ROW)[0]
            writer.add_rows(array, [row[4] for row in part])
        found = writer.finish()
    assert found is not None
    assert dataclasses.replace(found, name=expected.name) == expected
    assert files.read_all(path) == files.read_all(PATH)


def test_a_planned_run_with_fewer_payloads_is_whole(files: SimulatedFiles) -> None:
    with RunWriter(files, PATH, 1_000) as writer:
        writer.add(*entry_row(A, 1, b"one"))
        meta = writer.finish()
    assert meta is not None
    assert meta.index_offset == 1_000
    run = Run.open(files, PATH, meta)
    assert (payloads(run, A), run.verify()) == ([b"one"], [])
    run.close()


def test_small_payloads_leave_in_large_writes(files: SimulatedFiles) -> None:
    count = 40_000
    write_run(files, PATH, (entry_row(A, seq, b"x" * 100) for seq in range(1, count)))
    # 4 MB of payloads, 2.5 MB of rows, the footer: not a call for each of them.
    assert files.calls["write"] <= 2 + (count * 164) // WRITE_BYTES + 2


def test_an_empty_run_is_not_written(files: SimulatedFiles) -> None:
    with RunWriter(files, PATH) as writer:
        assert writer.finish() is None
    assert files.list("/runs") == []
    with pytest.raises(ValueError, match="at least one row"):
        write_run(files, PATH, [])


def test_remains_of_the_same_name_are_written_over(files: SimulatedFiles) -> None:
    put(files, PATH, b"remains" * 10_000)
    meta = write_run(files, PATH, sample_rows())
    assert len(files.read_all(PATH)) == meta.file_bytes
    run = Run.open(files, PATH, meta)
    assert run.verify() == []
    run.close()


def test_a_full_disk_leaves_no_half_run() -> None:
    files = SimulatedFiles(capacity_bytes=300_000)
    files.make_folder("/runs")
    with pytest.raises(StoreFullError):
        write_run(files, PATH, (entry_row(A, seq, b"x" * 1_000) for seq in range(1, 2_000)))
    assert files.list("/runs") == []
    assert files.open_file_count == 0


def crashed_run_verifies(files: SimulatedFiles, seed: int) -> bool:
    meta = write_run(files, PATH, sample_rows())
    after = files.crash(Random(seed))
    if not after.exists(PATH):
        return False
    try:
        run = Run.open(after, PATH, meta)
    except CorruptionError:
        return False
    is_whole = run.verify() == []
    run.close()
    return is_whole


@pytest.mark.parametrize("seed", range(20))
def test_a_finished_run_survives_a_power_cut(files: SimulatedFiles, seed: int) -> None:
    assert crashed_run_verifies(files, seed)


@pytest.mark.parametrize("ignored", ["sync", "sync_folder"])
def test_without_its_syncs_a_run_is_lost(ignored: str) -> None:
    """The test before this one can fail."""
    outcomes: list[bool] = []
    for seed in range(20):
        files = SimulatedFiles(ignored_calls=frozenset({ignored}))
        files.make_folder("/runs")
        files.sync_folder("/")
        outcomes.append(files.exists("/runs") and crashed_run_verifies(files, seed))
    assert not all(outcomes)


# -------------------------------------------------------------------------------------- damage


def is_caught(files: SimulatedFiles) -> bool:
    try:
        run = Run.open(files, PATH)
    except CorruptionError:
        return True
    damage = run.verify()
    run.close()
    return bool(damage)


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flip_of_any_byte_is_caught(files: SimulatedFiles, bit: int) -> None:
    meta = write_run(files, PATH, sample_rows())
    whole = files.read_all(PATH)
    assert not is_caught(files)
    missed: list[int] = []
    for offset in range(meta.file_bytes):
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << bit
        put(files, PATH, bytes(flipped))
        if not is_caught(files):
            missed.append(offset)
    assert missed == []


def test_a_cut_at_any_length_is_caught(files: SimulatedFiles) -> None:
    meta = write_run(files, PATH, sample_rows())
    whole = files.read_all(PATH)
    for size in range(meta.file_bytes):
        put(files, PATH, whole[:size])
        with pytest.raises(CorruptionError):
            Run.open(files, PATH, meta)
    assert files.open_file_count == 0


def test_checksum_mismatch_is_reported_with_offset(files: SimulatedFiles) -> None:
    meta = write_run(files, PATH, sample_rows())
    files.flip_bit(PATH, 2)
    run = Run.open(files, PATH)
    first, second = run.entries(A, 0, 9)
    with pytest.raises(CorruptionError) as caught:
        run.payload(first)
    assert (caught.value.file, caught.value.offset) == (PATH, meta.index_offset)
    assert run.payload(second) == b""
    assert payloads(run, B) == [b"b seven", b"b eight" * 9]
    reason = "a row of a run fails its checksum"
    assert run.verify() == [Damage(PATH, meta.index_offset, reason, StreamId(A), 1, 1)]
    run.close()


def test_damage_to_a_snapshot_names_no_lost_entry(files: SimulatedFiles) -> None:
    write_run(files, PATH, [snapshot_row(A, 4, b"state")])
    files.flip_bit(PATH, 0)
    run = Run.open(files, PATH)
    (found,) = run.verify()
    assert (found.stream, found.first_lost_seq, found.lost_count) == (A, None, 0)
    run.close()


def test_a_row_that_points_outside_is_not_followed(files: SimulatedFiles) -> None:
    meta = write_run(files, PATH, sample_rows())
    # The highest byte of the offset field: far beyond any file.
    files.flip_bit(PATH, meta.index_offset + 55, 7)
    run = Run.open(files, PATH)
    reads = files.calls["read"]
    with pytest.raises(CorruptionError, match="points outside"):
        run.payload(run.entries(A, 0, 1)[0])
    assert files.calls["read"] == reads
    run.close()


def test_a_damaged_footer_costs_nothing_where_the_run_is_listed(files: SimulatedFiles) -> None:
    meta = write_run(files, PATH, sample_rows())
    footer = meta.file_bytes - RUN_FOOTER_BYTES
    files.flip_bit(PATH, footer + 9)
    with pytest.raises(CorruptionError):
        Run.open(files, PATH)
    run = Run.open(files, PATH, meta)
    assert payloads(run, A) == [b"a one", b""]
    assert run.verify() == [Damage(PATH, footer, "the footer of a run fails its check")]
    run.close()


def test_another_run_in_its_place_is_refused(files: SimulatedFiles) -> None:
    listed = write_run(files, PATH, sample_rows())
    write_run(files, PATH, [entry_row(A, 1, b"else")])
    with pytest.raises(CorruptionError, match="not the run that is listed"):
        Run.open(files, PATH, listed)


@pytest.mark.parametrize(
    ("row_count", "index_offset"),
    [(1 << 60, 0), (0, 1 << 63), (2, 0), (1, 1), ((1 << 58) + 1, 0)],
)
def test_a_footer_whose_numbers_do_not_fit_is_refused(
    files: SimulatedFiles, row_count: int, index_offset: int
) -> None:
    footer = RUN_FOOTER.pack(RUN_MAGIC, row_count, index_offset, 0, 0, 0, 0, 0)
    footer += CRC.pack(crc32c_extend(0, footer))
    put(files, PATH, bytes(RUN_ROW_BYTES) + footer)
    with pytest.raises(CorruptionError):
        Run.open(files, PATH)


def test_a_damaged_key_hides_no_other_stream_for_good(files: SimulatedFiles) -> None:
    streams = sorted(stream_id(number) for number in range(101))
    write_run(files, PATH, [entry_row(stream, 1, stream) for stream in streams])
    middle = files.read_all(PATH).index(run_key(streams[50], 0, 1))
    files.flip_bit(PATH, middle, 7)
    run = Run.open(files, PATH)
    hidden = [stream for stream in streams if payloads(run, stream) != [stream]]
    assert len(hidden) > 1
    found = {
        stream: [run.payload(row) for row in run.entries_anywhere(stream, 0, 10)]
        for stream in streams
        if stream != streams[50]
    }
    assert all(found[stream] == [stream] for stream in found)
    run.close()


def test_entries_anywhere_are_those_of_the_index(files: SimulatedFiles) -> None:
    rows = [entry_row(stream, seq, b"") for stream in (A, B) for seq in range(1, 6_000)]
    write_run(files, PATH, [*rows, snapshot_row(A, 3, b"")])
    run = Run.open(files, PATH)
    for from_seq, count_max in ((0, 10_000), (4_000, 100), (5_999, 5), (6_000, 5)):
        expected = run.entries(A, from_seq, count_max)
        assert run.entries_anywhere(A, from_seq, count_max) == expected
    run.close()


def test_scrubbing_in_steps_covers_each_row_once(files: SimulatedFiles) -> None:
    rows = [entry_row(A, seq, b"x" * (seq % 50)) for seq in range(1, 200)]
    meta = write_run(files, PATH, rows)
    damaged = meta.index_offset + 77 * RUN_ROW_BYTES + RUN_KEY_BYTES
    files.flip_bit(PATH, damaged)
    run = Run.open(files, PATH)
    start = steps = byte_count = 0
    damage: list[Damage] = []
    while start < run.row_count:
        step = run.verify_rows(start, 500)
        assert step.next_row > start
        start, steps = step.next_row, steps + 1
        byte_count += step.byte_count
        damage += step.damage
    assert [found.first_lost_seq for found in damage] == [78]
    # All but the payload that was not worth reading, or that failed.
    assert byte_count == meta.index_offset - 78 % 50 + 199 * RUN_ROW_BYTES
    assert 10 < steps < 100
    assert run.verify_rows(0, 0).next_row == 1
    run.close()


def test_a_missing_run_is_said_to_be_missing(files: SimulatedFiles) -> None:
    with pytest.raises(FileNotFoundError):
        Run.open(files, PATH)


def test_the_router_starts_without_numpy() -> None:
    code = (
        "import sys; from syncline.storage.log import runs, jobs, worker, preparing; "
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
