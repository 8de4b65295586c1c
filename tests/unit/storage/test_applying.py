"""Each record does to a store what it says."""

from syncline.storage.applying import stage
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId
from syncline.values.records import (
    AppendEntry,
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    TruncateStream,
)

STREAM = StreamId(bytes(range(24)))


def test_records_build_a_document_and_take_it_down() -> None:
    store = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    assert stage(store, CreateStream(STREAM, StreamKind.DOCUMENT, 0, 10)) is None
    assert stage(store, AppendEntry(STREAM, b"one", 11)) == 1
    assert stage(store, AppendEntry(STREAM, b"two", 12)) == 2
    assert stage(store, PutSnapshot(STREAM, 1, b"state", 13)) is None
    assert stage(store, TruncateStream(STREAM, before_seq=2)) is None
    assert stage(store, MoveCursor(STREAM, b"reader", 2)) is None
    assert stage(store, MoveCursor(STREAM, b"gone", 1)) is None
    assert stage(store, DropCursor(STREAM, b"gone")) is None
    commit(store)
    assert store.state(STREAM).kind is StreamKind.DOCUMENT
    assert [(entry.seq, entry.payload) for entry in store.read(STREAM, 0, 9, 99)] == [(2, b"two")]
    snapshot = store.snapshot(STREAM)
    assert snapshot is not None
    assert (snapshot.up_to_seq, snapshot.payload) == (1, b"state")
    assert store.cursors(STREAM) == {b"reader": 2}
    assert stage(store, DeleteStream(STREAM)) is None
    commit(store)
    assert list(store.streams()) == []
