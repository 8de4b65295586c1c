"""Bounds: what a session may have unanswered, and what happens when the disk has no room."""

import asyncio
from dataclasses import replace

import pytest

from syncline.errors import StoreBusyError
from syncline.server.smp import router as router_module
from syncline.values.ids import StreamId
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Ack, Key, Ping, Send, Skey, Sub
from syncline.wire.smp.messages import Err, Msg, Ok, Pong, RouterMessage, Sok
from tests.unit.server.smp.router_rig import OwnKey, Peer, Request, RouterRig, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp

BUSY = StoreBusyError(100, 50)


class BusyStore:
    """In place of the store's `append`: full until told otherwise."""

    def __init__(self, smp: RouterRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_busy = True
        self.refused_count = 0
        self._append = smp.store.append
        monkeypatch.setattr(smp.store, "append", self.append)

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        if self.is_busy:
            self.refused_count += 1
            raise BUSY
        return self._append(stream, payload, now_ms)


# ----------------------------------------------------------------------------- what is unanswered


async def test_reading_pauses_while_too_much_is_unanswered(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, unanswered_count_max=4))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    requests = [Request(Send(b"F", b"x"), queue.sender_id) for _ in range(5)]
    sender.say(*requests[:4])
    await turns()
    assert sender.is_reading
    sender.say(requests[4])
    await turns()
    assert not sender.is_reading
    smp.disk.let_go()
    await turns()
    assert sender.is_reading
    assert [sender.answer_to(request) for request in requests] == [Ok()] * 5
    assert smp.counters.reading_paused_count == 1


async def test_reading_pauses_while_too_many_bytes_are_unanswered(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, unanswered_bytes_max=20_000))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    sender.say(Request(Send(b"F", b"x" * 15_000), queue.sender_id))
    assert sender.is_reading
    sender.say(Request(Send(b"F", b"x" * 15_000), queue.sender_id))
    assert not sender.is_reading
    smp.disk.let_go()
    await turns()
    assert sender.is_reading


async def test_a_session_that_owes_nothing_is_not_held_up_by_another(smp: RouterRig) -> None:
    smp.choose(replace(smp.options, unanswered_count_max=1))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    sender.say(*(Request(Send(b"F", b"x"), queue.sender_id) for _ in range(2)))
    assert not sender.is_reading
    assert recipient.is_reading
    assert await recipient.ask(Ping()) == Pong()


# ----------------------------------------------------------------------------------- slow sessions


async def test_messages_for_a_slow_session_wait_and_answers_do_not(smp: RouterRig) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queues = [await recipient.create() for _ in range(3)]
    recipient.is_writable = False
    for queue in queues:
        assert await sender.post(queue, b"x") == Ok()
    await turns()
    # The first shows that it is slow.
    assert len(recipient.events()) == 1
    assert await recipient.ask(Ping()) == Pong()
    recipient.drain()
    await turns()
    assert [entity_id for entity_id, _ in recipient.events()] == [
        queue.recipient_id for queue in queues[1:]
    ]


async def test_an_acknowledgement_of_a_slow_session_is_ok_and_the_next_comes_later(
    smp: RouterRig,
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    await sender.post(queue, b"one")
    await sender.post(queue, b"two")
    _, one = await recipient.event()
    assert isinstance(one, Msg)
    recipient.is_writable = False
    assert await recipient.ask(Ping()) == Pong()
    assert await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key) == Ok()
    recipient.drain()
    _, two = await recipient.event()
    assert queue.text(two) == b"two"


# ------------------------------------------------------------------------------------- a busy disk


async def test_a_command_without_room_waits_and_everything_behind_it(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[bool] = []
    smp.choose(smp.options, press=lambda: pressed.append(True))
    recipient, sender, other = smp.connect(), smp.connect(), smp.connect()
    queue = await recipient.create()
    store = BusyStore(smp, monkeypatch)
    before, first = Request(Ping()), Request(Send(b"F", b"one"), queue.sender_id)
    second, behind = Request(Send(b"F", b"two"), queue.sender_id), Request(Ping())
    sender.say(before, first, second, behind)
    await turns()
    assert sender.answer_to(before) == Pong()
    assert sender.sent == []
    assert not sender.is_reading
    assert pressed
    # Who needs no room is served meanwhile.
    assert await other.ask(Ping()) == Pong()
    # A block that was on its way already queues up behind.
    late = Request(Ping())
    sender.say(late)
    assert sender.answer_to(late) is None
    store.is_busy = False
    smp.router.relieve()
    await turns()
    answers = [sender.answer_to(request) for request in (first, second, behind, late)]
    assert answers == [Ok(), Ok(), Pong(), Pong()]
    assert sender.is_reading
    _, one = await recipient.event()
    assert queue.text(one) == b"one"
    assert isinstance(one, Msg)
    two = await recipient.ask(Ack(one.message_id), queue.recipient_id, queue.key)
    assert queue.text(two) == b"two"
    assert smp.counters.stalled_count == 1
    assert smp.counters.sent_count == 2


async def test_answers_to_what_came_before_do_not_let_a_session_be_read_that_waits(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    smp.disk.is_held = True
    first = Request(Send(b"F", b"one"), queue.sender_id)
    sender.say(first)
    store = BusyStore(smp, monkeypatch)
    sender.say(second := Request(Send(b"F", b"two"), queue.sender_id))
    resumed: list[bool] = []
    with monkeypatch.context() as patched:
        patched.setattr(sender, "resume_reading", lambda: resumed.append(True))
        smp.disk.let_go()
        await turns()
    assert sender.answer_to(first) == Ok()
    assert not resumed
    assert not sender.is_reading
    store.is_busy = False
    smp.router.relieve()
    await turns()
    assert sender.answer_to(second) == Ok()
    assert sender.is_reading


async def test_a_command_that_waits_for_too_long_is_refused_and_the_next_has_its_turn(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "_BUSY_SECONDS", 0.001)
    smp.choose(replace(smp.options, busy_seconds_max=0.01))
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()
    BusyStore(smp, monkeypatch)
    requests = [Request(Send(b"F", b"x"), queue.sender_id) for _ in range(2)]
    sender.say(*requests, ping := Request(Ping()))
    answers: list[RouterMessage] = []
    async with asyncio.timeout(10):
        while len(answers) < 3:
            found = [sender.answer_to(request) for request in (*requests, ping)]
            answers += [message for message in found if message is not None]
            await asyncio.sleep(0.001)
    busy = Err(failures.store("the disk is busy, try again later"))
    assert answers == [busy, busy, Pong()]
    assert smp.counters.sent_count == 0


async def test_a_session_that_goes_while_it_waits_leaves_nothing_behind(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = smp.connect()
    queue = await smp.connect().create()
    store = BusyStore(smp, monkeypatch)
    sender.say(Request(Send(b"F", b"x"), queue.sender_id))
    await turns()
    sender.close("lost")
    store.is_busy = False
    smp.router.relieve()
    await turns()
    assert len(smp.router._tasks) == 0
    assert smp.counters.sent_count == 0


async def test_a_message_is_not_stored_twice_when_the_records_have_no_room(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else a command changes, it does so before the message is staged."""
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create(link=(b"fixed", b"user"))
    queue.sender_key = OwnKey.make()
    secure = Skey(queue.sender_key.public)
    assert await sender.ask(secure, queue.sender_id, queue.sender_key) == Ok()
    update, is_busy = smp.records.update_queue, True

    def update_or_refuse(record: object) -> None:
        if is_busy:
            raise BUSY
        update(record)  # type: ignore[arg-type]

    monkeypatch.setattr(smp.records, "update_queue", update_or_refuse)
    request = Request(Send(b"F", b"once"), queue.sender_id, queue.sender_key)
    sender.say(request)
    await turns()
    assert sender.answer_to(request) is None
    is_busy = False
    smp.router.relieve()
    await turns()
    assert sender.answer_to(request) == Ok()
    _, message = await recipient.event()
    assert isinstance(message, Msg)
    assert await recipient.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()


async def test_noting_that_a_queue_is_in_use_stops_nobody(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, sender = smp.connect(), smp.connect()
    queue = await recipient.create()

    def refuse(_record: object) -> None:
        raise BUSY

    monkeypatch.setattr(smp.records, "update_queue", refuse)
    smp.now_ms += 2 * 24 * 60 * 60 * 1_000
    assert await sender.post(queue, b"x") == Ok()
    assert await recipient.subscribe(queue) == Sok(None)


async def test_a_key_waits_for_room_among_the_records(
    smp: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient = smp.connect()
    queue = await recipient.create()
    update, is_busy = smp.records.update_queue, True

    def update_or_refuse(record: object) -> None:
        if is_busy:
            raise BUSY
        update(record)  # type: ignore[arg-type]

    monkeypatch.setattr(smp.records, "update_queue", update_or_refuse)
    request = Request(Key(OwnKey.make().public), queue.recipient_id, queue.key)
    recipient.say(request)
    await turns()
    assert recipient.answer_to(request) is None
    is_busy = False
    smp.router.relieve()
    await turns()
    assert recipient.answer_to(request) == Ok()


async def test_closing_the_router_ends_its_work(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = in_memory.connect()
    queue = await in_memory.connect().create()
    BusyStore(in_memory, monkeypatch)
    sender.say(Request(Send(b"F", b"x"), queue.sender_id))
    await turns()
    assert len(in_memory.router._tasks) == 1
    await in_memory.router.close()
    assert len(in_memory.router._tasks) == 0


async def test_what_comes_from_a_session_that_is_gone_is_left_alone(in_memory: RouterRig) -> None:
    peer = in_memory.connect()
    queue = await peer.create()
    peer.close("lost")
    stranger = Peer(in_memory.router, 20, None)
    for each in (peer, stranger):
        each.say(Request(Sub(), queue.recipient_id, queue.key))
        in_memory.router.drained(each)
        in_memory.router.closed(each)
    await turns()
    assert stranger.sent == []
