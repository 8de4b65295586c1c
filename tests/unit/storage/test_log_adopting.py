"""Segments that become runs: nothing is written over, and what is let go of is freed."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from syncline.errors import StorageError, StoreFullError
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles, Files
from syncline.storage.log.archive import confirm
from syncline.storage.log.jobs import SealJob, SealResult, run
from syncline.storage.log.segments import Segments
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.values import limits
from syncline.values.ids import StreamId

SEGMENT_BYTES = 64 * 1024
QUEUES = [StreamId(bytes([number]) * 24) for number in range(5)]
FOLDER = "/data"


def opened(files: Files, folder: str = FOLDER, *, archive_segments: int = 0) -> LogStore:
    options = StoreOptions(
        segment_bytes=SEGMENT_BYTES, archive_bytes_max=archive_segments * SEGMENT_BYTES
    )
    return LogStore.open(folder, files, options, now_ms=1, random_bytes=Random(1).randbytes)


def body(queue: StreamId, seq: int) -> bytes:
    return b"%d:%06d " % (queue[0], seq) * 300


def write(store: LogStore, count: int) -> None:
    """So many messages to each queue, one batch for all of them."""
    for _ in range(count):
        for queue in QUEUES:
            store.append(queue, body(queue, store.state(queue).next), 1)
        commit(store)


def keep_house(store: LogStore) -> None:
    for _ in range(1_000):
        job = store.take_job()
        if job is None:
            return
        store.finish_job(job, store.run_job(job))
    raise AssertionError("there is always more to do")


def check(store: LogStore) -> None:
    for queue in QUEUES:
        state = store.state(queue)
        found = [
            entry
            for start in range(state.first, state.next, 8)
            for entry in store.read(queue, start, min(8, state.next - start), 1 << 20)
        ]
        assert [entry.seq for entry in found] == list(range(state.first, state.next))
        assert all(entry.payload == body(queue, entry.seq) for entry in found)
    assert store.damage() == []


def made(files: Files, folder: str = FOLDER, **options: int) -> LogStore:
    store = opened(files, folder, **options)
    for queue in QUEUES:
        store.create(queue, StreamKind.QUEUE, 0, 1)
    commit(store)
    return store


def test_what_became_a_run_is_not_written_over() -> None:
    files = SimulatedFiles()
    store = made(files)
    for _ in range(12):
        write(store, 6)
        keep_house(store)
        check(store)
    assert files.calls["link"] >= 10
    # One name is left of each.
    runs = [name for name in files.list(f"{FOLDER}/runs") if name.count("-") == 3]
    assert runs
    assert not any(files.is_linked(f"{FOLDER}/runs/{name}") for name in runs)
    store.close()
    again = opened(files)
    check(again)
    again.close()


def test_a_start_between_listing_and_letting_go_keeps_what_became_a_run() -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 20)
    while (job := store.take_job()) is not None:
        result = store.run_job(job)
        if job.name == "seal":
            # Listed, and killed before anything else was done about it.
            break
        store.finish_job(job, result)
    assert files.calls["link"]
    after = files.kill(Random(1))
    again = opened(after)
    check(again)
    write(again, 30)
    keep_house(again)
    check(again)
    again.close()


@pytest.mark.parametrize("together", [True, False])
def test_all_is_freed_when_it_is_acknowledged(together: bool) -> None:
    def acknowledge() -> None:
        wanted = [(queue, store.state(queue).next) for queue in QUEUES]
        if together:
            assert store.truncate_many(wanted) == len(wanted)
            return
        for queue, seq in wanted:
            store.truncate_before(queue, seq)

    files = SimulatedFiles()
    store = made(files)
    write(store, 60)
    keep_house(store)
    assert files.calls["link"]
    # Before anything else has told the streams that their entries are in runs by now.
    acknowledge()
    write(store, 30)
    acknowledge()
    commit(store)
    for _ in range(3):
        # What is in the last batch is only known to be dead with the next one.
        keep_house(store)
        write(store, 1)
    assert files.list(f"{FOLDER}/runs") == []
    assert len(files.list(f"{FOLDER}/wal")) <= 5
    store.close()


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_an_archived_segment_that_became_a_run_goes_without_being_written_over(
    is_confirmed: bool,
) -> None:
    files = SimulatedFiles()
    store = made(files, archive_segments=3)
    for _ in range(8):
        write(store, 8)
        keep_house(store)
        check(store)
        if is_confirmed:
            numbers = [int(name[:12]) for name in files.list(f"{FOLDER}/archive") if name[0] == "0"]
            confirm(files, f"{FOLDER}/archive", max(numbers, default=0))
    assert files.calls["link"] >= 10
    assert len([name for name in files.list(f"{FOLDER}/archive") if name[0] == "0"]) <= 4
    store.close()
    again = opened(files, archive_segments=3)
    check(again)
    again.close()


def test_an_archived_segment_that_became_a_run_is_counted_once() -> None:
    files = SimulatedFiles()
    store = made(files, archive_segments=100)
    for _ in range(3):
        write(store, 8)
        keep_house(store)
    for _ in range(40):
        # Nothing is wanted of these segments: they are in the archive alone.
        store.append(QUEUES[0], bytes(8_000), 1)
        commit(store)
        store.truncate_before(QUEUES[0], store.state(QUEUES[0]).next)
        commit(store)
        keep_house(store)
    archive = [path for path in files.paths(FOLDER) if "/archive/0" in path]
    shared = [path for path in archive if files.is_linked(path)]
    assert 0 < len(shared) < len(archive)
    counted = [
        path
        for path in files.paths(FOLDER)
        if path.split("/")[2] in ("wal", "runs", "table", "archive") and path not in shared
    ]
    assert store.stats().disk_bytes == sum(len(files.read_all(path)) for path in counted)
    store.close()


def test_a_full_disk_takes_no_history_that_gives_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "live_segment_count_max", 1_000)
    files = SimulatedFiles()
    store = made(files, archive_segments=100)
    for _ in range(4):
        write(store, 8)
        keep_house(store)
    archive = files.list(f"{FOLDER}/archive")
    assert len(archive) >= 8
    assert all(files.is_linked(f"{FOLDER}/archive/{name}") for name in archive)
    files.capacity_bytes = 1
    with pytest.raises(StoreFullError):
        write(store, 100)
    with suppress(StoreFullError):
        keep_house(store)
    assert files.list(f"{FOLDER}/archive") == archive
    assert store.describe()["archive_dropped_segments"] == 0


def test_a_spare_that_was_a_run_has_the_size_of_a_segment() -> None:
    """Its rows go when the file becomes a segment again."""
    files = SimulatedFiles()
    spare = files.open("/spare-1-1.wal", create=True)
    spare.write(0, [bytes(SEGMENT_BYTES + 1_000)])
    spare.close()
    segments = Segments(files, "", SEGMENT_BYTES, 1, 0)
    file = segments.file_for(7 * SEGMENT_BYTES, "/spare-1-1.wal")
    assert (file.path, file.size()) == ("/000000000007.wal", SEGMENT_BYTES)
    segments.close()


def test_no_file_is_made_while_segments_come_back() -> None:
    """What is acknowledged soon costs no zeros: its segments are used again and again."""
    store = made(SimulatedFiles())

    def names_of_jobs() -> list[str]:
        names: list[str] = []
        for _ in range(60):
            write(store, 1)
            for queue in QUEUES:
                store.truncate_before(queue, store.state(queue).next)
            job = store.take_job()
            if job is not None:
                names.append(job.name)
                store.finish_job(job, store.run_job(job))
        return names

    names_of_jobs()
    names = names_of_jobs()
    assert names.count("seal") >= 3
    assert "prepare segment" not in names
    store.close()


def test_heads_that_left_memory_are_read_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "recent_bytes_max", 8 * 4_096)
    store = made(SimulatedFiles())
    write(store, 4)
    for _ in range(3):
        heads = store.read_heads(QUEUES)
        assert [head.payload for head in heads if head is not None] == [
            body(queue, store.state(queue).first) for queue in QUEUES
        ]
        store.truncate_many([(queue, store.state(queue).first + 1) for queue in QUEUES])
        write(store, 1)
    store.close()


def test_a_backup_has_what_became_a_run(tmp_path: Path) -> None:
    files = DiskFiles()
    store = made(files, str(tmp_path / "data"))
    write(store, 20)
    keep_house(store)
    assert any(run.name.count("-") == 3 for run in store._manifest.state.runs)  # pyright: ignore[reportPrivateUsage]
    for _ in store.backup(str(tmp_path / "copy")):
        pass
    store.close()
    copy = opened(files, str(tmp_path / "copy"))
    check(copy)
    copy.close()


def seal_due(files: SimulatedFiles) -> SealJob:
    """Due in a store where a segment becomes a run, and what is left of another is copied."""
    store = made(files)
    write(store, 4)
    for queue in QUEUES[1:]:
        store.truncate_before(queue, store.state(queue).next)
    write(store, 12)
    while not isinstance(job := store.take_job(), SealJob):
        assert job is not None
        store.finish_job(job, store.run_job(job))
    return job


def test_a_seal_that_was_cut_off_anywhere_can_be_done_again() -> None:
    files = SimulatedFiles()
    job = seal_due(files)
    whole = run(files.kill(Random(1)), job)
    assert isinstance(whole, SealResult)
    assert len(whole.runs) > 1, "some are adopted and some are copied"
    for call_count in range(1, 1_000):
        cut_off = files.kill(Random(1))
        cut_off.crash_after(call_count)
        try:
            run(cut_off, job)
        except SimulatedCrashError:
            after = cut_off.kill(Random(1))
            assert run(after, job) == whole
            assert sorted(after.list(f"{FOLDER}/runs")) == sorted(each.name for each in whole.runs)
        else:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("call", ["create", "write", "link", "sync", "sync_folder"])
def test_a_seal_that_failed_leaves_nothing_among_the_runs(call: str) -> None:
    files = SimulatedFiles()
    job = seal_due(files)
    for nth in range(1, 1_000):
        after = files.kill(Random(1))
        after.fail(call, nth)
        try:
            run(after, job)
        except StorageError:
            assert after.list(f"{FOLDER}/runs") == []
            assert not any(after.is_linked(path) for path in job.segment_paths)
        else:
            assert nth > 1
            return
    raise AssertionError("it never ends")
