"""The lines of the journal: one text for each value, and nothing else is taken."""

import dataclasses
from collections.abc import Callable

import pytest

from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind
from syncline.storage.journal import format as lines
from syncline.storage.journal.format import Flaw, QueueState
from syncline.values.ids import StreamId

STREAM = StreamId.parse("abcdefghijklmnopqrstuvwxyz012345")
OTHER = StreamId.parse("ABCDEFGHIJKLMNOPQRSTUVWXYZ012345")
FILE, OTHER_FILE = "AAAAAAAAAAAAAAA_", "BBBBBBBBBBBBBBB-"
STATE = QueueState(FILE, 1, 230, OTHER_FILE, 6, 161, 4, 8, StreamKind.QUEUE, 128, False)
ENTRY = Entry(7, 1_700_000_000_000, b"hello", EntryKind.MESSAGE)

PARSERS: dict[str, tuple[bytes, Callable[[StreamId, bytes], object]]] = {
    "message": (lines.encode_message(STREAM, ENTRY), lines.parse_message),
    "state": (lines.encode_state(STREAM, STATE), lines.parse_state),
    "cursor": (lines.encode_cursor(STREAM, b"reader", 17), lines.parse_cursor),
    "snapshot": (
        lines.encode_snapshot(STREAM, Snapshot(3, 5, b"state\nof things")),
        lines.parse_snapshot,
    ),
}


def resealed(line: bytes, old: bytes, new: bytes) -> bytes:
    """The line with another text under a checksum that matches: written by somebody who tries."""
    text = line[: line.rindex(b" crc=")].replace(old, new)
    crc = lines.crc32c_extend(0, b"%b %b" % (str(STREAM).encode(), text))
    return b"%b crc=%08x\n" % (text, crc)


def test_a_message_line_is_its_fields_in_order() -> None:
    line = lines.encode_message(STREAM, ENTRY)
    text, _, crc = line.rpartition(b" crc=")
    assert text == b"seq=7 time_ms=1700000000000 kind=message body=aGVsbG8"
    assert crc == b"%08x\n" % lines.crc32c_extend(0, str(STREAM).encode() + b" " + text)


def test_a_state_line_starts_with_the_fields_of_the_design() -> None:
    assert lines.encode_state(STREAM, STATE).startswith(
        b"read_file=AAAAAAAAAAAAAAA_ read_msg=3 read_byte=230 "
        b"write_file=BBBBBBBBBBBBBBB- write_msg=2 write_byte=161 "
        b"first=4 next=8 kind=queue quota=128 blocked=F "
        b"snapshot_file=- snapshot_seq=0 cursor_file=- cursor_byte=0 crc="
    )


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY,
        Entry(1, 0, b""),
        Entry(2, 5, b"\n\r\0 crc=00000000\n" * 3),
        Entry(3, 5, bytes(range(256))),
        Entry(10**18 - 1, 10**18 - 1, b"-_" * 7),
        Entry(4, 5, b"", EntryKind.QUOTA_MARKER),
    ],
)
def test_a_message_comes_back_whole_on_one_line(entry: Entry) -> None:
    line = lines.encode_message(STREAM, entry)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert lines.parse_message(STREAM, line) == entry


@pytest.mark.parametrize(
    "state",
    [
        STATE,
        QueueState(FILE, 1, 0, FILE, 1, 0, 1, 1, StreamKind.DOCUMENT, 0, False),
        QueueState(FILE, 2, 9, FILE, 2, 9, 6, 6, StreamKind.QUEUE, 3, True),
        dataclasses.replace(
            STATE, snapshot_file=FILE, snapshot_seq=3, cursor_file=OTHER_FILE, cursor_byte=50
        ),
    ],
)
def test_a_state_comes_back(state: QueueState) -> None:
    assert lines.parse_state(STREAM, lines.encode_state(STREAM, state)) == state


@pytest.mark.parametrize(("name", "seq"), [(b"", 0), (b"\n\0\xff", 17), (b"x" * 64, None)])
def test_a_cursor_comes_back(name: bytes, seq: int | None) -> None:
    assert lines.parse_cursor(STREAM, lines.encode_cursor(STREAM, name, seq)) == (name, seq)


@pytest.mark.parametrize("payload", [b"", b"\n", b"x" * 100_000, bytes(range(256))])
def test_a_snapshot_comes_back(payload: bytes) -> None:
    snapshot = Snapshot(12, 34, payload)
    assert lines.parse_snapshot(STREAM, lines.encode_snapshot(STREAM, snapshot)) == snapshot


@pytest.mark.parametrize("kind", PARSERS)
def test_a_line_of_another_queue_does_not_pass(kind: str) -> None:
    line, parse = PARSERS[kind]
    assert not isinstance(parse(STREAM, line), Flaw)
    assert parse(OTHER, line) is Flaw.CHECKSUM


@pytest.mark.parametrize("kind", ["message", "state", "cursor"])
def test_a_line_cut_anywhere_is_torn(kind: str) -> None:
    line, parse = PARSERS[kind]
    assert {parse(STREAM, line[:length]) for length in range(len(line))} == {Flaw.TORN}


def test_a_snapshot_cut_anywhere_is_torn() -> None:
    data, parse = PARSERS["snapshot"]
    assert {parse(STREAM, data[:length]) for length in range(len(data))} == {Flaw.TORN}


@pytest.mark.parametrize("kind", PARSERS)
def test_a_line_with_any_bit_changed_does_not_pass(kind: str) -> None:
    line, parse = PARSERS[kind]
    for offset in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[offset] ^= 1 << bit
            assert isinstance(parse(STREAM, bytes(changed)), Flaw), f"byte {offset}, bit {bit}"


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"\n",
        b"\n\n",
        b" " * 300 + b"\n",
        b"\0" * 300 + b"\n",
        b"\xff\xfe\n",
        b"seq=" + b"9" * 100_000 + b"\n",
        b"crc=00000000\n",
    ],
)
def test_strange_bytes_are_told_and_not_raised(kind: str, strange: bytes) -> None:
    assert isinstance(PARSERS[kind][1](STREAM, strange), Flaw)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"seq=7", b"seq=07"),
        (b"seq=7", b"seq=+7"),
        (b"seq=7", b"seq=-7"),
        (b"seq=7", b"seq=7_0"),
        (b"seq=7", b"seq= 7"),
        (b"seq=7", b"seq=1" + b"0" * 18),
        (b"seq=7 ", b"seq=7  "),
        (b"seq=7", b"Seq=7"),
        (b"kind=message", b"kind=letter"),
        (b"body=aGVsbG8", b"body=aGVsbG8="),
        (b"body=aGVsbG8", b"body=aGVsbG9"),
        (b"body=aGVsbG8", b"body=aGVsb"),
        (b"body=aGVsbG8", b"body=aGVs bG8"),
        (b"body=aGVsbG8", b"body=aGVs+/8"),
    ],
)
def test_another_spelling_with_a_right_checksum_does_not_pass(old: bytes, new: bytes) -> None:
    line = PARSERS["message"][0]
    assert not isinstance(lines.parse_message(STREAM, resealed(line, b"", b"")), Flaw)
    assert isinstance(lines.parse_message(STREAM, resealed(line, old, new)), Flaw)


@pytest.mark.parametrize(
    "broken",
    [
        dataclasses.replace(STATE, first=0, read_first=0),
        dataclasses.replace(STATE, first=9, next=8),
        dataclasses.replace(STATE, first=7, next=8, write_first=6),
        dataclasses.replace(STATE, write_first=9),
        dataclasses.replace(STATE, read_first=5),
        dataclasses.replace(STATE, quota=65_536),
        dataclasses.replace(STATE, next=(1 << 40) + 1),
        QueueState(FILE, 1, 10, FILE, 1, 9, 2, 3, StreamKind.QUEUE, 0, False),
        QueueState(FILE, 1, 0, FILE, 2, 9, 2, 3, StreamKind.QUEUE, 0, False),
    ],
)
def test_a_state_that_contradicts_itself_is_none(broken: QueueState) -> None:
    assert isinstance(lines.parse_state(STREAM, lines.encode_state(STREAM, broken)), Flaw)


def test_two_lines_are_not_one() -> None:
    line, parse = PARSERS["message"]
    assert parse(STREAM, line + b"\n") is Flaw.FORM
    assert parse(STREAM, line + line) is Flaw.FORM


def test_a_file_id_is_sixteen_characters_of_twelve_bytes() -> None:
    assert lines.encode_file_id(b"\xff" * 12) == "_" * 16
    with pytest.raises(ValueError, match="12"):
        lines.encode_file_id(b"short")
