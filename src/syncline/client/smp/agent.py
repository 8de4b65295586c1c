"""An agent: stays subscribed to the queues in its store, of any number of users at any number of
routers, whatever happens to connections, routers and services.

    async with Agent(AgentStore(path)) as agent:
        account = await agent.account("me", address)
        queue = await agent.create_queue(account, "inbox")
        async for event in agent:
            if isinstance(event, MessageReceived):
                ...                              # make it your own first
                await agent.acknowledge(event)

Each account has a connection of its own (`agent_session`). With services, all of its queues are
subscribed with one command.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import cast

from syncline.client.smp import queues
from syncline.client.smp.agent_events import AgentEvent, MessageDamaged, MessageReceived, QueueUp
from syncline.client.smp.agent_records import (
    Account,
    NotifierCredentials,
    StoredNotifier,
    StoredQueue,
)
from syncline.client.smp.agent_session import AgentOptions, AgentSession
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.inbox import Inbox
from syncline.client.smp.linking import Connect, Link, World, connecting
from syncline.client.smp.proxy_links import ProxyLinks
from syncline.client.smp.queues import Asking, LinkData, NewQueue
from syncline.client.smp.session_repair import AgentCounters
from syncline.client.smp.shown_messages import ShownMessages
from syncline.client.smp.store_turns import StoreTurns, whole
from syncline.errors import LinkClosedError, QueueExistsError, UnknownQueueError
from syncline.links.private_keys import PrivateKey
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp import failures, versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind, PublicKey


class Agent:
    """See the module. Used within its `async with` block; the store is the caller's to close."""

    def __init__(
        self,
        store: AgentStore,
        options: AgentOptions | None = None,
        *,
        connect: Connect | None = None,
        world: World | None = None,
        subscribes: bool = True,
    ) -> None:
        """`subscribes`: to all queues in the store, from the start; without it only to what is made
        or asked for."""
        self.store = store
        # For looking at: what was found to differ from routers, and repaired.
        self.counters = AgentCounters()
        self._options = options or AgentOptions()
        self._world = world or World(connect or connecting())
        self._subscribes = subscribes
        self._inbox = Inbox(self._options.message_count_max, self._options.event_count_max)
        self._turns = StoreTurns(store, self._world.on_thread)
        self._shown = ShownMessages(store, self._turns)
        self._sessions: dict[Account, AgentSession] = {}
        self._proxies: ProxyLinks | None = None
        self._group: asyncio.TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Agent":
        started = asyncio.Event()
        # One task of its own, so that an error of the caller's block stays what it is.
        self._running = asyncio.create_task(self._run(started), name="syncline agent")
        self._running.add_done_callback(self._ended)
        await started.wait()
        if self._subscribes:
            for account in self.store.accounts():
                self._session(account)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        # Whoever wrote something has it in the store when the agent is closed.
        await whole(self._turns.settled())
        failed = None if self._running.cancelled() else self._running.exception()
        if failed is not None and error is None:
            raise _only(failed)

    async def _run(self, started: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            if self._options.proxy is not None:
                self._proxies = ProxyLinks(self._options.proxy, self._world, group)
            started.set()
            # Sessions are added as they are needed, and end with this.
            await asyncio.get_running_loop().create_future()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._group = self._proxies = None
        error = None if task.cancelled() else task.exception()
        self._inbox.end(LinkClosedError("the agent is closed") if error is None else _only(error))

    # ----------------------------------------------------------------------------------- accounts

    async def account(
        self, user: str, address: RouterAddress, role: ServiceRole = ServiceRole.MESSAGING
    ) -> Account:
        """The account of a user at a router, made if there is none."""
        return await self._turns.write(self.store.account, user, address, role)

    async def subscribe(self, account: Account) -> None:
        """To everything of the account, from now on and after every restart. Takes back what
        another connection took over."""
        await self._turns.write(self.store.want_all, account, True)
        self._session(account).subscribe_all()

    async def subscribe_queues(self, account: Account, ids: Sequence[bytes]) -> None:
        """To these, such as after they were taken over."""
        await self._turns.write(self.store.set_wanted, account, ids, True)
        self._session(account).subscribe(ids)

    def hurry(self) -> None:
        """Try all routers now that cannot be reached."""
        for session in self._sessions.values():
            session.hurry()

    def session(self, account: Account) -> AgentSession | None:
        """For looking at: what is pending and active."""
        return self._sessions.get(account)

    async def link(self, account: Account) -> Link:
        """The connection of the account, once its service is settled. For commands that the agent
        has no word for. Raises LinkLostError if there is none for too long."""
        return await self._session(account).ready()

    # ------------------------------------------------------------------------------------- queues

    async def create_queue(
        self,
        account: Account,
        name: str,
        *,
        mode: QueueMode = QueueMode.MESSAGING,
        key_kind: KeyKind = KeyKind.ED25519,
        has_envelope: bool = True,
        has_notifier: bool = False,
        link_data: LinkData | None = None,
    ) -> StoredQueue:
        """A new queue, subscribed. `has_envelope`: with a key for what sender and recipient say to
        each other, to be put in its address. Raises QueueExistsError if the name is taken."""
        if self.store.queue_named(account.user_id, name) is not None:
            raise QueueExistsError(name)
        link = await self.link(account)
        entropy = self._world.entropy
        envelope_key = PrivateKey.new(KeyKind.X25519, entropy) if has_envelope else None
        # The router has it before the store does.
        with self._session(account).creations.one():
            new = await queues.create(
                link,
                mode=mode,
                key_kind=key_kind,
                password=self.store.address(account.server_id).password,
                has_notifier=has_notifier and link.version >= versions.NOTIFIER_KEYS,
                link_data=link_data,
                entropy=entropy,
            )
            queue = await whole(self._kept(account, name, new, link, envelope_key))
        if has_notifier and queue.notifier is None:
            await self.add_notifier(queue)
        return self._current(queue)

    async def _kept(
        self,
        account: Account,
        name: str,
        new: NewQueue,
        link: Link,
        envelope_key: PrivateKey | None,
    ) -> StoredQueue:
        own = None if link.service is None else link.service.service_id
        is_associated = own is not None and new.service_id == own
        queue = StoredQueue(
            account,
            name,
            new.recipient_id,
            new.sender_id,
            new.mode,
            new.key,
            new.secret,
            envelope_key,
            notifier=new.notifier,
            link_id=new.link_id,
            is_associated=is_associated,
        )
        ids = (new.recipient_id,)
        async with self._turns.one() as write:
            await write(self.store.add_queue, queue)
            found = self._session(account).subscriptions
            if own is not None and is_associated:
                found.associated(link.session_id, own, ids, ids)
            else:
                found.created(link.session_id, new.recipient_id)
            self._inbox.tell(QueueUp(account, ids))
        return queue

    async def secure(self, queue: StoredQueue, sender: PublicKey) -> None:
        """Only the holder of this key may send from now on."""
        await queues.secure(await self.link(queue.account), queue, sender)

    async def add_notifier(self, queue: StoredQueue) -> NotifierCredentials:
        """New ones, kept with the queue; hand them to whoever is to follow its notifications."""
        link = await self.link(queue.account)
        notifier = await queues.add_notifier(link, queue, self._world.entropy)
        await self._turns.write(self.store.save_notifier, queue, notifier)
        return notifier

    async def delete_notifier(self, queue: StoredQueue) -> None:
        await queues.delete_notifier(await self.link(queue.account), queue)
        await self._turns.write(self.store.save_notifier, queue, None)

    async def suspend(self, queue: StoredQueue) -> None:
        """It takes no more messages; there is no way back."""
        await queues.suspend(await self.link(queue.account), queue)

    async def delete_queue(self, queue: StoredQueue) -> None:
        """At the router, then here. If that fails in between, it is not subscribed again, and can
        be deleted once more."""
        account, recipient_id = queue.account, queue.recipient_id
        await self._turns.write(self.store.set_wanted, account, [recipient_id], False)
        link = await self.link(account)
        try:
            await queues.delete(link, queue)
        except FailureError as error:
            if error.failure != failures.AUTH:
                raise
            # It was gone already.
        await whole(self._forget(account, recipient_id))

    async def _forget(self, account: Account, recipient_id: bytes) -> None:
        async with self._turns.one() as write:
            await write(self.store.forget, account, recipient_id)
            self._session(account).subscriptions.forgotten(recipient_id)
            self._shown.forget(account, recipient_id)

    def _current(self, queue: StoredQueue) -> StoredQueue:
        found = self.store.queue(queue.account, queue.recipient_id)
        if found is None:
            raise UnknownQueueError(queue.name)
        return found

    # ------------------------------------------------------------------------- sending, notifiers

    async def sending(self, account: Account) -> Asking:
        """The router of the account, for commands of senders: over its own connection, or through
        the proxy of the options. Raises LinkError, and FailureError if the proxy says no."""
        if self._options.proxy is None:
            return await self.link(account)
        if self._proxies is None:
            raise _outside()
        return await self._proxies.router(account.user_id, self.store.address(account.server_id))

    async def secure_as_sender(self, account: Account, sender_id: bytes, key: PrivateKey) -> None:
        """Only this key sends from now on."""
        await queues.secure_as_sender(await self.sending(account), sender_id, key)

    async def send(
        self,
        account: Account,
        sender_id: bytes,
        body: bytes,
        key: PrivateKey | None = None,
        *,
        wants_notification: bool = True,
    ) -> None:
        """To a queue at the router of the account; it is stored there when this returns."""
        router = await self.sending(account)
        await queues.send(router, sender_id, body, key, wants_notification=wants_notification)

    async def follow_notifier(self, account: Account, notifier_id: bytes, key: PrivateKey) -> None:
        """Be told of messages in somebody's queue. `account` has the role of a notifier."""
        if account.role is not ServiceRole.NOTIFIER:
            raise ValueError("notifications are followed by an account with the role of a notifier")
        notifier = StoredNotifier(account, notifier_id, key)
        await self._turns.write(self.store.add_notifier, notifier)
        self._session(account).subscribe([notifier_id])

    # ------------------------------------------------------------------------------------- events

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """What happens, for one reader. It ends when the agent is closed; an error of the agent
        itself, such as a full disk, is raised here."""
        return self._events()

    async def _events(self) -> AsyncIterator[AgentEvent]:
        while True:
            try:
                event = await self._inbox.take()
            except LinkClosedError:
                return
            yield event

    async def acknowledge(self, message: MessageReceived | MessageDamaged) -> None:
        """The application is done with it: it is not shown again, and the router may delete it.
        Durable when this returns. Doing it twice does no harm."""
        account, queue, message_id = message.account, message.queue, message.message_id
        await self._shown.done(account, queue, message_id)
        session = self._sessions.get(account)
        if session is not None:
            await session.acknowledge(queue, message_id)

    # ------------------------------------------------------------------------------------- helpers

    def _session(self, account: Account) -> AgentSession:
        session = self._sessions.get(account)
        if session is None:
            if self._group is None:
                raise _outside()
            session = AgentSession(
                account,
                self.store,
                self._inbox,
                self._shown,
                self._turns,
                self._world,
                self._options,
                self.counters,
                subscribes_all=self._subscribes,
            )
            self._sessions[account] = session
            self._group.create_task(session.run())
        return session


def _outside() -> LinkClosedError:
    return LinkClosedError("an agent is used within its `async with` block")


def _only(error: BaseException) -> Exception:
    """The first error of those that ended the agent."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
