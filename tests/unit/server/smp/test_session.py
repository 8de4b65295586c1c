"""Sessions on a link moved by hand."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.faces import Answer, SessionService
from syncline.server.smp.handshake import Agreed, LinkFacts
from syncline.server.smp.session import BlockHandler, Session, Sessions
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import padded, unpadded
from syncline.wire.smp.chains import BlockChain, ChainKeys
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Deld, End, Msg, Ok, Pong, Sok, decode_message
from syncline.wire.smp.transmissions import (
    BLOCK_BYTES,
    Damaged,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
)
from tests.unit.server.smp.transport_rig import CORR_ID, Face

SESSION_ID = bytes(range(32))
FACTS = LinkFacts(SESSION_ID, "127.0.0.1")
KEYS = ChainKeys(b"\x01" * 32, b"\x02" * 32)
QUEUE = b"\xaa" * 24
LIMITS = TransportLimits(
    waiting_bytes_high=40_000, waiting_bytes_low=20_000, waiting_bytes_max=100_000
)
SERVICE = SessionService(
    b"\xee" * 24, ServiceRole.MESSAGING, public_key_of(KeyKind.ED25519, b"\x02" * 32), b"h" * 32
)


@dataclass
class Link:
    """Takes blocks as long as it is told to."""

    is_writable: bool = True
    blocks: list[bytes] = field(default_factory=list[bytes])
    is_reading: bool = True
    is_closed: bool = False
    is_aborted: bool = False
    handler: BlockHandler | None = None

    def write_block(self, block: bytes) -> None:
        assert self.is_writable
        self.blocks.append(block)

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def hand_over(self, handler: BlockHandler) -> None:
        self.handler = handler

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Desk:
    """One session, its link and its router."""

    def __init__(
        self,
        version: int = 20,
        *,
        chains: ChainKeys | None = None,
        limits: TransportLimits = LIMITS,
    ) -> None:
        self.face = Face()
        self.stats = TransportStats()
        self.link = Link()
        loop = asyncio.get_running_loop()
        self.sessions = Sessions(self.face, limits, self.stats, loop)
        self.session = self.open(version, chains)
        self.sealing = BlockChain(KEYS.client_to_router)
        self.opening = BlockChain(KEYS.router_to_client)
        self.is_encrypted = chains is not None

    def open(
        self, version: int = 20, chains: ChainKeys | None = None, link: Link | None = None
    ) -> Session:
        agreed = Agreed(version, chains, False, None)
        return self.sessions.open(link or self.link, FACTS, agreed, b"\x04" * 32, SERVICE)

    def contents(self) -> list[bytes]:
        return [
            self.opening.open(block) if self.is_encrypted else unpadded(block)
            for block in self.link.blocks
        ]

    def sent(self) -> list[list[Transmission | Damaged]]:
        version = self.session.version
        return [decode_block(version, SESSION_ID, content) for content in self.contents()]

    def fill(self) -> None:
        """Until the session is full, on a link that takes nothing."""
        self.link.is_writable = False
        while self.session.is_writable:
            self.session.send([message()])

    def receive(self, *bodies: bytes) -> None:
        version = self.session.version
        (content,) = pack(
            encode_transmission(version, SESSION_ID, b"", None, CORR_ID, b"", body)
            for body in bodies
        )
        self.session.block_received(
            self.sealing.seal(content) if self.is_encrypted else padded(content, BLOCK_BYTES)
        )


def message(body_bytes: int = 16_000) -> Answer:
    return Answer(b"", QUEUE, Msg(b"m" * 24, bytes(body_bytes)))


async def turn() -> None:
    """Let the loop come around once, and what that starts once more."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


# Out.


@pytest.mark.parametrize("version", range(6, 21))
async def test_an_answer_is_a_block_that_says_so(version: int) -> None:
    desk = Desk(version)
    desk.session.send([Answer(CORR_ID, QUEUE, Ok())])
    await turn()
    ((found,),) = desk.sent()
    assert isinstance(found, Transmission)
    assert (found.corr_id, found.entity_id, found.body) == (CORR_ID, QUEUE, b"OK")
    assert (found.authorization, found.service_signature) == (b"", None)


async def test_answers_are_in_the_words_of_the_version() -> None:
    desk = Desk(9)
    desk.session.send([Answer(CORR_ID, QUEUE, Sok()), Answer(b"", QUEUE, Deld())])
    await turn()
    (found,) = desk.sent()
    words = [decode_message(9, each.body) for each in found if isinstance(each, Transmission)]
    assert words == [Ok(), End()]


async def test_what_is_sent_in_one_turn_shares_blocks() -> None:
    desk = Desk(chains=KEYS)
    for _ in range(300):
        desk.session.send([Answer(CORR_ID, QUEUE, Ok())])
    assert desk.link.blocks == []
    await turn()
    # 255 fit by their number; an OK is small.
    assert [len(block) for block in desk.sent()] == [255, 45]


async def test_answers_keep_their_order() -> None:
    desk = Desk(chains=KEYS)
    answers = [Answer(bytes((number,)) * 24, QUEUE, Ok()) for number in range(10)]
    desk.session.send(answers[:3])
    desk.session.send([message()])
    desk.session.send(answers[3:7])
    await turn()
    desk.session.send(answers[7:])
    await turn()
    found = [each for block in desk.sent() for each in block]
    sent = [*answers[:3], message(), *answers[3:]]
    assert [each.corr_id for each in found] == [answer.corr_id for answer in sent]


async def test_blocks_are_encrypted_if_that_was_agreed() -> None:
    desk = Desk(chains=KEYS)
    for _ in range(3):
        desk.session.send([Answer(CORR_ID, b"", Pong())])
        await turn()
    assert len(set(desk.link.blocks)) == 3
    assert {len(block) for block in desk.link.blocks} == {BLOCK_BYTES}
    assert len(desk.sent()) == 3


async def test_sending_nothing_writes_nothing() -> None:
    desk = Desk()
    desk.session.send([])
    await turn()
    assert desk.link.blocks == []


# Out, to a peer that takes nothing.


async def test_a_full_session_is_not_read_from_until_it_is_drained() -> None:
    desk = Desk(chains=KEYS)
    desk.fill()
    assert not desk.link.is_reading
    await turn()
    assert desk.face.drained_count == 0
    desk.link.is_writable = True
    desk.session.drained()
    assert desk.face.drained_count == 1
    assert desk.session.is_writable
    assert desk.link.is_reading
    assert desk.session.waiting_bytes == 0
    assert len(desk.sent()) == 3


async def test_a_session_that_fills_and_empties_in_one_turn_is_drained_too() -> None:
    desk = Desk(chains=KEYS)
    while desk.session.is_writable:
        desk.session.send([message()])
    assert not desk.link.is_reading
    await turn()
    assert desk.face.drained_count == 1
    assert desk.session.is_writable
    assert desk.link.is_reading


async def test_a_session_stays_full_until_the_lower_mark() -> None:
    desk = Desk()
    desk.fill()
    await turn()
    desk.link.is_writable = True
    write_block = desk.link.write_block

    def write_one(block: bytes) -> None:
        write_block(block)
        desk.link.is_writable = False

    desk.link.write_block = write_one  # type: ignore[method-assign]
    desk.session.drained()
    assert not desk.session.is_writable
    desk.link.is_writable = True
    desk.session.drained()
    assert desk.session.is_writable
    assert desk.session.waiting_bytes > 0


async def test_answers_that_wait_are_not_padded_yet() -> None:
    desk = Desk(chains=KEYS)
    desk.link.is_writable = False
    for _ in range(100):
        desk.session.send([Answer(CORR_ID, QUEUE, Ok())])
        await turn()
    assert desk.session.waiting_bytes < 100 * 64
    assert desk.session.is_writable


async def test_what_waits_for_all_sessions_is_counted() -> None:
    desk = Desk()
    desk.fill()
    await turn()
    assert desk.stats.waiting_bytes == desk.session.waiting_bytes > 0
    desk.link.is_writable = True
    desk.session.drained()
    assert desk.stats.waiting_bytes == 0
    desk.fill()
    await turn()
    desk.session.close("")
    assert desk.stats.waiting_bytes == 0


async def test_if_too_much_waits_for_all_those_are_cut_off_that_have_most() -> None:
    desk = Desk(limits=replace(LIMITS, all_waiting_bytes_max=90_000))
    links = [Link(is_writable=False) for _ in range(4)]
    for count, link in enumerate(links):
        desk.open(link=link).send([message()] * count)
        await turn()
    # Of 96,000 bytes half were those of the last one.
    assert [link.is_aborted for link in links] == [False, False, False, True]
    assert 45_000 < desk.stats.waiting_bytes < 50_000
    assert desk.stats.slow_count == 1


async def test_a_session_that_lets_too_much_wait_is_cut_off() -> None:
    desk = Desk()
    desk.link.is_writable = False
    for _ in range(10):
        desk.session.send([message()])
    assert desk.link.is_aborted
    assert desk.stats.slow_count == 1
    assert desk.session.waiting_bytes == 0
    assert not desk.session.is_writable


# In.


@pytest.mark.parametrize("version", range(6, 21))
async def test_a_block_is_handed_over_as_its_transmissions(version: int) -> None:
    desk = Desk(version, chains=KEYS if version >= 11 else None)
    desk.receive(b"PING", b"SUB")
    desk.receive(b"PING")
    bodies = [
        [each.body for each in block if isinstance(each, Transmission)]
        for block in desk.face.blocks
    ]
    assert bodies == [[b"PING", b"SUB"], [b"PING"]]
    assert desk.stats.received_block_count == 2


async def test_a_block_that_does_not_open_ends_the_session() -> None:
    desk = Desk(chains=KEYS)
    desk.session.block_received(bytes(BLOCK_BYTES))
    desk.receive(b"PING")
    assert desk.link.is_closed
    assert desk.face.blocks == []
    assert desk.stats.damaged_count == 1


async def test_an_encrypted_block_of_another_session_ends_this_one() -> None:
    desk = Desk(chains=KEYS)
    desk.sealing = BlockChain(b"\x09" * 32)
    desk.receive(b"PING")
    assert desk.link.is_closed


async def test_a_replayed_block_ends_the_session() -> None:
    desk = Desk(chains=KEYS)
    block = desk.sealing.seal(b"\x01\x00\x01\x00")
    desk.session.block_received(block)
    assert not desk.link.is_closed
    desk.session.block_received(block)
    assert desk.link.is_closed


async def test_bad_padding_without_encryption_is_told_and_the_session_goes_on() -> None:
    desk = Desk()
    desk.session.block_received(b"\xff" * BLOCK_BYTES)
    assert desk.face.blocks == [[Damaged(b"", failures.BLOCK)]]
    assert not desk.link.is_closed


async def test_a_content_that_is_none_is_told() -> None:
    desk = Desk(chains=KEYS)
    desk.session.block_received(desk.sealing.seal(b"\x00"))
    assert desk.face.blocks == [[Damaged(b"", failures.BLOCK)]]
    assert not desk.link.is_closed


# Reading held back.


async def test_the_router_holds_reading_back() -> None:
    desk = Desk()
    desk.session.pause_reading()
    desk.session.pause_reading()
    assert not desk.link.is_reading
    desk.session.resume_reading()
    desk.session.resume_reading()
    assert desk.link.is_reading


async def test_both_reasons_have_to_pass_before_reading_goes_on() -> None:
    desk = Desk()
    desk.session.pause_reading()
    desk.fill()
    await turn()
    desk.link.is_writable = True
    desk.session.drained()
    assert not desk.link.is_reading
    desk.session.resume_reading()
    assert desk.link.is_reading
    desk.fill()
    desk.session.pause_reading()
    desk.session.resume_reading()
    assert not desk.link.is_reading


# Its life.


async def test_a_session_knows_what_was_agreed() -> None:
    desk = Desk(chains=KEYS)
    session = desk.session
    assert desk.face.opened_sessions == [session]
    assert desk.link.handler is session
    assert (session.version, session.session_id, session.remote) == (20, SESSION_ID, "127.0.0.1")
    assert (session.router_private, session.service) == (b"\x04" * 32, SERVICE)
    assert session.is_proxy is False


async def test_no_two_sessions_have_a_number() -> None:
    desk = Desk()
    numbers = [desk.session.number]
    for _ in range(3):
        session = desk.open()
        numbers.append(session.number)
        session.ended()
    assert len(set(numbers)) == 4
    assert [session.number for session in desk.sessions] == numbers[:1]
    assert desk.sessions.get(numbers[0]) is desk.session
    assert desk.sessions.get(numbers[1]) is None
    assert len(desk.sessions) == 1


async def test_closing_sends_what_was_sent_before() -> None:
    desk = Desk()
    desk.session.send([Answer(CORR_ID, QUEUE, Ok())])
    desk.session.close("enough")
    assert desk.link.is_closed
    assert len(desk.sent()) == 1
    await turn()
    assert len(desk.sent()) == 1


async def test_a_full_session_that_is_closed_tells_nobody_that_it_is_drained() -> None:
    desk = Desk()
    desk.fill()
    desk.link.is_writable = True
    desk.session.close("enough")
    await turn()
    desk.session.drained()
    assert desk.face.drained_count == 0


async def test_nothing_is_sent_or_received_after_the_end() -> None:
    desk = Desk()
    desk.session.close("enough")
    desk.session.close("enough")
    assert not desk.session.is_writable
    desk.session.send([Answer(CORR_ID, QUEUE, Ok())])
    desk.receive(b"PING")
    await turn()
    assert desk.link.blocks == []
    assert desk.face.blocks == []


async def test_the_router_hears_of_the_end_once_and_last() -> None:
    desk = Desk()
    desk.session.close("enough")
    assert desk.face.closed_numbers == []
    desk.session.ended()
    assert desk.face.closed_numbers == [desk.session.number]
    assert len(desk.sessions) == 0


async def test_a_lost_session_forgets_what_waits() -> None:
    desk = Desk()
    desk.fill()
    desk.session.ended()
    await turn()
    assert desk.session.waiting_bytes == 0
    assert desk.face.drained_count == 0


async def test_a_session_shows_no_key() -> None:
    desk = Desk(chains=KEYS)
    assert repr(desk.session) == f"Session({desk.session.number}, version=20)"
