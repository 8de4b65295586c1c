"""A backup of a store that goes on: whatever happens meanwhile, the copy can be opened."""

from itertools import islice

import pytest

from syncline.storage.base import StreamKind, commit
from syncline.storage.log import backup
from syncline.storage.log.table import CAPACITY_MIN
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.log_files import stream_id
from tests.unit.storage.test_log_adopting import check, made, opened, write

COPY = "/copy"
STREAMS = [StreamId(stream_id(number)) for number in range(8 * CAPACITY_MIN)]


@pytest.mark.parametrize("growth_count", [1, 2, 3])
@pytest.mark.parametrize("step_count", range(1, 6))
def test_the_table_may_grow_while_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, step_count: int, growth_count: int
) -> None:
    monkeypatch.setattr(backup, "_CHUNK_BYTES", CAPACITY_MIN * 32)
    files = SimulatedFiles()
    store = made(files)
    write(store, 2)
    first = [*store.streams()]
    copying = store.backup(COPY)
    assert sum(islice(copying, step_count)) > 0
    waiting = iter(STREAMS)
    capacity = store.describe()["table_slots"]
    for _ in range(growth_count):
        while store.describe()["table_slots"] == capacity:
            for stream in islice(waiting, CAPACITY_MIN // 4):
                store.create(stream, StreamKind.QUEUE, 0, 1)
            commit(store)
        capacity = store.describe()["table_slots"]
    for _ in copying:
        pass
    is_open = files.open_file_count
    copy = opened(files, COPY)
    check(copy)
    found = {*copy.streams()}
    assert found >= {*first}
    # A queue without its slot, or two slots of one, would not be found like this.
    assert len(found) == copy.stats().stream_count
    for stream in found - {*first}:
        assert copy.state(stream).next == 1
    copy.close()
    assert files.open_file_count == is_open
    store.close()
    assert files.open_file_count == 0
