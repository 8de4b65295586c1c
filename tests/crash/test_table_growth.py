"""A table that is too small for what the log says: the process ended before it could grow."""

from random import Random

import pytest

from syncline.errors import StoreFullError
from syncline.storage.base import Store, StreamKind, commit
from syncline.storage.log.upkeep import Upkeep
from syncline.testing.clock import START_MS
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.values.ids import StreamId
from tests.crash.conftest import SLOT_COUNT
from tests.crash.subjects import FOLDER, open_subject
from tests.log_files import stream_id

# Far more than fit, in one batch.
STREAMS = [StreamId(stream_id(number)) for number in range(3 * SLOT_COUNT)]


def written_and_killed(streams: list[StreamId], *, cursors: bool = False) -> SimulatedFiles:
    """Many streams are created by a batch that is durable and was never finished.

    By a router that did not look for room in the table first.
    """
    files = SimulatedFiles()
    store = open_subject("log", files, seed=1)
    create(store, streams[: SLOT_COUNT // 2])
    commit(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upkeep, "check_room_in_table", lambda upkeep: None)
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


@pytest.mark.parametrize("free_bytes", [0, 8_192])
def test_a_table_that_fills_up_while_it_grows_refuses_streams_if_there_is_no_room(
    free_bytes: int,
) -> None:
    files = SimulatedFiles()
    store = open_subject("log", files, seed=1)
    # It has begun to grow, and no job has finished that.
    created = STREAMS[:SLOT_COUNT]
    create(store, created)
    commit(store)
    assert len(files.list(f"{FOLDER}/table")) == 2
    used_bytes = sum(len(files.read_all(path)) for path in files.paths(FOLDER))
    files.capacity_bytes = used_bytes + free_bytes
    for stream in STREAMS[SLOT_COUNT:]:
        try:
            create(store, [stream])
        except StoreFullError:
            break
        created.append(stream)
    commit(store)
    for _ in range(2):
        with pytest.raises(StoreFullError, match="free some space"):
            create(store, STREAMS[-1:])
    store.append(created[-1], b"goes on", START_MS)
    store.delete(created.pop(0))
    commit(store)
    assert sorted(store.streams()) == sorted(created)
    assert [entry.payload for entry in store.read(created[-1], 0, 9, 1 << 20)] == [b"goes on"]

    files.capacity_bytes = None
    create(store, STREAMS[-1:])
    commit(store)
    store.close()
    store = open_subject("log", files, seed=2)
    assert sorted(store.streams()) == sorted([*created, STREAMS[-1]])
    store.close()


@pytest.mark.parametrize("has_room", [True, False])
def test_slots_of_deleted_streams_that_a_power_cut_brings_back_leave_room(has_room: bool) -> None:
    """Others had taken their slots: the log names more streams than the table has slots."""
    count = SLOT_COUNT * 7 // 8
    gone, alive = STREAMS[:count], STREAMS[count : 2 * count]
    files = SimulatedFiles()
    store = open_subject("log", files, seed=1)
    create(store, gone)
    commit(store)
    store.close()
    table = f"{FOLDER}/table/queues.1.tab"
    store = open_subject("log", files, seed=2)
    assert sorted(store.streams()) == sorted(gone)
    commit(store)
    before = files.read_all(table)
    for stream in gone:
        store.delete(stream)
    commit(store)
    create(store, alive)
    commit(store)
    files = files.kill(Random(3))
    # Nothing of the table has reached the device since.
    put_back(files, table, before)
    if not has_room:
        used_bytes = sum(len(files.read_all(path)) for path in files.paths(FOLDER))
        files.capacity_bytes = used_bytes + 2_048
    store = open_subject("log", files, seed=4)
    assert sorted(store.streams()) == sorted(alive)
    assert store.stats().stream_count == len(alive)
    store.append(alive[0], b"goes on", START_MS)
    commit(store)
    assert store.damage() == []
    store.close()


def put_back(files: SimulatedFiles, path: str, content: bytes) -> None:
    file = files.open(path)
    file.write(0, [content])
    file.sync()
    file.close()
