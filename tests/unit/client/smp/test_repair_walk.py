"""Queues are made, deleted and taken while sets that drifted are repaired, in whatever order: both
sides end with the same ids, and nothing that was wanted was ever let go of."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import MessageReceived, QueueEnd, ServiceUp
from syncline.client.smp.agent_records import Account
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.errors import SynclineError
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Bus, Command, Del, New, Recq, Sub, Subs
from tests.unit.client.smp.agent_rig import kept_store
from tests.unit.client.smp.fake_router import ADDRESS, FakeRouter, ManualTime, settled, world_of

COMMANDS: list[type[Command]] = [Recq, Sub, Bus, New, Del, Subs]


@dataclass
class World:
    holds_commands: bool
    store: AgentStore
    router: FakeRouter = field(default_factory=FakeRouter)
    time: ManualTime = field(default_factory=ManualTime)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    made_count: int = 0
    made: set[bytes] = field(default_factory=set)
    released: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    bodies: set[bytes] = field(default_factory=set)
    ups: list[ServiceUp] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    agent: Agent | None = None

    @property
    def account(self) -> Account:
        return Account(self.store.user("ann"), self.store.server(ADDRESS))

    def look(self, command: Command) -> None:
        """Before the router does it."""
        if isinstance(command, Bus):
            self.released |= set(command.ids)
            known = self.store.known(self.account, command.ids)
            if any(each.is_wanted for each in known.values()):
                self.violations.append("what is wanted was let go of")
            if self.made & set(command.ids) & set(known):
                self.violations.append("what was made was let go of")

    async def read(self, agent: Agent) -> None:
        async for event in agent:
            match event:
                case MessageReceived(body=body):
                    self.bodies.add(body)
                    await agent.acknowledge(event)
                case QueueEnd(queue=queue):
                    self.ended.add(queue)
                case ServiceUp():
                    self.ups.append(event)
                case _:
                    pass

    def queues(self) -> list[bytes]:
        return sorted(self.router.queues)

    def one(self, number: int) -> bytes | None:
        queues = self.queues()
        return queues[number % len(queues)] if queues else None

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)

    # What may happen.

    async def create(self, _: int) -> None:
        self.made_count += 1
        self.start(self._create(f"queue {self.made_count}"))

    async def _create(self, name: str) -> None:
        assert self.agent is not None
        try:
            queue = await self.agent.create_queue(self.account, name)
        except SynclineError:
            return
        self.made.add(queue.recipient_id)
        if queue.recipient_id in self.released:
            self.violations.append("a queue was let go of while it was made")

    async def delete(self, number: int) -> None:
        one = self.one(number)
        queue = None if one is None else self.store.queue(self.account, one)
        if queue is not None:
            self.made.discard(queue.recipient_id)
            self.start(self._delete(queue.name))

    async def _delete(self, name: str) -> None:
        assert self.agent is not None
        queue = self.store.queue_named(self.account.user_id, name)
        if queue is not None:
            try:
                await self.agent.delete_queue(queue)
            except SynclineError:
                return
            if self.store.queue_named(self.account.user_id, name) is not None:
                self.violations.append("what was deleted came back")

    async def take(self, number: int) -> None:
        one = self.one(number)
        if one is not None:
            self.router.take_queue(one)

    async def subscribe(self, number: int) -> None:
        assert self.agent is not None
        one = self.one(number)
        if one is not None and self.store.queue(self.account, one) is not None:
            self.ended.discard(one)
            await self.agent.subscribe_queues(self.account, [one])

    async def drop(self, _: int) -> None:
        if self.router.links:
            self.router.link.drop()

    async def lose_at_the_router(self, number: int) -> None:
        await self.drop(0)
        lost = [each for at, each in enumerate(self.queues()) if at % 3 == number % 3]
        if lost:
            self.router.drop_associations(*lost)

    async def lose_in_the_store(self, number: int) -> None:
        """As after subscriptions that the router has done, and whose answers were lost."""
        assert self.agent is not None
        await self.drop(0)
        lost = [each for at, each in enumerate(self.queues()) if at % 3 == number % 3]
        self.store.dissociate(self.account, lost)
        session = self.agent.session(self.account)
        if session is not None:
            session.subscriptions.want(set(lost) - self.ended)

    async def forget(self, number: int) -> None:
        """As a store that was restored from an older copy."""
        await self.drop(0)
        one = self.one(number)
        if one is not None:
            self.made.discard(one)
            self.store.forget(self.account, one)

    async def damage(self, number: int) -> None:
        await self.drop(0)
        digest = bytes([number]) * 48
        self.store._db.execute("UPDATE services SET digest = ?", (digest,))

    async def withhold(self, number: int) -> None:
        self.router.withheld = {COMMANDS[number % len(COMMANDS)]}

    async def delay(self, number: int) -> None:
        self.router.delayed = {COMMANDS[1 + number % (len(COMMANDS) - 1)]}

    async def make_slowly(self, number: int) -> None:
        """The router has a queue, and its answer is under way, while sets are compared."""
        self.router.opens, self.router.withheld = False, {Recq}
        await self.lose_at_the_router(number)
        await self.time.advance(100)
        self.router.delayed = {New}
        await self.create(number)

    async def answer(self, _: int) -> None:
        self.router.withheld = set()
        if self.router.links:
            self.router.link.answer_asked()
            self.router.link.answer_waiting()

    async def release(self, _: int) -> None:
        self.router.delayed = set()
        if self.router.links:
            self.router.link.release()

    async def fail(self, number: int) -> None:
        one = self.one(number)
        self.router.failures = {}
        if one is not None and number % 2:
            self.router.failures[one] = failures.store("busy")

    async def open_or_not(self, number: int) -> None:
        self.router.opens = bool(number % 2)

    async def pass_time(self, number: int) -> None:
        await self.time.advance([0.1, 1, 20][number % 3])

    # In the end all is well.

    async def finish(self) -> None:
        self.router.failures = {}
        await self.answer(0)
        await self.release(0)
        await self.drop(0)
        await self.time.advance(100)
        # Without anything that is wanted, the agent would not even connect.
        await self.create(0)
        for _ in range(3):
            await self.time.advance(100)
        await asyncio.wait_for(asyncio.gather(*self.tasks), 5) if self.tasks else None
        await self.drop(0)
        for _ in range(3):
            await self.time.advance(100)
        assert self.violations == []
        service = self.store.service(self.account)
        assert service.service_id is not None
        ids = self.router.associated(service.service_id)
        assert service.digest == self.store.recompute(self.account)
        with self.store.read_set(self.account) as stored:
            found = {row.tobytes() for rows in stored.iterate(b"", b"\xff" * 25) for row in rows}
        assert found == ids
        assert not self.ups or self.ups[-1].drift is None
        await self.check_delivery(ids)

    async def check_delivery(self, ids: set[bytes]) -> None:
        assert self.agent is not None
        known = self.store.known(self.account, self.queues())
        await self.agent.subscribe_queues(
            self.account, [each for each in known if each in self.ended and known[each].is_wanted]
        )
        await self.time.advance(1)
        wanted = {each for each, row in known.items() if row.is_wanted}
        for each in wanted:
            self.router.send(each, each)
        await settled()
        assert self.bodies >= wanted
        assert ids <= set(self.router.queues)


ACTIONS = (
    *("create", "create", "create", "delete", "delete", "take", "subscribe", "drop"),
    *("lose_at_the_router", "lose_in_the_store", "forget", "damage", "withhold", "withhold"),
    *(
        "delay",
        "delay",
        "make_slowly",
        "answer",
        "answer",
        "release",
        "release",
        "fail",
        "open_or_not",
        "pass_time",
        "pass_time",
    ),
)


Walk = list[tuple[str, int]]


@pytest.mark.timeout(240)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), min_size=8, max_size=30),
    st.booleans(),
    st.booleans(),
)
@example([("make_slowly", 1), ("answer", 1), ("release", 1)], False, False)
@example([("make_slowly", 1), ("answer", 1), ("drop", 1), ("pass_time", 1)], False, False)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_repair_ends_with_equal_sets_whatever_happens_meanwhile(
    actions: Walk, holds_commands: bool, is_on_disk: bool
) -> None:
    with kept_store(is_on_disk) as store:
        asyncio.run(walk(actions, holds_commands, store))


async def walk(actions: Walk, holds_commands: bool, store: AgentStore) -> None:
    world = World(holds_commands, store)
    world.router.is_extended = True
    world.router.before = world.look
    options = AgentOptions(page_count=2, holds_commands=holds_commands)
    async with AsyncExitStack() as life:
        world.agent = await life.enter_async_context(
            Agent(world.store, options, world=world_of(world.router, world.time))
        )
        reader = asyncio.create_task(world.read(world.agent))
        life.callback(reader.cancel)
        for _ in range(4):
            await world.create(0)
        await settled()
        for name, number in actions:
            note(f"{name} {number}")
            await getattr(world, name)(number)
            if number % 4:
                await settled()
        await world.finish()
