"""An agent, its store, a router without bytes, and a clock that is moved by hand."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import AgentEvent, MessageReceived
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import InThread
from tests.unit.client.smp.fake_router import (
    ADDRESS,
    FakeRouter,
    ManualTime,
    at_once,
    hash_of,
    settled,
    world_of,
)

Event = TypeVar("Event", bound=AgentEvent)


@contextmanager
def kept_store(is_on_disk: bool) -> Generator[AgentStore]:
    """In memory, or in a file whose writes take a turn of the loop."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent.sqlite" if is_on_disk else ":memory:"
        with closing(AgentStore(path)) as store:
            # What is durable is not looked at here, and would take its time.
            store._db.execute("PRAGMA synchronous = OFF")
            yield store


@dataclass
class Rig:
    """One agent, what it told, and its surroundings. `restart` is a crash: only the store stays."""

    router: FakeRouter = field(default_factory=FakeRouter)
    store: AgentStore = field(default_factory=lambda: AgentStore(":memory:"))
    time: ManualTime = field(default_factory=ManualTime)
    options: AgentOptions = field(default_factory=AgentOptions)
    events: list[AgentEvent] = field(default_factory=list)
    # Where the writes of a store in a file are made.
    on_thread: InThread = at_once

    @asynccontextmanager
    async def agent(
        self,
        *,
        reads: bool = True,
        subscribes: bool = True,
    ) -> AsyncGenerator[Agent]:
        self.events = []
        agent = Agent(
            self.store,
            self.options,
            world=world_of(self.router, self.time, self.on_thread),
            subscribes=subscribes,
        )
        async with agent:
            reader = asyncio.create_task(self._read(agent)) if reads else None
            await settled()
            yield agent
            if reader is not None:
                reader.cancel()

    async def _read(self, agent: Agent) -> None:
        async for event in agent:
            self.events.append(event)

    @property
    def account(self) -> Account:
        return Account(self.store.user("ann"), self.store.server(ADDRESS))

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def messages(self) -> list[MessageReceived]:
        return self.told(MessageReceived)

    def bodies(self) -> list[bytes]:
        return [event.body for event in self.messages()]

    async def prepared(self, count: int = 3) -> list[StoredQueue]:
        """Queues in the store and at the router, made by an agent that has gone again."""
        async with self.agent() as agent:
            return [await agent.create_queue(self.account, f"queue {n}") for n in range(count)]

    async def check_delivery(self, queues: list[StoredQueue]) -> None:
        """A message to each queue reaches the application."""
        before = len(self.bodies())
        for number, queue in enumerate(queues):
            self.router.send(queue.recipient_id, b"check %d" % number)
        await settled()
        assert sorted(self.bodies()[before:]) == [b"check %d" % n for n in range(len(queues))]

    def check_sets(self) -> None:
        """The store and the router have the same associations, and the digest is theirs."""
        service = self.store.service(self.account)
        assert service.service_id is not None
        ids = self.router.associated(service.service_id)
        assert (service.digest.count, service.digest.xor_md5) == (len(ids), hash_of(ids))
        assert self.store.recompute(self.account) == service.digest
