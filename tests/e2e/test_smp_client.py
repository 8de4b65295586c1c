"""The client and the agent of queues against a real router in a process of its own."""

import asyncio
import json
import os
import socket
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from syncline.client.smp import letters, queues
from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    AgentEvent,
    MessageReceived,
    NotificationReceived,
    QueueDeleted,
    QueueEnd,
    ServiceAll,
    ServiceDown,
    ServiceEnd,
    ServiceLost,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.queues import LinkData
from syncline.errors import NotAuthorizedError
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import LinkOptions, Request, SmpLink
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp import bodies, failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.commands import Nsub, Sub
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.hellos import VersionRange
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import End, Nmsg, Ok, Sok
from tests.e2e.router_process import RouterProcess, running

WAIT_S = 15.0
Event = TypeVar("Event", bound=AgentEvent)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with running(tmp_path_factory.mktemp("smp") / "data") as router:
        yield router


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


@asynccontextmanager
async def connected(
    router: RouterProcess, options: LinkOptions | None = None
) -> AsyncGenerator[SmpLink]:
    async with asyncio.timeout(WAIT_S):
        link = await SmpLink.connect(address_of(router), options)
        try:
            yield link
        finally:
            await link.close()


# --------------------------------------------------------------------------------------- one link


@pytest.mark.parametrize("version", [6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20])
async def test_message_goes_from_sender_to_recipient_in_every_version(
    router: RouterProcess, version: int
) -> None:
    options = LinkOptions(versions=VersionRange(6, version))
    async with connected(router, options) as ours, connected(router, options) as theirs:
        assert ours.version == version
        queue = await queues.create(ours)
        sender = PrivateKey(KeyKind.ED25519, os.urandom(32))
        await queues.secure(ours, queue, sender.public)
        await queues.send(theirs, queue.sender_id, b"one", sender)
        await queues.send(theirs, queue.sender_id, b"two", sender)
        event = await ours.next_event()
        assert event.entity_id == queue.recipient_id
        message = queues.opened(queue, event.message)  # type: ignore[arg-type]
        assert queues.body_of(message) == b"one"
        following = await queues.acknowledge(ours, queue, message.message_id)
        assert following is not None
        assert queues.body_of(following) == b"two"
        assert await queues.acknowledge(ours, queue, following.message_id) is None
        await queues.delete(ours, queue)
        with pytest.raises(FailureError, match="AUTH"):
            await queues.send(theirs, queue.sender_id, b"three", sender)


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_keys_of_all_kinds_authorize(router: RouterProcess, kind: KeyKind) -> None:
    async with connected(router) as link:
        queue = await queues.create(link, key_kind=kind, subscribes=False)
        assert await queues.subscribe(link, queue) is None
        sender = PrivateKey.new(kind, os.urandom)
        await queues.secure_as_sender(link, queue.sender_id, sender)
        await queues.send(link, queue.sender_id, b"one", sender)
        assert (await link.next_event()).entity_id == queue.recipient_id
        other = replace(queue, key=PrivateKey.new(kind, os.urandom))
        with pytest.raises(FailureError) as refused:
            await queues.delete(link, other)
        assert refused.value.failure == failures.AUTH


async def test_message_is_fetched_without_subscribing(router: RouterProcess) -> None:
    async with connected(router) as link:
        queue = await queues.create(link, subscribes=False)
        assert await queues.get(link, queue) is None
        await queues.send(link, queue.sender_id, b"one", wants_notification=False)
        first, again = await queues.get(link, queue), await queues.get(link, queue)
        assert first == again
        assert first is not None
        assert await queues.acknowledge(link, queue, first.message_id) is None
        assert await queues.get(link, queue) is None
        assert json.loads(await queues.info(link, queue))["qiSize"] == 0
        await queues.suspend(link, queue)
        with pytest.raises(FailureError, match="AUTH"):
            await queues.send(link, queue.sender_id, b"two")


async def test_notifier_is_told_and_cannot_read(router: RouterProcess) -> None:
    async with connected(router) as link, connected(router) as notifier:
        queue = await queues.create(link, has_notifier=True)
        assert queue.notifier is not None
        answer = await notifier.request(Nsub(), queue.notifier.notifier_id, queue.notifier.key)
        assert answer == Sok(None)
        await queues.send(link, queue.sender_id, b"one")
        event = await notifier.next_event()
        assert event.entity_id == queue.notifier.notifier_id
        assert isinstance(event.message, Nmsg)
        box = SecretBox(queue.notifier.secret)
        found = bodies.open_notification(box, event.message.nonce, event.message.metadata)
        message = await link.next_event()
        assert message.message.message_id == found.message_id  # type: ignore[union-attr]
        replaced = await queues.add_notifier(link, queue)
        assert replaced.notifier_id != queue.notifier.notifier_id
        await queues.delete_notifier(link, queue)


async def test_notifier_is_made_for_old_versions_too(router: RouterProcess) -> None:
    async with connected(router, LinkOptions(versions=VersionRange(6, 16))) as link:
        queue = await queues.create(link, has_notifier=True)
        assert queue.notifier is not None


async def test_links_lead_to_queues(router: RouterProcess) -> None:
    async with connected(router) as link:
        data = LinkData(b"fixed", b"user", os.urandom(24))
        contact = await queues.create(link, mode=QueueMode.CONTACT, link_data=data)
        assert data.link_id is not None
        sender_id, found = await queues.read_link(link, data.link_id)
        assert (sender_id, found.fixed, found.user) == (contact.sender_id, b"fixed", b"user")
        await queues.set_link(link, contact, replace(data, user=b"changed"))
        assert (await queues.read_link(link, data.link_id))[1].user == b"changed"
        await queues.delete_link(link, contact)
        with pytest.raises(FailureError, match="AUTH"):
            await queues.read_link(link, data.link_id)

        invitation = await queues.create(link, link_data=LinkData(b"fixed", b"user"))
        assert invitation.link_id is not None
        sender = PrivateKey(KeyKind.ED25519, os.urandom(32))
        sender_id, _ = await queues.secure_by_link(link, invitation.link_id, sender)
        await queues.send(link, sender_id, b"one", sender)
        reader = queues.messages(link, {invitation.recipient_id: invitation})
        assert queues.body_of(await anext(reader)) == b"one"
        other = await queues.create(link, mode=QueueMode.CONTACT)
        keys = tuple(PrivateKey(KeyKind.ED25519, os.urandom(32)) for _ in range(2))
        await queues.replace_keys(link, other, tuple(key.public for key in keys))
        await queues.delete(link, replace(other, key=keys[1]))


async def test_second_subscriber_ends_the_first(router: RouterProcess) -> None:
    async with connected(router) as one, connected(router) as two:
        queue = await queues.create(one)
        await queues.send(one, queue.sender_id, b"one")
        event = await one.next_event()
        assert isinstance(await two.request(Sub(), queue.recipient_id, queue.key), Sok | Ok)
        assert (await one.next_event()).message == End()
        assert (await two.next_event()).message == event.message


async def test_many_commands_are_answered_in_few_blocks(router: RouterProcess) -> None:
    async with connected(router) as link:
        queue = await queues.create(link)
        outcomes = await link.request_many([Request(Sub(), queue.recipient_id, queue.key)] * 1_000)
        assert outcomes == [Sok(None)] * 1_000


async def test_another_fingerprint_is_another_router(router: RouterProcess) -> None:
    with pytest.raises(NotAuthorizedError, match="another router"):
        await SmpLink.connect(replace(address_of(router), fingerprint=bytes(32)))


# -------------------------------------------------------------------------------------- the agent


class Rig:
    """An agent with its store, and what it told."""

    def __init__(self, address: RouterAddress, path: Path) -> None:
        self.address = address
        self.store = AgentStore(path)
        self.account = Account(self.store.user("me"), self.store.server(address))
        self.events: list[AgentEvent] = []
        self._news = asyncio.Event()

    @asynccontextmanager
    async def agent(self, options: AgentOptions | None = None) -> AsyncGenerator[Agent]:
        self.events = []
        async with Agent(self.store, options) as agent:
            reader = asyncio.create_task(self._read(agent))
            try:
                yield agent
            finally:
                reader.cancel()

    async def _read(self, agent: Agent) -> None:
        async for event in agent:
            self.events.append(event)
            self._news.set()

    async def told(self, kind: type[Event], count: int = 1) -> list[Event]:
        """Wait until so many of them were told; all of them, in order."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found: list[Event] = [event for event in self.events if isinstance(event, kind)]
                if len(found) >= count:
                    return found
                self._news.clear()
                await self._news.wait()

    async def check_delivery(self, agent: Agent, all_queues: list[StoredQueue]) -> None:
        """Each queue brings a message, which is acknowledged."""
        before = sum(isinstance(event, MessageReceived) for event in self.events)
        for queue in all_queues:
            await agent.send(self.account, queue.sender_id, queue.name.encode())
        found = (await self.told(MessageReceived, before + len(all_queues)))[before:]
        assert sorted(event.body for event in found) == sorted(
            queue.name.encode() for queue in all_queues
        )
        for event in found:
            await agent.acknowledge(event)

    def service_id(self) -> str:
        service_id = self.store.service(self.account).service_id
        assert service_id is not None
        return urlsafe_b64encode(service_id).decode()


@pytest.fixture
def rig(router: RouterProcess, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(address_of(router), tmp_path / "agent.sqlite")
    with closing(rig.store):
        yield rig


async def made(rig: Rig, count: int = 5) -> list[StoredQueue]:
    async with rig.agent() as agent:
        return [await agent.create_queue(rig.account, f"queue {n}") for n in range(count)]


async def test_service_subscribes_everything_with_one_command(
    rig: Rig, router: RouterProcess
) -> None:
    all_queues = await made(rig)
    async with connected(router) as link:
        for queue in all_queues:
            await queues.send(link, queue.sender_id, b"waiting")
    async with rig.agent() as agent:
        await rig.told(ServiceAll)
        [up] = await rig.told(ServiceUp)
        assert (up.sub.count, up.drift) == (5, None)
        found = await rig.told(MessageReceived, 5)
        assert [event.body for event in found] == [b"waiting"] * 5
        for event in found:
            await agent.acknowledge(event)
        await rig.check_delivery(agent, all_queues)
        facts = router.client.get(f"/api/services/{rig.service_id()}").json()
        digest = rig.store.service(rig.account).digest
        assert (facts["count"], facts["xor_md5"]) == (5, digest.xor_md5.hex())


async def test_unacknowledged_messages_survive_a_crash_of_the_agent(rig: Rig) -> None:
    [queue] = await made(rig, 1)
    async with rig.agent() as agent:
        await agent.send(rig.account, queue.sender_id, b"one")
        await agent.send(rig.account, queue.sender_id, b"two")
        await rig.told(MessageReceived)
    async with rig.agent() as agent:
        [one] = await rig.told(MessageReceived)
        assert one.body == b"one"
        await agent.acknowledge(one)
        [_, two] = await rig.told(MessageReceived, 2)
        assert two.body == b"two"
        await agent.acknowledge(two)
    async with rig.agent() as agent:
        await rig.told(ServiceAll)
        assert not [event for event in rig.events if isinstance(event, MessageReceived)]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_agent_comes_back_with_the_router(how: str, tmp_path: Path) -> None:
    port = str(free_port())
    first = RouterProcess(tmp_path / "data", SYNCLINE_SMP_PORT=port)
    second: RouterProcess | None = None
    rig = Rig(address_of(first), tmp_path / "agent.sqlite")
    try:
        all_queues = await made(rig)
        async with rig.agent() as agent:
            await rig.told(ServiceUp)
            await agent.send(rig.account, all_queues[0].sender_id, b"shown before")
            [message] = await rig.told(MessageReceived)
            # Aside, so that the agent can say goodbye.
            await asyncio.to_thread(getattr(first, how))
            await rig.told(ServiceDown)
            second = RouterProcess(tmp_path / "data", SYNCLINE_SMP_PORT=port)
            agent.hurry()
            [_, up] = await rig.told(ServiceUp, 2)
            assert (up.sub.count, up.drift) == (5, None)
            await rig.check_delivery(agent, all_queues[1:])
            # Delivered again, shown once, acknowledged for good.
            bodies = [e.body for e in await rig.told(MessageReceived)]
            assert bodies.count(b"shown before") == 1
            await agent.acknowledge(message)
            await rig.check_delivery(agent, all_queues)
    finally:
        rig.store.close()
        first.close()
        if second is not None:
            second.close()


async def test_router_that_starts_after_the_agent_is_found(tmp_path: Path) -> None:
    port = str(free_port())
    first = RouterProcess(tmp_path / "data", SYNCLINE_SMP_PORT=port)
    rig = Rig(address_of(first), tmp_path / "agent.sqlite")
    all_queues = await made(rig)
    first.stop()
    first.close()
    async with rig.agent(AgentOptions(backoff_first_ms=50, backoff_cap_ms=50)) as agent:
        second = RouterProcess(tmp_path / "data", SYNCLINE_SMP_PORT=port)
        try:
            await rig.told(ServiceUp)
            await rig.check_delivery(agent, all_queues)
        finally:
            second.close()
    rig.store.close()


async def test_service_deleted_while_the_agent_was_away_is_made_again(
    rig: Rig, router: RouterProcess
) -> None:
    all_queues = await made(rig)
    deleted = router.client.delete(f"/api/services/{rig.service_id()}")
    assert deleted.status_code == 204, deleted.text
    async with rig.agent() as agent:
        await rig.told(ServiceLost)
        await rig.check_delivery(agent, all_queues)
        assert rig.store.service(rig.account).digest.count == 5
        facts = router.client.get(f"/api/services/{rig.service_id()}").json()
        assert facts["count"] == 5
    async with rig.agent() as agent:
        [up] = await rig.told(ServiceUp)
        assert up.drift is None


async def test_association_lost_at_the_router_is_drift_and_is_repaired(
    rig: Rig, router: RouterProcess
) -> None:
    all_queues = await made(rig)
    # A plain connection takes one out of the service, and nobody is there to be told.
    async with connected(router) as link:
        await queues.subscribe(link, all_queues[0])
    async with rig.agent() as agent:
        [up, repaired] = await rig.told(ServiceUp, 2)
        assert up.drift is not None
        assert (up.drift.kind, up.drift.found.count) == ("count", 4)
        assert repaired.drift is None
        await rig.check_delivery(agent, all_queues)


async def test_queue_taken_and_queue_deleted_are_told(rig: Rig, router: RouterProcess) -> None:
    all_queues = await made(rig)
    async with rig.agent() as agent, connected(router) as link:
        await rig.told(ServiceUp)
        await queues.subscribe(link, all_queues[0])
        [ended] = await rig.told(QueueEnd)
        assert ended.queue == all_queues[0].recipient_id
        id_ = urlsafe_b64encode(all_queues[1].recipient_id).decode()
        assert router.client.delete(f"/api/smp/queues/{id_}").status_code == 204
        [deleted] = await rig.told(QueueDeleted)
        assert deleted.queue == all_queues[1].recipient_id
        await rig.check_delivery(agent, all_queues[2:])
        assert rig.store.service(rig.account).digest.count == 3
        await agent.subscribe_queues(rig.account, [all_queues[0].recipient_id])
        await rig.check_delivery(agent, [all_queues[0], *all_queues[2:]])
    async with rig.agent():
        [up] = await rig.told(ServiceUp)
        assert (up.sub.count, up.drift) == (4, None)


async def test_second_agent_of_a_service_takes_over_and_gives_back(
    rig: Rig, tmp_path: Path
) -> None:
    all_queues = await made(rig)
    second = Rig(rig.address, tmp_path / "agent.sqlite")
    async with rig.agent() as agent:
        await rig.told(ServiceUp)
        await agent.send(rig.account, all_queues[0].sender_id, b"shown to both")
        await rig.told(MessageReceived)
        async with second.agent() as other:
            [end] = await rig.told(ServiceEnd)
            assert end.sub.count == 5
            [message] = await second.told(MessageReceived)
            assert message.body == b"shown to both"
            await second.check_delivery(other, all_queues[1:])
        await agent.subscribe(rig.account)
        await rig.told(ServiceUp, 2)
        await rig.check_delivery(agent, all_queues[1:])
        assert len(await rig.told(MessageReceived)) == 1 + 4
    second.store.close()


async def test_notifications_have_a_service_of_their_own(rig: Rig) -> None:
    [queue] = await made(rig, 1)
    notifier = replace(rig.account, role=ServiceRole.NOTIFIER)
    async with rig.agent() as agent:
        credentials = await agent.add_notifier(queue)
        await agent.follow_notifier(notifier, credentials.notifier_id, credentials.key)
        await rig.told(ServiceUp, 2)
        await rig.check_delivery(agent, [queue])
        [told] = await rig.told(NotificationReceived)
        assert told.notifier == credentials.notifier_id
    async with rig.agent() as agent:
        ups = await rig.told(ServiceUp, 2)
        assert [(up.sub.count, up.drift) for up in ups] == [(1, None), (1, None)]


async def test_without_services_everything_works_one_by_one(rig: Rig) -> None:
    async with rig.agent(AgentOptions(uses_services=False)) as agent:
        all_queues = [await agent.create_queue(rig.account, f"queue {n}") for n in range(5)]
        await rig.check_delivery(agent, all_queues)
    async with rig.agent(AgentOptions(uses_services=False, page_count=2)) as agent:
        await rig.check_delivery(agent, all_queues)
    # With a service from now on, and back again.
    async with rig.agent() as agent:
        await rig.check_delivery(agent, all_queues)
        assert rig.store.service(rig.account).digest.count == 5
    async with rig.agent(AgentOptions(uses_services=False)) as agent:
        await rig.check_delivery(agent, all_queues)
        assert rig.store.service(rig.account).digest.count == 0


async def test_router_without_services_is_used_one_by_one(tmp_path: Path) -> None:
    with running(tmp_path / "data", SYNCLINE_SMP_SERVICES="false") as router:
        rig = Rig(address_of(router), tmp_path / "agent.sqlite")
        async with rig.agent() as agent:
            queue = await agent.create_queue(rig.account, "inbox")
            await rig.told(ServiceLost)
            await rig.check_delivery(agent, [queue])
        rig.store.close()


async def test_password_of_a_router_is_shown_to_it(tmp_path: Path) -> None:
    with running(
        tmp_path / "data", SYNCLINE_SMP_CREATE_PASSWORD="open sesame".replace(" ", "-")
    ) as r:
        address = address_of(r)
        async with connected(r) as link:
            with pytest.raises(FailureError, match="AUTH"):
                await queues.create(link)
        rig = Rig(replace(address, password="open-sesame"), tmp_path / "agent.sqlite")
        async with rig.agent() as agent:
            queue = await agent.create_queue(rig.account, "inbox")
            assert "sesame" not in str(letters.address_of(rig.store, queue))
        rig.store.close()
