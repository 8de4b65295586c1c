"""`syncline drift` with real routers, their folders, and the store of an agent.

Most verbs run in this process: starting one takes longer than the verb.
"""

import asyncio
import json
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from syncline.cli import drift_agents, drifting
from syncline.cli.output import Output
from syncline.client.smp import Agent, AgentStore, RouterAddress
from syncline.client.smp.agent_events import (
    AgentEvent,
    MessageReceived,
    QueueEnd,
    ServiceDown,
    ServiceEnd,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.linking import connecting
from syncline.core.reconciliation.initiator import ROUND_TRIP_COUNT_MAX, Mode
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkOptions, SmpLink
from syncline.wire.smp.commands import Bus
from tests.e2e.router_process import RouterProcess, run_cli, running
from tests.reconciliation import random_ids

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30.0


def verb(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """In a process of its own."""
    return run_cli("drift", *arguments)


def facts(code: int, *arguments: str | Path) -> dict[str, Any]:
    """Of the only two sets that were compared."""
    result = CliRunner().invoke(drifting.app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, (result.output, result.exception)
    [row] = json.loads(result.stdout)["compared"]
    return cast("dict[str, Any]", row)


def text_of(queue: StoredQueue) -> str:
    return urlsafe_b64encode(queue.recipient_id).decode()


def delete(router: RouterProcess, queue: StoredQueue) -> None:
    assert router.client.delete(f"/api/smp/queues/{text_of(queue)}").status_code == 204


def made(store: Path, router: RouterProcess, names: Sequence[str]) -> list[StoredQueue]:
    """Queues of one service, of an agent that has gone."""

    async def make() -> list[StoredQueue]:
        with closing(AgentStore(store)) as opened:
            async with Agent(opened) as agent:
                account = await agent.account("me", address_of(router))
                return [await agent.create_queue(account, name) for name in names]

    return asyncio.run(make())


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


async def until(agent: Agent, wanted: Callable[[AgentEvent], bool]) -> list[AgentEvent]:
    seen: list[AgentEvent] = []
    async with asyncio.timeout(WAIT_S):
        async for event in agent:
            seen.append(event)
            if isinstance(event, MessageReceived):
                await agent.acknowledge(event)
            if wanted(event):
                return seen
    raise AssertionError("the agent ended")


def test_a_store_is_compared_beside_its_agent_and_repaired_without(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    with running(tmp_path / "data") as router:
        queues = made(path, router, [f"queue {number}" for number in range(12)])
        assert facts(0, "check", "--store", path)["equal"]
        with closing(AgentStore(path)) as store:
            [account] = store.accounts()
            # An answer that was lost, a store that forgot, a queue that an operator deleted.
            store.dissociate(account, [queues[0].recipient_id])
            store.forget(account, queues[1].recipient_id)
        delete(router, queues[2])

        # As a plain SMP router would have it.
        assert [plain_check(path, subscribes=each) for each in (False, True)] == [2, 1]
        found = facts(1, "check", "--store", path)
        assert found["only_first_ids"] == [text_of(queues[2])]
        assert set(found["only_second_ids"]) == {text_of(queues[0]), text_of(queues[1])}
        # Two as a rule; which cells the few ids fall into is a matter of the salt.
        assert found["round_trips"] <= ROUND_TRIP_COUNT_MAX

        refused = verb("repair", "--store", path)
        assert (refused.returncode, "stop the agent" in refused.stderr) == (2, True)
        planned = facts(1, "repair", "--store", path, "--dry-run")["repair"]
        assert planned["done"]["let_go_of_at_the_router"] == 1
        assert facts(1, "check", "--store", path)["only_second"] == 2

        done = facts(0, "repair", "--store", path, "--subscribe")["repair"]
        assert done["done"] == {
            "associated_at_the_router": 0,
            "let_go_of_at_the_router": 1,
            "associated_in_the_store": 1,
            "refused_by_the_router": 1,
            "let_go_of_in_the_store": 0,
            "digests_repaired": 0,
        }
        assert done["left"]["equal"]
        for mode in ("sketch", "ranges", "plain"):
            equal = facts(0, "check", "--store", path, "--mode", mode)
            assert equal["first_set"]["count"] == 10
        assert plain_check(path, subscribes=True) == 0
        asyncio.run(delivers(path, queues[3:] + queues[:1]))


def plain_check(path: Path, *, subscribes: bool) -> int:
    """The exit code."""
    connect = connecting(LinkOptions(offers_extension=False))
    report = asyncio.run(
        drift_agents.check(
            Output(is_json=True),
            path,
            None,
            None,
            Mode.SKETCH,
            subscribes=subscribes,
            connect=connect,
        )
    )
    return report.exit_code


async def delivers(path: Path, queues: Sequence[StoredQueue]) -> None:
    """An agent meets no drift, and has a message of each queue; a check does not disturb it."""
    with closing(AgentStore(path)) as store:
        async with Agent(store) as agent:
            first = await until(agent, lambda event: isinstance(event, ServiceUp))
            assert isinstance(first[-1], ServiceUp)
            assert first[-1].drift is None
            await asyncio.to_thread(facts, 0, "check", "--store", path)
            account: Account = queues[0].account
            for queue in queues:
                await agent.send(account, queue.sender_id, queue.name.encode())
            left = {queue.name.encode() for queue in queues}

            def is_last(event: AgentEvent) -> bool:
                assert not isinstance(event, ServiceEnd | ServiceDown)
                if isinstance(event, MessageReceived):
                    left.discard(event.body)
                return not left

            await until(agent, is_last)
            # This is what a repair does, and why it has to be said.
            await let_go_of(store, queues[0])
            await until(agent, lambda event: isinstance(event, QueueEnd))
            store.associate(account, [queues[0].recipient_id])
            done = await asyncio.to_thread(facts, 0, "repair", "--store", path, "--subscribe")
            assert done["repair"]["done"]["associated_at_the_router"] == 1
            await until(agent, lambda event: isinstance(event, ServiceEnd))


async def let_go_of(store: AgentStore, queue: StoredQueue) -> None:
    """By another connection of the service."""
    service = store.service(queue.account)
    assert service.credentials is not None
    assert service.service_id is not None
    login = ServiceLogin(service.credentials, queue.account.role)
    link = await SmpLink.connect(store.address(queue.account.server_id), service=login)
    await link.request(Bus((queue.recipient_id,)), service.service_id)
    await link.close()


def test_folders_of_real_routers_are_compared_and_repaired(tmp_path: Path) -> None:
    data, backup, path = tmp_path / "data", tmp_path / "backup", tmp_path / "agent.sqlite"
    with running(data) as router:
        queues = made(path, router, [f"queue {number}" for number in range(8)])
        assert run_cli("backup", backup, "--url", router.url).returncode == 0
        # Beside the router that works there.
        found = facts(0, "check", backup, data)
        assert (found["equal"], found["first_set"]["count"]) == (True, 8)

        later = made(path, router, ["later", "latest"])
        delete(router, queues[0])
        found = facts(1, "check", backup, data)
        assert found["only_first_ids"] == [text_of(queues[0])]
        assert set(found["only_second_ids"]) == set(map(text_of, later))

        refused = verb("repair", backup, data)
        assert (refused.returncode, "is in use by another router" in refused.stderr) == (2, True)
        assert router.stop() == 0

    before = sorted(each.name for each in data.iterdir())
    planned = facts(1, "repair", backup, data, "--dry-run")["repair"]
    assert (planned["done"]["dissociated"], planned["unrepaired"]) == (2, 1)
    assert sorted(each.name for each in data.iterdir()) == before
    done = facts(1, "repair", backup, data)["repair"]
    assert (done["done"]["dissociated"], done["unrepaired_ids"]) == (2, [text_of(queues[0])])
    # The other way round all is there that is needed.
    restored = tmp_path / "restored"
    assert run_cli("restore", backup, restored).returncode == 0
    assert facts(0, "repair", data, restored)["repair"]["left"]["equal"]
    assert facts(0, "check", data, restored)["first_set"]["count"] == 7
    with running(data) as router:
        [service] = router.client.get("/api/services").json()["services"]
        assert service["count"] == 7
        assert router.stop() == 0
    verified = run_cli("verify", data)
    assert verified.returncode == 0, verified.stdout


def test_files_of_ids_are_compared_and_repaired(tmp_path: Path) -> None:
    ids = sorted(random_ids(Random(5), 3_000))
    first, second = tmp_path / "first.ids", tmp_path / "second.bin"
    first.write_text("".join(urlsafe_b64encode(each).decode() + "\n" for each in ids[:2_900]))
    second.write_bytes(b"".join(ids[100:]))
    found = facts(1, "check", first, second)
    assert (found["only_first"], found["only_second"]) == (100, 100)
    assert len(found["only_first_ids"]) == 5
    people = verb("check", first, second)
    assert people.returncode == 1
    # Progress is for those who look.
    assert people.stderr == ""
    assert "the sets are not equal" in people.stdout
    assert verb("repair", first, second).returncode == 0
    assert second.read_bytes() == b"".join(ids[:2_900])
    assert facts(0, "check", first, second)["equal"]
    first.write_text("no id\n")
    refused = verb("repair", first, second, "--json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert json.loads(refused.stderr)["error"] == "ConfigError"
