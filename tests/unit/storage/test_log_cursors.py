"""Cursors are written anew before their segment goes: there are never too many for that."""

from contextlib import suppress
from random import Random

import pytest

from syncline.errors import LimitExceededError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.cursors import check_room_for_cursor
from syncline.storage.log.format import cursors_bytes, encode_cursors
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values import limits
from syncline.values.ids import StreamId

DOCUMENT = StreamId(b"d" * 24)


def opened(files: SimulatedFiles, seed: int) -> LogStore:
    options = StoreOptions(segment_bytes=limits.segment_bytes_min)
    return LogStore.open("/data", files, options, now_ms=1, random_bytes=Random(seed).randbytes)


def write(store: LogStore, segment_count: int) -> None:
    """Fill so many segments with what nobody wants any more."""
    for _ in range(segment_count * 8):
        seq = store.append(DOCUMENT, bytes(8_000), 1)
        store.truncate_before(DOCUMENT, seq)
        commit(store)
        run_jobs(store)


@pytest.mark.parametrize("name_bytes", [4, 40, limits.cursor_name_bytes_max])
def test_as_many_as_are_taken_outlive_their_segments(name_bytes: int) -> None:
    files = SimulatedFiles()
    store = opened(files, 0)
    store.create(DOCUMENT, StreamKind.DOCUMENT, 0, 1)
    names = (b"%0*d" % (name_bytes, number) for number in range(10_000))
    taken: dict[bytes, int] = {}
    with suppress(LimitExceededError):
        for name in names:
            store.move_cursor(DOCUMENT, name, 0)
            taken[name] = 0
    commit(store)
    write(store, 6)
    half = limits.segment_bytes_min // 2
    assert half - 100 < len(encode_cursors(taken)) <= half
    # What is there may move, and what was dropped makes room for another.
    moved, dropped = list(taken)[:2]
    store.move_cursor(DOCUMENT, moved, 2)
    store.drop_cursor(DOCUMENT, dropped)
    store.move_cursor(DOCUMENT, bytes(name_bytes), 1)
    write(store, 6)
    store.close()
    store = opened(files, 1)
    assert store.describe()["live_segments"] < 6
    del taken[dropped]
    assert store.cursors(DOCUMENT) == {**taken, moved: 2, bytes(name_bytes): 1}
    store.close()


def test_what_cursors_take_is_known_before_they_are_written() -> None:
    cursors = {b"": 1, b"a": 2, b"b" * limits.cursor_name_bytes_max: 3}
    assert cursors_bytes(cursors) == len(encode_cursors(cursors))


def test_the_number_of_cursors_has_a_limit_however_large_a_segment_is() -> None:
    cursors = {b"%d" % number: 0 for number in range(limits.cursors_per_stream_max)}
    cursors.popitem()
    check_room_for_cursor(cursors, b"last", limits.segment_bytes_max)
    cursors[b"last"] = 0
    with pytest.raises(LimitExceededError, match="cursors"):
        check_room_for_cursor(cursors, b"one more", limits.segment_bytes_max)
