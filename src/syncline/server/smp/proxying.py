"""PRXY and PFWD: clients reach other routers, relays, through this one.

- All clients share one connection to a relay; those that ask while it is being made wait for it.
- There are so many connections and no more. One that nobody uses right now makes room for another,
  the one that has been idle for longest first; and it is closed when it was idle for long.
- Clients know a connection by its session id. One that has ended is not known any more: they are
  told NO_SESSION, and ask for another.
- Commands that wait for a relay are counted for each client, which is not read from when they are
  too many, and for all clients together, when no more are taken.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, Protocol

from syncline.errors import (
    LinkError,
    MalformedMessageError,
    ProtocolError,
    SynclineError,
    UnsupportedVersionError,
)
from syncline.links.smp_exchange import KeepAliveRules
from syncline.links.smp_link import CORR_ID_BYTES, LinkEvent, LinkOptions, SmpLink
from syncline.links.smp_session import SmpSession
from syncline.server.smp.calls import Call
from syncline.server.smp.proxy_targets import Reach, Targets
from syncline.server.smp.relaying import Worker
from syncline.server.smp.replies import Reply
from syncline.server.smp.tasks import Tasks
from syncline.wire.smp import failures, versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import SecretBox, reversed_nonce
from syncline.wire.smp.commands import Command, Pfwd, Prxy, Rfwd
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.forwards import Forward, decode_forward_answer, encode_forward
from syncline.wire.smp.messages import Err, Pkey, Pres, RouterMessage, Rres
from syncline.wire.smp.transmissions import TRANSMISSION_BYTES_MAX

# What stands before the box in the transmission of RFWD: no authorization, the correlation id, no
# entity, the word.
_RFWD_BYTES: Final = 1 + (1 + CORR_ID_BYTES) + 1 + len("RFWD ")
_BOXED_BYTES_MAX: Final = TRANSMISSION_BYTES_MAX - _RFWD_BYTES

_TOO_LARGE: Final = failures.proxy_broker("TRANSPORT", b"LARGE_MSG")
_NO_HELLO: Final = failures.proxy_broker("TRANSPORT", b"HANDSHAKE PARSE")
_BAD_RESPONSE: Final = failures.proxy_broker("RESPONSE", b"BLOCK")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Those with `_max` bound what clients can make the router do or keep."""

    reach: Reach = Reach.PUBLIC
    # What clients must know to use it; empty: nothing.
    password: str = field(default="", repr=False)
    connection_count_max: int = 256
    # Of all clients: commands that wait for a relay. Each may cost 32 KiB.
    waiting_count_max: int = 2_048
    # All of a relay's addresses together, and each of them.
    connect_seconds_max: float = 15.0
    address_seconds_max: float = 8.0
    answer_seconds_max: float = 15.0
    idle_seconds_max: float = 600.0

    def link_options(self) -> LinkOptions:
        return LinkOptions(
            connect_timeout_s=self.address_seconds_max,
            answer_timeout_s=self.answer_seconds_max,
            # Commands stay without an answer and nothing else is heard: it is gone.
            keep_alive=KeepAliveRules(give_up_after_s=self.answer_seconds_max),
            # A relay has nothing to say by itself; late answers are thrown away every second.
            event_count_max=16,
            missed_count_max=0,
            waiting_count_max=1_024,
        )


@dataclass(slots=True)
class ProxyCounters:
    """Since the start."""

    connected_count: int = 0
    failed_count: int = 0
    forwarded_count: int = 0


class RelayLink(Protocol):
    """What is used of `SmpLink`; see there."""

    session: SmpSession

    @property
    def end(self) -> SynclineError | None: ...

    async def request(
        self, command: Command, *, timeout_s: float | None = None, corr_id: bytes | None = None
    ) -> RouterMessage: ...

    def take_events(self) -> list[LinkEvent]: ...

    async def close(self) -> None: ...


# Raises FailureError, and what `SmpLink.connect` raises.
Connect = Callable[[RouterAddress], Awaitable[RelayLink]]


def connecting(targets: Targets, options: LinkOptions) -> Connect:
    """The real thing: over TLS, to where the targets allow."""

    async def connect(address: RouterAddress) -> RelayLink:
        return await SmpLink.connect(await targets.reachable(address), options, is_proxy=True)

    return connect


class _Open:
    """A connection to a relay."""

    __slots__ = ("box", "link", "pkey")

    def __init__(self, link: RelayLink) -> None:
        session = link.session
        hello = session.hello
        if session.version < versions.PROXYING:
            raise FailureError(failures.BROKER_VERSION)
        assert hello is not None, "the link was made by a hello"
        assert hello.key is not None, "a link is not made without"
        self.link = link
        self.box = SecretBox(session.secret)
        self.pkey = Pkey(hello.session_id, hello.versions, hello.key)


class _Relay:
    """Another router: connected, or about to be."""

    __slots__ = ("address", "open", "used_s", "waiting", "waiting_count")

    def __init__(self, address: RouterAddress, now_s: float) -> None:
        self.address = address
        self.used_s = now_s
        # None while it is being connected to; then these wait for that.
        self.open: _Open | None = None
        self.waiting: list[Call] = []
        # Commands that wait for its answer.
        self.waiting_count = 0

    @property
    def has_ended(self) -> bool:
        return self.open is not None and self.open.link.end is not None

    @property
    def is_idle(self) -> bool:
        return self.open is not None and not self.waiting_count


class Proxying:
    """See the module. `clock_s` never goes back."""

    def __init__(
        self,
        options: ProxyOptions,
        connect: Connect,
        tasks: Tasks,
        clock_s: Callable[[], float],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._options = options
        self._connect = connect
        self._tasks = tasks
        self._clock_s = clock_s
        self._random_bytes = random_bytes
        # Those that were used last come last.
        self._by_address: dict[RouterAddress, _Relay] = {}
        self._by_session: dict[bytes, _Relay] = {}
        self._waiting_count = 0
        self.counters = ProxyCounters()

    @property
    def connection_count(self) -> int:
        """With those that are being made."""
        return len(self._by_address)

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    # Commands.

    def open(self, call: Call, command: Prxy, router: Worker) -> Reply | None:
        """None: it is answered later. Raises FailureError."""
        if self._options.reach is Reach.NOBODY or not self._knows(command.password):
            raise FailureError(failures.BASIC_AUTH)
        relay = self._living(self._by_address.get(command.address))
        if relay is not None and relay.open is not None:
            self._use(relay)
            return Reply(relay.open.pkey)
        self._check_room()
        if relay is None:
            relay = self._start(command.address, router)
        self._waiting_count += 1
        relay.waiting.append(call)
        router.hold(call)
        return None

    def forward(self, call: Call, command: Pfwd, router: Worker) -> None:
        """It is answered later. Raises FailureError."""
        transmission = call.transmission
        relay = self._living(self._by_session.get(transmission.entity_id))
        if relay is None or relay.open is None:
            raise FailureError(failures.NO_SESSION)
        connection = relay.open
        if command.version < versions.PROXYING or command.version not in connection.pkey.versions:
            raise FailureError(failures.BROKER_VERSION)
        forward = Forward(transmission.corr_id, command.version, command.key, command.body)
        nonce = self._random_bytes(CORR_ID_BYTES)
        boxed = connection.box.box(nonce, encode_forward(forward))
        if len(boxed) > _BOXED_BYTES_MAX:
            raise FailureError(_TOO_LARGE)
        self._check_room()
        self._use(relay)
        self._waiting_count += 1
        relay.waiting_count += 1
        router.hold(call)
        self._tasks.start(
            self._bring(relay, connection, call, nonce, boxed, router), "forward a command"
        )

    # Connecting.

    def _start(self, address: RouterAddress, router: Worker) -> _Relay:
        self._make_room()
        relay = self._by_address[address] = _Relay(address, self._clock_s())
        self._tasks.start(self._reach(relay, router), "connect to another router")
        return relay

    async def _reach(self, relay: _Relay, router: Worker) -> None:
        message = await self._connected(relay)
        waiting, relay.waiting = relay.waiting, []
        self._waiting_count -= len(waiting)
        for call in waiting:
            router.answer(call, message)

    async def _connected(self, relay: _Relay) -> RouterMessage:
        """What those are told that wait for it."""
        try:
            async with asyncio.timeout(self._options.connect_seconds_max):
                link = await self._connect(relay.address)
            relay.open = await _opened(link)
        except (SynclineError, TimeoutError) as error:
            self.counters.failed_count += 1
            self._forget(relay)
            return Err(_connect_failure(error))
        self.counters.connected_count += 1
        self._by_session[relay.open.pkey.session_id] = relay
        self._use(relay)
        return relay.open.pkey

    # Forwarding.

    async def _bring(
        self,
        relay: _Relay,
        connection: _Open,
        call: Call,
        nonce: bytes,
        boxed: bytes,
        router: Worker,
    ) -> None:
        message: RouterMessage
        try:
            body = await self._asked(connection, call.transmission.corr_id, nonce, boxed)
            message = Pres(body)
            self.counters.forwarded_count += 1
        except FailureError as error:
            message = Err(error.failure)
        self._waiting_count -= 1
        relay.waiting_count -= 1
        router.answer(call, message)

    async def _asked(self, connection: _Open, corr_id: bytes, nonce: bytes, boxed: bytes) -> bytes:
        """What the relay answers, for the client alone to open. Raises FailureError."""
        link, seconds_max = connection.link, self._options.answer_seconds_max
        try:
            async with asyncio.timeout(seconds_max):
                answer = await link.request(Rfwd(boxed), corr_id=nonce, timeout_s=seconds_max)
        except FailureError as error:
            raise FailureError(failures.proxy_protocol(error.failure)) from error
        except (LinkError, TimeoutError) as error:
            has_ended = link.end is not None
            failure = failures.BROKER_NETWORK if has_ended else failures.BROKER_TIMEOUT
            raise FailureError(failure) from error
        except ProtocolError as error:
            raise FailureError(_BAD_RESPONSE) from error
        if not isinstance(answer, Rres):
            word = type(answer).__name__.upper().encode()
            raise FailureError(failures.proxy_broker("UNEXPECTED", word))
        return _opened_answer(connection.box, corr_id, nonce, answer.body)

    # Keeping.

    def keep_house(self) -> None:
        """Every second or so: connections that have ended, or that nobody uses, are let go of."""
        idle_before_s = self._clock_s() - self._options.idle_seconds_max
        for relay in list(self._by_address.values()):
            if relay.open is not None:
                relay.open.link.take_events()
            if relay.has_ended:
                self._forget(relay)
            elif relay.is_idle and relay.used_s <= idle_before_s:
                self._close(relay)

    async def close(self) -> None:
        """Whoever waits is not told any more: the router stops."""
        await self._tasks.close()
        links = [relay.open.link for relay in self._by_address.values() if relay.open is not None]
        self._by_address.clear()
        self._by_session.clear()
        await asyncio.gather(*(link.close() for link in links))

    def _knows(self, password: bytes | None) -> bool:
        wanted = self._options.password
        return not wanted or compare_digest(wanted.encode(), password or b"")

    def _check_room(self) -> None:
        if self._waiting_count >= self._options.waiting_count_max:
            raise FailureError(failures.BROKER_TIMEOUT)

    def _make_room(self) -> None:
        """For one more connection. Raises FailureError if all are busy."""
        if len(self._by_address) < self._options.connection_count_max:
            return
        relays = self._by_address.values()
        ended = next((relay for relay in relays if relay.has_ended), None)
        idle = ended or next((relay for relay in relays if relay.is_idle), None)
        if idle is None:
            raise FailureError(failures.BROKER_NETWORK)
        self._close(idle)

    def _living(self, relay: _Relay | None) -> _Relay | None:
        """The same, unless its connection has ended: then it is forgotten."""
        if relay is None or not relay.has_ended:
            return relay
        self._forget(relay)
        return None

    def _use(self, relay: _Relay) -> None:
        relay.used_s = self._clock_s()
        self._by_address[relay.address] = self._by_address.pop(relay.address)

    def _close(self, relay: _Relay) -> None:
        assert relay.open is not None
        self._forget(relay)
        self._tasks.start(relay.open.link.close(), "close a connection to another router")

    def _forget(self, relay: _Relay) -> None:
        self._by_address.pop(relay.address, None)
        if relay.open is not None:
            self._by_session.pop(relay.open.pkey.session_id, None)


async def _opened(link: RelayLink) -> _Open:
    try:
        return _Open(link)
    except FailureError:
        await link.close()
        raise


def _opened_answer(box: SecretBox, corr_id: bytes, nonce: bytes, boxed: bytes) -> bytes:
    try:
        opened = box.open_box(reversed_nonce(nonce), boxed)
    except MalformedMessageError as error:
        raise FailureError(failures.CRYPTO) from error
    try:
        answer = decode_forward_answer(opened)
    except MalformedMessageError as error:
        raise FailureError(_BAD_RESPONSE) from error
    if answer.corr_id != corr_id:
        raise FailureError(_BAD_RESPONSE)
    return answer.body


def _connect_failure(error: SynclineError | TimeoutError) -> Failure:
    match error:
        case FailureError(failure=failure):
            return failure
        case UnsupportedVersionError():
            return failures.BROKER_VERSION
        case ProtocolError():
            return _NO_HELLO
        case _:
            # Nobody there, too slow, or another router than the one that was meant.
            return failures.BROKER_NETWORK
