"""Whatever happens in whatever order: no message is lost, none is shown twice, and both sides have
the same queues in the end."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import MessageReceived, ServiceUp
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Ack, Command, Sub, Subs
from tests.unit.client.smp.agent_rig import kept_store
from tests.unit.client.smp.fake_router import (
    ADDRESS,
    FakeRouter,
    ManualTime,
    hash_of,
    settled,
    world_of,
)

QUEUE_COUNT = 4


@dataclass
class World:
    """An agent that dies and comes back, and an application that writes down what it is shown."""

    store: AgentStore
    router: FakeRouter = field(default_factory=FakeRouter)
    time: ManualTime = field(default_factory=ManualTime)
    queues: list[StoredQueue] = field(default_factory=list)
    sent: set[bytes] = field(default_factory=set)
    # In this life of the agent; and done for good.
    shown: list[MessageReceived] = field(default_factory=list)
    done: set[bytes] = field(default_factory=set)
    ups: list[ServiceUp] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    agent: Agent | None = None
    _life: AsyncExitStack | None = None

    @property
    def account(self) -> Account:
        return Account(self.store.user("ann"), self.store.server(ADDRESS))

    async def start(self) -> None:
        self.shown = []
        options = AgentOptions(page_count=2, message_count_max=2)
        self._life = AsyncExitStack()
        self.agent = await self._life.enter_async_context(
            Agent(self.store, options, world=world_of(self.router, self.time))
        )
        reader = asyncio.create_task(self._read(self.agent))
        self._life.callback(reader.cancel)
        await settled()

    async def stop(self) -> None:
        assert self._life is not None
        await self._life.aclose()

    async def _read(self, agent: Agent) -> None:
        async for event in agent:
            if isinstance(event, MessageReceived):
                if event.message_id in {each.message_id for each in self.shown}:
                    self.violations.append(f"{event.body!r} was shown twice")
                if event.body in self.done:
                    self.violations.append(f"{event.body!r} was done with for good")
                self.shown.append(event)
            elif isinstance(event, ServiceUp):
                self.ups.append(event)

    # What may happen.

    async def send(self, number: int) -> None:
        body = b"message %d" % len(self.sent)
        self.sent.add(body)
        self.router.send(self.queues[number % QUEUE_COUNT].recipient_id, body)

    async def acknowledge(self, number: int) -> None:
        assert self.agent is not None
        waiting = [each for each in self.shown if each.body not in self.done]
        if waiting:
            message = waiting[number % len(waiting)]
            await self.agent.acknowledge(message)
            self.done.add(message.body)

    async def drop(self, _: int) -> None:
        if self.router.links:
            self.router.link.drop()

    async def pass_time(self, number: int) -> None:
        await self.time.advance([0.1, 1, 20, 4_000][number % 4])

    async def crash(self, _: int) -> None:
        await self.stop()
        await self.start()

    async def turn_router(self, _: int) -> None:
        self.router.is_down = not self.router.is_down
        if self.router.is_down and self.router.links:
            self.router.link.drop()

    async def change_version(self, number: int) -> None:
        self.router.version = [18, 20][number % 2]
        await self.drop(0)

    async def refuse_service(self, number: int) -> None:
        self.router.service_refusal = "HANDSHAKE BAD_AUTH" if number % 2 else None

    async def forget_services(self, _: int) -> None:
        # As a restored router: whoever was connected is not any more.
        await self.drop(0)
        self.router.forget_services()

    async def drop_association(self, number: int) -> None:
        await self.drop(0)
        self.router.drop_associations(self.queues[number % QUEUE_COUNT].recipient_id)

    async def take_queue(self, number: int) -> None:
        assert self.agent is not None
        taken = self.queues[number % QUEUE_COUNT].recipient_id
        self.router.take_queue(taken)
        await settled()
        await self.agent.subscribe_queues(self.account, [taken])

    async def take_service(self, _: int) -> None:
        assert self.agent is not None
        for service_id in list(self.router.subscribed_services):
            self.router.take_service(service_id)
        await settled()
        await self.agent.subscribe(self.account)

    async def withhold(self, number: int) -> None:
        kinds: list[set[type[Command]]] = [set(), {Subs}, {Sub}, {Ack}]
        self.router.withheld = kinds[number % 4]

    async def fail(self, number: int) -> None:
        queue = self.queues[number % QUEUE_COUNT].recipient_id
        self.router.failures = {}
        if number % 3 == 1:
            self.router.failures[Subs] = failures.INTERNAL
        elif number % 3 == 2:
            self.router.failures[queue] = failures.store("busy")

    # In the end all is well, and enough time passes.

    async def heal(self) -> None:
        self.router.is_down, self.router.service_refusal = False, None
        self.router.version, self.router.withheld, self.router.failures = 20, set(), {}
        await self.drop(0)
        for _ in range(3):
            await self.time.advance(4_000)
        await self.drop(0)
        for _ in range(3):
            await self.time.advance(4_000)

    async def finish(self) -> None:
        await self.heal()
        for _ in range(len(self.sent) + 1):
            await self.acknowledge(0)
            await settled()
        assert self.violations == []
        assert self.done == self.sent
        assert not any(queue.messages for queue in self.router.queues.values())
        service = self.store.service(self.account)
        assert service.service_id is not None
        ids = self.router.associated(service.service_id)
        assert ids == {queue.recipient_id for queue in self.queues}
        assert (service.digest.count, service.digest.xor_md5) == (len(ids), hash_of(ids))
        assert service.digest == self.store.recompute(self.account)
        assert self.ups[-1].drift is None


ACTIONS = (
    *("send", "send", "acknowledge", "acknowledge", "drop", "pass_time", "pass_time", "crash"),
    *("turn_router", "change_version", "refuse_service", "forget_services", "drop_association"),
    *("take_queue", "take_service", "withhold", "fail"),
)


@pytest.mark.timeout(120)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=25),
    st.booleans(),
    st.booleans(),
)
@example([("forget_services", 0), ("withhold", 2), ("pass_time", 1)], False, False).via(
    "a connection that goes while the second page is not asked for yet"
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_whatever_happens(
    actions: list[tuple[str, int]], is_extended: bool, is_on_disk: bool
) -> None:
    """On a disk other things happen while it writes."""
    with kept_store(is_on_disk) as store:
        asyncio.run(walk(actions, is_extended, store))


async def walk(actions: list[tuple[str, int]], is_extended: bool, store: AgentStore) -> None:
    world = World(store)
    world.router.is_extended = is_extended
    await world.start()
    assert world.agent is not None
    for number in range(QUEUE_COUNT):
        queue = await world.agent.create_queue(world.account, f"queue {number}")
        world.queues.append(queue)
    try:
        for name, number in actions:
            note(f"{name} {number}")
            await getattr(world, name)(number)
            await settled()
        await world.finish()
    finally:
        await world.stop()
