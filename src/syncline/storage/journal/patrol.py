"""Going round all queues, a stretch at a time: expiry and scrubbing remember where they stopped."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from syncline.errors import CorruptionError, UnknownQueueError
from syncline.storage.base import EntryKind, StreamKind
from syncline.storage.journal.entries import EntryReader
from syncline.storage.journal.folders import FolderTree
from syncline.storage.journal.queue import OpenQueue
from syncline.values.ids import StreamId

# The owner waits for one stretch: so many queues may have to be opened in it. Opening one after a
# process that did not end in order syncs its files, which takes as long as many others.
_STRETCH_QUEUE_COUNT_MAX: Final = 256
_SUSPECT_QUEUE_COUNT_MAX: Final = 16

Find = Callable[[StreamId], OpenQueue]


def _stretch_queue_count(tree: FolderTree) -> int:
    return _SUSPECT_QUEUE_COUNT_MAX if tree.is_suspect else _STRETCH_QUEUE_COUNT_MAX


class ExpiryRound:
    """Finds what is too old, queue after queue, round and round."""

    def __init__(self, tree: FolderTree, find: Find) -> None:
        self._tree = tree
        self._find = find
        self._after: StreamId | None = None

    def due(self, time_ms: int, count_max: int) -> Iterator[tuple[OpenQueue, int, int]]:
        """Queues with the sequence that they may be truncated before, and how many entries go."""
        for stream in self._next_streams():
            if count_max <= 0:
                return
            try:
                queue = self._find(stream)
            except UnknownQueueError:
                continue
            seq, count = _expired(queue, time_ms, count_max)
            count_max -= count
            if count_max > 0:
                self._after = stream
            if count:
                yield queue, seq, count

    def _next_streams(self) -> Iterator[StreamId]:
        """Every queue once, from where the last stretch ended, up to a bound."""
        start = self._after
        count, count_max = 0, _stretch_queue_count(self._tree)
        for stream in self._tree.streams(start):
            if count >= count_max:
                return
            count += 1
            yield stream
        self._after = None
        if start is None:
            return
        for stream in self._tree.streams():
            if count >= count_max or str(stream) > str(start):
                return
            count += 1
            yield stream


def _expired(queue: OpenQueue, time_ms: int, count_max: int) -> tuple[int, int]:
    # The updates of a document are let go of by whoever has taken its snapshot.
    if queue.state.kind is not StreamKind.QUEUE:
        return queue.first, 0
    seq, count = queue.first, 0
    for place in queue.index.places_from(queue.first):
        if (
            count >= count_max
            or place.seq >= queue.state.next
            or place.time_ms >= time_ms
            or place.kind is not EntryKind.MESSAGE
        ):
            break
        seq, count = place.seq + 1, count + 1
    return seq, count


class ScrubRound:
    """Reads every unread entry and every snapshot again, from the device."""

    def __init__(
        self, tree: FolderTree, find: Find, reader: Callable[[OpenQueue], EntryReader]
    ) -> None:
        self._tree = tree
        self._find = find
        self._reader = reader
        self._streams: Iterator[StreamId] | None = None
        self._stream: StreamId | None = None
        self._seq = 0

    def scrub(self, bytes_max: int) -> int:
        """Check about that much, or less; return the bytes read, 0 once at the end of a round."""
        if self._streams is None:
            self._streams = self._tree.streams()
        byte_count = 0
        for _ in range(_stretch_queue_count(self._tree)):
            if byte_count >= bytes_max:
                break
            if self._stream is None:
                self._stream, self._seq = next(self._streams, None), 0
            if self._stream is None:
                # The next call begins a new round, unless it has to say that this one is over.
                self._streams = None if byte_count == 0 else self._streams
                break
            byte_count += self._scrub_queue(self._stream, bytes_max - byte_count)
        else:
            # All of them may be deleted by now, and it is not the end.
            byte_count = max(byte_count, 1)
        return byte_count

    def _scrub_queue(self, stream: StreamId, bytes_max: int) -> int:
        try:
            queue = self._find(stream)
        except UnknownQueueError:
            self._stream = None
            return 0
        reader = self._reader(queue)
        byte_count = 0
        if self._seq == 0:
            # Its state lines were checked when it was opened.
            byte_count += queue.log_bytes
            with suppress(CorruptionError):
                # It is reported.
                snapshot = reader.snapshot()
                byte_count += len(snapshot.payload) if snapshot else 0
        for place in queue.index.places_from(max(self._seq, queue.first)):
            if byte_count >= bytes_max or place.seq >= queue.state.next:
                break
            reader.check(place)
            byte_count += place.length
            self._seq = place.seq + 1
        else:
            self._stream = None
        if self._stream is not None and self._seq >= queue.state.next:
            self._stream = None
        return max(byte_count, 1)
