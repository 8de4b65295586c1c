"""Jobs: what is wanted moves on, what is not goes, and nothing is lost on the way."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from syncline.errors import CorruptionError, DeviceError, StoreFullError
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles, Files
from syncline.storage.log import jobs
from syncline.storage.log.format import (
    HAS_SNAPSHOT,
    RUN_FOOTER_BYTES,
    RUN_ROW_BYTES,
    SLOT_DELETED,
    RecordKind,
    Slot,
    parse_table_header,
    run_key,
)
from syncline.storage.log.jobs import (
    MeasureJob,
    MergeJob,
    PrepareSegmentJob,
    PrepareTableJob,
    SealJob,
    choose_merge,
)
from syncline.storage.log.preparing import reserve_zeros, write_zeros
from syncline.storage.log.run_rows import RunMeta
from syncline.storage.log.run_writer import NewRow, write_run
from syncline.storage.log.runs import Run
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.handles import SimulatedFile
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.log_files import (
    SEGMENT_BYTES,
    NewRecord,
    SegmentBuilder,
    entry_row,
    find_slot,
    message,
    put,
    slot,
    slot_offset,
    snapshot,
    snapshot_row,
    stream_id,
    table_image,
    take,
)

A, B, C = sorted(stream_id(number) for number in range(3))
TABLE = "/table/queues.1.tab"

RUN = "/runs/r-1-9.run"


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    for folder in ("/wal", "/table", "/runs"):
        made.make_folder(folder)
    made.sync_folder("/")
    return made


def contents(files: Files, path: str = RUN) -> dict[tuple[bytes, int, int], bytes]:
    """Every row of a run by stream, class and sequence; it must be whole."""
    run = Run.open(files, path)
    try:
        assert run.verify() == []
        found: dict[tuple[bytes, int, int], bytes] = {}
        for index in range(run.row_count):
            row = run.row_at(index)
            class_seq = int.from_bytes(row[24:32], "big")
            _, payload = run.read_row(row)
            found[row[:24], class_seq >> 56, class_seq & ((1 << 56) - 1)] = payload
        return found
    finally:
        run.close()


class Sealing:
    """Segments and tables to seal. Segments follow one another."""

    def __init__(self, files: SimulatedFiles, *tables: Sequence[Slot]) -> None:
        self.files = files
        self.segments: list[SegmentBuilder] = []
        self.table_paths = tuple(f"/table/queues.{len(tables) - n}.tab" for n in range(len(tables)))
        for path, slots in zip(self.table_paths, tables, strict=True):
            put(files, path, table_image(slots))

    def segment(self) -> SegmentBuilder:
        last = self.segments[-1] if self.segments else None
        segment = SegmentBuilder(
            last.number + 1 if last else 5,
            first_batch=last.next_batch if last else 40,
            previous_crc=last.previous_crc if last else 0,
        )
        self.segments.append(segment)
        return segment

    def job(self, count: int | None = None) -> SealJob:
        """Seals the first `count` segments; all of them are written."""
        for segment in self.segments:
            put(self.files, f"/wal/{segment.number:012d}.wal", bytes(segment.data))
        numbers = [segment.number for segment in self.segments][:count]
        paths = tuple(f"/wal/{number:012d}.wal" for number in numbers)
        return SealJob("/", paths, tuple(numbers), SEGMENT_BYTES, self.table_paths, RUN)


# ------------------------------------------------------------------------------------ adopting

ADOPTED = "/runs/r-1-9-5.run"


def fill(segment: SegmentBuilder, stream: bytes, first: int, count: int = 14) -> None:
    """Batches of one message each, one block long: 14 of them are 7/8 of a segment."""
    for seq in range(first, first + count):
        segment.add([message(stream, seq, long_body(seq))])


def long_body(seq: int) -> bytes:
    return b"%04d" % seq * 975


def test_a_segment_that_is_mostly_wanted_becomes_a_run_as_it_is(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, flags=HAS_SNAPSHOT), slot(B, first=2)])
    segment = sealing.segment()
    segment.add([message(B, 1, b"acknowledged"), snapshot(A, 4, b"state"), message(B, 2, b"b")])
    fill(segment, A, 1)
    job = sealing.job()
    before = files.read_all(job.segment_paths[0])
    result = jobs.seal(files, job)
    (run,) = result.runs
    assert (run.name, run.row_count) == ("r-1-9-5.run", 16)
    assert files.list("/runs") == ["r-1-9-5.run"]
    assert files.is_linked(job.segment_paths[0])
    expected = {(A, 0, seq): long_body(seq) for seq in range(1, 15)}
    assert contents(files, ADOPTED) == expected | {(A, 1, 4): b"state", (B, 0, 2): b"b"}
    # Until the manifest says otherwise it is the segment that it was.
    assert files.read_all(job.segment_paths[0])[:SEGMENT_BYTES] == before
    assert result.live_bytes == sum(map(len, expected.values())) + len(b"stateb")
    opened = Run.open(files, ADOPTED)
    assert opened.meta == run
    opened.close()


def test_few_survivors_are_copied_beside_a_segment_that_is_adopted(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, first=10)])
    fill(sealing.segment(), A, 1)
    fill(sealing.segment(), A, 15)
    result = jobs.seal(files, sealing.job())
    assert [run.name for run in result.runs] == ["r-1-9-6.run", "r-1-9.run"]
    assert set(contents(files)) == {(A, 0, seq) for seq in range(10, 15)}
    assert set(contents(files, "/runs/r-1-9-6.run")) == {(A, 0, seq) for seq in range(15, 29)}


def test_of_a_stream_that_was_made_anew_an_adopted_segment_lists_the_later_one(
    files: SimulatedFiles,
) -> None:
    sealing = Sealing(files)
    segment = sealing.segment()
    fill(segment, A, 1, 13)
    segment.add([message(B, 1, b"former")])
    (born,) = segment.add([NewRecord(RecordKind.CREATE, B)])
    segment.add([message(B, 1, b"later")])
    put(files, TABLE, table_image([slot(A), slot(B, born=born)]))
    # Its slot does not tell which of them is wanted.
    damage_slot(files, TABLE, B, 33)
    job = replace(sealing.job(), table_paths=(TABLE,))
    jobs.seal(files, job)
    assert contents(files, ADOPTED)[B, 0, 1] == b"later"


def test_what_became_a_run_is_merged_with_others_and_read_as_a_whole(
    files: SimulatedFiles,
) -> None:
    sealing = Sealing(files, [slot(A), slot(B)])
    segment = sealing.segment()
    for seq in range(1, 8):
        fill(segment, B, seq, 1)
        fill(segment, A, seq, 1)
    jobs.seal(files, sealing.job())
    other = "/runs/r-1-1.run"
    write_run(files, other, [entry_row(A, 100, b"last")])
    before = files.calls["expect_reads"]
    target = "/runs/r-1-10.run"
    result = jobs.merge(files, MergeJob("/", (ADOPTED, other), (TABLE,), target))
    assert result.run is not None
    assert result.run.row_count == 15
    assert contents(files, target) == contents(files, ADOPTED) | {(A, 0, 100): b"last"}
    # Only what lies in another order than its rows.
    assert files.calls["expect_reads"] == before + 1


@pytest.mark.parametrize("refusal", ["link", "claim"])
def test_a_segment_that_cannot_be_adopted_is_copied(
    files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    sealing = Sealing(files, [slot(A)])
    fill(sealing.segment(), A, 1)
    owner = SimulatedFiles if refusal == "link" else SimulatedFile
    monkeypatch.setattr(owner, refusal, lambda *_: False)
    result = jobs.seal(files, sealing.job())
    assert [run.name for run in result.runs] == ["r-1-9.run"]
    assert len(contents(files)) == 14


def test_what_a_cut_off_attempt_left_behind_a_segment_is_replaced(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    fill(sealing.segment(), A, 1)
    job = sealing.job()
    file = files.open(job.segment_paths[0])
    file.write(SEGMENT_BYTES, [b"rubbish" * 1_000])
    file.close()
    (run,) = jobs.seal(files, job).runs
    assert len(files.read_all(ADOPTED)) == run.file_bytes
    assert len(contents(files, ADOPTED)) == 14


def test_damage_in_a_segment_that_is_adopted_is_reported_and_left_out(
    files: SimulatedFiles,
) -> None:
    sealing = Sealing(files, [slot(A)])
    segment = sealing.segment()
    fill(segment, A, 1, 15)
    segment.data[segment.positions[3] - segment.start + 100] ^= 1
    result = jobs.seal(files, sealing.job())
    assert [damage.stream for damage in result.damage] == [A]
    assert {seq for _, _, seq in contents(files, ADOPTED)} == {*range(1, 16)} - {4}


def test_an_adoption_that_is_cut_off_anywhere_leaves_the_segment_whole() -> None:
    def prepared() -> tuple[SimulatedFiles, SealJob]:
        files = SimulatedFiles()
        for folder in ("/wal", "/table", "/runs"):
            files.make_folder(folder)
        files.sync_folder("/")
        sealing = Sealing(files, [slot(A)])
        fill(sealing.segment(), A, 1)
        job = sealing.job()
        for folder in ("/wal", "/table"):
            files.sync_folder(folder)
        return files, job

    call_count = 0
    while True:
        call_count += 1
        files, job = prepared()
        before = files.read_all(job.segment_paths[0])
        files.crash_after(call_count)
        try:
            jobs.seal(files, job)
        except SimulatedCrashError:
            pass
        else:
            break
        for seed in range(5):
            for after in (files.crash(Random(seed)), files.kill(Random(seed))):
                assert after.read_all(job.segment_paths[0])[:SEGMENT_BYTES] == before
                for name in after.list("/runs"):
                    after.remove(f"/runs/{name}")
                # It can be done again.
                (run,) = jobs.seal(after, job).runs
                assert len(contents(after, f"/runs/{run.name}")) == 14
    assert call_count > 10
    # Once it is told it is durable, name and all.
    for seed in range(20):
        assert len(contents(files.crash(Random(seed)), ADOPTED)) == 14


# ------------------------------------------------------------------------------------- sealing


def test_what_is_wanted_survives(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, first=2, next_seq=4), slot(B, first=1, next_seq=2)])
    segment = sealing.segment()
    segment.add([message(A, 1, b"acknowledged"), message(A, 2, b"two"), message(B, 1, b"b")])
    segment.add([message(A, 3, b"three", time_ms=77), message(C, 1, b"of no stream")])
    result = jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 2): b"two", (A, 0, 3): b"three", (B, 0, 1): b"b"}
    assert result.damage == ()
    assert result.live_bytes == len(b"twothreeb")
    (run,) = result.runs
    assert (run.name, run.row_count) == ("r-1-9.run", 3)
    assert (run.lowest_time_ms, run.highest_time_ms) == (77, 1_000)
    assert run.lowest_position == segment.positions[1]
    assert run.highest_position == segment.positions[3]


def test_only_entries_and_snapshots_are_sealed(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, flags=HAS_SNAPSHOT)])
    others = [kind for kind in RecordKind if kind not in (1, 2, 6)]
    records = [NewRecord(kind, A, 9, b"12345678rest") for kind in others]
    marker = NewRecord(RecordKind.QUOTA_MARKER, A, 5)
    sealing.segment().add([*records, marker, snapshot(A, 4, b"state"), message(A, 6, b"six")])
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 5): b"", (A, 0, 6): b"six", (A, 1, 4): b"state"}


def test_flags_of_the_stream_are_not_part_of_a_rows_kind(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    sealing.segment().add([NewRecord(RecordKind.MESSAGE | 0xE0, A, 1, b"one")])
    jobs.seal(files, sealing.job())
    run = Run.open(files, RUN)
    assert [row.kind for row in run.entries(A, 0, 9)] == [RecordKind.MESSAGE]
    run.close()


def test_deleted_and_unknown_streams_leave_nothing(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, state=SLOT_DELETED)])
    sealing.segment().add([message(A, 1, b"deleted"), message(B, 1, b"unknown")])
    result = jobs.seal(files, sealing.job())
    assert (result.runs, result.live_bytes, result.damage) == ((), 0, ())
    assert files.list("/runs") == []


def test_records_before_the_birth_of_their_stream_are_dead(files: SimulatedFiles) -> None:
    sealing = Sealing(files)
    segment = sealing.segment()
    old = segment.add([message(A, 1, b"old"), snapshot(A, 1, b"old state")])
    new = segment.add([NewRecord(RecordKind.CREATE, A), message(A, 1, b"new")])
    assert old < new
    put(files, TABLE, table_image([slot(A, born=new[0], flags=HAS_SNAPSHOT)]))
    sealing.table_paths = (TABLE,)
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 1): b"new"}


def test_the_last_snapshot_of_a_stream_is_kept(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A, flags=HAS_SNAPSHOT), slot(B)])
    first, second = sealing.segment(), sealing.segment()
    first.add([snapshot(A, 3, b"three"), snapshot(A, 5, b"five"), snapshot(B, 1, b"let go of")])
    second.add([snapshot(A, 8, b"eight"), snapshot(A, 8, b"eight again"), message(A, 9, b"nine")])
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 9): b"nine", (A, 1, 8): b"eight again"}
    # Nothing of those that were replaced takes room.
    assert b"three" not in files.read_all(RUN)
    assert b"five" not in files.read_all(RUN)


def test_the_newest_generation_of_the_table_decides(files: SimulatedFiles) -> None:
    newest = [slot(A, first=5, next_seq=9), slot(B, state=SLOT_DELETED)]
    older = [slot(A, first=1, next_seq=9), slot(B), slot(C)]
    sealing = Sealing(files, newest, older)
    sealing.segment().add([message(stream, 2, b"") for stream in (A, B, C)])
    jobs.seal(files, sealing.job())
    assert list(contents(files)) == [(C, 0, 2)]


def damage_slot(files: SimulatedFiles, path: str, stream: bytes, byte: int) -> None:
    index = find_slot(files.read_all(path), stream)
    assert index >= 0
    files.flip_bit(path, slot_offset(index) + byte)


@pytest.mark.parametrize("byte", [0, 23, 24, 33, 41, 58, 60, 63])
def test_a_damaged_slot_costs_no_entry(files: SimulatedFiles, byte: int) -> None:
    sealing = Sealing(files, [slot(A, first=4), slot(B, first=4)])
    sealing.segment().add([message(A, 3, b"perhaps wanted"), message(B, 3, b"not wanted")])
    damage_slot(files, TABLE, A, byte)
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 3): b"perhaps wanted"}


def test_a_slot_whose_state_was_lost_costs_no_entry(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    sealing.segment().add([message(A, 3, b"wanted")])
    damage_slot(files, TABLE, A, 59)
    assert find_slot(files.read_all(TABLE), A) == -1
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 3): b"wanted"}


def test_streams_of_a_damaged_slot_are_not_mixed_up(files: SimulatedFiles) -> None:
    """Without a sound slot nobody knows which stream of the same id counts: the later one."""
    sealing = Sealing(files, [slot(A)])
    first, second = sealing.segment(), sealing.segment()
    first.add([message(A, 1, b"earlier"), snapshot(A, 9, b"earlier")])
    second.add([message(A, 1, b"later"), snapshot(A, 2, b"later")])
    damage_slot(files, TABLE, A, 40)
    jobs.seal(files, sealing.job())
    assert contents(files) == {(A, 0, 1): b"later", (A, 1, 2): b"later"}


def test_a_damaged_batch_costs_its_damaged_records_alone(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A), slot(B)])
    segment = sealing.segment()
    positions = segment.add([message(A, 1, b"first"), message(B, 1, b"hit"), message(A, 2, b"x")])
    segment.add([message(B, 2, b"behind")])
    job = sealing.job()
    files.flip_bit(job.segment_paths[0], positions[1] - segment.start + 48)
    result = jobs.seal(files, job)
    assert contents(files) == {(A, 0, 1): b"first", (A, 0, 2): b"x", (B, 0, 2): b"behind"}
    assert [(found.file, found.offset, found.stream) for found in result.damage] == [
        (job.segment_paths[0], 0, B)
    ]


@pytest.mark.parametrize("is_whole_job", [True, False])
def test_damage_to_the_last_batch_of_a_segment_is_seen(
    files: SimulatedFiles, is_whole_job: bool
) -> None:
    """Nothing in the segment follows it: that the next one goes on elsewhere tells."""
    sealing = Sealing(files, [slot(A), slot(B)])
    segment = sealing.segment()
    segment.add([message(A, 1, b"one")])
    positions = segment.add([message(A, 2, b"two"), message(B, 1, b"hit")])
    sealing.segment().add([message(A, 3, b"three")])
    job = sealing.job(2 if is_whole_job else 1)
    files.flip_bit(job.segment_paths[0], positions[1] - segment.start + 48)
    result = jobs.seal(files, job)
    assert {(A, 0, 1), (A, 0, 2)} <= set(contents(files))
    assert [(found.offset, found.stream) for found in result.damage] == [(4096, B)]


@pytest.mark.parametrize("is_whole_job", [True, False])
def test_a_lost_header_at_the_end_of_a_segment_is_seen(
    files: SimulatedFiles, is_whole_job: bool
) -> None:
    sealing = Sealing(files, [slot(A)])
    segment = sealing.segment()
    segment.add([message(A, 1, b"one")])
    segment.add([message(A, 2, b"two")])
    sealing.segment().add([message(A, 3, b"three")])
    job = sealing.job(2 if is_whole_job else 1)
    files.flip_bit(job.segment_paths[0], 4096)
    result = jobs.seal(files, job)
    assert [(found.offset, found.reason) for found in result.damage] == [
        (4096, "batches are missing here")
    ]


@pytest.mark.parametrize("is_whole_job", [True, False])
def test_a_torn_end_that_was_cut_off_stays_cut_off(
    files: SimulatedFiles, is_whole_job: bool
) -> None:
    """A batch that was never acknowledged, left behind at the end of a segment by a crash."""
    sealing = Sealing(files, [slot(A)])
    segment = sealing.segment()
    segment.add([message(A, 1, b"one")])
    chain = segment.next_batch, segment.previous_crc
    positions = segment.add([message(A, 2, b"never said"), message(A, 3, b"torn")])
    segment.data[positions[1] - segment.start + 48] ^= 1
    segment.next_batch, segment.previous_crc = chain
    sealing.segment().add([message(A, 2, b"said")], epoch=4)
    result = jobs.seal(files, sealing.job(2 if is_whole_job else 1))
    assert result.damage == ()
    expected = {(A, 0, 1): b"one"}
    assert contents(files) == expected | ({(A, 0, 2): b"said"} if is_whole_job else {})


def test_a_missing_segment_is_reported_and_the_others_sealed(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    for seq in (1, 2, 3):
        sealing.segment().add([message(A, seq, b"")])
    job = sealing.job()
    files.remove(job.segment_paths[1])
    result = jobs.seal(files, job)
    assert sorted(contents(files)) == [(A, 0, 1), (A, 0, 3)]
    assert (job.segment_paths[1], "the segment is missing") in [
        (found.file, found.reason) for found in result.damage
    ]


def test_a_missing_or_cut_table_stops_the_job(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    sealing.segment().add([message(A, 1, b"")])
    job = sealing.job()
    files.cut(TABLE, 4096 + 100)
    with pytest.raises(CorruptionError, match="cut off"):
        jobs.seal(files, job)
    files.remove(TABLE)
    with pytest.raises(CorruptionError, match="missing"):
        jobs.seal(files, job)
    assert files.open_file_count == 0
    assert files.list("/runs") == []


def tables_after_sealing_and_power_cuts(files: SimulatedFiles) -> list[bool]:
    """Whether a change that the owner made to the table before the job is there, cut by cut."""
    sealing = Sealing(files, [slot(A, first=1, next_seq=9)], [slot(B)])
    sealing.segment().add([message(A, 3, b"three")])
    job = sealing.job()
    files.sync_folder("/table")
    changed = table_image([slot(A, first=3, next_seq=9)])
    owners = files.open(job.table_paths[0])
    mapped = owners.map(writable=True)
    mapped[0 : len(changed)] = changed
    jobs.seal(files, job)
    crashed = [files.crash(Random(seed)) for seed in range(20)]
    assert all(contents(after) == {(A, 0, 3): b"three"} for after in crashed)
    mapped.close()
    owners.close()
    return [after.read_all(job.table_paths[0]) == changed for after in crashed]


def test_the_table_is_durable_when_sealing_ends(files: SimulatedFiles) -> None:
    assert all(tables_after_sealing_and_power_cuts(files))


def test_without_its_sync_the_table_is_lost(
    files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before this one can fail."""
    monkeypatch.setattr("syncline.storage.log.liveness.LiveTable.sync", lambda _: None)
    assert not all(tables_after_sealing_and_power_cuts(files))


def test_a_full_disk_while_sealing_leaves_no_run() -> None:
    files = SimulatedFiles(capacity_bytes=300_000)
    for folder in ("/wal", "/table", "/runs"):
        files.make_folder(folder)
    sealing = Sealing(files, [slot(A)])
    for number in range(4):
        segment = sealing.segment()
        for seq in range(10):
            segment.add([message(A, number * 10 + seq, b"x" * 4_000)])
    job = sealing.job()
    with pytest.raises(StoreFullError):
        jobs.seal(files, job)
    assert files.list("/runs") == []
    assert files.open_file_count == 0


def test_a_failed_sync_is_passed_on(files: SimulatedFiles) -> None:
    sealing = Sealing(files, [slot(A)])
    sealing.segment().add([message(A, 1, b"one")])
    job = sealing.job()
    files.fail("sync")
    with pytest.raises(DeviceError):
        jobs.seal(files, job)
    files.fail("sync", 2)
    with pytest.raises(DeviceError):
        jobs.seal(files, job)


# ------------------------------------------------------------------------------------- merging


def put_runs(files: Files, *runs: Sequence[NewRow]) -> tuple[str, ...]:
    paths = tuple(f"/runs/r-1-{number}.run" for number in range(len(runs)))
    for path, rows in zip(paths, runs, strict=True):
        write_run(files, path, rows)
    return paths


def test_live_rows_of_all_runs_are_merged(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A, first=2), slot(B, state=SLOT_DELETED), slot(C)]))
    paths = put_runs(
        files,
        [entry_row(A, 1, b"gone"), entry_row(A, 2, b"two"), entry_row(C, 9, b"nine")],
        [entry_row(A, 3, b"three"), entry_row(B, 1, b"gone")],
        [entry_row(C, 8, b"eight")],
    )
    result = jobs.merge(files, MergeJob("/", paths, (TABLE,), RUN))
    assert contents(files) == {
        (A, 0, 2): b"two",
        (A, 0, 3): b"three",
        (C, 0, 8): b"eight",
        (C, 0, 9): b"nine",
    }
    assert (result.dropped_row_count, result.damage) == (2, ())
    assert result.run == Run.open(files, RUN).meta
    # No room is left for what was dropped.
    assert result.run is not None
    assert result.run.file_bytes == len(b"twothreeeightnine") + 4 * RUN_ROW_BYTES + RUN_FOOTER_BYTES


def test_dead_runs_are_merged_to_nothing(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A, first=9)]))
    paths = put_runs(files, [entry_row(A, 1, b"x")], [entry_row(B, 1, b"y")])
    result = jobs.merge(files, MergeJob("/", paths, (TABLE,), RUN))
    assert (result.run, result.dropped_row_count) == (None, 2)
    assert not files.exists(RUN)


def test_of_snapshots_the_newest_is_kept(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A, flags=HAS_SNAPSHOT), slot(B, flags=HAS_SNAPSHOT)]))
    paths = put_runs(
        files,
        [snapshot_row(A, 5, b"old", position=1), snapshot_row(B, 3, b"only", position=2)],
        [snapshot_row(A, 9, b"new", position=8)],
        [snapshot_row(A, 7, b"middle", position=5)],
    )
    result = jobs.merge(files, MergeJob("/", paths, (TABLE,), RUN))
    assert contents(files) == {(A, 1, 9): b"new", (B, 1, 3): b"only"}
    assert result.dropped_row_count == 2
    assert b"middle" not in files.read_all(RUN)


def test_a_snapshot_that_another_run_has_newer_is_dropped(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A, flags=HAS_SNAPSHOT), slot(B, flags=HAS_SNAPSHOT)]))
    old, newer, oldest = put_runs(
        files,
        [snapshot_row(A, 5, b"old", position=10), snapshot_row(B, 2, b"b", position=10)],
        [snapshot_row(A, 9, b"new", position=11)],
        [snapshot_row(B, 1, b"older", position=9)],
    )
    others = (newer, oldest)
    measured = jobs.measure(files, MeasureJob((old,), (TABLE,), others))
    jobs.merge(files, MergeJob("/", (old,), (TABLE,), RUN, others))
    assert contents(files) == {(B, 1, 2): b"b"}
    size = len(files.read_all(RUN))
    assert dict(measured.live) == {"r-1-0.run": (1, size)}


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_damaged_snapshot_replaces_no_older_one(files: SimulatedFiles, is_merged: bool) -> None:
    put(files, TABLE, table_image([slot(A, flags=HAS_SNAPSHOT)]))
    oldest, old, newer = put_runs(
        files,
        [snapshot_row(A, 3, b"oldest", position=9)],
        [snapshot_row(A, 5, b"old", position=10)],
        [snapshot_row(A, 9, b"new", position=11)],
    )
    files.flip_bit(newer, files.read_all(newer).index(b"new"))
    merged, others = ((oldest, old, newer), ()) if is_merged else ((oldest, old), (newer,))
    jobs.merge(files, MergeJob("/", merged, (TABLE,), RUN, others))
    assert contents(files) == {(A, 1, 5): b"old"}


def test_a_damaged_row_is_left_out_and_reported(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A), slot(B)]))
    rows = [entry_row(A, 4, b"whole"), entry_row(A, 5, b"damaged"), entry_row(B, 1, b"b")]
    (path,) = put_runs(files, rows)
    files.flip_bit(path, files.read_all(path).index(b"damaged"))
    result = jobs.merge(files, MergeJob("/", (path,), (TABLE,), RUN))
    assert contents(files) == {(A, 0, 4): b"whole", (B, 0, 1): b"b"}
    assert [(found.stream, found.first_lost_seq, found.lost_count) for found in result.damage] == [
        (A, 5, 1)
    ]
    assert result.damage[0].file == path
    assert result.dropped_row_count == 1


@pytest.mark.parametrize("byte", [0, 7, 23, 25, 31])
def test_a_damaged_key_is_reported_and_nothing_else_lost(files: SimulatedFiles, byte: int) -> None:
    streams = sorted(stream_id(number) for number in range(40))
    put(files, TABLE, table_image([slot(stream) for stream in streams]))
    (path, other) = put_runs(
        files,
        [entry_row(stream, 1, stream) for stream in streams],
        [entry_row(stream, 2, stream) for stream in streams],
    )
    key = run_key(streams[20], 0, 1)
    files.flip_bit(path, files.read_all(path).index(key) + byte, 7)
    result = jobs.merge(files, MergeJob("/", (path, other), (TABLE,), RUN))
    kept = {(stream, 0, seq): stream for stream in streams for seq in (1, 2)}
    del kept[streams[20], 0, 1]
    assert contents(files) == kept
    assert len(result.damage) == 1
    assert result.damage[0].file == path


def test_merging_mends_a_damaged_footer(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A)]))
    (path,) = put_runs(files, [entry_row(A, 1, b"one")])
    meta = Run.open(files, path).meta
    files.flip_bit(path, meta.file_bytes - 1)
    with pytest.raises(CorruptionError):
        jobs.merge(files, MergeJob("/", (path,), (TABLE,), RUN))
    result = jobs.merge(files, MergeJob("/", (path,), (TABLE,), RUN, listed=(meta,)))
    assert [found.reason for found in result.damage] == ["the footer of a run fails its check"]
    assert contents(files) == {(A, 0, 1): b"one"}


def test_of_equal_keys_the_later_stream_counts(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A)]))
    paths = put_runs(
        files,
        [entry_row(A, 1, b"later", position=256)],
        [entry_row(A, 1, b"earlier", position=255)],
    )
    for order in (paths, paths[::-1]):
        result = jobs.merge(files, MergeJob("/", order, (TABLE,), RUN))
        assert contents(files) == {(A, 0, 1): b"later"}
        assert result.dropped_row_count == 1


def test_a_missing_run_stops_the_merge(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A)]))
    with pytest.raises(CorruptionError, match="missing"):
        jobs.merge(files, MergeJob("/", ("/runs/none.run",), (TABLE,), RUN))
    assert files.open_file_count == 0


def test_measuring_tells_what_a_merge_would_leave(files: SimulatedFiles) -> None:
    put(files, TABLE, table_image([slot(A, first=3), slot(B, first=9)]))
    paths = put_runs(
        files,
        [entry_row(A, seq, b"x" * seq) for seq in range(1, 6)],
        [entry_row(B, 1, b"dead")],
    )
    measured = jobs.measure(files, MeasureJob(paths, (TABLE,)))
    jobs.merge(files, MergeJob("/", paths[:1], (TABLE,), RUN))
    size = len(files.read_all(RUN))
    assert dict(measured.live) == {"r-1-0.run": (3, size), "r-1-1.run": (0, 0)}


def test_many_rows_are_merged_in_chunks(
    files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.storage.log.merging._CHUNK_ROWS", 7)
    streams = [stream_id(number) for number in range(50)]
    put(files, TABLE, table_image([slot(stream, first=2) for stream in streams], capacity=128))
    by_run: list[list[NewRow]] = [[], [], []]
    for number, stream in enumerate(streams):
        for seq in range(1, 8):
            by_run[(number + seq) % 3].append(entry_row(stream, seq, stream[:seq]))
    paths = put_runs(files, *by_run)
    result = jobs.merge(files, MergeJob("/", paths, (TABLE,), RUN))
    assert result.dropped_row_count == 50
    expected = {(stream, 0, seq): stream[:seq] for stream in streams for seq in range(2, 8)}
    assert contents(files) == expected


# ----------------------------------------------------------------------------------- preparing


def test_a_prepared_segment_is_zeros_and_durable(files: SimulatedFiles) -> None:
    job = PrepareSegmentJob("/wal/spare-1-1.wal", 3 << 20)
    jobs.run(files, job)
    assert files.calls["write"] == 3
    for seed in range(5):
        assert files.crash(Random(seed)).read_all(job.path) == bytes(3 << 20)


def test_a_reserved_segment_is_zeros_and_durable(files: SimulatedFiles) -> None:
    reserve_zeros(files, "/wal/spare-1-1.wal", 1 << 20)
    for seed in range(5):
        assert files.crash(Random(seed)).read_all("/wal/spare-1-1.wal") == bytes(1 << 20)
    files.capacity_bytes = 3 << 19
    with pytest.raises(StoreFullError):
        reserve_zeros(files, "/wal/spare-1-2.wal", 1 << 20)
    assert files.list("/wal") == ["spare-1-1.wal"]


def test_preparing_that_is_given_up_leaves_nothing(files: SimulatedFiles) -> None:
    answers = iter([False, True])
    with pytest.raises(DeviceError, match="closed"):
        write_zeros(files, "/wal/spare-1-1.wal", 3 << 20, is_given_up=lambda: next(answers))
    assert files.list("/wal") == []


def test_a_segment_is_prepared_without_the_job_process_and_ends_with_the_store(
    tmp_path: Path,
) -> None:
    options = StoreOptions(segment_bytes=SEGMENT_BYTES, has_job_process=True)
    store = LogStore.open(
        str(tmp_path / "data"), DiskFiles(), options, now_ms=1, random_bytes=bytes
    )
    queue = StreamId(b"q" * 24)
    store.create(queue, StreamKind.QUEUE, 100, 1)
    for _ in range(4):
        store.append(queue, bytes(8_000), 1)
        commit(store)
    job = store.take_job()
    assert isinstance(job, PrepareSegmentJob)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("syncline.storage.log.worker.JobProcess.run", None)
        store.finish_job(job, store.run_job(job))
    assert (tmp_path / "data" / "wal").joinpath(Path(job.path).name).stat().st_size == SEGMENT_BYTES
    store.close()


def test_a_prepared_table_is_empty_and_durable(files: SimulatedFiles) -> None:
    jobs.run(files, PrepareTableJob(TABLE, 1_000, 7))
    data = files.crash(Random(1)).read_all(TABLE)
    header = parse_table_header(data)
    assert header is not None
    assert (header.capacity, header.generation, header.used_count) == (1_000, 7, 0)
    assert len(data) == 4096 + 64 * 1_000
    assert not any(data[52:])


def test_remains_do_not_shine_through_a_prepared_file(files: SimulatedFiles) -> None:
    put(files, TABLE, b"\xff" * 500_000)
    jobs.run(files, PrepareTableJob(TABLE, 64, 7))
    data = files.read_all(TABLE)
    assert len(data) == 4096 + 64 * 64
    assert not any(data[52:])


def test_a_full_disk_leaves_no_half_prepared_file() -> None:
    files = SimulatedFiles(capacity_bytes=2 << 20)
    files.make_folder("/wal")
    with pytest.raises(StoreFullError):
        jobs.run(files, PrepareSegmentJob("/wal/spare.wal", 4 << 20))
    assert files.list("/wal") == []


# ----------------------------------------------------------------------------- the jobs as such


def test_jobs_and_results_travel(tmp_path: Path) -> None:
    files = DiskFiles()
    put(files, f"{tmp_path}/t", table_image([slot(A)]))
    meta = write_run(files, f"{tmp_path}/r", [entry_row(A, 1, b"one")])
    job = MergeJob(
        str(tmp_path), (f"{tmp_path}/r",), (f"{tmp_path}/t",), f"{tmp_path}/m", (), (meta,)
    )
    assert pickle.loads(pickle.dumps(job)) == job
    result = jobs.run(files, pickle.loads(pickle.dumps(job)))
    assert pickle.loads(pickle.dumps(result)) == result
    assert len(take(files, f"{tmp_path}/m")) == meta.file_bytes
    assert job.name == "merge"


# ------------------------------------------------------------------------------ what to merge


MIB = 1 << 20


def metas(*sizes: int) -> list[RunMeta]:
    return [RunMeta(f"r{n}", 10, size, 0, 0, 0, 0, 0) for n, size in enumerate(sizes)]


def test_few_runs_are_left_alone() -> None:
    assert choose_merge([], {}) is None
    assert choose_merge(metas(*[5 * MIB] * 15, *[100 * MIB] * 15), {}) is None


def test_sixteen_of_a_tier_are_merged() -> None:
    runs = metas(*[100 * MIB] * 3, *[30 * MIB] * 16)
    assert set(choose_merge(runs, {}) or ()) == {f"r{n}" for n in range(3, 19)}
    small = metas(*range(1_000, 17_000, 1_000))
    assert len(choose_merge(small, {}) or ()) == 16


def test_what_sixteen_segments_became_is_left_alone_by_the_next_fifteen() -> None:
    """They became runs as they were, so they hold a little that is not wanted, and an index."""
    run_bytes = 64 * MIB + 262_000
    merged_bytes = 16 * run_bytes * 95 // 100
    assert len(choose_merge(metas(*[run_bytes] * 16), {}) or ()) == 16
    assert choose_merge(metas(merged_bytes, *[run_bytes] * 15), {}) is None


def test_dead_runs_go_first() -> None:
    runs = metas(*[30 * MIB] * 16)
    live = {"r3": (0, 0), "r5": (1, 200), "r9": (0, 0)}
    assert choose_merge(runs, live) == ("r3", "r9")


def test_a_run_of_which_less_than_half_is_live_is_written_anew() -> None:
    runs = metas(1_000, 1_000, 1_000)
    live = {"r0": (5, 500), "r1": (4, 499), "r2": (10, 1_000)}
    assert choose_merge(runs, live) == ("r1",)


def test_a_live_row_without_bytes_keeps_its_run() -> None:
    marker_only = metas(RUN_ROW_BYTES + RUN_FOOTER_BYTES)
    assert choose_merge(marker_only, {"r0": (1, RUN_ROW_BYTES + RUN_FOOTER_BYTES)}) is None


def test_there_are_never_more_runs_than_the_limit() -> None:
    # A run a tier is what tiers alone would let stand.
    sizes = [4 * MIB * 16**tier for tier in range(5) for _ in range(13)]
    runs = metas(*sizes)
    assert len(runs) >= limits.run_count_max
    chosen = choose_merge(runs, {}) or ()
    assert len(chosen) == 16
    assert set(chosen) == {f"r{n}" for n in range(16)}


def test_survivors_are_rewritten_rarely() -> None:
    """Sealed runs of one size, all of it live: each byte is written once for each tier."""
    runs: list[RunMeta] = []
    written = sealed = 0
    for number in range(2_000):
        runs.append(RunMeta(f"s{number}", 10, 40 * MIB, 0, 0, 0, 0, 0))
        sealed += 40 * MIB
        while chosen := choose_merge(runs, {}):
            size = sum(run.file_bytes for run in runs if run.name in chosen)
            runs = [run for run in runs if run.name not in chosen]
            runs.append(RunMeta(f"m{number}-{size}", 10, size, 0, 0, 0, 0, 0))
            written += size
        assert len(runs) < limits.run_count_max
    assert written <= 3 * sealed
