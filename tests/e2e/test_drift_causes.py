"""What makes the queues of a service differ between an agent and a router, one cause after another.

Routers are processes of their own and agents have their store in a file. Each test ends with the
same set of ids on both sides, counted from the ids, with digests that are right, and with every
message delivered that was sent to a queue that is still there.
"""

import asyncio
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from syncline.client.smp import queues
from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    MessageReceived,
    QueueEnd,
    QueueFailed,
    QueueUp,
    ServiceDown,
    ServiceLost,
    ServiceRepaired,
    ServiceUp,
)
from syncline.client.smp.agent_records import StoredQueue
from syncline.client.smp.linking import connecting
from syncline.errors import SynclineError
from syncline.links.smp_link import LinkOptions, SmpLink
from syncline.values.queue_records import ServiceRole
from tests.e2e.drift_rig import HASTY, Line, Party, Site, check_equal, ids_of
from tests.e2e.router_process import run_cli

# Processes are started, on machines that have other things to do as well.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with closing(Site(tmp_path_factory.mktemp("drift") / "data")) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """For tests that have a service of their own there, as all have."""
    if not shared_site.is_running:
        shared_site.start()
    return shared_site


@pytest.fixture
def party(site: Site, tmp_path: Path) -> Generator[Party]:
    party = Party(site.address, tmp_path / "agent.sqlite")
    yield party
    party.store.close()


async def made(party: Party, count: int) -> list[StoredQueue]:
    """By an agent that is gone afterwards."""
    async with party.agent() as agent:
        return await party.make(agent, count)


def repaired(party: Party) -> tuple[int, int, int, int]:
    """Associated again, removed, kept and failed, by the only repair that there was."""
    [told] = party.all_told(ServiceRepaired)
    assert told.repaired.is_equal
    counts = told.repaired
    return (
        counts.associated_count,
        counts.dissociated_count,
        counts.kept_count,
        counts.failed_count,
    )


# -------------------------------------------------------------------------------- answers are lost


async def test_answers_to_subscriptions_are_lost(site: Site, tmp_path: Path) -> None:
    line = Line(site)
    async with line.laid() as address:
        party = Party(address, tmp_path / "agent.sqlite")
        async with party.agent() as agent:
            all_queues = await party.make(agent, 6)
            lost = all_queues[:4]
            await take_out(party, site, lost)
            # The router has them again, and nobody here knows.
            line.mute()
            await agent.subscribe_queues(party.account, [each.recipient_id for each in lost])
            await site.until_it_has(party.service_id(), 6)
            assert len(party.ids(party.account)) == 2
            line.cut()
            await party.told(ServiceRepaired)
            assert repaired(party) == (0, 0, 4, 0)
            await party.check_delivery(agent, all_queues)
            check_equal(party, site, ids_of(all_queues))
        party.store.close()


async def take_out(party: Party, site: Site, taken: list[StoredQueue]) -> None:
    """Of the service, by a connection without one."""
    link = await SmpLink.connect(site.address)
    for queue in taken:
        await queues.subscribe(link, queue)
    await party.told(QueueEnd, len(taken))
    await link.close()


async def test_answer_to_a_new_queue_is_lost(site: Site, tmp_path: Path) -> None:
    line = Line(site)
    async with line.laid() as address:
        party = Party(address, tmp_path / "agent.sqlite")
        async with party.agent() as agent:
            all_queues = await party.make(agent, 3)
            line.mute()
            creating = asyncio.create_task(agent.create_queue(party.account, "nobody's"))
            await site.until_it_has(party.service_id(), 4)
            line.cut()
            with pytest.raises(SynclineError):
                await creating
            await party.told(ServiceRepaired)
            assert repaired(party) == (0, 1, 0, 0)
            all_queues.append(await agent.create_queue(party.account, "nobody's"))
            await party.check_delivery(agent, all_queues)
            check_equal(party, site, ids_of(all_queues))
        party.store.close()


async def test_answer_to_a_deletion_is_lost(site: Site, tmp_path: Path) -> None:
    line = Line(site)
    async with line.laid() as address:
        party = Party(address, tmp_path / "agent.sqlite")
        async with party.agent() as agent:
            gone, *kept = await party.make(agent, 4)
            line.mute()
            deleting = asyncio.create_task(agent.delete_queue(gone))
            await site.until_it_has(party.service_id(), 3)
            line.cut()
            with pytest.raises(SynclineError):
                await deleting
            await party.told(ServiceRepaired)
            await party.check_delivery(agent, kept)
            check_equal(party, site, ids_of(kept))
            # It is not subscribed, and can be deleted once more.
            assert not party.all_told(QueueFailed)
            await agent.delete_queue(gone)
        party.store.close()


async def test_connection_breaks_again_and_again_while_repairing(
    site: Site, tmp_path: Path
) -> None:
    line = Line(site)
    async with line.laid() as address:
        party = Party(address, tmp_path / "agent.sqlite")
        all_queues = await made(party, 12)
        async with site.stopped():
            site.lose(ids_of(all_queues[:9]))
        async with party.agent(replace(HASTY, page_count=1)) as agent:
            for count in (1, 3, 5):
                await party.told(QueueUp, count)
                # The next one is on its way already.
                line.cut()
                await party.told(ServiceDown, (count + 1) // 2)
            await party.told(ServiceRepaired)
            await party.in_step()
            assert len(party.all_told(ServiceUp)) >= 4
            await party.check_delivery(agent, all_queues)
            check_equal(party, site, ids_of(all_queues))
        party.store.close()


# --------------------------------------------------------------------------- the router's old state


async def test_router_is_restored_from_an_older_backup(tmp_path: Path) -> None:
    with closing(Site(tmp_path / "data")) as site:
        party = Party(site.address, tmp_path / "agent.sqlite")
        async with party.agent() as agent:
            deleted, *old = await party.make(agent, 5, "old")
            await tool("backup", tmp_path / "backup", "--url", site.router.url)
            new = await party.make(agent, 3, "new")
            await agent.delete_queue(deleted)
        await site.stop()
        site.folder = tmp_path / "restored"
        await tool("restore", tmp_path / "backup", site.folder)
        site.start()
        async with party.agent() as agent:
            await party.told(ServiceRepaired)
            # The new ones are no more; the deleted one is there again, and is nobody's.
            assert repaired(party) == (0, 1, 0, 3)
            assert {told.queue for told in party.all_told(QueueFailed)} == ids_of(new)
            await party.check_delivery(agent, old)
            check_equal(party, site, ids_of(old))
        party.store.close()


async def tool(*arguments: str | Path) -> None:
    done = await asyncio.to_thread(run_cli, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("count", [3, 8], ids=["some", "all"])
async def test_router_loses_associations_over_an_older_version(
    site: Site, party: Party, count: int
) -> None:
    all_queues = await made(party, 8)
    async with site.stopped():
        site.lose(ids_of(all_queues[:count]))
    async with party.agent() as agent:
        await party.in_step()
        assert party.all_told(ServiceUp)[0].drift is not None
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))
        assert not party.all_told(QueueFailed)


async def test_router_forgets_the_service_over_an_older_version(site: Site, party: Party) -> None:
    all_queues = await made(party, 8)
    async with site.stopped():
        with site.records() as records:
            records.delete_service(party.service_id())
    async with party.agent() as agent:
        await party.told(ServiceLost)
        await until_up(party, all_queues)
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))
    async with party.agent():
        await party.in_step()
        assert len(party.all_told(ServiceUp)) == 1


async def until_up(party: Party, expected: list[StoredQueue]) -> None:
    def is_up() -> bool:
        up = {each for event in party.all_told(QueueUp) for each in event.queues}
        return ids_of(expected) <= up

    await party.until(is_up)


async def test_router_loses_associations_while_the_agent_stays(site: Site, party: Party) -> None:
    async with party.agent() as agent:
        all_queues = await party.make(agent, 8)
        async with site.stopped():
            site.lose(ids_of(all_queues[:3]))
        agent.hurry()
        await party.told(ServiceRepaired)
        assert repaired(party) == (3, 0, 0, 0)
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))


async def test_plain_router_is_repaired_as_far_as_it_goes(site: Site, party: Party) -> None:
    plain = connecting(LinkOptions(offers_extension=False))
    async with party.agent(connect=plain) as agent:
        all_queues = await party.make(agent, 8)
    async with site.stopped():
        site.lose(ids_of(all_queues[:3]))
    async with party.agent(connect=plain) as agent:
        await party.in_step()
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))
        assert not party.all_told(ServiceRepaired)


# --------------------------------------------------------------------------------------- operators


async def test_operator_deletes_queues_while_the_agent_is_away(site: Site, party: Party) -> None:
    all_queues = await made(party, 6)
    for queue in all_queues[:2]:
        site.delete(queue)
    async with party.agent() as agent:
        await party.told(ServiceRepaired)
        assert repaired(party) == (0, 0, 0, 2)
        assert {told.queue for told in party.all_told(QueueFailed)} == ids_of(all_queues[:2])
        await party.check_delivery(agent, all_queues[2:])
        check_equal(party, site, ids_of(all_queues[2:]))


async def test_operator_blocks_queues_while_the_agent_is_away(site: Site, party: Party) -> None:
    """They stay the service's; those that were lost as well are refused."""
    all_queues = await made(party, 6)
    for queue in all_queues[:3]:
        site.block(queue)
    async with site.stopped():
        site.lose(ids_of(all_queues[:2]))
    async with party.agent() as agent:
        await party.told(ServiceRepaired)
        assert repaired(party) == (0, 0, 0, 2)
        assert {told.queue for told in party.all_told(QueueFailed)} == ids_of(all_queues[:2])
        await party.check_delivery(agent, all_queues[3:])
        check_equal(party, site, ids_of(all_queues[2:]))


# ----------------------------------------------------------------------------------------- digests

HASHES_OF_NOTHING = "md5_high = 0, md5_low = 0, xxh3_high = 0, xxh3_low = 0"
SUMS_OF_NOTHING = "sum_3 = 0, sum_2 = 0, sum_1 = 0, sum_0 = 0"
WRONG_AT_ROUTER = {
    "count": "count = count + 7",
    "hash": "xxh3_low = 12345, md5_high = 54321",
    # The sum alone shows it.
    "sum": "sum_1 = sum_1 + 1",
    "empty": f"count = 0, {HASHES_OF_NOTHING}, {SUMS_OF_NOTHING}",
}


async def test_digest_of_the_router_is_damaged(site: Site, tmp_path: Path) -> None:
    parties = {name: Party(site.address, tmp_path / f"{name}.sqlite") for name in WRONG_AT_ROUTER}
    all_queues = {name: await made(party, 4) for name, party in parties.items()}
    async with site.stopped():
        for name, party in parties.items():
            site.damage(party.service_id(), WRONG_AT_ROUTER[name])
    for name, party in parties.items():
        await check_mended(party, site, all_queues[name])
        party.store.close()
    assert site.mended_count() == len(parties)


async def check_mended(party: Party, site: Site, all_queues: list[StoredQueue]) -> None:
    """The router notices when it is told of another set, and tells nothing that is not so."""
    async with party.agent() as agent:
        await party.in_step()
        assert [up.drift for up in party.all_told(ServiceUp)] == [None]
        check_equal(party, site, ids_of(all_queues))
        await party.check_delivery(agent, all_queues)


WRONG_AT_AGENT = {
    "count": "queue_count = queue_count + 7",
    "hash": "digest = randomblob(48)",
    "sum": "digest = flipped(digest)",
    "empty": "queue_count = 0, digest = zeroblob(48)",
}


@pytest.mark.parametrize("wrong", WRONG_AT_AGENT)
async def test_digest_of_the_agent_is_damaged(site: Site, party: Party, wrong: str) -> None:
    all_queues = await made(party, 4)
    party.damage(WRONG_AT_AGENT[wrong])
    async with party.agent() as agent:
        await party.in_step()
        assert party.all_told(ServiceUp)[0].drift is not None
        check_equal(party, site, ids_of(all_queues))
        await party.check_delivery(agent, all_queues)
        assert not party.all_told(QueueFailed)
    async with party.agent():
        await party.in_step()
        assert len(party.all_told(ServiceUp)) == 1


async def test_both_digests_are_damaged_and_queues_are_lost(site: Site, party: Party) -> None:
    all_queues = await made(party, 6)
    async with site.stopped():
        site.lose(ids_of(all_queues[:2]))
        site.damage(party.service_id(), WRONG_AT_ROUTER["hash"])
    party.damage(WRONG_AT_AGENT["hash"])
    async with party.agent() as agent:
        await party.in_step()
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))


async def test_digest_hides_that_queues_are_lost(site: Site, party: Party) -> None:
    """Who only compares digests sees nothing; the router that compares its own sets does."""
    all_queues = await made(party, 6)
    async with site.stopped():
        with site.keeping_digests():
            site.lose(ids_of(all_queues[:2]))
    async with party.agent():
        await party.in_step()
        assert party.all_told(ServiceUp)[0].drift is None
    async with site.stopped(SYNCLINE_SMP_RECOMPUTE_DIGESTS="true"):
        pass
    async with party.agent() as agent:
        await party.told(ServiceRepaired)
        assert repaired(party) == (2, 0, 0, 0)
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))


async def test_change_is_applied_more_than_once_to_the_digest(site: Site, tmp_path: Path) -> None:
    """Twice is as never for XOR, and three times as once; count and sum know better."""
    parties = {times: Party(site.address, tmp_path / f"{times}.sqlite") for times in (2, 3)}
    all_queues = {times: await made(party, 4) for times, party in parties.items()}
    async with site.stopped():
        for times, party in parties.items():
            for _ in range(times - 1):
                site.apply_again(party.service_id(), all_queues[times][0].recipient_id)
    for times, party in parties.items():
        hashes = party.store.service(party.account).digest.xor_xxh3
        assert (site.kept(party.service_id()).xor_xxh3 == hashes) == (times == 3)
        await check_mended(party, site, all_queues[times])
        party.store.close()
    assert site.mended_count() == len(parties)


# --------------------------------------------------------------------------- the agent's old state


async def test_agent_is_restored_from_an_older_copy(
    site: Site, party: Party, tmp_path: Path
) -> None:
    deleted, *old = await made(party, 5)
    party.copy_to(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await party.make(agent, 3, "new")
        await agent.delete_queue(deleted)
    party.restore_from(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await party.told(ServiceRepaired)
        # The new ones are nobody's; the deleted one is not to be had.
        assert repaired(party) == (0, 3, 0, 1)
        assert {told.queue for told in party.all_told(QueueFailed)} == {deleted.recipient_id}
        await party.check_delivery(agent, old)
        check_equal(party, site, ids_of(old))


async def test_agent_is_restored_from_a_copy_without_a_service(
    site: Site, party: Party, tmp_path: Path
) -> None:
    """Its queues are the service's at the router already, and it has no credentials for that."""
    async with party.agent(replace(HASTY, uses_services=False)) as agent:
        all_queues = await party.make(agent, 5)
    party.copy_to(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await until_up(party, all_queues)
        check_equal(party, site, ids_of(all_queues))
    party.restore_from(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await until_up(party, all_queues)
        await party.check_delivery(agent, all_queues)
        check_equal(party, site, ids_of(all_queues))


# ------------------------------------------------------------------------------------ all the while


@pytest.mark.parametrize("holds_commands", [False, True], ids=["going on", "holding"])
async def test_both_sides_change_while_they_are_repaired(
    site: Site, party: Party, tmp_path: Path, holds_commands: bool
) -> None:
    old = await made(party, 16)
    party.copy_to(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await party.make(agent, 8, "unknown")
    party.restore_from(tmp_path / "copy.sqlite")
    async with site.stopped():
        site.lose(ids_of(old[:8]))
    # Many small steps.
    options = replace(HASTY, holds_commands=holds_commands, page_count=1)
    async with party.agent(options) as agent:
        here = old.copy()
        await change(agent, party, site, here, Random(1))
        await party.told(ServiceRepaired)
        await party.in_step()
        await party.check_delivery(agent, here)
        check_equal(party, site, ids_of(here))
        is_repaired = [isinstance(event, ServiceRepaired) for event in party.events].index(True)
        early = [e for e in party.events[:is_repaired] if isinstance(e, MessageReceived)]
        assert bool(early) != holds_commands
    async with party.agent() as agent:
        await party.in_step()
        assert party.all_told(ServiceUp)[0].drift is None


async def change(
    agent: Agent, party: Party, site: Site, here: list[StoredQueue], random: Random
) -> None:
    """More than while the repair is under way."""
    for number in range(24):
        queue = await agent.create_queue(party.account, f"made meanwhile {number}")
        here.append(queue)
        await party.send(agent, queue)
        if number % 2:
            await agent.delete_queue(await emptied(party, here, random))
        if number % 8 == 1:
            # By an operator; the agent is told.
            await asyncio.to_thread(site.delete, await emptied(party, here, random))


async def emptied(party: Party, here: list[StoredQueue], random: Random) -> StoredQueue:
    """One of them, once all that was sent to it has arrived."""
    queue = here.pop(random.randrange(len(here)))
    await party.until(lambda: all(id_ != queue.recipient_id for id_, _ in party.owed))
    return queue


# --------------------------------------------------------------------------------------- notifiers


def notifiers_of(all_queues: list[StoredQueue]) -> set[bytes]:
    return {queue.notifier.notifier_id for queue in all_queues if queue.notifier}


async def follow(party: Party, agent: Agent, count: int, name: str) -> list[StoredQueue]:
    """New queues whose notifications are followed by a service of their own."""
    all_queues = [
        await agent.create_queue(party.account, f"{name} {n}", has_notifier=True)
        for n in range(count)
    ]
    for queue in all_queues:
        assert queue.notifier is not None
        await agent.follow_notifier(party.notifier, queue.notifier.notifier_id, queue.notifier.key)
    await party.until(lambda: notifiers_of(all_queues) <= party.ids(party.notifier))
    return all_queues


@pytest.mark.parametrize("count", [2, 6], ids=["some", "all"])
async def test_router_loses_associations_of_notifiers(site: Site, party: Party, count: int) -> None:
    async with party.agent() as agent:
        all_queues = await follow(party, agent, 6, "queue")
    async with site.stopped():
        site.lose(notifiers_of(all_queues[:count]), ServiceRole.NOTIFIER)
        site.damage(party.service_id(party.notifier), WRONG_AT_ROUTER["sum"])
    async with party.agent() as agent:
        await party.in_step(party.notifier)
        await party.check_notifications(agent, all_queues)
        check_equal(party, site, notifiers_of(all_queues), party.notifier)
        check_equal(party, site, ids_of(all_queues))


async def test_agent_of_notifiers_is_restored_from_an_older_copy(
    site: Site, party: Party, tmp_path: Path
) -> None:
    async with party.agent() as agent:
        old = await follow(party, agent, 4, "old")
    party.copy_to(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await follow(party, agent, 3, "new")
        await agent.delete_queue(old[0])
    party.restore_from(tmp_path / "copy.sqlite")
    async with party.agent() as agent:
        await party.told(ServiceRepaired, 2)
        failed = {(told.account.role, told.queue) for told in party.all_told(QueueFailed)}
        assert failed == {
            (ServiceRole.MESSAGING, *ids_of(old[:1])),
            (ServiceRole.NOTIFIER, *notifiers_of(old[:1])),
        }
        await party.check_notifications(agent, old[1:])
        check_equal(party, site, notifiers_of(old[1:]), party.notifier)
        check_equal(party, site, ids_of(old[1:]))
