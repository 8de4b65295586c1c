"""The documents of a store without a router: what is listed, and what a damaged one still gives."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from syncline.cli.document_folders import StreamCounts, state_of, walk
from syncline.errors import CorruptionError, UnknownDocumentError
from syncline.server.open_document import DocumentOptions, create
from syncline.storage.base import Entry, Snapshot, Store, StreamKind, StreamState, commit
from syncline.storage.documents import encode_entry, stream_of
from syncline.storage.files import DiskFiles
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.storage.stored_documents import StoredDocument
from syncline.values.ids import StreamId
from syncline.values.kinds import Kind

QUEUE = StreamId(bytes(24))


@pytest.fixture
def store() -> Store:
    """A queue, a document with two patches after its snapshot, and an empty one."""
    made = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    made.create(QUEUE, StreamKind.QUEUE, 0, 1)
    made.append(QUEUE, b"a message", 1)
    for name, kind in (("plan", Kind.JSON), ("tape", Kind.BYTES)):
        create(name, kind, bytes(8), made, DocumentOptions(), 1)
    for clock, body in enumerate((b'{"a":1,"b":1}', b'{"a":null,"c":[2.5]}'), 1):
        made.append(stream_of("plan"), encode_entry("ann", clock, body), 1)
    commit(made)
    return made


@dataclass
class Damaged:
    """A store of which some cannot be read."""

    store: Any
    lost_seqs: set[int] = field(default_factory=set[int])
    lost_snapshots: dict[StreamId, bytes | None] = field(
        default_factory=dict[StreamId, bytes | None]
    )
    lost_states: set[StreamId] = field(default_factory=set[StreamId])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def state(self, stream: StreamId) -> StreamState:
        if stream in self.lost_states:
            raise CorruptionError("table", 0, "a slot fails its checksum")
        found: StreamState = self.store.state(stream)
        return found

    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        found = self.store.read(stream, from_seq, count_max, bytes_max)
        return [entry for entry in found if entry.seq not in self.lost_seqs]

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        if stream not in self.lost_snapshots:
            found: Snapshot | None = self.store.snapshot(stream)
            return found
        payload = self.lost_snapshots[stream]
        return None if payload is None else Snapshot(0, 1, payload)


def listed(store: Any) -> tuple[dict[str | None, StoredDocument], StreamCounts, int]:
    counts = StreamCounts()
    steps = list(walk(store, counts))
    return {each.name: each for each in steps if each is not None}, counts, len(steps)


def test_documents_are_told_from_queues(store: Store) -> None:
    found, counts, step_count = listed(store)
    assert (counts.queue_count, counts.document_count, counts.unreadable) == (1, 2, [])
    assert step_count == 3, "a step for each stream, so that progress can be shown"
    plan = found["plan"]
    snapshot = store.snapshot(stream_of("plan"))
    assert snapshot is not None
    assert plan == StoredDocument(
        str(stream_of("plan")), "plan", "json", 2, 1, 0, len(snapshot.payload)
    )
    assert plan.kept_updates == 2
    assert (found["tape"].kind, found["tape"].head, found["tape"].kept_updates) == ("bytes", 0, 0)


@pytest.mark.parametrize("payload", [None, b"no snapshot"])
def test_a_document_without_a_snapshot_is_listed_without_a_name(
    store: Store, payload: bytes | None
) -> None:
    found, counts, _ = listed(Damaged(store, lost_snapshots={stream_of("plan"): payload}))
    assert set(found) == {None, "tape"}
    assert found[None] == StoredDocument(str(stream_of("plan")), None, None, 2, 1, None, None)
    assert counts.document_count == 2


def test_a_stream_that_cannot_be_read_does_not_stop_the_walk(store: Store) -> None:
    found, counts, step_count = listed(Damaged(store, lost_states={QUEUE, stream_of("tape")}))
    assert set(found) == {"plan"}
    assert (counts.document_count, step_count) == (1, 3)
    assert {each.stream for each in counts.unreadable} == {QUEUE, stream_of("tape")}


def test_the_state_has_what_came_after_the_snapshot(store: Store) -> None:
    found, is_whole = state_of(store, "plan")
    assert is_whole
    assert (found["kind"], found["seq"], bytes(found["state"])) == ("json", 2, b'{"b":1,"c":[2.5]}')


@pytest.mark.parametrize("lost_seqs", [{1}, {2}, {1, 2}])
def test_a_state_with_lost_updates_is_said_not_to_be_whole(
    store: Store, lost_seqs: set[int]
) -> None:
    damaged: Any = Damaged(store, lost_seqs=lost_seqs)
    _, is_whole = state_of(damaged, "plan")
    assert not is_whole


def test_an_unknown_document_has_no_state(store: Store) -> None:
    with pytest.raises(UnknownDocumentError, match="there is no document 'nope'"):
        state_of(store, "nope")
