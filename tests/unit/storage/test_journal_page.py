"""docs/formats/journal.md shows lines as the code writes them."""

import re

import pytest

from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind
from syncline.storage.journal import format as lines
from syncline.storage.journal import layout
from syncline.storage.journal.format import QueueState
from syncline.storage.journal.layout import Layout
from syncline.storage.journal.start import CleanMark
from syncline.values.ids import StreamId
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "formats" / "journal.md").read_text(encoding="utf-8")
STREAM = StreamId.parse("abcdefghijklmnopqrstuvwxyz012345")
FILES = [lines.encode_file_id(bytes(range(start, start + 12))) for start in (0, 12, 24, 36)]
TIME_MS = 1_700_000_000_000

ENTRIES = [
    Entry(7, TIME_MS, b"hello"),
    Entry(8, TIME_MS + 1, b""),
    Entry(9, TIME_MS + 2, b"", EntryKind.QUOTA_MARKER),
]
STATES = [
    QueueState(FILES[0], 1, 0, FILES[0], 1, 0, 1, 1, StreamKind.QUEUE, 128, False),
    QueueState(FILES[0], 5, 178, FILES[1], 9, 92, 7, 10, StreamKind.QUEUE, 2, True),
    QueueState(
        *(FILES[0], 5, 178),
        *(FILES[0], 5, 270),
        first=7,
        next=8,
        kind=StreamKind.DOCUMENT,
        quota=0,
        is_blocked=False,
        snapshot_file=FILES[2],
        snapshot_seq=6,
        cursor_file=FILES[3],
        cursor_byte=78,
    ),
]
EXPECTED = {
    "messages": b"".join(lines.encode_message(STREAM, entry) for entry in ENTRIES),
    "states": b"".join(lines.encode_state(STREAM, state) for state in STATES),
    "cursors": lines.encode_cursor(STREAM, b"reader", 7)
    + lines.encode_cursor(STREAM, b"reader", None),
    "snapshot": lines.encode_snapshot(STREAM, Snapshot(6, TIME_MS, b'{"a":1}')) + b"\n",
    "layout": layout.encode_layout(Layout(2, 2)) + layout.encode_layout(Layout(2, 2), Layout(4, 2)),
    "clean": CleanMark(3, 4096, 9, TIME_MS).line(),
}


def shown(name: str) -> bytes:
    found = re.search(rf"<!-- lines: {name} -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, f"the page shows no {name}"
    return found[1].encode("ascii")


@pytest.mark.parametrize("name", EXPECTED)
def test_lines_on_the_page_are_those_of_the_encoders(name: str) -> None:
    assert shown(name) == EXPECTED[name]


def test_the_page_shows_nothing_that_is_not_checked() -> None:
    assert set(re.findall(r"<!-- lines: (\w+) -->", PAGE)) == set(EXPECTED)


def test_lines_on_the_page_are_read() -> None:
    found = shown("messages").splitlines(keepends=True)
    assert [lines.parse_message(STREAM, line) for line in found] == ENTRIES
    found = shown("states").splitlines(keepends=True)
    assert [lines.parse_state(STREAM, line) for line in found] == STATES
    cursors = [lines.parse_cursor(STREAM, line) for line in shown("cursors").splitlines(True)]
    assert cursors == [(b"reader", 7), (b"reader", None)]


def test_the_page_names_the_version_that_is_written() -> None:
    assert f"Format\nversion {lines.FORMAT_VERSION}." in PAGE
