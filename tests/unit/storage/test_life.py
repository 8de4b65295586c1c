"""A restored folder is told from the one that its backup was made of, and from which place on."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import CorruptionError
from syncline.storage.life import (
    LIFE_BYTES,
    LIFE_COUNT_MAX,
    LIFE_NAME,
    NO_LOG,
    Life,
    LogPart,
    begin_life,
    copy_life,
    decode_lives,
    encode_lives,
    in_life,
    life_with_records,
    log_id,
    log_parts,
    read_life,
    read_lives,
)
from syncline.testing.files import SimulatedCrashError, SimulatedFiles

INCARNATION = bytes(range(8))
STORE = b"s" * 16


def seed(number: int) -> bytes:
    return bytes([number]) * LIFE_BYTES


def folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder("data")
    return files


def write(files: SimulatedFiles, data: bytes) -> None:
    file = files.open(f"data/{LIFE_NAME}", create=True)
    file.truncate(0)
    file.write(0, [data])
    file.close()


def test_a_folder_that_was_never_restored_tells_what_is_stored() -> None:
    files = folder()
    assert read_life(files, "data") == b""
    assert in_life(INCARNATION, b"") == INCARNATION
    assert log_id(STORE, ()) == STORE
    assert log_parts(STORE, ()) == (LogPart(STORE, 0, None),)


def test_each_restore_begins_another_life() -> None:
    files = folder()
    known = {in_life(INCARNATION, read_life(files, "data"))}
    logs = {log_id(STORE, read_lives(files, "data"))}
    for number in (1, 2):
        begin_life(files, "data", STORE, seed(number), 4_096 * number)
        assert read_life(files, "data") == seed(number)
        known.add(in_life(INCARNATION, read_life(files, "data")))
        logs.add(log_id(STORE, read_lives(files, "data")))
    assert len(known) == len(logs) == 3
    assert all(len(each) == len(INCARNATION) for each in known)
    assert all(len(each) == len(STORE) for each in logs)


def test_what_came_before_a_branch_belongs_to_the_log_before() -> None:
    files = folder()
    ids = [STORE]
    # The third was made of a backup that nothing had been written to: the second has no part.
    for number, branch in ((1, 8_192), (2, 20_480), (3, 20_480)):
        life = begin_life(files, "data", STORE, seed(number), branch)
        assert (life.former, life.branch) == (ids[-1], branch)
        ids.append(log_id(STORE, read_lives(files, "data")))
    assert log_parts(STORE, read_lives(files, "data")) == (
        LogPart(ids[0], 0, 8_192),
        LogPart(ids[1], 8_192, 20_480),
        LogPart(ids[3], 20_480, None),
    )
    # It goes on from the log that has records.
    assert life_with_records(read_lives(files, "data")) == Life(seed(3), 20_480, ids[1])
    assert life_with_records(()) is None


def test_a_copy_knows_the_lives_of_its_folder() -> None:
    files = folder()
    files.make_folder("copy")
    copy_life(files, "data", "copy")
    assert not files.exists(f"copy/{LIFE_NAME}")
    begin_life(files, "data", STORE, seed(1), 4_096)
    copy_life(files, "data", "copy")
    assert read_lives(files, "copy") == read_lives(files, "data")


def test_a_life_of_an_earlier_version_is_all_of_its_folder() -> None:
    files = folder()
    write(files, seed(7))
    (life,) = read_lives(files, "data")
    assert (life.branch, life.former) == (0, NO_LOG)
    assert read_life(files, "data") == seed(7)
    (part,) = log_parts(STORE, (life,))
    assert part == LogPart(log_id(STORE, (life,)), 0, None)
    # A restore of a backup of it keeps it.
    begin_life(files, "data", STORE, seed(8), 8_192)
    assert [each.seed for each in read_lives(files, "data")] == [seed(7), seed(8)]
    assert log_parts(STORE, read_lives(files, "data"))[0] == LogPart(part.log_id, 0, 8_192)


lives = st.lists(
    st.tuples(
        st.binary(min_size=16, max_size=16),
        st.integers(0, 1 << 40),
        st.binary(min_size=16, max_size=16),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda rows: tuple(
        Life(seed, branch, former)
        for (seed, _, former), branch in zip(rows, sorted(row[1] for row in rows), strict=True)
    )
)


@given(lives)
def test_lives_come_back_as_they_were_written(written: tuple[Life, ...]) -> None:
    assert decode_lives(encode_lives(written), "LIFE") == written


@given(lives, st.data())
def test_no_flipped_bit_gives_another_life(written: tuple[Life, ...], data: st.DataObject) -> None:
    encoded = encode_lives(written)
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError) as error:
        decode_lives(bytes(flipped), "LIFE")
    assert error.value.file == "LIFE"


def test_a_file_that_is_cut_is_no_earlier_life() -> None:
    encoded = encode_lives((Life(seed(1), 4_096, STORE), Life(seed(2), 8_192, STORE)))
    for size in range(len(encoded)):
        with pytest.raises(CorruptionError):
            decode_lives(encoded[:size], "LIFE")


@given(st.binary(max_size=200))
def test_what_is_no_life_is_refused(data: bytes) -> None:
    try:
        found = decode_lives(data, "LIFE")
    except CorruptionError:
        return
    assert len(data) == LIFE_BYTES or encode_lives(found) == data


def test_lives_that_go_back_are_refused() -> None:
    with pytest.raises(CorruptionError, match="before the one before it"):
        decode_lives(encode_lives((Life(seed(1), 8_192, STORE), Life(seed(2), 4_096, STORE))), "L")


def test_the_oldest_lives_are_forgotten_and_no_restore_is_refused() -> None:
    files = folder()
    for number in range(3):
        begin_life(files, "data", STORE, seed(number), 4_096)
    kept = read_lives(files, "data")
    many = tuple(Life(seed(n % 251), 4_096, STORE) for n in range(LIFE_COUNT_MAX))
    write(files, encode_lives((*many[3:], *kept)))
    begin_life(files, "data", STORE, seed(9), 8_192)
    found = read_lives(files, "data")
    assert len(found) == LIFE_COUNT_MAX
    assert found[-1] == Life(seed(9), 8_192, log_id(STORE, kept))
    write(files, encode_lives((*many, *kept)))
    with pytest.raises(CorruptionError):
        read_lives(files, "data")


def test_a_crash_leaves_the_life_before_or_the_new_one() -> None:
    seen: list[int] = []
    for stop in range(1, 12):
        files = folder()
        files.sync_folder("data")
        files.sync_folder("")
        begin_life(files, "data", STORE, seed(1), 4_096)
        files.crash_after(stop)
        with suppress(SimulatedCrashError):
            begin_life(files, "data", STORE, seed(2), 8_192)
        seen += [len(read_lives(files.crash(Random(each)), "data")) for each in range(5)]
    assert set(seen) == {1, 2}
