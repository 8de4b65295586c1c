"""What a router says unasked, for one account: messages to the application, ends to the books."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from syncline.client.smp import queues
from syncline.client.smp.agent_events import (
    MessageDamaged,
    MessageReceived,
    NotificationReceived,
    QueueDeleted,
    QueueEnd,
    QueueFailed,
    QueueUp,
    QueueWasFull,
    ServiceAll,
    ServiceEnd,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.inbox import Inbox
from syncline.client.smp.linking import Link
from syncline.client.smp.session_subscriptions import NO_HASH, ServiceSub, SessionSubscriptions
from syncline.client.smp.shown_messages import ShownMessages, Standing
from syncline.client.smp.store_turns import StoreTurns, Turn, whole
from syncline.errors import LinkError, MalformedMessageError, SynclineError
from syncline.links.smp_link import LinkEvent, Request
from syncline.wire.smp.bodies import QuotaReached
from syncline.wire.smp.commands import Ack
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Err,
    Msg,
    Nmsg,
    Ok,
    RouterMessage,
    Sok,
)


class Receiver:
    """See the module."""

    def __init__(
        self,
        account: Account,
        subscriptions: SessionSubscriptions,
        store: AgentStore,
        turns: StoreTurns,
        inbox: Inbox,
        shown: ShownMessages,
        wake: Callable[[], None],
    ) -> None:
        self._account = account
        self._subscriptions = subscriptions
        self._store = store
        self._turns = turns
        self._inbox = inbox
        self._shown = shown
        self._wake = wake
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Another connection of the service has taken over, and was not told to give it back.
        self.is_displaced = False
        # Messages of queues that are not in the store: the router knows more than we do.
        self.stray_count = 0

    async def keep_receiving(self, link: Link, group: asyncio.TaskGroup) -> None:
        """Until the link ends."""
        self._group = group
        while True:
            try:
                event = await link.next_event()
            except LinkError:
                return
            await self._take(link, event)
            missed = link.take_missed()
            if missed:
                # Their messages were left out; who subscribes again is given them again.
                self._subscriptions.want_again(missed)
                self._wake()

    def leave(self) -> None:
        """The connection has ended: what still comes of it is of no use."""
        self._group = None
        for task in self._tasks:
            task.cancel()

    async def take_rest(self, link: Link) -> None:
        """What came before the end and was not looked at. Only messages come again."""
        await whole(self._take_states(link, link.take_events()))

    async def acknowledge(self, link: Link, queue_id: bytes, message_id: bytes) -> None:
        """The application is done with it. The next one comes as the answer, and is shown."""
        queue = self._store.queue(self._account, queue_id)
        if queue is not None:
            await self._acknowledge(link, queue, message_id)

    async def take_message(self, link: Link, queue_id: bytes, message: Msg) -> None:
        queue = self._store.queue(self._account, queue_id)
        if queue is None:
            self.stray_count += 1
            return
        match self._shown.standing(queue, message.message_id):
            case Standing.DONE:
                await self._acknowledge(link, queue, message.message_id)
            case Standing.NEW:
                await self._show(link, queue, message)
            case Standing.SHOWN:
                pass  # It is in the application's hands.

    async def _show(self, link: Link, queue: StoredQueue, message: Msg) -> None:
        account, recipient_id, message_id = self._account, queue.recipient_id, message.message_id
        try:
            content = queues.opened(queue, message).content
        except MalformedMessageError as error:
            damaged = MessageDamaged(account, recipient_id, message_id, str(error))
            await self._inbox.put(damaged)
            self._shown.show(queue, message_id)
            return
        if isinstance(content, QuotaReached):
            self._inbox.tell(QueueWasFull(account, recipient_id, content.time_s))
            await self._acknowledge(link, queue, message_id)
            return
        received = MessageReceived(
            account,
            recipient_id,
            message_id,
            content.time_s,
            content.wants_notification,
            content.body,
        )
        await self._inbox.put(received)
        # Not before: if the link ends while there is no room, it has not been shown.
        self._shown.show(queue, message_id)

    async def _acknowledge(self, link: Link, queue: StoredQueue, message_id: bytes) -> None:
        request = Request(Ack(message_id), queue.recipient_id, queue.key)
        try:
            answer = await link.start(request)
        except LinkError:
            return
        if self._group is not None:
            # The answer may be a message, and there may be no room for it for a while.
            task = self._group.create_task(self._after_acknowledgement(link, queue, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _after_acknowledgement(
        self, link: Link, queue: StoredQueue, answer: Awaitable[RouterMessage]
    ) -> None:
        try:
            message = await answer
        except SynclineError:
            # It was not outstanding here, or the answer is late: then it comes as an event.
            return
        if isinstance(message, Msg):
            await self.take_message(link, queue.recipient_id, message)

    async def _take(self, link: Link, event: LinkEvent) -> None:
        match event.message:
            case Msg() as message:
                await self.take_message(link, event.entity_id, message)
            case Nmsg(nonce=nonce, metadata=metadata):
                notification = NotificationReceived(self._account, event.entity_id, nonce, metadata)
                await self._inbox.put(notification)
            case _:
                # It does not come again: it is done and told even if the link ends meanwhile.
                await whole(self._take_states(link, [event]))

    async def _take_states(self, link: Link, events: Sequence[LinkEvent]) -> None:
        async with self._turns.one() as write:
            for event in events:
                await self._take_state(link, event.entity_id, event.message, write)

    async def _take_state(
        self, link: Link, entity_id: bytes, message: RouterMessage, write: Turn
    ) -> None:
        account, tell = self._account, self._inbox.tell
        match message:
            case Alls():
                tell(ServiceAll(account))
            case End():
                # Whoever subscribed it without our service has taken it out of that.
                await write(self._store.dissociate, account, [entity_id])
                self._subscriptions.ended(entity_id)
                self._shrink_service(link)
                tell(QueueEnd(account, entity_id))
            case Deld():
                await write(self._store.forget, account, entity_id)
                self._subscriptions.forgotten(entity_id)
                self._shrink_service(link)
                self._shown.forget(account, entity_id)
                tell(QueueDeleted(account, entity_id))
            case Ends(count=count, ids_hash=ids_hash):
                self._end_service(link, ServiceSub(entity_id, count, ids_hash or NO_HASH))
            case Err(failure=failure):
                tell(QueueFailed(account, entity_id, failure, is_final=False))
            case Ok() | Sok():
                await self._take_late_subscription(link, entity_id, message, write)
            case _:
                pass  # Late answers to commands that were given up.

    def _shrink_service(self, link: Link) -> None:
        sub = self._store.service(self._account).expected
        if self._subscriptions.active_service is not None and sub is not None:
            self._subscriptions.service_subscribed(link.session_id, sub)

    def _end_service(self, link: Link, sub: ServiceSub) -> None:
        if link.service is None or link.service.service_id != sub.service_id:
            return
        ended = self._subscriptions.service_ended(link.session_id)
        self.is_displaced = True
        self._inbox.tell(ServiceEnd(self._account, ended or sub))

    async def _take_late_subscription(
        self, link: Link, entity_id: bytes, message: Ok | Sok, write: Turn
    ) -> None:
        if not self._subscriptions.is_pending(entity_id):
            return
        service = link.service
        if isinstance(message, Sok) and service and message.service_id == service.service_id:
            joined = await write(self._store.associate, self._account, [entity_id])
            up = self._subscriptions.associated(
                link.session_id, service.service_id, [entity_id], joined
            )
        else:
            up = self._subscriptions.subscribed(link.session_id, [entity_id])
        if up:
            self._inbox.tell(QueueUp(self._account, up))
