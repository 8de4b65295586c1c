"""Opening a queue whose files were cut, changed or taken away: what is there, and what is told."""

import dataclasses
from random import Random

import pytest

from syncline.errors import CorruptionError, QuotaExceededError
from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind, commit
from syncline.storage.journal import format as lines
from syncline.storage.journal.format import QueueState
from syncline.storage.journal.layout import backup_time_ms
from syncline.testing.files import CHANGING_CALLS
from syncline.values.ids import StreamId
from tests.unit.storage.journal_subject import NOW_MS, SMALL, JournalSubject


def with_messages(count: int, quota: int = 0) -> tuple[JournalSubject, StreamId]:
    """A queue with messages "1", "2", …, four to a file, closed in order."""
    subject = JournalSubject()
    queue = subject.create_queue(quota=quota)
    subject.append(queue, *(b"%d" % number for number in range(1, count + 1)))
    subject.closed()
    return subject, queue


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def contents(subject: JournalSubject, queue: StreamId) -> dict[str, bytes]:
    folder = subject.folder(queue)
    return {name: subject.files.read_all(f"{folder}/{name}") for name in subject.names(queue)}


def goes_on(subject: JournalSubject, queue: StreamId) -> None:
    """It takes new messages and keeps what it has, also through the next opening."""
    before = subject.payloads(queue)
    subject.append(queue, b"new")
    assert subject.payloads(queue) == [*before, b"new"]
    subject.reopen()
    assert subject.payloads(queue) == [*before, b"new"]


# The behaviours that the first implementation of the design was tested for.


def test_the_folder_of_a_queue_holds_two_files_and_three_with_a_second_message_file() -> None:
    subject, queue = with_messages(4)
    kinds = [name.partition(".")[0] for name in subject.names(queue)]
    assert kinds == ["messages", "queue"]
    subject.open_again()
    subject.append(queue, b"5")
    kinds = [name.partition(".")[0] for name in subject.names(queue) if not backup_time_ms(name)]
    assert kinds == ["messages", "messages", "queue"]


def test_the_state_comes_from_the_last_line_and_an_opening_writes_nothing() -> None:
    subject, queue = with_messages(3)
    subject.open_again()
    subject.acknowledge(queue)
    subject.closed()
    before = contents(subject, queue)
    subject.open_again()
    assert subject.payloads(queue) == numbers(2, 3)
    subject.closed()
    assert contents(subject, queue) == before


def test_no_backup_up_to_the_line_limit_and_one_above_it() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=0)

    def backups() -> int:
        return len([name for name in subject.names(queue) if backup_time_ms(name)])

    data = b""
    while data.count(b"\n") < SMALL.state_line_count_max:
        assert backups() == 0
        subject.append(queue, b"x")
        data = subject.files.read_all(f"{subject.folder(queue)}/queue.log")
    assert backups() == 0
    subject.append(queue, b"x")
    assert backups() == 1


def test_the_only_lines_damaged_start_from_the_files_and_keep_a_backup() -> None:
    subject, queue = with_messages(3)
    subject.replace_file(f"{subject.folder(queue)}/queue.log", b"nothing of this is a state\n")
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 3)
    assert [damage.reason for damage in subject.store.damage()] == ["no state line can be read"]
    goes_on(subject, queue)
    [backup] = [name for name in subject.names(queue) if backup_time_ms(name)]
    kept = subject.files.read_all(f"{subject.folder(queue)}/{backup}")
    assert kept == b"nothing of this is a state\n"


def test_the_last_of_several_lines_damaged_falls_back_to_the_one_before_with_a_backup() -> None:
    subject, queue = with_messages(3)
    path = f"{subject.folder(queue)}/queue.log"
    subject.files.flip_bit(path, len(subject.files.read_all(path)) - 20)
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 3), "what the files hold beyond it counts"
    assert subject.store.stats().torn_tail_count == 1
    assert subject.store.damage() == ()
    goes_on(subject, queue)
    assert len([name for name in subject.names(queue) if backup_time_ms(name)]) == 1


def test_a_message_without_its_state_line_is_there_and_the_next_follows_it() -> None:
    subject, queue = with_messages(3)
    path = f"{subject.folder(queue)}/queue.log"
    data = subject.files.read_all(path)
    subject.replace_file(path, data[: data.rindex(b"read_file=")])
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 3)
    assert subject.store.state(queue).next == 4
    goes_on(subject, queue)


def test_an_emptied_queue_keeps_nothing_to_read_and_goes_on_counting() -> None:
    subject, queue = with_messages(4)
    subject.open_again()
    subject.acknowledge(queue, 4)
    subject.reopen()
    assert subject.payloads(queue) == []
    assert subject.store.state(queue).first == 5
    subject.append(queue, b"5")
    assert len(subject.names(queue, "messages.")) == 1, "the used up file is gone"
    goes_on(subject, queue)


def test_a_missing_read_file_costs_its_messages_and_the_next_write_works() -> None:
    subject, queue = with_messages(3)
    subject.remove_file(subject.message_path(queue, "read_file"))
    subject.open_again()
    assert subject.payloads(queue) == []
    assert subject.lost() == [(queue, 1, 3)]
    assert subject.store.state(queue).next == 4, "no sequence is given out twice"
    goes_on(subject, queue)
    assert subject.lost() == [(queue, 1, 3)]


def test_a_missing_read_file_leaves_the_messages_of_the_write_file() -> None:
    subject, queue = with_messages(6)
    subject.remove_file(subject.message_path(queue, "read_file"))
    subject.open_again()
    assert subject.payloads(queue) == numbers(5, 6)
    assert subject.lost() == [(queue, 1, 4)]
    goes_on(subject, queue)
    subject.store.truncate_before(queue, 6)
    subject.commit()
    subject.reopen()
    assert subject.payloads(queue) == [b"6", b"new"]
    assert subject.lost() == [], "the reader has passed what was lost"


def test_a_missing_write_file_leaves_the_messages_of_the_read_file() -> None:
    subject, queue = with_messages(6)
    subject.remove_file(subject.message_path(queue, "write_file"))
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 4)
    assert subject.lost() == [(queue, 5, 2)]
    goes_on(subject, queue)
    subject.store.truncate_before(queue, 7)
    subject.commit()
    subject.reopen()
    assert subject.payloads(queue) == [b"new"]
    assert subject.lost() == []


def test_both_files_missing_leave_an_empty_queue_that_can_be_written() -> None:
    subject, queue = with_messages(6)
    for role in ("read_file", "write_file"):
        subject.remove_file(subject.message_path(queue, role))
    subject.open_again()
    assert subject.payloads(queue) == []
    assert sum(count for _, _, count in subject.lost()) == 6
    goes_on(subject, queue)


def test_a_full_queue_that_lost_everything_can_be_emptied_again() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=3)
    subject.append(queue, *numbers(1, 3))
    with pytest.raises(QuotaExceededError):
        subject.store.append(queue, b"refused", 1)
    subject.commit()
    subject.closed()
    subject.remove_file(subject.message_path(queue, "read_file"))
    subject.open_again()
    assert not subject.store.state(queue).is_blocked, "the marker is lost too"
    with pytest.raises(QuotaExceededError):
        subject.store.append(queue, b"refused", 1)
    subject.commit()
    [marker] = subject.store.read(queue, 0, 10, 10)
    assert marker.kind is EntryKind.QUOTA_MARKER
    subject.store.truncate_before(queue, marker.seq + 1)
    subject.append(queue, b"taken")
    assert subject.payloads(queue) == [b"taken"]


# Torn tails.


def test_a_message_file_cut_within_its_last_unacknowledged_line_loses_that_line_only() -> None:
    subject, queue = with_messages(3)
    path = f"{subject.folder(queue)}/queue.log"
    state_log = subject.files.read_all(path)
    file = subject.message_path(queue, "write_file")
    messages = subject.files.read_all(file)
    start = messages.rindex(b"seq=3")
    for length in range(start, len(messages)):
        # The state line that covers the third message was never written.
        subject.replace_file(path, state_log[: state_log.rindex(b"read_file=")])
        subject.replace_file(file, messages[:length])
        subject.open_again()
        assert subject.payloads(queue) == numbers(1, 2)
        assert subject.store.stats().torn_tail_count == (1 if length > start else 0)
        assert subject.store.damage() == ()
        assert subject.files.read_all(file) == messages[:start], "the tail is cut"
        subject.closed()


def test_what_was_cut_does_not_come_back() -> None:
    """Whole messages stood behind a torn one, just where a new one of the same length ends."""
    original, queue = with_messages(2)
    file = original.message_path(queue, "write_file")
    stale = [lines.encode_message(queue, Entry(seq, NOW_MS, b"stale")) for seq in (3, 4)]
    messages = original.files.read_all(file)
    original.replace_file(file, messages + b"x" * len(stale[0]) + stale[1])
    subject = JournalSubject(original.killed_files())
    assert subject.payloads(queue) == numbers(1, 2)
    seen = set[int]()

    def cut_the_power(call: str) -> None:
        for seed in range(40 if call in CHANGING_CALLS else 0):
            after = JournalSubject(subject.files.crash(Random(seed)))
            found = after.payloads(queue)
            assert found in (numbers(1, 2), [*numbers(1, 2), b"fresh"])
            seen.add(len(found))

    subject.store.append(queue, b"fresh", NOW_MS)
    subject.files.before_call = cut_the_power
    subject.commit()
    assert seen == {2, 3}


def test_a_quota_marker_with_a_message_behind_it_had_been_read() -> None:
    subject = JournalSubject()
    queue = subject.create_queue(quota=1)
    subject.append(queue, b"1")
    with pytest.raises(QuotaExceededError):
        subject.store.append(queue, b"refused", 1)
    subject.commit()
    state_log = subject.files.read_all(f"{subject.folder(queue)}/queue.log")
    subject.store.truncate_before(queue, 3)
    subject.append(queue, b"3")
    subject.closed()
    # The state line of the last batch was lost with the power.
    subject.replace_file(f"{subject.folder(queue)}/queue.log", state_log)
    subject.open_again()
    assert subject.payloads(queue) == [b"3"]
    assert not subject.store.state(queue).is_blocked


def test_a_file_that_nobody_names_is_removed_and_others_are_left_alone() -> None:
    subject, queue = with_messages(2)
    folder = subject.folder(queue)
    for name in (
        "messages.XXXXXXXXXXXXXXXX.log",
        "snapshot.XXXXXXXXXXXXXXXX.bin",
        "cursors.XXXXXXXXXXXXXXXX.log",
        "queue.log.new",
        "notes.txt",
    ):
        subject.replace_file(f"{folder}/{name}", b"left by somebody\n")
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 2)
    left = [name for name in subject.names(queue) if "XXXX" in name or name.endswith(".new")]
    assert left == []
    assert "notes.txt" in subject.names(queue)


# Damage.


def flip_in_message(subject: JournalSubject, queue: StreamId, seq: int, role: str) -> int:
    """Change a byte within a message; return where its line starts."""
    path = subject.message_path(queue, role)
    offset = subject.files.read_all(path).index(b"seq=%d " % seq)
    subject.files.flip_bit(path, offset + 40)
    return offset


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 6])
def test_damage_in_the_middle_costs_that_message_and_is_told_with_queue_and_offset(
    seq: int,
) -> None:
    subject, queue = with_messages(6)
    role = "read_file" if seq <= 4 else "write_file"
    offset = flip_in_message(subject, queue, seq, role)
    subject.open_again()
    other = subject.create_queue(2)
    subject.append(other, b"not disturbed")
    assert subject.payloads(queue) == [b"%d" % number for number in range(1, 7) if number != seq]
    [damage] = subject.store.damage()
    assert (damage.stream, damage.first_lost_seq, damage.lost_count) == (queue, seq, 1)
    assert (damage.file, damage.offset) == (subject.message_path(queue, role), offset)
    assert subject.store.state(queue).unread_count == 6, "it stays until it is passed"
    assert subject.payloads(other) == [b"not disturbed"]
    goes_on(subject, queue)


def test_a_lost_message_is_passed_like_any_other() -> None:
    subject, queue = with_messages(6)
    flip_in_message(subject, queue, 2, "read_file")
    subject.open_again()
    for first in range(2, 7):
        subject.store.truncate_before(queue, first)
        subject.commit()
        subject.reopen()
        expected = [b"%d" % number for number in range(first, 7) if number != 2]
        assert subject.payloads(queue) == expected
        assert subject.lost() == ([(queue, 2, 1)] if first == 2 else [])


def test_a_newline_that_is_lost_costs_the_two_messages_it_parted() -> None:
    subject, queue = with_messages(4)
    path = subject.message_path(queue, "read_file")
    subject.files.flip_bit(path, subject.files.read_all(path).index(b"\n"))
    subject.open_again()
    assert subject.payloads(queue) == numbers(3, 4)
    assert subject.lost() == [(queue, 1, 2)]


def test_a_file_shorter_than_the_state_says_costs_its_end_and_takes_more() -> None:
    subject, queue = with_messages(3)
    path = subject.message_path(queue, "read_file")
    messages = subject.files.read_all(path)
    subject.files.cut(path, messages.index(b"seq=2") + 10)
    subject.open_again()
    assert subject.payloads(queue) == [b"1"]
    assert subject.lost() == [(queue, 2, 2)]
    goes_on(subject, queue)
    assert subject.lost() == [(queue, 2, 2)]


def test_bits_that_flip_while_the_queue_is_open_are_noticed_when_read() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, *numbers(1, 3))
    flip_in_message(subject, queue, 2, "read_file")
    assert subject.payloads(queue) == [b"1", b"3"]
    assert subject.lost() == [(queue, 2, 1)]


def test_a_whole_line_in_the_wrong_place_is_not_delivered_for_another() -> None:
    subject = JournalSubject()
    queue = subject.create_queue()
    subject.append(queue, *numbers(1, 3))
    path = subject.message_path(queue, "read_file")
    first, second, third = subject.files.read_all(path).splitlines(keepends=True)
    assert len(first) == len(second)
    subject.replace_file(path, second + first + third)
    assert subject.payloads(queue) == [b"3"]
    assert subject.lost() == [(queue, 1, 1), (queue, 2, 1)]


def test_damage_met_again_is_told_once() -> None:
    subject, queue = with_messages(3)
    flip_in_message(subject, queue, 2, "read_file")
    subject.open_again()
    for _ in range(3):
        assert subject.payloads(queue) == [b"1", b"3"]
        subject.store.scrub(10_000)
    assert len(subject.store.damage()) == 1
    assert subject.store.stats().damage_count == 1


def test_files_of_another_queue_are_no_messages_of_this_one() -> None:
    subject, queue = with_messages(3)
    subject.open_again()
    other = subject.create_queue(2, quota=0)
    subject.append(other, b"a", b"b", b"c")
    subject.closed()
    stolen = subject.files.read_all(subject.message_path(other, "read_file"))
    subject.replace_file(subject.message_path(queue, "read_file"), stolen)
    subject.open_again()
    assert subject.payloads(queue) == []
    assert subject.lost() == [(queue, 1, 3)]
    assert subject.payloads(other) == [b"a", b"b", b"c"]


def test_a_damaged_snapshot_is_told_and_the_entries_stay() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, b"1", b"2")
    subject.store.put_snapshot(document, 1, b"state", 1)
    subject.commit()
    subject.closed()
    subject.files.flip_bit(subject.path(document, "snapshot."), 20)
    subject.open_again()
    while subject.store.scrub(1 << 20):
        pass
    with pytest.raises(CorruptionError, match=str(document)):
        subject.store.snapshot(document)
    assert subject.payloads(document) == [b"1", b"2"]
    [damage] = subject.store.damage()
    assert damage.stream == document
    subject.store.put_snapshot(document, 2, b"again", 2)
    subject.commit()
    subject.reopen()
    assert subject.store.snapshot(document) == Snapshot(2, 2, b"again")


def test_a_damaged_cursor_line_costs_that_move() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, *numbers(1, 3))
    for name, seq in ((b"a", 1), (b"b", 2), (b"a", 3)):
        subject.store.move_cursor(document, name, seq)
        subject.commit()
    subject.closed()
    path = subject.path(document, "cursors.")
    subject.files.flip_bit(path, subject.files.read_all(path).index(b"seq=2"))
    subject.open_again()
    assert dict(subject.store.cursors(document)) == {b"a": 3}
    assert [damage.file for damage in subject.store.damage()] == [path]
    subject.store.move_cursor(document, b"b", 3)
    subject.commit()
    subject.reopen()
    assert dict(subject.store.cursors(document)) == {b"a": 3, b"b": 3}


# When the state itself is in doubt.


def lose_last_state_line(subject: JournalSubject, queue: StreamId) -> None:
    path = f"{subject.folder(queue)}/queue.log"
    subject.files.flip_bit(path, len(subject.files.read_all(path)) - 5)


def test_a_write_file_named_by_the_damaged_line_alone_is_taken_over() -> None:
    subject, queue = with_messages(5)
    lose_last_state_line(subject, queue)
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 5)
    assert subject.lost() == []
    goes_on(subject, queue)


def test_a_read_file_let_go_of_by_the_damaged_line_is_not_missed() -> None:
    subject, queue = with_messages(6)
    subject.open_again()
    subject.acknowledge(queue, 4)
    subject.closed()
    lose_last_state_line(subject, queue)
    subject.open_again()
    assert subject.payloads(queue) == numbers(5, 6)
    assert subject.lost() == []
    goes_on(subject, queue)


def test_a_snapshot_named_by_the_damaged_line_alone_is_taken_over() -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, b"1", b"2")
    subject.store.put_snapshot(document, 1, b"one", 1)
    subject.commit()
    subject.store.put_snapshot(document, 2, b"two", 2)
    subject.commit()
    subject.closed()
    lose_last_state_line(subject, document)
    subject.open_again()
    assert subject.store.snapshot(document) == Snapshot(2, 2, b"two")
    assert subject.store.damage() == ()
    subject.store.put_snapshot(document, 2, b"three", 3)
    subject.commit()
    subject.reopen()
    assert subject.store.snapshot(document) == Snapshot(2, 3, b"three")


def test_a_queue_log_that_is_gone_is_made_of_the_newest_backup_and_the_files() -> None:
    subject = JournalSubject(options=dataclasses.replace(SMALL, state_line_count_max=1))
    queue = subject.create_queue(quota=7)
    subject.append(queue, *numbers(1, 6))
    subject.acknowledge(queue, 2)
    subject.closed()
    subject.remove_file(f"{subject.folder(queue)}/queue.log")
    subject.open_again()
    state = subject.store.state(queue)
    assert (state.kind, state.quota, state.next) == (StreamKind.QUEUE, 7, 7)
    assert subject.payloads(queue) == numbers(state.first, 6)
    assert state.first <= 3, "what was read may come again, nothing else is missing"
    assert [damage.reason for damage in subject.store.damage()] == ["the file is missing"]
    goes_on(subject, queue)


@pytest.mark.parametrize("count", [0, 3, 6])
def test_message_files_alone_still_give_their_messages(count: int) -> None:
    subject, queue = with_messages(count)
    for name in subject.names(queue, "queue."):
        subject.remove_file(f"{subject.folder(queue)}/{name}")
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, count)
    goes_on(subject, queue)


# Whatever happens to the bytes.


def test_cutting_or_changing_any_byte_of_any_file_loses_no_more_than_it_must() -> None:
    """Every message is read or reported lost, and the queue goes on."""
    original, queue = with_messages(6)
    original.open_again()
    original.acknowledge(queue, 1)
    original.store.put_snapshot(queue, 3, b"state", 1)
    original.store.move_cursor(queue, b"reader", 2)
    original.commit()
    original.closed()
    wanted = {b"%d" % number for number in range(2, 7)}
    for name in original.names(queue):
        path = f"{original.folder(queue)}/{name}"
        size = len(original.files.read_all(path))
        for offset in range(0, size, 5):
            for is_cut in (False, True):
                files = original.killed_files()
                if is_cut:
                    files.cut(path, offset)
                else:
                    files.flip_bit(path, offset, offset % 8)
                where = f"{name} at {offset}, cut: {is_cut}"
                check_damaged(JournalSubject(files), queue, wanted, where)


def check_damaged(subject: JournalSubject, queue: StreamId, wanted: set[bytes], where: str) -> None:
    found = subject.payloads(queue)
    assert found == sorted(set(found)), where
    lost = {
        b"%d" % seq
        for _, first, count in subject.lost()
        for seq in range(first or 0, (first or 0) + count)
    }
    assert wanted <= set(found) | lost, where
    assert len(wanted - set(found)) <= 5, where
    if "messages." not in where:
        assert wanted <= set(found), where
    subject.store.append(queue, b"7", 1)
    commit(subject.store)
    assert subject.payloads(queue) == [*found, b"7"], where


def test_a_state_with_impossible_numbers_takes_no_memory_for_them() -> None:
    subject, queue = with_messages(3)
    line = subject.state_line(queue)
    huge = QueueState(
        *(line["read_file"], 1, 0),
        *(line["write_file"], 1, 10**17),
        1,
        1 << 40,
        StreamKind.QUEUE,
        0,
        False,
        cursor_file=line["read_file"],
        cursor_byte=10**17,
    )
    subject.replace_file(f"{subject.folder(queue)}/queue.log", lines.encode_state(queue, huge))
    subject.open_again()
    assert subject.payloads(queue) == numbers(1, 3)
    assert subject.lost() == [(queue, 4, (1 << 40) - 4)]
