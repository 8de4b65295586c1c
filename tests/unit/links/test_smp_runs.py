"""Questions over a link: their parts go out, those of the answer are put together."""

import asyncio
import secrets

import pytest

from syncline.errors import (
    LimitExceededError,
    LinkLostError,
    MalformedMessageError,
    ProtocolError,
    UnexpectedMessageError,
)
from syncline.links.smp_link import LinkOptions, SmpLink
from syncline.values.reconciliation import Answer, Compare, Listing, Open, Opening, SetState
from syncline.wire.reconciliation.answers import encode_answer
from syncline.wire.reconciliation.requests import decode_request
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp import failures
from syncline.wire.smp.authorizations import is_signed
from syncline.wire.smp.commands import Ping, Recq
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Err, Ok, Pong, Reca, RouterMessage
from syncline.wire.smp.versions import EXTENDED
from tests.unit.links.scripted_smp_router import SERVICE_ID, Peer, Script
from tests.unit.links.test_smp_link import LOGIN, Clock, connected

SYNCLINE = Script(alpn=("syncline/1", "smp/1"))
SALT = b"saltsalt"
OPENING = Opening(SetState(3, 0, bytes(16), bytes(16)), SALT, b"", (), ())


def listing(count: int) -> Listing:
    ids = sorted(secrets.token_bytes(24) for _ in range(count))
    return Listing(None, b"".join(ids))


def parts(answer: Answer) -> list[RouterMessage]:
    return [Reca(part) for part in encode_answer(answer)]


async def asked(peer: Peer) -> bytes:
    """Takes a question of one part; its correlation id."""
    transmission, command = await peer.receive()
    assert isinstance(command, Recq)
    return transmission.corr_id


async def test_a_question_is_signed_by_the_service_and_answered() -> None:
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        assert link.is_extended
        assert link.version == EXTENDED
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        transmission, command = await peer.receive()
        assert isinstance(command, Recq)
        joined = Joiner(100).add(command.part)
        assert joined is not None
        assert decode_request(*joined) == Open(None, 8)
        assert transmission.entity_id == SERVICE_ID
        assert link.service is not None
        key = link.service.key.public
        assert is_signed(key, transmission.authorization, transmission.signed)
        await peer.send((transmission.corr_id, SERVICE_ID, parts(OPENING)[0]))
        assert await answer == OPENING


async def test_a_plain_router_is_not_extended() -> None:
    async with connected(service=LOGIN) as (link, _):
        assert not link.is_extended
        assert link.version == 20


async def test_the_extension_is_offered_by_services_alone_and_can_be_left_out() -> None:
    async with connected(SYNCLINE) as (link, _):
        assert link.session.alpn == "smp/1"
    async with connected(SYNCLINE, LinkOptions(offers_extension=False), service=LOGIN) as (link, _):
        assert link.session.alpn == "smp/1"


async def test_an_answer_of_many_parts_is_put_together_in_whatever_else_comes() -> None:
    whole = listing(3_000)
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        corr_id = await asked(peer)
        ping = asyncio.create_task(link.request(Ping()))
        pinged, _ = await peer.receive()
        first, *others = parts(whole)
        assert len(others) > 2
        await peer.send((corr_id, SERVICE_ID, first))
        await peer.send((pinged.corr_id, b"", Pong()))
        assert await ping == Pong()
        await peer.send(*((corr_id, SERVICE_ID, part) for part in others))
        assert await answer == whole
        assert link.waiting_count == 0


async def test_a_question_of_many_parts_has_all_of_them_answered() -> None:
    question = Compare(1, SALT, bytes(9 * 5_000))
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        answer = asyncio.create_task(link.ask(question))
        joiner, joined = Joiner(100_000), None
        while joined is None:
            transmission, command = await peer.receive()
            assert isinstance(command, Recq)
            joined = joiner.add(command.part)
            told = Ok() if joined is None else parts(OPENING)[0]
            await peer.send((transmission.corr_id, SERVICE_ID, told))
        assert decode_request(*joined) == question
        assert await answer == OPENING


async def test_each_part_has_time_of_its_own() -> None:
    clock = Clock()
    options = LinkOptions(answer_timeout_s=10)
    whole = listing(2_000)
    async with connected(SYNCLINE, options, service=LOGIN, clock=clock) as (link, peer):
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        corr_id = await asked(peer)
        for part in parts(whole):
            clock.advance(9_000)
            link.tick()
            assert not answer.done()
            await peer.send((corr_id, SERVICE_ID, part))
            assert await _is_alive(link, peer)
        assert await answer == whole


async def test_an_answer_that_stops_in_the_middle_is_given_up() -> None:
    clock = Clock()
    options = LinkOptions(answer_timeout_s=10)
    async with connected(SYNCLINE, options, service=LOGIN, clock=clock) as (link, peer):
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        corr_id = await asked(peer)
        first, second, *_ = parts(listing(2_000))
        await peer.send((corr_id, SERVICE_ID, first))
        assert await _is_alive(link, peer)
        clock.advance(10_001)
        link.tick()
        with pytest.raises(LinkLostError):
            await answer
        # What comes too late is nothing, and the next question is a new one.
        await peer.send((corr_id, SERVICE_ID, second))
        again = asyncio.create_task(link.ask(Open(None, 8)))
        await peer.send((await asked(peer), SERVICE_ID, parts(OPENING)[0]))
        assert await again == OPENING
        assert link.take_events() == []


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ([Err(failures.SERVICE)], FailureError),
        ([Ok()], MalformedMessageError),
        ([Reca(b"")], MalformedMessageError),
        ([Reca(b"\x41\x01\x02")], MalformedMessageError),
        ([Reca(b"\x01\x00\x01")], MalformedMessageError),
        ([*parts(listing(900))[:1], parts(OPENING)[0]], MalformedMessageError),
        (parts(listing(4_000)), LimitExceededError),
    ],
    ids=["refused", "ok", "empty", "out of order", "a question", "two answers", "too large"],
)
async def test_what_is_no_answer_is_an_error(
    told: list[RouterMessage], error: type[Exception]
) -> None:
    options = LinkOptions(answer_bytes_max=60_000)
    async with connected(SYNCLINE, options, service=LOGIN) as (link, peer):
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        corr_id = await asked(peer)
        await peer.send(*((corr_id, SERVICE_ID, each) for each in told))
        with pytest.raises(error):
            await answer
        assert await _is_alive(link, peer)


async def test_an_answer_to_no_question_is_an_error() -> None:
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        ping = asyncio.create_task(link.request(Ping()))
        pinged, _ = await peer.receive()
        await peer.send((pinged.corr_id, b"", parts(OPENING)[0]))
        with pytest.raises(UnexpectedMessageError):
            await ping


async def test_a_part_of_a_question_that_is_refused_ends_it() -> None:
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        answer = asyncio.create_task(link.ask(Compare(1, SALT, bytes(9 * 5_000))))
        for refusal in (Err(failures.SYNTAX), Ok(), Err(failures.SYNTAX)):
            transmission, _ = await peer.receive()
            await peer.send((transmission.corr_id, SERVICE_ID, refusal))
        with pytest.raises(FailureError, match="SYNTAX"):
            await answer


async def test_the_end_of_the_link_ends_the_question() -> None:
    async with connected(SYNCLINE, service=LOGIN) as (link, peer):
        answer = asyncio.create_task(link.ask(Open(None, 8)))
        await asked(peer)
        await peer.close()
        with pytest.raises(LinkLostError):
            await answer


async def _is_alive(link: SmpLink, peer: Peer) -> bool:
    """Once answered, all that was sent before has been taken."""
    ping = asyncio.create_task(link.request(Ping()))
    while True:
        transmission, command = await peer.receive()
        if isinstance(command, Ping):
            break
    await peer.send((transmission.corr_id, b"", Pong()))
    try:
        return await ping == Pong()
    except ProtocolError:
        return False
