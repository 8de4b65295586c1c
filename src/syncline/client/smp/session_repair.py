"""The books of a session while the ids of its service are repaired, and what is counted of repairs.

A repair changes the store (`repairing`); here subscriptions and events follow.
"""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from syncline.client.smp.agent_events import QueueFailed, QueueUp
from syncline.client.smp.agent_records import Account
from syncline.client.smp.inbox import Inbox
from syncline.client.smp.linking import Link
from syncline.client.smp.receiving import Receiver
from syncline.client.smp.repair_plan import Repaired
from syncline.client.smp.session_subscriptions import SessionSubscriptions
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Msg


@dataclass(slots=True)
class AgentCounters:
    """Since the agent began, over all accounts."""

    # Bulk subscriptions that were answered with another set than ours.
    drift_count: int = 0
    # Repairs with a Syncline router that ended with equal sets, and that did not.
    repair_count: int = 0
    failure_count: int = 0
    # Ids, as in `Repaired`.
    associated_count: int = 0
    dissociated_count: int = 0
    kept_count: int = 0
    failed_count: int = 0
    dropped_count: int = 0
    round_trip_count: int = 0
    # Digests in the store that were not those of its ids.
    digest_count: int = 0
    # Repairs that associated everything again, since the router could not be asked, or in vain.
    plain_repair_count: int = 0

    def add(self, repaired: Repaired) -> None:
        if repaired.is_equal:
            self.repair_count += 1
        else:
            self.failure_count += 1
        self.associated_count += repaired.associated_count
        self.dissociated_count += repaired.dissociated_count
        self.kept_count += repaired.kept_count
        self.failed_count += repaired.failed_count
        self.dropped_count += repaired.dropped_count
        self.round_trip_count += repaired.round_trips
        self.digest_count += repaired.is_digest_repaired


class Creations:
    """Queues that are being made: the router may have them before the store does."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Event] = set()

    @contextmanager
    def one(self) -> Generator[None]:
        """From before the router is asked until the queue is in the store, or is nobody's."""
        is_over = asyncio.Event()
        self._under_way.add(is_over)
        try:
            yield
        finally:
            self._under_way.discard(is_over)
            is_over.set()

    async def until_over(self) -> None:
        """Those that are under way now; what begins later is not waited for."""
        for each in tuple(self._under_way):
            await each.wait()


class SessionBooks:
    """What `repairing.Books` wants, for one account of an agent."""

    def __init__(
        self,
        account: Account,
        subscriptions: SessionSubscriptions,
        receiver: Receiver,
        inbox: Inbox,
        creations: Creations,
    ) -> None:
        self._account = account
        self._subscriptions = subscriptions
        self._receiver = receiver
        self._inbox = inbox
        self._creations = creations

    def may_go_on(self) -> bool:
        return not self._receiver.is_displaced

    def begin_round(self) -> None:
        self._subscriptions.watch_ends()

    def has_ended(self, id_: bytes) -> bool:
        return self._subscriptions.has_ended(id_)

    async def until_created(self) -> None:
        await self._creations.until_over()

    def kept(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        self._joined(link, ids, joined)

    def associated(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        self._joined(link, ids, joined)

    def _joined(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        assert link.service is not None
        # One that was subscribed by itself delivered before.
        self._subscriptions.want(each for each in ids if not self._subscriptions.is_active(each))
        up = self._subscriptions.associated(link.session_id, link.service.service_id, ids, joined)
        if up:
            self._inbox.tell(QueueUp(self._account, up))

    def alone(self, link: Link, ids: Sequence[bytes]) -> None:
        self._subscriptions.want(ids)
        up = self._subscriptions.subscribed(link.session_id, ids)
        if up:
            self._inbox.tell(QueueUp(self._account, up))

    def failed(self, id_: bytes, error: FailureError, *, waits: bool) -> None:
        if waits:
            self._subscriptions.want([id_])
        else:
            self._subscriptions.failed(id_, str(error))
        self._inbox.tell(QueueFailed(self._account, id_, error.failure, is_final=not waits))

    async def take_message(self, link: Link, id_: bytes, message: Msg) -> None:
        await self._receiver.take_message(link, id_, message)
