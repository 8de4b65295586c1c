"""The fold: a service that has subscribed gets what waits in its queues, then is told that was all.

It goes through the queues of the service in pages, in the order of their ids, and looks at those
that have something. Between two pages everybody else has a turn, and no transaction is open. While
the session cannot take more the fold waits. Messages that come meanwhile are handed over as they
come: fold and arrivals look at the same slot of a queue, so none comes twice.

- ALLS is last, whatever went wrong with some queues, and with the fold itself.
- A fold that is no longer current says nothing more.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from syncline.core.deliveries import Fold
from syncline.errors import StorageError
from syncline.server.smp.connections import NO_ID, Connection
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.faces import Answer
from syncline.server.smp.parts import Parts
from syncline.server.smp.replies import refusal_text
from syncline.server.smp.tasks import Tasks
from syncline.storage.base import Store
from syncline.values.ids import StreamId
from syncline.wire.smp import failures
from syncline.wire.smp.messages import Alls, Err

# Queues in one page. Looking at so many empty ones takes a few milliseconds.
PAGE_COUNT = 2_048


@runtime_checkable
class FindsUnread(Protocol):
    """A store that can tell which of many streams have something, without reading any."""

    def unread_among(self, streams: Sequence[bytes]) -> list[StreamId]:
        """In the order of their ids, those that exist and have entries, staged ones too."""
        ...


class Folding:
    """See the module."""

    def __init__(self, parts: Parts, delivering: Delivering, tasks: Tasks) -> None:
        self._parts = parts
        self._delivering = delivering
        self._tasks = tasks
        delivering.begin_fold = self.begin

    def begin(self, connection: Connection, fold: Fold) -> None:
        if self._parts.deliveries.fold_is_current(fold):
            self._parts.counters.fold_count += 1
            self._tasks.start(self._run(connection, fold), "fold")

    async def _run(self, connection: Connection, fold: Fold) -> None:
        try:
            await self._walk(connection, fold)
        except StorageError as error:
            self._parts.counters.fold_failed_count += 1
            self._parts.outside.log.error("a fold was cut off", reason=str(error))
            if self._parts.deliveries.fold_is_current(fold):
                self._say_failed(connection, NO_ID, error)
        while not self._parts.deliveries.fold_ended(fold):
            if not self._parts.deliveries.fold_is_current(fold):
                return
            # Some queue that it met is due: the session has to take that first.
            await connection.resumed.wait()
        if fold.says_alls:
            self._parts.connections.send(connection, (Answer(NO_ID, NO_ID, Alls()),))

    async def _walk(self, connection: Connection, fold: Fold) -> None:
        """Look at every queue. Raises StorageError if the records cannot be read."""
        records, is_current = self._parts.outside.records, self._parts.deliveries.fold_is_current
        after: bytes | None = None
        while is_current(fold):
            page = records.page(fold.service, after, PAGE_COUNT)
            for queue in unread_among(self._parts.outside.store, page):
                while not connection.session.is_writable and is_current(fold):
                    await connection.resumed.wait()
                if not is_current(fold):
                    return
                self._look(connection, fold, queue)
            if len(page) < PAGE_COUNT:
                return
            after = page[-1]
            await asyncio.sleep(0)

    def _look(self, connection: Connection, fold: Fold, queue: bytes) -> None:
        record = self._parts.outside.records.queue(queue)
        if record is None or record.service_id != fold.service:
            # It was deleted or has moved since the page was read.
            return
        try:
            self._parts.counters.fold_message_count += self._delivering.look_at(record)
        except StorageError as error:
            self._parts.outside.log.error(
                "a message cannot be read", reason=str(error), queue=str(record.recipient_id)
            )
            self._say_failed(connection, queue, error)

    def _say_failed(self, connection: Connection, queue: bytes, error: StorageError) -> None:
        refusal = Err(failures.store(refusal_text(error)))
        self._parts.connections.send(connection, (Answer(NO_ID, queue, refusal),))


def unread_among(store: Store, queues: Sequence[bytes]) -> Sequence[bytes]:
    """Those of the queues that have a message."""
    if isinstance(store, FindsUnread):
        return store.unread_among(queues)
    heads = store.read_heads(map(StreamId, queues))
    return [queue for queue, head in zip(queues, heads, strict=True) if head is not None]
