"""A router without sockets: real stores, sessions that write down what they are sent, and a disk
that is as quick as the test wants it to be.

Everything happens in the loop: a batch is written one turn after it was taken, or when the test
says so. So a test sees each step between a command and its answer.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog

from syncline.errors import StorageError
from syncline.server.batch_thread import Written
from syncline.server.committer import Committer
from syncline.server.logs import Log
from syncline.server.smp.dispatching import Relay
from syncline.server.smp.faces import Answer, SessionService
from syncline.server.smp.options import SmpOptions
from syncline.server.smp.parts import Surroundings
from syncline.server.smp.router import SmpRouter
from syncline.storage.base import Batch, Commits, Store
from syncline.storage.files import DiskFiles
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.storage.records.base import Records
from syncline.storage.records.memory import MemoryRecords
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.limits import MIB
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp.authorizations import authenticate, public_key_of, sign
from syncline.wire.smp.bodies import Received, ReceivedMessage, open_received, sender_id_of
from syncline.wire.smp.boxes import SecretBox, shared_secret, x25519_public
from syncline.wire.smp.commands import (
    Command,
    LinkRequest,
    New,
    NotifierKeys,
    QueueRequest,
    Send,
    Sub,
    encode_command,
)
from syncline.wire.smp.failures import Failure
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Err, Ids, Msg, RouterMessage, encode_message
from syncline.wire.smp.transmissions import (
    decode_block,
    encode_transmission,
    pack,
    signed_bytes,
)

DAY_MS = 24 * 60 * 60 * 1_000
NOW_MS = 20_000 * DAY_MS
_numbers = count(1)


def some_bytes(size: int) -> bytes:
    """Unlike any before, and the same in each run."""
    return sha256(next(_numbers).to_bytes(8, "big")).digest()[:size].ljust(size, b"\x5a")


# -------------------------------------------------------------------------------------------- disk


@dataclass
class HandMovedDisk:
    """Writes what it is handed in the next turn; while held, only when told to."""

    store: Commits
    is_held: bool = False
    failure: StorageError | None = None
    waiting: tuple[Batch, Written] | None = None
    batch_count: int = 0

    def write(self, batch: Batch, written: Written) -> None:
        self.waiting = (batch, written)
        if not self.is_held:
            asyncio.get_running_loop().call_soon(self.write_one)

    def write_one(self) -> None:
        """Write the batch that waits, if one does."""
        if self.waiting is None:
            return
        (batch, written), self.waiting = self.waiting, None
        self.batch_count += 1
        failure = self.failure
        if failure is None:
            try:
                self.store.write_batch(batch)
            except StorageError as error:
                failure = error
        # So slow that the committer never writes in the loop by itself.
        written(1.0, failure)

    def let_go(self) -> None:
        self.is_held = False
        self.write_one()

    def close(self) -> None:
        pass


# -------------------------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class OwnKey:
    """A key that authorizes commands."""

    kind: KeyKind
    private: bytes

    @classmethod
    def make(cls, kind: KeyKind = KeyKind.ED25519) -> "OwnKey":
        return cls(kind, some_bytes(57 if kind is KeyKind.ED448 else 32))

    @property
    def public(self) -> PublicKey:
        return public_key_of(self.kind, self.private)

    def authorize(self, data: bytes, corr_id: bytes, router_public: bytes) -> bytes:
        if self.kind is KeyKind.X25519:
            return authenticate(self.private, router_public, corr_id, data)
        return sign(self.kind, self.private, data)


@dataclass
class Queue:
    """A queue as the one who made it knows it."""

    ids: Ids
    key: OwnKey
    dh_private: bytes
    notifier_key: OwnKey | None = None
    sender_key: OwnKey | None = None

    @property
    def recipient_id(self) -> bytes:
        return self.ids.recipient_id

    @property
    def sender_id(self) -> bytes:
        return self.ids.sender_id

    def open(self, message: RouterMessage) -> Received:
        assert isinstance(message, Msg)
        box = SecretBox(shared_secret(self.dh_private, self.ids.dh_key.raw))
        return open_received(box, message.message_id, message.body)

    def text(self, message: RouterMessage) -> bytes:
        """The body of a message that is one."""
        received = self.open(message)
        assert isinstance(received, ReceivedMessage)
        return received.body


@dataclass(frozen=True)
class Service:
    """A certificate that was admitted, and what a session of it signs with."""

    service_id: bytes
    role: ServiceRole
    certificate_hash: bytes
    key: OwnKey = field(default_factory=OwnKey.make)

    def session(self) -> SessionService:
        return SessionService(self.service_id, self.role, self.key.public, self.certificate_hash)


# ---------------------------------------------------------------------------------------- sessions


@dataclass
class Request:
    """A command with what is said beside it."""

    command: Command | bytes
    entity_id: bytes = b""
    key: OwnKey | None = None
    # None: as a session of this kind does it.
    with_service_signature: bool | None = None
    with_certificate_hash: bool | None = None
    corr_id: bytes = field(default_factory=lambda: some_bytes(24))
    signed_by: OwnKey | None = None


class Peer:
    """One session, from both sides: what the router sends is written down here."""

    def __init__(self, router: SmpRouter, version: int, service: Service | None) -> None:
        self.router = router
        self.number = next(_numbers)
        self.version = version
        self.session_id = some_bytes(32)
        self.router_private: bytes | None = some_bytes(32) if version >= 7 else None
        self.owned_service = service
        self.service = None if service is None else service.session()
        self.is_proxy = False
        self.forward_box: SecretBox | None = None
        self.remote = "192.0.2.1:5223"
        self.is_writable = True
        # After so many answers it can take no more.
        self.room: int | None = None
        self.is_reading = True
        self.closed_because: str | None = None
        self.sent: list[Answer] = []
        # What came in one call of `send`.
        self.sendings: list[list[Answer]] = []

    # As the router sees it.

    def send(self, answers: Sequence[Answer]) -> None:
        if self.closed_because is not None:
            return
        for answer in answers:
            encode_message(self.version, answer.message)
        self.sent += answers
        self.sendings.append(list(answers))
        if self.room is not None:
            self.room -= len(answers)
            if self.room <= 0:
                self.is_writable = False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self, reason: str) -> None:
        if self.closed_because is None:
            self.closed_because = reason
            self.router.closed(self)

    # As the test uses it.

    def drain(self, room: int | None = None) -> None:
        """It has taken everything, and can take more."""
        self.room = room
        self.is_writable = True
        self.router.drained(self)

    def transmission(self, request: Request) -> bytes:
        body = request.command
        if not isinstance(body, bytes):
            body = encode_command(self.version, body)
        signed = signed_bytes(self.session_id, request.corr_id, request.entity_id, body)
        is_dual = self.owned_service is not None and body.split(b" ")[0] in (
            b"NEW",
            b"SUB",
            b"NSUB",
        )
        signature: bytes | None = None
        if is_dual if request.with_service_signature is None else request.with_service_signature:
            signer = request.signed_by or (
                OwnKey.make() if self.owned_service is None else self.owned_service.key
            )
            signature = signer.authorize(signed, request.corr_id, b"")
        data = signed
        if is_dual if request.with_certificate_hash is None else request.with_certificate_hash:
            assert self.service is not None
            data = self.service.certificate_hash + signed
        authorization = b""
        if request.key is not None:
            router_public = x25519_public(self.router_private or bytes(32))
            authorization = request.key.authorize(data, request.corr_id, router_public)
        return encode_transmission(
            self.version,
            self.session_id,
            authorization,
            signature,
            request.corr_id,
            request.entity_id,
            body,
        )

    def say(self, *requests: Request) -> None:
        """Commands, in as many blocks as it takes; nobody waits for the answers."""
        for content in pack([self.transmission(request) for request in requests]):
            self.say_content(content)

    def say_content(self, content: bytes) -> None:
        self.router.received(self, decode_block(self.version, self.session_id, content))

    def answer_to(self, request: Request) -> RouterMessage | None:
        """What came for this request, and is taken from what was sent."""
        for answer in self.sent:
            if answer.corr_id == request.corr_id:
                self.sent.remove(answer)
                expected = b"" if isinstance(answer.message, Ids) else request.entity_id
                assert answer.entity_id == expected
                return answer.message
        return None

    async def ask_all(self, *requests: Request) -> list[RouterMessage]:
        """In one block if they fit, and wait for all answers."""
        self.say(*requests)
        found: dict[bytes, RouterMessage] = {}
        for _ in range(500):
            for request in requests:
                if request.corr_id not in found and (message := self.answer_to(request)):
                    found[request.corr_id] = message
            if len(found) == len(requests):
                return [found[request.corr_id] for request in requests]
            await asyncio.sleep(0)
        raise AssertionError(f"{len(requests) - len(found)} commands are not answered")

    async def ask(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        key: OwnKey | None = None,
        **beside: Any,
    ) -> RouterMessage:
        (message,) = await self.ask_all(Request(command, entity_id, key, **beside))
        return message

    async def refusal(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        key: OwnKey | None = None,
        **beside: Any,
    ) -> Failure:
        message = await self.ask(command, entity_id, key, **beside)
        assert isinstance(message, Err), message
        return message.failure

    def events(self) -> list[tuple[bytes, RouterMessage]]:
        """What came by itself since the last time."""
        events = [(each.entity_id, each.message) for each in self.sent if not each.corr_id]
        self.sent = [each for each in self.sent if each.corr_id]
        return events

    async def event(self) -> tuple[bytes, RouterMessage]:
        """The only thing that came by itself, or is about to."""
        await turns()
        (event,) = self.events()
        return event

    # What most tests do.

    async def create(
        self,
        mode: QueueMode = QueueMode.MESSAGING,
        *,
        kind: KeyKind = KeyKind.ED25519,
        subscribes: bool = True,
        has_notifier: bool = False,
        link: tuple[bytes, bytes] | None = None,
        link_id: bytes | None = None,
    ) -> Queue:
        key, dh_private = OwnKey.make(kind), some_bytes(32)
        notifier_key = OwnKey.make() if has_notifier else None
        request = Request(b"", key=key)
        link_request = None
        if link is not None:
            link_request = LinkRequest(link_id, sender_id_of(request.corr_id), *link)
        request.command = New(
            key.public,
            PublicKey(KeyKind.X25519, x25519_public(dh_private)),
            subscribes=subscribes,
            request=QueueRequest(mode, link_request) if self.version >= 9 else None,
            notifier=None
            if notifier_key is None
            else NotifierKeys(
                notifier_key.public, PublicKey(KeyKind.X25519, x25519_public(some_bytes(32)))
            ),
        )
        (ids,) = await self.ask_all(request)
        assert isinstance(ids, Ids), ids
        return Queue(ids, key, dh_private, notifier_key)

    async def post(self, queue: Queue, body: bytes, flags: bytes = b"F") -> RouterMessage:
        return await self.ask(Send(flags, body), queue.sender_id, queue.sender_key)

    async def subscribe(self, queue: Queue) -> RouterMessage:
        return await self.ask(Sub(), queue.recipient_id, queue.key)


# ------------------------------------------------------------------------------------------ router


@dataclass
class RouterRig:
    """A router with everything that it stands on."""

    store: Store
    disk: HandMovedDisk
    committer: Committer
    records: Records
    records_disk: HandMovedDisk
    records_committer: Committer
    options: SmpOptions
    router: SmpRouter
    now_ms: int = NOW_MS
    # How far the machine's clock was set ahead.
    leap_ms: int = 0
    # By which messages are too old: as long as nothing else is set, it is `now_ms`.
    cautious_ms: int | None = None
    peers: list[Peer] = field(default_factory=list[Peer])

    @property
    def counters(self) -> Any:
        return self.router.counters

    def connect(self, version: int = 20, service: Service | None = None) -> Peer:
        peer = Peer(self.router, version, service)
        self.router.opened(peer)
        self.peers.append(peer)
        return peer

    async def service(
        self, role: ServiceRole = ServiceRole.MESSAGING, certificate: bytes | None = None
    ) -> Service:
        certificate = certificate or some_bytes(100)
        admitted = await self.router.admit_service((certificate,), role)
        assert isinstance(admitted, bytes), admitted
        return Service(admitted, role, sha256(certificate).digest())

    async def settle(self) -> None:
        """Until nothing moves any more."""
        for _ in range(3):
            await turns()
            await self.committer.durable()
            await self.records_committer.durable()

    def restart(self) -> None:
        """Another router on the same stores, which knows only what they do."""
        for peer in list(self.peers):
            peer.close("restart")
        self.peers.clear()
        self.router = self.make_router(self.options)

    def make_router(
        self, options: SmpOptions, relay: Relay | None = None, **more: Any
    ) -> SmpRouter:
        return SmpRouter(
            Surroundings(
                self.store,
                self.committer,
                self.records,
                self.records_committer,
                lambda: self.now_ms + self.leap_ms,
                lambda: self.now_ms,
                lambda: self.now_ms if self.cautious_ms is None else self.cautious_ms,
                some_bytes,
                options,
                quiet_log(),
                **more,
            ),
            relay,
        )

    def choose(self, options: SmpOptions, **more: Any) -> None:
        """A router with other settings in place of the last one."""
        self.options = options
        self.router = self.make_router(options, **more)


def quiet_log() -> Log:
    return Log(structlog.testing.CapturingLogger())  # type: ignore[arg-type]


async def turns(count_: int = 40) -> None:
    for _ in range(count_):
        await asyncio.sleep(0)


def _committer(store: Commits) -> tuple[HandMovedDisk, Committer]:
    disk = HandMovedDisk(store)
    return disk, Committer(store, asyncio.get_running_loop(), disk)


def make_rig(store: Store, records: Records, options: SmpOptions | None = None) -> RouterRig:
    disk, committer = _committer(store)
    records_disk, records_committer = _committer(records)
    rig = RouterRig(
        store,
        disk,
        committer,
        records,
        records_disk,
        records_committer,
        options or SmpOptions(),
        None,  # type: ignore[arg-type]
    )
    rig.router = rig.make_router(rig.options)
    return rig


def _memory(_folder: Path) -> tuple[Store, Records]:
    files = DiskFiles()
    store = MemoryStore.open("data", files, StoreOptions(), now_ms=1, random_bytes=some_bytes)
    return store, MemoryRecords.open("data", files)


def _on_disk(folder: Path) -> tuple[Store, Records]:
    files = DiskFiles()
    options = StoreOptions(is_durable=False, segment_bytes=1 * MIB)
    store = LogStore.open(str(folder), files, options, now_ms=NOW_MS, random_bytes=some_bytes)
    return store, SqliteRecords.open(str(folder), files)


_BACKENDS = {"memory": _memory, "disk": _on_disk}


async def _rig(backend: str, folder: Path) -> AsyncIterator[RouterRig]:
    store, records = _BACKENDS[backend](folder)
    made = make_rig(store, records)
    yield made
    await made.router.close()
    if made.committer.failure is None and made.records_committer.failure is None:
        made.disk.let_go()
        made.records_disk.let_go()
        await made.settle()
        records.close()
        store.close()


@pytest.fixture(params=["memory", "disk"])
async def smp(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RouterRig]:
    """On the model and on the real thing."""
    async for made in _rig(request.param, tmp_path):
        yield made


@pytest.fixture
async def in_memory(tmp_path: Path) -> AsyncIterator[RouterRig]:
    """On the model alone, for tests of the order of things."""
    async for made in _rig("memory", tmp_path):
        yield made
