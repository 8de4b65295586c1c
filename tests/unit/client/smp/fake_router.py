"""A router without bytes: what an agent's commands mean, done in the loop, at the test's pace.

It keeps queues, messages, services and associations across connections, as a router does, and can
be made to be down, to forget, to refuse, and to leave commands without an answer. A plain router
unless `is_extended`: then it answers questions about its sets, and lets go of ids.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count

from syncline.client.smp.linking import InThread, Made, World
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import Snapshot, state_of
from syncline.core.reconciliation.sketched import OPENING_CELLS
from syncline.errors import (
    LinkClosedError,
    LinkLostError,
    ServiceMismatchError,
    SynclineError,
)
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkEvent, Outcome, Request
from syncline.links.smp_session import LinkService
from syncline.values import reconciliation
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.values.reconciliation import Answer, SetState
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.requests import decode_request, encode_request
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp import bodies, failures, versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.bodies import Received, ReceivedMessage
from syncline.wire.smp.boxes import SecretBox, shared_secret
from syncline.wire.smp.commands import (
    Ack,
    Bus,
    Command,
    Del,
    New,
    Nkey,
    Nsub,
    Nsubs,
    Ping,
    Recq,
    Send,
    Sub,
    Subs,
)
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Ids,
    Msg,
    Nid,
    Nmsg,
    Ok,
    Pong,
    RouterMessage,
    Sok,
    Soks,
)

ADDRESS = RouterAddress(b"f" * 32, ("router.example",))
TIME_S = 1_700_000_000


def hash_of(ids: set[bytes]) -> bytes:
    total = 0
    for each in ids:
        total ^= int.from_bytes(hashlib.md5(each).digest())
    return total.to_bytes(16)


@dataclass
class FakeQueue:
    key: PublicKey
    secret: bytes
    sender_id: bytes
    messages: deque[tuple[bytes, Received]] = field(default_factory=deque)
    service_id: bytes | None = None
    subscriber: "FakeLink | None" = None
    # The message that is on its way to the subscriber.
    delivered: bytes | None = None
    notifier_id: bytes | None = None
    notifier_key: PublicKey | None = None
    notifier_service: bytes | None = None
    notifier_link: "FakeLink | None" = None


class FakeRouter:
    def __init__(self) -> None:
        self.queues: dict[bytes, FakeQueue] = {}
        self.version = 20
        # A Syncline router.
        self.is_extended = False
        # Whether an opening comes along when sets differ.
        self.opens = True
        self.is_down = False
        self.service_refusal: str | None = None
        self.services: dict[bytes, bytes] = {}
        self.subscribed_services: dict[bytes, FakeLink] = {}
        self.links: list[FakeLink] = []
        self.logins: list[ServiceLogin | None] = []
        # Commands that get no answer until their future is resolved.
        self.withheld: set[type[Command]] = set()
        # Commands that are done, and whose answers wait for `FakeLink.release`.
        self.delayed: set[type[Command]] = set()
        # Answers in place of the real ones.
        self.failures: dict[type[Command] | bytes, Failure] = {}
        # What the router believes to have, until it is asked and looks.
        self.wrong_states: dict[bytes, SetState] = {}
        # Answers in place of the real ones.
        self.false_answers: list[Answer] = []
        # Called with each command before it is done.
        self.before: Callable[[Command], object] = lambda _: None
        self._versions: dict[bytes, tuple[frozenset[bytes], int]] = {}
        self._numbers = count(1)

    # ----------------------------------------------------------------------------------- the test

    @property
    def link(self) -> "FakeLink":
        """The newest."""
        return self.links[-1]

    def new_id(self, kind: bytes) -> bytes:
        return kind + next(self._numbers).to_bytes(24 - len(kind))

    def send(self, queue_id: bytes, body: bytes, *, is_quota: bool = False) -> bytes:
        """As a sender. Returns the message's id."""
        message_id = self.new_id(b"message")
        received: Received = ReceivedMessage(TIME_S, b"T", body)
        if is_quota:
            received = bodies.QuotaReached(TIME_S)
        queue = self.queues[queue_id]
        queue.messages.append((message_id, received))
        if queue.delivered is None:
            self.deliver(queue_id)
        if queue.notifier_link is not None and queue.notifier_id is not None:
            queue.notifier_link.tell(queue.notifier_id, Nmsg(b"n" * 24, b"metadata"))
        return message_id

    def deliver(self, queue_id: bytes) -> bool:
        queue = self.queues[queue_id]
        link = queue.subscriber
        if queue.service_id is not None:
            link = self.subscribed_services.get(queue.service_id)
        if link is None or not queue.messages:
            return False
        link.tell(queue_id, self.head(queue))
        return True

    def head(self, queue: FakeQueue) -> Msg:
        message_id, received = queue.messages[0]
        queue.delivered = message_id
        return Msg(message_id, bodies.seal_received(SecretBox(queue.secret), message_id, received))

    def associated(self, service_id: bytes) -> set[bytes]:
        return {each for each, queue in self.queues.items() if queue.service_id == service_id}

    def ids_of(self, service_id: bytes) -> set[bytes]:
        """Of queues, or of notifiers."""
        notifiers = {queue.notifier_id or b"" for queue in self._notifiers_of(service_id)}
        return self.associated(service_id) or notifiers

    def set_of(self, service_id: bytes) -> Snapshot:
        ids = frozenset(self.ids_of(service_id))
        before, version = self._versions.get(service_id, (frozenset[bytes](), 0))
        if ids != before:
            version += 1
            self._versions[service_id] = ids, version
        return Snapshot(b"".join(sorted(ids)), version)

    def forget_services(self) -> None:
        """Restored from before there were any."""
        self.services.clear()
        self.drop_associations()

    def drop_associations(self, *ids: bytes) -> None:
        for each in ids or tuple(self.queues):
            self.queues[each].service_id = None

    def delete(self, queue_id: bytes) -> None:
        """By the operator."""
        queue = self.queues.pop(queue_id)
        link = queue.subscriber
        if queue.service_id is not None:
            link = self.subscribed_services.get(queue.service_id)
        if link is not None:
            link.tell(queue_id, Deld())

    def take_queue(self, queue_id: bytes) -> None:
        """A plain connection of somebody else subscribes."""
        queue = self.queues[queue_id]
        link = queue.subscriber
        if queue.service_id is not None:
            link = self.subscribed_services.get(queue.service_id)
        queue.service_id = queue.subscriber = queue.delivered = None
        if link is not None:
            link.tell(queue_id, End())

    def take_service(self, service_id: bytes) -> None:
        """Another connection of the service subscribes."""
        link = self.subscribed_services.pop(service_id)
        ids = self.associated(service_id)
        for each in ids:
            self.queues[each].delivered = None
        link.tell(service_id, Ends(len(ids), hash_of(ids)))

    # ------------------------------------------------------------------------------- the connection

    async def connect(self, _: RouterAddress, login: ServiceLogin | None) -> "FakeLink":
        await asyncio.sleep(0)
        self.logins.append(login)
        if self.is_down:
            raise LinkLostError("nobody is there")
        service: LinkService | None = None
        needed = 19 if login is None or login.role is ServiceRole.MESSAGING else 16
        if login is not None and self.version >= needed:
            if self.service_refusal is not None:
                raise ServiceMismatchError(self.service_refusal)
            fingerprint = login.credentials.fingerprint
            service_id = self.services.setdefault(fingerprint, self.new_id(b"service"))
            key = PrivateKey(KeyKind.ED25519, b"k" * 32)
            service = LinkService(service_id, login.role, key, fingerprint)
        self.links.append(FakeLink(self, self.new_id(b"session"), service))
        return self.link

    def disconnected(self, link: "FakeLink") -> None:
        for queue in self.queues.values():
            if queue.subscriber is link or (
                queue.service_id is not None
                and self.subscribed_services.get(queue.service_id) is link
            ):
                queue.delivered = None
            if queue.subscriber is link:
                queue.subscriber = None
            if queue.notifier_link is link:
                queue.notifier_link = None
        for service_id, subscribed in list(self.subscribed_services.items()):
            if subscribed is link:
                del self.subscribed_services[service_id]

    # ----------------------------------------------------------------------------------- commands

    def answer(self, service_id: bytes, parts: Sequence[bytes]) -> list[bytes]:
        """To a question, by the real responder and through the real bytes."""
        self.before(Recq(b""))
        if Recq in self.failures:
            raise FailureError(self.failures[Recq])
        if self.false_answers:
            return list(encode_answer(self.false_answers.pop(0)))
        self.wrong_states.pop(service_id, None)
        joiner = Joiner(1 << 30)
        [question] = [decode_request(*found) for part in parts if (found := joiner.add(part))]
        responder = Responder(self.set_of(service_id), b"saltsalt")
        return list(encode_answer(responder.answer(question)))

    def state_of(self, service_id: bytes) -> SetState:
        return self.wrong_states.get(service_id) or state_of(self.set_of(service_id))

    def _soks(self, link: "FakeLink", service_id: bytes, told: Subs | Nsubs | None) -> Soks:
        ids = self.ids_of(service_id)
        if not link.is_extended:
            return Soks(len(ids), hash_of(ids) if self.version >= 19 else None)
        state, opening = self.state_of(service_id), b""
        if told is not None:
            assert told.hashes is not None
            mine = (told.count, told.hashes.xor128, told.hashes.sum128)
            if self.opens and mine != (state.count, state.xor128, state.sum128):
                responder = Responder(self.set_of(service_id), b"saltsalt")
                [opening] = encode_answer(responder.opening(OPENING_CELLS))
        return Soks(state.count, hash_of(ids), state, opening)

    def _release(self, link: "FakeLink", service_id: bytes, ids: Sequence[bytes]) -> RouterMessage:
        assert 1 <= len(ids) <= 512
        for queue_id, queue in self.queues.items():
            if queue.service_id == service_id and queue_id in ids:
                queue.service_id = queue.delivered = None
            if queue.notifier_service == service_id and queue.notifier_id in ids:
                queue.notifier_service = queue.notifier_link = None
        return self._soks(link, service_id, None)

    def handle(self, link: "FakeLink", request: Request) -> RouterMessage:
        command, entity_id = request.command, request.entity_id
        self.before(command)
        failure = self.failures.get(type(command)) or self.failures.get(entity_id)
        if failure is not None:
            raise FailureError(failure)
        match command:
            case Ping():
                return Pong()
            case New():
                return self._create(link, command)
            case Subs() | Nsubs():
                return self._subscribe_service(link, command, entity_id)
            case Bus(ids=ids):
                assert link.is_extended
                assert link.service is not None
                assert entity_id == link.service.service_id
                return self._release(link, entity_id, ids)
            case Nsub():
                return self._subscribe_notifier(link, entity_id)
            case Send(body=body):
                [queue_id] = [i for i, q in self.queues.items() if q.sender_id == entity_id]
                self.send(queue_id, body)
                return Ok()
            case _:
                pass
        queue = self.queues.get(entity_id)
        if queue is None or request.key is None or request.key.public != queue.key:
            raise FailureError(failures.AUTH)
        match command:
            case Sub():
                return self._subscribe(link, entity_id, queue)
            case Ack(message_id=message_id):
                return self._acknowledge(queue, message_id)
            case Del():
                del self.queues[entity_id]
                return Ok()
            case Nkey(keys=keys):
                queue.notifier_id, queue.notifier_key = self.new_id(b"notifier"), keys.auth_key
                dh = PrivateKey(KeyKind.X25519, b"n" * 32)
                return Nid(queue.notifier_id, dh.public)
            case _:
                raise FailureError(failures.UNKNOWN)

    def _create(self, link: "FakeLink", command: New) -> RouterMessage:
        dh = PrivateKey(KeyKind.X25519, b"r" * 32)
        recipient_id, sender_id = self.new_id(b"queue"), self.new_id(b"sender")
        secret = shared_secret(dh.raw, command.dh_key.raw)
        queue = self.queues[recipient_id] = FakeQueue(command.auth_key, secret, sender_id)
        own = link.service and link.service.service_id
        queue.service_id = own or None
        if own:
            self.subscribed_services[own] = link
        else:
            queue.subscriber = link
        return Ids(recipient_id, sender_id, dh.public, QueueMode.MESSAGING, None, own or None)

    def _subscribe(self, link: "FakeLink", queue_id: bytes, queue: FakeQueue) -> RouterMessage:
        own = None if link.service is None else link.service.service_id
        queue.service_id, queue.delivered = own, None
        if own is None:
            queue.subscriber = link
        else:
            queue.subscriber = None
            self.subscribed_services[own] = link
        # It may be deleted by then.
        link.later(lambda: queue_id in self.queues and self.deliver(queue_id))
        return Sok(own)

    def _subscribe_service(
        self, link: "FakeLink", command: Subs | Nsubs, service_id: bytes
    ) -> RouterMessage:
        if link.service is None or link.service.service_id != service_id:
            raise FailureError(failures.SERVICE)
        if isinstance(command, Nsubs):
            for queue in self._notifiers_of(service_id):
                queue.notifier_link = link
        elif self.subscribed_services.get(service_id) is not link:
            ids = self.associated(service_id)
            self.subscribed_services[service_id] = link
            link.later(lambda: self._fold(link, ids))
        return self._soks(link, service_id, command)

    def _fold(self, link: "FakeLink", ids: set[bytes]) -> None:
        for each in sorted(ids):
            if each in self.queues and self.queues[each].delivered is None:
                self.deliver(each)
        link.tell(b"", Alls())

    def _notifiers_of(self, service_id: bytes) -> list[FakeQueue]:
        return [q for q in self.queues.values() if q.notifier_service == service_id]

    def _subscribe_notifier(self, link: "FakeLink", notifier_id: bytes) -> RouterMessage:
        for queue in self.queues.values():
            if queue.notifier_id == notifier_id:
                own = None if link.service is None else link.service.service_id
                queue.notifier_service, queue.notifier_link = own, link
                return Sok(own)
        raise FailureError(failures.AUTH)

    def _acknowledge(self, queue: FakeQueue, message_id: bytes) -> RouterMessage:
        if queue.delivered != message_id:
            raise FailureError(failures.NO_MSG)
        queue.messages.popleft()
        queue.delivered = None
        return self.head(queue) if queue.messages else Ok()


class FakeLink:
    """One connection: what `SmpLink` offers an agent."""

    def __init__(self, router: FakeRouter, session_id: bytes, service: LinkService | None) -> None:
        self.router = router
        self.session_id = session_id
        self.service = service
        self.commands: list[tuple[Command, bytes]] = []
        # What was not answered, by command.
        self.waiting: list[tuple[Request, asyncio.Future[RouterMessage]]] = []
        self.missed: set[bytes] = set()
        # Questions that were not answered.
        self.asked: list[tuple[Callable[[], None], asyncio.Future[list[bytes]]]] = []
        self._held: list[Callable[[], None]] = []
        self._events: deque[LinkEvent] = deque()
        self._changed = asyncio.Event()
        self._end: SynclineError | None = None

    @property
    def version(self) -> int:
        is_extended = self.router.is_extended and self.service is not None
        return versions.session_version(self.router.version, is_syncline=is_extended)

    @property
    def is_extended(self) -> bool:
        return self.version >= versions.EXTENDED

    @property
    def is_open(self) -> bool:
        return self._end is None

    # The test.

    def words(self) -> list[str]:
        return [type(command).__name__.upper() for command, _ in self.commands]

    def tell(self, entity_id: bytes, message: RouterMessage, *, is_late: bool = False) -> None:
        self._events.append(LinkEvent(entity_id, message, is_late))
        self._wake()

    def later(self, action: Callable[[], object]) -> None:
        """After the answer."""
        asyncio.get_running_loop().call_soon(lambda: self.is_open and action())

    def drop(self) -> None:
        """The network, or the router, is gone."""
        self._finish(LinkLostError("the connection was lost"))

    def answer_waiting(self) -> None:
        for request, future in self.waiting:
            self._answer(request, future)
        self.waiting.clear()

    def answer_asked(self) -> None:
        asked, self.asked = self.asked, []
        for work, _ in asked:
            work()

    def release(self) -> None:
        """Answers that were delayed come now."""
        held, self._held = self._held, []
        for each in held:
            each()

    def time_out_waiting(self) -> None:
        for _, future in self.waiting:
            future.set_exception(LinkLostError("the router did not answer in time"))
        self.waiting.clear()

    # The agent.

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        timeout_s: float | None = None,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        return await (await self.start(Request(command, entity_id, key)))

    async def start(self, request: Request) -> Awaitable[RouterMessage]:
        if self._end is not None:
            raise type(self._end)(str(self._end))
        future: asyncio.Future[RouterMessage] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.commands.append((request.command, request.entity_id))
        if type(request.command) in self.router.withheld:
            self.waiting.append((request, future))
        else:
            asyncio.get_running_loop().call_soon(self._answer, request, future)
        return future

    async def request_many(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for each in requests:
            try:
                outcomes.append(await self.request(each.command, each.entity_id, each.key))
            except SynclineError as error:
                outcomes.append(error)
        return outcomes

    async def ask(self, question: reconciliation.Request) -> Answer:
        assert self.service is not None
        assert self.is_extended
        if self._end is not None:
            raise type(self._end)(str(self._end))
        parts = list(encode_request(question))
        self.commands.append((Recq(parts[-1]), self.service.service_id))
        service_id = self.service.service_id
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        work = partial(self._resolve, future, partial(self.router.answer, service_id, parts))
        if Recq in self.router.withheld:
            self.asked.append((work, future))
        else:
            asyncio.get_running_loop().call_soon(work)
        joiner = Joiner(1 << 30)
        [answer] = [decode_answer(*found) for part in await future if (found := joiner.add(part))]
        return answer

    def _answer(self, request: Request, future: "asyncio.Future[RouterMessage]") -> None:
        if type(request.command) not in self.router.delayed:
            self._resolve(future, lambda: self.router.handle(self, request))
            return
        done: asyncio.Future[RouterMessage] = asyncio.get_running_loop().create_future()
        self._resolve(done, lambda: self.router.handle(self, request))
        done.exception()
        self._held.append(lambda: self._resolve(future, done.result))

    def _resolve(self, future: "asyncio.Future[Made]", work: Callable[[], Made]) -> None:
        if future.done():
            return
        if self._end is not None:
            future.set_exception(LinkLostError(str(self._end)))
            return
        try:
            future.set_result(work())
        except SynclineError as error:
            future.set_exception(error)

    async def next_event(self) -> LinkEvent:
        while not self._events:
            if self._end is not None:
                raise LinkLostError(str(self._end))
            await self._changed.wait()
        return self._events.popleft()

    def take_events(self) -> list[LinkEvent]:
        events = list(self._events)
        self._events.clear()
        return events

    def take_missed(self) -> set[bytes]:
        missed, self.missed = self.missed, set()
        return missed

    async def ended(self) -> SynclineError:
        while self._end is None:
            await self._changed.wait()
        return self._end

    async def close(self) -> None:
        self._finish(LinkClosedError("closed"))

    def cut(self) -> None:
        self._finish(LinkLostError("given up"))

    def _finish(self, error: SynclineError) -> None:
        if self._end is None:
            self._end = error
            self.router.disconnected(self)
            for _, future in self.waiting:
                _lose(future, error)
            for _, asked in self.asked:
                _lose(asked, error)
            self.waiting.clear()
            self.release()
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _lose(future: "asyncio.Future[Made]", error: SynclineError) -> None:
    if not future.done():
        future.set_exception(LinkLostError(str(error)))


class ManualTime:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def clock_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_s + seconds, future))
        await future

    @property
    def naps_s(self) -> list[float]:
        """How long those who sleep still have to."""
        return [round(due - self.now_s, 3) for due, future in self._sleepers if not future.done()]

    async def advance(self, seconds: float) -> None:
        """Once whoever wants to sleep does so."""
        await settled()
        self.now_s += seconds
        for due, future in self._sleepers:
            if due <= self.now_s and not future.done():
                future.set_result(None)
        self._sleepers = [each for each in self._sleepers if not each[1].done()]
        await settled()


async def settled() -> None:
    """Until nothing more happens by itself: each step of the agent takes a few turns."""
    for _ in range(200):
        await asyncio.sleep(0)


async def at_once(work: Callable[[], Made], /) -> Made:
    """In place of a thread, with a turn in between for whatever else happens."""
    await asyncio.sleep(0)
    return work()


class HeldDisk:
    """In place of a thread: work waits while the disk is held up, each for itself."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.is_free.set()

    def hold(self) -> None:
        self.is_free.clear()

    def release(self) -> None:
        self.is_free.set()

    async def __call__(self, work: Callable[[], Made], /) -> Made:
        await self.is_free.wait()
        return work()


def world_of(router: FakeRouter, time: ManualTime, on_thread: InThread = at_once) -> World:
    return World(
        router.connect,
        clock_s=time.clock_s,
        sleep=time.sleep,
        chance=lambda: 1.0,
        now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
        on_thread=on_thread,
    )
