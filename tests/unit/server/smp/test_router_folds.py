"""The fold after a bulk subscription: everything that waits, once, then ALLS, whatever happens."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from syncline.errors import CorruptionError
from syncline.server.smp import folding
from syncline.storage.base import Entry
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.wire.smp.commands import Ack, Del, Send, Sub, Subs
from syncline.wire.smp.messages import Alls, Deld, End, Ends, Err, Msg, Ok, RouterMessage, Sok, Soks
from tests.unit.server.smp.router_rig import Peer, Queue, Request, RouterRig, Service, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp

Event = tuple[bytes, RouterMessage]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of queues is many pages."""
    monkeypatch.setattr(folding, "PAGE_COUNT", 3)


async def make(
    smp: RouterRig, count: int, waiting: int | None = None
) -> tuple[Service, list[Queue]]:
    """A service with queues in the order of their ids; in the first ones a message waits."""
    service = await smp.service()
    creator, sender = smp.connect(service=service), smp.connect()
    queues = [await creator.create() for _ in range(count)]
    queues.sort(key=lambda queue: queue.recipient_id)
    creator.close("made")
    for queue in queues[: count if waiting is None else waiting]:
        assert await sender.post(queue, b"stored") == Ok()
    return service, queues


def say_subs(peer: Peer) -> None:
    assert peer.owned_service is not None
    service = peer.owned_service
    peer.say(Request(Subs(0, bytes(16)), service.service_id, service.key))


def readers(events: Sequence[Event]) -> list[bytes]:
    """Whose messages came, in their order."""
    return [entity_id for entity_id, message in events if isinstance(message, Msg)]


def ids(queues: Sequence[Queue]) -> list[bytes]:
    return [queue.recipient_id for queue in queues]


async def test_everything_that_waits_comes_in_the_order_of_ids_and_alls_is_last(
    smp: RouterRig,
) -> None:
    service, queues = await make(smp, 10)
    session = smp.connect(service=service)
    say_subs(session)
    await turns(200)
    events = session.events()
    assert readers(events) == ids(queues)
    assert events[-1] == (b"", Alls())
    assert [type(message) for _, message in events].count(Alls) == 1
    assert smp.counters.fold_message_count == 10
    # The answer came first.
    assert isinstance(session.sent[0].message, Soks)


async def test_bulk_of_none(smp: RouterRig) -> None:
    session = smp.connect(service=await smp.service())
    say_subs(session)
    await turns()
    assert [answer.message for answer in session.sent] == [Soks(0, bytes(16)), Alls()]


async def test_bulk_twice_answers_twice_and_folds_once(smp: RouterRig) -> None:
    service, _ = await make(smp, 4)
    session = smp.connect(service=service)
    say_subs(session)
    say_subs(session)
    await turns(200)
    say_subs(session)
    await turns(200)
    kinds = Counter(type(answer.message) for answer in session.sent)
    assert kinds == {Soks: 3, Msg: 4, Alls: 1}
    assert smp.counters.bulk_repeated_count == 2


async def test_a_queue_whose_message_is_outstanding_already_is_passed_by(smp: RouterRig) -> None:
    service, queues = await make(smp, 4)
    session = smp.connect(service=service)
    await session.subscribe(queues[2])
    assert await session.event()
    say_subs(session)
    await turns(200)
    assert readers(session.events()) == ids([queues[0], queues[1], queues[3]])


async def test_messages_that_come_during_the_fold_come_once(smp: RouterRig) -> None:
    service, queues = await make(smp, 12, waiting=6)
    session, sender = smp.connect(service=service), smp.connect()
    say_subs(session)
    # Between the pages of the fold, to queues before it and behind it, with and without a message.
    for number, queue in enumerate((*queues, *queues)):
        sender.say(Request(Send(b"F", b"live %d" % number), queue.sender_id))
        await asyncio.sleep(0)
    await turns(300)
    events = session.events()
    assert sorted(readers(events)) == ids(queues)
    assert [message for _, message in events].count(Alls()) == 1
    # And everything else by acknowledging, nothing lost and nothing twice.
    expected = {queue.recipient_id: 3 if index < 6 else 2 for index, queue in enumerate(queues)}
    by_id = {queue.recipient_id: queue for queue in queues}
    counts: Counter[bytes] = Counter()
    seen: set[bytes] = set()
    for entity_id, message in events:
        if not isinstance(message, Msg):
            continue
        queue = by_id[entity_id]
        following: RouterMessage = message
        while isinstance(following, Msg):
            counts[entity_id] += 1
            assert following.message_id not in seen
            seen.add(following.message_id)
            following = await session.ask(Ack(following.message_id), entity_id, queue.key)
    assert counts == expected


async def test_a_queue_deleted_during_the_fold_is_passed_by(smp: RouterRig) -> None:
    service, queues = await make(smp, 9)
    session, plain = smp.connect(service=service), smp.connect()
    session.room = 3
    say_subs(session)
    await turns(100)
    # The answer and two messages are out; the fold waits with more of this page in its hands.
    assert readers(session.events()) == ids(queues[:2])
    for queue in (queues[2], queues[7]):
        assert await plain.ask(Del(), queue.recipient_id, queue.key) == Ok()
    session.drain()
    await turns(200)
    events = session.events()
    deleted = [(queue.recipient_id, Deld()) for queue in (queues[2], queues[7])]
    assert [event for event in events if isinstance(event[1], Deld)] == deleted
    assert readers(events) == ids([*queues[3:7], queues[8]])
    assert events[-1] == (b"", Alls())


async def test_a_queue_that_moves_during_the_fold_goes_to_its_new_reader_alone(
    smp: RouterRig,
) -> None:
    service, queues = await make(smp, 6)
    session, plain = smp.connect(service=service), smp.connect()
    session.room = 2
    say_subs(session)
    await turns(100)
    assert await plain.subscribe(queues[4]) == Sok(None)
    session.drain()
    await turns(200)
    events = session.events()
    assert sorted(readers(events)) == ids([*queues[:4], queues[5]])
    assert (queues[4].recipient_id, End()) in events
    assert readers(plain.events()) == ids([queues[4]])


async def test_a_slow_reader_gets_everything_at_its_own_pace(smp: RouterRig) -> None:
    service, queues = await make(smp, 20)
    session, sender = smp.connect(service=service), smp.connect()
    session.room = 2
    say_subs(session)
    came: list[bytes] = []
    for _ in range(60):
        await turns(10)
        events = session.events()
        # No more than there was room for, and ALLS not before everything else.
        assert len(events) <= 2
        # The fold waits as well: it does not heap up what the session cannot take.
        (facts,) = [each for each in smp.router.operating.sessions() if each.service_id]
        assert facts.deliveries is not None
        assert facts.deliveries.due_count == 0
        came += readers(events)
        if any(isinstance(message, Alls) for _, message in events):
            break
        session.drain(room=2)
    assert sorted(came) == ids(queues)
    assert isinstance(events[-1][1], Alls)
    # Others were not held up by it.
    assert await sender.post(queues[0], b"more") == Ok()


async def test_what_comes_for_a_slow_reader_is_kept_for_it(smp: RouterRig) -> None:
    service, queues = await make(smp, 6, waiting=0)
    session, sender = smp.connect(service=service), smp.connect()
    say_subs(session)
    await turns(100)
    session.events()
    session.is_writable = False
    # It is only known to be slow once it is sent something.
    for queue in queues:
        assert await sender.post(queue, b"live") == Ok()
    await turns(50)
    assert readers(session.events()) == ids(queues[:1])
    session.drain(room=2)
    await turns(50)
    assert readers(session.events()) == ids(queues[1:3])
    session.drain()
    await turns(50)
    assert readers(session.events()) == ids(queues[3:])


async def test_a_reader_that_missed_too_much_is_taken_through_its_queues_anew(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "service_due_count_max", 2)
    service, queues = await make(smp, 8, waiting=0)
    session, sender = smp.connect(service=service), smp.connect()
    say_subs(session)
    await turns(100)
    session.events()
    session.is_writable = False
    for queue in queues:
        assert await sender.post(queue, b"live") == Ok()
    await turns(50)
    assert readers(session.events()) == ids(queues[:1])
    session.drain()
    await turns(200)
    events = session.events()
    assert readers(events) == ids(queues[1:])
    # It only caught up: there is no second ALLS.
    assert (b"", Alls()) not in events


async def test_a_displaced_session_hears_nothing_after_ends(smp: RouterRig) -> None:
    service, queues = await make(smp, 12)
    first, second = smp.connect(service=service), smp.connect(service=service)
    first.room = 3
    say_subs(first)
    await turns(100)
    assert readers(first.events()) == ids(queues[:2])
    say_subs(second)
    await turns(300)
    first.drain()
    await turns(300)
    digest = smp.records.digest(service.service_id)
    assert first.events() == [(service.service_id, Ends(12, digest.xor_md5))]
    events = second.events()
    assert readers(events) == ids(queues)
    assert events[-1] == (b"", Alls())


async def test_a_displaced_session_that_takes_the_service_back_is_folded_anew(
    smp: RouterRig,
) -> None:
    service, _ = await make(smp, 6)
    first, second = smp.connect(service=service), smp.connect(service=service)
    first.room = 2
    say_subs(first)
    await turns(100)
    say_subs(second)
    say_subs(first)
    first.drain()
    await turns(300)
    kinds = [type(answer.message) for answer in first.sent]
    # The first fold was cut off; what it had handed over comes once more behind ENDS.
    end = kinds.index(Ends)
    assert kinds[:end] == [Soks, Msg]
    assert Counter(kinds[end + 1 :]) == {Soks: 1, Msg: 6, Alls: 1}
    assert kinds[-1] is Alls


async def test_a_session_that_goes_ends_its_fold(smp: RouterRig) -> None:
    service, queues = await make(smp, 6)
    session = smp.connect(service=service)
    session.room = 2
    say_subs(session)
    await turns(100)
    session.close("lost")
    await turns(100)
    assert len(smp.router._tasks) == 0
    again = smp.connect(service=service)
    say_subs(again)
    await turns(200)
    assert readers(again.events()) == ids(queues)


async def test_a_queue_that_cannot_be_read_is_told_and_alls_comes_all_the_same(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, queues = await make(in_memory, 6)
    damaged = queues[2].recipient_id
    read = in_memory.store.read

    def read_or_fail(stream: StreamId, *rest: int) -> list[Entry]:
        if stream == damaged:
            raise CorruptionError("the log", 17, "a secret path")
        return read(stream, *rest)

    monkeypatch.setattr(in_memory.store, "read", read_or_fail)
    monkeypatch.setattr(
        in_memory.store, "unread_among", lambda streams: list(streams), raising=False
    )
    session = in_memory.connect(service=service)
    say_subs(session)
    await turns(200)
    events = session.events()
    assert readers(events) == ids([*queues[:2], *queues[3:]])
    (refusal,) = [message for entity_id, message in events if entity_id == damaged]
    assert isinstance(refusal, Err)
    assert refusal.failure.code == "STORE"
    assert b"secret" not in refusal.failure.detail
    assert events[-1] == (b"", Alls())


async def test_a_fold_that_fails_says_so_and_alls_comes_all_the_same(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, queues = await make(in_memory, 6)
    page = in_memory.records.page

    def page_or_fail(service_id: bytes, after: bytes | None, count_max: int) -> list[bytes]:
        if after is not None:
            raise CorruptionError("the records", 17, "damaged")
        return page(service_id, after, count_max)

    monkeypatch.setattr(in_memory.records, "page", page_or_fail)
    session = in_memory.connect(service=service)
    say_subs(session)
    await turns(200)
    events = session.events()
    assert readers(events) == ids(queues[:3])
    assert events[-2][0] == b""
    assert isinstance(events[-2][1], Err)
    assert events[-1] == (b"", Alls())
    assert in_memory.counters.fold_failed_count == 1


async def test_others_have_their_turn_between_pages(smp: RouterRig) -> None:
    service, _ = await make(smp, 30, waiting=0)
    session, other = smp.connect(service=service), smp.connect()
    queue = await other.create()
    say_subs(session)
    sends = 0
    while not any(isinstance(answer.message, Alls) for answer in session.sent):
        other.say(Request(Send(b"F", b"x"), queue.sender_id))
        sends += 1
        await asyncio.sleep(0)
    assert sends >= 10


async def test_a_storm_during_the_fold_loses_nothing(smp: RouterRig) -> None:
    service, queues = await make(smp, 15, waiting=8)
    session, sender = smp.connect(service=service), smp.connect()
    by_id = {queue.recipient_id: queue for queue in queues}
    session.room = 4
    say_subs(session)
    received: Counter[bytes] = Counter()
    has_alls = False
    for round_ in range(400):
        if round_ < 40:
            for queue in queues[round_ % 3 :: 3]:
                sender.say(Request(Send(b"F", b"storm"), queue.sender_id))
        await turns(5)
        acknowledgements: list[Request] = []
        for answer in list(session.sent):
            if isinstance(answer.message, Msg):
                queue = by_id[answer.entity_id]
                received[answer.entity_id] += 1
                acknowledgements.append(
                    Request(Ack(answer.message.message_id), answer.entity_id, queue.key)
                )
            has_alls |= isinstance(answer.message, Alls)
        session.sent.clear()
        session.drain(room=4)
        if acknowledgements:
            session.say(*acknowledgements)
        elif round_ > 60:
            break
    assert has_alls
    sent = smp.counters.sent_count
    assert sum(received.values()) == sent == 8 + 40 * 5
    assert smp.counters.received_count == sent


async def test_subscribing_singly_and_in_bulk_at_once_delivers_once(smp: RouterRig) -> None:
    service, queues = await make(smp, 6)
    session = smp.connect(service=service)
    say_subs(session)
    session.say(*(Request(Sub(), queue.recipient_id, queue.key) for queue in queues[3:]))
    await turns(200)
    events = session.events()
    # Each SUB asks for its message once more, so those may come a second time but no more.
    counts = Counter(readers(events))
    assert set(counts) == set(ids(queues))
    assert all(counts[queue.recipient_id] == 1 for queue in queues[:3])
    assert all(counts[queue.recipient_id] <= 2 for queue in queues[3:])
