"""Laws of the journal's lines: what was written comes back, and nothing else is ever read."""

from hypothesis import given
from hypothesis import strategies as st

from syncline.storage.base import Entry, EntryKind, Snapshot, StreamKind
from syncline.storage.journal import format as lines
from syncline.storage.journal.format import NUMBER_MAX, Flaw, QueueState
from syncline.storage.journal.layout import Layout
from syncline.storage.journal.state import read_state_log
from syncline.values import limits
from syncline.values.ids import StreamId

STREAM_IDS = st.binary(min_size=24, max_size=24).map(StreamId)
NUMBERS = st.integers(0, NUMBER_MAX)
ENTRIES = st.builds(Entry, NUMBERS, NUMBERS, st.binary(max_size=400), st.sampled_from(EntryKind))
FILE_IDS = st.binary(min_size=12, max_size=12).map(lines.encode_file_id)


@st.composite
def states(draw: st.DrawFn) -> QueueState:
    read_first = draw(st.integers(1, 1 << 30))
    first = read_first + draw(st.integers(0, 500))
    next_seq = first + draw(st.integers(0, 500))
    read_file, write_file = draw(FILE_IDS), draw(FILE_IDS)
    write_byte = draw(NUMBERS)
    if draw(st.booleans()) or read_file == write_file:
        write_file, write_first = read_file, read_first
        read_byte = draw(st.integers(0, write_byte))
    else:
        write_first, read_byte = draw(st.integers(first, next_seq)), draw(NUMBERS)
    return QueueState(
        *(read_file, read_first, read_byte),
        *(write_file, write_first, write_byte),
        first,
        next_seq,
        draw(st.sampled_from(StreamKind)),
        draw(st.integers(0, limits.queue_quota_max)),
        draw(st.booleans()),
        draw(st.none() | FILE_IDS),
        draw(NUMBERS),
        draw(st.none() | FILE_IDS),
        draw(NUMBERS),
    )


@given(STREAM_IDS, ENTRIES)
def test_a_message_is_one_line_and_comes_back(stream: StreamId, entry: Entry) -> None:
    line = lines.encode_message(stream, entry)
    assert line.index(b"\n") == len(line) - 1
    assert len(line) <= lines.MESSAGE_LINE_BYTES_MAX
    assert lines.parse_message(stream, line) == entry


@given(STREAM_IDS, states())
def test_a_state_is_one_line_and_comes_back(stream: StreamId, state: QueueState) -> None:
    line = lines.encode_state(stream, state)
    assert line.index(b"\n") == len(line) - 1
    assert len(line) <= lines.STATE_LINE_BYTES_MAX
    assert lines.parse_state(stream, line) == state


@given(STREAM_IDS, st.binary(max_size=64), st.none() | NUMBERS)
def test_a_cursor_is_one_line_and_comes_back(
    stream: StreamId, name: bytes, seq: int | None
) -> None:
    line = lines.encode_cursor(stream, name, seq)
    assert line.index(b"\n") == len(line) - 1
    assert len(line) <= lines.CURSOR_LINE_BYTES_MAX
    assert lines.parse_cursor(stream, line) == (name, seq)


@given(STREAM_IDS, st.builds(Snapshot, NUMBERS, NUMBERS, st.binary(max_size=2_000)))
def test_a_snapshot_comes_back(stream: StreamId, snapshot: Snapshot) -> None:
    assert lines.parse_snapshot(stream, lines.encode_snapshot(stream, snapshot)) == snapshot


@given(STREAM_IDS, st.binary(max_size=600))
def test_whatever_is_read_is_what_would_be_written(stream: StreamId, data: bytes) -> None:
    entry = lines.parse_message(stream, data)
    assert isinstance(entry, Flaw) or lines.encode_message(stream, entry) == data
    state = lines.parse_state(stream, data)
    assert isinstance(state, Flaw) or lines.encode_state(stream, state) == data
    cursor = lines.parse_cursor(stream, data)
    assert isinstance(cursor, Flaw) or lines.encode_cursor(stream, *cursor) == data
    snapshot = lines.parse_snapshot(stream, data)
    assert isinstance(snapshot, Flaw) or lines.encode_snapshot(stream, snapshot) == data


@given(STREAM_IDS, ENTRIES, st.data())
def test_a_changed_message_line_is_never_another_message(
    stream: StreamId, entry: Entry, data: st.DataObject
) -> None:
    line = lines.encode_message(stream, entry)
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, min(len(line), start + 4)))
    changed = line[:start] + data.draw(st.binary(max_size=4)) + line[end:]
    found = lines.parse_message(stream, changed)
    assert found == entry if changed == line else isinstance(found, Flaw)


@given(STREAM_IDS, st.lists(states(), min_size=1, max_size=5), st.binary(max_size=100))
def test_the_state_is_the_last_whole_line_whatever_follows(
    stream: StreamId, history: list[QueueState], torn: bytes
) -> None:
    whole = b"".join(lines.encode_state(stream, state) for state in history)
    found = read_state_log(stream, whole + torn)
    assert found.state == history[-1]
    assert found.is_certain == (torn.strip(b"\n") == b""), "empty lines say nothing"


@given(STREAM_IDS, st.integers(0, 15), st.integers(1, 4))
def test_every_id_has_one_path_at_each_depth(stream: StreamId, count: int, length: int) -> None:
    if count * length >= 32:
        return
    layout = Layout(count, length)
    assert layout.stream(layout.path(stream)) == stream
