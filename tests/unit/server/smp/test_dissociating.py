"""BUS: a service lets go of ids, and nothing that is not its own or not yet read is lost."""

import pytest

from syncline.errors import StoreBusyError
from syncline.storage.records.memory import MemoryRecords
from syncline.values.queue_records import BlockReason, QueueRecord, ServiceRole
from syncline.wire.smp import failures, versions
from syncline.wire.smp.commands import BUS_ID_COUNT_MAX, Ack, Bus, Send
from syncline.wire.smp.messages import Alls, End, Msg, Nmsg, Ok, Sok, Soks
from tests.unit.server.smp.router_rig import (
    OwnKey,
    Peer,
    Queue,
    Request,
    RouterRig,
    some_bytes,
    turns,
)
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp
from tests.unit.server.smp.set_rig import (
    associate,
    ids_of,
    notifier_id,
    request_of,
    say,
    state_of,
    subs,
    told_by,
    until,
    with_queues,
)


async def bus(peer: Peer, *ids: bytes) -> Soks:
    answer = await say(peer, Bus(ids))
    assert isinstance(answer, Soks), answer
    return answer


def service_of(smp: RouterRig, queue: Queue) -> bytes | None:
    record = smp.records.queue(queue.recipient_id)
    assert record is not None
    return record.service_id


def messages(peer: Peer) -> list[Msg]:
    return [each for _, each in peer.events() if isinstance(each, Msg)]


async def test_ids_are_nobodys_from_then_on(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 5)
    soks = await bus(peer, *ids_of(queues[:3]))
    assert [service_of(smp, queue) for queue in queues[:3]] == [None] * 3
    left = ids_of(queues[3:])
    assert soks == Soks(2, told_by(peer, left).ids_hash, state_of(8, left))
    assert smp.counters.dissociated_count == 3
    assert smp.counters.associations_removed_count == 3
    assert (await subs(peer, left)).opening == b""
    # The queues themselves are as they were.
    plain = smp.connect()
    assert await plain.subscribe(queues[0]) == Sok(None)
    assert await plain.post(queues[0], b"hello") == Ok()


async def test_what_is_not_the_services_is_left_alone(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 2)
    other, _, others = await with_queues(smp, 1)
    own = await smp.connect().create()
    strangers = [others[0].recipient_id, own.recipient_id, queues[0].sender_id, some_bytes(24)]
    soks = await bus(peer, *strangers, queues[0].recipient_id, queues[0].recipient_id)
    assert soks.state == state_of(3, ids_of(queues[1:]))
    assert smp.counters.dissociated_count == 1
    assert other.service is not None
    assert service_of(smp, others[0]) == other.service.service_id
    assert await smp.connect().subscribe(own) == Sok(None)
    again = await bus(peer, queues[0].recipient_id)
    assert again.state == soks.state


async def test_a_block_full_of_ids(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 1)
    strangers = [some_bytes(24) for _ in range(BUS_ID_COUNT_MAX - 1)]
    assert (await bus(peer, *strangers, queues[0].recipient_id)).count == 0


async def test_a_message_that_was_handed_over_stays_for_whoever_comes_next(
    smp: RouterRig,
) -> None:
    peer, _, (queue,) = await with_queues(smp, 1)
    plain = smp.connect()
    await plain.post(queue, b"first")
    await plain.post(queue, b"second")
    await turns()
    (message,) = messages(peer)
    await bus(peer, queue.recipient_id)
    # It is not the service's to acknowledge any more.
    refused = await peer.refusal(Ack(message.message_id), queue.recipient_id, queue.key)
    assert refused == failures.NO_MSG
    await plain.subscribe(queue)
    await turns()
    (again,) = messages(plain)
    assert queue.text(again) == b"first"
    following = await plain.ask(Ack(again.message_id), queue.recipient_id, queue.key)
    assert queue.text(following) == b"second"


async def test_the_session_hears_nothing_more_of_it(smp: RouterRig) -> None:
    peer, _, (queue, kept) = await with_queues(smp, 2)
    await subs(peer, ids_of([queue, kept]))
    await turns()
    peer.events()
    await bus(peer, queue.recipient_id)
    plain = smp.connect()
    await plain.post(queue, b"lost to it")
    await plain.post(kept, b"for it")
    await turns()
    ((entity_id, message),) = peer.events()
    assert entity_id == kept.recipient_id
    assert kept.text(message) == b"for it"
    # It may want it back, and gets what waits.
    await associate(peer, queue)
    await turns()
    (waiting,) = messages(peer)
    assert queue.text(waiting) == b"lost to it"


async def test_what_was_due_to_a_slow_session_is_not_handed_over_later(smp: RouterRig) -> None:
    peer, _, (queue,) = await with_queues(smp, 1)
    peer.room = 0
    peer.is_writable = False
    smp.router._parts.deliveries.pause(peer.number)
    await smp.connect().post(queue, b"due")
    await bus(peer, queue.recipient_id)
    peer.drain()
    await turns()
    assert not peer.events()


async def test_another_session_that_speaks_for_the_service_is_told(smp: RouterRig) -> None:
    peer, service, (queue, kept) = await with_queues(smp, 2)
    await turns()
    peer.events()
    tool = smp.connect(versions.EXTENDED, service)
    await bus(tool, queue.recipient_id)
    await turns()
    assert peer.events() == [(queue.recipient_id, End())]
    assert not tool.events()
    # And it speaks for the service as before.
    await smp.connect().post(kept, b"hello")
    await turns()
    assert len(messages(peer)) == 1


async def test_a_fold_does_not_bring_what_was_let_go_of(smp: RouterRig) -> None:
    peer, service, queues = await with_queues(smp, 3)
    for queue in queues:
        await smp.connect().post(queue, b"waits")
    await turns()
    peer.events()
    other = smp.connect(versions.EXTENDED, service)
    ids = ids_of(queues)
    other.say(request_of(other, told_by(other, ids)), request_of(other, Bus((ids[0],))))
    await until(lambda: any(isinstance(each.message, Alls) for each in other.sent))
    events = other.events()
    assert {entity for entity, message in events if isinstance(message, Msg)} == set(ids[1:])
    assert isinstance(events[-1][1], Alls)


async def test_a_blocked_queue_can_be_let_go_of(smp: RouterRig) -> None:
    peer, _, (queue,) = await with_queues(smp, 1)
    await smp.router.operating.block_queue(queue.recipient_id, BlockReason("spam", None))
    assert (await bus(peer, queue.recipient_id)).count == 0


async def test_notifiers_are_let_go_of_by_their_own_ids(smp: RouterRig) -> None:
    peer, _, (first, second) = await with_queues(smp, 2, ServiceRole.NOTIFIER)
    # The ids of queues say nothing to a notifier service.
    assert (await bus(peer, first.recipient_id)).count == 2
    soks = await bus(peer, notifier_id(first))
    assert soks.state == state_of(3, [notifier_id(second)])
    record = smp.records.queue(first.recipient_id)
    assert record is not None
    assert record.notifier is not None
    assert record.notifier.service_id is None
    assert smp.counters.dissociated_count == 1
    # Nor do those of another.
    other, _, (third,) = await with_queues(smp, 1, ServiceRole.NOTIFIER)
    assert (await bus(peer, notifier_id(third))).count == 1
    assert (await subs(other, [notifier_id(third)])).opening == b""
    assert smp.counters.dissociated_count == 1


async def test_notifications_wait_for_whoever_comes_next(smp: RouterRig) -> None:
    peer, service, (queue,) = await with_queues(smp, 1, ServiceRole.NOTIFIER)
    peer.close("away")
    plain = smp.connect()
    await plain.ask(Send(b"T ", b"hello"), queue.sender_id)
    await turns()
    peer = smp.connect(versions.EXTENDED, service)
    await bus(peer, notifier_id(queue))
    await subs(peer)
    await turns()
    assert not peer.events()
    assert await plain.ask(b"NSUB", notifier_id(queue), queue.notifier_key) == Sok(None)
    await turns()
    ((_, message),) = plain.events()
    assert isinstance(message, Nmsg)


async def test_messaging_services_do_not_touch_notifiers(smp: RouterRig) -> None:
    notifying, _, (queue,) = await with_queues(smp, 1, ServiceRole.NOTIFIER)
    peer, _, _ = await with_queues(smp, 1)
    assert (await bus(peer, notifier_id(queue))).count == 1
    assert (await subs(notifying, [notifier_id(queue)])).count == 1


# -------------------------------------------------------------------------------------- durability


async def test_another_session_is_told_once_it_is_durable(smp: RouterRig) -> None:
    peer, service, (queue,) = await with_queues(smp, 1)
    await turns()
    peer.events()
    tool = smp.connect(versions.EXTENDED, service)
    smp.records_disk.is_held = True
    tool.say(request_of(tool, Bus((queue.recipient_id,))))
    await turns()
    assert peer.events() == []
    smp.records_disk.let_go()
    await turns()
    assert peer.events() == [(queue.recipient_id, End())]


async def test_it_is_told_once_it_is_durable(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 1)
    smp.records_disk.is_held = True
    request = request_of(peer, Bus(tuple(ids_of(queues))))
    peer.say(request)
    await turns()
    assert peer.answer_to(request) is None
    assert smp.records.digest(request.entity_id).count == 1
    smp.records_disk.let_go()
    await turns()
    answer = peer.answer_to(request)
    assert isinstance(answer, Soks)
    assert answer.count == 0


async def test_without_room_on_the_disk_nothing_has_changed(in_memory: RouterRig) -> None:
    peer, _, (queue,) = await with_queues(in_memory, 1)
    await in_memory.connect().post(queue, b"hello")
    await turns()
    (message,) = messages(peer)
    assert isinstance(in_memory.records, MemoryRecords)
    in_memory.records.is_full = True
    soks = await bus(peer, queue.recipient_id)
    assert soks.state == state_of(1, [queue.recipient_id])
    assert service_of(in_memory, queue) is not None
    # The session has what it had.
    await turns()
    assert peer.events() == []
    assert await peer.ask(Ack(message.message_id), queue.recipient_id, queue.key) == Ok()


async def test_a_busy_disk_makes_it_wait_and_go_on(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _, queues = await with_queues(in_memory, 3)
    update, left = in_memory.records.update_queue, [1]

    def busy_once(record: QueueRecord) -> None:
        if record.recipient_id == queues[1].recipient_id and left:
            left.pop()
            raise StoreBusyError(1, 1)
        update(record)

    monkeypatch.setattr(in_memory.records, "update_queue", busy_once)
    assert (await bus(peer, *ids_of(queues))).count == 0
    assert not left
    assert in_memory.counters.dissociated_count == 3


# ----------------------------------------------------------------------------------------- refusal


async def test_only_the_service_itself_lets_go(smp: RouterRig) -> None:
    peer, service, (queue,) = await with_queues(smp, 1)
    command, at = Bus((queue.recipient_id,)), service.service_id
    assert await peer.refusal(command) == failures.NO_AUTH
    assert await peer.refusal(command, at, OwnKey.make()) == failures.SERVICE
    other = await smp.service()
    assert await peer.refusal(command, other.service_id, service.key) == failures.SERVICE
    proxy = await smp.service(ServiceRole.PROXY)
    session = smp.connect(versions.EXTENDED, proxy)
    assert await session.refusal(command, proxy.service_id, proxy.key) == failures.PROHIBITED
    plain = smp.connect(versions.EXTENDED)
    (answer,) = await plain.ask_all(Request(command, at, service.key))
    assert answer != Ok()
    assert service_of(smp, queue) == service.service_id
    assert smp.counters.dissociated_count == 0
