"""Laws of the kernels: the same answers as the plain way, for all rows at once."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from syncline.kernels.crc32c import crc32c_rows
from syncline.kernels.slots import SlotFinder, scaled, start_slots
from syncline.storage.files import DiskFiles
from syncline.storage.log import format as log_format
from syncline.storage.log.format import HAS_SNAPSHOT, SLOT_DELETED, SLOT_USED, Slot
from syncline.storage.log.liveness import LiveTable
from syncline.testing.files import SimulatedFiles
from tests.log_files import (
    SLOT_KEY,
    find_slot,
    put,
    slot,
    slot_offset,
    stream_id,
    table_image,
    take,
)


def as_rows(streams: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(streams), np.uint8).reshape(-1, 24)


# Ids that differ in little, or end in zeros; tables are so full that many of them meet.
crowded_ids = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([bytes(8), b"\xff" * 8, b"\0" * 7 + b"\x80", b"\xff" * 7 + b"\x7f"]),
    st.sampled_from([bytes(16), b"\0" * 15 + b"\1", b"\1" + b"\0" * 15, b"x" * 16]),
)
ids = st.one_of(crowded_ids, st.binary(min_size=24, max_size=24))

numbers = st.integers(0, (1 << 40) - 1)
slots = st.builds(
    Slot,
    stream=ids,
    born=numbers,
    first=numbers,
    next=numbers,
    applied=numbers,
    quota=st.integers(0, 65_535),
    flags=st.sampled_from([0, HAS_SNAPSHOT, 0xE0]),
    state=st.sampled_from([SLOT_USED, SLOT_DELETED]),
)
# As full as a table may be: one slot is free at least.
slot_lists = st.lists(slots, max_size=30, unique_by=lambda found: found.stream)
capacities = st.integers(31, 40)


@given(st_numpy.arrays(np.uint8, st.tuples(st.integers(0, 50), st.integers(0, 70))))
def test_crc_of_rows_is_crc_of_each_row(rows: npt.NDArray[np.uint8]) -> None:
    expected = [google_crc32c.value(row.tobytes()) for row in rows]
    assert crc32c_rows(rows).tolist() == expected


def test_crc_of_rows_that_are_a_part_of_others() -> None:
    whole = np.random.default_rng(1).integers(0, 256, (9, 64), dtype=np.uint8)
    expected = [google_crc32c.value(row[:60].tobytes()) for row in whole[::2]]
    assert crc32c_rows(whole[::2, :60]).tolist() == expected


def test_crc_of_rows_is_castagnolis() -> None:
    rows = np.frombuffer(b"123456789", np.uint8).reshape(1, 9)
    assert crc32c_rows(rows).tolist() == [0xE306_9283]


def test_crc_of_rows_wants_rows() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        crc32c_rows(np.zeros(4, np.uint8))


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1), st.integers(1, (1 << 40) - 1))
def test_numbers_are_scaled_exactly(numbers: list[int], capacity: int) -> None:
    # The edges of a slot are where an inexact product would fall to the wrong side.
    edges = [-(-(slot << 64) // capacity) for slot in (0, 1, capacity // 2, capacity - 1)]
    numbers += [value for edge in edges for value in (edge - 1, edge) if 0 <= value < 1 << 64]
    expected = [value * capacity >> 64 for value in numbers]
    assert scaled(np.array(numbers, np.uint64), capacity).tolist() == expected


@given(
    st.lists(ids, min_size=1), st.integers(1, (1 << 40) - 1), st.binary(min_size=16, max_size=16)
)
def test_search_starts_where_it_does_for_one_stream(
    streams: list[bytes], capacity: int, table_key: bytes
) -> None:
    key = log_format.slot_key(table_key)
    words = as_rows(streams).view("<u8")
    expected = [log_format.slot_index(stream, capacity, key) for stream in streams]
    assert start_slots(words, capacity, key).tolist() == expected


@given(slot_lists, st.lists(ids, max_size=10), capacities)
def test_streams_are_found_where_a_plain_search_finds_them(
    present: list[Slot], others: list[bytes], capacity: int
) -> None:
    table = table_image(present, capacity)
    wanted = [found.stream for found in present] + others
    finder = SlotFinder(np.frombuffer(table, np.uint8), SLOT_KEY)
    assert finder.capacity == capacity
    assert finder.find(as_rows(wanted)).tolist() == [find_slot(table, stream) for stream in wanted]


@given(slot_lists, st.lists(ids, max_size=10), capacities)
def test_what_is_found_is_what_the_slot_says(
    present: list[Slot], others: list[bytes], capacity: int
) -> None:
    by_stream = {found.stream: found for found in present}
    wanted = [*by_stream, *others]
    finder = SlotFinder(np.frombuffer(table_image(present, capacity), np.uint8), SLOT_KEY)
    found = finder.look_up(as_rows(wanted))
    assert not found.is_unsure.any()
    for place, stream in enumerate(wanted):
        expected = by_stream.get(stream)
        assert found.is_found[place] == (expected is not None)
        if expected is not None:
            assert found.is_used[place] == (expected.state == SLOT_USED)
            assert found.born[place] == expected.born
            assert found.first[place] == expected.first
            assert found.next[place] == expected.next
            assert found.flags[place] == expected.flags


def test_a_full_table_ends_the_search() -> None:
    present = [slot(stream_id(number)) for number in range(16)]
    finder = SlotFinder(np.frombuffer(table_image(present, 16), np.uint8), SLOT_KEY)
    assert finder.find(as_rows([stream_id(99)])).tolist() == [-1]
    assert (finder.find(as_rows([found.stream for found in present])) >= 0).all()


@given(slot_lists.filter(bool), capacities, st.data())
def test_damage_is_never_taken_for_an_answer(
    present: list[Slot], capacity: int, data: st.DataObject
) -> None:
    """A flipped bit may make a stream unsure; it never hides one or gives it other numbers."""
    table = bytearray(table_image(present, capacity))
    hit = data.draw(st.sampled_from(present)).stream
    byte = data.draw(st.integers(0, 63))
    table[slot_offset(find_slot(bytes(table), hit)) + byte] ^= 1 << data.draw(st.integers(0, 7))
    found = SlotFinder(np.frombuffer(bytes(table), np.uint8), SLOT_KEY).look_up(
        as_rows([each.stream for each in present])
    )
    for place, expected in enumerate(present):
        if expected.stream == hit:
            assert found.is_unsure[place]
        elif not found.is_unsure[place]:
            assert found.is_found[place]
            assert found.first[place] == expected.first


def test_a_table_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="no slots"):
        SlotFinder(np.zeros(4096 + 63, np.uint8), SLOT_KEY)


WRITER = """
import mmap, os, sys
from syncline.storage.log.format import encode_slot
descriptor = os.open(sys.argv[1], os.O_RDWR)
table = mmap.mmap(descriptor, 0)
stream, offset = bytes.fromhex(sys.argv[2]), int(sys.argv[3])
images = [encode_slot(stream, n, n, n, n, 0, 0, 1) for n in (0, (1 << 64) - 1)]
os.set_blocking(0, False)
print("ready", flush=True)
is_wanted = True
while is_wanted:
    for _ in range(1000):
        for image in images:
            table[offset : offset + 64] = image
    try:
        is_wanted = os.read(0, 1) != b""
    except BlockingIOError:
        pass
"""


def test_a_slot_changed_meanwhile_is_never_half_believed(tmp_path: Path) -> None:
    """Another process writes all zeros and all ones in turn: a mixture must fail its checksum."""
    files, path, stream = DiskFiles(), f"{tmp_path}/queues.1.tab", stream_id(1)
    put(files, path, table_image([slot(stream, first=0, next_seq=0)], 64))
    offset = slot_offset(find_slot(take(files, path), stream))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path, stream.hex(), str(offset)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        file = files.open(path)
        mapped = file.map(writable=False)
        view = mapped.view()
        finder = SlotFinder(np.frombuffer(view, np.uint8), SLOT_KEY)
        wanted = as_rows([stream] * 2_000)
        for _ in range(20):
            found = finder.look_up(wanted)
            assert found.is_found.all()
            is_sure = ~found.is_unsure
            assert (found.first[is_sure] == found.next[is_sure]).all()
            assert (found.born[is_sure] == found.next[is_sure]).all()
        finder.release()
        view.release()
        mapped.close()
        file.close()
        # Leaving closes its input, and with that it ends.
    assert owner.returncode == 0


# ------------------------------------------------------------------------------------ liveness


def is_live(table: bytes, stream: bytes, position: int, seq: int, is_snapshot: bool) -> bool | None:
    """The rule, one row at a time; None if this table does not know the stream."""
    index = find_slot(table, stream)
    if index < 0:
        return None
    found = log_format.parse_slot(table[slot_offset(index) : slot_offset(index) + 64])
    if found is None:
        return True
    if found.state != SLOT_USED or position < found.born:
        return False
    if is_snapshot:
        return bool(found.flags & HAS_SNAPSHOT)
    return found.first <= seq < found.next


small = st.integers(0, 6)
# Some differ behind their first eight bytes only, some in the last byte.
_LIKE_THE_FIRST = [
    *(stream_id(0)[:8] + stream_id(number)[8:] for number in (12, 13)),
    stream_id(0)[:-1] + b"x",
]
small_ids = st.sampled_from([*map(stream_id, range(12)), *_LIKE_THE_FIRST])
live_slots = st.builds(
    slot,
    small_ids,
    first=small,
    next_seq=small,
    born=small,
    flags=st.sampled_from([0, HAS_SNAPSHOT, 0xC0]),
    state=st.sampled_from([SLOT_USED, SLOT_USED, SLOT_DELETED]),
)
live_tables = st.lists(live_slots, max_size=10, unique_by=lambda found: found.stream)
rows = st.lists(st.tuples(small_ids, small, small, st.booleans()), max_size=40)


@given(live_tables, live_tables, rows, st.integers(0, 3))
def test_rows_live_by_the_plain_rule(
    newest: list[Slot],
    older: list[Slot],
    wanted: list[tuple[bytes, int, int, bool]],
    damage_count: int,
) -> None:
    files = SimulatedFiles()
    tables = [bytearray(table_image(newest, 16)), bytearray(table_image(older, 16, 0))]
    for found in newest[:damage_count]:
        # Its numbers, not its id: that case is a law of its own above.
        tables[0][slot_offset(find_slot(bytes(tables[0]), found.stream)) + 33] ^= 1
    put(files, "/new", bytes(tables[0]))
    put(files, "/old", bytes(tables[1]))
    expected: list[bool] = []
    for row in wanted:
        answers = [is_live(bytes(table), *row) for table in tables]
        passed = {found.stream for found in newest[:damage_count]} - {row[0]}
        verdict = next((answer for answer in answers if answer is not None), False)
        # A search that passed a damaged slot without finding anything is not sure.
        if answers[0] is None and _passes(bytes(tables[0]), row[0], passed):
            verdict = True
        expected.append(verdict)
    with LiveTable(files, ("/new", "/old"), log_format.NO_TABLE_KEY) as table:
        flags = table.are_live(
            as_rows([row[0] for row in wanted]),
            np.array([row[1] for row in wanted], np.uint64),
            np.array([row[2] for row in wanted], np.uint64),
            np.array([row[3] for row in wanted], np.bool_),
        )
    assert flags.tolist() == expected
    assert files.open_file_count == 0


def _passes(table: bytes, stream: bytes, damaged: set[bytes]) -> bool:
    """Whether the search for an absent stream meets the slot of one of `damaged`."""
    index = log_format.slot_index(stream, 16, SLOT_KEY)
    while table[slot_offset(index) + log_format.SLOT_STATE_OFFSET]:
        if table[slot_offset(index) : slot_offset(index) + 24] in damaged:
            return True
        index = (index + 1) % 16
    return False


def test_older_generations_answer_for_what_the_newest_does_not_know() -> None:
    files = SimulatedFiles()
    known = slot(stream_id(1), first=2)
    put(files, "/new", table_image([known]))
    put(files, "/old", table_image([replace(known, first=1), slot(stream_id(2))]))
    with LiveTable(files, ("/new", "/old"), log_format.NO_TABLE_KEY) as table:
        flags = table.are_live(
            as_rows([stream_id(1), stream_id(1), stream_id(2), stream_id(3)]),
            np.zeros(4, np.uint64),
            np.array([1, 2, 1, 1], np.uint64),
            np.zeros(4, np.bool_),
        )
        known_flags = table.are_known(as_rows([stream_id(n) for n in (1, 2, 3)]))
    assert flags.tolist() == [False, True, True, False]
    assert known_flags.tolist() == [True, True, False]
