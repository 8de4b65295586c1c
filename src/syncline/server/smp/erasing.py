"""Messages of deleted queues go after their record: first nobody finds the queue, then it is empty.

A deleted queue leaves a tombstone among the records until its messages are gone for good, so that a
crash in between leaves no messages behind that belong to nobody.
"""

from functools import partial

from syncline.errors import StorageError, UnknownQueueError
from syncline.server.smp.parts import Parts
from syncline.values.ids import StreamId

# Tombstones taken up at a time by `finish_some`.
_AT_ONCE = 1_024


class Erasing:
    """See the module."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Staged in the log, and not durable there.
        self._under_way: set[bytes] = set()

    def erase(self, queue: StreamId) -> None:
        """Its deletion is durable. What cannot be done now is done by `finish_some`."""
        if queue in self._under_way:
            return
        try:
            self._parts.outside.store.delete(queue)
        except UnknownQueueError:
            # It never had a message, or they went before a crash.
            self._forget(queue)
            return
        except StorageError:
            return
        self._under_way.add(queue)
        self._parts.outside.committer.when_durable(partial(self._erased, queue))

    def finish_some(self) -> int:
        """Take up deletions that were left unfinished; how many there were."""
        try:
            left = self._parts.outside.records.deleted_queues(_AT_ONCE)
        except StorageError as error:
            # Their messages stay for now; those of others are served all the same.
            self._parts.outside.log.error("deleted queues cannot be read", reason=str(error))
            return 0
        for queue in left:
            self.erase(queue)
        return len(left)

    def _erased(self, queue: StreamId, failure: StorageError | None) -> None:
        self._under_way.discard(queue)
        if failure is None:
            self._forget(queue)

    def _forget(self, queue: StreamId) -> None:
        try:
            self._parts.outside.records.forget_deleted((queue,))
        except StorageError:
            # Too much waits for the disk: its tombstone is found again.
            return
