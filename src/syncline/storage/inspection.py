"""What tools need of a store beyond its contract, and what the contract alone can tell them."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Store, StoreStats, StreamState
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.limits import MIB

_SCRUB_BYTES = 4 * MIB


@runtime_checkable
class Describes(Protocol):
    """A store that knows facts of its own kind: segments, runs, slots."""

    def describe(self) -> Mapping[str, object]: ...


@runtime_checkable
class BacksUp(Protocol):
    """A store that can be copied while it serves."""

    def backup(self, folder: str) -> Generator[int]:
        """Copy into `folder`, empty or not there yet; each step yields the bytes it copied.

        0 while it waits for something. Steps may be taken on any thread, one at a time.
        """
        ...


@runtime_checkable
class Mends(Protocol):
    """A store that can write its files anew without what is damaged in them."""

    def mend(self) -> Iterator[int]:
        """Keep what is readable and let go of the rest; each step yields the bytes it wrote."""
        ...


@dataclass(frozen=True, slots=True)
class StoreReport:
    kind: str
    stats: StoreStats
    details: Mapping[str, object]
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What reading everything gave."""

    stream_count: int
    entry_count: int
    payload_bytes: int
    missing_count: int
    damage: tuple[Damage, ...]

    @property
    def is_whole(self) -> bool:
        return not self.damage and self.missing_count == 0


def report(kind: str, store: Store) -> StoreReport:
    details = dict(store.describe()) if isinstance(store, Describes) else {}
    return StoreReport(kind, store.stats(), details, tuple(store.damage()))


def state_or_damage(store: Store, stream: StreamId) -> StreamState | Damage:
    """The state of a stream, or why it cannot be read: for whoever goes on with the others.

    Raises UnknownQueueError.
    """
    try:
        return store.state(stream)
    except CorruptionError as error:
        return Damage(error.file, error.offset, error.reason, stream)


def read_everything(store: Store) -> Generator[tuple[int, int], None, Findings]:
    """Read every stream whole and check what is sealed; yields streams and bytes of each step."""
    stream_count = entry_count = payload_bytes = missing_count = 0
    unreadable: list[Damage] = []
    for stream in store.streams():
        stream_count += 1
        state = state_or_damage(store, stream)
        if isinstance(state, Damage):
            unreadable.append(state)
            yield 1, 0
            continue
        entries, size, missing = _read_stream(store, stream, state)
        entry_count += entries
        payload_bytes += size
        missing_count += missing
        yield 1, size
    while scrubbed := store.scrub(_SCRUB_BYTES):
        yield 0, scrubbed
    damage = with_unreadable(store.damage(), unreadable)
    return Findings(stream_count, entry_count, payload_bytes, missing_count, damage)


def with_unreadable(known: Sequence[Damage], unreadable: Sequence[Damage]) -> tuple[Damage, ...]:
    """What a store knows to be damaged, and the streams whose state could not be read.

    A store that checks its files may have found some of these by itself.
    """
    found = {(each.file, each.stream) for each in known}
    return (*known, *(each for each in unreadable if (each.file, each.stream) not in found))


def _read_stream(store: Store, stream: StreamId, state: StreamState) -> tuple[int, int, int]:
    """Entries read, their bytes, and how many that should be there are not."""
    count = size = 0
    seq = state.first
    while seq < state.next:
        found = store.read(stream, seq, limits.read_count_max, limits.read_bytes_max)
        if not found:
            break
        count += len(found)
        size += sum(len(entry.payload) for entry in found)
        seq = found[-1].seq + 1
    # Damage that is found on the way is reported by the store itself.
    with suppress(CorruptionError):
        snapshot = store.snapshot(stream)
        if snapshot is not None:
            size += len(snapshot.payload)
    return count, size, state.unread_count - count
