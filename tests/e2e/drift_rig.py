"""What end-to-end tests of drift are made of: a router that can be stopped, changed and started
again at the same address, an agent whose store is a file, and a line between them that can be cut.
"""

import asyncio
import shutil
import socket
import sqlite3
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    AgentEvent,
    MessageReceived,
    NotificationReceived,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import Connect
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.digests import SetDigest, digest_of
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.addresses import RouterAddress
from tests.e2e.router_process import RouterProcess

WAIT_S = 20.0
# Nobody waits for a router that is back.
HASTY = AgentOptions(backoff_first_ms=20, backoff_cap_ms=50)

Event = TypeVar("Event", bound=AgentEvent)


def text_of(id_: bytes) -> str:
    return urlsafe_b64encode(id_).decode()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


# -------------------------------------------------------------------------------------- the router


class Site:
    """A router's folder and address, with a router in a process of its own or without one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = str(free_port())
        self._router: RouterProcess | None = None
        self.start()
        self.address = RouterAddress.parse(self.router.announcement["smp"])

    @property
    def router(self) -> RouterProcess:
        assert self._router is not None
        return self._router

    @property
    def is_running(self) -> bool:
        return self._router is not None

    @property
    def database(self) -> Path:
        return self.folder / "records.sqlite"

    def start(self, **settings: str) -> None:
        assert self._router is None
        # Nobody mends digests but whoever notices.
        settings = {"SYNCLINE_SMP_WALK_HOURS": "0"} | settings
        self._router = RouterProcess(self.folder, SYNCLINE_SMP_PORT=self._port, **settings)

    async def stop(self) -> None:
        # Aside, so that agents can say goodbye.
        assert await asyncio.to_thread(self.router.stop) == 0
        self.close()

    def close(self) -> None:
        if self._router is not None:
            self._router.close()
            self._router = None

    @asynccontextmanager
    async def stopped(self, **settings: str) -> AsyncGenerator[None]:
        """For changing its folder. Then it is started, with these settings."""
        await self.stop()
        yield
        self.start(**settings)

    @contextmanager
    def records(self) -> Generator[SqliteRecords]:
        """Of a router that is stopped."""
        records = SqliteRecords.open(str(self.folder), DiskFiles())
        with closing(records):
            yield records
            commit(records)

    def lose(self, ids: Iterable[bytes], role: ServiceRole = ServiceRole.MESSAGING) -> None:
        """Their associations, while the router is stopped."""
        with self.records() as records:
            for each in ids:
                if role is ServiceRole.MESSAGING:
                    record = records.queue(each)
                    assert record is not None
                    assert record.service_id is not None
                    records.update_queue(replace(record, service_id=None))
                else:
                    record = records.by_notifier(each)
                    assert record is not None
                    assert record.notifier is not None
                    notifier = replace(record.notifier, service_id=None)
                    records.update_queue(replace(record, notifier=notifier))

    @contextmanager
    def keeping_digests(self) -> Generator[None]:
        """As they are, whatever becomes of the sets, while the router is stopped."""
        with closing(sqlite3.connect(self.database)) as db:
            names = [row[1] for row in db.execute("PRAGMA table_info(digests)")]
            rows = db.execute("SELECT * FROM digests").fetchall()
        yield
        with closing(sqlite3.connect(self.database)) as db, db:
            marks = ", ".join("?" * len(names))
            db.executemany(f"REPLACE INTO digests ({', '.join(names)}) VALUES ({marks})", rows)

    def damage(self, service_id: bytes, assignments: str) -> None:
        """What is kept of the set of a service, while the router is stopped."""
        change = (
            f"UPDATE digests SET {assignments}"
            " WHERE service = (SELECT number FROM services WHERE service_id = ?)"
        )
        with closing(sqlite3.connect(self.database)) as db, db:
            assert db.execute(change, (service_id,)).rowcount == 1

    def apply_again(self, service_id: bytes, id_: bytes) -> None:
        """To the digest, what was applied when the id came, while the router is stopped."""
        hashes = digest_of([id_])
        words = {
            name: int.from_bytes(part, "big", signed=True)
            for name, part in {
                "md5_high": hashes.xor_md5[:8],
                "md5_low": hashes.xor_md5[8:],
                "xxh3_high": hashes.xor_xxh3[:8],
                "xxh3_low": hashes.xor_xxh3[8:],
            }.items()
        }
        changes = ["count = count + 1"]
        changes += [f"{name} = ({name} | {n}) - ({name} & {n})" for name, n in words.items()]
        for place in range(4):
            part = hashes.xor_xxh3[12 - 4 * place : 16 - 4 * place]
            changes.append(f"sum_{place} = sum_{place} + {int.from_bytes(part)}")
        self.damage(service_id, ", ".join(changes))

    def ids(self, service_id: bytes, role: ServiceRole) -> set[bytes]:
        member, column = {
            ServiceRole.MESSAGING: ("recipient_id", "service"),
            ServiceRole.NOTIFIER: ("notifier_id", "notifier_service"),
        }[role]
        query = (
            f"SELECT {member} FROM queues JOIN services ON queues.{column} = services.number"
            " WHERE service_id = ?"
        )
        with closing(sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True)) as db:
            return {each for (each,) in db.execute(query, (service_id,))}

    def kept(self, service_id: bytes) -> SetDigest:
        answer = self.router.client.get(f"/api/services/{text_of(service_id)}")
        assert answer.status_code == 200, answer.text
        facts = answer.json()
        xor_md5, xor_xxh3, sum128 = (
            bytes.fromhex(facts[name]) for name in ("xor_md5", "xor_xxh3", "sum128")
        )
        return SetDigest(facts["count"], xor_md5, xor_xxh3, sum128)

    def mended_count(self) -> int:
        """Digests, since it was started."""
        count: int = self.router.client.get("/api/smp").json()["drift"]["digests_repaired"]
        return count

    async def until_it_has(self, service_id: bytes, count: int) -> None:
        """It is another process: there is nothing to wait for but its answers."""
        async with asyncio.timeout(WAIT_S):
            while (await asyncio.to_thread(self.kept, service_id)).count != count:
                pass

    def delete(self, queue: StoredQueue) -> None:
        answer = self.router.client.delete(f"/api/smp/queues/{text_of(queue.recipient_id)}")
        assert answer.status_code == 204, answer.text

    def block(self, queue: StoredQueue) -> None:
        path = f"/api/smp/queues/{text_of(queue.recipient_id)}/block"
        answer = self.router.client.post(path, json={"reason": "spam"})
        assert answer.status_code in (200, 204), answer.text


# --------------------------------------------------------------------------------------- the agent


class Party:
    """An agent's store, its agent, and what that told."""

    def __init__(self, address: RouterAddress, path: Path) -> None:
        self.path = path
        self.store = AgentStore(path)
        self.account = Account(self.store.user("me"), self.store.server(address))
        self.notifier = replace(self.account, role=ServiceRole.NOTIFIER)
        self.events: list[AgentEvent] = []
        self._news = asyncio.Event()
        self._letter_count = 0
        # Sent to a queue that was there, and not received yet.
        self.owed: set[tuple[bytes, bytes]] = set()

    @asynccontextmanager
    async def agent(
        self, options: AgentOptions = HASTY, connect: Connect | None = None
    ) -> AsyncGenerator[Agent]:
        self.events = []
        async with Agent(self.store, options, connect=connect) as agent:
            reader = asyncio.create_task(self._read(agent))
            try:
                yield agent
            finally:
                reader.cancel()

    async def _read(self, agent: Agent) -> None:
        async for event in agent:
            self.events.append(event)
            if isinstance(event, MessageReceived):
                self.owed.discard((event.queue, event.body))
                await agent.acknowledge(event)
            self._news.set()

    def all_told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Looked at after each event."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not is_so():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise AssertionError(f"never so; {len(self.owed)} owed; {self.events}") from error

    async def told(self, kind: type[Event], count: int = 1) -> list[Event]:
        """Wait until so many of them were told; all of them, in order."""
        await self.until(lambda: len(self.all_told(kind)) >= count)
        return self.all_told(kind)

    async def in_step(self, account: Account | None = None) -> None:
        """Until the service is up, and nothing differs."""

        def is_in_step() -> bool:
            ups = [up for up in self.all_told(ServiceUp) if up.account == (account or self.account)]
            return bool(ups) and ups[-1].drift is None

        await self.until(is_in_step)

    async def make(self, agent: Agent, count: int, name: str = "queue") -> list[StoredQueue]:
        return [await agent.create_queue(self.account, f"{name} {n}") for n in range(count)]

    async def send(self, agent: Agent, queue: StoredQueue) -> None:
        self._letter_count += 1
        body = f"letter {self._letter_count}".encode()
        self.owed.add((queue.recipient_id, body))
        await agent.send(self.account, queue.sender_id, body)

    async def check_delivery(self, agent: Agent, queues: Sequence[StoredQueue]) -> None:
        """What was sent before and what is sent now arrives, all of it."""
        for queue in queues:
            await self.send(agent, queue)
        await self.until(lambda: not self.owed)

    async def check_notifications(self, agent: Agent, queues: Sequence[StoredQueue]) -> None:
        before = len(self.all_told(NotificationReceived))
        await self.check_delivery(agent, queues)
        told = await self.told(NotificationReceived, before + len(queues))
        notifiers = {queue.notifier.notifier_id for queue in queues if queue.notifier}
        assert {event.notifier for event in told[before:]} == notifiers

    def service_id(self, account: Account | None = None) -> bytes:
        service_id = self.store.service(account or self.account).service_id
        assert service_id is not None
        return service_id

    def ids(self, account: Account) -> set[bytes]:
        table = {ServiceRole.MESSAGING: "queues", ServiceRole.NOTIFIER: "notifiers"}[account.role]
        query = (
            f"SELECT entity_id FROM {table} JOIN services USING (user_id, server_id)"
            " WHERE (user_id, server_id, role) = (?, ?, ?) AND service_generation = generation"
        )
        key = (account.user_id, account.server_id, account.role.value)
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as db:
            return {each for (each,) in db.execute(query, key)}

    def damage(self, assignments: str) -> None:
        """What is kept of the sets of all services."""
        with closing(sqlite3.connect(self.path)) as db, db:
            db.create_function("flipped", 1, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
            assert db.execute(f"UPDATE services SET {assignments}").rowcount > 0

    def copy_to(self, path: Path) -> None:
        with closing(sqlite3.connect(self.path)) as db, closing(sqlite3.connect(path)) as copy:
            db.backup(copy)

    def restore_from(self, path: Path) -> None:
        self.store.close()
        for each in self.path.parent.glob(f"{self.path.name}-*"):
            each.unlink()
        shutil.copyfile(path, self.path)
        self.store = AgentStore(self.path)


def check_equal(
    party: Party,
    site: Site,
    expected: Iterable[bytes],
    account: Account | None = None,
) -> None:
    """Both have these ids and no others, and what both keep of them is right."""
    account = account or party.account
    service_id = party.service_id(account)
    ours, theirs = party.ids(account), site.ids(service_id, account.role)
    assert ours == theirs == set(expected)
    counted = digest_of(ours)
    assert replace(party.store.service(account).digest, version=0) == counted
    assert site.kept(service_id) == counted


def ids_of(queues: Iterable[StoredQueue]) -> set[bytes]:
    return {queue.recipient_id for queue in queues}


# ---------------------------------------------------------------------------------------- the line


class Line:
    """Carries bytes between agents and a router, until it is told not to."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_muted = False

    @asynccontextmanager
    async def laid(self) -> AsyncGenerator[RouterAddress]:
        """Gives the address of the router at this end of the line."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            port: int = self._server.sockets[0].getsockname()[1]
            yield replace(self._site.address, port=port)
        finally:
            self._server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def mute(self) -> None:
        """Whatever the router says from here on is lost."""
        self._is_muted = True

    def cut(self) -> None:
        """The connections that there are. The next ones are good again."""
        self._is_muted = False
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._site.address.port)
        self._writers |= {writer, there}
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, there, is_answer=False))
                group.create_task(self._pass_on(there_reader, writer, is_answer=True))
        finally:
            self._writers -= {writer, there}
            self._tasks.discard(task)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not (is_answer and self._is_muted):
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
