"""The queue table: searches stay short whatever the ids are."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from syncline.errors import CorruptionError
from syncline.storage.files import DiskFiles
from syncline.storage.log.format import (
    SLOT_BYTES,
    SLOT_DELETED,
    SLOT_USED,
    encode_slot,
    parse_slot,
    slot_index,
    slot_key,
)
from syncline.storage.log.preparing import write_table
from syncline.storage.log.table import Table, capacity_for
from syncline.testing.files import SimulatedFiles

COUNT = 10_000
KEY = random.Random(7).randbytes(16)
PATH = "/queues.1.tab"

SHAPES: dict[str, Callable[[int], bytes]] = {
    "one prefix": lambda n: b"tenant-0042/queue/".ljust(20, b"-") + n.to_bytes(4, "big"),
    "counted from the front": lambda n: n.to_bytes(4, "little") + bytes(20),
    "counted in the highest byte of each word": lambda n: (
        bytes(7) + bytes([n & 255]) + bytes(7) + bytes([n >> 8 & 255]) + bytes(8)
    ),
    "decimal": lambda n: b"%024d" % n,
    "far apart in equal steps": lambda n: (n * 0x9E3779B97F4A7C15 << 64).to_bytes(24, "big"),
}


def random_id(number: int) -> bytes:
    return random.Random(number).randbytes(24)


def probe_counts(make_id: Callable[[int], bytes]) -> list[int]:
    """How many slots the search for each of the ids looks at, in a table that holds them all."""
    files = SimulatedFiles()
    capacity = capacity_for(COUNT)
    write_table(files, PATH, capacity, 1)
    table = Table.open(files, [(1, PATH)], KEY)
    key = slot_key(KEY)
    ids = [make_id(number) for number in range(COUNT)]
    assert len(set(ids)) == COUNT
    for stream in ids:
        index = table.place(stream)
        table.write(index, encode_slot(stream, 0, 1, 1, 0, 0, 0, SLOT_USED))
    counts = [
        (table.find(stream) - slot_index(stream, capacity, key)) % capacity + 1 for stream in ids
    ]
    table.close()
    return counts


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_of_one_shape_are_found_as_soon_as_random_ones(shape: str) -> None:
    ordinary = probe_counts(random_id)
    counts = probe_counts(SHAPES[shape])
    assert sum(counts) <= 1.15 * sum(ordinary)
    assert max(counts) <= 2 * max(ordinary)


def test_where_streams_meet_depends_on_the_key_of_the_store() -> None:
    """Ids that all meet under one key are spread under another."""
    ids = [random_id(number) for number in range(4_000)]
    meeting = [stream for stream in ids if slot_index(stream, 64, slot_key(KEY)) == 5]
    assert len({slot_index(stream, 64, slot_key(bytes(16))) for stream in meeting}) > 20


def put_stream(table: Table, stream: bytes) -> None:
    table.write(table.place(stream), encode_slot(stream, 0, 1, 1, 0, 0, 0, SLOT_USED))


@pytest.mark.parametrize("moved_after", [0, 1, 100])
def test_a_walk_finds_all_streams_though_they_move_meanwhile(
    moved_after: int, tmp_path: Path
) -> None:
    # On the disk, where the map of a file that was dropped cannot be read any more.
    files, first, second = DiskFiles(), f"{tmp_path}/1.tab", f"{tmp_path}/2.tab"
    write_table(files, first, 1024, 1)
    write_table(files, second, 2048, 2)
    table = Table.open(files, [(1, first)], KEY)
    ids = [random_id(number) for number in range(300)]
    for stream in ids[:200]:
        put_stream(table, stream)
    table.grow_into(files, second, 2)
    for stream in ids[200:]:
        put_stream(table, stream)
    walk = table.used_images(16)
    found = [next(walk)[:24] for _ in range(moved_after)]
    while not table.move_some(1):
        pass
    table.drop_older()
    found += [image[:24] for image in walk]
    assert set(found) == set(ids)
    table.close()


def small_table(files: SimulatedFiles) -> Table:
    """The log was replayed up to position 100, so whatever slot was written before may be stale."""
    write_table(files, PATH, 64, 1)
    table = Table.open(files, [(1, PATH)], KEY)
    table.expect_strays(0, 100)
    return table


def test_a_stale_slot_stays_out_of_reach_when_the_deleted_one_before_it_is_used_again() -> None:
    """Sectors of a table that was never synced may be of any age after a power cut."""
    table = small_table(SimulatedFiles())
    deleted, other = [
        stream
        for stream in map(random_id, range(2_000))
        if slot_index(stream, 64, slot_key(KEY)) == 5
    ][:2]
    table.write(5, encode_slot(deleted, 0, 0, 0, 50, 0, 0, SLOT_DELETED))
    table.write(6, encode_slot(deleted, 0, 1, 2, 40, 0, 0, SLOT_USED))
    assert table.place(other) == 5
    table.write(5, encode_slot(other, 0, 1, 1, 100, 0, 0, SLOT_USED))
    assert table.find(deleted) < 0
    assert table.find(other) == 5


@pytest.mark.parametrize("bit", [0, 100, 191])
def test_a_slot_with_a_damaged_name_is_not_taken_for_a_stale_one(bit: int) -> None:
    files = SimulatedFiles()
    table = small_table(files)
    stream = random_id(1)
    index = table.place(stream)
    table.write(index, encode_slot(stream, 0, 1, 5, 40, 0, 0, SLOT_USED))
    image = bytearray(encode_slot(stream, 0, 1, 5, 40, 0, 0, SLOT_USED))
    image[bit // 8] ^= 1 << bit % 8
    table.write(index, bytes(image))
    table.bury_strays(64)
    assert not table.may_have_strays
    damaged = [found for chunk in table.damaged_images(16) for _, found in chunk]
    assert damaged == [bytes(image)]


def test_looking_for_damage_ends_when_its_generation_is_dropped(tmp_path: Path) -> None:
    files, first, second = DiskFiles(), f"{tmp_path}/1.tab", f"{tmp_path}/2.tab"
    write_table(files, first, 1024, 1)
    write_table(files, second, 2048, 2)
    table = Table.open(files, [(1, first)], KEY)
    walk = table.damaged_images(16)
    assert next(walk) == []
    table.grow_into(files, second, 2)
    assert next(walk) == []
    while not table.move_some(1):
        pass
    table.drop_older()
    assert list(walk) == []
    assert len(list(table.damaged_images(16))) == 2048 // 16
    table.close()


def torn_growth(files: SimulatedFiles, word_count: int) -> tuple[Table, bytes, bytes]:
    """A table whose power went when so many words of a copied slot were on the device; the stream
    and what its slot was."""
    write_table(files, PATH, 64, 1)
    write_table(files, f"{PATH}.2", 128, 2)
    table = Table.open(files, [(1, PATH)], KEY)
    stream = random_id(1)
    image = encode_slot(stream, 10, 3, 9, 40, 128, 0, SLOT_USED)
    table.write(table.place(stream), image)
    table.used_count = 1
    table.grow_into(files, f"{PATH}.2", 2)
    table.write(table.place(stream), image[: 8 * word_count].ljust(SLOT_BYTES, b"\0"))
    return table, stream, image


@pytest.mark.parametrize("word_count", range(3, 9))
@pytest.mark.parametrize("way", ["found", "moved", "walked"])
def test_a_copy_of_which_a_part_reached_the_device_is_made_again(word_count: int, way: str) -> None:
    table, stream, image = torn_growth(SimulatedFiles(), word_count)
    if way == "walked":
        assert [found[:24] for found in table.used_images(16)] == [stream]
    elif way == "moved":
        assert table.move_some(1)
        table.drop_older()
    assert table.read(table.find(stream)) == parse_slot(image)


def test_a_damaged_slot_is_not_taken_back_to_what_it_was_before_it_was_copied() -> None:
    table, stream, _ = torn_growth(SimulatedFiles(), 8)
    index = table.find(stream)
    later = bytearray(encode_slot(stream, 10, 5, 11, 90, 128, 0, SLOT_USED))
    later[33] ^= 1
    table.write(index, bytes(later))
    assert table.find(stream) == index
    assert table.move_some(1)
    table.drop_older()
    with pytest.raises(CorruptionError):
        table.read(table.find(stream))
