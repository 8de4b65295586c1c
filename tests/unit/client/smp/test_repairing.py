"""Sets that differ are made the same, whichever way they differ and whatever happens meanwhile."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.client.smp.agent_events import (
    QueueEnd,
    QueueFailed,
    QueueUp,
    ServiceEnd,
    ServiceLost,
    ServiceRepaired,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import Made
from syncline.client.smp.repair_plan import Repaired
from syncline.client.smp.repairing import ROUND_COUNT_MAX, Repairer, find_difference
from syncline.client.smp.service_decisions import DriftKind
from syncline.core.reconciliation.sets import Snapshot
from syncline.errors import LinkLostError, ServiceMismatchError
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import Request
from syncline.links.smp_session import LinkService
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.values.reconciliation import Difference, Failure, Found, SetHashes
from syncline.wire.reconciliation.answers import encode_answer
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Bus, Command, Del, New, Nsub, Recq, Sub, Subs
from syncline.wire.smp.failures import Failure as Refusal
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import End, Ok, Sok
from tests.unit.client.smp.agent_rig import Rig
from tests.unit.client.smp.fake_router import (
    ADDRESS,
    FakeLink,
    FakeQueue,
    FakeRouter,
    at_once,
    settled,
)

KEY = PrivateKey(KeyKind.ED25519, b"k" * 32)
SERVICE_ID = b"the service of the tests"


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.router.is_extended = True
    return rig


def sent(rig: Rig, kind: type[Command]) -> list[Command]:
    return [command for command, _ in rig.router.link.commands if isinstance(command, kind)]


def bused(rig: Rig) -> set[bytes]:
    return {each for link in rig.router.links for command, _ in link.commands
            if isinstance(command, Bus) for each in command.ids}  # fmt: skip


def ids_of(queues: list[StoredQueue]) -> list[bytes]:
    return [queue.recipient_id for queue in queues]


def repaired(rig: Rig) -> Repaired:
    [event] = rig.told(ServiceRepaired)
    return event.repaired


# -------------------------------------------------------------------------------- in each direction


async def test_equal_sets_cost_nothing_beyond_the_bulk_subscription(rig: Rig) -> None:
    await rig.prepared()
    async with rig.agent() as agent:
        digest = rig.store.service(rig.account).digest
        hashes = SetHashes(digest.xor_xxh3, digest.sum128)
        assert [command for command, _ in rig.router.link.commands] == [
            Subs(3, digest.xor_md5, hashes)
        ]
        assert not rig.told(ServiceRepaired)
        assert agent.counters.drift_count == 0


async def test_queues_lost_by_the_router_are_associated_again_and_no_others(rig: Rig) -> None:
    queues = await rig.prepared(5)
    rig.router.drop_associations(*ids_of(queues)[:2])
    async with rig.agent() as agent:
        asked = [each for command, each in rig.router.link.commands if isinstance(command, Sub)]
        assert sorted(asked) == sorted(ids_of(queues)[:2])
        assert not sent(rig, Bus)
        assert replace(repaired(rig), round_trips=0) == Repaired(
            is_equal=True, associated_count=2, rounds=1
        )
        assert {each for up in rig.told(QueueUp) for each in up.queues} == set(ids_of(queues)[:2])
        ups = rig.told(ServiceUp)
        assert [up.drift and up.drift.kind for up in ups] == [DriftKind.COUNT, None]
        assert agent.counters.associated_count == 2
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_queues_that_only_the_router_knows_are_let_go_of(rig: Rig) -> None:
    queues = await rig.prepared(5)
    for each in ids_of(queues)[3:]:
        rig.store.forget(rig.account, each)
    async with rig.agent() as agent:
        assert not sent(rig, Sub)
        [command] = sent(rig, Bus)
        assert isinstance(command, Bus)
        assert set(command.ids) == set(ids_of(queues)[3:])
        assert replace(repaired(rig), round_trips=0) == Repaired(
            is_equal=True, dissociated_count=2, rounds=1
        )
        assert agent.counters.dissociated_count == 2
        rig.check_sets()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.link.words() == ["SUBS"], "there is nothing left to be told"
        await rig.check_delivery(queues[:3])


async def test_queue_that_is_not_wanted_is_let_go_of(rig: Rig) -> None:
    queues = await rig.prepared(3)
    one = ids_of(queues)[:1]
    rig.store.dissociate(rig.account, one)
    rig.store.set_wanted(rig.account, one, False)
    async with rig.agent():
        assert bused(rig) == set(one)
        rig.check_sets()


async def test_association_whose_answer_was_lost_is_kept(rig: Rig) -> None:
    queues = await rig.prepared(3)
    lost = ids_of(queues)[:1]
    rig.store.dissociate(rig.account, lost)
    async with rig.agent() as agent:
        assert "SUB" not in rig.router.link.words()
        assert not bused(rig)
        assert repaired(rig).kept_count == agent.counters.kept_count == 1
        assert rig.told(QueueUp) == [QueueUp(rig.account, tuple(lost))]
        session = agent.session(rig.account)
        assert session is not None
        assert session.subscriptions.active_service is not None
        assert session.subscriptions.active_service.count == 3
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_queue_that_is_not_wanted_is_not_associated_again(rig: Rig) -> None:
    queues = await rig.prepared(3)
    one = ids_of(queues)[:1]
    rig.router.drop_associations(*one)
    rig.store.set_wanted(rig.account, one, False)
    async with rig.agent() as agent:
        assert not sent(rig, Sub)
        assert repaired(rig).dropped_count == agent.counters.dropped_count == 1
        rig.check_sets()


async def test_queue_that_neither_side_associates_is_subscribed_all_the_same(rig: Rig) -> None:
    queues = await rig.prepared(4)
    async with rig.agent():
        rig.router.link.drop()
        rig.router.drop_associations(*ids_of(queues)[:2])
        rig.store.dissociate(rig.account, ids_of(queues)[:1])
        await rig.time.advance(1)
        assert repaired(rig).associated_count == 1
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_router_that_has_nothing_is_not_asked(rig: Rig) -> None:
    queues = await rig.prepared(3)
    rig.router.drop_associations()
    async with rig.agent() as agent:
        assert rig.router.link.words() == ["SUBS", "SUB", "SUB", "SUB", "SUBS"]
        assert agent.counters.plain_repair_count == 1
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_store_that_has_nothing_learns_what_is_wanted_and_lets_go_of_the_rest(
    rig: Rig,
) -> None:
    queues = await rig.prepared(4)
    rig.store.dissociate(rig.account, ids_of(queues))
    rig.store.forget(rig.account, queues[0].recipient_id)
    async with rig.agent():
        assert bused(rig) == set(ids_of(queues)[:1])
        assert repaired(rig).kept_count == 3
        rig.check_sets()
        await rig.check_delivery(queues[1:])


async def test_plain_router_sees_none_of_it(rig: Rig) -> None:
    rig.router.is_extended = False
    queues = await rig.prepared(3)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.store.forget(rig.account, queues[2].recipient_id)
    async with rig.agent() as agent:
        words = rig.router.link.words()
        assert words == ["SUBS", "SUB", "SUB", "SUBS"]
        assert not rig.told(ServiceRepaired)
        assert (agent.counters.drift_count, agent.counters.plain_repair_count) == (1, 1)
        await rig.check_delivery(queues[:2])


async def test_notifiers_are_repaired_in_both_directions(rig: Rig) -> None:
    queues = await rig.prepared(3)
    notifier = replace(rig.account, role=ServiceRole.NOTIFIER)
    async with rig.agent() as agent:
        credentials = [await agent.add_notifier(queue) for queue in queues]
        for each in credentials:
            await agent.follow_notifier(notifier, each.notifier_id, each.key)
        await settled()
    ids = [each.notifier_id for each in credentials]
    fakes = [rig.router.queues[each] for each in ids_of(queues)]
    fakes[0].notifier_service = None
    rig.store.forget(notifier, ids[1])
    rig.store.dissociate(notifier, ids[2:])
    async with rig.agent():
        [event] = [e for e in rig.told(ServiceRepaired) if e.account == notifier]
        assert event.repaired.is_equal
        found = event.repaired
        assert (found.associated_count, found.dissociated_count, found.kept_count) == (1, 1, 1)
        [link] = [each for each in rig.router.links[-2:] if "NSUBS" in each.words()]
        assert [each for command, each in link.commands if isinstance(command, Nsub)] == ids[:1]
        service = rig.store.service(notifier)
        assert service.service_id is not None
        assert rig.router.ids_of(service.service_id) == {ids[0], ids[2]}
        assert service.digest.count == 2
        assert rig.store.recompute(notifier) == service.digest


# ------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("failure", [failures.AUTH, failures.blocked("spam")])
async def test_queue_that_the_router_refuses_is_given_up(rig: Rig, failure: Refusal) -> None:
    queues = await rig.prepared(3)
    one = queues[0].recipient_id
    rig.router.drop_associations(one)
    rig.router.failures = {one: failure}
    async with rig.agent() as agent:
        assert rig.told(QueueFailed) == [QueueFailed(rig.account, one, failure)]
        found = repaired(rig)
        assert (found.is_equal, found.failed_count, found.associated_count) == (True, 1, 0)
        assert agent.counters.failed_count == 1
        rig.check_sets()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.told(ServiceUp)[-1].drift is None
        assert len(rig.told(QueueFailed)) == 1
        await rig.check_delivery(queues[1:])


async def test_queue_that_cannot_be_associated_now_waits_for_it(rig: Rig) -> None:
    queues = await rig.prepared(3)
    one = queues[0].recipient_id
    rig.router.drop_associations(one)
    rig.router.failures = {one: failures.store("the disk is busy")}
    async with rig.agent():
        assert repaired(rig).is_equal
        assert not any(event.is_final for event in rig.told(QueueFailed))
        rig.check_sets()
        await rig.time.advance(0.5)
        rig.router.failures = {}
        await rig.time.advance(1.0)
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_service_refused_while_repairing_is_given_up(rig: Rig) -> None:
    queues = await rig.prepared(3)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.failures = {Sub: failures.SERVICE}
    async with rig.agent():
        assert "SERVICE" in rig.told(ServiceLost)[0].reason
        rig.router.failures = {}
        await rig.time.advance(1)
        await rig.check_delivery(queues)


async def test_subscription_without_an_answer_is_compared_again(rig: Rig) -> None:
    queues = await rig.prepared(3)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.withheld = {Sub}
    async with rig.agent():
        rig.router.link.time_out_waiting()
        rig.router.withheld = set()
        await settled()
        found = repaired(rig)
        assert (found.is_equal, found.rounds, found.associated_count) == (True, 2, 1)
        rig.check_sets()
        await rig.check_delivery(queues)


# ------------------------------------------------------------------------------------------ digests


def damage(store: AgentStore, *, count: int | None = None, digest: bytes | None = None) -> None:
    if count is not None:
        store._db.execute("UPDATE services SET queue_count = ? WHERE role = 'M'", (count,))
    if digest is not None:
        store._db.execute("UPDATE services SET digest = ? WHERE role = 'M'", (digest,))


@pytest.mark.parametrize(
    "damaged", ["one more", "negative", "nothing", "short", "md5", "xor", "sum"]
)
async def test_digest_damaged_in_the_store_is_repaired_and_told(rig: Rig, damaged: str) -> None:
    queues = await rig.prepared(3)
    kept = rig.store.service(rig.account).digest
    parts = {"md5": kept.xor_md5, "xor": kept.xor_xxh3, "sum": kept.sum128}
    wrong = b"".join((b"x" * 16 if name == damaged else part) for name, part in parts.items())
    counts = {"one more": 4, "negative": -7}
    digests = {"nothing": bytes(48), "short": b"x"}
    damage(rig.store, count=counts.get(damaged), digest=digests.get(damaged, wrong))
    async with rig.agent() as agent:
        assert rig.told(ServiceUp)[0].drift is not None
        assert repaired(rig).is_digest_repaired
        assert agent.counters.digest_count == 1
        session = agent.session(rig.account)
        assert session is not None
        assert session.subscriptions.active_service is not None
        assert session.subscriptions.active_service.count == 3
        assert not {"SUB", "BUS"} & set(rig.router.link.words())
        rig.check_sets()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.told(ServiceUp)[-1].drift is None
        await rig.check_delivery(queues)


async def test_digest_damaged_in_the_store_and_drift_are_repaired_together(rig: Rig) -> None:
    queues = await rig.prepared(3)
    damage(rig.store, digest=b"x" * 48)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.store.forget(rig.account, queues[1].recipient_id)
    async with rig.agent():
        assert replace(repaired(rig), round_trips=0) == Repaired(
            is_equal=True,
            associated_count=1,
            dissociated_count=1,
            rounds=1,
            is_digest_repaired=True,
        )
        rig.check_sets()


async def test_digest_damaged_at_the_router_harms_nobody(rig: Rig) -> None:
    queues = await rig.prepared(3)
    service_id = rig.store.service(rig.account).service_id
    assert service_id is not None
    right = rig.router.state_of(service_id)
    # What XOR hides: one that was counted twice and taken out again as another.
    rig.router.wrong_states[service_id] = replace(right, sum128=b"x" * 16)
    async with rig.agent():
        assert rig.told(ServiceUp)[0].drift is not None
        assert repaired(rig).is_equal
        assert not repaired(rig).is_digest_repaired
        assert not {"SUB", "BUS"} & set(rig.router.link.words())
        rig.check_sets()
        await rig.check_delivery(queues)


# ----------------------------------------------------------------------------------------- failures


async def test_failure_is_told_and_not_acted_on(rig: Rig) -> None:
    queues = await rig.prepared(4)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.opens, rig.router.failures = False, {Recq: failures.LARGE_MSG}
    async with rig.agent() as agent:
        found = repaired(rig)
        assert not found.is_equal
        assert found.rounds == ROUND_COUNT_MAX
        assert found.failures == ("the router says LARGE_MSG",) * 3
        assert not bused(rig)
        assert agent.counters.failure_count == 1
        # The plain repair.
        assert len(sent(rig, Sub)) == 4
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_router_that_is_busy_is_asked_again_after_a_while(rig: Rig) -> None:
    queues = await rig.prepared(4)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.opens, rig.router.failures = False, {Recq: failures.store("busy")}
    async with rig.agent() as agent:
        for wait_s in (0.5, 1.0, 2.0):
            assert rig.time.naps_s == [wait_s]
            await rig.time.advance(wait_s)
        rig.router.failures = {}
        await rig.time.advance(4.0)
        assert replace(repaired(rig), round_trips=0) == Repaired(
            is_equal=True, associated_count=1, rounds=1
        )
        assert agent.counters.plain_repair_count == 0
        rig.check_sets()


async def test_patience_with_a_busy_router_has_an_end(rig: Rig) -> None:
    queues = await rig.prepared(4)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.opens, rig.router.failures = False, {Recq: failures.store("busy")}
    async with rig.agent():
        for _ in range(3 * 8):
            assert not rig.told(ServiceRepaired)
            await rig.time.advance(60)
        assert not repaired(rig).is_equal
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_one_bad_answer_costs_a_round(rig: Rig) -> None:
    queues = await rig.prepared(4)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.router.opens, rig.router.false_answers = False, [Found(None, b"\xff" * 24, b"")]
    async with rig.agent():
        found = repaired(rig)
        assert found.is_equal
        assert (found.rounds, len(found.failures), found.associated_count) == (2, 1, 1)
        assert not bused(rig)
        rig.check_sets()


async def test_router_that_does_not_let_go_is_not_chased(rig: Rig) -> None:
    queues = await rig.prepared(3)
    rig.store.forget(rig.account, queues[0].recipient_id)
    rig.router.failures = {Bus: failures.store("full")}
    async with rig.agent():
        assert not repaired(rig).is_equal
        assert repaired(rig).dissociated_count == 0
        rig.router.link.drop()
        await rig.time.advance(1)
        assert len(sent(rig, Bus)) == ROUND_COUNT_MAX
        assert not sent(rig, Sub), "what it refuses cannot be repaired from here"
        rig.router.failures = {}
        rig.router.link.drop()
        await rig.time.advance(2)
        assert rig.told(ServiceRepaired)[-1].repaired.is_equal
        rig.check_sets()
        await rig.check_delivery(queues[1:])


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("step", range(6))
async def test_link_lost_at_any_step_is_made_good_on_the_next(
    rig: Rig, step: int, is_answered: bool
) -> None:
    """Dropped before each command in turn, or after it was done and before its answer."""
    rig.options = AgentOptions(page_count=2)
    queues = await rig.prepared(8)
    rig.router.drop_associations(*ids_of(queues)[:3])
    rig.store.dissociate(rig.account, ids_of(queues)[3:5])
    rig.store.forget(rig.account, queues[5].recipient_id)
    seen: list[str] = []

    def drop(command: Command) -> None:
        seen.append(type(command).__name__.upper())
        if len(seen) == step + 1:
            if not is_answered:
                rig.router.link.drop()
                raise LinkLostError("lost")
            asyncio.get_running_loop().call_soon(rig.router.link.drop)

    rig.router.before = drop
    async with rig.agent():
        for _ in range(3):
            await rig.time.advance(60)
        assert len(rig.router.links) == 3
        assert seen[: step + 1] == ["SUBS", "RECQ", "SUB", "SUB", "SUB", "BUS"][: step + 1]
        rig.check_sets()
        assert rig.told(ServiceUp)[-1].drift is None
        assert bused(rig) <= {queues[5].recipient_id}
        await rig.check_delivery([*queues[:5], *queues[6:]])


# ---------------------------------------------------------------------------------------- meanwhile


async def drifted(rig: Rig, *withheld: type[Command]) -> list[StoredQueue]:
    """One lost by the router, one that it alone knows; the repair will stop at these commands."""
    queues = await rig.prepared(4)
    rig.router.drop_associations(queues[0].recipient_id)
    rig.store.forget(rig.account, queues[3].recipient_id)
    rig.router.withheld = set(withheld)
    return queues


def answer_all(rig: Rig) -> None:
    """Go on with what was withheld."""
    rig.router.withheld = set()
    link = rig.router.link
    link.answer_waiting()
    link.answer_asked()


async def test_commands_go_on_while_sets_are_repaired(rig: Rig) -> None:
    queues = await drifted(rig, Recq)
    async with rig.agent() as agent:
        assert rig.router.link.words() == ["SUBS", "RECQ"]
        new = await agent.create_queue(rig.account, "new")
        await agent.send(rig.account, new.sender_id, b"hello")
        await settled()
        assert rig.bodies() == [b"hello"]
        assert not rig.told(ServiceRepaired)
        answer_all(rig)
        await settled()
        assert repaired(rig).is_equal
        assert bused(rig) == {queues[3].recipient_id}
        rig.check_sets()


async def test_commands_wait_for_the_repair_if_they_are_held(rig: Rig) -> None:
    rig.options = AgentOptions(holds_commands=True)
    queues = await drifted(rig, Recq)
    async with rig.agent() as agent:
        creating = asyncio.create_task(agent.create_queue(rig.account, "new"))
        await settled()
        assert rig.router.link.words() == ["SUBS", "RECQ"]
        answer_all(rig)
        await creating
        words = rig.router.link.words()
        assert words[-1] == "NEW"
        assert {"SUB", "BUS"} < set(words)
        assert repaired(rig).is_equal
        rig.check_sets()
        await rig.check_delivery(queues[:3])


async def test_held_commands_wait_for_the_plain_repair_too(rig: Rig) -> None:
    rig.options = AgentOptions(holds_commands=True)
    rig.router.is_extended = False
    await drifted(rig, Sub)
    async with rig.agent() as agent:
        creating = asyncio.create_task(agent.create_queue(rig.account, "new"))
        await settled()
        assert "NEW" not in rig.router.link.words()
        rig.router.withheld = set()
        for _ in range(3):
            rig.router.link.answer_waiting()
            await settled()
        await creating
        assert rig.router.link.words()[-2:] == ["SUBS", "NEW"]


async def test_queue_that_is_being_made_is_not_let_go_of(rig: Rig) -> None:
    """The router has it, and the answer is under way: for us it is unknown."""
    queues = await drifted(rig, Recq)
    async with rig.agent() as agent:
        rig.router.delayed = {New}
        creating = asyncio.create_task(agent.create_queue(rig.account, "new"))
        await settled()
        assert len(rig.router.queues) == 5
        answer_all(rig)
        await settled()
        assert not rig.told(ServiceRepaired)
        assert not bused(rig)
        rig.router.delayed = set()
        rig.router.link.release()
        new = await creating
        await settled()
        assert bused(rig) == {queues[3].recipient_id}
        assert repaired(rig).is_equal
        rig.check_sets()
        await rig.check_delivery([*queues[:3], new])


async def test_queue_whose_maker_gave_up_is_let_go_of(rig: Rig) -> None:
    await drifted(rig, Recq)
    async with rig.agent() as agent:
        rig.router.delayed = {New}
        creating = asyncio.create_task(agent.create_queue(rig.account, "new"))
        await settled()
        creating.cancel()
        answer_all(rig)
        await settled()
        assert repaired(rig).is_equal
        assert len(bused(rig)) == 2
        rig.check_sets()


async def test_queue_made_while_the_sets_are_compared_stays(rig: Rig) -> None:
    await rig.prepared(3)
    rig.router.drop_associations(*list(rig.router.queues)[:1])
    rig.router.withheld = {Sub}
    async with rig.agent() as agent:
        # After our snapshot was taken; the router's answers have it from here on.
        new = await agent.create_queue(rig.account, "new")
        rig.router.withheld = set()
        rig.router.link.answer_waiting()
        await settled()
        assert repaired(rig).is_equal
        assert not bused(rig)
        rig.check_sets()
        await rig.check_delivery([new])


@pytest.mark.parametrize("when", ["before the router answers", "after it"])
async def test_queue_deleted_meanwhile_is_not_brought_back(rig: Rig, when: str) -> None:
    queues = await drifted(rig, Recq)
    lost = queues[0]
    async with rig.agent() as agent:
        rig.router.delayed = {Del} if when == "after it" else set()
        deleting = asyncio.create_task(agent.delete_queue(lost))
        await settled()
        answer_all(rig)
        await settled()
        rig.router.delayed = set()
        rig.router.link.release()
        await deleting
        await settled()
        asked = [each for command, each in rig.router.link.commands if isinstance(command, Sub)]
        assert asked == []
        assert not rig.told(QueueFailed)
        assert rig.store.queue(rig.account, lost.recipient_id) is None
        assert repaired(rig).is_equal
        rig.check_sets()


async def test_queue_deleted_while_it_is_associated_again_is_gone(rig: Rig) -> None:
    queues = await drifted(rig, Sub)
    lost = queues[0]
    async with rig.agent() as agent:
        deleting = asyncio.create_task(agent.delete_queue(lost))
        await settled()
        answer_all(rig)
        await deleting
        await settled()
        assert not rig.told(QueueFailed), "the application has deleted it, and knows"
        assert rig.store.queue(rig.account, lost.recipient_id) is None
        assert rig.told(ServiceRepaired)[-1].repaired.is_equal
        rig.check_sets()


async def test_queue_wanted_again_meanwhile_is_not_let_go_of(rig: Rig) -> None:
    queues = await rig.prepared(3)
    one = ids_of(queues)[:1]
    rig.store.dissociate(rig.account, one)
    rig.store.set_wanted(rig.account, one, False)
    rig.router.withheld = {Recq}
    async with rig.agent() as agent:
        await agent.subscribe_queues(rig.account, one)
        answer_all(rig)
        await settled()
        assert not bused(rig)
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_queue_taken_by_another_connection_meanwhile_is_not_taken_back(rig: Rig) -> None:
    queues = await rig.prepared(4)
    one = queues[0].recipient_id
    rig.store.dissociate(rig.account, [one])
    rig.router.drop_associations(queues[1].recipient_id)
    service_id = rig.store.service(rig.account).service_id
    assert service_id is not None
    async with rig.agent():
        pass
    rig.store.dissociate(rig.account, [one])
    old = rig.router.answer

    def answer(service: bytes, parts: list[bytes]) -> list[bytes]:
        found = old(service, parts)
        if rig.router.queues[one].service_id is not None:
            # It is in this answer, and is taken before that arrives.
            rig.router.take_queue(one)
        return found

    rig.router.answer = answer  # type: ignore[assignment,method-assign]
    async with rig.agent():
        await settled()
        assert rig.told(QueueEnd) == [QueueEnd(rig.account, one)]
        assert rig.router.queues[one].service_id is None
        assert not sent(rig, Sub)
        assert repaired(rig).is_equal
        rig.check_sets()


async def test_queue_lost_and_taken_meanwhile_is_not_taken_back(rig: Rig) -> None:
    queues = await drifted(rig, Recq)
    async with rig.agent():
        rig.router.link.tell(queues[0].recipient_id, End())
        await settled()
        answer_all(rig)
        await settled()
        assert not sent(rig, Sub)
        assert repaired(rig).is_equal
        rig.check_sets()


async def test_queue_taken_right_after_it_was_associated_again_is_not_taken_back(rig: Rig) -> None:
    queues = await rig.prepared(4)
    first, second = sorted(ids_of(queues)[:2])
    rig.router.drop_associations(first, second)
    subscribed_count = 0

    def take(command: Command) -> None:
        nonlocal subscribed_count
        subscribed_count += isinstance(command, Sub)
        if subscribed_count == 2 and rig.router.queues[first].service_id is not None:
            # The end is known before the answers of the page are looked at.
            rig.router.take_queue(first)

    rig.router.before = take
    async with rig.agent():
        assert rig.told(QueueEnd) == [QueueEnd(rig.account, first)]
        assert rig.router.queues[first].service_id is None
        assert len(sent(rig, Sub)) == 2
        assert repaired(rig).is_equal
        rig.check_sets()


async def test_queue_that_had_ended_before_is_kept_if_the_router_has_it(rig: Rig) -> None:
    queues = await rig.prepared(3)
    one = queues[0].recipient_id
    async with rig.agent() as agent:
        service_id = rig.router.queues[one].service_id
        rig.router.take_queue(one)
        await settled()
        assert rig.told(QueueEnd)
        # Somebody has given it back to the service.
        rig.router.queues[one].service_id = service_id
        rig.router.link.drop()
        await rig.time.advance(1)
        assert repaired(rig).kept_count == 1
        session = agent.session(rig.account)
        assert session is not None
        assert session.subscriptions.why_removed(one) is None
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_service_taken_over_meanwhile_is_left_alone(rig: Rig) -> None:
    await drifted(rig, Recq)
    async with rig.agent():
        [service_id] = rig.router.subscribed_services
        rig.router.take_service(service_id)
        await settled()
        answer_all(rig)
        await settled()
        assert rig.told(ServiceEnd)
        assert rig.router.link.words() == ["SUBS", "RECQ"]
        assert not repaired(rig).is_equal
        assert rig.store.service(rig.account).digest.count == 3, "nothing was given up"


# --------------------------------------------------------------------------- the repairer by itself


def stored_queue(account: Account, number: int, id_: bytes) -> StoredQueue:
    return StoredQueue(
        account, f"queue {number}", id_, id_[::-1], QueueMode.MESSAGING, KEY, b"s" * 32,
        is_associated=True,
    )  # fmt: skip


class Sides:
    """A store and a router with these ids, and a link between them."""

    def __init__(self, path: str, ours: set[bytes], theirs: set[bytes], known: set[bytes]) -> None:
        self.store = AgentStore(path)
        self.account = Account(self.store.user("ann"), self.store.server(ADDRESS))
        self.store.save_service_id(self.account, SERVICE_ID)
        for number, each in enumerate(sorted(ours | known)):
            self.store.add_queue(stored_queue(self.account, number, each))
        self.store.dissociate(self.account, sorted(known - ours))
        self.router = FakeRouter()
        self.router.is_extended = True
        for each in ours | theirs | known:
            self.router.queues[each] = FakeQueue(KEY.public, b"s" * 32, each[::-1])
        for each in theirs:
            self.router.queues[each].service_id = SERVICE_ID
        service = LinkService(SERVICE_ID, ServiceRole.MESSAGING, KEY, b"f" * 32)
        self.link = FakeLink(self.router, b"session", service)

    @property
    def ours(self) -> set[bytes]:
        with self.store.read_set(self.account) as ids:
            return {row.tobytes() for piece in ids.iterate(b"", b"\xff" * 25) for row in piece}

    @property
    def theirs(self) -> set[bytes]:
        return self.router.associated(SERVICE_ID)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_drift_ends_with_equal_sets(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 1 << 32)))
    ids = [random.randbytes(24) for _ in range(data.draw(st.integers(1, 600)))]
    shares = [data.draw(st.sampled_from([0.0, 0.01, 0.3, 0.9])) for _ in range(3)]
    ours, theirs, known = ({each for each in ids if random.random() >= share} for share in shares)
    asyncio.run(check_repair(":memory:", ours, theirs, known))


async def check_repair(path: str, ours: set[bytes], theirs: set[bytes], known: set[bytes]) -> None:
    sides = Sides(path, ours, theirs, known)
    with closing(sides.store):
        repairer = Repairer(page_count=50, on_thread=at_once)
        found = await repairer.repair(sides.account, sides.link, sides.store)
        assert found.is_equal
        assert sides.ours == sides.theirs == ours | (known & theirs)
        assert found.associated_count == len(ours - theirs)
        assert found.kept_count == len((known & theirs) - ours)
        assert found.dissociated_count == len(theirs - known - ours)
        assert sides.store.recompute(sides.account) == sides.store.service(sides.account).digest
        batches = [c for c, _ in sides.link.commands if isinstance(c, Bus)]
        assert sum(len(each.ids) for each in batches) == found.dissociated_count


async def test_many_ids_go_in_batches() -> None:
    random = Random(5)
    ids = {random.randbytes(24) for _ in range(1_300)}
    sides = Sides(":memory:", set(), ids, set())
    with closing(sides.store):
        found = await Repairer(on_thread=at_once).repair(sides.account, sides.link, sides.store)
        batches = [len(c.ids) for c, _ in sides.link.commands if isinstance(c, Bus)]
        assert batches == [512, 512, 276]
        assert found.is_equal
        assert sides.theirs == set()


async def test_each_batch_is_looked_at_when_it_is_sent() -> None:
    """One that is wanted again while the batch before is under way is not let go of."""
    random = Random(8)
    ids = sorted(random.randbytes(24) for _ in range(600))
    sides = Sides(":memory:", set(), set(ids), set(ids))
    sides.store.set_wanted(sides.account, ids, False)

    def want(command: Command) -> None:
        if isinstance(command, Bus):
            sides.store.set_wanted(sides.account, ids[-1:], True)

    sides.router.before = want
    with closing(sides.store):
        found = await Repairer(on_thread=at_once).repair(sides.account, sides.link, sides.store)
        batches = [set(c.ids) for c, _ in sides.link.commands if isinstance(c, Bus)]
        assert [len(each) for each in batches] == [512, 87]
        assert found.is_equal
        assert (found.dissociated_count, found.kept_count) == (599, 1)
        assert sides.ours == sides.theirs == {ids[-1]}


async def test_changes_on_their_way_are_no_drift() -> None:
    """An application that never rests does not lead to everything being associated again."""
    random = Random(9)
    ids = {random.randbytes(24) for _ in range(20)}
    sides = Sides(":memory:", ids, ids - {min(ids)}, set())
    old = sides.router.answer
    made: set[bytes] = set()

    def answer(service_id: bytes, parts: Sequence[bytes]) -> list[bytes]:
        found = old(service_id, parts)
        # Made, and in the store, before this answer has arrived.
        new = random.randbytes(24)
        made.add(new)
        sides.router.queues[new] = FakeQueue(KEY.public, b"s" * 32, new[::-1])
        sides.router.queues[new].service_id = SERVICE_ID
        sides.store.add_queue(stored_queue(sides.account, len(made) + 100, new))
        return found

    sides.router.answer = answer  # type: ignore[method-assign]
    with closing(sides.store):
        found = await Repairer(on_thread=at_once).repair(sides.account, sides.link, sides.store)
        assert (found.is_equal, found.associated_count) == (True, 1)
        assert (found.rounds, found.dissociated_count) == (2, 0)
        assert sides.ours == sides.theirs == ids | made


async def test_opening_saves_a_round_trip() -> None:
    random = Random(6)
    ids = {random.randbytes(24) for _ in range(500)}
    sides = Sides(":memory:", ids, ids - set(sorted(ids)[:3]), set())
    with closing(sides.store):
        soks = sides.router._soks(sides.link, SERVICE_ID, _subs(sides))
        assert soks.opening
        with sides.store.read_set(sides.account) as stored:
            snapshot = Snapshot(b"".join(sorted(sides.ours)), stored.version())
        result, round_trips = await find_difference(
            sides.link, lambda: snapshot, soks.opening, on_thread=at_once
        )
        assert isinstance(result, Difference)
        assert (result.missing, result.extra) == (b"", b"".join(sorted(ids)[:3]))
        assert round_trips == len(sides.link.commands) + 1


def _subs(sides: Sides) -> Subs:
    state = sides.store.service(sides.account).state
    return Subs(state.count, b"", SetHashes(state.xor128, state.sum128))


@pytest.mark.parametrize("opening", [b"", b"\xff", b"A\x00\x02cut", "another answer"])
async def test_opening_that_is_none_is_a_failure(opening: bytes | str) -> None:
    sides = Sides(":memory:", {b"a" * 24}, {b"b" * 24}, set())
    with closing(sides.store):
        if isinstance(opening, str):
            [opening] = encode_answer(Found(None, b"", b""))
        snapshot = Snapshot(b"a" * 24)
        result, _ = await find_difference(sides.link, lambda: snapshot, opening, on_thread=at_once)
        assert isinstance(result, Failure if opening else Difference)


async def test_refused_service_is_not_a_failure() -> None:
    sides = Sides(":memory:", {b"a" * 24}, {b"b" * 24}, set())
    sides.router.failures = {Recq: failures.SERVICE}
    with closing(sides.store), pytest.raises(ServiceMismatchError):
        await Repairer(on_thread=at_once).repair(sides.account, sides.link, sides.store)


async def test_whole_sets_are_read_and_hashed_on_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(7)
    ids = {random.randbytes(24) for _ in range(50)}
    sides = Sides(str(tmp_path / "agent.sqlite"), ids, ids - set(sorted(ids)[:3]), set())
    threads: set[int] = set()
    repair_digest, read_set = sides.store.repair_digest, sides.store.read_set

    def noted(work: Callable[[Account], Made]) -> Callable[[Account], Made]:
        def call(account: Account) -> Made:
            threads.add(threading.get_ident())
            return work(account)

        return call

    monkeypatch.setattr(sides.store, "read_set", noted(read_set))
    monkeypatch.setattr(sides.store, "repair_digest", noted(repair_digest))
    damage(sides.store, digest=bytes(48))
    with closing(sides.store):
        found = await Repairer().repair(sides.account, sides.link, sides.store)
        assert found.is_equal
        assert found.is_digest_repaired
        assert threads
        assert threading.get_ident() not in threads
        assert sides.theirs == ids


@pytest.mark.parametrize(
    ("answer", "is_associated"),
    [(Sok(SERVICE_ID), True), (Sok(), False), (Ok(), False), (Sok(b"another service"), False)],
)
async def test_store_says_what_the_router_answered(answer: Sok | Ok, is_associated: bool) -> None:
    sides = Sides(":memory:", {b"a" * 24, b"b" * 24}, {b"b" * 24}, set())
    old = sides.router.handle

    def handle(link: FakeLink, request: Request) -> object:
        if isinstance(request.command, Sub) and not is_associated:
            return answer
        return old(link, request)

    sides.router.handle = handle  # type: ignore[assignment,method-assign]
    with closing(sides.store):
        found = await Repairer(on_thread=at_once).repair(sides.account, sides.link, sides.store)
        assert found.is_equal
        assert (found.associated_count, found.failed_count) == (is_associated, not is_associated)
        assert (b"a" * 24 in sides.ours) is is_associated
