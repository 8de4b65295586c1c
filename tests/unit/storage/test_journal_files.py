"""What the journal does to the files of a queue: making, rotating, switching, freeing."""

import dataclasses
from contextlib import suppress

import pytest

from syncline.errors import DeviceError, QuotaExceededError
from syncline.storage.base import Snapshot, StreamKind, commit
from syncline.storage.journal.layout import backup_time_ms
from syncline.storage.journal.planning import EMPTIED_FILE_BYTES_MAX
from syncline.storage.journal.state import BACKUP_COUNT_MAX
from syncline.storage.journal.upkeep import SweepJob
from syncline.storage.options import DAY_MS
from syncline.testing.files import SimulatedCrashError
from tests.unit.storage.journal_subject import FOLDER, SMALL, JournalSubject, stream_id


def test_a_created_queue_is_a_folder_with_one_file_at_the_path_of_its_id() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    text = str(queue)
    assert subject.folder(queue) == f"{FOLDER}/messages/{text[:2]}/{text[2:4]}/{text[4:]}"
    assert subject.names(queue) == ["queue.log"]


def test_creating_a_queue_is_one_step_that_a_power_cut_shows_whole_or_not_at_all() -> None:
    subject = JournalSubject()
    subject.create_queue(1)
    seen = set[bool]()
    for call in range(1, 60):
        for seed in range(3):
            trial = JournalSubject(subject.killed_files(), seed=seed)
            trial.files.crash_after(call)
            with suppress(SimulatedCrashError):
                trial.create_queue(2)
            trial.power_cut()
            streams = set(trial.store.streams())
            seen.add(stream_id(2) in streams)
            assert streams <= {stream_id(1), stream_id(2)}
            assert trial.store.damage() == ()
            for stream in streams:
                assert trial.store.state(stream).next == 1
    assert seen == {False, True}


def test_the_first_message_makes_the_message_file() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, b"one")
    assert len(subject.names(queue, "messages.")) == 1
    line = subject.state_line(queue)
    assert line["read_file"] == line["write_file"]
    assert (line["read_msg"], line["read_byte"], line["write_msg"]) == ("0", "0", "1")
    data = subject.files.read_all(subject.message_path(queue, "write_file"))
    assert int(line["write_byte"]) == len(data)
    assert data.startswith(b"seq=1 ")


def test_a_full_file_is_followed_by_one_more_and_never_by_a_third() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    for number in range(1, 21):
        subject.append(queue, b"%d" % number)
        assert len(subject.names(queue, "messages.")) == (1 if number <= 4 else 2)
    assert subject.payloads(queue) == [b"%d" % number for number in range(1, 21)]
    line = subject.state_line(queue)
    assert line["write_msg"] == "16", "the write file grows while the read file is in use"


def test_the_read_file_is_left_for_the_write_file_and_removed_once_it_is_used_up() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    subject.append(queue, *(b"%d" % number for number in range(1, 7)))
    read_file = subject.message_path(queue, "read_file")
    write_file = subject.message_path(queue, "write_file")
    subject.acknowledge(queue, 3)
    assert subject.message_path(queue, "read_file") == read_file
    assert subject.state_line(queue)["read_msg"] == "3"
    subject.acknowledge(queue)
    assert subject.message_path(queue, "read_file") == write_file
    assert not subject.files.exists(read_file)
    assert subject.state_line(queue)["read_msg"] == "0"
    assert subject.payloads(queue) == [b"5", b"6"]


def test_a_reader_that_catches_up_does_not_lose_the_file_that_is_written() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, b"one")
    file = subject.message_path(queue, "write_file")
    subject.acknowledge(queue)
    assert subject.files.exists(file)
    subject.append(queue, b"two")
    assert subject.message_path(queue, "write_file") == file
    assert subject.payloads(queue) == [b"two"]


def test_the_quota_counts_unread_messages_and_not_those_ever_received() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=3)
    for number in range(20):
        subject.append(queue, b"%d" % number)
        subject.acknowledge(queue)
    subject.append(queue, b"a", b"b", b"c")
    with pytest.raises(QuotaExceededError):
        subject.append(queue, b"d")


def test_an_emptied_queue_lets_go_of_a_message_file_that_has_grown() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, b"x" * EMPTIED_FILE_BYTES_MAX)
    file = subject.message_path(queue, "write_file")
    subject.acknowledge(queue)
    assert not subject.files.exists(file)
    assert subject.names(queue, "messages.") == []
    subject.append(queue, b"next")
    assert subject.message_path(queue, "write_file") != file
    subject.reopen()
    assert subject.payloads(queue) == [b"next"]
    assert subject.store.state(queue).first == 2


def test_state_lines_are_added_up_to_a_bound_and_then_replaced_by_one_state() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    line_counts: list[int] = []
    for number in range(30):
        subject.append(queue, b"%d" % number)
        data = subject.files.read_all(f"{subject.folder(queue)}/queue.log")
        line_counts.append(data.count(b"\n"))
    assert max(line_counts) == SMALL.state_line_count_max
    assert min(line_counts[8:]) < SMALL.state_line_count_max
    subject.reopen()
    assert len(subject.payloads(queue)) == 30


def test_replaced_state_lines_stay_in_a_backup_with_the_time_in_its_name() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    before = b""
    while not (backups := [name for name in subject.names(queue) if backup_time_ms(name)]):
        before = subject.files.read_all(f"{subject.folder(queue)}/queue.log")
        subject.now_ms += 1_000
        subject.append(queue, b"x")
    [backup] = backups
    assert backup_time_ms(backup) == subject.now_ms
    assert subject.files.read_all(f"{subject.folder(queue)}/{backup}") == before


def test_two_replacements_at_one_time_leave_two_backups() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    for _ in range(12):
        subject.append(queue, b"x")
    assert len([name for name in subject.names(queue) if backup_time_ms(name)]) == 2


def test_a_busy_queue_keeps_a_bounded_number_of_backups() -> None:
    subject = JournalSubject(options=dataclasses.replace(SMALL, state_line_count_max=1))
    queue = subject.create_queue(quota=0)
    for _ in range(BACKUP_COUNT_MAX + 9):
        subject.append(queue, b"x")
        backups = [name for name in subject.names(queue) if backup_time_ms(name)]
        assert len(backups) <= BACKUP_COUNT_MAX
    assert len(backups) == BACKUP_COUNT_MAX


def test_old_backups_of_an_idle_queue_go_with_the_daily_sweep() -> None:
    subject = JournalSubject(options=dataclasses.replace(SMALL, state_line_count_max=1))
    queue = subject.create_queue(quota=0)
    subject.append(queue, *[b"x"] * 5)

    def backup_count() -> int:
        return len([name for name in subject.names(queue) if backup_time_ms(name)])

    made = backup_count()
    assert made > subject.options.state_backup_count_min
    subject.run_jobs()
    assert backup_count() == made, "they are young"
    other = subject.create_queue(2, quota=0)
    subject.now_ms += subject.options.state_backup_age_ms_max + DAY_MS
    subject.append(other, b"the time goes on")
    assert subject.run_jobs() > 0
    assert backup_count() == subject.options.state_backup_count_min
    assert subject.run_jobs() == 0, "once a day"


def test_a_snapshot_is_replaced_by_another_file_and_the_old_one_goes() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, b"1", b"2")
    subject.store.put_snapshot(document, 1, b"one", 1)
    subject.commit()
    [first] = subject.names(document, "snapshot.")
    subject.store.put_snapshot(document, 2, b"two", 2)
    subject.commit()
    [second] = subject.names(document, "snapshot.")
    assert first != second
    assert subject.store.snapshot(document) == Snapshot(2, 2, b"two")


def test_no_handle_is_kept_on_a_file_that_is_gone() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    for number in range(1, 12):
        subject.append(document, b"x")
        subject.store.put_snapshot(document, number, b"state", 1)
        subject.store.drop_cursor(document, b"reader")
        subject.commit()
        subject.store.move_cursor(document, b"reader", number)
        subject.store.truncate_before(document, number)
        subject.commit()
        assert subject.store.snapshot(document) is not None
        held = list(subject.store._pool._handles)
        assert held
        assert [path for path in held if not subject.files.exists(path)] == []


def test_a_snapshot_that_was_visible_can_be_read_until_its_successor_is() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, b"1", b"2")
    subject.store.put_snapshot(document, 1, b"one", 1)
    subject.commit()
    subject.store.put_snapshot(document, 2, b"two", 2)
    batch = subject.store.take_batch()
    assert batch is not None
    subject.store.write_batch(batch)
    assert subject.store.snapshot(document) == Snapshot(1, 1, b"one")
    subject.store.finish_batch(batch)
    assert subject.store.snapshot(document) == Snapshot(2, 2, b"two")


def test_the_cursor_file_is_written_anew_when_it_is_mostly_history() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, *[b"x"] * 3)
    sizes: list[int] = []
    for number in range(400):
        name = b"reader %d" % (number % 3)
        subject.store.drop_cursor(document, name)
        subject.store.move_cursor(document, name, number % 4)
        subject.commit()
        sizes.append(len(subject.files.read_all(subject.path(document, "cursors."))))
    assert max(sizes) < 5_000
    subject.reopen()
    assert dict(subject.store.cursors(document)) == {
        b"reader 0": 399 % 4,
        b"reader 1": 397 % 4,
        b"reader 2": 398 % 4,
    }


def test_the_last_cursor_takes_its_file_with_it() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.store.move_cursor(document, b"reader", 1)
    subject.commit()
    assert len(subject.names(document, "cursors.")) == 1
    subject.store.drop_cursor(document, b"reader")
    subject.commit()
    assert subject.names(document, "cursors.") == []
    subject.reopen()
    assert dict(subject.store.cursors(document)) == {}


def test_deleting_a_queue_frees_its_bytes_and_its_folders() -> None:
    subject = JournalSubject()
    kept = subject.create_queue(1, quota=0)
    subject.append(kept, b"kept")
    before = subject.store.stats()
    paths = subject.files.paths(f"{FOLDER}/messages")
    queue = subject.create_queue(2, quota=0)
    subject.append(queue, *[b"x" * 1_000] * 20)
    subject.store.put_snapshot(queue, 3, b"state", 1)
    subject.store.move_cursor(queue, b"reader", 1)
    subject.commit()
    assert subject.store.stats().disk_bytes > before.disk_bytes + 20_000

    subject.store.delete(queue)
    subject.commit()
    after = subject.store.stats()
    assert (after.disk_bytes, after.file_count, after.stream_count) == (
        before.disk_bytes,
        before.file_count,
        before.stream_count,
    )
    assert subject.files.paths(f"{FOLDER}/messages") == paths
    assert len(subject.files.list(f"{FOLDER}/messages")) == 1, "the empty levels went too"


def test_the_counters_are_those_of_the_files() -> None:
    subject = JournalSubject()
    for number in range(6):
        queue = subject.create_queue(number, quota=0)
        subject.append(queue, *[b"x" * 300] * (3 * number))
        subject.acknowledge(queue, 2 * number)
        subject.store.put_snapshot(queue, number, b"state" * number, 1)
        subject.store.put_snapshot(queue, number, b"again" * number, 1)
        subject.store.move_cursor(queue, b"reader", 1)
        subject.commit()
    subject.store.delete(stream_id(4))
    subject.store.delete(stream_id(5))
    subject.store.create(stream_id(5), StreamKind.QUEUE, 0, 1)
    subject.commit()

    def check() -> None:
        paths = subject.files.paths(f"{FOLDER}/messages")
        stats = subject.store.stats()
        assert stats.file_count == len(paths)
        assert stats.disk_bytes == sum(len(subject.files.read_all(path)) for path in paths)
        assert stats.stream_count == 5

    check()
    subject.reopen()
    check()
    subject.kill()
    subject.run_jobs()
    check()


def killed_with_queues(count: int) -> JournalSubject:
    """They have to be counted anew."""
    subject = JournalSubject()
    for number in range(count):
        subject.store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
    subject.commit()
    subject.kill()
    return subject


def test_counting_after_a_kill_is_right_while_queues_come_and_go() -> None:
    subject = killed_with_queues(100)
    store = subject.store
    store.delete(stream_id(3))
    store.create(stream_id(200), StreamKind.QUEUE, 0, 1)
    job = store.take_job()
    assert job is not None
    for number in range(10, 20):
        store.delete(stream_id(number))
    commit(store)
    result = store.run_job(job)
    for number in range(300, 330):
        store.create(stream_id(number), StreamKind.QUEUE, 0, 1)
    commit(store)
    store.finish_job(job, result)
    subject.run_jobs()
    expected = 100 - 1 + 1 - 10 + 30
    assert len(list(store.streams())) == expected
    assert store.stats().stream_count == expected


def test_a_sweep_that_fails_is_due_again() -> None:
    subject = killed_with_queues(100)
    store = subject.store
    job = store.take_job()
    assert job is not None
    assert store.take_job() is None, "one at a time"
    subject.files.fail("sync")
    with pytest.raises(DeviceError):
        store.run_job(job)
    store.create(stream_id(200), StreamKind.QUEUE, 0, 1)
    commit(store)
    again = store.take_job()
    assert isinstance(job, SweepJob)
    assert isinstance(again, SweepJob)
    assert again.names == job.names
    store.finish_job(again, store.run_job(again))
    subject.run_jobs()
    assert store.stats().stream_count == 101


def test_a_queue_created_anew_in_one_batch_replaces_the_old_one_in_one_step() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)
    subject.append(queue, *[b"old"] * 10)
    subject.store.put_snapshot(queue, 3, b"old", 1)
    subject.commit()
    seen = set[bytes]()
    for call in range(1, 40):
        for seed in range(4):
            trial = JournalSubject(subject.killed_files(), seed=10 + seed)
            assert trial.payloads(queue) == [b"old"] * 10
            trial.store.delete(queue)
            trial.store.create(queue, StreamKind.QUEUE, 5, 1)
            trial.store.append(queue, b"new", 1)
            trial.files.crash_after(call)
            with suppress(SimulatedCrashError):
                trial.commit()
            trial.power_cut()
            found = trial.payloads(queue)
            assert found in ([b"old"] * 10, [b"new"])
            assert trial.store.state(queue).next == (11 if found[0] == b"old" else 2)
            assert trial.store.damage() == ()
            seen.add(found[0])
    assert seen == {b"old", b"new"}
