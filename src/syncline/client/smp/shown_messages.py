"""Which messages the application has, and which it is done with.

A router delivers a message until it is acknowledged: again after a reconnect, and again when the
service was elsewhere for a while. What always holds:
- A message that the application has, and is not done with, is not shown a second time.
- One that it is done with is not shown again, not even after a crash: that is durable before the
  router is told.
- One that it was shown and is not done with comes again after a crash.

Queues deliver one message after the other, so that one id for each queue is enough to know them by.
"""

import asyncio
from enum import Enum

from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.store_turns import StoreTurns


class Standing(Enum):
    NEW = "new"
    SHOWN = "shown"
    DONE = "done"


class ShownMessages:
    """See the module."""

    def __init__(self, store: AgentStore, turns: StoreTurns) -> None:
        self._store = store
        self._turns = turns
        self._shown: dict[tuple[int, bytes], bytes] = {}
        self._done: list[tuple[Account, bytes, bytes]] = []
        # Gathers until its turn has come, and is replaced then.
        self._saving: asyncio.Task[None] | None = None

    def standing(self, queue: StoredQueue, message_id: bytes) -> Standing:
        if self._shown.get((queue.account.server_id, queue.recipient_id)) == message_id:
            return Standing.SHOWN
        return Standing.DONE if queue.done_message_id == message_id else Standing.NEW

    def show(self, queue: StoredQueue, message_id: bytes) -> None:
        self._shown[queue.account.server_id, queue.recipient_id] = message_id

    def is_shown(self, account: Account, queue: bytes, message_id: bytes) -> bool:
        return self._shown.get((account.server_id, queue)) == message_id

    def forget(self, account: Account, queue: bytes) -> None:
        """The queue is no more."""
        self._shown.pop((account.server_id, queue), None)

    async def done(self, account: Account, queue: bytes, message_id: bytes) -> None:
        """The application is done with it; durable when this returns. All that come until the disk
        is free share a transaction."""
        self._done.append((account, queue, message_id))
        if self._saving is None:
            self._saving = asyncio.create_task(self._save(), name="syncline agent: done")
        await asyncio.shield(self._saving)

    async def _save(self) -> None:
        async with self._turns.one() as write:
            done, self._done, self._saving = self._done, [], None
            await write(self._store.save_done, done)
            for account, queue, message_id in done:
                if self.is_shown(account, queue, message_id):
                    self.forget(account, queue)
