"""Backends with one fault each. A suite that does not catch them would not catch a real one."""

from collections.abc import Callable
from typing import Self

from syncline.errors import QuotaExceededError
from syncline.storage.base import Batch, Entry, EntryKind, StreamKind
from syncline.storage.files import Files
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId


class ShowsWhatIsStaged(MemoryStore):
    """Visible before durable."""

    def _stage(self, stream: StreamId, byte_count: int = 0, *, waits_for_disk: bool = True) -> None:
        super()._stage(stream, byte_count, waits_for_disk=waits_for_disk)
        if stream in self._streams:
            self._streams[stream].visible_next = self._streams[stream].next


class LosesTheLastEntryOfABatch(MemoryStore):
    """Writes one entry too few; nobody notices before the next start."""

    def write_batch(self, batch: Batch) -> None:
        super().write_batch(batch)
        for image in self._disk.streams.values():
            if image.next > image.first + 1:
                image.next -= 1


class GoesOnCountingAfterDeletion(MemoryStore):
    """A stream that was created anew does not start at 1."""

    def delete(self, stream: StreamId) -> None:
        self._old_next = self._find(stream).next
        super().delete(stream)

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        super().create(stream, kind, quota, now_ms)
        self._streams[stream].first = getattr(self, "_old_next", 1)
        self._streams[stream].next = self._streams[stream].first


class LetsMarkersExpire(MemoryStore):
    def expire_before(self, time_ms: int, count_max: int) -> int:
        count = super().expire_before(time_ms, count_max)
        for stream, found in self._streams.items():
            if count < count_max and found.is_blocked and found.unread_count == 1:
                self.truncate_before(stream, found.next)
                count += 1
        return count


class AcknowledgesWhatNobodyRead(MemoryStore):
    """After a restart the first unread entry of each queue is gone."""

    @classmethod
    def open(
        cls,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> Self:
        store = super().open(folder, files, options, now_ms=now_ms, random_bytes=random_bytes)
        for found in store._streams.values():
            if found.unread_count:
                found.truncate_before(found.first + 1)
        return store


class KeepsTheAcknowledgementFromTheAppend(MemoryStore):
    """An append in a stream whose acknowledgement was kept back does not carry it."""

    def write_batch(self, batch: Batch) -> None:
        before = dict(self._disk.streams)
        super().write_batch(batch)
        for stream, image in self._disk.streams.items():
            old = before.get(stream, image)
            kept = {seq: old.entries[seq] for seq in range(old.first, min(old.next, image.first))}
            if image.unread_count and old.next >= image.first:
                image.entries = {**kept, **image.entries}
                image.first -= len(kept)


class AppendsBehindAMarker(MemoryStore):
    """A blocked queue opens as soon as it has room, not when it is empty."""

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        found = self._find(stream)
        if found.is_blocked and found.unread_count <= found.quota:
            seq = found.append(payload, now_ms, EntryKind.MESSAGE)
            self._stage(stream, len(payload))
            return seq
        return super().append(stream, payload, now_ms)


class StagesAMarkerForEachRefusal(MemoryStore):
    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        found = self._find(stream)
        if found.is_blocked:
            found.append(b"", now_ms, EntryKind.QUOTA_MARKER)
            self._stage(stream)
            raise QuotaExceededError(str(stream), found.quota)
        return super().append(stream, payload, now_ms)


class ForgetsCursors(MemoryStore):
    def write_batch(self, batch: Batch) -> None:
        super().write_batch(batch)
        for image in self._disk.streams.values():
            image.cursors.clear()


class ReadsOneTooMany(MemoryStore):
    def read(self, stream: StreamId, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        return super().read(stream, from_seq, count_max + 1, bytes_max)


class GivesAStagedSnapshot(MemoryStore):
    def put_snapshot(self, stream: StreamId, up_to_seq: int, payload: bytes, now_ms: int) -> None:
        super().put_snapshot(stream, up_to_seq, payload, now_ms)
        self._streams[stream].visible_snapshot = self._streams[stream].snapshot


class HandsOldEntriesToTheSuccessor(MemoryStore):
    """A batch that is finished after its stream was created anew shows up in the new one."""

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        super().create(stream, kind, quota, now_ms)
        old = self._taken.images.get(stream) if self._taken else None
        if old is not None:
            self._streams[stream].next = old.next
            self._streams[stream].entries = dict(old.entries)
            self._streams[stream].first = old.first


BROKEN_STORES: list[type[MemoryStore]] = [
    ShowsWhatIsStaged,
    LosesTheLastEntryOfABatch,
    GoesOnCountingAfterDeletion,
    LetsMarkersExpire,
    AcknowledgesWhatNobodyRead,
    KeepsTheAcknowledgementFromTheAppend,
    AppendsBehindAMarker,
    StagesAMarkerForEachRefusal,
    ForgetsCursors,
    ReadsOneTooMany,
    GivesAStagedSnapshot,
    HandsOldEntriesToTheSuccessor,
]
