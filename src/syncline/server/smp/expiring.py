"""Walks over all queues, slowly, and drops messages that nobody took in time.

A queue that is sent to loses its old messages at that moment; this is for those that are not.
Queues that other faces made are none of its business. One that cannot be read keeps what it has.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from syncline.errors import StorageError
from syncline.server.logs import Log
from syncline.server.smp.folding import unread_among
from syncline.storage.base import Store
from syncline.storage.records.base import Records
from syncline.values.ids import StreamId

ROUND_SECONDS = 7_200.0
# Looked at in one turn of the loop, and the pause after it: a million queues take some minutes.
_AT_ONCE = 64
_PAUSE_SECONDS = 0.02
# How often it is looked whether the store has been gone through.
_COUNTED_SECONDS = 1.0


class ExpiryWalk:
    """`run` goes on until it is cancelled."""

    def __init__(
        self,
        store: Store,
        records: Records,
        expire: Callable[[StreamId, int], None],
        clock_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._store = store
        self._records = records
        self._expire = expire
        self._clock_ms = clock_ms
        self._log = log

    async def run(self) -> None:
        while True:
            if not self._store.stats().is_counted:
                await asyncio.sleep(_COUNTED_SECONDS)
                continue
            try:
                await self.walk()
            except StorageError as error:
                self._log.error("a round of expiry was cut off", reason=str(error))
            await asyncio.sleep(ROUND_SECONDS)

    async def walk(self) -> None:
        """Once over all queues that ever had a message. Raises StorageError."""
        streams = self._store.streams()
        while some := list(islice(streams, _AT_ONCE)):
            now_ms = self._clock_ms()
            # Those without messages are not even brought into memory.
            for stream in map(StreamId, unread_among(self._store, some)):
                self._visit(stream, now_ms)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _visit(self, stream: StreamId, now_ms: int) -> None:
        try:
            if self._records.queue(stream) is not None:
                self._expire(stream, now_ms)
        except StorageError as error:
            self._log.error("a queue cannot be expired", reason=str(error), queue=str(stream))
