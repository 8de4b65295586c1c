"""One connection to an SMP router: commands and their answers, and what the router says unasked.

Commands of one turn of the loop travel together, as many as fit into a block, in one write. Answers
find their command by its correlation id. Events wait in a queue with a bound: beyond it the link
stops reading, so that the router keeps the rest; while an answer is awaited it has to read on, and
then leaves out messages, which a router delivers again to whoever subscribes again (`take_missed`).

What always holds:
- Nothing is sent before the router has proved who it is (`smp_hello`).
- A command ends with its answer, with an error, or with the link; never twice, never not at all.
- After a block that does not open, or is none, nothing more is believed: the link ends.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ssl import SSLObject

from syncline.errors import (
    LimitExceededError,
    LinkClosedError,
    LinkLostError,
    MalformedMessageError,
    ProtocolError,
    SynclineError,
    UnexpectedMessageError,
)
from syncline.links.block_stream import BlockStream
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.links.smp_exchange import Exchange, Expected, KeepAlive, KeepAliveRules, Late
from syncline.links.smp_hello import Greeting, ServiceLogin, Wanted
from syncline.links.smp_runs import AnswerRun, parts_of
from syncline.links.smp_session import LinkService, SmpSession
from syncline.links.smp_tls import ALPN_SMP, ALPN_SYNCLINE, client_context, facts_of
from syncline.values import reconciliation
from syncline.values.limits import MIB
from syncline.wire.smp import versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import padded, unpadded
from syncline.wire.smp.commands import Command, Nsub, Nsubs, Ping, Recq, Sub, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.hellos import ALL_VERSIONS, VersionRange
from syncline.wire.smp.messages import Err, Msg, Ok, Reca, RouterMessage, decode_message
from syncline.wire.smp.transmissions import BLOCK_BYTES, Damaged, Transmission, decode_block, pack

CORR_ID_BYTES = 24


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Times and bounds. The times are those of work in the background; somebody who waits at a
    screen wants `INTERACTIVE`."""

    # TLS and hellos, for each host of the address.
    connect_timeout_s: float = 45.0
    answer_timeout_s: float = 30.0
    close_timeout_s: float = 2.0
    keep_alive: KeepAliveRules = field(default_factory=KeepAliveRules)
    # Events that wait here; while an answer is awaited four times as many.
    event_count_max: int = 256
    # Queues of which a message was left out.
    missed_count_max: int = 100_000
    # Commands without an answer; further ones wait.
    waiting_count_max: int = 20_000
    alpn: tuple[str, ...] = (ALPN_SMP,)
    # Services offer it first. Whoever does not know it takes one of the others.
    offers_extension: bool = True
    # A whole answer to a question; an id takes some 22 bytes of it.
    answer_bytes_max: int = 64 * MIB
    versions: VersionRange = ALL_VERSIONS


INTERACTIVE = LinkOptions(connect_timeout_s=15.0, answer_timeout_s=10.0)
_EVENT_FACTOR_WHILE_ASKING = 4
_TICK_SECONDS_MIN = 0.05
# Five full blocks of subscriptions with a service.
_TURN_REQUEST_COUNT = 435


@dataclass(frozen=True, slots=True)
class Request:
    """A command to be sent. `key` authorizes it, if it needs that."""

    command: Command
    entity_id: bytes = b""
    key: PrivateKey | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """What the router says without being asked, or after the time for an answer was over."""

    entity_id: bytes
    message: RouterMessage
    is_late: bool = False


# What becomes of a command.
Outcome = RouterMessage | SynclineError


@dataclass(frozen=True, slots=True)
class _World:
    """Where chance and time come from."""

    entropy: Entropy = secrets.token_bytes
    clock_s: Callable[[], float] = time.monotonic
    now_s: Callable[[], float] = time.time


class SmpLink:
    """See the module. Made by `connect`; ends by itself with the connection, or by `close`."""

    def __init__(
        self, stream: BlockStream, session: SmpSession, options: LinkOptions, world: _World
    ) -> None:
        self.session = session
        self._stream = stream
        self._options = options
        self._world = world
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange[asyncio.Future[RouterMessage]] = Exchange(
            options.waiting_count_max
        )
        self._keep_alive = KeepAlive(options.keep_alive, world.clock_s())
        # Answers in parts, by the correlation id of their question; one question at a time.
        self._runs: dict[bytes, AnswerRun] = {}
        self._asking = asyncio.Lock()
        self._staged: list[bytes] = []
        self._events: deque[LinkEvent] = deque()
        self._missed: set[bytes] = set()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._end: SynclineError | None = None
        self._unasked_count = 0
        stream.follow(self._received, self._lost, self._wake)

    @classmethod
    async def connect(
        cls,
        address: RouterAddress,
        options: LinkOptions | None = None,
        *,
        service: ServiceLogin | None = None,
        is_proxy: bool = False,
        entropy: Entropy = secrets.token_bytes,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> "SmpLink":
        """The first host of the address that answers is taken.

        Raises LinkLostError if none does, NotAuthorizedError if another router answers,
        ServiceMismatchError if it does not take the service, and ProtocolError if it is no router.
        """
        options = options or LinkOptions()
        wanted = Wanted(address.fingerprint, options.versions, is_proxy, service)
        world = _World(entropy, clock_s, now_s)
        error: LinkLostError | None = None
        for host in address.hosts:
            try:
                async with asyncio.timeout(options.connect_timeout_s):
                    return await cls._open(host, address.port, wanted, options, world)
            except (OSError, TimeoutError, LinkLostError) as failed:
                reason = str(failed) or "it took too long"
                error = LinkLostError(f"no router at {host}, port {address.port}: {reason}")
                error.__cause__ = failed
        assert error is not None, "an address has a host"
        raise error

    @classmethod
    async def _open(
        cls, host: str, port: int, wanted: Wanted, options: LinkOptions, world: _World
    ) -> "SmpLink":
        credentials = None if wanted.service is None else wanted.service.credentials
        is_extending = options.offers_extension and wanted.service is not None
        alpn = (ALPN_SYNCLINE, *options.alpn) if is_extending else options.alpn
        context = client_context(alpn, credentials)
        # An empty name: none is sent, since a router on a shared port takes those for browsers.
        transport, stream = await asyncio.get_running_loop().create_connection(
            lambda: BlockStream(BLOCK_BYTES), host, port, ssl=context, server_hostname=""
        )
        try:
            connection = transport.get_extra_info("ssl_object")
            assert isinstance(connection, SSLObject)
            now = datetime.fromtimestamp(world.now_s(), UTC)
            content = unpadded(await stream.block())
            greeting = Greeting(content, facts_of(connection), wanted, world.entropy, now)
            stream.write(padded(greeting.hello, BLOCK_BYTES))
            answer = unpadded(await stream.block()) if greeting.is_of_service else None
            return cls(stream, greeting.session(answer), options, world)
        except BaseException:
            stream.abort()
            raise

    # ------------------------------------------------------------------------------------- looking

    @property
    def version(self) -> int:
        return self.session.version

    @property
    def is_extended(self) -> bool:
        """The router is a Syncline router: it can be asked how sets differ."""
        return self.version >= versions.EXTENDED

    @property
    def session_id(self) -> bytes:
        return self.session.session_id

    @property
    def service(self) -> LinkService | None:
        """The service of this connection; None also if the router is too old for it."""
        return self.session.service

    @property
    def end(self) -> SynclineError | None:
        """Why the link has ended, if it has."""
        return self._end

    @property
    def waiting_count(self) -> int:
        """Commands without an answer."""
        return len(self._exchange)

    @property
    def unasked_count(self) -> int:
        """Answers to commands that were not sent here: a router that is confused."""
        return self._unasked_count

    # ------------------------------------------------------------------------------------- asking

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        timeout_s: float | None = None,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        """The answer. Raises FailureError if it is an error, LinkLostError if there is none in time
        or the link ends, LinkClosedError if it was closed here."""
        request = Request(command, entity_id, key)
        future = await self.start(request, timeout_s=timeout_s, corr_id=corr_id)
        return await future

    async def start(
        self, request: Request, *, timeout_s: float | None = None, corr_id: bytes | None = None
    ) -> asyncio.Future[RouterMessage]:
        """As `request`, without waiting for the answer. Waits only while too much is under way."""
        await self._until_room()
        return self._stage(request, timeout_s, corr_id)

    async def request_many(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[Outcome]:
        """What became of each, in their order; those that the link did not live to send have its
        end. A router may do them in any order."""
        futures: list[asyncio.Future[RouterMessage]] = []
        for index, request in enumerate(requests, 1):
            await self._until_room()
            if self._end is not None:
                break
            futures.append(self._stage(request, timeout_s, None))
            if index % _TURN_REQUEST_COUNT == 0:
                # Signing takes its time, and others want the loop too.
                await asyncio.sleep(0)
        outcomes = [await _outcome(future) for future in futures]
        unsent_count = len(requests) - len(futures)
        return outcomes + [self._ended_error() for _ in range(unsent_count)]

    async def ask(self, question: reconciliation.Request) -> reconciliation.Answer:
        """About the ids of the service of this connection. Raises what `request` does, and
        ProtocolError for what is no answer."""
        assert self.service is not None, "only a service has ids"
        async with self._asking:
            *first, last = await parts_of(question)
            futures = [
                await self.start(Request(Recq(part), self.service.service_id)) for part in first
            ]
            corr_id = self._world.entropy(CORR_ID_BYTES)
            run = self._runs[corr_id] = AnswerRun(self._options.answer_bytes_max)
            try:
                final = await self.start(
                    Request(Recq(last), self.service.service_id), corr_id=corr_id
                )
                for future in futures:
                    if not isinstance(await future, Ok):
                        raise UnexpectedMessageError("a part of a question was not taken")
                await final
            finally:
                del self._runs[corr_id]
            return await run.answer()

    def _stage(
        self, request: Request, timeout_s: float | None, corr_id: bytes | None
    ) -> asyncio.Future[RouterMessage]:
        self._check_open()
        corr_id = corr_id or self._world.entropy(CORR_ID_BYTES)
        transmission = self.session.transmission(
            corr_id, request.entity_id, request.command, request.key
        )
        if timeout_s is None:
            timeout_s = self._options.answer_timeout_s
        future: asyncio.Future[RouterMessage] = self._loop.create_future()
        # Whoever started it may not look at the result.
        future.add_done_callback(_looked_at)
        deadline_s = self._world.clock_s() + timeout_s
        self._exchange.expect(corr_id, request.entity_id, deadline_s, future)
        if isinstance(request.command, Sub | Subs | Nsub | Nsubs):
            self._keep_alive.is_subscribed = True
        if not self._staged:
            # All that is asked in this turn goes out together.
            self._loop.call_soon(self._flush)
        self._staged.append(transmission)
        if self._timer is None or deadline_s < self._timer_due_s:
            self._set_timer()
        self._update_reading()
        return future

    def _flush(self) -> None:
        staged, self._staged = self._staged, []
        if self._end is not None:
            return
        try:
            contents = pack(staged)
        except LimitExceededError as error:
            # Checked where bodies are made; a block could not carry it.
            self._finish(error)
            return
        if contents:
            self._stream.write(b"".join(map(self.session.seal, contents)))

    async def _until_room(self) -> None:
        while self._end is None and not (self._stream.is_writable and self._exchange.has_room):
            await self._until_changed()

    # ------------------------------------------------------------------------------------- hearing

    async def next_event(self) -> LinkEvent:
        """The next event. Raises what ended the link once all that came before has been taken."""
        while not self._events:
            self._check_open()
            await self._until_changed()
        event = self._events.popleft()
        self._update_reading()
        return event

    def take_events(self) -> list[LinkEvent]:
        """All that wait."""
        events = list(self._events)
        self._events.clear()
        self._update_reading()
        return events

    def take_missed(self) -> set[bytes]:
        """Queues of which a message was left out, since the last time: subscribe them again."""
        missed, self._missed = self._missed, set()
        return missed

    def _received(self, block: bytes) -> None:
        self._keep_alive.received(self._world.clock_s())
        try:
            content = self.session.open(block)
            for found in decode_block(self.session.version, self.session_id, content):
                self._take(found)
        except SynclineError as error:
            self._finish(error)
            return
        # The timer stays: it may come early, and then finds nothing to do.
        self._update_reading()
        self._wake()

    def _take(self, found: Transmission | Damaged) -> None:
        if isinstance(found, Damaged):
            raise MalformedMessageError("the router sent a block that is none")
        if not found.corr_id:
            message = decode_message(self.version, found.body)
            self._take_event(LinkEvent(found.entity_id, message))
            return
        match self._exchange.answered(found.corr_id):
            case Expected() as expected:
                self._answer(expected, found)
            case Late():
                message = decode_message(self.version, found.body)
                if not isinstance(message, Reca):
                    self._take_event(LinkEvent(found.entity_id, message, is_late=True))
            case _:
                self._unasked_count += 1

    def _answer(
        self, expected: Expected[asyncio.Future[RouterMessage]], found: Transmission
    ) -> None:
        future = expected.slot
        try:
            message = decode_message(self.version, found.body)
        except MalformedMessageError as error:
            _fail(future, error)
            return
        # A router that could not read a command could not read what it was about.
        has_entity = found.entity_id == expected.entity_id or (
            isinstance(message, Err) and not found.entity_id
        )
        if not has_entity:
            _fail(future, UnexpectedMessageError("the answer is about another queue"))
        elif isinstance(message, Err):
            _fail(future, FailureError(message.failure))
        elif isinstance(message, Reca):
            self._take_part(expected, message)
        elif not future.done():
            future.set_result(message)
        elif isinstance(message, Msg):
            # Nobody waits for the answer any more, but a message is a message.
            self._take_event(LinkEvent(found.entity_id, message, is_late=True))

    def _take_part(self, expected: Expected[asyncio.Future[RouterMessage]], part: Reca) -> None:
        run, future = self._runs.get(expected.corr_id), expected.slot
        if run is None or future.done():
            # Nobody asked, or nobody waits any more.
            _fail(future, UnexpectedMessageError("an answer came to what was no question"))
            return
        try:
            is_last = run.add(part.part)
        except ProtocolError as error:
            _fail(future, error)
            return
        if is_last:
            future.set_result(part)
        else:
            deadline_s = self._world.clock_s() + self._options.answer_timeout_s
            self._exchange.expect_more(expected, deadline_s)

    def _take_event(self, event: LinkEvent) -> None:
        count_max = _EVENT_FACTOR_WHILE_ASKING * self._options.event_count_max
        if len(self._events) < count_max:
            self._events.append(event)
        elif isinstance(event.message, Msg) and len(self._missed) < self._options.missed_count_max:
            self._missed.add(event.entity_id)
        elif isinstance(event.message, Msg):
            raise LimitExceededError(
                "queues with a message left out", len(self._missed) + 1, len(self._missed)
            )
        else:
            # What cannot be had again is kept, as long as it is not too much.
            if len(self._events) >= 2 * count_max:
                raise LimitExceededError("waiting events", len(self._events) + 1, 2 * count_max)
            self._events.append(event)

    def _update_reading(self) -> None:
        """An answer cannot be read without what stands before it."""
        is_full = len(self._events) >= self._options.event_count_max
        self._stream.set_reading(not is_full or len(self._exchange) > 0)

    # --------------------------------------------------------------------------------------- time

    def tick(self) -> None:
        """Look at the clock. Called by a timer of its own; calling it more often does no harm."""
        if self._end is not None:
            return
        now_s = self._world.clock_s()
        for expected in self._exchange.expire(now_s):
            self._keep_alive.timed_out()
            _fail(expected.slot, LinkLostError("the router did not answer in time"))
        if self._keep_alive.is_over(now_s):
            self._finish(LinkLostError("the router has not been heard of for too long"))
            return
        if self._keep_alive.wants_ping(now_s) and self._stream.is_reading and not self._staged:
            self._ping()
        self._update_reading()
        self._set_timer()
        self._wake()

    def _ping(self) -> None:
        self._keep_alive.ping_started()
        future = self._stage(Request(Ping()), None, None)
        future.add_done_callback(lambda _: self._ping_ended())

    def _ping_ended(self) -> None:
        self._keep_alive.ping_ended()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end is not None:
            return
        now_s = self._world.clock_s()
        moments = (self._exchange.next_deadline_s, self._keep_alive.next_look_s(now_s))
        due = [moment for moment in moments if moment is not None]
        if due:
            self._timer_due_s = min(due)
            # Not more often than that, whatever the clock says.
            delay_s = max(_TICK_SECONDS_MIN, self._timer_due_s - now_s)
            self._timer = self._loop.call_later(delay_s, self.tick)

    # ---------------------------------------------------------------------------------------- ends

    async def close(self) -> None:
        """Send what waits to be sent, then leave. Commands without an answer fail."""
        if self._end is None:
            self._flush()
            self._finish(LinkClosedError("the connection was closed"))
        await self._stream.close(self._options.close_timeout_s)

    def cut(self) -> None:
        """End at once."""
        self._finish(LinkLostError("the connection was given up"))
        self._stream.abort()

    async def ended(self) -> SynclineError:
        """Wait for the end, and say why."""
        while self._end is None:
            await self._until_changed()
        return self._end

    def _lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error is not None and str(error) else ""
        self._finish(LinkLostError(f"the connection to the router was lost{reason}"))

    def _finish(self, error: SynclineError) -> None:
        if self._end is not None:
            return
        self._end = error
        self._set_timer()
        for expected in self._exchange.abandon():
            _fail(expected.slot, self._ended_error())
        self._staged.clear()
        if not isinstance(error, LinkClosedError):
            self._stream.abort()
        self._wake()

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._ended_error()

    def _ended_error(self) -> SynclineError:
        """A fresh one for each who asks: one that is raised in many tasks collects their traces."""
        kind = LinkClosedError if isinstance(self._end, LinkClosedError) else LinkLostError
        error = kind(str(self._end))
        error.__cause__ = self._end
        return error

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until_changed(self) -> None:
        await self._changed.wait()


async def _outcome(future: "asyncio.Future[RouterMessage]") -> Outcome:
    try:
        return await future
    except SynclineError as error:
        return error


def _fail(future: "asyncio.Future[RouterMessage]", error: SynclineError) -> None:
    if not future.done():
        future.set_exception(error)


def _looked_at(future: "asyncio.Future[RouterMessage]") -> None:
    if not future.cancelled():
        future.exception()
