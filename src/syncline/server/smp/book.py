"""The records of queues as commands change them, and which of those changes are not durable yet.

What was changed is met by the next command at once. But nobody may be told of it before it is
durable, also not in passing: whoever repeats a command that is still on its way to the disk must
wait as long as the first. So each id of a changed record is *unsettled* until that is durable, and
an answer about it waits for the records. If they refuse the change, the answer is refused with it:
what it was going to tell is not so.

A queue or notifier is *moving* while it is not durable which service it belongs to. Nobody is
handed anything of it then; whoever moves it looks when that is settled.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from syncline.errors import StorageError, StoreBusyError
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.storage.records.base import Records
from syncline.values.queue_records import QueueRecord

DAY_MS = 24 * 60 * 60 * 1_000


def day_of(now_ms: int) -> int:
    return now_ms // DAY_MS


class Unsettled:
    """An id whose record is not durable as it shows: how many changes of it are under way."""

    __slots__ = ("change_count", "refusal")

    def __init__(self) -> None:
        self.change_count = 0
        # Of a change that was under way. Those behind it were made on top of it, and fail with it.
        self.refusal: StorageError | None = None


class Book:
    """Every change of a record by the router goes through here."""

    def __init__(
        self, records: Records, committer: Committer, events: Events | None = None
    ) -> None:
        self._records = records
        self._committer = committer
        self._events = events
        # Bounded by what waits for the disk.
        self._unsettled: dict[bytes, Unsettled] = {}
        self._moving: Counter[bytes] = Counter()
        self._new: set[bytes] = set()

    def is_settled(self, entity_id: bytes) -> bool:
        return entity_id not in self._unsettled

    def unsettled(self, entity_id: bytes) -> Unsettled | None:
        """What an answer about this id relies on, unless that is durable."""
        return self._unsettled.get(entity_id)

    def is_moving(self, entity_id: bytes) -> bool:
        return entity_id in self._moving

    def is_new(self, recipient_id: bytes) -> bool:
        """Whether the queue may still turn out not to exist."""
        return recipient_id in self._new

    def when_settled(self, entity_id: bytes, told: Callable[[StorageError | None], None]) -> None:
        """Call `told` once this id's changes so far are durable, or with why they are not.

        Never, if the device fails: nobody knows what is on the disk then.
        """
        unsettled = self._unsettled.get(entity_id)

        def settled(failure: StorageError | None) -> None:
            if self._committer.failure is None:
                told(failure or (unsettled.refusal if unsettled is not None else None))

        self._committer.when_durable(settled)

    def create(self, record: QueueRecord) -> None:
        """Raises QueueExistsError, StorageError."""
        self._records.create_queue(record)
        self._unsettle(_ids(record))
        self._new.add(record.recipient_id)
        self.when_settled(record.recipient_id, lambda _: self._new.discard(record.recipient_id))
        self._note_moves(_places(record), {})

    def change(self, before: QueueRecord, after: QueueRecord) -> None:
        """Raises QueueExistsError, StorageError."""
        self._records.update_queue(after)
        self._unsettle({*_ids(before), *_ids(after)})
        self._note_moves(_places(after), _places(before))

    def delete(self, record: QueueRecord) -> None:
        self._records.delete_queue(record.recipient_id)
        self._unsettle(_ids(record))

    def touch(self, record: QueueRecord, now_ms: int) -> None:
        """Note that the queue is in use, once a day. Nobody waits for that."""
        if record.used_day >= now_ms // DAY_MS:
            return
        with suppress(StoreBusyError):
            self._records.update_queue(replace(record, used_day=day_of(now_ms)))

    def unsettle(self, entity_id: bytes) -> None:
        """For what is staged on the records by others."""
        self._unsettle((entity_id,))

    def _unsettle(self, ids: Iterable[bytes]) -> None:
        unsettled = self._unsettled
        ids = tuple(ids)
        for each in ids:
            unsettled.setdefault(each, Unsettled()).change_count += 1
        # Told before any answer that waits for the same change, which comes behind it.
        self._committer.when_durable(partial(self._settle, ids))

    def _note_moves(
        self, after: dict[bytes, bytes | None], before: dict[bytes, bytes | None]
    ) -> None:
        """Associations that this changes."""
        moves = [
            (entity_id, before.get(entity_id), after.get(entity_id))
            for entity_id in {**before, **after}
            if before.get(entity_id) != after.get(entity_id)
        ]
        if moves:
            self._moving.update(entity_id for entity_id, _, _ in moves)
            self._committer.when_durable(partial(self._moved, moves))

    def _moved(
        self,
        moves: list[tuple[bytes, bytes | None, bytes | None]],
        failure: StorageError | None,
    ) -> None:
        if failure is not None and self._committer.failure is not None:
            return
        for entity_id, before, after in moves:
            self._moving[entity_id] -= 1
            if not self._moving[entity_id]:
                del self._moving[entity_id]
            if failure is None and self._events is not None:
                self._events.moved(entity_id, before, after)

    def _settle(self, ids: tuple[bytes, ...], failure: StorageError | None) -> None:
        if failure is not None and self._committer.failure is not None:
            # Nothing of it is ever told.
            return
        for each in ids:
            unsettled = self._unsettled[each]
            unsettled.refusal = failure or unsettled.refusal
            unsettled.change_count -= 1
            if not unsettled.change_count:
                del self._unsettled[each]


def _places(record: QueueRecord) -> dict[bytes, bytes | None]:
    """What can belong to a service, and to which it does."""
    places: dict[bytes, bytes | None] = {bytes(record.recipient_id): record.service_id}
    if record.notifier is not None:
        places[record.notifier.notifier_id] = record.notifier.service_id
    return places


def _ids(record: QueueRecord) -> set[bytes]:
    ids = {bytes(record.recipient_id), record.sender_id}
    if record.notifier is not None:
        ids.add(record.notifier.notifier_id)
    if record.link is not None:
        ids.add(record.link.link_id)
    return ids
