"""What a store says of a document that nobody need have open."""

from dataclasses import dataclass

from syncline.errors import CorruptionError
from syncline.storage.base import Store
from syncline.storage.documents import decode_snapshot
from syncline.values.ids import StreamId


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """Without a readable snapshot nobody knows its name."""

    stream: str
    name: str | None
    kind: str | None
    head: int
    first: int
    snapshot_seq: int | None
    snapshot_bytes: int | None

    @property
    def kept_updates(self) -> int:
        return self.head + 1 - self.first


def stored_document(store: Store, stream: StreamId) -> StoredDocument:
    """Raises UnknownQueueError, and CorruptionError if not even its state can be read."""
    state = store.state(stream)
    head = state.next - 1
    try:
        snapshot = store.snapshot(stream)
        found = None if snapshot is None else decode_snapshot(snapshot.payload)
    except CorruptionError:
        snapshot = found = None
    if snapshot is None or found is None:
        return StoredDocument(str(stream), None, None, head, state.first, None, None)
    return StoredDocument(
        str(stream),
        found.name,
        found.kind,
        head,
        state.first,
        snapshot.up_to_seq,
        len(snapshot.payload),
    )
