"""Expiry: what is damaged keeps nobody else's messages."""

from random import Random

from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min

DAMAGED = StreamId(b"d" * 24)
OTHER = StreamId(b"o" * 24)
TABLE = "/data/table/queues.1.tab"


def opened(files: SimulatedFiles, seed: int) -> LogStore:
    options = StoreOptions(segment_bytes=segment_bytes_min)
    return LogStore.open("/data", files, options, now_ms=1, random_bytes=Random(seed).randbytes)


def test_a_queue_whose_slot_is_damaged_is_reported_and_the_others_expire() -> None:
    files = SimulatedFiles()
    store = opened(files, 0)
    for stream in (DAMAGED, OTHER):
        store.create(stream, StreamKind.QUEUE, 0, 1)
    store.append(DAMAGED, b"message", 1)
    for _ in range(30):
        store.append(OTHER, bytes(8_000), 1)
        commit(store)
    run_jobs(store)
    store.close()
    offset = files.read_all(TABLE).index(DAMAGED)
    files.flip_bit(TABLE, offset + 40)

    store = opened(files, 1)
    assert store.expire_before(1_000, 20) == 20
    assert store.expire_before(1_000, 20) == 10
    assert store.state(OTHER).unread_count == 0
    (damage,) = store.damage()
    assert (damage.file, damage.offset, damage.stream) == (TABLE, offset, DAMAGED)
    while store.scrub(1 << 20):
        pass
    assert list(store.damage()) == [damage], "one place, however it is found"
    store.close()
