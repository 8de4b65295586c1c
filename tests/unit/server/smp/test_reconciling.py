"""Questions of a service about its set: who may ask, what is refused, and how answers go out."""

import sqlite3
from base64 import urlsafe_b64encode
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from syncline.core.reconciliation.initiator import Initiator
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import Snapshot
from syncline.errors import StorageError
from syncline.server.smp import reconciling
from syncline.server.smp.question_runs import QuestionRuns
from syncline.storage.records.base import commit
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueMode, QueueRecord, ServiceRole
from syncline.values.reconciliation import (
    CELL_BYTES,
    Answer,
    Compare,
    Difference,
    Fetch,
    Fetched,
    Found,
    ListIds,
    Listing,
    Open,
    Opening,
    Prefixes,
    Restart,
)
from syncline.wire.reconciliation.answers import decode_answer
from syncline.wire.reconciliation.requests import encode_request
from syncline.wire.reconciliation.runs import PART_BYTES_MAX, Joiner, cut
from syncline.wire.smp import failures, versions
from syncline.wire.smp.commands import New, Recq, Sub
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Alls, Ends, Ids, Msg, Ok, Sok, Soks
from tests.unit.server.smp import router_rig
from tests.unit.server.smp.router_rig import OwnKey, Peer, RouterRig, Service, some_bytes, turns
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.router_rig import smp as smp
from tests.unit.server.smp.set_rig import (
    Asked,
    Gate,
    ask,
    associate,
    ids_of,
    notifier_id,
    refusal,
    request_of,
    say,
    state_of,
    subs,
    told_by,
    until,
    with_queues,
)
from tests.unit.server.smp.set_rig import on_disk as on_disk

EVERYTHING = Prefixes(0, (0,))
ALL = ListIds(0, EVERYTHING)


def fill(smp: RouterRig, service: Service, count: int) -> list[bytes]:
    """So many queues of the service, put on record at once."""
    ids = [some_bytes(24) for _ in range(count)]
    for each in ids:
        smp.records.create_queue(
            QueueRecord(
                StreamId(each),
                (b"key",),
                bytes(32),
                each[::-1],
                QueueMode.MESSAGING,
                service_id=service.service_id,
            )
        )
    commit(smp.records)
    return ids


async def extended(smp: RouterRig, count: int) -> tuple[Peer, Service, list[bytes]]:
    service = await smp.service()
    ids = fill(smp, service, count)
    return smp.connect(versions.EXTENDED, service), service, ids


def is_over(smp: RouterRig) -> bool:
    """Nothing is kept for anybody who asked."""
    made = smp.router._dispatch.reconciling
    return not (made._asking or made._answer_bytes or made._opening or made._runs.byte_count)


# -------------------------------------------------------------------------------------- answering


async def test_a_question_is_answered_from_the_set(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 3)
    answer = await ask(peer, ALL)
    assert isinstance(answer, Listing)
    assert answer.ids == b"".join(sorted(ids_of(queues)))
    assert answer.state == state_of(3, ids_of(queues))
    assert smp.counters.questions == {"ListIds": 1}
    assert peer.is_reading
    assert smp.router._connections.get(peer.number).unanswered_count == 0  # type: ignore[union-attr]
    assert is_over(smp)


async def test_notifier_services_ask_about_their_notifiers(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 2, ServiceRole.NOTIFIER)
    answer = await ask(peer, ALL)
    assert isinstance(answer, Listing)
    assert answer.ids == b"".join(sorted(map(notifier_id, queues)))


async def test_a_question_of_many_parts_gets_ok_for_each_but_the_last(in_memory: RouterRig) -> None:
    peer, _, ids = await extended(in_memory, 50)
    opening = await ask(peer, Open(None, 8))
    assert isinstance(opening, Opening)
    mine = Responder(Snapshot(b"".join(ids[10:])), opening.salt).opening(4_000)
    asked = Asked(peer, Compare(opening.state.version, opening.salt, mine.cells))
    assert len(asked.requests) == 3
    answer = await asked.wait()
    assert isinstance(answer, Found)
    assert answer.ids == b"".join(sorted(ids[:10]))


async def test_an_answer_of_many_parts_comes_in_order(on_disk: RouterRig) -> None:
    peer, _, ids = await extended(on_disk, 3_000)
    asked = Asked(peer, ALL)
    await until(lambda: asked.answer)
    assert len(asked.parts) == 5
    assert all(len(part) <= PART_BYTES_MAX for part in asked.parts)
    assert isinstance(asked.answer, Listing)
    assert asked.answer.ids == b"".join(sorted(ids))


async def test_an_answer_waits_for_a_slow_session_and_nobody_else_does(
    on_disk: RouterRig,
) -> None:
    peer, service, _ = await extended(on_disk, 3_000)
    peer.room = 1
    asked = Asked(peer, ALL)
    await until(lambda: asked.parts)
    other = on_disk.connect(versions.EXTENDED, service)
    for expected in range(1, 6):
        await turns()
        assert len(asked.parts) == expected
        assert (asked.answer is None) == (expected < 5)
        if expected < 5:
            assert not is_over(on_disk)
            assert isinstance(await ask(other, Open(None, 8)), Opening)
        peer.drain(room=1)
    await turns()
    assert is_over(on_disk)


async def test_an_answer_stops_with_its_session(on_disk: RouterRig) -> None:
    peer, service, ids = await extended(on_disk, 3_000)
    peer.room = 2
    asked = Asked(peer, ALL)
    await until(lambda: len(asked.parts) == 2)
    peer.close("gone")
    await turns()
    assert len(asked.parts) == 2
    assert is_over(on_disk)
    answer = await ask(on_disk.connect(versions.EXTENDED, service), ALL)
    assert isinstance(answer, Listing)
    assert len(answer.ids) == 24 * len(ids)


async def test_a_session_that_goes_before_its_answer_is_made_leaves_nothing(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _, _ = await extended(in_memory, 10)
    gate = Gate(in_memory, monkeypatch)
    Asked(peer, ALL)
    await until(gate.is_reading.is_set)
    peer.close("gone")
    gate.open()
    await until(lambda: is_over(in_memory))
    assert not peer.sent


async def test_nothing_is_read_for_a_session_that_is_gone(in_memory: RouterRig) -> None:
    peer, _, _ = await extended(in_memory, 3)
    in_memory.records_disk.is_held = True
    in_memory.records.forget_deleted([bytes(24)])
    Asked(peer, ALL)
    await turns()
    peer.close("gone")
    in_memory.records_disk.let_go()
    await turns()
    assert is_over(in_memory)
    assert in_memory.router.followed_sets.scan_count == 0


async def test_a_question_meets_what_was_said_before_it(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 2)
    queue = await smp.connect().create(subscribes=False)
    smp.records_disk.is_held = True
    request = router_rig.Request(b"SUB", queue.recipient_id, queue.key)
    peer.say(request)
    asked = Asked(peer, ALL)
    await turns()
    assert asked.answer is None
    assert peer.answer_to(request) is None
    smp.records_disk.let_go()
    answer = await asked.wait()
    assert isinstance(answer, Listing)
    assert answer.ids == b"".join(sorted(ids_of([*queues, queue])))


async def test_changes_since_come_with_what_was_fetched(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 3)
    opening = await ask(peer, Open(None, 8))
    assert isinstance(opening, Opening)
    queue = await smp.connect().create(subscribes=False)
    await associate(peer, queue)
    answer = await ask(peer, Fetch(opening.state.version, opening.salt, b""))
    assert isinstance(answer, Fetched)
    assert [(each.is_added, each.id) for each in answer.changes] == [(True, queue.recipient_id)]
    assert answer.state == state_of(4, ids_of([*queues, queue]))
    # One that was never here cannot be carried over.
    assert isinstance(await ask(peer, Fetch(99, opening.salt, b"")), Restart)


async def test_later_openings_need_no_scan(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 3)
    await ask(peer, Open(None, 8))
    plain = smp.connect()
    for _ in range(3):
        queues.append(await plain.create(subscribes=False))
        await associate(peer, queues[-1])
    kept = await ask(peer, Open(None, 200))
    assert isinstance(kept, Opening)
    assert smp.router.followed_sets.scan_count == 1
    scanned = Responder(Snapshot(b"".join(ids_of(queues)), 6), kept.salt)
    assert kept == scanned.opening(200)
    # Another salt takes other hashes of the same ids.
    assert await ask(peer, Open(b"salt8888", 8)) == scanned.opening(8, b"salt8888")


async def test_ids_are_let_go_of_when_nobody_asks(smp: RouterRig) -> None:
    peer, _, _ = await with_queues(smp, 3)
    await ask(peer, ALL)
    assert smp.router.followed_sets.row_bytes
    smp.now_ms += smp.options.followed_idle_ms_max + 1
    smp.router.keep_house()
    await until(lambda: smp.router.followed_sets.row_bytes == 0)
    assert isinstance(await ask(peer, ALL), Listing)


async def test_the_session_loses_its_salt_with_the_process(smp: RouterRig) -> None:
    peer, service, _ = await with_queues(smp, 1)
    first = await ask(peer, Open(None, 0))
    await smp.router.close()
    smp.restart()
    second = await ask(smp.connect(versions.EXTENDED, service), Open(None, 0))
    assert isinstance(first, Opening)
    assert isinstance(second, Opening)
    assert first.state == second.state
    assert first.salt != second.salt


# --------------------------------------------------------------------------------------- refusing


async def test_a_plain_session_knows_no_questions(smp: RouterRig) -> None:
    service = await smp.service()
    peer = smp.connect(service=service)
    assert await refusal(peer, b"RECQ x") == failures.UNKNOWN
    assert await refusal(peer, b"BUS \0\1" + bytes(24)) == failures.UNKNOWN
    assert await refusal(smp.connect(19, service), b"RECQ x") == failures.UNKNOWN


async def test_only_the_service_itself_asks(smp: RouterRig) -> None:
    peer, service, _ = await with_queues(smp, 1)
    other = await smp.service()
    (part,) = encode_request(ALL)
    command, at = Recq(part), service.service_id
    assert await peer.refusal(command) == failures.NO_AUTH
    assert await peer.refusal(command, at, OwnKey.make()) == failures.SERVICE
    assert await peer.refusal(command, other.service_id, service.key) == failures.SERVICE
    plain = smp.connect(versions.EXTENDED)
    assert await plain.refusal(command, at, service.key) == failures.SERVICE
    proxy = smp.connect(versions.EXTENDED, await smp.service(ServiceRole.PROXY))
    assert await refusal(proxy, command) == failures.PROHIBITED
    late = smp.connect(versions.EXTENDED, other)
    smp.records.delete_service(other.service_id)
    assert await refusal(late, command) == failures.SERVICE


async def test_a_part_out_of_order_costs_the_question_and_no_other(in_memory: RouterRig) -> None:
    peer, _, _ = await extended(in_memory, 3)
    first, second, third = cut(2, bytes(40_000))
    assert await say(peer, Recq(first)) == Ok()
    assert await refusal(peer, Recq(third)) == failures.SYNTAX
    assert await refusal(peer, Recq(second)) == failures.SYNTAX
    assert await refusal(peer, Recq(third)) == failures.SYNTAX
    assert await refusal(peer, Recq(b"")) == failures.SYNTAX
    assert is_over(in_memory)
    assert isinstance(await ask(peer, ALL), Listing)


async def test_a_question_that_is_none_is_refused_without_reading_anything(
    in_memory: RouterRig,
) -> None:
    peer, _, _ = await extended(in_memory, 3)
    (nonsense,) = cut(99, b"nonsense")
    assert await refusal(peer, Recq(nonsense)) == failures.SYNTAX
    (too_much,) = encode_request(Open(None, 1 << 30))
    assert await refusal(peer, Recq(too_much)) == failures.LARGE_MSG
    (nonsense,) = cut(1, b"\0\0 and more")
    assert await refusal(peer, Recq(nonsense)) == failures.SYNTAX
    assert in_memory.router.followed_sets.scan_count <= 1
    assert in_memory.counters.refused == {"CMD SYNTAX": 2, "LARGE_MSG": 1}
    assert isinstance(await ask(peer, ALL), Listing)


async def test_a_question_has_a_largest_size(in_memory: RouterRig) -> None:
    in_memory.choose(replace(in_memory.options, question_bytes_max=20_000))
    peer, _, _ = await extended(in_memory, 3)
    first, second, _ = cut(2, bytes(40_000))
    assert await say(peer, Recq(first)) == Ok()
    assert await refusal(peer, Recq(second)) == failures.LARGE_MSG
    assert is_over(in_memory)


async def test_a_session_that_goes_leaves_no_parts(in_memory: RouterRig) -> None:
    peer, _, _ = await extended(in_memory, 3)
    first, *_ = cut(2, bytes(40_000))
    assert await say(peer, Recq(first)) == Ok()
    assert not is_over(in_memory)
    peer.close("gone")
    assert is_over(in_memory)


async def test_one_question_at_a_time(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _, _ = await extended(in_memory, 3)
    gate = Gate(in_memory, monkeypatch)
    asked = Asked(peer, ALL)
    assert (await refusal(peer, Recq(next(encode_request(ALL))))).code == "STORE"
    gate.open()
    assert isinstance(await asked.wait(), Listing)
    assert isinstance(await ask(peer, ALL), Listing)


async def test_questions_are_bounded_for_a_service_and_for_all(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory.choose(replace(in_memory.options, question_count_max=3, questions_per_service_max=2))
    services = [await in_memory.service() for _ in range(3)]
    gate = Gate(in_memory, monkeypatch)

    def asked_by(service: Service) -> Asked:
        return Asked(in_memory.connect(versions.EXTENDED, service), ALL)

    waiting = [asked_by(services[0]), asked_by(services[0])]
    third = await asked_by(services[0]).wait()
    assert isinstance(third, Failure)
    assert third.code == "STORE"
    waiting.append(asked_by(services[1]))
    fourth = await asked_by(services[2]).wait()
    assert isinstance(fourth, Failure)
    assert fourth.code == "STORE"
    assert in_memory.counters.questions_refused_count == 2
    # A service that drifted meanwhile is told so, and has to ask.
    peer = in_memory.connect(versions.EXTENDED, services[2])
    assert (await subs(peer, [bytes(24)])).opening == b""
    assert in_memory.counters.openings_failed_count == 0
    gate.open()
    for each in waiting:
        assert isinstance(await each.wait(), Listing)
    assert isinstance(await asked_by(services[2]).wait(), Listing)


async def test_what_slow_sessions_have_not_taken_is_bounded(on_disk: RouterRig) -> None:
    on_disk.choose(replace(on_disk.options, answer_bytes_total_max=20_000))
    peer, service, _ = await extended(on_disk, 3_000)
    peer.room = 1
    asked = Asked(peer, ALL)
    await until(lambda: asked.parts)
    other = on_disk.connect(versions.EXTENDED, service)
    refused = await Asked(other, ALL).wait()
    assert isinstance(refused, Failure)
    assert refused.code == "STORE"
    peer.drain()
    assert isinstance(await asked.wait(), Listing)
    assert isinstance(await ask(other, ALL), Listing)


async def test_a_store_that_cannot_be_read_is_told(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _, _ = await extended(in_memory, 3)

    def fail(service_id: bytes) -> None:
        raise StorageError("a disk with a path")

    monkeypatch.setattr(in_memory.records, "read_set", fail)
    failure = await Asked(peer, ALL).wait()
    assert failure == failures.store("the store failed")
    assert (await subs(peer, [])).opening == b""
    assert in_memory.counters.openings_failed_count == 1
    monkeypatch.undo()
    assert isinstance(await ask(peer, ALL), Listing)
    assert is_over(in_memory)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
async def test_hostile_parts_are_answered_and_harm_nobody(data: st.DataObject) -> None:
    """A mixture of whole, cut and changed questions: each has one answer."""
    logger = CapturingLogger()
    made = router_rig.make_rig(*router_rig._memory(Path("unused")))
    try:
        made.router = made.make_router(made.options)
        made.router._dispatch.reconciling._parts.outside.log.__init__(logger)  # type: ignore[misc]
        peer, _, ids = await extended(made, 20)
        state = state_of(20, ids)
        honest = [
            *(part for each in _some_questions(state.version) for part in encode_request(each)),
            *cut(2, bytes(20_000)),
        ]
        for _ in range(data.draw(st.integers(1, 8))):
            part = bytearray(data.draw(st.sampled_from(honest) | st.binary(max_size=60)))
            for place in data.draw(st.lists(st.integers(0, 200), max_size=3)):
                if part:
                    part[place % len(part)] ^= data.draw(st.integers(1, 255))
            request = request_of(peer, Recq(bytes(part)))
            peer.say(request)
            await until(
                lambda request=request: [  # type: ignore[misc]
                    each for each in peer.sent if each.corr_id == request.corr_id
                ]
            )
            await until(lambda: not made.router._dispatch.reconciling._asking)
        made.router._dispatch.reconciling.forget_session(peer.number)
        answer = await ask(peer, ALL)
        assert isinstance(answer, Listing)
        assert len(answer.ids) == 24 * 20
        assert is_over(made)
        assert not [each for each in logger.calls if each.method_name == "error"]
    finally:
        await made.router.close()


def _some_questions(version: int) -> list[Open | Compare | Fetch | ListIds]:
    return [
        Open(None, 8),
        Open(b"saltsalt", 0),
        Compare(version, b"saltsalt", bytes(9 * 12)),
        Fetch(version, b"saltsalt", bytes(6)),
        ListIds(version, Prefixes(2, (0, 1, 3))),
    ]


# ------------------------------------------------------------------------------------------- runs


def test_the_parts_of_all_sessions_are_bounded() -> None:
    runs = QuestionRuns(100_000, 40_000)
    first, second, third = cut(2, bytes(40_000))
    for number in (1, 2, 1):
        if number == 1 and len(runs) == 2:
            assert runs.add(1, second) is None
        else:
            assert runs.add(number, first) is None
    # Of the two, the second was silent longest.
    assert runs.byte_count <= 40_000
    with pytest.raises(FailureError):
        runs.add(2, second)
    assert runs.add(1, third) == (2, bytes(40_000))
    assert runs.byte_count == 0
    assert len(runs) == 0


# -------------------------------------------------------------------------------------------- SOKS


def as_answer(part: bytes) -> Answer:
    whole = Joiner(PART_BYTES_MAX).add(part)
    assert whole is not None
    return decode_answer(*whole)


async def test_equal_sets_cost_nothing(smp: RouterRig, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _, queues = await with_queues(smp, 3)
    for name in ("read_set", "repair_digest", "recompute"):
        monkeypatch.setattr(smp.records, name, None)
    soks = await subs(peer, ids_of(queues))
    assert soks.opening == b""
    assert soks.state == state_of(3, ids_of(queues))
    assert smp.router.followed_sets.scan_count == 0
    assert smp.counters.bulk_equal_count == 1
    assert await peer.event() == (b"", Alls())


async def test_other_sets_get_an_opening_from_which_the_difference_is_read(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 5)
    mine = [*ids_of(queues[2:]), some_bytes(24)]
    soks = await subs(peer, mine)
    assert soks.state == state_of(5, ids_of(queues))
    initiator = Initiator(Snapshot(b"".join(mine)), lambda: b"new salt")
    step = initiator.receive(as_answer(soks.opening))
    assert isinstance(step, Fetch)
    difference = initiator.receive(await ask(peer, step))
    assert isinstance(difference, Difference)
    assert difference.missing == b"".join(sorted(ids_of(queues[:2])))
    assert difference.extra == mine[-1]
    assert smp.counters.openings_count == 1
    assert smp.counters.bulk_more_count == 1


@pytest.mark.parametrize("part", ["count", "md5", "xor", "sum"])
async def test_any_part_of_the_digest_that_differs_brings_an_opening(
    in_memory: RouterRig, part: str
) -> None:
    peer, _, queues = await with_queues(in_memory, 3)
    told = told_by(peer, ids_of(queues))
    assert told.hashes is not None
    assert told.count is not None
    hashes = told.hashes
    others = {
        "count": replace(told, count=told.count + 1),
        "md5": replace(told, ids_hash=bytes(16)),
        "xor": replace(told, hashes=replace(hashes, xor128=bytes(16))),
        "sum": replace(told, hashes=replace(hashes, sum128=bytes(16))),
    }
    soks = await say(peer, others[part])
    assert isinstance(soks, Soks)
    assert soks.opening
    assert in_memory.counters.bulk_equal_count == 0


async def test_notifiers_of_a_service_are_opened_too(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 2, ServiceRole.NOTIFIER)
    soks = await subs(peer, [])
    opening = as_answer(soks.opening)
    assert isinstance(opening, Opening)
    assert opening.state == state_of(2, map(notifier_id, queues))


async def test_the_opening_of_a_lopsided_set_fits_one_part(in_memory: RouterRig) -> None:
    service = await in_memory.service()
    for number in range(300):
        recipient_id = b"\0\0" + some_bytes(22)
        in_memory.records.create_queue(
            QueueRecord(
                StreamId(recipient_id),
                (b"key",),
                bytes(32),
                number.to_bytes(24),
                QueueMode.MESSAGING,
                service_id=service.service_id,
            )
        )
    commit(in_memory.records)
    peer = in_memory.connect(versions.EXTENDED, service)
    opening = as_answer((await subs(peer)).opening)
    assert isinstance(opening, Opening)
    assert opening.prefix_counts[0] == 300


def test_an_opening_has_as_many_cells_as_fit_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "CELL_COUNT_DEFAULT", 4_000)
    ids = Snapshot(b"".join(some_bytes(24) for _ in range(200)))
    (part,) = reconciling._opened(Responder(ids, b"saltsalt"))
    opening = as_answer(part)
    assert isinstance(opening, Opening)
    assert PART_BYTES_MAX - 40 < len(part) <= PART_BYTES_MAX
    assert opening == Responder(ids, b"saltsalt").opening(len(opening.cells) // CELL_BYTES)


async def test_the_fold_begins_behind_the_opening(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 2)
    await smp.connect().post(queues[0], b"hello")
    await turns()
    peer.events()
    other = smp.connect(versions.EXTENDED, peer.owned_service)
    request = request_of(other, told_by(other, []))
    other.say(request)
    await until(lambda: any(isinstance(each.message, Alls) for each in other.sent))
    kinds = [type(each.message) for each in other.sent]
    assert kinds == [Soks, Msg, Alls]


async def test_ends_does_not_overtake_the_opening(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, service, _ = await with_queues(in_memory, 2)
    await turns()
    peer.events()
    gate = Gate(in_memory, monkeypatch)
    first, second = (in_memory.connect(versions.EXTENDED, service) for _ in range(2))
    first.say(request_of(first, told_by(first, [])))
    await until(gate.is_reading.is_set)
    second.say(request_of(second, told_by(second, [])))
    await turns()
    assert not first.sent
    gate.open()
    await until(lambda: second.sent)
    await until(lambda: len(first.sent) == 2)
    soks, ends = (each.message for each in first.sent)
    assert isinstance(soks, Soks)
    assert soks.opening
    assert isinstance(ends, Ends)
    # From here on it is told at once.
    await subs(first, [])
    await until(lambda: any(isinstance(each.message, Ends) for each in second.sent))


@pytest.mark.parametrize("how", ["SUB", "NEW", "SUBS"])
async def test_what_takes_a_service_back_is_told_behind_ends(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    peer, service, (queue, _) = await with_queues(in_memory, 2)
    await turns()
    peer.events()
    gate = Gate(in_memory, monkeypatch)
    first, second = (in_memory.connect(versions.EXTENDED, service) for _ in range(2))
    first.say(request_of(first, told_by(first, [])))
    await until(gate.is_reading.is_set)
    second.say(request_of(second, told_by(second, ids_of([queue]))))
    if how == "SUB":
        first.say(router_rig.Request(Sub(), queue.recipient_id, queue.key))
    elif how == "NEW":
        key = OwnKey.make()
        new = New(key.public, OwnKey.make(KeyKind.X25519).public, subscribes=True)
        first.say(router_rig.Request(new, key=key))
    else:
        first.say(request_of(first, told_by(first, [])))
    await turns()
    assert not first.sent
    gate.open()
    await until(lambda: any(isinstance(each.message, Ends) for each in second.sent))
    await until(lambda: len(first.sent) >= 3)
    # It speaks for the service again, and that is what it hears last.
    kinds = [type(each.message) for each in first.sent[:3]]
    assert kinds == [Soks, Ends, {"SUB": Sok, "NEW": Ids, "SUBS": Soks}[how]]


async def test_an_opening_that_takes_too_long_is_done_without(
    in_memory: RouterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory.choose(replace(in_memory.options, opening_seconds_max=0.01))
    peer, _, ids = await extended(in_memory, 2)
    gate = Gate(in_memory, monkeypatch)
    soks = await subs(peer, [])
    assert soks == Soks(2, told_by(peer, ids).ids_hash, state_of(2, ids))
    assert in_memory.counters.openings_failed_count == 1
    gate.open()
    assert isinstance(await ask(peer, ALL), Listing)
    assert is_over(in_memory)


async def test_a_plain_session_gets_plain_soks(smp: RouterRig) -> None:
    _, service, queues = await with_queues(smp, 2)
    peer = smp.connect(service=service)
    soks = await subs(peer, [])
    assert soks == Soks(2, told_by(peer, ids_of(queues)).ids_hash)
    assert smp.router.followed_sets.scan_count == 0


async def test_soks_waits_for_what_is_staged(smp: RouterRig) -> None:
    peer, _, queues = await with_queues(smp, 1)
    queue = await smp.connect().create(subscribes=False)
    smp.records_disk.is_held = True
    peer.say(router_rig.Request(b"SUB", queue.recipient_id, queue.key))
    request = request_of(peer, told_by(peer, ids_of([*queues, queue])))
    peer.say(request)
    await turns()
    assert peer.answer_to(request) is None
    smp.records_disk.let_go()
    await until(lambda: any(each.corr_id == request.corr_id for each in peer.sent))
    soks = peer.answer_to(request)
    assert isinstance(soks, Soks)
    assert soks.opening == b""


# ------------------------------------------------------------------------------------ wrong digests


def damage(folder: Path, change: str) -> None:
    with closing(sqlite3.connect(next(folder.rglob("records.sqlite")))) as connection, connection:
        connection.execute(f"UPDATE digests SET {change}")


@pytest.mark.parametrize("change", ["count = count + 1", "md5_low = 7"])
@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_wrong_digest_is_repaired_and_then_told(
    on_disk: RouterRig, tmp_path: Path, change: str, is_followed: bool
) -> None:
    logger = CapturingLogger()
    peer, service, queues = await with_queues(on_disk, 3)
    if is_followed:
        await ask(peer, Open(None, 8))
    on_disk.router._outside.log.__init__(logger)  # type: ignore[misc]
    damage(tmp_path, change)
    soks = await subs(peer, ids_of(queues))
    assert soks == Soks(3, told_by(peer, ids_of(queues)).ids_hash, state_of(4, ids_of(queues)))
    assert on_disk.counters.digests_repaired_count == 1
    (call,) = [each for each in logger.calls if each.method_name == "error"]
    assert call.kwargs["service"] == urlsafe_b64encode(service.service_id).decode()
    # It happened once, and what follows is of the new version.
    assert (await subs(peer, ids_of(queues))).opening == b""
    opening = as_answer((await subs(peer, [])).opening)
    assert isinstance(opening, Opening)
    assert opening.state == state_of(4, ids_of(queues))
    assert on_disk.counters.digests_repaired_count == 1


async def test_a_question_repairs_a_wrong_digest_before_it_is_answered(
    on_disk: RouterRig, tmp_path: Path
) -> None:
    peer, _, queues = await with_queues(on_disk, 3)
    damage(tmp_path, "count = 7")
    answer = await ask(peer, ALL)
    assert isinstance(answer, Listing)
    assert answer.state == state_of(4, ids_of(queues))
    assert on_disk.counters.digests_repaired_count == 1
