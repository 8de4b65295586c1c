"""Writing streams into a store as they were elsewhere.

A store gives out sequences itself, from 1. One that can begin anywhere says so by the two methods
of `ExactStore`; into any other, a stream that began later is counted up by entries that are let go
of again, if they are not too many. Otherwise its entries get new sequences, and so do its cursors
and its snapshot; the report counts that.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from syncline.errors import ConfigError, CorruptionError, QuotaExceededError
from syncline.storage.base import Damage, Entry, EntryKind, Snapshot, Store, StreamKind, commit
from syncline.storage.exchange.report import ExchangeReport, Progress
from syncline.storage.inspection import state_or_damage
from syncline.values import limits
from syncline.values.ids import StreamId

# A batch is committed at this many entries or bytes.
_COMMIT_ENTRY_COUNT: Final = 1_000
_COMMIT_BYTES: Final = limits.batch_bytes_default
# Entries that may be made and let go of to bring a stream to its first sequence.
_FILLER_COUNT_MAX: Final = 1_024


@runtime_checkable
class ExactStore(Protocol):
    """A store that takes a stream with the sequences it had."""

    def create_at(
        self, stream: StreamId, kind: StreamKind, quota: int, first: int, now_ms: int
    ) -> None: ...

    def append_entry(self, stream: StreamId, entry: Entry) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A stream before its entries come; `message_count` of them are messages, at most.

    Of a blocked one that number is exact, and a quota marker follows.
    """

    stream: StreamId
    kind: StreamKind
    quota: int
    first: int
    is_blocked: bool = False
    message_count: int = 0


class Source(Protocol):
    """Whatever streams can be read from, one after the other."""

    def heads(self) -> Iterator[StreamHead]: ...

    def entries(self, stream: StreamId) -> Iterator[Entry]: ...

    def snapshot(self, stream: StreamId) -> Snapshot | None: ...

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]: ...

    def flaws(self, stream: StreamId) -> list[str]:
        """What is wrong with a stream, once all of it was read."""
        ...

    def file_flaws(self) -> Mapping[str, list[str]]:
        """What else is wrong with the files, once all streams were read."""
        ...


def require_empty(target: Store) -> None:
    """Raises ConfigError for a store that holds anything."""
    if next(target.streams(), None) is not None:
        raise ConfigError("the target holds streams already; import into a new data folder")


def copy_all(
    source: Source, target: Store, report: ExchangeReport, now_ms: int, progress: Progress
) -> None:
    """Bring every stream of the source into an empty store, durably."""
    require_empty(target)
    writer = StreamWriter(target, report, now_ms, progress)
    for head in source.heads():
        writer.begin(head)
        for entry in source.entries(head.stream):
            writer.entry(entry)
        snapshot = source.snapshot(head.stream)
        if snapshot is not None:
            writer.snapshot(snapshot)
        for name, seq in source.cursors(head.stream).items():
            writer.cursor(name, seq)
        writer.end()
        report.add_damage(str(head.stream), source.flaws(head.stream))
    for file, flaws in source.file_flaws().items():
        report.add_file_damage(file, flaws)
    writer.finish()


class StreamWriter:
    """Streams come one after the other: begin, entries in order, snapshot, cursors, end."""

    def __init__(
        self, target: Store, report: ExchangeReport, now_ms: int, progress: Progress
    ) -> None:
        self._target = target
        self._exact = target if isinstance(target, ExactStore) else None
        self._report = report
        self._now_ms = now_ms
        self._progress = progress
        self._staged_count = 0
        self._head: StreamHead | None = None
        self._filler_count = 0
        # The sequences that came, in order: where they went follows from their number.
        self._seqs = array("Q")
        # The entry that came last, if it is one: a marker has one place, the end.
        self._marker: Entry | None = None

    def begin(self, head: StreamHead) -> None:
        self._head = head
        self._seqs = array("Q")
        self._filler_count = 0
        if self._exact is not None:
            self._exact.create_at(head.stream, head.kind, head.quota, head.first, self._now_ms)
        else:
            # More messages than its quota may wait where a crash has lost acknowledgements.
            wanted_quota = min(head.message_count, limits.queue_quota_max)
            quota = head.quota and max(head.quota, wanted_quota)
            self._target.create(head.stream, head.kind, quota, self._now_ms)
            self._fill(head, quota)
        self._staged(1)

    def _fill(self, head: StreamHead, quota: int) -> None:
        """Count up to the first entry; of a full queue, leave as many as it takes to be full."""
        kept_count = max(0, quota - head.message_count) if head.is_blocked else 0
        wanted_count = head.first - 1
        self._filler_count = max(kept_count, wanted_count)
        if self._filler_count > max(kept_count, _FILLER_COUNT_MAX):
            self._filler_count = kept_count
        for count in range(1, self._filler_count + 1):
            self._target.append(head.stream, b"", self._now_ms)
            self._target.truncate_before(head.stream, max(1, count + 1 - kept_count))
            self._staged(1)

    def entry(self, entry: Entry) -> None:
        """Append an entry. One that the target has no place for is counted as skipped.

        So is a marker with anything behind it: a store takes all before it to have been read.
        """
        if self._marker is not None:
            self._marker = None
            self._report.skipped_line_count += 1
        if entry.kind is EntryKind.QUOTA_MARKER:
            self._marker = entry
        else:
            self._write(entry)

    def _write_marker(self) -> None:
        marker, self._marker = self._marker, None
        if marker is not None:
            self._write(marker)

    def _write(self, entry: Entry) -> None:
        head = self._current()
        if entry.time_ms > limits.time_ms_max:
            self._report.skipped_line_count += 1
            return
        if self._exact is not None:
            self._exact.append_entry(head.stream, entry)
        elif not self._append(head.stream, entry):
            self._report.skipped_line_count += 1
            return
        self._seqs.append(entry.seq)
        self._report.entry_count += 1
        self._report.byte_count += len(entry.payload)
        self._staged(1)

    def _append(self, stream: StreamId, entry: Entry) -> bool:
        is_marker = entry.kind is EntryKind.QUOTA_MARKER
        state = self._target.state(stream)
        if is_marker and not 0 < state.quota <= state.unread_count:
            # Only a full queue makes a marker, and this one has lost messages.
            return False
        try:
            self._target.append(stream, entry.payload, entry.time_ms)
        except QuotaExceededError:
            return is_marker
        return True

    def snapshot(self, snapshot: Snapshot) -> None:
        self._write_marker()
        head = self._current()
        up_to_seq = max(0, self._place(snapshot.up_to_seq + 1) - 1)
        next_seq = self._target.state(head.stream).next
        if up_to_seq >= next_seq or snapshot.time_ms > limits.time_ms_max:
            self._report.skipped_line_count += 1
            return
        self._target.put_snapshot(head.stream, up_to_seq, snapshot.payload, snapshot.time_ms)
        self._report.byte_count += len(snapshot.payload)
        self._staged(1)

    def cursor(self, name: bytes, seq: int) -> None:
        self._write_marker()
        head = self._current()
        place = min(self._place(seq), self._target.state(head.stream).next)
        self._target.move_cursor(head.stream, name, place)
        self._staged(1)

    def end(self) -> None:
        self._write_marker()
        head = self._current()
        if self._filler_count and self._exact is None:
            self._target.truncate_before(head.stream, self._filler_count + 1)
        if any(self._place(seq) != seq for seq in (head.first, *self._seqs[-1:])):
            self._report.renumbered_stream_count += 1
        self._report.stream_count += 1
        self._head = None

    def finish(self) -> None:
        commit(self._target)
        self._progress(self._report)

    def _place(self, seq: int) -> int:
        """Where a sequence of the source is in the target."""
        if self._exact is not None:
            return seq
        head = self._current()
        if seq < head.first:
            return max(0, seq - head.first + self._filler_count + 1)
        return self._filler_count + 1 + bisect_left(self._seqs, seq)

    def _current(self) -> StreamHead:
        assert self._head is not None, "a stream begins before anything of it comes"
        return self._head

    def _staged(self, count: int) -> None:
        self._staged_count += count
        if self._staged_count >= _COMMIT_ENTRY_COUNT or self._target.waiting_bytes >= _COMMIT_BYTES:
            self._staged_count = 0
            commit(self._target)
            self._progress(self._report)


class StoreSource:
    """Any store, read from its first stream to its last."""

    def __init__(self, store: Store, report: ExchangeReport) -> None:
        self._store = store
        self._report = report
        self._told: set[Damage] = set()

    def heads(self) -> Iterator[StreamHead]:
        for stream in self._store.streams():
            state = state_or_damage(self._store, stream)
            if isinstance(state, Damage):
                # Nobody knows what it held, so it is left out and not written as an empty one.
                self._told.add(state)
                self._report.add_damage(str(stream), [_flaw(state)])
                continue
            message_count = state.unread_count
            if state.is_blocked:
                message_count = sum(
                    entry.kind is EntryKind.MESSAGE for entry in self.entries(stream)
                )
            yield StreamHead(
                stream, state.kind, state.quota, state.first, state.is_blocked, message_count
            )

    def entries(self, stream: StreamId) -> Iterator[Entry]:
        from_seq = 0
        while page := self._store.read(
            stream, from_seq, limits.read_count_max, limits.batch_bytes_default
        ):
            yield from page
            from_seq = page[-1].seq + 1

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        try:
            return self._store.snapshot(stream)
        except CorruptionError:
            # The store has reported it, so it is among the flaws of the stream.
            return None

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return self._store.cursors(stream)

    def flaws(self, stream: StreamId) -> list[str]:
        found = [each for each in self._store.damage() if each.stream == stream]
        self._told.update(found)
        self._report.lost_entry_count += sum(each.lost_count for each in found)
        return [_flaw(each) for each in found]

    def file_flaws(self) -> Mapping[str, list[str]]:
        """Of damage that names no stream, or one that is not there any more."""
        flaws: dict[str, list[str]] = {}
        for each in self._store.damage():
            if each not in self._told:
                self._report.lost_entry_count += each.lost_count
                flaws.setdefault(each.file, []).append(f"at {each.offset}: {each.reason}")
        return flaws


def _flaw(damage: Damage) -> str:
    return f"{damage.file} at {damage.offset}: {damage.reason}"
