"""Ids cut into paths and back, at any depth."""

import pytest

from syncline.errors import ConfigError
from syncline.storage.journal import layout as names
from syncline.storage.journal.layout import Layout, Move
from syncline.values.ids import StreamId

STREAM = StreamId.parse("abcdefghijklmnopqrstuvwxyz012345")
FILE = "AAAAAAAAAAAAAAA_"


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (Layout(0, 2), "abcdefghijklmnopqrstuvwxyz012345"),
        (Layout(1, 2), "ab/cdefghijklmnopqrstuvwxyz012345"),
        (Layout(2, 2), "ab/cd/efghijklmnopqrstuvwxyz012345"),
        (Layout(3, 2), "ab/cd/ef/ghijklmnopqrstuvwxyz012345"),
        (Layout(4, 2), "ab/cd/ef/gh/ijklmnopqrstuvwxyz012345"),
        (Layout(7, 4), "abcd/efgh/ijkl/mnop/qrst/uvwx/yz01/2345"),
        (Layout(1, 31), "abcdefghijklmnopqrstuvwxyz01234/5"),
    ],
)
def test_an_id_is_cut_into_a_path_and_read_back(layout: Layout, path: str) -> None:
    assert layout.path(STREAM) == path
    assert layout.stream(path) == STREAM


@pytest.mark.parametrize(
    "path",
    [
        "",
        "ab",
        "ab/cd",
        "ab/cd/efghijklmnopqrstuvwxyz01234",
        "ab/cd/efghijklmnopqrstuvwxyz0123456",
        "abc/d/efghijklmnopqrstuvwxyz012345",
        "ab/cd/efghijklmnopqrstuvwxyz01234!",
        "ab/cd/efghijklmnopqrstuvwxyz01234é",
        "ab/cd/ef/ghijklmnopqrstuvwxyz012345",
    ],
)
def test_other_paths_are_no_queue(path: str) -> None:
    assert Layout(2, 2).stream(path) is None


@pytest.mark.parametrize(("count", "characters"), [(-1, 2), (2, 0), (16, 2), (4, 8), (1, 32)])
def test_a_layout_that_leaves_nothing_is_refused(count: int, characters: int) -> None:
    with pytest.raises(ConfigError, match="fragments"):
        Layout(count, characters)


def test_a_migration_moves_every_queue_from_one_path_to_the_other() -> None:
    other = StreamId(bytes(24))
    assert list(names.migration([STREAM, other], Layout(4, 2), Layout(1, 2))) == [
        Move("ab/cd/ef/gh/ijklmnopqrstuvwxyz012345", "ab/cdefghijklmnopqrstuvwxyz012345"),
        Move("AA/AA/AA/AA/" + "A" * 24, "AA/" + "A" * 30),
    ]
    assert list(names.migration([STREAM], Layout(2, 2), Layout(2, 2))) == []


def test_the_layout_line_is_read_as_it_is_written() -> None:
    assert names.encode_layout(Layout(2, 2)) == b"fragments=2 characters=2\n"
    assert names.parse_layout(b"fragments=2 characters=2\n") == (Layout(2, 2), None)
    line = names.encode_layout(Layout(2, 2), Layout(4, 2))
    assert line == b"fragments=2 characters=2 from_fragments=4 from_characters=2\n"
    assert names.parse_layout(line) == (Layout(2, 2), Layout(4, 2))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"fragments=2 characters=2",
        b"fragments=02 characters=2\n",
        b"fragments=2 characters=0\n",
        b"fragments=99 characters=99\n",
        b"fragments=2 characters=2 from_fragments=4\n",
        b"fragments=" + b"9" * 5_000 + b" characters=2\n",
        b"\xff\xff\n",
    ],
)
def test_any_other_line_is_no_layout(line: bytes) -> None:
    assert names.parse_layout(line) is None


def test_file_names_tell_what_they_are() -> None:
    assert names.message_file_id(names.message_name(FILE)) == FILE
    assert names.snapshot_file_id(names.snapshot_name(FILE)) == FILE
    assert names.cursor_file_id(names.cursor_name(FILE)) == FILE
    assert names.message_file_id(names.snapshot_name(FILE)) is None
    assert names.backup_time_ms(names.backup_name(1_700_000_000_123)) == 1_700_000_000_123


@pytest.mark.parametrize(
    "name",
    ["queue.log", "queue.log.new", "messages.log", "messages.AAAA.log", "notes.txt", "queue.x.log"],
)
def test_other_files_are_none_of_them(name: str) -> None:
    assert not names.is_named_by_state(name)
    assert names.backup_time_ms(name) is None
