"""How an agent reaches routers, and where it takes time and chance from."""

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from syncline.errors import SynclineError
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkEvent, LinkOptions, Outcome, Request, SmpLink
from syncline.links.smp_session import LinkService
from syncline.values import reconciliation
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Command
from syncline.wire.smp.messages import RouterMessage


class Link(Protocol):
    """What an agent uses of `SmpLink`; see there."""

    @property
    def version(self) -> int: ...
    @property
    def is_extended(self) -> bool: ...
    @property
    def session_id(self) -> bytes: ...
    @property
    def service(self) -> LinkService | None: ...

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        timeout_s: float | None = None,
        corr_id: bytes | None = None,
    ) -> RouterMessage: ...

    async def ask(self, question: reconciliation.Request) -> reconciliation.Answer: ...
    async def start(self, request: Request) -> Awaitable[RouterMessage]: ...
    async def request_many(self, requests: Sequence[Request]) -> list[Outcome]: ...
    async def next_event(self) -> LinkEvent: ...
    def take_events(self) -> list[LinkEvent]: ...
    def take_missed(self) -> set[bytes]: ...
    async def ended(self) -> SynclineError: ...
    async def close(self) -> None: ...
    def cut(self) -> None: ...


Connect = Callable[[RouterAddress, ServiceLogin | None], Awaitable[Link]]


def connecting(options: LinkOptions | None = None) -> Connect:
    """The real thing: over TLS."""

    async def connect(address: RouterAddress, service: ServiceLogin | None) -> Link:
        return await SmpLink.connect(address, options, service=service)

    return connect


Made = TypeVar("Made")


class InThread(Protocol):
    """Does work elsewhere, so that the event loop goes on."""

    async def __call__(self, work: Callable[[], Made], /) -> Made: ...


async def in_thread(work: Callable[[], Made], /) -> Made:
    return await asyncio.to_thread(work)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """What a test holds in its hand."""

    connect: Connect
    clock_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    entropy: Entropy = secrets.token_bytes
    now: Callable[[], datetime] = _utc_now
    on_thread: InThread = in_thread
