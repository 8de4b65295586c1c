"""What the verbs of `syncline queue` do, with the store and with a router."""

import secrets
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

from syncline.cli.output import Output, printable
from syncline.client.smp import letters, queues
from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    AgentEvent,
    MessageDamaged,
    MessageReceived,
    QueueDeleted,
    QueueDown,
    QueueEnd,
    QueueFailed,
    RouterUnreachable,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.envelopes import DATA_BYTES_MAX as DATA_BYTES_MAX
from syncline.client.smp.proxied import ProxiedRouter
from syncline.client.smp.queue_uris import QueueUri
from syncline.client.smp.queues import Asking
from syncline.errors import (
    ConfigError,
    LinkClosedError,
    MalformedMessageError,
    NotAuthorizedError,
    QueueExistsError,
    RefusedError,
    UnknownQueueError,
)
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import INTERACTIVE, SmpLink
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.bodies import ReceivedMessage
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind

# One queue at a time needs no service.
_OPTIONS = AgentOptions(uses_services=False)
_PAGE_COUNT = 1_000


@contextmanager
def opened(path: Path) -> Generator[AgentStore]:
    """The store; made if there is none. Raises ConfigError."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; --store names a file")
    with closing(AgentStore(path)) as store:
        yield store


def queue_of(store: AgentStore, user: str, name: str) -> StoredQueue:
    """Raises UnknownQueueError."""
    queue = store.queue_named(store.user(user), name)
    if queue is None:
        raise UnknownQueueError(repr(name))
    return queue


def listed(store: AgentStore, user: str) -> list[dict[str, str | None]]:
    """What can be told of each queue."""
    found: list[dict[str, str | None]] = []
    user_id, after = store.user(user), ""
    while page := store.queues(user_id, after, _PAGE_COUNT):
        found += [_facts(store, queue) for queue in page]
        after = page[-1].name
    return found


def print_address(output: Output, store: AgentStore, queue: StoredQueue) -> None:
    if output.is_json:
        output.json(_facts(store, queue))
    else:
        output.plain(str(letters.address_of(store, queue)))


def _facts(store: AgentStore, queue: StoredQueue) -> dict[str, str | None]:
    has_address = queue.envelope_key is not None
    return {
        "name": queue.name,
        "mode": queue.mode.name.lower(),
        "router": str(store.address(queue.account.server_id)),
        "address": str(letters.address_of(store, queue)) if has_address else None,
    }


# Verbs that talk to a router.


async def create(
    store: AgentStore, user: str, name: str, router: str, *, is_contact: bool
) -> StoredQueue:
    """A queue at the router, kept in the store. Raises QueueExistsError if the name is taken."""
    address = RouterAddress.parse(router)
    account = Account(store.user(user), store.server(address))
    if store.queue_named(account.user_id, name) is not None:
        raise QueueExistsError(name)
    mode = QueueMode.CONTACT if is_contact else QueueMode.MESSAGING
    async with connected(address) as link:
        try:
            new = await queues.create(link, mode=mode, password=address.password, subscribes=False)
        except FailureError as error:
            reason = "the router makes no queue for us; it may want a password"
            raise _explained(error, reason) from None
        queue = StoredQueue(
            account,
            name,
            new.recipient_id,
            new.sender_id,
            new.mode,
            new.key,
            new.secret,
            PrivateKey.new(KeyKind.X25519, secrets.token_bytes),
        )
        store.add_queue(queue)
        return queue


async def send(
    store: AgentStore, user: str, to: str, data: bytes, *, proxy: str | None = None
) -> None:
    """`proxy` is the router that is told of the message, and passes it on."""
    uri = QueueUri.parse(to)
    address = None if proxy is None else RouterAddress.parse(proxy)
    async with connected(address or uri.router) as link:
        router: Asking = link
        if address is not None:
            router = await _passed_on(link, uri.router, address.password)
        try:
            await letters.send_letter(router, store, store.user(user), uri, data)
        except FailureError as error:
            raise _explained(error, _GONE) from None


async def _passed_on(link: SmpLink, router: RouterAddress, password: str | None) -> ProxiedRouter:
    try:
        return await ProxiedRouter.open(link, router, password=password)
    except FailureError as error:
        if error.failure != failures.BASIC_AUTH:
            raise
        reason = "the proxy sends nothing for us; it may want a password in its address"
        raise NotAuthorizedError(reason) from None


async def fetch(output: Output, store: AgentStore, queue: StoredQueue, count: int | None) -> None:
    """Print what is there. Whoever follows the queue elsewhere is not disturbed."""
    left = count
    async with connected(store.address(queue.account.server_id)) as link:
        try:
            while left != 0 and (message := await queues.get(link, queue)) is not None:
                content = message.content
                if isinstance(content, ReceivedMessage):
                    _print(output, store, queue, message.message_id, content.time_s, content.body)
                    left = None if left is None else left - 1
                # Printed first: what is acknowledged is gone.
                await queues.acknowledge(link, queue, message.message_id)
        except FailureError as error:
            raise _explained(error, _GONE) from None


async def follow(output: Output, store: AgentStore, queue: StoredQueue, count: int | None) -> None:
    """Print messages as they come, `count` of them or until stopped."""
    left = count
    async with Agent(store, _OPTIONS, subscribes=False) as agent:
        await agent.subscribe_queues(queue.account, [queue.recipient_id])
        async for event in agent:
            if isinstance(event, MessageReceived):
                _print(output, store, queue, event.message_id, event.time_s, event.body)
                await agent.acknowledge(event)
                left = None if left is None else left - 1
                if left == 0:
                    return
            elif isinstance(event, MessageDamaged):
                output.note(f"a message cannot be read and is left out: {event.reason}")
                await agent.acknowledge(event)
            else:
                _tell(output, queue, event)


async def delete(store: AgentStore, queue: StoredQueue) -> None:
    async with connected(store.address(queue.account.server_id)) as link:
        try:
            await queues.delete(link, queue)
        except FailureError as error:
            # Unknown to the router: it is gone already.
            if error.failure != failures.AUTH:
                raise _explained(error, _GONE) from None
    store.forget(queue.account, queue.recipient_id)


@asynccontextmanager
async def connected(address: RouterAddress) -> AsyncGenerator[SmpLink]:
    link = await SmpLink.connect(address, INTERACTIVE)
    try:
        yield link
    finally:
        await link.close()


_GONE = "the router does not know the queue: it was deleted, or the router lost it"


def _explained(error: FailureError, reason: str) -> Exception:
    """In words what routers say by a code; `reason` is for the one that keeps its reasons."""
    failure = error.failure
    if failure == failures.AUTH:
        return NotAuthorizedError(reason)
    if failure == failures.QUOTA:
        return RefusedError("the queue is full; it takes more once its reader has emptied it")
    if failure.code == "BLOCKED":
        with suppress(MalformedMessageError):
            why = failures.block_reason(failure).reason
            return RefusedError(f"the queue was blocked by whoever runs the router ({why})")
    return error


def _tell(output: Output, queue: StoredQueue, event: AgentEvent) -> None:
    """What happens to the subscription. Raises what ends it."""
    match event:
        case QueueEnd():
            raise LinkClosedError("another program reads this queue now; stop one of them")
        case QueueDeleted():
            raise UnknownQueueError(repr(queue.name))
        case QueueFailed(is_final=True, failure=failure):
            raise _explained(FailureError(failure), _GONE)
        case QueueDown():
            output.note("the connection is lost; trying again")
        case RouterUnreachable(reason=reason, retry_s=retry_s):
            output.note(f"{reason}; trying again in {retry_s:.1f} s")
        case _:
            pass


def _print(
    output: Output,
    store: AgentStore,
    queue: StoredQueue,
    message_id: bytes,
    time_s: int,
    body: bytes,
) -> None:
    try:
        data, is_letter = letters.open_letter(store, queue, body), True
    except MalformedMessageError as error:
        output.note(f"a message is not for this queue's key, and is shown as it came: {error}")
        data, is_letter = body, False
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
    name, text = _text(data) if is_letter else ("data", b64encode(data).decode())
    if output.is_json:
        id_text = b64encode(message_id).decode()
        output.json({"queue": queue.name, "id": id_text, "time": stamp, name: text})
    else:
        output.plain(f"{stamp} {printable(text)}")


def _text(data: bytes) -> tuple[str, str]:
    """As text if it is one, else in base64."""
    try:
        return "text", data.decode()
    except UnicodeDecodeError:
        return "data", b64encode(data).decode()
