"""Laws of the log's bytes: they come back as they went, and nothing else passes for them."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from syncline.storage.log import format as log_format
from syncline.storage.log.format import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BLOCK_BYTES,
    CRC,
    KIND_MASK,
    LENGTH_MASK,
    RECORD_HEADER_BYTES,
    RUN_KEY_BYTES,
    SLOT_DELETED,
    SLOT_USED,
    RecordKind,
)
from syncline.values import limits

streams = st.binary(min_size=24, max_size=24)
positions = st.integers(0, (1 << 63) - 1)
epochs = st.integers(0, (1 << 32) - 1)
sequences = st.integers(0, limits.sequence_max)
unread_counts = st.integers(0, limits.unread_count_max)
times = st.integers(0, (1 << 48) - 1)
quotas = st.integers(0, 65_535)
kinds = st.builds(
    lambda kind, flags: kind | flags,
    st.sampled_from(RecordKind),
    st.sampled_from([0, 0x20, 0x40, 0xE0]),
)
payloads = st.binary(max_size=60)
cursor_maps = st.dictionaries(
    st.binary(max_size=limits.cursor_name_bytes_max),
    st.integers(0, limits.sequence_max),
    max_size=8,
)

record_fields = st.tuples(
    positions, epochs, kinds, streams, sequences, unread_counts, times, quotas, payloads
)


def encoded(fields: tuple[Any, ...]) -> bytes:
    head, _ = log_format.encode_record(*fields)
    return head + bytes(fields[-1])


# ------------------------------------------------------------------------------------- records


@given(record_fields, st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_comes_back_as_it_went(
    fields: tuple[Any, ...], before: bytes, after: bytes
) -> None:
    position, epoch, kind, stream, seq, unread, time_ms, quota, payload = fields
    data = before + encoded(fields) + after
    found = log_format.parse_record(data, len(before), len(data), position, epoch)
    assert found == log_format.Record(
        position,
        RecordKind(kind & KIND_MASK),
        kind & ~KIND_MASK,
        stream,
        seq,
        unread,
        time_ms,
        quota,
        payload,
    )


@given(record_fields)
def test_a_record_of_a_view_is_the_same(fields: tuple[Any, ...]) -> None:
    data = encoded(fields)
    found = log_format.parse_record(memoryview(data), 0, len(data), fields[0], fields[1])
    assert found == log_format.parse_record(data, 0, len(data), fields[0], fields[1])
    assert found is not None


@given(record_fields, st.data())
def test_a_flipped_bit_of_a_record_is_noticed(fields: tuple[Any, ...], data: st.DataObject) -> None:
    whole = bytearray(encoded(fields))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    # Room behind it: a longer length must fail by its checksum, not by the end of the bytes.
    behind = bytes(data.draw(st.integers(0, 300)))
    found = log_format.parse_record(bytes(whole) + behind, 0, len(whole) + len(behind), *fields[:2])
    assert found is None


@given(record_fields, positions, epochs)
def test_a_record_counts_only_where_and_when_it_was_written(
    fields: tuple[Any, ...], position: int, epoch: int
) -> None:
    data = encoded(fields)
    seed = log_format.checksum_seed(*fields[:2])
    assume(log_format.checksum_seed(position, epoch) != seed)
    assert log_format.parse_record(data, 0, len(data), position, epoch) is None


@given(positions, epochs, st.integers(1, 1 << 20))
def test_neighbouring_places_and_openings_have_other_seeds(
    position: int, epoch: int, step: int
) -> None:
    """A recycled segment is written to again at the same offsets, in another place of the log."""
    seed = log_format.checksum_seed(position, epoch)
    assert 0 <= seed < 1 << 32
    assert log_format.checksum_seed(position + step, epoch) != seed or (position + step) >> 32 != (
        position >> 32
    )
    if epoch + step < 1 << 32:
        assert log_format.checksum_seed(position, epoch + step) != seed


@given(record_fields, st.integers(0, 200))
def test_a_record_that_is_cut_off_is_none(fields: tuple[Any, ...], missing: int) -> None:
    data = encoded(fields)
    end = max(0, len(data) - 1 - missing)
    assert log_format.parse_record(data, 0, end, *fields[:2]) is None
    assert log_format.parse_record(data[:end], 0, end, *fields[:2]) is None


@given(st.binary(max_size=200), st.integers(-10, 210), positions, epochs)
def test_hostile_bytes_are_no_record(data: bytes, offset: int, position: int, epoch: int) -> None:
    assert log_format.parse_record(data, offset, len(data), position, epoch) is None


class CountingBytes(bytes):
    """Notes the largest part that was asked for."""

    largest = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        if isinstance(part, slice):
            CountingBytes.largest = max(CountingBytes.largest, part.stop - part.start)
        return found


@given(st.integers(100, LENGTH_MASK), streams)
def test_a_length_is_checked_before_it_is_used(length: int, stream: bytes) -> None:
    body = log_format.RECORD_BODY.pack(RecordKind.MESSAGE << 24 | length, stream, 0, 0)
    data = CountingBytes(CRC.pack(0) + body + bytes(50))
    CountingBytes.largest = 0
    assert log_format.parse_record(data, 0, len(data), 0, 0) is None
    assert CountingBytes.largest <= len(data)


@given(record_fields, st.sampled_from([0, 11, 15, 31]))
def test_an_unknown_kind_is_no_record(fields: tuple[Any, ...], kind: int) -> None:
    position, epoch, _, *rest = fields
    data = encoded((position, epoch, kind, *rest))
    assert log_format.parse_record(data, 0, len(data), position, epoch) is None


# ------------------------------------------------------------------------------- batch headers


@given(epochs, positions, positions, times, st.integers(1, 5), epochs)
def test_a_batch_header_comes_back_as_it_went(
    epoch: int, number: int, position: int, time_ms: int, count: int, previous: int
) -> None:
    records = [bytes(RECORD_HEADER_BYTES)] * count
    length = count * RECORD_HEADER_BYTES
    header, crc = log_format.encode_batch_header(
        epoch, number, position, time_ms, count, records, previous
    )
    assert len(header) == BATCH_HEADER_BYTES
    found = log_format.parse_batch_header(b"xx" + header + bytes(length), 2, position)
    assert found == log_format.BatchHeader(
        epoch, number, position, time_ms, length, count, previous, crc
    )
    assert found.end == position + BATCH_HEADER_BYTES + length
    assert log_format.is_batch_whole(b"xx" + header + bytes(length), 2, found, 0)
    assert log_format.parse_batch_header(header + bytes(length), 0, position + 4096) is None
    assert log_format.parse_batch_header(header + bytes(length - 1), 0, position) is None


@given(st.binary(min_size=48, max_size=200), st.data(), st.integers(1, 255), epochs)
def test_the_crc_of_a_batch_covers_header_records_and_tag(
    records: bytes, data: st.DataObject, change: int, tag: int
) -> None:
    header, _ = log_format.encode_batch_header(1, 1, 0, 0, 1, [records], 0, tag)
    whole = bytearray(header + records)
    found = log_format.parse_batch_header(bytes(whole), 0, 0)
    assert found is not None
    assert log_format.is_batch_whole(bytes(whole), 0, found, tag)
    assert not log_format.is_batch_whole(bytes(whole), 0, found, tag ^ change)
    place = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: not 44 <= at < 48))
    whole[place] ^= change
    assert not log_format.is_batch_whole(bytes(whole), 0, found, tag)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6))
def test_the_pieces_of_a_batch_do_not_matter(pieces: list[bytes]) -> None:
    one = log_format.encode_batch_header(1, 1, 0, 0, 1, [b"".join(pieces)], 0)
    assert log_format.encode_batch_header(1, 1, 0, 0, 1, pieces, 0) == one


@given(epochs, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_a_batch_header_whose_numbers_do_not_fit_is_none(
    epoch: int, length: int, count: int
) -> None:
    room = 1_000
    header = BATCH_HEADER.pack(BATCH_MAGIC, epoch, 1, 4096, 0, length, count, 0, 0)
    found = log_format.parse_batch_header(header + bytes(room), 0, 4096)
    fits = length <= room and count > 0 and count * RECORD_HEADER_BYTES <= length
    assert (found is not None) == fits


@given(st.binary(max_size=100), st.integers(0, 100), positions)
def test_hostile_bytes_are_no_batch(data: bytes, offset: int, position: int) -> None:
    assume(BATCH_MAGIC not in data)
    assert log_format.parse_batch_header(data, offset, position) is None


@given(positions)
def test_aligning_goes_to_the_next_block(position: int) -> None:
    aligned = log_format.align(position)
    assert aligned % BLOCK_BYTES == 0
    assert position <= aligned < position + BLOCK_BYTES


# ----------------------------------------------------------------------------- smaller payloads


@given(cursor_maps)
def test_cursors_come_back_as_they_went(cursors: dict[bytes, int]) -> None:
    assert log_format.parse_cursors(log_format.encode_cursors(cursors)) == cursors


@given(cursor_maps, st.data())
def test_cursors_that_are_cut_or_too_long_are_none(
    cursors: dict[bytes, int], data: st.DataObject
) -> None:
    payload = log_format.encode_cursors(cursors)
    cut = data.draw(st.integers(0, len(payload) - 1))
    assert log_format.parse_cursors(payload[:cut]) is None
    assert log_format.parse_cursors(payload + b"x") is None


@given(st.binary(max_size=100))
def test_hostile_cursors_are_none_or_written_the_same_way(payload: bytes) -> None:
    found = log_format.parse_cursors(payload)
    if found is not None and len(found) == int.from_bytes(payload[:4], "little"):
        assert log_format.encode_cursors(found) == payload


def test_more_cursors_than_allowed_are_not_read() -> None:
    count = limits.cursors_per_stream_max + 1
    assert log_format.parse_cursors(count.to_bytes(4, "little")) is None
    assert log_format.parse_cursors(b"\xff\xff\xff\xff") is None


@given(st.lists(st.tuples(streams, sequences, unread_counts), max_size=6), st.binary(max_size=31))
def test_acknowledgements_come_back_without_an_odd_rest(
    rows: list[tuple[bytes, int, int]], rest: bytes
) -> None:
    payload = b"".join(
        log_format.ACK_ROW.pack(stream, seq << 24 | unread) for stream, seq, unread in rows
    )
    assert list(log_format.ack_rows(payload + rest)) == rows


# -------------------------------------------------------------------------------------- tables

slot_fields = st.tuples(
    streams,
    positions,
    sequences,
    sequences,
    positions,
    quotas,
    st.integers(0, 255),
    st.sampled_from([SLOT_USED, SLOT_DELETED]),
)


@given(slot_fields)
def test_a_slot_comes_back_as_it_went(fields: tuple[Any, ...]) -> None:
    image = log_format.encode_slot(*fields)
    assert len(image) == log_format.SLOT_BYTES
    assert log_format.parse_slot(image) == log_format.Slot(*fields)


@given(slot_fields, st.integers(0, 64 * 8 - 1))
def test_a_flipped_bit_of_a_slot_is_noticed(fields: tuple[Any, ...], bit: int) -> None:
    image = bytearray(log_format.encode_slot(*fields))
    image[bit // 8] ^= 1 << bit % 8
    found = log_format.parse_slot(bytes(image))
    # A state that turns into "never used" cannot be told by the slot alone.
    assert found is None or found.state == log_format.SLOT_NEVER_USED
    assert found is None or bit // 8 == log_format.SLOT_STATE_OFFSET


@pytest.mark.parametrize("offset", range(0, 64, 8))
def test_a_slot_torn_between_two_images_is_noticed(offset: int) -> None:
    old = log_format.encode_slot(b"a" * 24, 1, 2, 3, 4, 5, 0, SLOT_USED)
    new = log_format.encode_slot(b"a" * 24, 9, 10, 11, 12, 5, 0x40, SLOT_USED)
    torn = new[:offset] + old[offset:]
    # Up to the first field that differs there is nothing to notice.
    assert (log_format.parse_slot(torn) is None) == (offset > 24)


@given(positions, positions, positions, positions, epochs)
def test_a_table_header_comes_back_as_it_went(
    capacity: int, applied: int, used: int, deleted: int, generation: int
) -> None:
    header = log_format.encode_table_header(capacity, applied, used, deleted, generation)
    expected = log_format.TableHeader(capacity, applied, used, deleted, generation)
    assert log_format.parse_table_header(header + bytes(4_000)) == expected
    assert log_format.parse_table_header(header[:-1]) is None


@given(st.integers(0, 52 * 8 - 1))
def test_a_flipped_bit_of_a_table_header_is_noticed(bit: int) -> None:
    header = bytearray(log_format.encode_table_header(1024, 5, 6, 7, 8))
    header[bit // 8] ^= 1 << bit % 8
    assert log_format.parse_table_header(bytes(header)) is None


@given(streams, st.integers(1, 1 << 40), st.binary(min_size=16, max_size=16))
def test_a_search_starts_inside_the_table(stream: bytes, capacity: int, table_key: bytes) -> None:
    key = log_format.slot_key(table_key)
    assert 0 <= log_format.slot_index(stream, capacity, key) < capacity


# ---------------------------------------------------------------------------------------- runs

keys = st.tuples(streams, st.sampled_from([0, 1]), st.integers(0, (1 << 56) - 1))


@given(keys, keys)
def test_keys_sort_as_what_they_stand_for(
    one: tuple[bytes, int, int], other: tuple[bytes, int, int]
) -> None:
    first, second = log_format.run_key(*one), log_format.run_key(*other)
    assert len(first) == RUN_KEY_BYTES
    assert (first < second) == (one < other)
    assert (first == second) == (one == other)
