"""Many streams in one call, for stores that gain nothing by doing it themselves."""

from collections.abc import Iterable

from syncline.errors import (
    LimitExceededError,
    RefusedError,
    StorageError,
    UnknownQueueError,
)
from syncline.storage.base import Entry, Store
from syncline.values import limits
from syncline.values.ids import StreamId


def append_each(store: Store, messages: Iterable[tuple[StreamId, bytes]], now_ms: int) -> list[int]:
    """`Store.append_many`."""
    seqs: list[int] = []
    for stream, payload in messages:
        if _would_refuse(store, stream):
            break
        try:
            seqs.append(store.append(stream, payload, now_ms))
        except (StorageError, RefusedError, LimitExceededError):
            break
    return seqs


def _would_refuse(store: Store, stream: StreamId) -> bool:
    """Whether the quota would; asked first, as being refused leaves a marker."""
    try:
        state = store.state(stream)
    except (StorageError, RefusedError):
        return True
    return state.is_blocked or 0 < state.quota <= state.unread_count


def truncate_each(store: Store, positions: Iterable[tuple[StreamId, int]]) -> int:
    """`Store.truncate_many`."""
    count = 0
    for stream, seq in positions:
        try:
            store.truncate_before(stream, seq)
        except (StorageError, RefusedError, LimitExceededError):
            break
        count += 1
    return count


def read_each_head(store: Store, streams: Iterable[StreamId]) -> list[Entry | None]:
    """`Store.read_heads`."""
    return [read_head(store, stream) for stream in streams]


def read_head(store: Store, stream: StreamId) -> Entry | None:
    try:
        entries = store.read(stream, 0, 1, limits.read_bytes_max)
    except UnknownQueueError:
        return None
    return entries[0] if entries else None
