"""The documents of a data folder that no router has open."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from syncline.cli.folders import looked_at
from syncline.cli.output import Output
from syncline.errors import (
    RefusedError,
    StoreLockedError,
    UnknownDocumentError,
    UnknownQueueError,
)
from syncline.server import document_views
from syncline.server.open_document import DocumentOptions, load
from syncline.storage.base import Damage, Store, StreamKind
from syncline.storage.documents import stream_of
from syncline.storage.inspection import state_or_damage
from syncline.storage.stored_documents import StoredDocument, stored_document
from syncline.values import limits
from syncline.values.ids import StreamId


@dataclass(slots=True)
class StreamCounts:
    queue_count: int = 0
    document_count: int = 0
    # Neither is known: what the store has of them fails its check.
    unreadable: list[Damage] = field(default_factory=list[Damage])

    def facts(self) -> dict[str, int]:
        return {
            "queue_count": self.queue_count,
            "document_count": self.document_count,
            "unreadable_count": len(self.unreadable),
        }


@contextmanager
def unused_folder(folder: Path) -> Generator[Store]:
    """The store in `folder`, only to look. Raises RefusedError if a router has it."""
    try:
        with looked_at(folder) as store:
            yield store
    except StoreLockedError as error:
        raise RefusedError(f"{error}; or ask that router, with --url in place of --data") from error


def walk(store: Store, counts: StreamCounts) -> Iterator[StoredDocument | None]:
    """Every stream once, in no order: a document, or None for anything else."""
    for stream in store.streams():
        kind = count_stream(store, stream, counts)
        yield stored_document(store, stream) if kind is StreamKind.DOCUMENT else None


def count_stream(store: Store, stream: StreamId, counts: StreamCounts) -> StreamKind | None:
    """The kind of a stream, counted; None if it cannot be read."""
    state = state_or_damage(store, stream)
    if isinstance(state, Damage):
        counts.unreadable.append(state)
        return None
    if state.kind is StreamKind.DOCUMENT:
        counts.document_count += 1
    else:
        counts.queue_count += 1
    return state.kind


def read_documents(output: Output, store: Store) -> tuple[list[StoredDocument], StreamCounts]:
    """All documents by name, those without one last, and how much else there is."""
    counts = StreamCounts()
    documents: list[StoredDocument] = []
    with output.count_progress("looking", store.stats().stream_count) as bar:
        for found in walk(store, counts):
            if found is not None:
                documents.append(found)
            bar.advance(1)
    documents.sort(key=lambda each: (each.name is None, each.name or each.stream))
    return documents, counts


def listed_facts(document: StoredDocument) -> dict[str, Any]:
    return asdict(document) | {"kept_updates": document.kept_updates}


def print_listed(output: Output, documents: Sequence[StoredDocument]) -> None:
    columns = ["kind", "head", "first", "snapshot_seq", "snapshot_bytes"]
    rows: list[list[object]] = []
    for document in documents:
        name = f"unknown ({document.stream})" if document.name is None else document.name
        facts = listed_facts(document)
        rows.append([name, *("?" if facts[each] is None else facts[each] for each in columns)])
    shown = ["name", "kind", "head", "first", "snapshot", "bytes"]
    output.table(f"documents: {len(rows)}", shown, rows)


def state_of(store: Store, name: str) -> tuple[dict[str, Any], bool]:
    """The state as a router would show it, and whether all of it could be read.

    Raises UnknownDocumentError, and CorruptionError if there is nothing to begin with.
    """
    stream = stream_of(name)
    try:
        document = load(name, store, DocumentOptions())
    except UnknownQueueError as error:
        raise UnknownDocumentError(f"there is no document {name!r}; check its name") from error
    from_seq = document.machine.snapshot_seq + 1
    is_whole = _has_all(store, stream, from_seq, document.machine.head)
    return document_views.state(document), is_whole


def _has_all(store: Store, stream: StreamId, from_seq: int, head: int) -> bool:
    """Whether every update can be read. Opening a document makes do with those that can."""
    while from_seq <= head:
        found = store.read(stream, from_seq, limits.read_count_max, limits.read_bytes_max)
        expected = list(range(from_seq, from_seq + len(found)))
        if not found or [entry.seq for entry in found] != expected:
            return False
        from_seq += len(found)
    return True
