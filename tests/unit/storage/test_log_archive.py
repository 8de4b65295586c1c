"""The archive: what is kept of it, for how long, and what is said of what is not."""

from dataclasses import replace
from random import Random

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.archive import CONFIRMED, Archive, confirm, read_confirmed
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values import limits
from syncline.values.ids import StreamId

FOLDER = "/data"
SEGMENT_BYTES = limits.segment_bytes_min
OPTIONS = StoreOptions(segment_bytes=SEGMENT_BYTES, archive_bytes_max=4 * SEGMENT_BYTES)
QUEUE = StreamId(b"q" * 24)
OTHER = StreamId(b"o" * 24)
DAY_MS = 24 * 60 * 60 * 1_000


def opened(files: SimulatedFiles, options: StoreOptions = OPTIONS, seed: int = 0) -> LogStore:
    return LogStore.open(FOLDER, files, options, now_ms=1, random_bytes=Random(seed).randbytes)


def write(store: LogStore, segment_count: int, now_ms: int = 1) -> None:
    """Fill so many segments with what nobody wants any more."""
    for _ in range(segment_count * 8):
        seq = store.append(QUEUE, bytes(8_000), now_ms)
        store.truncate_before(QUEUE, seq)
        commit(store)
        run_jobs(store)


def archived(files: SimulatedFiles) -> list[int]:
    names = files.list(f"{FOLDER}/archive")
    return sorted(int(name[:12]) for name in names if name.endswith(".wal"))


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def store(files: SimulatedFiles) -> LogStore:
    store = opened(files)
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    commit(store)
    return store


def test_sealed_segments_are_kept_whole(files: SimulatedFiles, store: LogStore) -> None:
    first = files.read_all(f"{FOLDER}/wal/000000000001.wal")
    write(store, 1)
    first = files.read_all(f"{FOLDER}/wal/000000000001.wal")
    write(store, 3)
    assert archived(files)[0] == 1
    assert files.read_all(f"{FOLDER}/archive/000000000001.wal")[: len(first)] == first
    assert store.describe()["archived_segments"] == len(archived(files))


def test_without_an_archive_they_are_used_again(files: SimulatedFiles) -> None:
    store = opened(files, replace(OPTIONS, archive_bytes_max=0))
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    write(store, 6)
    assert not files.exists(f"{FOLDER}/archive")


def test_more_than_the_bound_goes_oldest_first(files: SimulatedFiles, store: LogStore) -> None:
    write(store, 14)
    kept = archived(files)
    assert len(kept) <= 4
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert store.describe()["archive_dropped_segments"] == kept[0] - 1


def test_what_is_confirmed_goes_and_its_file_is_used_again(
    files: SimulatedFiles, store: LogStore
) -> None:
    write(store, 5)
    kept = archived(files)
    confirm(files, f"{FOLDER}/archive", kept[1])
    run_jobs(store)
    assert archived(files)[0] == kept[2]
    assert store.describe()["archive_dropped_segments"] == 0


def test_what_is_too_old_goes(files: SimulatedFiles) -> None:
    store = opened(files, replace(OPTIONS, archive_age_ms_max=DAY_MS))
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    write(store, 4)
    assert archived(files)[0] == 1
    store.append(QUEUE, b"", 1 + DAY_MS)
    commit(store)
    run_jobs(store)
    assert archived(files) == []
    assert store.describe()["archive_dropped_segments"] > 0


def test_a_clock_that_is_not_believed_yet_costs_no_history(files: SimulatedFiles) -> None:
    store = opened(files, replace(OPTIONS, archive_age_ms_max=DAY_MS))
    store.history_clock_ms = lambda: 1
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    write(store, 4)
    store.append(QUEUE, b"", 1 + 366 * DAY_MS)
    commit(store)
    run_jobs(store)
    assert archived(files)[0] == 1


def test_a_full_disk_takes_from_the_archive_before_it_refuses_messages() -> None:
    files = SimulatedFiles(capacity_bytes=12 * SEGMENT_BYTES)
    store = opened(files, replace(OPTIONS, archive_bytes_max=100 * SEGMENT_BYTES))
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    full_count = 0
    for _ in range(240):
        seq = store.append(QUEUE, bytes(8_000), 1)
        store.truncate_before(QUEUE, seq)
        commit(store)
        try:
            run_jobs(store)
        except StoreFullError:
            # Upkeep is tried again, as a router does.
            full_count += 1
    assert full_count > 0
    assert store.describe()["archive_dropped_segments"] > 0


def test_one_that_was_not_moved_before_a_crash_is_moved_at_the_next_start(
    files: SimulatedFiles, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(_self: Archive, _paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Archive, "move", power_cut)
    with pytest.raises(KeyboardInterrupt):
        write(store, 5)
    monkeypatch.undo()
    files = files.kill(Random(1))
    assert archived(files) == []
    reopened = opened(files, seed=1)
    assert archived(files)[0] == 1
    assert reopened.damage() == []


def test_a_confirmation_is_read_back_and_rubbish_confirms_nothing(files: SimulatedFiles) -> None:
    files.make_folder(FOLDER)
    files.sync_folder("/")
    Archive(files, FOLDER, SEGMENT_BYTES, 0, 0)
    folder = f"{FOLDER}/archive"
    assert read_confirmed(files, folder) == 0
    files.open(f"{folder}/{CONFIRMED}", create=True).write(0, [b"abc"])
    assert read_confirmed(files, folder) == 0
    confirm(files, folder, 17)
    assert read_confirmed(files.crash(Random(1)), folder) == 17


def test_what_lies_in_the_folder_besides_is_left_alone(files: SimulatedFiles) -> None:
    files.make_folder(FOLDER)
    Archive(files, FOLDER, SEGMENT_BYTES, 0, 0)
    files.open(f"{FOLDER}/archive/notes.txt", create=True)
    files.open(f"{FOLDER}/archive/x.wal", create=True)
    assert Archive(files, FOLDER, SEGMENT_BYTES, 0, 0).let_go(1) == []


def test_segments_stay_in_order_whatever_a_power_cut_left_of_their_moves(
    files: SimulatedFiles,
) -> None:
    options = replace(OPTIONS, archive_bytes_max=100 * SEGMENT_BYTES)
    store = opened(files, options)
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    write(store, 9)
    store.close()
    kept = archived(files)
    folder, wal = f"{FOLDER}/archive", f"{FOLDER}/wal"
    for number in kept[1::2]:
        files.rename(f"{folder}/{number:012d}.wal", f"{wal}/{number:012d}.wal")

    store = opened(files, options, seed=1)
    assert archived(files) == kept
    confirm(files, folder, kept[1])
    run_jobs(store)
    assert archived(files) == kept[2:]
    confirm(files, folder, kept[-1])
    run_jobs(store)
    assert archived(files) == []
    assert store.describe()["archived_segments"] == 0


@pytest.mark.parametrize("age_ms_max", [0, DAY_MS])
def test_segments_that_somebody_removed_are_not_missed(
    files: SimulatedFiles, age_ms_max: int
) -> None:
    store = opened(files, replace(OPTIONS, archive_age_ms_max=age_ms_max))
    store.create(QUEUE, StreamKind.QUEUE, 0, 1)
    write(store, 5)
    kept = archived(files)
    for number in kept[:2]:
        files.remove(f"{FOLDER}/archive/{number:012d}.wal")
    run_jobs(store)
    write(store, 10)
    assert kept[2] not in archived(files)


def test_a_full_disk_takes_the_oldest_segment_that_is_there(files: SimulatedFiles) -> None:
    files.make_folder(FOLDER)
    Archive(files, FOLDER, SEGMENT_BYTES, 0, 0)
    paths = [f"{FOLDER}/archive/{number:012d}.wal" for number in (1, 2, 3)]
    for path in paths:
        files.open(path, create=True).close()
    archive = Archive(files, FOLDER, SEGMENT_BYTES, 9 * SEGMENT_BYTES, 0)
    files.remove(paths[0])
    assert archive.paths() == paths[1:]
    assert archive.give_up_oldest() == paths[1]
    assert archive.paths() == paths[2:]


@pytest.fixture
def no_room_for_names(monkeypatch: pytest.MonkeyPatch, files: SimulatedFiles) -> list[str]:
    """Renaming into one of these folders finds the disk full."""
    folders: list[str] = []
    rename = files.rename

    def rename_if_there_is_room(source: str, target: str) -> None:
        if target.rpartition("/")[0] in folders:
            raise StoreFullError(source)
        rename(source, target)

    monkeypatch.setattr(files, "rename", rename_if_there_is_room)
    return folders


def test_what_is_sealed_stays_so_if_the_archive_has_no_room_for_its_name(
    files: SimulatedFiles, store: LogStore, no_room_for_names: list[str]
) -> None:
    store.create(OTHER, StreamKind.QUEUE, 0, 1)
    bodies = [b"%d" % number * 5_000 for number in range(40)]
    for number, body in enumerate(bodies):
        if number == 15:
            no_room_for_names.append(f"{FOLDER}/archive")
        store.append(OTHER, body, 1)
        write(store, 1)
    assert store.describe()["archive_dropped_segments"] > 0
    assert max(archived(files)) < 20
    no_room_for_names.clear()
    for reader in (store, opened(files.kill(Random(0)))):
        found = [reader.read(OTHER, seq, 1, 1 << 20)[0].payload for seq in range(1, 41)]
        assert found == bodies
        assert reader.damage() == []
    write(store, 4)
    assert max(archived(files)) > 40


def test_a_store_opens_though_the_archive_has_no_room_for_more_names(
    files: SimulatedFiles, store: LogStore, no_room_for_names: list[str]
) -> None:
    write(store, 3)
    kept = archived(files)
    store.close()
    files.rename(f"{FOLDER}/archive/{kept[-1]:012d}.wal", f"{FOLDER}/wal/{kept[-1]:012d}.wal")
    no_room_for_names.append(f"{FOLDER}/archive")
    store = opened(files)
    assert archived(files) == kept[:-1]
    assert store.describe()["archive_dropped_segments"] == 1
    write(store, 3)
    assert store.damage() == []


def test_history_goes_though_there_is_no_room_for_a_name_in_its_place(
    files: SimulatedFiles, store: LogStore, no_room_for_names: list[str]
) -> None:
    write(store, 5)
    kept = archived(files)
    confirm(files, f"{FOLDER}/archive", kept[-1])
    no_room_for_names.append(f"{FOLDER}/wal")
    run_jobs(store)
    assert archived(files) == []
