"""The columns of a log are those that its own scan finds, whatever happened to its bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from syncline.kernels.log_records import columns, joined, record_offsets
from syncline.pipeline.sources.filters import RowFilter
from syncline.pipeline.sources.folders import SegmentPiece, scanned
from syncline.pipeline.sources.reading import Wish, run_batches
from syncline.pipeline.sources.reading import segment_rows as rows_of_scan
from syncline.pipeline.sources.rows import KIND_NAMES, Unread
from syncline.storage.documents import encode_entry
from syncline.storage.files import DiskFiles
from syncline.storage.log.format import (
    ACK_ROW,
    BATCH_HEADER_BYTES,
    HAS_SNAPSHOT,
    IS_DOCUMENT,
    NO_STREAM,
    SEQUENCE,
    UNREAD_BITS,
    BatchHeader,
    RecordKind,
    store_tag,
)
from syncline.storage.log.format import RECORD_HEADER as HEADER
from syncline.storage.log.runs import Run, write_run
from syncline.storage.log.scan import DamagedStretch, End, WholeBatch, batches, records_of
from syncline.values.events import encode_event
from tests.log_files import EPOCH, NewRecord, SegmentBuilder, entry_row, snapshot_row, stream_id
from tests.pipeline.log_rows import read_rows, rows_of_run, rows_of_segment, unread_rows

NUMBER = 7
SEGMENT_BYTES = 64 * 1024
# The tag of builders is 0: so are the first bytes of the id.
STORE_ID = bytes(4) + bytes(range(12))

streams = st.integers(0, 5).map(stream_id)
sequences = st.integers(0, 1 << 39)
times = st.integers(0, (1 << 48) - 1)
payloads = st.binary(max_size=60)
acknowledgements = st.lists(
    st.tuples(streams, st.integers(0, 1 << 30), st.integers(0, 1 << 20)), max_size=4
)


numbers = st.integers(0, (1 << 64) - 1)
events = st.builds(
    encode_event,
    st.integers(0, 255),
    times,
    streams | st.just(NO_STREAM),
    numbers,
    numbers,
    numbers,
    numbers,
)
# Their payload is rows.
WITH_ROWS = (RecordKind.ACKNOWLEDGEMENTS, RecordKind.EVENTS)


def acknowledging(rows: list[tuple[bytes, int, int]], rest: bytes) -> NewRecord:
    packed = [ACK_ROW.pack(stream, last << UNREAD_BITS | unread) for stream, last, unread in rows]
    return NewRecord(RecordKind.ACKNOWLEDGEMENTS, NO_STREAM, 0, b"".join(packed) + rest)


records = st.one_of(
    st.builds(
        NewRecord,
        st.builds(
            lambda kind, flags: kind | flags,
            st.sampled_from(RecordKind).filter(lambda kind: kind not in WITH_ROWS),
            st.sampled_from([0, HAS_SNAPSHOT, IS_DOCUMENT, 0xE0]),
        ),
        streams,
        sequences,
        payloads,
        times,
        st.integers(0, 65_535),
    ),
    st.builds(
        lambda stream, seq, state: NewRecord(
            RecordKind.SNAPSHOT | HAS_SNAPSHOT, stream, seq, SEQUENCE.pack(seq) + state
        ),
        streams,
        sequences,
        payloads,
    ),
    # An update, or what looks like one up to some byte.
    st.builds(
        lambda stream, seq, version, entry, cut: NewRecord(
            RecordKind.MESSAGE | IS_DOCUMENT,
            stream,
            seq,
            (bytes([version]) + entry[1:])[: len(entry) - cut],
        ),
        streams,
        sequences,
        st.sampled_from([1, 1, 2]),
        st.builds(encode_entry, st.text(max_size=4), st.integers(0, 9), st.binary(max_size=9)),
        st.sampled_from([0, 0, 0, 5, 12]),
    ),
    # A kind that is not known yet.
    st.builds(NewRecord, st.just(21), streams, sequences, payloads, times),
    st.builds(acknowledging, acknowledgements, st.binary(max_size=31)),
    st.builds(
        lambda rows, rest: NewRecord(RecordKind.EVENTS, NO_STREAM, 0, b"".join(rows) + rest),
        st.lists(events, max_size=4),
        st.binary(max_size=63),
    ),
)


class SegmentBytes(bytes):
    """Shown by its size: examples of many kilobytes are nothing to read."""

    def __repr__(self) -> str:
        return f"<segment of {len(self)} bytes>"


@dataclass(frozen=True)
class Damage:
    offset: int
    bytes: bytes


damages = st.lists(
    st.builds(Damage, st.integers(0, 40_000), st.binary(min_size=1, max_size=40)), max_size=4
)


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Some batches, with bytes written over them, and perhaps cut off."""
    builder = SegmentBuilder(NUMBER, segment_bytes=SEGMENT_BYTES)
    for batch in draw(st.lists(st.lists(records, min_size=1, max_size=6), max_size=6)):
        builder.add(batch, draw(st.sampled_from([EPOCH, EPOCH])))
    data = bytearray(builder.data)
    for damage in draw(damages):
        offset = damage.offset % max(1, builder.end + 100)
        data[offset : offset + len(damage.bytes)] = damage.bytes
    return SegmentBytes(data[: draw(st.one_of(st.none(), st.integers(0, builder.end)))])


def piece(start: int = 0, end: int = 1 << 62) -> SegmentPiece:
    tag = store_tag(STORE_ID)
    return SegmentPiece("folder", STORE_ID, tag, SEGMENT_BYTES, NUMBER, start, end, True)


def segment_rows(
    each: SegmentPiece, data: bytes, number_behind: int, wish: Wish
) -> Iterator[pa.RecordBatch]:
    start = each.number * each.segment_bytes
    return rows_of_scan(each, scanned(data, start, each.tag, number_behind), number_behind, wish)


@given(segments(), st.sampled_from([0, 1, 3, 99]))
def test_columns_are_the_rows_of_the_logs_own_scan(data: bytes, number_behind: int) -> None:
    found = list(segment_rows(piece(), data, number_behind, Wish()))
    expected = rows_of_segment(data, NUMBER * SEGMENT_BYTES, 0, number_behind)
    assert read_rows(found) == expected


@given(segments(), st.sampled_from([0, 1, 3, 99]))
def test_every_damaged_stretch_and_torn_end_is_a_row(data: bytes, number_behind: int) -> None:
    start = NUMBER * SEGMENT_BYTES
    found = unread_rows(segment_rows(piece(), data, number_behind, Wish()))
    expected: list[tuple[int, int, int, bytes | None]] = []
    last_number, goes_on = 0, True
    for part in batches(data, start, None, number_behind=number_behind):
        match part:
            case DamagedStretch():
                expected.append((part.start, 0, Unread.DAMAGE, None))
                for place, suspect in enumerate(part.suspects, 1):
                    expected.append((part.start, place, Unread.DAMAGE, suspect))
            case End(position=position, is_torn=is_torn):
                if is_torn:
                    expected.append((position, 0, Unread.TORN, None))
                goes_on = number_behind in (0, last_number + 1)
                if not any(row[2] == Unread.DAMAGE for row in expected) and not goes_on:
                    expected.append((position, 0, Unread.DAMAGE, None))
            case _:
                last_number = part.header.number
    assert [(row[0], row[1], row[2], row[4]) for row in found] == expected


def test_a_torn_batch_behind_which_the_log_goes_on_is_no_damage() -> None:
    builder = SegmentBuilder(NUMBER, segment_bytes=SEGMENT_BYTES)
    builder.add([NewRecord(RecordKind.MESSAGE, stream_id(1), 1, b"kept")])
    end = builder.end
    builder.add([NewRecord(RecordKind.MESSAGE, stream_id(1), 2, b"torn")])
    builder.data[end + 60] ^= 1
    found = unread_rows(segment_rows(piece(), bytes(builder.data), 2, Wish()))
    assert [(row[0], row[2]) for row in found] == [(NUMBER * SEGMENT_BYTES + end, Unread.TORN)]
    # Where the log goes on with a later batch, this one was acknowledged.
    found = unread_rows(segment_rows(piece(), bytes(builder.data), 3, Wish()))
    assert {row[2] for row in found} == {Unread.DAMAGE}


@given(segments(), st.integers(0, SEGMENT_BYTES))
def test_two_halves_of_a_segment_are_the_whole(data: bytes, cut: int) -> None:
    start = NUMBER * SEGMENT_BYTES
    cut = start + cut // 4096 * 4096
    halves = [
        row
        for each in (piece(end=cut), piece(start=cut))
        for row in read_rows(segment_rows(each, data, 0, Wish()))
    ]
    assert halves == rows_of_segment(data, start, 0)


@given(segments(), streams, st.sampled_from([1, 5, 6]), st.integers(0, 1 << 30))
def test_filters_keep_the_rows_that_sql_would(
    data: bytes, stream: bytes, kind: int, seq: int
) -> None:
    filters = (
        RowFilter("stream", "in", (stream, stream_id(1))),
        RowFilter("kind", "in", (kind, 1)),
        RowFilter("seq", ">", (seq,)),
        RowFilter("day", "<=", (10,)),
    )
    found = read_rows(segment_rows(piece(), data, 0, Wish(filters)))
    assert found == [
        row
        for row in rows_of_segment(data, NUMBER * SEGMENT_BYTES, 0)
        if row[4] in (stream, stream_id(1))
        and row[2] in (kind, 1)
        and row[5] is not None
        and row[5] > seq
        and row[6] // 86_400_000 <= 10
    ]


@given(segments(), st.integers(0, 255))
def test_events_are_chosen_by_their_kind(data: bytes, event: int) -> None:
    found = read_rows(segment_rows(piece(), data, 0, Wish((RowFilter("event", "<=", (event,)),))))
    assert found == [
        row
        for row in rows_of_segment(data, NUMBER * SEGMENT_BYTES, 0)
        if row[11] is not None and row[11] <= event
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8))
def test_stretches_are_joined_in_any_order(stretches: list[tuple[int, int]]) -> None:
    data = bytes(range(64))
    starts = np.array([start for start, _ in stretches], np.int64)
    lengths = np.array([length for _, length in stretches], np.int64)
    expected = b"".join(data[start : start + length] for start, length in stretches)
    assert joined(np.frombuffer(data, np.uint8), starts, lengths).tobytes() == expected


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(-2, 2) | st.integers(-60, 60))
def test_a_record_that_does_not_fit_ends_the_walk(lengths: list[int], cut: int) -> None:
    data = b"".join(
        HEADER.pack(0, 1 << 24 | length, bytes(24), 0, 0) + bytes(length) for length in lengths
    )
    end = max(0, len(data) + cut)
    data += bytes(100)
    header = BatchHeader(1, 1, 0, 0, end, len(lengths), 0, 0)
    batch = bytes(BATCH_HEADER_BYTES) + data
    expected = [position for position, *_ in records_of(batch, 0, WholeBatch(header))]
    at = BATCH_HEADER_BYTES
    assert record_offsets(batch, at, at + end) == expected


def test_a_segment_without_records_gives_no_rows() -> None:
    assert record_offsets(bytes(200), 0, 40) == []
    assert len(columns(b"", 0, np.empty(0, np.int64))) == 0
    assert list(segment_rows(piece(), bytes(SEGMENT_BYTES), 0, Wish())) == []


def test_every_kind_of_the_log_has_a_name() -> None:
    assert set(RecordKind) <= set(KIND_NAMES)
    assert {kind.name.lower().replace("_", " ") for kind in RecordKind} <= set(KIND_NAMES.values())


# -------------------------------------------------------------------------------------------- runs

run_contents = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 30), payloads, st.booleans()),
    min_size=1,
    max_size=20,
    unique_by=lambda row: (row[3], row[0], row[1]),
)


@given(run_contents, damages)
def test_rows_of_a_run_are_those_of_its_own_reader(
    contents: list[tuple[int, int, bytes, bool]], damage: list[Damage]
) -> None:
    rows = sorted(
        snapshot_row(stream_id(number), seq, payload, position=seq * 100)
        if is_snapshot
        else entry_row(stream_id(number), seq, payload, position=seq * 100)
        for number, seq, payload, is_snapshot in contents
    )
    files = DiskFiles()
    with TemporaryFolder() as folder:
        path = f"{folder}/r-1-1.run"
        meta = write_run(files, path, rows)
        assert meta is not None
        file = files.open(path)
        for each in damage:
            # The footer is left alone: a run is opened by the manifest's knowledge of it anyway.
            offset = each.offset % (file.size() - 64)
            file.write(offset, [each.bytes[: file.size() - 64 - offset]])
        run = Run.open(files, path, meta)
        try:
            found = list(run_batches(run, file, STORE_ID, 0, 1 << 62, Wish()))
            expected = rows_of_run(run)
            assert read_rows(found) == expected
            told = {(row[0], row[4]) for row in unread_rows(found) if row[1]}
            assert len([row for row in unread_rows(found) if row[1] == 0]) == len(rows) - len(
                expected
            )
            assert (told == set()) == (len(rows) == len(expected))
            between = list(run_batches(run, file, STORE_ID, 500, 1_500, Wish()))
            assert read_rows(between) == [row for row in expected if 500 <= row[0] < 1_500]
        finally:
            run.close()
            file.close()


class TemporaryFolder:
    """A folder for one example: fixtures live as long as all of them."""

    def __enter__(self) -> Path:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
