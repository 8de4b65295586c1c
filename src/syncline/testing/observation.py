"""Everything that can be seen of a store, taken down at one moment to be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Entry, Snapshot, Store, StreamState
from syncline.values import limits
from syncline.values.ids import StreamId


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream as a reader sees it."""

    state: StreamState
    entries: Sequence[Entry]
    snapshot: Snapshot | None
    cursors: Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class Observation:
    streams: Mapping[StreamId, StreamView]
    # As the store counts them.
    stream_count: int
    damage: Sequence[Damage]


def observe(store: Store) -> Observation:
    """Look at every stream of a store on which nothing is staged."""
    streams = {stream: view_stream(store, stream) for stream in sorted(store.streams())}
    return Observation(streams, store.stats().stream_count, tuple(store.damage()))


def view_stream(store: Store, stream: StreamId) -> StreamView:
    return StreamView(
        store.state(stream),
        read_all(store, stream),
        snapshot_of(store, stream),
        dict(store.cursors(stream)),
    )


def snapshot_of(store: Store, stream: StreamId) -> Snapshot | None:
    """None, too, if there is none that can be read; then that is among the damage."""
    try:
        return store.snapshot(stream)
    except CorruptionError:
        return None


def read_all(store: Store, stream: StreamId) -> list[Entry]:
    """Every entry that can be read, page by page."""
    entries: list[Entry] = []
    state = store.state(stream)
    from_seq = state.first
    while from_seq < state.next:
        page = store.read(stream, from_seq, limits.read_count_max, limits.read_bytes_max)
        if not page:
            break
        entries += page
        from_seq = page[-1].seq + 1
    return entries
