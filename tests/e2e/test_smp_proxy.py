"""Two real routers: one forwards what senders ask of the other."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from syncline.client.smp import queues
from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import Link, connecting
from syncline.client.smp.proxied import ProxiedRouter
from syncline.client.smp.queues import LinkData
from syncline.errors import LinkClosedError, LinkError
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import INTERACTIVE, LinkOptions, SmpLink
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.commands import Pfwd, Prxy, Rslv
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.hellos import VersionRange
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Msg, Pkey
from tests.e2e.router_process import RouterProcess, running

pytestmark = pytest.mark.timeout(120)

WAIT_SECONDS = 30
KEY = public_key_of(KeyKind.X25519, b"\x05" * 32)


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


@dataclass(frozen=True)
class Pair:
    proxy: RouterProcess
    relay: RouterProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("routers")
    with running(folder / "proxy") as proxy, running(folder / "relay") as relay:
        yield Pair(proxy, relay)


@asynccontextmanager
async def linked(
    router: RouterProcess, options: LinkOptions = INTERACTIVE
) -> AsyncIterator[SmpLink]:
    async with asyncio.timeout(WAIT_SECONDS):
        link = await SmpLink.connect(address_of(router), options)
        try:
            yield link
        finally:
            await link.close()


async def refusal(link: SmpLink, address: RouterAddress, password: bytes | None = None) -> Failure:
    with pytest.raises(FailureError) as caught:
        await link.request(Prxy(address, password))
    return caught.value.failure


class Reader:
    """Takes messages one by one; the next one may come with the answer to an acknowledgement."""

    def __init__(self, link: SmpLink, queue: queues.NewQueue) -> None:
        self._link, self._queue = link, queue
        self._next: queues.QueueMessage | None = None

    @classmethod
    async def new(cls, link: SmpLink) -> "Reader":
        return cls(link, await queues.create(link))

    @property
    def sender_id(self) -> bytes:
        return self._queue.sender_id

    async def body(self) -> bytes | None:
        message = self._next
        if message is None:
            event = await self._link.next_event()
            assert event.entity_id == self._queue.recipient_id
            assert isinstance(event.message, Msg)
            message = queues.opened(self._queue, event.message)
        self._next = await queues.acknowledge(self._link, self._queue, message.message_id)
        return queues.body_of(message)


def new_key(kind: KeyKind = KeyKind.ED25519) -> PrivateKey:
    return PrivateKey.new(kind, secrets.token_bytes)


# ------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519])
async def test_a_sender_secures_a_queue_and_sends_through_a_proxy(
    pair: Pair, kind: KeyKind
) -> None:
    async with linked(pair.proxy) as link, linked(pair.relay) as reader:
        queue, key = await Reader.new(reader), new_key(kind)
        router = await ProxiedRouter.open(link, address_of(pair.relay))
        await queues.secure_as_sender(router, queue.sender_id, key)
        for body in (b"hello", secrets.token_bytes(16_048), b""):
            await queues.send(router, queue.sender_id, body, key)
            assert await queue.body() == body
        with pytest.raises(FailureError) as caught:
            await queues.send(router, queue.sender_id, b"without the key")
        assert caught.value.failure == failures.AUTH


@pytest.mark.parametrize("version", [8, 9, 10, 11, 14, 16, 20])
async def test_every_version_is_forwarded(pair: Pair, version: int) -> None:
    spoken = VersionRange(version, version)
    options = replace(INTERACTIVE, versions=spoken)
    async with linked(pair.proxy, options) as link, linked(pair.relay) as reader:
        queue = await Reader.new(reader)
        router = await ProxiedRouter.open(link, address_of(pair.relay), versions=spoken)
        assert (link.version, router.version) == (version, version)
        await queues.send(router, queue.sender_id, b"hello")
        assert await queue.body() == b"hello"


async def test_what_the_relay_refuses_is_told_to_the_sender(pair: Pair) -> None:
    async with linked(pair.proxy) as link, linked(pair.relay) as reader:
        queue = await queues.create(reader)
        router = await ProxiedRouter.open(link, address_of(pair.relay))
        for sender_id, body, failure in (
            (queue.sender_id, bytes(16_049), failures.LARGE_MSG),
            (secrets.token_bytes(24), b"nobody", failures.AUTH),
        ):
            with pytest.raises(FailureError) as caught:
                await queues.send(router, sender_id, body)
            assert caught.value.failure == failure


async def test_short_links_are_read_through_a_proxy(pair: Pair) -> None:
    async with linked(pair.proxy) as link, linked(pair.relay) as reader:
        router = await ProxiedRouter.open(link, address_of(pair.relay))
        data = LinkData(b"fixed", b"user", secrets.token_bytes(24))
        contact = await queues.create(reader, mode=QueueMode.CONTACT, link_data=data)
        assert data.link_id is not None
        sender_id, record = await queues.read_link(router, data.link_id)
        assert (sender_id, record.fixed, record.user) == (contact.sender_id, b"fixed", b"user")
        queue = await queues.create(reader, link_data=replace(data, link_id=None))
        assert queue.link_id is not None
        key = new_key()
        sender_id, _ = await queues.secure_by_link(router, queue.link_id, key)
        assert sender_id == queue.sender_id
        await queues.send(router, sender_id, b"hello", key)
        assert await Reader(reader, queue).body() == b"hello"
        with pytest.raises(FailureError) as caught:
            await router.request(Rslv("name.example"))
        assert caught.value.failure == failures.NO_RESOLVER


async def test_many_senders_share_one_connection(pair: Pair) -> None:
    async with linked(pair.proxy) as one, linked(pair.proxy) as two, linked(pair.relay) as reader:
        queue = await Reader.new(reader)
        routers = await asyncio.gather(
            *(ProxiedRouter.open(link, address_of(pair.relay)) for link in (one, two) * 4)
        )
        assert len({router.session_id for router in routers}) == 1
        bodies = [b"%d" % number for number in range(64)]
        await asyncio.gather(
            *(
                queues.send(router, queue.sender_id, body)
                for router, body in zip(routers * 8, bodies, strict=True)
            )
        )
        assert {await queue.body() for _ in bodies} == set(bodies)


async def test_a_router_is_its_own_proxy_if_asked_to(pair: Pair) -> None:
    async with linked(pair.proxy) as link:
        queue = await Reader.new(link)
        router = await ProxiedRouter.open(link, address_of(pair.proxy))
        await queues.send(router, queue.sender_id, b"hello")
        assert await queue.body() == b"hello"


# ---------------------------------------------------------------------------------------- the agent


class Connections:
    """The real thing, and who was connected to."""

    def __init__(self) -> None:
        self.addresses: list[RouterAddress] = []
        self.links: list[Link] = []

    async def __call__(self, address: RouterAddress, service: ServiceLogin | None) -> Link:
        self.addresses.append(address)
        link = await connecting(INTERACTIVE)(address, service)
        self.links.append(link)
        return link


@asynccontextmanager
async def sending(folder: Path, proxy: RouterAddress) -> AsyncIterator[tuple[Agent, Connections]]:
    connections = Connections()
    options = AgentOptions(proxy=proxy)
    async with asyncio.timeout(WAIT_SECONDS):
        with closing(AgentStore(folder / "sender.sqlite")) as store:
            async with Agent(store, options, connect=connections) as agent:
                yield agent, connections


async def test_an_agent_sends_through_its_proxy_and_connects_to_nobody_else(
    pair: Pair, tmp_path: Path
) -> None:
    proxy = address_of(pair.proxy)
    async with linked(pair.relay) as reader, sending(tmp_path, proxy) as (agent, connections):
        queue, key = await Reader.new(reader), new_key()
        account = await agent.account("me", address_of(pair.relay))
        await agent.secure_as_sender(account, queue.sender_id, key)
        await agent.send(account, queue.sender_id, b"hello", key)
        assert await queue.body() == b"hello"
        assert connections.addresses == [proxy]
        # Another user is somebody else to the proxy.
        other = await agent.account("other", address_of(pair.relay))
        await agent.send(other, queue.sender_id, b"again", key)
        assert await queue.body() == b"again"
        assert connections.addresses == [proxy, proxy]


async def test_an_agent_whose_proxy_was_away_connects_to_it_again(
    pair: Pair, tmp_path: Path
) -> None:
    proxy = address_of(pair.proxy)
    async with linked(pair.relay) as reader, sending(tmp_path, proxy) as (agent, connections):
        queue = await Reader.new(reader)
        account = await agent.account("me", address_of(pair.relay))
        together = [agent.send(account, queue.sender_id, b"one") for _ in range(3)]
        await asyncio.gather(*together)
        assert connections.addresses == [proxy]
        link = connections.links[0]
        link.cut()
        await link.ended()
        # The agent hears of it in a turn of its own.
        for _ in range(10):
            await asyncio.sleep(0)
        await agent.send(account, queue.sender_id, b"two")
        bodies = [await queue.body() for _ in range(4)]
        assert bodies == [b"one"] * 3 + [b"two"]
        assert connections.addresses == [proxy, proxy]


async def test_an_agent_whose_proxy_is_down_does_not_send_without_it(
    pair: Pair, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    proxy = replace(address_of(pair.proxy), port=port)
    async with linked(pair.relay) as reader, sending(tmp_path, proxy) as (agent, connections):
        queue = await Reader.new(reader)
        account = await agent.account("me", address_of(pair.relay))
        with pytest.raises(LinkError):
            await agent.send(account, queue.sender_id, b"hello")
        assert connections.addresses == [proxy]
    with pytest.raises(LinkClosedError):
        await agent.send(account, queue.sender_id, b"hello")
    assert connections.addresses == [proxy]


# ------------------------------------------------------------------------------------------- errors


async def test_a_session_that_there_is_not(pair: Pair) -> None:
    async with linked(pair.proxy) as link:
        with pytest.raises(FailureError) as caught:
            await link.request(Pfwd(20, KEY, bytes(16_242)), secrets.token_bytes(32))
        assert caught.value.failure == failures.NO_SESSION


async def test_a_box_that_the_relay_cannot_open(pair: Pair) -> None:
    async with linked(pair.proxy) as link:
        pkey = await link.request(Prxy(address_of(pair.relay)))
        assert isinstance(pkey, Pkey)
        with pytest.raises(FailureError) as caught:
            await link.request(Pfwd(20, KEY, bytes(16_242)), pkey.session_id)
        assert caught.value.failure == failures.proxy_protocol(failures.CRYPTO)
        with pytest.raises(FailureError) as caught:
            await link.request(Pfwd(21, KEY, bytes(16_242)), pkey.session_id)
        assert caught.value.failure == failures.BROKER_VERSION


async def test_a_relay_that_cannot_be_reached(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    relay = address_of(pair.relay)
    async with linked(pair.proxy) as link:
        assert await refusal(link, replace(relay, port=port)) == failures.BROKER_NETWORK
        other = replace(relay, fingerprint=bytes(32))
        assert await refusal(link, other) == failures.BROKER_NETWORK
        unknown = replace(relay, hosts=("nobody.invalid",))
        assert await refusal(link, unknown) == failures.BROKER_NETWORK
        # The second host of an address is as good as the first.
        both = replace(relay, hosts=("nobody.invalid", "127.0.0.1"))
        assert isinstance(await link.request(Prxy(both)), Pkey)


async def test_what_answers_is_no_router(pair: Pair) -> None:
    port = int(pair.relay.url.rpartition(":")[2])
    async with linked(pair.proxy) as link:
        address = replace(address_of(pair.relay), port=port)
        assert await refusal(link, address) == failures.BROKER_NETWORK


async def test_a_password_keeps_strangers_away(tmp_path: Path, pair: Pair) -> None:
    relay = address_of(pair.relay)
    with running(tmp_path / "data", SYNCLINE_SMP_CREATE_PASSWORD="sesame") as proxy:
        async with linked(proxy) as link:
            assert await refusal(link, relay) == failures.BASIC_AUTH
            assert await refusal(link, relay, b"wrong") == failures.BASIC_AUTH
            router = await ProxiedRouter.open(link, relay, password="sesame")
            assert router.version == 20


async def test_a_proxy_for_nobody(tmp_path: Path, pair: Pair) -> None:
    with running(tmp_path / "data", SYNCLINE_SMP_PROXY="none") as proxy:
        async with linked(proxy) as link:
            assert await refusal(link, address_of(pair.relay)) == failures.BASIC_AUTH


async def test_a_public_proxy_does_not_look_around_at_home(tmp_path: Path, pair: Pair) -> None:
    relay = address_of(pair.relay)
    with running(tmp_path / "data", SYNCLINE_SMP_PROXY="public") as proxy:
        async with linked(proxy) as link:
            for host in ("127.0.0.1", "localhost", "::1", "127.1"):
                address = replace(relay, hosts=(host,))
                assert await refusal(link, address) == failures.BROKER_HOST


async def test_one_connection_makes_room_for_another(tmp_path: Path, pair: Pair) -> None:
    settings = {"SYNCLINE_SMP_PROXY_CONNECTION_COUNT_MAX": "1"}
    with running(tmp_path / "data", **settings) as proxy:
        async with linked(proxy) as link, linked(pair.relay) as reader:
            queue = await Reader.new(reader)
            router = await ProxiedRouter.open(link, address_of(pair.relay))
            await ProxiedRouter.open(link, address_of(pair.proxy))
            await queues.send(router, queue.sender_id, b"again")
            assert await queue.body() == b"again"


# ----------------------------------------------------------------------- processes that come and go


async def test_a_relay_is_killed_and_comes_back(tmp_path: Path, pair: Pair) -> None:
    with running(tmp_path / "relay") as relay:
        address = address_of(relay)
        async with linked(pair.proxy) as link:
            async with linked(relay) as reader:
                queue = await queues.create(reader)
            router = await ProxiedRouter.open(link, address)
            await queues.send(router, queue.sender_id, b"before")
            relay.kill()
            for _ in range(2):
                with pytest.raises(FailureError) as caught:
                    await queues.send(router, queue.sender_id, b"while it is down")
                assert caught.value.failure == failures.BROKER_NETWORK
            with running(tmp_path / "relay", "--smp-port", str(address.port)) as again:
                await queues.send(router, queue.sender_id, b"after")
                async with linked(again) as reader:
                    await queues.subscribe(reader, queue)
                    messages = Reader(reader, queue)
                    assert [await messages.body() for _ in range(2)] == [b"before", b"after"]


async def test_a_relay_that_is_stopped_says_goodbye(tmp_path: Path, pair: Pair) -> None:
    with running(tmp_path / "relay") as relay:
        async with linked(pair.proxy) as link:
            await ProxiedRouter.open(link, address_of(relay))
            assert await asyncio.to_thread(relay.stop) == 0


async def test_a_proxy_stops_in_order_with_relays_connected(tmp_path: Path, pair: Pair) -> None:
    with running(tmp_path / "proxy") as proxy:
        async with linked(proxy) as link:
            router = await ProxiedRouter.open(link, address_of(pair.relay))
            assert await asyncio.to_thread(proxy.stop) == 0
            with pytest.raises(LinkError):
                await queues.send(router, b"q" * 24, b"hello")
