"""The journal store as a whole: bounds, full disks, failing devices, starts and moves."""

import dataclasses
from base64 import urlsafe_b64decode
from contextlib import suppress
from random import Random

import pytest

from syncline.errors import (
    ConfigError,
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StoreFullError,
    StoreLockedError,
    UnknownQueueError,
)
from syncline.storage.base import Entry, EntryKind, StreamKind, commit
from syncline.storage.journal.layout import Layout
from syncline.storage.journal.store import JournalStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from tests.unit.storage.journal_subject import FOLDER, SMALL, JournalSubject, stream_id

# Names of files.


@pytest.mark.parametrize("payloads", [(), (b"new",)])
def test_a_queue_that_replaces_another_never_begins_with_its_file(
    payloads: tuple[bytes, ...],
) -> None:
    """Even if chance repeats itself."""
    subject = JournalSubject()
    stream = subject.create_queue()
    subject.append(stream, b"old", b"older")
    [old_name] = subject.names(stream, "messages.")
    subject.closed()

    drawn = urlsafe_b64decode(old_name.split(".")[1])
    ids = iter([b"tag of the s", drawn, drawn, b"another one."])
    store = JournalStore.open(
        FOLDER, subject.files, SMALL, now_ms=1, random_bytes=lambda count: next(ids)
    )
    store.delete(stream)
    store.create(stream, StreamKind.QUEUE, 3, 1)
    for payload in payloads:
        store.append(stream, payload, 1)
    commit(store)
    store.close()
    subject.open_again()
    assert subject.payloads(stream) == [*payloads]
    assert old_name not in subject.names(stream)


# Starts.


def test_a_start_reads_no_queue_however_many_there_are() -> None:
    opened: list[dict[str, int]] = []
    for count in (2, 200):
        for ends_in_order in (True, False):
            subject = JournalSubject()
            for number in range(count):
                subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
                subject.store.append(stream_id(number), b"x", 1)
            subject.commit()
            if ends_in_order:
                subject.closed()
            files = subject.files = subject.killed_files()
            subject.open_again()
            opened.append(dict(files.calls))
    assert opened[0] == opened[2], "after an end in order"
    assert opened[1] == opened[3], "after a kill"


def test_a_folder_is_used_by_one_store_at_a_time() -> None:
    subject = JournalSubject()
    with pytest.raises(StoreLockedError):
        subject.open()
    subject.closed()
    subject.open_again()


def test_a_folder_of_another_kind_or_a_later_version_is_refused_and_not_locked() -> None:
    subject = JournalSubject()
    subject.closed()
    line = subject.files.read_all(f"{FOLDER}/FORMAT")
    assert line.startswith(b"syncline journal 1 ")
    for changed, error in (
        (line.replace(b"journal", b"log"), ForeignFolderError),
        (line.replace(b" 1 ", b" 2 "), NewerFormatError),
    ):
        subject.replace_file(f"{FOLDER}/FORMAT", changed)
        with pytest.raises(error):
            subject.open()
    subject.replace_file(f"{FOLDER}/FORMAT", line)
    subject.open_again()


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_an_unreadable_layout_is_told_and_the_lock_is_given_back(damage: str) -> None:
    subject = JournalSubject()
    subject.create_queue()
    subject.closed()
    line = subject.files.read_all(f"{FOLDER}/LAYOUT")
    if damage == "changed":
        subject.replace_file(f"{FOLDER}/LAYOUT", b"fragments=two\n")
    else:
        subject.remove_file(f"{FOLDER}/LAYOUT")
    with pytest.raises(CorruptionError, match="LAYOUT"):
        subject.open()
    subject.replace_file(f"{FOLDER}/LAYOUT", line)
    subject.open_again()
    assert list(subject.store.streams()) == [stream_id(1)]


def test_strange_files_in_the_tree_are_left_alone_and_disturb_nobody() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, b"x")
    root = f"{FOLDER}/messages"
    for path in ("/notes.txt", "/ab", f"/{str(queue)[:2]}/cd"):
        subject.replace_file(root + path, b"hello")
    subject.files.make_folder(f"{root}/zz")
    subject.files.make_folder(f"{root}/zz/not two characters")
    subject.kill()
    assert list(subject.store.streams()) == [queue]
    subject.run_jobs()
    assert subject.store.expire_before(0, 10) == 0
    assert subject.store.stats().stream_count == 1
    assert subject.files.exists(f"{root}/notes.txt")


def test_what_a_dead_process_left_half_made_is_swept_away() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    parent = subject.folder(queue).rpartition("/")[0]
    for name in (".new.XXXXXXXXXXXXXXXX.1", ".gone.XXXXXXXXXXXXXXXX.2"):
        subject.files.make_folder(f"{parent}/{name}")
        subject.replace_file(f"{parent}/{name}/queue.log", b"half")
    subject.kill()
    assert list(subject.store.streams()) == [queue]
    subject.run_jobs()
    assert subject.files.list(parent) == [subject.folder(queue).rpartition("/")[2]]


def test_a_branch_that_was_never_synced_is_on_the_device_once_it_was_swept() -> None:
    """The process died between making a folder and syncing the one that it is in."""
    queue = stream_id(1)
    for call_count in range(1, 100):
        subject = JournalSubject()
        subject.files.crash_after(call_count)
        with suppress(SimulatedCrashError):
            subject.create_queue()
            break
        subject.kill()
        subject.run_jobs()
        if queue not in subject.store.streams():
            subject.create_queue()
        subject.append(queue, b"x")
        subject.power_cut()
        assert subject.payloads(queue) == [b"x"], f"killed at call {call_count}"
    else:
        pytest.fail("a queue is created within fewer calls")


def test_what_a_failed_sync_left_in_memory_alone_is_not_there_once_it_was_swept() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, b"kept")
    subject.files.fail("sync")
    with pytest.raises(DeviceError):
        subject.append(queue, b"refused")
    subject.kill()
    subject.run_jobs()
    assert subject.payloads(queue) == [b"kept"]
    subject.append(queue, b"kept too")
    subject.power_cut()
    assert subject.payloads(queue) == [b"kept", b"kept too"]
    assert subject.store.damage() == ()


# Bounds.


def test_open_files_are_bounded_whatever_a_batch_touches() -> None:
    subject = JournalSubject()
    seen = 0

    def look(_call: str) -> None:
        nonlocal seen
        seen = max(seen, subject.files.open_file_count)

    subject.files.before_call = look
    for number in range(40):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
    commit(subject.store)
    for _ in range(3):
        for number in range(40):
            subject.store.append(stream_id(number), b"x", 1)
        commit(subject.store)
    for number in range(40):
        assert subject.payloads(stream_id(number)) == [b"x"] * 3
    # One more than the pool's own: a file that is made is open beside it.
    assert seen <= SMALL.open_file_count_max + 1
    subject.closed()
    assert subject.files.open_file_count == 0


def test_open_queues_are_bounded_and_those_with_something_staged_stay() -> None:
    subject = JournalSubject(options=dataclasses.replace(SMALL, open_queue_count_max=4))
    for number in range(30):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
        subject.store.append(stream_id(number), b"%d" % number, 1)
    commit(subject.store)
    subject.store.append(stream_id(0), b"staged", 1)
    for number in range(30):
        assert subject.store.state(stream_id(number)).next == (3 if number == 0 else 2)
        subject.store.expire_before(0, 1)
        assert len(subject.store._queues._open) <= 5
    commit(subject.store)
    assert subject.payloads(stream_id(0)) == [b"0", b"staged"]


def test_looking_at_one_queue_after_the_other_keeps_few_open() -> None:
    subject = JournalSubject(options=dataclasses.replace(SMALL, open_queue_count_max=4))
    for number in range(30):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
        subject.store.append(stream_id(number), b"%d" % number, 1)
    subject.commit()
    subject.reopen()
    for number in range(30):
        assert subject.payloads(stream_id(number)) == [b"%d" % number]
        assert len(subject.store._queues._open) <= 5


def test_a_walk_for_expiry_is_cut_into_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncline.storage.journal.patrol._STRETCH_QUEUE_COUNT_MAX", 3)
    subject = JournalSubject()
    for number in range(10):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
        subject.store.append(stream_id(number), b"x", 1)
    commit(subject.store)
    counts = [subject.store.expire_before(100, 1_000) for _ in range(5)]
    assert sum(counts) == 10
    assert max(counts) <= 3


@pytest.mark.parametrize("work", ["expiry", "scrubbing"])
def test_a_stretch_syncs_few_queues_after_a_kill(work: str) -> None:
    """The owner waits for it."""
    subject = JournalSubject()
    for number in range(100):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
        subject.store.append(stream_id(number), b"x", 1)
    subject.commit()
    subject.kill()
    sync_counts: list[int] = []
    expired_count = 0
    for _ in range(20):
        before = subject.files.calls["sync"]
        if work == "expiry":
            expired_count += subject.store.expire_before(100, 1_000)
        else:
            subject.store.scrub(1 << 20)
        sync_counts.append(subject.files.calls["sync"] - before)
    assert max(sync_counts) <= 2 * 16
    assert sum(sync_counts) == 2 * 100
    assert expired_count == (100 if work == "expiry" else 0)


def test_scrubbing_goes_round_in_stretches_and_finds_what_has_rotted() -> None:
    subject = JournalSubject()
    for number in range(5):
        queue = subject.create_queue(number, quota=0)
        subject.append(queue, *[b"x" * 500] * 6)
    path = subject.message_path(stream_id(3), "read_file")
    subject.files.flip_bit(path, 100)
    for _ in range(2):
        stretches = 0
        total = 0
        while count := subject.store.scrub(1_000):
            stretches += 1
            total += count
        assert total > 5 * 6 * 500
        assert stretches > 5
    assert subject.lost() == [(stream_id(3), 1, 1)]


# A full disk.


def test_appends_are_refused_while_the_disk_is_full_and_acknowledgements_are_not() -> None:
    subject = JournalSubject(SimulatedFiles(capacity_bytes=200_000))
    queue = subject.create_queue(quota=0)
    with pytest.raises(StoreFullError):
        subject.append(queue, *[b"x" * 1_000] * 1_000)
    count = len(subject.payloads(queue))
    assert count > 20
    assert subject.store.state(queue).next == count + 1, "nothing was staged"
    subject.acknowledge(queue, count)
    subject.append(queue, b"room again")
    assert subject.payloads(queue) == [b"room again"]


def fill_up_at(subject: JournalSubject, call: str, nth: int) -> bool:
    """Commit with the nth call of a kind failing for want of room; was it refused?"""
    subject.files.fail(call, nth)
    try:
        commit(subject.store)
    except StoreFullError:
        return True
    finally:
        subject.files.fail(call, 1 << 40)
    return False


def visible(subject: JournalSubject) -> dict[str, object]:
    return {
        str(stream): (
            subject.store.state(stream),
            subject.payloads(stream),
            subject.store.snapshot(stream),
            dict(subject.store.cursors(stream)),
        )
        for stream in sorted(subject.store.streams())
    }


def stage_everything(subject: JournalSubject) -> None:
    """A batch that adds, begins files, replaces queue.log, creates, replaces and deletes."""
    store = subject.store
    store.append(stream_id(1), b"more" * 100, 2)
    store.append(stream_id(2), b"into a new file", 2)
    store.put_snapshot(stream_id(2), 4, b"state", 2)
    store.move_cursor(stream_id(2), b"reader", 3)
    store.create(stream_id(10), StreamKind.QUEUE, 0, 2)
    store.append(stream_id(10), b"first", 2)
    store.delete(stream_id(3))
    store.delete(stream_id(4))
    store.create(stream_id(4), StreamKind.DOCUMENT, 0, 2)
    store.append(stream_id(4), b"anew", 2)


def prepared() -> JournalSubject:
    subject = JournalSubject(options=dataclasses.replace(SMALL, state_line_count_max=5))
    for number, count in ((1, 1), (2, 4), (3, 2), (4, 2)):
        subject.append(subject.create_queue(number, quota=0), *[b"x" * number] * count)
    return subject


@pytest.mark.parametrize("call", ["write", "create", "make_folder"])
def test_a_batch_that_meets_a_full_disk_is_taken_back_as_a_whole(call: str) -> None:
    refused_count = 0
    for nth in range(1, 40):
        subject = prepared()
        before = visible(subject)
        paths = {path: subject.files.read_all(path) for path in subject.files.paths(FOLDER)}
        stage_everything(subject)
        if not fill_up_at(subject, call, nth):
            break
        refused_count += 1
        assert visible(subject) == before
        assert {
            path: subject.files.read_all(path) for path in subject.files.paths(FOLDER)
        } == paths, "not a byte is left of it"
        assert subject.store.waiting_bytes == 0
        assert subject.store.stats().stream_count == 4
        commit(subject.store)
        stage_everything(subject)
        commit(subject.store)
        after = visible(subject)
        subject.power_cut()
        assert visible(subject) == after
        assert subject.store.damage() == ()
    assert refused_count >= (1 if call == "make_folder" else 5)


def test_after_a_refused_batch_a_power_cut_shows_nothing_of_it() -> None:
    for nth in range(1, 11):
        for seed in range(3):
            subject = prepared()
            before = visible(subject)
            stage_everything(subject)
            assert fill_up_at(subject, "write", nth)
            subject.files = subject.files.crash(Random(seed))
            subject.open_again()
            assert visible(subject) == before


def test_what_builds_on_a_refused_batch_is_refused_with_it() -> None:
    subject = prepared()
    store = subject.store
    store.append(stream_id(1), b"refused", 2)
    batch = store.take_batch()
    assert batch is not None
    assert store.append(stream_id(1), b"builds on it", 2) == 3
    subject.files.fail("write", 1)
    with pytest.raises(StoreFullError):
        store.write_batch(batch)
    store.finish_batch(batch)
    assert store.state(stream_id(1)).next == 2
    assert store.append(stream_id(2), b"staged before anybody was told", 2) == 5
    doomed = store.take_batch()
    assert doomed is not None
    with pytest.raises(StoreFullError):
        store.write_batch(doomed)
    store.finish_batch(doomed)
    assert subject.payloads(stream_id(1)) == [b"x"]
    assert store.append(stream_id(1), b"second", 2) == 2
    assert store.append(stream_id(2), b"fifth", 2) == 5
    commit(store)
    assert subject.payloads(stream_id(1)) == [b"x", b"second"]


def test_acknowledgements_in_a_refused_batch_are_not_forgotten() -> None:
    subject = prepared()
    store = subject.store
    store.truncate_before(stream_id(2), 3)
    store.append(stream_id(2), b"refused", 2)
    assert fill_up_at(subject, "write", 1)
    assert store.state(stream_id(2)).first == 3
    assert subject.payloads(stream_id(2)) == [b"xx", b"xx"]
    commit(store)
    subject.power_cut()
    assert subject.store.state(stream_id(2)).first == 3


def test_closing_on_a_full_disk_says_so_and_lets_go_of_the_folder() -> None:
    subject = prepared()
    subject.store.append(stream_id(1), b"no room", 2)
    subject.files.fail("write", 1)
    with pytest.raises(StoreFullError):
        subject.store.close()
    assert subject.files.open_file_count == 0
    subject.open_again()
    assert subject.payloads(stream_id(1)) == [b"x"]


# A failing device.


@pytest.mark.parametrize("call", ["sync", "sync_folder", "rename", "remove"])
def test_a_failing_device_is_fatal_and_nothing_acknowledged_is_lost(call: str) -> None:
    failure_count = 0
    for nth in range(1, 40):
        subject = prepared()
        before = {stream: subject.payloads(stream) for stream in subject.store.streams()}
        stage_everything(subject)
        subject.files.fail(call, nth)
        try:
            commit(subject.store)
        except DeviceError:
            failure_count += 1
        else:
            break
        batch = subject.store._taken
        assert batch is not None
        with pytest.raises(DeviceError):
            subject.store.write_batch(batch)
        subject.store.close()
        for is_cut in (False, True):
            files = subject.files.crash(Random(nth)) if is_cut else subject.killed_files()
            again = JournalSubject(files, subject.options)
            for stream, known in before.items():
                if stream in again.store.streams():
                    assert again.payloads(stream)[: len(known)] in (known, [b"anew"])
                else:
                    assert stream == stream_id(3), "its deletion was under way"
            assert again.store.damage() == ()
    assert failure_count >= 2


# Moving to another depth.


@pytest.mark.parametrize("counts", [(2, 2, 4, 2), (4, 2, 0, 2), (0, 1, 3, 1), (1, 4, 2, 2)])
def test_queues_move_when_the_path_settings_change(counts: tuple[int, int, int, int]) -> None:
    options = dataclasses.replace(
        SMALL, path_fragment_count=counts[0], path_fragment_characters=counts[1]
    )
    subject = JournalSubject(options=options)
    for number in range(8):
        subject.append(subject.create_queue(number, quota=0), b"%d" % number, b"again")
    before = visible(subject)
    moved = dataclasses.replace(
        SMALL, path_fragment_count=counts[2], path_fragment_characters=counts[3]
    )
    subject.reopen(moved)
    assert visible(subject) == before
    layout = Layout(counts[2], counts[3])
    for number in range(8):
        path = f"{FOLDER}/messages/{layout.path(stream_id(number))}/queue.log"
        assert subject.files.exists(path)
    paths = subject.files.paths(f"{FOLDER}/messages")
    assert len(paths) == 16, "nothing is left behind"
    subject.power_cut()
    assert visible(subject) == before


def test_a_move_cut_short_anywhere_goes_on_at_the_next_start() -> None:
    original = JournalSubject()
    for number in range(4):
        original.append(original.create_queue(number, quota=0), b"%d" % number)
    before = visible(original)
    original.closed()
    moved = dataclasses.replace(SMALL, path_fragment_count=3, path_fragment_characters=1)
    interrupted_count = 0
    for call in range(1, 200):
        files = original.killed_files()
        files.crash_after(call)
        try:
            JournalSubject(files, moved)
        except SimulatedCrashError:
            interrupted_count += 1
        else:
            break
        for options in (moved, SMALL):
            after = files.crash(Random(call))
            assert visible(JournalSubject(after, options)) == before
    assert interrupted_count > 40


def test_impossible_path_settings_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        JournalSubject(options=StoreOptions(path_fragment_count=16, path_fragment_characters=2))


# Restoring.


def test_a_stream_can_begin_anywhere_and_take_entries_as_they_are() -> None:
    subject = JournalSubject()
    queue = stream_id(1)
    subject.store.create_at(queue, StreamKind.QUEUE, 2, 57, 1)
    entries = [Entry(57, 5, b"a"), Entry(59, 6, b"c"), Entry(60, 7, b"", EntryKind.QUOTA_MARKER)]
    for entry in entries:
        subject.store.append_entry(queue, entry)
    subject.commit()
    for _ in range(2):
        state = subject.store.state(queue)
        assert (state.first, state.next, state.is_blocked) == (57, 61, True)
        assert subject.store.read(queue, 0, 10, 1_000) == entries
        subject.reopen()
        subject.store.state(queue)
    assert subject.lost() == [(queue, 58, 1)]
    with pytest.raises(ValueError, match="61"):
        subject.store.append_entry(queue, Entry(60, 1, b"too low"))


# Time.


@pytest.mark.parametrize("time_ms", [-1, 10**18])
def test_a_time_that_no_line_can_hold_is_a_mistake_of_the_caller(time_ms: int) -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    with pytest.raises(ValueError, match="milliseconds"):
        subject.store.append(queue, b"x", time_ms)
    with pytest.raises(ValueError, match="milliseconds"):
        subject.store.create(stream_id(2), StreamKind.QUEUE, 0, time_ms)
    assert subject.store.take_batch() is None
    with pytest.raises(UnknownQueueError):
        subject.store.state(stream_id(2))
