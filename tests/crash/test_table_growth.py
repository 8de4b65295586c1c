"""A table that is too small for what the log says: the process ended before it could grow."""

from random import Random

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import Store, StreamKind, commit
from syncline.testing.clock import START_MS
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.values.ids import StreamId
from tests.crash.conftest import SLOT_COUNT
from tests.crash.subjects import FOLDER, open_subject
from tests.log_files import stream_id

# Far more than fit, in one batch.
STREAMS = [StreamId(stream_id(number)) for number in range(3 * SLOT_COUNT)]


def written_and_killed(streams: list[StreamId], *, cursors: bool = False) -> SimulatedFiles:
    """Many streams are created by a batch that is durable and was never finished."""
    files = SimulatedFiles()
    store = open_subject("log", files, seed=1)
    create(store, streams[: SLOT_COUNT // 2])
    commit(store)
    create(store, streams[SLOT_COUNT // 2 :])
    if cursors:
        for stream in streams:
            store.move_cursor(stream, b"reader", 0)
    batch = store.take_batch()
    assert batch is not None
    store.write_batch(batch)
    return files.kill(Random(2))


def create(store: Store, streams: list[StreamId]) -> None:
    for stream in streams:
        store.create(stream, StreamKind.QUEUE, 0, START_MS)


@pytest.mark.parametrize("cursors", [False, True])
def test_a_table_too_small_for_the_log_grows_while_it_is_opened(cursors: bool) -> None:
    files = written_and_killed(STREAMS, cursors=cursors)
    store = open_subject("log", files, seed=3)
    assert sorted(store.streams()) == sorted(STREAMS)
    assert store.stats().stream_count == len(STREAMS)
    store.append(STREAMS[-1], b"goes on", START_MS)
    commit(store)
    store.close()
    store = open_subject("log", files, seed=4)
    assert sorted(store.streams()) == sorted(STREAMS)
    assert [entry.payload for entry in store.read(STREAMS[-1], 0, 9, 1 << 20)] == [b"goes on"]
    assert store.damage() == []


def test_a_crash_amid_that_growth_loses_nothing() -> None:
    for call in range(1, 200):
        files = written_and_killed(STREAMS)
        files.crash_after(call)
        try:
            store = open_subject("log", files, seed=3)
        except SimulatedCrashError:
            pass
        else:
            # Opened before that call: all of the growth was crashed once.
            assert call > 10
            store.close()
            break
        after = open_subject("log", files.crash(Random(call)), seed=5)
        assert sorted(after.streams()) == sorted(STREAMS)
        after.close()
    else:
        pytest.fail("opening has more calls than were crashed")


def test_without_room_for_a_larger_table_the_folder_says_so_and_can_be_opened_later() -> None:
    files = written_and_killed(STREAMS)
    used_bytes = sum(len(files.read_all(path)) for path in files.paths(FOLDER))
    # The manifest can be written, a larger table cannot.
    files.capacity_bytes = used_bytes + 8_192
    with pytest.raises(StoreFullError, match="table"):
        open_subject("log", files, seed=3)
    assert files.open_file_count == 0
    files.capacity_bytes = None
    store = open_subject("log", files, seed=4)
    assert sorted(store.streams()) == sorted(STREAMS)
    store.close()
