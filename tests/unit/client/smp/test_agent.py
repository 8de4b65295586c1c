"""The agent against a router without bytes, under a clock that is moved by hand."""

import asyncio
from dataclasses import replace

import pytest

from syncline.client.smp.agent_events import (
    AgentEvent,
    EventsMissed,
    MessageDamaged,
    MessageReceived,
    NotificationReceived,
    QueueDeleted,
    QueueDown,
    QueueEnd,
    QueueFailed,
    QueueUp,
    QueueWasFull,
    RouterUnreachable,
    ServiceAll,
    ServiceDown,
    ServiceEnd,
    ServiceLost,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.service_decisions import DriftKind
from syncline.errors import LinkLostError, QueueExistsError, StoreFullError
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Ack, Nsubs, Send, Sub, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Msg, Sok
from tests.unit.client.smp.agent_rig import Rig
from tests.unit.client.smp.fake_router import ADDRESS, TIME_S, settled


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---------------------------------------------------------------------------------------- the usual


async def test_queue_of_a_service_is_associated_as_it_is_made(rig: Rig) -> None:
    async with rig.agent() as agent:
        queue = await agent.create_queue(rig.account, "inbox")
        assert queue.is_associated
        assert rig.router.link.words() == ["SUBS", "NEW"]
        rig.check_sets()
        await rig.check_delivery([queue])
        with pytest.raises(QueueExistsError):
            await agent.create_queue(rig.account, "inbox")


async def test_restart_subscribes_everything_with_one_command(rig: Rig) -> None:
    queues = await rig.prepared()
    for queue in queues:
        rig.router.send(queue.recipient_id, b"waiting")
    async with rig.agent():
        assert rig.router.link.words() == ["SUBS"]
        [up] = rig.told(ServiceUp)
        assert (up.sub.count, up.drift) == (3, None)
        assert rig.bodies() == [b"waiting"] * 3
        assert isinstance(rig.events[-1], ServiceAll)


async def test_without_services_each_queue_is_subscribed(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared()
    async with rig.agent():
        assert rig.router.logins[-1] is None
        assert rig.router.link.words() == ["SUB"] * 3
        [up] = rig.told(QueueUp)
        assert set(up.queues) == {queue.recipient_id for queue in queues}
        await rig.check_delivery(queues)


async def test_many_queues_are_subscribed_page_by_page(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False, page_count=2)
    queues = await rig.prepared(7)
    async with rig.agent():
        assert [len(up.queues) for up in rig.told(QueueUp)] == [2, 2, 2, 1]
        rig.router.link.drop()
        await settled()
        await rig.time.advance(1)
        assert [len(up.queues) for up in rig.told(QueueUp)] == [2, 2, 2, 1] * 2
        await rig.check_delivery(queues)


async def test_users_have_their_own_service_and_connection(rig: Rig) -> None:
    async with rig.agent() as agent:
        ann, bob = await agent.account("ann", ADDRESS), await agent.account("bob", ADDRESS)
        await agent.create_queue(ann, "inbox")
        await agent.create_queue(bob, "inbox")
        assert len(rig.router.links) == len(rig.router.services) == 2


async def test_deleted_queue_is_gone_on_both_sides(rig: Rig) -> None:
    [one, two] = await rig.prepared(2)
    async with rig.agent() as agent:
        await agent.delete_queue(one)
        assert set(rig.router.queues) == {two.recipient_id}
        assert rig.store.queue(rig.account, one.recipient_id) is None
        rig.check_sets()
        rig.router.queues.pop(two.recipient_id)
        await agent.delete_queue(two)
        assert not rig.store.has_queues(rig.account)


async def test_sending_goes_over_the_same_account(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        await agent.send(rig.account, queue.sender_id, b"hello")
        await settled()
        assert rig.bodies() == [b"hello"]


# ---------------------------------------------------------------------------- routers that are away


async def test_router_that_is_down_at_the_start_is_tried_until_it_answers(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.is_down = True
    async with rig.agent():
        waits = []
        for _ in range(4):
            waits += rig.time.naps_s
            await rig.time.advance(waits[-1])
        assert waits == [0.5, 1.0, 2.0, 4.0]
        assert [event.retry_s for event in rig.told(RouterUnreachable)] == [*waits, 8.0]
        rig.router.is_down = False
        await rig.time.advance(8.0)
        assert rig.told(ServiceUp)
        await rig.check_delivery(queues)


async def test_wait_for_a_router_is_bounded_and_can_be_cut_short(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.is_down = True
    async with rig.agent() as agent:
        for _ in range(20):
            await rig.time.advance(60)
        assert max(event.retry_s for event in rig.told(RouterUnreachable)) == 60.0
        rig.router.is_down = False
        agent.hurry()
        await settled()
        await rig.check_delivery(queues)


async def test_lost_connection_is_told_and_made_again_service_first(rig: Rig) -> None:
    queues = await rig.prepared()
    # One that the service does not have yet.
    rig.store.dissociate(rig.account, [queues[0].recipient_id])
    rig.router.drop_associations(queues[0].recipient_id)
    async with rig.agent():
        rig.router.link.drop()
        await settled()
        [down] = rig.told(ServiceDown)
        assert down.sub.count == 3
        await rig.time.advance(1)
        assert len(rig.router.links) == 3
        assert rig.router.link.words()[0] == "SUBS"
        await rig.check_delivery(queues)


async def test_plain_queues_are_told_down_and_up(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared()
    ids = tuple(sorted(queue.recipient_id for queue in queues))
    async with rig.agent():
        rig.events.clear()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert [type(event) for event in rig.events] == [QueueDown, RouterUnreachable, QueueUp]
        assert rig.events[0] == QueueDown(rig.account, ids)


async def test_steady_connection_is_made_again_at_once(rig: Rig) -> None:
    await rig.prepared(1)
    async with rig.agent():
        await rig.time.advance(11)
        rig.router.link.drop()
        await settled()
        assert len(rig.told(ServiceUp)) == 2
        assert not rig.told(RouterUnreachable)


async def test_disconnect_between_the_bulk_subscription_and_its_answer(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.withheld = {Subs}
    async with rig.agent():
        assert rig.router.link.words() == ["SUBS"]
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.link.words() == ["SUBS"]
        assert not rig.told(ServiceUp)
        rig.router.withheld = set()
        rig.router.link.answer_waiting()
        await settled()
        assert len(rig.told(ServiceUp)) == 1
        await rig.check_delivery(queues)


async def test_bulk_subscription_without_an_answer_is_tried_on_another_connection(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.withheld = {Subs}
    async with rig.agent():
        rig.router.link.time_out_waiting()
        rig.router.withheld = set()
        await settled()
        assert not rig.router.links[-1].is_open
        await rig.time.advance(1)
        assert rig.told(ServiceUp)
        await rig.check_delivery(queues)


async def test_commands_are_held_until_the_service_is_settled(rig: Rig) -> None:
    [queue, *_] = await rig.prepared()
    rig.router.withheld = {Subs}
    async with rig.agent() as agent:
        sending = asyncio.create_task(agent.send(rig.account, queue.sender_id, b"hello"))
        creating = asyncio.create_task(agent.create_queue(rig.account, "another"))
        await settled()
        assert rig.router.link.words() == ["SUBS"]
        rig.router.link.answer_waiting()
        await asyncio.gather(sending, creating)
        assert rig.router.link.words()[0] == "SUBS"
        assert set(rig.router.link.words()) == {"SUBS", "SEND", "NEW"}
        rig.check_sets()


async def test_command_does_not_wait_for_ever(rig: Rig) -> None:
    rig.options = AgentOptions(command_wait_s=0.01)
    rig.router.is_down = True
    async with rig.agent() as agent:
        with pytest.raises(LinkLostError, match="nobody is there"):
            await agent.create_queue(rig.account, "inbox")


# -------------------------------------------------------------------------------------- the service


async def test_changed_service_is_associated_again_at_the_start(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.forget_services()
    async with rig.agent():
        assert [event.reason for event in rig.told(ServiceLost)] == [
            "the router knows us as another service"
        ]
        assert rig.router.link.words() == ["SUBS", "SUB", "SUB", "SUB"]
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_changed_service_is_associated_again_after_a_reconnect(rig: Rig) -> None:
    queues = await rig.prepared()
    async with rig.agent():
        rig.router.forget_services()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert len(rig.told(ServiceLost)) == 1
        rig.check_sets()
        await rig.check_delivery(queues)
        # And the next time all is as usual.
        rig.router.link.drop()
        await rig.time.advance(2)
        assert rig.router.link.words() == ["SUBS"]
        assert rig.told(ServiceUp)[-1].drift is None


async def test_router_without_services_gets_plain_subscriptions_and_its_services_back(
    rig: Rig,
) -> None:
    queues = await rig.prepared()
    credentials = rig.store.service(rig.account).credentials
    rig.router.version = 18
    async with rig.agent():
        assert len(rig.told(ServiceLost)) == 1
        assert rig.router.link.words() == ["SUB"] * 3
        assert rig.store.service(rig.account).digest.count == 0
        await rig.check_delivery(queues)
        rig.router.version = 20
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.link.words() == ["SUBS", "SUB", "SUB", "SUB"]
        rig.check_sets()
        assert rig.store.service(rig.account).credentials == credentials


async def test_refused_service_is_replaced_by_plain_subscriptions(rig: Rig) -> None:
    queues = await rig.prepared()
    credentials = rig.store.service(rig.account).credentials
    rig.router.service_refusal = "HANDSHAKE BAD_SERVICE"
    async with rig.agent():
        assert [event.reason for event in rig.told(ServiceLost)] == ["HANDSHAKE BAD_SERVICE"]
        assert [login is None for login in rig.router.logins[-2:]] == [False, True]
        assert rig.router.link.words() == ["SUB"] * 3
        await rig.check_delivery(queues)
        # Not offered again at once, but later, with new credentials.
        rig.router.service_refusal = None
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.logins[-1] is None
        await rig.time.advance(3_600)
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.link.words() == ["SUBS", "SUB", "SUB", "SUB"]
        rig.check_sets()
        found = rig.store.service(rig.account).credentials
        assert found is not None
        assert found != credentials


@pytest.mark.parametrize("command", [Subs, Sub])
async def test_service_refused_by_a_command_is_given_up(
    rig: Rig, command: type[Subs | Sub]
) -> None:
    queues = await rig.prepared()
    if command is Sub:
        rig.router.forget_services()
    rig.router.failures = {command: failures.SERVICE}
    async with rig.agent():
        [lost] = [e for e in rig.told(ServiceLost) if "SERVICE" in e.reason]
        assert lost.account == rig.account
        rig.router.failures = {}
        await rig.time.advance(1)
        assert rig.router.logins[-1] is None
        await rig.check_delivery(queues)


async def test_other_failure_of_the_bulk_subscription_is_tried_again(rig: Rig) -> None:
    queues = await rig.prepared()
    rig.router.failures = {Subs: failures.INTERNAL}
    async with rig.agent():
        assert not rig.told(ServiceLost)
        rig.router.failures = {}
        await rig.time.advance(1)
        assert rig.told(ServiceUp)[-1].drift is None
        await rig.check_delivery(queues)


@pytest.mark.parametrize("kind", list(DriftKind))
async def test_drift_is_told_and_repaired(rig: Rig, kind: DriftKind) -> None:
    queues = await rig.prepared()
    ids = [queue.recipient_id for queue in queues]
    if kind is DriftKind.LOST:
        rig.router.drop_associations()
    elif kind is DriftKind.COUNT:
        rig.router.drop_associations(ids[0])
    else:
        # The router has another in place of it, which we had once and have no more.
        rig.router.drop_associations(ids[0])
        rig.store.dissociate(rig.account, [ids[1]])
        rig.store.associate(rig.account, [ids[0]])
    async with rig.agent():
        ups = rig.told(ServiceUp)
        assert ups[0].drift is not None
        assert ups[0].drift.kind is kind
        assert (ups[-1].drift, ups[-1].sub.count) == (None, 3)
        rig.check_sets()
        await rig.check_delivery(queues)


async def test_drift_without_a_hash_is_seen_by_the_count(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    notifier = replace(rig.account, role=ServiceRole.NOTIFIER)
    rig.router.version = 18
    async with rig.agent() as agent:
        credentials = await agent.add_notifier(queue)
        await agent.follow_notifier(notifier, credentials.notifier_id, credentials.key)
        await settled()
        link = rig.router.link
        assert (link.service is not None, link.words()) == (True, ["NSUBS", "NSUB"])
        assert link.commands[0][0] == Nsubs()


async def test_queues_that_only_the_router_knows_are_told_but_not_chased(rig: Rig) -> None:
    queues = await rig.prepared()
    # Restored from a backup: one is at the router that the store does not know.
    rig.store.forget(rig.account, queues[2].recipient_id)
    async with rig.agent():
        words = rig.router.link.words()
        assert words == ["SUBS", "SUB", "SUB", "SUBS"]
        ups = rig.told(ServiceUp)
        assert [up.drift and up.drift.kind for up in ups] == [DriftKind.COUNT, DriftKind.COUNT]
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.link.words() == ["SUBS"], "nothing new has drifted"
        assert rig.told(ServiceUp)[-1].drift is not None
        # Something new has.
        rig.router.drop_associations(queues[0].recipient_id)
        rig.router.link.drop()
        await rig.time.advance(2)
        assert "SUB" in rig.router.link.words()
        await rig.check_delivery(queues[:2])


async def test_message_of_an_unknown_queue_is_left_alone(rig: Rig) -> None:
    [known, unknown] = await rig.prepared(2)
    rig.store.forget(rig.account, unknown.recipient_id)
    async with rig.agent():
        rig.router.send(unknown.recipient_id, b"for nobody")
        await rig.check_delivery([known])


async def test_answer_lost_after_association_is_made_good(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared()
    rig.options = AgentOptions()
    rig.router.withheld = {Sub}
    async with rig.agent():
        # The router has done the first one, and its answer is lost.
        link = rig.router.link
        request, _ = link.waiting[0]
        rig.router.handle(link, request)
        link.drop()
        rig.router.withheld = set()
        await rig.time.advance(1)
        assert rig.told(ServiceUp)[-1].drift is None
        rig.check_sets()
        await rig.check_delivery(queues)


# ----------------------------------------------------------------------------------------- takeover


async def test_service_taken_over_is_left_alone_until_it_is_wanted_back(rig: Rig) -> None:
    queues = await rig.prepared()
    async with rig.agent() as agent:
        service_id = rig.store.service(rig.account).service_id
        assert service_id is not None
        shown = rig.router.send(queues[0].recipient_id, b"shown before")
        await settled()
        rig.router.take_service(service_id)
        await settled()
        [end] = rig.told(ServiceEnd)
        assert (end.sub.service_id, end.sub.count) == (service_id, 3)
        # Neither now nor after a reconnect.
        rig.router.link.drop()
        for _ in range(5):
            await rig.time.advance(60)
        assert len(rig.router.links) == 2
        assert rig.store.service(rig.account).digest.count == 3, "the associations are not lost"

        await agent.subscribe(rig.account)
        await settled()
        assert len(rig.router.links) == 3
        await rig.check_delivery(queues[1:])
        # It was delivered again, and not shown again.
        assert rig.bodies().count(b"shown before") == 1
        assert rig.router.queues[queues[0].recipient_id].delivered == shown
        [message] = [e for e in rig.told(MessageReceived) if e.message_id == shown]
        await agent.acknowledge(message)
        await settled()
        assert not rig.router.queues[queues[0].recipient_id].messages


async def test_wanting_back_a_service_takes_a_new_connection(rig: Rig) -> None:
    # One that was displaced may be refused its own service for as long as it lasts.
    await rig.prepared(1)
    async with rig.agent() as agent:
        service_id = rig.store.service(rig.account).service_id
        assert service_id is not None
        rig.router.take_service(service_id)
        await settled()
        displaced = rig.router.link
        await agent.subscribe(rig.account)
        await rig.time.advance(1)
        assert not displaced.is_open
        assert rig.router.link.words() == ["SUBS"]
        assert rig.told(ServiceUp)[-1].drift is None


async def test_single_queue_taken_over_can_be_wanted_back(rig: Rig) -> None:
    queues = await rig.prepared()
    taken = queues[1].recipient_id
    async with rig.agent() as agent:
        rig.router.take_queue(taken)
        await settled()
        assert rig.told(QueueEnd) == [QueueEnd(rig.account, taken)]
        rig.check_sets()
        rig.router.send(taken, b"not for us")
        await settled()
        assert rig.bodies() == []
        await agent.subscribe_queues(rig.account, [taken])
        await settled()
        assert rig.bodies() == [b"not for us"]
        rig.check_sets()


async def test_queue_deleted_by_the_operator_is_forgotten(rig: Rig) -> None:
    queues = await rig.prepared()
    async with rig.agent():
        rig.router.delete(queues[1].recipient_id)
        await settled()
        assert rig.told(QueueDeleted) == [QueueDeleted(rig.account, queues[1].recipient_id)]
        rig.check_sets()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.told(ServiceUp)[-1].drift is None


async def test_ends_that_came_last_are_not_lost_with_the_connection(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared(2)
    async with rig.agent():
        rig.router.delete(queues[0].recipient_id)
        rig.router.link.drop()
        await settled()
        assert len(rig.told(QueueDeleted)) == 1


# ----------------------------------------------------------------------------------------- failures


async def test_queue_that_the_router_does_not_know_is_told_once(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared()
    del rig.router.queues[queues[0].recipient_id]
    async with rig.agent():
        [failed] = rig.told(QueueFailed)
        assert (failed.queue, failed.failure) == (queues[0].recipient_id, failures.AUTH)
        assert failed.is_final
        await rig.check_delivery(queues[1:])
        rig.router.link.drop()
        await rig.time.advance(1)
        assert len(rig.told(QueueFailed)) == 1


async def test_temporary_failure_is_tried_again(rig: Rig) -> None:
    rig.options = AgentOptions(uses_services=False)
    queues = await rig.prepared()
    rig.router.failures = {queues[0].recipient_id: failures.store("the disk is busy")}
    async with rig.agent():
        await rig.time.advance(0.5)
        await rig.time.advance(1.0)
        found = rig.told(QueueFailed)
        assert [event.is_final for event in found] == [False] * 3
        rig.router.failures = {}
        await rig.time.advance(2.0)
        assert rig.router.link.is_open
        await rig.check_delivery(queues)


async def test_subscription_without_an_answer_is_asked_again_and_a_late_answer_counts(
    rig: Rig,
) -> None:
    rig.options = AgentOptions(uses_services=False)
    [one, two] = await rig.prepared(2)
    rig.router.withheld = {Sub}
    async with rig.agent() as agent:
        link = rig.router.link
        for _ in range(2):
            link.time_out_waiting()
            await settled()
        session = agent.session(rig.account)
        assert session is not None
        assert session.subscriptions.pending_count == 2
        link.tell(one.recipient_id, Sok(), is_late=True)
        await settled()
        assert session.subscriptions.is_active(one.recipient_id)
        rig.router.withheld = set()
        await rig.time.advance(1)
        asked = [entity for command, entity in link.commands if isinstance(command, Sub)]
        assert asked[2:] == [two.recipient_id]


async def test_full_store_ends_the_agent_and_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.options = AgentOptions(uses_services=False)
    await rig.prepared()

    def fail(*_: object) -> None:
        raise StoreFullError("agent.sqlite")

    monkeypatch.setattr(rig.store, "unassociated", fail)
    with pytest.raises(StoreFullError):
        await _read_all(rig)


async def _read_all(rig: Rig) -> None:
    async with rig.agent(reads=False) as agent:
        async for _ in agent:
            pass


# ----------------------------------------------------------------------------------------- messages


async def test_message_is_acknowledged_only_when_the_application_says_so(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        rig.router.send(queue.recipient_id, b"two")
        await settled()
        [message] = rig.told(MessageReceived)
        assert (message.body, message.time_s, message.wants_notification) == (b"one", TIME_S, True)
        assert "ACK" not in rig.router.link.words()
        await agent.acknowledge(message)
        await settled()
        # The next one comes as the answer.
        assert rig.bodies() == [b"one", b"two"]
        await agent.acknowledge(message)
        await settled()
        assert rig.bodies() == [b"one", b"two"], "twice does no harm"


async def test_unacknowledged_message_is_shown_once_over_a_reconnect(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        await settled()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.router.queues[queue.recipient_id].delivered is not None
        assert rig.bodies() == [b"one"]
        [message] = rig.told(MessageReceived)
        await agent.acknowledge(message)
        await settled()
        assert not rig.router.queues[queue.recipient_id].messages


async def test_unacknowledged_message_is_shown_again_after_a_crash(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    for _ in range(2):
        async with rig.agent():
            if not rig.router.queues[queue.recipient_id].messages:
                rig.router.send(queue.recipient_id, b"one")
            await settled()
            assert rig.bodies() == [b"one"]


async def test_message_done_while_the_router_was_away_is_not_shown_again(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        rig.router.send(queue.recipient_id, b"two")
        await settled()
        [message] = rig.told(MessageReceived)
        rig.router.is_down = True
        rig.router.link.drop()
        await settled()
        await agent.acknowledge(message)
    rig.router.is_down = False
    # A crash in between does not matter: it was durable.
    async with rig.agent():
        assert rig.bodies() == [b"two"]
        assert rig.router.link.words() == ["SUBS", "ACK"]


async def test_acknowledgement_whose_answer_is_lost_is_made_again(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        await settled()
        rig.router.withheld = {Ack}
        await agent.acknowledge(rig.told(MessageReceived)[0])
        await settled()
        rig.router.withheld = set()
        rig.router.link.drop()
        await rig.time.advance(1)
        assert rig.bodies() == [b"one"]
        assert not rig.router.queues[queue.recipient_id].messages


async def test_late_answer_of_an_acknowledgement_is_a_message(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        rig.router.send(queue.recipient_id, b"two")
        await settled()
        rig.router.withheld = {Ack}
        await agent.acknowledge(rig.told(MessageReceived)[0])
        link = rig.router.link
        request, _ = link.waiting[0]
        link.time_out_waiting()
        await settled()
        answer = rig.router.handle(link, request)
        assert isinstance(answer, Msg)
        link.tell(queue.recipient_id, answer, is_late=True)
        await settled()
        assert rig.bodies() == [b"one", b"two"]


async def test_acknowledgements_of_one_turn_share_a_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = await rig.prepared()
    async with rig.agent() as agent:
        for queue in queues:
            rig.router.send(queue.recipient_id, b"one")
        await settled()
        saved: list[int] = []
        save = rig.store.save_done

        def count_and_save(done: list[tuple[Account, bytes, bytes]]) -> None:
            saved.append(len(done))
            save(done)

        monkeypatch.setattr(rig.store, "save_done", count_and_save)
        await asyncio.gather(*map(agent.acknowledge, rig.told(MessageReceived)))
        assert saved == [3]


async def test_store_that_cannot_save_does_not_acknowledge(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.send(queue.recipient_id, b"one")
        await settled()

        def fail(_: object) -> None:
            raise StoreFullError("agent.sqlite")

        monkeypatch.setattr(rig.store, "save_done", fail)
        with pytest.raises(StoreFullError):
            await agent.acknowledge(rig.told(MessageReceived)[0])
        await settled()
        assert "ACK" not in rig.router.link.words()


async def test_damaged_message_can_be_acknowledged(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        fake = rig.router.queues[queue.recipient_id]
        secret, fake.secret = fake.secret, b"x" * 32
        rig.router.send(queue.recipient_id, b"one")
        await settled()
        [damaged] = rig.told(MessageDamaged)
        fake.secret = secret
        rig.router.send(queue.recipient_id, b"two")
        await agent.acknowledge(damaged)
        await settled()
        assert rig.bodies() == [b"two"]


async def test_full_queue_is_told_and_emptied(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent():
        rig.router.send(queue.recipient_id, b"", is_quota=True)
        await settled()
        assert rig.told(QueueWasFull) == [QueueWasFull(rig.account, queue.recipient_id, TIME_S)]
        assert not rig.router.queues[queue.recipient_id].messages


async def test_slow_application_is_not_overrun(rig: Rig) -> None:
    rig.options = AgentOptions(message_count_max=2, event_count_max=3)
    queues = await rig.prepared(6)
    async with rig.agent(reads=False) as agent:
        for queue in queues:
            rig.router.send(queue.recipient_id, b"one")
        await settled()
        assert len(agent._inbox) <= 2 + 3
        # What the application waits for does not depend on its reading.
        await agent.send(rig.account, queues[0].sender_id, b"two")
        found: list[AgentEvent] = []
        async for event in agent:
            found.append(event)
            if sum(isinstance(each, MessageReceived) for each in found) == 6:
                break
        assert len({each.queue for each in found if isinstance(each, MessageReceived)}) == 6


async def test_message_not_shown_when_the_link_ends_is_shown_later(rig: Rig) -> None:
    rig.options = AgentOptions(message_count_max=1)
    queues = await rig.prepared(3)
    async with rig.agent(reads=False) as agent:
        for queue in queues:
            rig.router.send(queue.recipient_id, b"one")
        await settled()
        rig.router.link.drop()
        await rig.time.advance(1)
        found: set[bytes] = set()
        async for event in agent:
            if isinstance(event, MessageReceived):
                assert event.queue not in found
                found.add(event.queue)
                if len(found) == 3:
                    break


async def test_oldest_events_are_left_out_and_that_is_told(rig: Rig) -> None:
    rig.options = AgentOptions(event_count_max=2)
    await rig.prepared(1)
    async with rig.agent(reads=False) as agent:
        for _ in range(3):
            rig.router.link.drop()
            await rig.time.advance(60)
        events = aiter(agent)
        found = [await anext(events) for _ in range(3)]
        assert isinstance(found[0], EventsMissed)
        assert found[0].count > 2
        assert isinstance(found[-1], ServiceAll)


async def test_messages_that_the_link_left_out_are_asked_for_again(rig: Rig) -> None:
    queues = await rig.prepared(2)
    async with rig.agent():
        link = rig.router.link
        left_out = queues[1].recipient_id
        fake = rig.router.queues[left_out]
        service_id, fake.service_id = fake.service_id, None
        rig.router.send(left_out, b"left out")
        fake.service_id = service_id
        link.missed = {left_out}
        rig.router.send(queues[0].recipient_id, b"one")
        await settled()
        assert rig.bodies() == [b"one", b"left out"]


# ---------------------------------------------------------------------------------------- notifiers


async def test_notifications_are_followed_by_a_service_of_their_own(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    notifier = replace(rig.account, role=ServiceRole.NOTIFIER)
    async with rig.agent() as agent:
        credentials = await agent.add_notifier(queue)
        stored = rig.store.queue(rig.account, queue.recipient_id)
        assert stored is not None
        assert stored.notifier == credentials
        await agent.follow_notifier(notifier, credentials.notifier_id, credentials.key)
        await settled()
        assert rig.router.link.words() == ["NSUBS", "NSUB"]
        rig.router.send(queue.recipient_id, b"one")
        await settled()
        [told] = rig.told(NotificationReceived)
        assert (told.account, told.notifier) == (notifier, credentials.notifier_id)
        with pytest.raises(ValueError, match="role of a notifier"):
            await agent.follow_notifier(rig.account, credentials.notifier_id, credentials.key)
    async with rig.agent():
        words = sorted(tuple(link.words()) for link in rig.router.links[-2:])
        assert words == [("NSUBS",), ("SUBS",)]
        assert [up.drift for up in rig.told(ServiceUp)] == [None, None]
        assert rig.store.service(notifier).digest.count == 1


async def test_failure_of_a_command_is_the_callers(rig: Rig) -> None:
    [queue] = await rig.prepared(1)
    async with rig.agent() as agent:
        rig.router.failures = {Send: failures.QUOTA}
        with pytest.raises(FailureError, match="QUOTA"):
            await agent.send(rig.account, queue.sender_id, b"hello")
        assert rig.router.link.is_open


async def test_agent_that_does_not_subscribe_waits_to_be_told(rig: Rig) -> None:
    queues = await rig.prepared()
    before = len(rig.router.links)
    async with rig.agent(subscribes=False) as agent:
        assert len(rig.router.links) == before
        await agent.subscribe(rig.account)
        await settled()
        await rig.check_delivery(queues)
