"""queue.log: which line counts, and which backups stay."""

import dataclasses

import pytest

from syncline.storage.base import StreamKind
from syncline.storage.journal.format import QueueState, encode_state
from syncline.storage.journal.layout import backup_name
from syncline.storage.journal.state import (
    BACKUP_COUNT_MAX,
    expired_backups,
    fresh_lines,
    read_state_log,
)
from syncline.storage.options import DAY_MS, StoreOptions
from syncline.values.ids import StreamId

STREAM = StreamId(bytes(24))
FILE = "AAAAAAAAAAAAAAAA"
NOW_MS = 1_700_000_000_000


def state(next_seq: int) -> QueueState:
    return QueueState(FILE, 1, 0, FILE, 1, 0, 1, next_seq, StreamKind.QUEUE, 3, False)


def line(next_seq: int) -> bytes:
    return encode_state(STREAM, state(next_seq))


def test_the_last_line_is_the_state() -> None:
    found = read_state_log(STREAM, line(1) + line(2) + line(3))
    assert found.state == state(3)
    assert found.line_count == 3
    assert found.is_certain
    assert found.flawed_offsets == ()


@pytest.mark.parametrize("torn", [b"r", b"\0" * 100, line(3)[:-1], b"garbage\n", b"\0\n"])
def test_an_unreadable_end_leaves_the_line_before_it_and_a_doubt(torn: bytes) -> None:
    data = line(1) + line(2)
    found = read_state_log(STREAM, data + torn)
    assert found.state == state(2)
    assert not found.is_certain
    assert (found.state_end, found.size) == (len(data), len(data) + len(torn))
    assert found.flawed_offsets == ()


def test_an_unreadable_line_in_the_middle_costs_nothing_and_is_told() -> None:
    found = read_state_log(STREAM, line(1) + b"garbage\n" + line(2))
    assert found.state == state(2)
    assert found.is_certain
    assert found.flawed_offsets == (len(line(1)),)


@pytest.mark.parametrize("data", [b"", b"\n", b"garbage", line(1)[:-1], b"\0" * 5_000])
def test_without_a_whole_line_there_is_no_state(data: bytes) -> None:
    found = read_state_log(STREAM, data)
    assert found.state is None
    assert not found.is_certain


def test_an_end_that_begins_within_a_line_is_read_from_the_next_on() -> None:
    data = line(1) + line(2)
    found = read_state_log(STREAM, data[10:], start=10)
    assert found.state == state(2)
    assert found.is_certain
    assert found.flawed_offsets == ()
    assert found.size == len(data)


def test_carriage_returns_end_no_line() -> None:
    found = read_state_log(STREAM, b"a\rb\x0b\x0c\n" + line(2))
    assert found.state == state(2)
    assert found.flawed_offsets == (0,)


def test_a_fresh_log_survives_the_loss_of_either_of_its_lines() -> None:
    data = fresh_lines(STREAM, state(7))
    assert read_state_log(STREAM, data).is_certain
    size = len(line(7))
    for damaged in (b"\0" * size + data[size:], data[:size] + b"\0" * (len(data) - size)):
        assert read_state_log(STREAM, damaged).state == state(7)


def test_a_fresh_log_survives_any_changed_byte() -> None:
    data = fresh_lines(STREAM, state(7))
    for offset in range(len(data)):
        damaged = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        assert read_state_log(STREAM, damaged).state == state(7)


def names(*ages_ms: int) -> list[str]:
    return [backup_name(NOW_MS - age_ms) for age_ms in ages_ms]


def test_old_backups_go_beyond_the_ones_always_kept() -> None:
    options = StoreOptions(state_backup_count_min=2, state_backup_age_ms_max=14 * DAY_MS)
    days = [day * DAY_MS for day in (1, 13, 15, 16, 30)]
    assert expired_backups(names(*days), NOW_MS, options) == names(*days[2:])
    assert expired_backups(names(*days[2:4]), NOW_MS, options) == []
    assert expired_backups(names(*days[2:]), NOW_MS, options) == names(days[4])


def test_young_backups_stay_up_to_a_bound() -> None:
    ages = [1000 * number for number in range(BACKUP_COUNT_MAX + 3)]
    assert expired_backups(names(*ages), NOW_MS, StoreOptions()) == names(*ages[-3:])


def test_other_files_are_no_backups() -> None:
    options = dataclasses.replace(StoreOptions(), state_backup_count_min=0)
    assert expired_backups(["queue.log", "messages.x.log", "notes"], NOW_MS, options) == []
