"""PRXY and PFWD on a router without sockets: relays are what the test says they are."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from syncline.errors import (
    LinkClosedError,
    LinkLostError,
    MalformedMessageError,
    NotAuthorizedError,
    SynclineError,
    UnexpectedMessageError,
    UnsupportedVersionError,
)
from syncline.links.smp_link import LinkEvent
from syncline.links.smp_session import SmpSession
from syncline.server.smp.calls import Call
from syncline.server.smp.forwarding import Forwarding
from syncline.server.smp.options import SmpOptions
from syncline.server.smp.proxy_targets import Reach
from syncline.server.smp.proxying import Proxying, ProxyOptions
from syncline.server.smp.router import SmpRouter
from syncline.server.smp.tasks import Tasks
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.commands import Command, Pfwd, Ping, Prxy, Rfwd, encode_command
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.forwards import (
    Forward,
    ForwardAnswer,
    decode_forward,
    encode_forward_answer,
)
from syncline.wire.smp.hellos import CertifiedKey, RouterHello, VersionRange
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Err, Pkey, Pong, Pres, RouterMessage, Rres
from tests.unit.server.smp.router_rig import (
    Peer,
    Request,
    RouterRig,
    in_memory,
    quiet_log,
    some_bytes,
    turns,
)

__all__ = ["in_memory"]

KEY = public_key_of(KeyKind.X25519, b"\x05" * 32)
SECRET = b"\x06" * 32
SPOKEN = VersionRange(6, 20)
CERTIFIED = CertifiedKey((b"leaf", b"identity"), b"signed key")
# The body of PFWD as clients make it.
BODY = bytes(16_242)

Answering = Callable[[Forward, bytes], RouterMessage]


def address(name: str = "relay.example") -> RouterAddress:
    return RouterAddress(bytes(32), (name,))


def answered(forward: Forward, nonce: bytes) -> RouterMessage:
    """As a relay does it: the body comes back with its letters in reverse."""
    told = encode_forward_answer(ForwardAnswer(forward.corr_id, forward.body[::-1]))
    return Rres(SecretBox(SECRET).box(nonce[::-1], told))


@dataclass
class FakeLink:
    """A relay that answers as it is told to, when it is told to."""

    version: int = 20
    spoken: VersionRange = SPOKEN
    certified: CertifiedKey = CERTIFIED
    answering: Answering = answered
    error: SynclineError | None = None
    end: SynclineError | None = None
    # Waited for before each answer.
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    forwards: list[Forward] = field(default_factory=list[Forward])
    nonces: list[bytes] = field(default_factory=list[bytes])
    events_taken_count: int = 0
    close_count: int = 0
    session_id: bytes = field(default_factory=lambda: some_bytes(32))

    def __post_init__(self) -> None:
        self.gate.set()
        hello = RouterHello(self.spoken, self.session_id, self.certified)
        self.session = SmpSession(self.version, self.session_id, KEY, SECRET, None, None, hello)

    async def request(
        self, command: Command, *, timeout_s: float | None = None, corr_id: bytes | None = None
    ) -> RouterMessage:
        assert isinstance(command, Rfwd)
        assert corr_id is not None
        assert timeout_s is not None
        # As it must fit into a block.
        self.session.transmission(corr_id, b"", command, None)
        forward = decode_forward(SecretBox(SECRET).open_box(corr_id, command.body))
        self.forwards.append(forward)
        self.nonces.append(corr_id)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.answering(forward, corr_id)

    def take_events(self) -> list[LinkEvent]:
        self.events_taken_count += 1
        return []

    async def close(self) -> None:
        self.close_count += 1
        self.end = LinkClosedError("closed")


class Worker:
    """The router, which says when it answers something later."""

    def __init__(self, router: SmpRouter) -> None:
        self.hold = router.hold
        self.work = router.work
        self._answer = router.answer
        self.has_answered = asyncio.Event()

    def answer(self, call: Call, message: RouterMessage) -> None:
        self._answer(call, message)
        self.has_answered.set()


class World:
    """A proxy, with relays and a clock in the test's hand."""

    def __init__(self, rig: RouterRig, options: ProxyOptions | None = None) -> None:
        self.rig = rig
        self.now_s = 1_000.0
        self.connects: list[RouterAddress] = []
        self.links: list[FakeLink] = []
        # What connecting comes to, in this order; then, a relay like any other.
        self.outcomes: list[FakeLink | BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.tasks = Tasks(quiet_log())
        self.proxying = Proxying(
            options or ProxyOptions(reach=Reach.ANYBODY),
            self.connect,
            self.tasks,
            lambda: self.now_s,
            some_bytes,
        )
        forwarding = self.forwarding = Forwarding(self.proxying)
        rig.choose(rig.options, relay=forwarding)
        self.worker = Worker(rig.router)
        forwarding.attach(self.worker)
        self.peer = rig.connect()

    async def connect(self, address: RouterAddress) -> FakeLink:
        self.connects.append(address)
        await self.gate.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else FakeLink()
        if isinstance(outcome, BaseException):
            raise outcome
        self.links.append(outcome)
        return outcome

    async def answered_later(self) -> None:
        async with asyncio.timeout(10):
            await self.worker.has_answered.wait()

    async def opened(self, name: str = "relay.example", peer: Peer | None = None) -> Pkey:
        answer = await (peer or self.peer).ask(Prxy(address(name)))
        assert isinstance(answer, Pkey), answer
        return answer

    async def forward(self, session_id: bytes, body: bytes = BODY, **more: Any) -> RouterMessage:
        peer: Peer = more.pop("peer", self.peer)
        return await peer.ask(Pfwd(more.pop("version", 20), KEY, body), session_id, **more)

    async def refused(self, session_id: bytes, body: bytes = BODY, **more: Any) -> Failure:
        answer = await self.forward(session_id, body, **more)
        assert isinstance(answer, Err), answer
        return answer.failure


@pytest.fixture
async def world(in_memory: RouterRig) -> AsyncIterator[World]:
    made = World(in_memory)
    yield made
    await made.forwarding.close()


@asynccontextmanager
async def other_world(rig: RouterRig, **options: Any) -> AsyncIterator[World]:
    made = World(rig, ProxyOptions(**({"reach": Reach.ANYBODY} | options)))
    try:
        yield made
    finally:
        await made.forwarding.close()


# -------------------------------------------------------------------------------------- connecting


async def test_a_client_is_shown_what_the_relay_showed(world: World) -> None:
    link = FakeLink(spoken=VersionRange(7, 15), version=15)
    world.outcomes = [link]
    assert await world.opened() == Pkey(link.session_id, VersionRange(7, 15), CERTIFIED)
    assert world.connects == [address()]


async def test_a_connection_is_shared(world: World) -> None:
    first = await world.opened()
    assert await world.opened() == first
    assert await world.opened(peer=world.rig.connect()) == first
    assert len(world.connects) == 1
    assert (await world.opened("other.example")).session_id != first.session_id
    assert world.proxying.connection_count == 2


async def test_those_who_ask_at_the_same_time_share_one_attempt(world: World) -> None:
    world.gate.clear()
    peers = [world.rig.connect() for _ in range(5)]
    asking = [asyncio.create_task(world.opened(peer=peer)) for peer in peers]
    await turns()
    assert (len(world.connects), world.proxying.waiting_count) == (1, 5)
    assert not any(each.done() for each in asking)
    world.gate.set()
    assert len({pkey.session_id for pkey in await asyncio.gather(*asking)}) == 1
    assert (len(world.connects), world.proxying.waiting_count) == (1, 0)


async def test_a_failed_attempt_is_told_to_all_and_the_next_one_may_succeed(world: World) -> None:
    world.outcomes = [LinkLostError("nobody there")]
    peers = [world.rig.connect() for _ in range(3)]
    found = await asyncio.gather(*(peer.refusal(Prxy(address())) for peer in peers))
    assert found == [failures.BROKER_NETWORK] * 3
    assert (len(world.connects), world.proxying.connection_count) == (1, 0)
    await world.opened()
    assert world.proxying.counters.failed_count == world.proxying.counters.connected_count == 1


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (LinkLostError("nobody there"), failures.BROKER_NETWORK),
        (TimeoutError(), failures.BROKER_NETWORK),
        (NotAuthorizedError("another router"), failures.BROKER_NETWORK),
        (FailureError(failures.BROKER_HOST), failures.BROKER_HOST),
        (UnsupportedVersionError("too old"), failures.BROKER_VERSION),
        (FakeLink(version=7), failures.BROKER_VERSION),
        (
            MalformedMessageError("no hello"),
            failures.proxy_broker("TRANSPORT", b"HANDSHAKE PARSE"),
        ),
    ],
)
async def test_why_a_relay_was_not_reached_is_told(
    world: World, outcome: FakeLink | BaseException, failure: Failure
) -> None:
    world.outcomes = [outcome]
    assert await world.peer.refusal(Prxy(address())) == failure
    assert world.proxying.connection_count == 0
    if isinstance(outcome, FakeLink):
        assert outcome.close_count == 1, "it is of no use"


async def test_connecting_takes_so_long_and_no_longer(in_memory: RouterRig) -> None:
    async with other_world(in_memory, connect_seconds_max=0.01) as world:
        world.gate.clear()
        request = Request(Prxy(address()))
        world.peer.say(request)
        await world.answered_later()
        assert world.peer.answer_to(request) == Err(failures.BROKER_NETWORK)
        assert world.proxying.connection_count == 0


@pytest.mark.parametrize("reach", list(Reach))
@pytest.mark.parametrize("given", [None, b"wrong", b"sesame"])
async def test_who_may_use_the_proxy(
    in_memory: RouterRig, reach: Reach, given: bytes | None
) -> None:
    async with other_world(in_memory, reach=reach, password="sesame") as world:
        answer = await world.peer.ask(Prxy(address(), given))
        may = reach is not Reach.NOBODY and given == b"sesame"
        assert isinstance(answer, Pkey) if may else answer == Err(failures.BASIC_AUTH)
        assert len(world.connects) == may


async def test_without_a_password_any_is_right(world: World) -> None:
    assert isinstance(await world.peer.ask(Prxy(address(), b"whatever")), Pkey)


async def test_a_password_is_not_shown() -> None:
    assert "sesame" not in repr(ProxyOptions(password="sesame"))


# -------------------------------------------------------------------------------------- forwarding


async def test_a_command_is_passed_on_and_its_answer_back(world: World) -> None:
    pkey = await world.opened()
    request = Request(Pfwd(15, KEY, b"to you"), pkey.session_id)
    (answer,) = await world.peer.ask_all(request)
    assert answer == Pres(b"uoy ot")
    (link,) = world.links
    assert link.forwards == [Forward(request.corr_id, 15, KEY, b"to you")]
    assert link.nonces != [request.corr_id], "the relay could tell clients apart by it"
    assert world.proxying.counters.forwarded_count == 1


async def test_anybody_may_use_a_session_that_there_is(world: World) -> None:
    pkey = await world.opened()
    other = world.rig.connect()
    assert await world.forward(pkey.session_id, b"ab", peer=other) == Pres(b"ba")


async def test_every_command_has_a_nonce_of_its_own(world: World) -> None:
    pkey = await world.opened()
    for _ in range(3):
        await world.forward(pkey.session_id)
    assert len(set(world.links[0].nonces)) == 3


async def test_an_unknown_session_is_told(world: World) -> None:
    assert await world.refused(some_bytes(32)) == failures.NO_SESSION
    pkey = await world.opened()
    world.links[0].end = LinkLostError("gone")
    assert await world.refused(pkey.session_id) == failures.NO_SESSION
    again = await world.opened()
    assert again.session_id != pkey.session_id
    assert len(world.connects) == 2


async def test_a_client_that_asks_again_gets_a_connection_that_lives(world: World) -> None:
    pkey = await world.opened()
    world.links[0].end = LinkLostError("gone")
    assert (await world.opened()).session_id != pkey.session_id
    assert world.proxying.connection_count == 1


@pytest.mark.parametrize(
    ("version", "is_spoken"), [(7, False), (8, True), (15, True), (16, False), (65_535, False)]
)
async def test_a_version_that_the_relay_does_not_speak_is_not_passed_on(
    world: World, version: int, is_spoken: bool
) -> None:
    world.outcomes = [FakeLink(spoken=VersionRange(7, 15), version=15)]
    pkey = await world.opened()
    answer = await world.forward(pkey.session_id, b"x", version=version)
    assert answer == (Pres(b"x") if is_spoken else Err(failures.BROKER_VERSION))
    assert len(world.links[0].forwards) == is_spoken


@pytest.mark.parametrize(
    ("error", "end", "failure"),
    [
        (FailureError(failures.CRYPTO), None, failures.proxy_protocol(failures.CRYPTO)),
        (
            FailureError(failures.store("full")),
            None,
            failures.proxy_protocol(failures.store("full")),
        ),
        (LinkLostError("no answer in time"), None, failures.BROKER_TIMEOUT),
        (LinkLostError("lost"), LinkLostError("lost"), failures.BROKER_NETWORK),
        (LinkClosedError("closed"), LinkClosedError("closed"), failures.BROKER_NETWORK),
        (MalformedMessageError("?"), None, failures.proxy_broker("RESPONSE", b"BLOCK")),
        (UnexpectedMessageError("?"), None, failures.proxy_broker("RESPONSE", b"BLOCK")),
    ],
)
async def test_why_there_is_no_answer_is_told(
    world: World, error: SynclineError, end: SynclineError | None, failure: Failure
) -> None:
    pkey = await world.opened()
    link = world.links[0]
    link.error = error
    request = Request(Pfwd(20, KEY, BODY), pkey.session_id)
    link.gate.clear()
    world.peer.say(request)
    await turns()
    link.end = end
    link.gate.set()
    await turns()
    assert world.peer.answer_to(request) == Err(failure)
    assert world.proxying.waiting_count == 0


def _other_corr_id(forward: Forward, nonce: bytes) -> RouterMessage:
    told = encode_forward_answer(ForwardAnswer(b"\x00" * 24, forward.body))
    return Rres(SecretBox(SECRET).box(nonce[::-1], told))


@pytest.mark.parametrize(
    ("answering", "failure"),
    [
        (lambda *_: Pong(), failures.proxy_broker("UNEXPECTED", b"PONG")),
        (lambda *_: Rres(b"no box at all, but long enough"), failures.CRYPTO),
        (lambda *_: Rres(b""), failures.CRYPTO),
        (
            lambda _, nonce: Rres(SecretBox(SECRET).box(nonce, b"the nonce was not reversed")),
            failures.CRYPTO,
        ),
        (
            lambda _, nonce: Rres(SecretBox(SECRET).box(nonce[::-1], b"\x18short")),
            failures.proxy_broker("RESPONSE", b"BLOCK"),
        ),
        (_other_corr_id, failures.proxy_broker("RESPONSE", b"BLOCK")),
    ],
)
async def test_an_answer_that_is_none_is_told(
    world: World, answering: Answering, failure: Failure
) -> None:
    world.outcomes = [FakeLink(answering=answering)]
    pkey = await world.opened()
    assert await world.refused(pkey.session_id) == failure


async def test_what_would_not_fit_into_the_block_of_the_relay_is_not_passed_on(
    world: World,
) -> None:
    pkey = await world.opened()
    assert isinstance(await world.forward(pkey.session_id, BODY + b"+"), Pres)
    too_large = failures.proxy_broker("TRANSPORT", b"LARGE_MSG")
    assert await world.refused(pkey.session_id, BODY + b"++") == too_large
    # A shorter correlation id leaves room for a longer body.
    assert isinstance(await world.forward(pkey.session_id, BODY + b"+" * 25, corr_id=b""), Pres)
    assert await world.refused(pkey.session_id, BODY + b"+" * 26, corr_id=b"") == too_large


async def test_a_relay_that_takes_too_long_is_not_waited_for(in_memory: RouterRig) -> None:
    async with other_world(in_memory, answer_seconds_max=0.01) as world:
        pkey = await world.opened()
        world.links[0].gate.clear()
        world.worker.has_answered.clear()
        request = Request(Pfwd(20, KEY, BODY), pkey.session_id)
        world.peer.say(request)
        await world.answered_later()
        assert world.peer.answer_to(request) == Err(failures.BROKER_TIMEOUT)
        assert world.proxying.waiting_count == 0


# ------------------------------------------------------------------------------------------ bounds


async def test_a_client_with_too_much_under_way_is_not_read_from(in_memory: RouterRig) -> None:
    in_memory.options = SmpOptions(unanswered_count_max=4)
    async with other_world(in_memory) as world:
        pkey = await world.opened()
        world.links[0].gate.clear()
        for count in range(1, 6):
            world.peer.say(Request(Pfwd(20, KEY, BODY), pkey.session_id))
            assert world.peer.is_reading is (count <= 4)
        other = world.rig.connect()
        assert await other.ask(Ping()) == Pong(), "others are not held up"
        world.links[0].gate.set()
        await turns()
        assert world.peer.is_reading
        assert len(world.peer.sent) == 5


async def test_all_clients_together_have_so_much_under_way(in_memory: RouterRig) -> None:
    async with other_world(in_memory, waiting_count_max=3) as world:
        pkey = await world.opened()
        world.links[0].gate.clear()
        for _ in range(3):
            world.rig.connect().say(Request(Pfwd(20, KEY, BODY), pkey.session_id))
        await turns()
        assert await world.refused(pkey.session_id) == failures.BROKER_TIMEOUT
        assert await world.peer.refusal(Prxy(address("x"))) == failures.BROKER_TIMEOUT
        assert await world.opened() == pkey, "nobody has to wait for that"
        world.links[0].gate.set()
        await turns()
        assert isinstance(await world.forward(pkey.session_id), Pres)


async def test_clients_that_wait_for_a_connection_count_too(in_memory: RouterRig) -> None:
    async with other_world(in_memory, waiting_count_max=3) as world:
        world.gate.clear()
        for _ in range(3):
            world.rig.connect().say(Request(Prxy(address())))
        assert await world.peer.refusal(Prxy(address())) == failures.BROKER_TIMEOUT
        world.gate.set()
        await turns()
        await world.opened()


async def test_the_connection_that_was_idle_for_longest_makes_room(in_memory: RouterRig) -> None:
    async with other_world(in_memory, connection_count_max=3) as world:
        one, two, three = [await world.opened(name) for name in ("a", "b", "c")]
        await world.forward(one.session_id)
        four = await world.opened("d")
        await turns()
        assert [link.close_count for link in world.links] == [0, 1, 0, 0]
        assert await world.refused(two.session_id) == failures.NO_SESSION
        for pkey in (one, three, four):
            assert isinstance(await world.forward(pkey.session_id), Pres)
        assert world.proxying.connection_count == 3


async def test_one_that_has_ended_makes_room_first(in_memory: RouterRig) -> None:
    async with other_world(in_memory, connection_count_max=2) as world:
        one, _ = [await world.opened(name) for name in ("a", "b")]
        world.links[1].end = LinkLostError("gone")
        await world.opened("c")
        assert isinstance(await world.forward(one.session_id), Pres)


async def test_connections_that_are_in_use_are_not_given_away(in_memory: RouterRig) -> None:
    async with other_world(in_memory, connection_count_max=2) as world:
        pkey = await world.opened("a")
        world.links[0].gate.clear()
        forward = Request(Pfwd(20, KEY, BODY), pkey.session_id)
        world.peer.say(forward)
        world.gate.clear()
        connecting = Request(Prxy(address("b")))
        world.peer.say(connecting)
        await turns()
        assert await world.peer.refusal(Prxy(address("c"))) == failures.BROKER_NETWORK
        world.links[0].gate.set()
        world.gate.set()
        await turns()
        assert isinstance(world.peer.answer_to(forward), Pres)
        assert isinstance(world.peer.answer_to(connecting), Pkey)
        await world.opened("c")


async def test_a_connection_that_nobody_uses_is_closed(world: World) -> None:
    pkey = await world.opened()
    (link,) = world.links
    world.now_s += 599
    world.forwarding.keep_house()
    assert isinstance(await world.forward(pkey.session_id), Pres)
    world.now_s += 599
    world.forwarding.keep_house()
    assert world.proxying.connection_count == 1
    world.now_s += 1
    world.forwarding.keep_house()
    await turns()
    assert (world.proxying.connection_count, link.close_count) == (0, 1)
    assert await world.refused(pkey.session_id) == failures.NO_SESSION


async def test_one_that_is_waited_for_is_not_idle(world: World) -> None:
    pkey = await world.opened()
    world.links[0].gate.clear()
    request = Request(Pfwd(20, KEY, b"ab"), pkey.session_id)
    world.peer.say(request)
    await turns()
    world.gate.clear()
    connecting = Request(Prxy(address("other.example")))
    world.peer.say(connecting)
    await turns()
    world.now_s += 10_000
    world.forwarding.keep_house()
    await turns()
    assert (world.proxying.connection_count, world.links[0].close_count) == (2, 0)
    world.links[0].gate.set()
    world.gate.set()
    await turns()
    assert world.peer.answer_to(request) == Pres(b"ba")
    assert isinstance(world.peer.answer_to(connecting), Pkey)


async def test_upkeep_drops_what_has_ended_and_throws_away_what_came_late(world: World) -> None:
    await world.opened("a")
    await world.opened("b")
    world.links[0].end = LinkLostError("gone")
    world.gate.clear()
    world.peer.say(Request(Prxy(address("c"))))
    await turns()
    world.forwarding.keep_house()
    assert world.proxying.connection_count == 2
    assert [link.events_taken_count for link in world.links] == [1, 1]


async def test_when_the_router_stops_nothing_is_left(in_memory: RouterRig) -> None:
    async with other_world(in_memory) as world:
        pkey = await world.opened()
        world.links[0].gate.clear()
        world.gate.clear()
        world.peer.say(
            Request(Pfwd(20, KEY, BODY), pkey.session_id), Request(Prxy(address("other")))
        )
        await turns()
        await world.forwarding.close()
        assert world.links[0].close_count == 1
        assert (len(world.tasks), world.proxying.connection_count) == (0, 0)
        assert world.peer.sent == []


async def test_an_answer_to_a_client_that_has_left_is_dropped(world: World) -> None:
    pkey = await world.opened()
    world.links[0].gate.clear()
    other = world.rig.connect()
    other.say(Request(Pfwd(20, KEY, BODY), pkey.session_id))
    await turns()
    other.close("gone")
    world.links[0].gate.set()
    await turns()
    assert (other.sent, world.proxying.waiting_count) == ([], 0)


async def test_before_version_8_there_is_no_proxy(world: World) -> None:
    old = world.rig.connect(7)
    assert await old.refusal(encode_command(20, Prxy(address()))) == failures.UNKNOWN
