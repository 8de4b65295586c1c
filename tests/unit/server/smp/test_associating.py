"""Repairs of associations by an operator: what is done, what is refused, and who hears of it."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import Snapshot
from syncline.errors import StoreBusyError, StoreFullError, SynclineError
from syncline.server.answers import error_answer
from syncline.server.events import Events, service_number
from syncline.server.smp.api import SmpApi
from syncline.server.smp.associating import REPAIR_COUNT_MAX
from syncline.server.smp.options import SmpOptions
from syncline.server.smp.router import SmpRouter
from syncline.storage.records.memory import MemoryRecords
from syncline.values.digests import digest_of
from syncline.values.events import EventKind, Face, decode_events
from syncline.values.ids import StreamId
from syncline.values.queue_records import BlockReason, QueueRecord, ServiceRole
from syncline.values.reconciliation import Fetch, Fetched, Open, Opening
from syncline.values.repairs import Action, Reason, Repair, State, Verdict
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Ack, Nsub, Send
from syncline.wire.smp.messages import Alls, End, Msg, Nmsg, Ok, Sok
from tests.unit.server.events_rig import Noted
from tests.unit.server.smp.router_rig import Peer, Queue, RouterRig, Service, some_bytes, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp
from tests.unit.server.smp.set_rig import (
    ask,
    ids_of,
    notifier_id,
    state_of,
    subs,
    until,
    with_queues,
)

M, N = ServiceRole.MESSAGING, ServiceRole.NOTIFIER
DONE, ALREADY = Verdict(State.DONE), Verdict(State.ALREADY)


def associate(service: bytes, id_: bytes, role: ServiceRole = M) -> Repair:
    return Repair(Action.ASSOCIATE, StreamId(service), role, StreamId(id_))


def dissociate(service: bytes, id_: bytes, role: ServiceRole = M) -> Repair:
    return Repair(Action.DISSOCIATE, StreamId(service), role, StreamId(id_))


def refused(reason: Reason) -> Verdict:
    return Verdict(State.REFUSED, reason)


async def apply(smp: RouterRig, *repairs: Repair) -> list[Verdict]:
    return await smp.router.operating.associating.carry_out(repairs)


def messages(peer: Peer) -> list[Msg]:
    return [each for _, each in peer.events() if isinstance(each, Msg)]


def set_of(smp: RouterRig, service: Service) -> list[bytes]:
    return smp.records.page(service.service_id, None, 1_000)


async def plain_queues(smp: RouterRig, count: int, *, has_notifier: bool = False) -> list[Queue]:
    """Nobody reads them."""
    peer = smp.connect()
    return [await peer.create(subscribes=False, has_notifier=has_notifier) for _ in range(count)]


# ------------------------------------------------------------------------------------- what is done


async def test_ids_come_and_go_and_the_digest_with_them(smp: RouterRig) -> None:
    _, service, (first, second) = await with_queues(smp, 2)
    (third,) = await plain_queues(smp, 1)
    found = await apply(
        smp,
        dissociate(service.service_id, first.recipient_id),
        associate(service.service_id, third.recipient_id),
    )
    assert found == [DONE, DONE]
    left = sorted(ids_of([second, third]))
    assert set_of(smp, service) == left
    digest = smp.records.digest(service.service_id)
    assert digest == smp.records.recompute(service.service_id)
    assert (digest.count, digest.xor_md5) == (2, digest_of(left).xor_md5)
    assert smp.counters.associations_removed_count == 1


async def test_done_again_everything_is_so_already(smp: RouterRig) -> None:
    _, service, (first,) = await with_queues(smp, 1)
    (second,) = await plain_queues(smp, 1)
    repairs = [
        dissociate(service.service_id, first.recipient_id),
        associate(service.service_id, second.recipient_id),
    ]
    assert await apply(smp, *repairs) == [DONE, DONE]
    before = smp.records.digest(service.service_id)
    assert await apply(smp, *repairs) == [ALREADY, ALREADY]
    assert await apply(smp, *repairs, *repairs) == [ALREADY] * 4
    assert smp.records.digest(service.service_id) == before


async def test_what_cannot_be_done_is_refused_and_the_rest_is_done(smp: RouterRig) -> None:
    _, service, (mine,) = await with_queues(smp, 1)
    _, other, (theirs,) = await with_queues(smp, 1)
    notifying = await smp.service(N)
    blocked, gone, free = await plain_queues(smp, 3, has_notifier=True)
    await smp.router.operating.block_queue(blocked.recipient_id, BlockReason("spam"))
    await smp.router.operating.delete_queue(gone.recipient_id)
    s, n = service.service_id, notifying.service_id
    expected = {
        associate(some_bytes(24), free.recipient_id): refused(Reason.UNKNOWN_SERVICE),
        associate(s, some_bytes(24)): refused(Reason.UNKNOWN_ID),
        associate(s, gone.recipient_id): refused(Reason.UNKNOWN_ID),
        associate(s, free.sender_id): refused(Reason.UNKNOWN_ID),
        associate(n, free.recipient_id, N): refused(Reason.UNKNOWN_ID),
        associate(n, notifier_id(gone), N): refused(Reason.UNKNOWN_ID),
        associate(s, notifier_id(free), N): refused(Reason.OTHER_ROLE),
        dissociate(s, mine.recipient_id, N): refused(Reason.OTHER_ROLE),
        associate(n, free.recipient_id, M): refused(Reason.OTHER_ROLE),
        associate(s, theirs.recipient_id): refused(Reason.OTHER_SERVICE),
        associate(s, blocked.recipient_id): refused(Reason.BLOCKED),
        # Whoever blocked the queue did not mean its notifications.
        associate(n, notifier_id(blocked), N): DONE,
        # What is not there is not in the set.
        dissociate(s, some_bytes(24)): ALREADY,
        dissociate(s, theirs.recipient_id): ALREADY,
        dissociate(some_bytes(24), mine.recipient_id): ALREADY,
        associate(s, free.recipient_id): DONE,
    }
    judged = await smp.router.operating.associating.judge_all(list(expected))
    assert judged == list(expected.values())
    assert set_of(smp, service) == [mine.recipient_id], "judging changes nothing"
    assert await apply(smp, *expected) == list(expected.values())
    assert set_of(smp, service) == sorted(ids_of([mine, free]))
    assert set_of(smp, other) == [theirs.recipient_id]
    assert set_of(smp, notifying) == [notifier_id(blocked)]


async def test_an_id_moves_from_one_service_to_another_in_two_steps(smp: RouterRig) -> None:
    _, first, (queue,) = await with_queues(smp, 1)
    second = await smp.service()
    moves = [
        dissociate(first.service_id, queue.recipient_id),
        associate(second.service_id, queue.recipient_id),
    ]
    assert await apply(smp, *moves) == [DONE, DONE]
    assert (set_of(smp, first), set_of(smp, second)) == ([], [queue.recipient_id])


async def test_as_many_as_may_be_asked_for_at_once(in_memory: RouterRig) -> None:
    service = await in_memory.service()
    queues = await plain_queues(in_memory, REPAIR_COUNT_MAX)
    repairs = [associate(service.service_id, each.recipient_id) for each in queues]
    assert await apply(in_memory, *repairs) == [DONE] * REPAIR_COUNT_MAX
    assert in_memory.records.digest(service.service_id) == in_memory.records.recompute(
        service.service_id
    )
    assert in_memory.records.digest(service.service_id).count == REPAIR_COUNT_MAX


# ------------------------------------------------------------------------------------- who hears it


async def test_what_waited_comes_to_whoever_speaks_for_the_service(smp: RouterRig) -> None:
    peer, service, _ = await with_queues(smp, 0)
    await subs(peer)
    await until(lambda: any(isinstance(each.message, Alls) for each in peer.sent))
    peer.events()
    (queue,) = await plain_queues(smp, 1)
    sender = smp.connect()
    await sender.post(queue, b"one")
    await sender.post(queue, b"two")
    assert await apply(smp, associate(service.service_id, queue.recipient_id)) == [DONE]
    entity_id, message = await peer.event()
    assert (entity_id, queue.text(message)) == (queue.recipient_id, b"one")
    assert isinstance(message, Msg)
    following = await peer.ask(Ack(message.message_id), queue.recipient_id, queue.key)
    assert queue.text(following) == b"two"
    assert isinstance(following, Msg)
    assert await peer.ask(Ack(following.message_id), queue.recipient_id, queue.key) == Ok()
    # And what comes from now on as well.
    await sender.post(queue, b"three")
    assert queue.text((await peer.event())[1]) == b"three"


async def test_a_service_that_nobody_speaks_for_gets_it_when_somebody_does(smp: RouterRig) -> None:
    service = await smp.service()
    (queue,) = await plain_queues(smp, 1)
    await smp.connect().post(queue, b"waits")
    assert await apply(smp, associate(service.service_id, queue.recipient_id)) == [DONE]
    peer = smp.connect(service=service)
    assert (await subs(peer, [queue.recipient_id])).count == 1
    await until(lambda: any(isinstance(each.message, Alls) for each in peer.sent))
    (message,) = messages(peer)
    assert queue.text(message) == b"waits"


async def test_who_had_subscribed_is_told_and_its_message_goes_to_the_service(
    smp: RouterRig,
) -> None:
    peer, service, _ = await with_queues(smp, 0)
    await subs(peer)
    await turns()
    peer.events()
    reader, sender = smp.connect(), smp.connect()
    queue = await reader.create()
    await sender.post(queue, b"one")
    _, held = await reader.event()
    assert isinstance(held, Msg)
    assert await apply(smp, associate(service.service_id, queue.recipient_id)) == [DONE]
    assert await reader.event() == (queue.recipient_id, End())
    assert queue.text((await peer.event())[1]) == b"one"
    late = await reader.refusal(Ack(held.message_id), queue.recipient_id, queue.key)
    assert late == failures.NO_MSG
    await sender.post(queue, b"two")
    await turns()
    assert reader.events() == []


async def test_the_session_of_a_service_that_loses_a_queue_is_told(smp: RouterRig) -> None:
    peer, service, (queue, kept) = await with_queues(smp, 2)
    sender = smp.connect()
    await sender.post(queue, b"one")
    await turns()
    assert len(messages(peer)) == 1
    assert await apply(smp, dissociate(service.service_id, queue.recipient_id)) == [DONE]
    assert await peer.event() == (queue.recipient_id, End())
    await sender.post(queue, b"two")
    await sender.post(kept, b"for it")
    assert kept.text((await peer.event())[1]) == b"for it"
    # What was handed over and not acknowledged stays, for whoever comes next.
    plain = smp.connect()
    assert await plain.subscribe(queue) == Sok(None)
    assert queue.text((await plain.event())[1]) == b"one"


async def test_a_slow_session_gets_it_when_it_can_take_more(smp: RouterRig) -> None:
    peer, service, _ = await with_queues(smp, 0)
    await subs(peer)
    await turns()
    peer.events()
    (queue,) = await plain_queues(smp, 1)
    await smp.connect().post(queue, b"waits")
    peer.is_writable = False
    smp.router._parts.deliveries.pause(peer.number)
    await apply(smp, associate(service.service_id, queue.recipient_id))
    await turns()
    assert peer.events() == []
    peer.drain()
    assert queue.text((await peer.event())[1]) == b"waits"


async def test_notifications_follow_their_notifier(smp: RouterRig) -> None:
    peer, service, _ = await with_queues(smp, 0, N)
    await subs(peer)
    await turns()
    peer.events()
    (queue,) = await plain_queues(smp, 1, has_notifier=True)
    sender, plain = smp.connect(), smp.connect()
    await sender.ask(Send(b"T ", b"hello"), queue.sender_id)
    await turns()
    mine = notifier_id(queue)
    assert await apply(smp, associate(service.service_id, mine, N)) == [DONE]
    entity_id, message = await peer.event()
    assert (entity_id, type(message)) == (mine, Nmsg)
    assert await apply(smp, dissociate(service.service_id, mine, N)) == [DONE]
    assert await peer.event() == (mine, End())
    await sender.ask(Send(b"T ", b"hello"), queue.sender_id)
    await turns()
    assert peer.events() == []
    assert await plain.ask(Nsub(), mine, queue.notifier_key) == Sok(None)
    assert isinstance((await plain.event())[1], Nmsg)
    # Given away, it is lost to who had subscribed.
    assert await apply(smp, associate(service.service_id, mine, N)) == [DONE]
    assert await plain.event() == (mine, End())


async def test_each_is_noted_in_the_log(smp: RouterRig) -> None:
    noted = Noted()
    smp.choose(SmpOptions(), events=Events(noted, lambda: smp.now_ms, Face.SMP))
    peer, service, (queue,) = await with_queues(smp, 1)
    noted.rows.clear()
    await apply(smp, dissociate(service.service_id, queue.recipient_id))
    await apply(smp, associate(service.service_id, queue.recipient_id))
    await smp.settle()
    found = list(decode_events(b"".join(noted.rows)))
    number = service_number(service.service_id)
    assert [(each.kind, each.stream, each.detail) for each in found] == [
        (EventKind.DISSOCIATED, queue.recipient_id, number),
        (EventKind.UNSUBSCRIBED, queue.recipient_id, 0),
        (EventKind.ASSOCIATED, queue.recipient_id, number),
    ]
    assert found[1].session >> 4 == peer.number


async def test_a_sketch_that_is_kept_is_carried_on(in_memory: RouterRig) -> None:
    smp = in_memory
    peer, service, queues = await with_queues(smp, 3)
    opening = await ask(peer, Open(None, 8))
    assert isinstance(opening, Opening)
    (more,) = await plain_queues(smp, 1)
    await apply(
        smp,
        dissociate(service.service_id, queues[0].recipient_id),
        associate(service.service_id, more.recipient_id),
    )
    answer = await ask(peer, Fetch(opening.state.version, opening.salt, b""))
    assert isinstance(answer, Fetched)
    assert [(each.is_added, each.id) for each in answer.changes] == [
        (False, queues[0].recipient_id),
        (True, more.recipient_id),
    ]
    left = ids_of([*queues[1:], more])
    assert answer.state == state_of(opening.state.version + 2, left)
    kept = await ask(peer, Open(None, 200))
    assert isinstance(kept, Opening)
    assert kept == Responder(Snapshot(b"".join(left), answer.state.version), kept.salt).opening(200)
    assert smp.router.followed_sets.scan_count == 1


# -------------------------------------------------------------------------------------- durability


async def test_nobody_is_told_before_it_is_durable(smp: RouterRig) -> None:
    peer, service, (queue,) = await with_queues(smp, 1)
    (other,) = await plain_queues(smp, 1)
    await smp.connect().post(other, b"waits")
    await turns()
    peer.events()
    smp.records_disk.is_held = True
    asked = asyncio.create_task(
        apply(
            smp,
            dissociate(service.service_id, queue.recipient_id),
            associate(service.service_id, other.recipient_id),
        )
    )
    await turns()
    again = asyncio.create_task(apply(smp, associate(service.service_id, other.recipient_id)))
    judged = asyncio.create_task(
        smp.router.operating.associating.judge_all(
            [associate(service.service_id, other.recipient_id)]
        )
    )
    await turns()
    assert not any(each.done() for each in (asked, again, judged))
    assert peer.sent == []
    smp.records_disk.let_go()
    assert (await asked, await again, await judged) == ([DONE, DONE], [ALREADY], [ALREADY])
    await turns()
    (first, second) = peer.events()
    assert first == (queue.recipient_id, End())
    assert other.text(second[1]) == b"waits"


async def test_who_goes_away_meanwhile_does_not_stop_it(smp: RouterRig) -> None:
    peer, service, (queue,) = await with_queues(smp, 1)
    await turns()
    peer.events()
    smp.records_disk.is_held = True
    asked = asyncio.create_task(apply(smp, dissociate(service.service_id, queue.recipient_id)))
    await turns()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    smp.records_disk.let_go()
    assert await peer.event() == (queue.recipient_id, End())
    assert set_of(smp, service) == []


async def test_without_room_on_the_disk_nothing_has_changed(in_memory: RouterRig) -> None:
    smp = in_memory
    peer, service, (queue,) = await with_queues(smp, 1)
    reader, sender = smp.connect(), smp.connect()
    other = await reader.create()
    await sender.post(queue, b"one")
    await turns()
    assert len(messages(peer)) == 1
    assert isinstance(smp.records, MemoryRecords)
    smp.records.is_full = True
    with pytest.raises(StoreFullError):
        await apply(
            smp,
            dissociate(service.service_id, queue.recipient_id),
            associate(service.service_id, other.recipient_id),
        )
    assert set_of(smp, service) == [queue.recipient_id]
    await turns()
    # It was taken from the session for a moment, so its message comes once more, without an end.
    (again,) = peer.events()
    assert queue.text(again[1]) == b"one"
    # Who was unsubscribed knows, and may subscribe again.
    assert reader.events() == [(other.recipient_id, End())]
    smp.records.is_full = False
    assert await reader.subscribe(other) == Sok(None)


async def test_a_page_that_was_refused_is_told_though_the_last_one_was_not(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    smp = in_memory
    service = await smp.service()
    queues = await plain_queues(smp, 3)
    monkeypatch.setattr("syncline.server.smp.associating._PAGE_COUNT", 1)
    records = smp.records
    assert isinstance(records, MemoryRecords)
    write, left = records.write_batch, [1]

    def full_once(batch: object) -> None:
        records.is_full = bool(left)
        if left:
            left.pop()
        write(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(records, "write_batch", full_once)
    with pytest.raises(StoreFullError):
        await apply(smp, *(associate(service.service_id, each.recipient_id) for each in queues))
    assert not left
    assert len(set_of(smp, service)) < 3


async def test_a_busy_disk_makes_it_wait_and_go_on(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    smp = in_memory
    _, service, queues = await with_queues(smp, 3)
    update, left = smp.records.update_queue, [1, 1]

    def busy_twice(record: QueueRecord) -> None:
        if record.recipient_id == queues[1].recipient_id and left:
            left.pop()
            raise StoreBusyError(1, 1)
        update(record)

    monkeypatch.setattr(smp.records, "update_queue", busy_twice)
    repairs = [dissociate(service.service_id, each.recipient_id) for each in queues]
    assert await apply(smp, *repairs) == [DONE] * 3
    assert not left
    assert set_of(smp, service) == []


async def test_a_disk_that_stays_busy_is_told(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    smp = in_memory
    peer, service, (queue, other) = await with_queues(smp, 2)
    await turns()
    peer.events()
    update = smp.records.update_queue

    def busy(record: QueueRecord) -> None:
        if record.recipient_id == other.recipient_id:
            raise StoreBusyError(1, 1)
        update(record)

    monkeypatch.setattr(smp.records, "update_queue", busy)
    with pytest.raises(StoreBusyError):
        await apply(
            smp,
            dissociate(service.service_id, queue.recipient_id),
            dissociate(service.service_id, other.recipient_id),
        )
    # The first is done, and told.
    assert await peer.event() == (queue.recipient_id, End())
    assert set_of(smp, service) == [other.recipient_id]


# ------------------------------------------------------------------------------------- over HTTP

STORE = b"\x01" * 16


def client_of(router: SmpRouter, store_id: bytes | None) -> httpx.AsyncClient:
    api = SmpApi(RuntimeError, shows_peers=False)
    api.attach(router, "smp://router", store_id)

    async def answered(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, SynclineError)
        return error_answer(error)

    app = Starlette(routes=list(api.routes()), exception_handlers={SynclineError: answered})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")


@pytest.fixture
async def client(smp: RouterRig) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(smp.router, STORE) as made:
        yield made


def line(repair: Repair) -> dict[str, str]:
    return {
        "action": repair.action,
        "service": str(repair.service),
        "role": repair.role,
        "id": str(repair.id),
    }


async def test_repairs_are_asked_for_over_http(smp: RouterRig, client: httpx.AsyncClient) -> None:
    _, service, (first,) = await with_queues(smp, 1)
    (second,) = await plain_queues(smp, 1)
    assert (await client.get("/api/smp")).json()["store"] == STORE.hex()
    repairs = [
        line(dissociate(service.service_id, first.recipient_id)),
        line(associate(service.service_id, second.recipient_id)),
        line(associate(service.service_id, some_bytes(24))),
    ]
    body = {"store": STORE.hex(), "repairs": repairs}
    expected = [{"state": "done"}, {"state": "done"}]
    unknown = {"state": "refused", "reason": "unknown_id"}
    path = "/api/smp/associations"
    judged = await client.post(path, params={"dry_run": "true"}, json=body)
    assert judged.json() == {"store": STORE.hex(), "answers": [*expected, unknown]}
    assert set_of(smp, service) == [first.recipient_id]
    done = await client.post(path, json=body)
    assert (done.status_code, done.json()["answers"]) == (200, [*expected, unknown])
    assert set_of(smp, service) == [second.recipient_id]
    again = await client.post(path, json=body)
    assert again.json()["answers"] == [{"state": "already"}] * 2 + [unknown]


async def test_repairs_for_another_store_are_refused(
    smp: RouterRig, client: httpx.AsyncClient
) -> None:
    _, service, (queue,) = await with_queues(smp, 1)
    repairs = [line(dissociate(service.service_id, queue.recipient_id))]
    body: dict[str, object] = {"store": "02" * 16, "repairs": repairs}
    answer = await client.post("/api/smp/associations", json=body)
    assert (answer.status_code, answer.json()["error"]) == (403, "REFUSED")
    assert set_of(smp, service) == [queue.recipient_id]


async def test_a_request_has_a_bound(smp: RouterRig, client: httpx.AsyncClient) -> None:
    one = line(dissociate(some_bytes(24), some_bytes(24)))
    path = "/api/smp/associations"
    most = await client.post(path, json={"repairs": [one] * REPAIR_COUNT_MAX})
    assert len(most.json()["answers"]) == REPAIR_COUNT_MAX
    more = await client.post(path, json={"repairs": [one] * (REPAIR_COUNT_MAX + 1)})
    assert (more.status_code, more.json()["error"]) == (413, "LIMIT")
    large = await client.post(path, content=b" " * (128 * 1024 + 1))
    assert large.status_code == 413
    odd = await client.post(path, params={"dry_run": "maybe"}, json={"repairs": []})
    assert odd.status_code == 400


_ids = st.one_of(st.just("A" * 32), st.text(max_size=40), st.just("A" * 31 + "="))
_lines = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["associate", "dissociate", "delete", ""]),
        "service": _ids,
        "role": st.sampled_from(["M", "N", "P", ""]),
        "id": _ids,
        "more": st.none(),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    body=st.one_of(st.binary(max_size=60), st.builds(lambda x: {"repairs": x}, st.lists(_lines)))
)
async def test_whatever_comes_is_answered_or_malformed(
    in_memory: RouterRig, body: bytes | dict[str, object]
) -> None:
    async with client_of(in_memory.router, None) as client:
        if isinstance(body, bytes):
            answer = await client.post("/api/smp/associations", content=body)
        else:
            answer = await client.post("/api/smp/associations", json=body)
    assert answer.status_code in (200, 400)
    assert in_memory.records.counts().association_count == 0
