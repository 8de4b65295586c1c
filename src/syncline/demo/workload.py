"""People at work on documents, and letters through queues, over real sockets, from a seed.

Every client has every document open, and every letter has a reader. What each of them does is
decided by the seed and its name; who comes first is decided by the machine. What was done and seen
goes to a ledger.

In between, `settled` waits until all have everything and the router knows: whatever is planted
from then on is told apart from the work before it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote

from syncline.client import Change, Document, Mutated, connect
from syncline.client.smp import (
    Agent,
    AgentOptions,
    AgentStore,
    MessageReceived,
    RouterAddress,
    StoredQueue,
)
from syncline.demo.editors import Editor, Kind, editor
from syncline.demo.ledger import Ledger, Letter
from syncline.demo.router import RouterProcess
from syncline.errors import LinkError, LinkLostError

CLIENTS: Final = ("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
# All that is waited for ends sooner, or never.
WAIT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05
# Nobody waits long for a router that is back.
_READER: Final = AgentOptions(backoff_first_ms=50, backoff_cap_ms=500)
_SENDER: Final = AgentOptions(uses_services=False, backoff_first_ms=50, backoff_cap_ms=500)
_SEND_COUNT_MAX: Final = 20
_ATTEMPT_COUNT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything."""

    document_count: int = 4
    client_count: int = 3
    queue_count: int = 2
    # In one turn of a client, and to each queue.
    change_count_max: int = 3
    letter_count: int = 1
    letter_bytes: int = 200


class Workload:
    """See the module. Everything but `connected` is used within its block."""

    def __init__(
        self,
        seed: int,
        router: RouterProcess,
        folder: Path,
        *,
        title: str = "paper",
        size: Size | None = None,
    ) -> None:
        """`folder` is for what agents keep of their queues; documents are named after `title`."""
        self.ledger = Ledger()
        self.size = size = size or Size()
        # Those that are there now.
        self.clients: list[str] = []
        self.documents: dict[str, Kind] = {
            f"{title}-{number}": "json" if number % 2 else "yjs"
            for number in range(1, size.document_count + 1)
        }
        self.queues: list[StoredQueue] = []
        self._router = router
        self._folder = folder
        self._seed = seed
        self._randoms: dict[str, Random] = {}
        self._opened: dict[tuple[str, str], tuple[Document, Editor]] = {}
        self._sender: Agent | None = None
        self._letter_count = 0
        self._news = asyncio.Event()

    # -------------------------------------------------------------------------------------- opening

    @asynccontextmanager
    async def connected(self, urls: Mapping[str, str] | None = None) -> AsyncGenerator["Workload"]:
        """All have everything open. `urls`: of those that do not reach the router directly."""
        async with AsyncExitStack() as stack:
            # One after the other: whoever counts connections can tell whose is which.
            for name in CLIENTS[: self.size.client_count]:
                url = (urls or {}).get(name, self._router.url)
                await stack.enter_async_context(self.joined(name, url))
            if self.size.queue_count:
                await stack.enter_async_context(self._queues_open())
            yield self

    @asynccontextmanager
    async def joined(self, name: str, url: str) -> AsyncGenerator[None]:
        """One more client, with everything open until the end of the block."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                connect(url, client=name, attempt_count_max=_ATTEMPT_COUNT_MAX)
            )
            await client.online()
            for document, kind in self.documents.items():
                hand = editor(kind, name)
                opened = client.document(document, kind)
                # Before it is opened: the state that it begins with is noted, too.
                opened.watch(partial(self._noted, name, document, hand))
                await stack.enter_async_context(opened)
                self._opened[name, document] = opened, hand
            self.clients.append(name)
            try:
                yield
            finally:
                self.clients.remove(name)

    def _noted(self, client: str, document: str, hand: Editor, change: Change) -> None:
        if isinstance(change, Mutated):
            self.ledger.apply(document, change.seq, client)
        else:
            self.ledger.take_state(document, change.seq or 0, client)
        hand.take(change)

    @asynccontextmanager
    async def _queues_open(self) -> AsyncGenerator[None]:
        address = RouterAddress.parse(self._router.smp_address)
        async with AsyncExitStack() as stack:
            ours, theirs = (AgentStore(self._folder / f"{name}.sqlite") for name in ("in", "out"))
            stack.callback(ours.close)
            stack.callback(theirs.close)
            reader = await stack.enter_async_context(Agent(ours, _READER))
            self._sender = await stack.enter_async_context(Agent(theirs, _SENDER))
            account = await reader.account("reader", address)
            for number in range(self.size.queue_count):
                self.queues.append(await reader.create_queue(account, f"box-{number}"))
            reading = asyncio.create_task(self._read(reader), name="letters")
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.wait([reading])
            if not reading.cancelled():
                reading.result()

    async def _read(self, agent: Agent) -> None:
        async for event in agent:
            if isinstance(event, MessageReceived):
                self.ledger.received.append(Letter(self.ledger.life, event.queue, event.body))
                await agent.acknowledge(event)
                self._news.set()

    # -------------------------------------------------------------------------------------- working

    async def work(self, turn_count: int, clients: Collection[str] | None = None) -> None:
        """All at once, each its turns; and letters meanwhile, a few for each turn."""
        async with asyncio.TaskGroup() as group:
            for name in list(self.clients) if clients is None else clients:
                group.create_task(self._take_turns(name, turn_count))
            if self.queues:
                group.create_task(self._write_letters(turn_count))

    async def write(self, name: str, documents: Iterable[str], change_count: int) -> None:
        """So many changes to each of these, one after the other."""
        for document in documents:
            for _ in range(change_count):
                await self._change(name, document, 1)

    async def _take_turns(self, name: str, turn_count: int) -> None:
        random = self._random(name)
        for _ in range(turn_count):
            document = random.choice(list(self.documents))
            await self._change(name, document, random.randint(1, self.size.change_count_max))

    async def _change(self, name: str, document: str, count: int) -> None:
        opened, hand = self._opened[name, document]
        # One of its own: how much chance an editor needs depends on what others wrote.
        random = self._random(f"{name}/{document}")
        changes = [opened.change(hand.change(random)) for _ in range(count)]
        for change in changes:
            self.ledger.save(document, await change, name)
            self._news.set()

    async def _write_letters(self, turn_count: int) -> None:
        for _ in range(turn_count):
            for queue in self.queues:
                for _ in range(self.size.letter_count):
                    await self._send(queue)

    async def _send(self, queue: StoredQueue) -> None:
        """Once more under another text if it is not known whether it was stored."""
        assert self._sender is not None
        address = RouterAddress.parse(self._router.smp_address)
        account = await self._sender.account("sender", address)
        for _ in range(_SEND_COUNT_MAX):
            letter = self._next_letter(queue)
            try:
                await self._sender.send(account, queue.sender_id, letter.text)
            except LinkError:
                self.ledger.unsure.append(letter)
                # The agent has to notice as well, and connects again.
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            self.ledger.sent.append(letter)
            return
        raise LinkLostError(f"a letter could not be sent {_SEND_COUNT_MAX} times")

    def _next_letter(self, queue: StoredQueue) -> Letter:
        self._letter_count += 1
        filling = self._random("letters").randbytes(self.size.letter_bytes // 2).hex()
        text = f"letter {self._letter_count} {filling}".encode()
        return Letter(self.ledger.life, queue.recipient_id, text)

    def _random(self, name: str) -> Random:
        return self._randoms.setdefault(name, Random(f"{self._seed}/{name}"))

    # -------------------------------------------------------------------------------------- waiting

    async def settled(self, *, without: Collection[str] = ()) -> None:
        """Until all have everything, and the router knows. Raises TimeoutError.

        `without` leaves clients out, such as one that cannot be heard.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            await self.until(lambda ledger: set(ledger.sent) <= set(ledger.received))
            for document in self.documents:
                head = (await self._facts(document))["head"]
                for name in self.clients:
                    if name not in without:
                        await self._opened[name, document][0].reached(head)
                await self._until_known(document, without)

    async def until(self, is_so: Callable[[Ledger], bool]) -> None:
        """Looked at whenever something was saved or received."""
        while not is_so(self.ledger):
            self._news.clear()
            await self._news.wait()

    async def _until_known(self, document: str, without: Collection[str]) -> None:
        """It is another process: there is nothing to wait for but its answers."""
        while True:
            if self._are_known(await self._facts(document), without):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _are_known(self, facts: dict[str, Any], without: Collection[str]) -> bool:
        """Everybody is there, and nobody owes an acknowledgement."""
        places = {each["client"]: each["acked"] for each in facts["connections"]}
        wanted = [name for name in self.clients if name not in without]
        return all(places.get(name) == facts["head"] for name in wanted)

    async def sessions(self, document: str) -> dict[str, int]:
        """The number of each client's connection, as the router counts them."""
        facts = await self._facts(document)
        return {each["client"]: each["connection"] for each in facts["connections"]}

    async def _facts(self, document: str) -> dict[str, Any]:
        return await self._router.get(f"/api/documents/{quote(document)}")

    async def states(self) -> dict[str, Any]:
        """Of all documents, as the router would give them to somebody new."""
        paths = {name: f"/api/documents/{quote(name)}?view=state" for name in self.documents}
        return {name: (await self._router.get(path))["state"] for name, path in paths.items()}

    async def different(self) -> list[tuple[str, str]]:
        """Clients and documents, where the client has something else than the router."""
        found: list[tuple[str, str]] = []
        for document, told in (await self.states()).items():
            for name in self.clients:
                opened, hand = self._opened[name, document]
                if not hand.has(opened.state, told):
                    found.append((name, document))
        return found
