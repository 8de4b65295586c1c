"""A router that drifted is mended by a plan while its services read, and then nothing differs."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from syncline.certificates import ServiceCredentials, make_service_credentials
from syncline.cli.keeping import repair
from syncline.client.smp import queues
from syncline.client.smp.queues import NewQueue, QueueMessage
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import SmpLink
from syncline.pipeline.jobs.reconcile import ReconcileReport, reconcile
from syncline.pipeline.repair_plan import write_plan
from syncline.pipeline.snapshots import export_snapshot
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import SetHashes
from syncline.values.repairs import with_service
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.bodies import ReceivedMessage
from syncline.wire.smp.commands import Nsub, Nsubs, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import End, Msg, Nmsg, Sok, Soks
from tests.e2e.router_process import RouterProcess, running

WAIT_SECONDS = 60.0
VERB = typer.Typer()
VERB.command()(repair)
M, N = ServiceRole.MESSAGING, ServiceRole.NOTIFIER


def new_credentials() -> ServiceCredentials:
    return make_service_credentials(datetime.now(UTC))


@dataclass
class Member:
    """A service: what it logs in with, its queues, and what its session has heard."""

    role: ServiceRole
    credentials: ServiceCredentials = field(default_factory=new_credentials)
    service_id: bytes = b""
    queues: list[NewQueue] = field(default_factory=list[NewQueue])
    received: Counter[bytes] = field(default_factory=Counter[bytes])
    notified: Counter[bytes] = field(default_factory=Counter[bytes])
    ended: Counter[bytes] = field(default_factory=Counter[bytes])

    @asynccontextmanager
    async def linked(self, router: RouterProcess) -> AsyncGenerator[SmpLink]:
        address = RouterAddress.parse(router.announcement["smp"])
        login = ServiceLogin(self.credentials, self.role)
        link = await SmpLink.connect(address, service=login)
        assert link.service is not None
        self.service_id = link.service.service_id
        try:
            yield link
        finally:
            await link.close()

    async def subscribe(self, link: SmpLink) -> None:
        assert link.service is not None
        kind = Nsubs if self.role is N else Subs
        command = kind(0, bytes(16), SetHashes(bytes(16), bytes(16)))
        answer = await link.request(command, self.service_id, link.service.key)
        assert isinstance(answer, Soks)

    async def read(self, link: SmpLink, known: dict[bytes, NewQueue], heard: asyncio.Event) -> None:
        """Take everything, and acknowledge it, for ever."""
        while True:
            heard.set()
            event = await link.next_event()
            if isinstance(event.message, Msg):
                queue = known[event.entity_id]
                message: QueueMessage | None = queues.opened(queue, event.message)
                while message is not None:
                    message = await self._take(link, queue, message)
            elif isinstance(event.message, Nmsg):
                self.notified[event.entity_id] += 1
            elif isinstance(event.message, End):
                self.ended[event.entity_id] += 1

    async def _take(
        self, link: SmpLink, queue: NewQueue, message: QueueMessage
    ) -> QueueMessage | None:
        try:
            following = await queues.acknowledge(link, queue, message.message_id)
        except FailureError:
            # The queue was taken from it meanwhile: somebody else gets the message.
            return None
        if isinstance(message.content, ReceivedMessage):
            self.received[message.content.body] += 1
        return following


class Traffic:
    """Messages to these queues, round and round, until it is stopped; what was accepted is kept."""

    def __init__(self, link: SmpLink, targets: list[NewQueue]) -> None:
        self._link = link
        self._targets = targets
        self._is_stopped = False
        self.accepted: list[bytes] = []

    async def send_round(self) -> None:
        for queue in self._targets:
            body = b"%d" % len(self.accepted)
            await queues.send(self._link, queue.sender_id, body)
            self.accepted.append(body)

    async def run(self) -> None:
        while not self._is_stopped:
            await self.send_round()
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._is_stopped = True


def notifier_of(queue: NewQueue) -> bytes:
    assert queue.notifier is not None
    return queue.notifier.notifier_id


def set_service(
    records: SqliteRecords, role: ServiceRole, id_: bytes, service: bytes | None
) -> None:
    """Behind the router's back."""
    record = records.by_notifier(id_) if role is N else records.queue(id_)
    assert record is not None
    records.update_queue(with_service(record, role, service))
    commit(records)


async def until(is_so: Callable[[], object], heard: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():
            heard.clear()
            await heard.wait()


async def compared(
    spark: SparkSession, tables: Path, folder: Path, wanted: str
) -> tuple[str, ReconcileReport]:
    """The router as it is now against what is wanted."""
    name = (await asyncio.to_thread(export_snapshot, str(folder), tables)).snapshot
    return name, await asyncio.to_thread(reconcile, spark, tables, name, wanted)


async def repaired(plan: Path, url: str, code: int, *more: str) -> dict[str, Any]:
    """In this process: starting one takes longer than the verb."""
    arguments = ["--plan", str(plan), "--url", url, "--json", *more]
    result = await asyncio.to_thread(CliRunner().invoke, VERB, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


@pytest.mark.timeout(240)
async def test_a_plan_mends_a_router_while_it_serves_and_nothing_differs_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, tables, plan = tmp_path / "data", tmp_path / "tables", tmp_path / "plan.jsonl"
    first, second, notified = Member(M), Member(M), Member(N)
    known: dict[bytes, NewQueue] = {}
    with running(folder) as router:
        async with (
            first.linked(router) as a,
            second.linked(router) as b,
            notified.linked(router) as n,
            plain_link(router) as plain,
        ):
            first.queues = [await queues.create(a) for _ in range(12)]
            second.queues = [await queues.create(b) for _ in range(4)]
            loose = [await queues.create(plain, subscribes=False) for _ in range(2)]
            for _ in range(5):
                queue = await queues.create(plain, subscribes=False, has_notifier=True)
                notified.queues.append(queue)
                assert queue.notifier is not None
                answer = await n.request(Nsub(), notifier_of(queue), queue.notifier.key)
                assert answer == Sok(notified.service_id)
            silent = await queues.create(plain, subscribes=False, has_notifier=True)
            known |= {each.recipient_id: each for each in [*first.queues, *second.queues, *loose]}
        wanted = export_snapshot(str(folder), tables).snapshot
        assert router.stop() == 0

    lost, moved = first.queues[:3], second.queues[0]
    with closing(SqliteRecords.open(str(folder), DiskFiles())) as records:
        for each in lost:
            set_service(records, M, each.recipient_id, None)
        for each in loose:
            set_service(records, M, each.recipient_id, first.service_id)
        set_service(records, M, moved.recipient_id, first.service_id)
        for each in notified.queues[:2]:
            set_service(records, N, notifier_of(each), None)
        set_service(records, N, notifier_of(silent), notified.service_id)

    heard = asyncio.Event()
    with running(folder, SYNCLINE_SMP_QUOTA="32767") as router:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            readers: list[asyncio.Task[None]] = []
            plain = await stack.enter_async_context(plain_link(router))
            for member in (first, second, notified):
                link = await stack.enter_async_context(member.linked(router))
                await member.subscribe(link)
                readers.append(tasks.create_task(member.read(link, known, heard)))
            traffic = Traffic(plain, [*first.queues, *second.queues])
            await traffic.send_round()
            silent_ones = notified.queues[:2]
            for each in silent_ones:
                await queues.send(plain, each.sender_id, b"ring")
            sending = tasks.create_task(traffic.run())

            name, found = await compared(spark, tables, folder, wanted)
            assert (found.missing_count, found.extra_count) == (3 + 1 + 2, 2 + 1 + 1)
            assert await asyncio.to_thread(write_plan, spark, tables, name, wanted, plan) == 10
            nothing = {"associate": 0, "dissociate": 0}
            all_of_it = {"associate": 6, "dissociate": 4}
            asked = await repaired(plan, router.url, 1)
            assert (asked["applied"], asked["done"], asked["refused"]) == (False, all_of_it, 0)
            assert not any(notified.notified[notifier_of(each)] for each in silent_ones)
            done = await repaired(plan, router.url, 0, "--apply")
            assert (done["done"], done["already"]) == (all_of_it, nothing)
            for more in ((), ("--apply",)):
                again = await repaired(plan, router.url, 0, *more)
                assert (again["done"], again["already"]) == (nothing, all_of_it)

            _, left = await compared(spark, tables, folder, wanted)
            assert (left.missing_count, left.extra_count, left.is_new) == (0, 0, True)
            whole = router.client.post("/api/smp/verify").text.splitlines()[-1]
            assert json.loads(whole)["whole"]

            traffic.stop()
            await sending
            # All that was sent to their queues came, also what waited, and each once.
            sent = Counter(traffic.accepted)
            received = [first.received, second.received]
            await until(lambda: sum(each.total() for each in received) >= sent.total(), heard)
            assert first.received + second.received == sent
            bells = [notifier_of(each) for each in silent_ones]
            await until(lambda: all(notified.notified[each] for each in bells), heard)
            assert set(first.ended) == {each.recipient_id for each in [*loose, moved]}
            assert set(notified.ended) == {notifier_of(silent)}
            assert set(second.ended) == set()
            for reader in readers:
                reader.cancel()


@asynccontextmanager
async def plain_link(router: RouterProcess) -> AsyncGenerator[SmpLink]:
    link = await SmpLink.connect(RouterAddress.parse(router.announcement["smp"]))
    try:
        yield link
    finally:
        await link.close()
