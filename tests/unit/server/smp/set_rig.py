"""What tests of extended sessions do: services with queues, questions, and waiting for a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from syncline.core.reconciliation.sets import IdSet
from syncline.values.digests import digest_of
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import Answer, Request, SetHashes, SetState
from syncline.wire.reconciliation.answers import decode_answer
from syncline.wire.reconciliation.requests import encode_request
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp import versions
from syncline.wire.smp.commands import Command, Nsub, Nsubs, Recq, Sub, Subs
from syncline.wire.smp.failures import Failure
from syncline.wire.smp.messages import Err, Ok, Reca, RouterMessage, Sok, Soks
from tests.unit.server.smp import router_rig
from tests.unit.server.smp.router_rig import Peer, Queue, RouterRig, Service

# Milliseconds; far more than anything here takes.
_WAIT_COUNT = 15_000


async def until(is_so: Callable[[], object]) -> None:
    """The worker is a thread: how many turns of the loop it takes nobody knows."""
    for _ in range(_WAIT_COUNT):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("that did not happen")


def request_of(peer: Peer, command: Command | bytes) -> router_rig.Request:
    """In the name of the service, signed by the session."""
    assert peer.owned_service is not None
    return router_rig.Request(command, peer.owned_service.service_id, peer.owned_service.key)


async def say(peer: Peer, command: Command | bytes) -> RouterMessage:
    request = request_of(peer, command)
    peer.say(request)
    found: list[RouterMessage] = []

    def has_come() -> bool:
        if (message := peer.answer_to(request)) is not None:
            found.append(message)
        return bool(found)

    await until(has_come)
    return found[0]


async def refusal(peer: Peer, command: Command | bytes) -> Failure:
    message = await say(peer, command)
    assert isinstance(message, Err), message
    return message.failure


class Asked:
    """A question that was sent, and what has come for it."""

    def __init__(self, peer: Peer, question: Request) -> None:
        self.peer = peer
        self.requests = [request_of(peer, Recq(part)) for part in encode_request(question)]
        peer.say(*self.requests)

    @property
    def messages(self) -> list[RouterMessage]:
        last = self.requests[-1].corr_id
        return [each.message for each in self.peer.sent if each.corr_id == last]

    @property
    def parts(self) -> list[bytes]:
        return [each.part for each in self.messages if isinstance(each, Reca)]

    @property
    def answer(self) -> Answer | Failure | None:
        """None as long as it is not whole."""
        for message in self.messages:
            if isinstance(message, Err):
                return message.failure
        joiner, whole = Joiner(1 << 26), None
        for part in self.parts:
            whole = joiner.add(part)
        return None if whole is None else decode_answer(*whole)

    async def wait(self) -> Answer | Failure:
        await until(lambda: self.answer is not None)
        for request in self.requests[:-1]:
            assert self.peer.answer_to(request) == Ok()
        answer = self.answer
        assert answer is not None
        self.peer.sent = [
            each for each in self.peer.sent if each.corr_id != self.requests[-1].corr_id
        ]
        return answer


async def ask(peer: Peer, question: Request) -> Answer:
    answer = await Asked(peer, question).wait()
    assert not isinstance(answer, Failure), answer
    return answer


def told_by(peer: Peer, ids: Iterable[bytes]) -> Subs | Nsubs:
    """What a client says that believes to have these."""
    digest = digest_of(ids)
    assert peer.owned_service is not None
    kind = Nsubs if peer.owned_service.role is ServiceRole.NOTIFIER else Subs
    hashes = SetHashes(digest.xor_xxh3, digest.sum128)
    return kind(digest.count, digest.xor_md5, hashes if peer.version >= versions.EXTENDED else None)


async def subs(peer: Peer, ids: Iterable[bytes] = ()) -> Soks:
    answer = await say(peer, told_by(peer, ids))
    assert isinstance(answer, Soks), answer
    return answer


def state_of(version: int, ids: Iterable[bytes]) -> SetState:
    digest = digest_of(ids)
    return SetState(version, digest.count, digest.xor_xxh3, digest.sum128)


async def with_queues(
    smp: RouterRig, count: int, role: ServiceRole = ServiceRole.MESSAGING
) -> tuple[Peer, Service, list[Queue]]:
    """An extended session of a service, to which so many queues belong, or their notifiers."""
    service = await smp.service(role)
    peer, plain = smp.connect(versions.EXTENDED, service), smp.connect()
    queues = [
        await plain.create(subscribes=False, has_notifier=role is ServiceRole.NOTIFIER)
        for _ in range(count)
    ]
    for queue in queues:
        await associate(peer, queue)
    return peer, service, queues


async def associate(peer: Peer, queue: Queue) -> None:
    assert peer.service is not None
    answer: RouterMessage
    if peer.service.role is ServiceRole.NOTIFIER:
        answer = await peer.ask(Nsub(), notifier_id(queue), queue.notifier_key)
    else:
        answer = await peer.ask(Sub(), queue.recipient_id, queue.key)
    assert answer == Sok(peer.service.service_id)


def notifier_id(queue: Queue) -> bytes:
    assert queue.ids.notifier is not None
    return queue.ids.notifier.notifier_id


def ids_of(queues: Iterable[Queue]) -> list[bytes]:
    return [queue.recipient_id for queue in queues]


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[RouterRig]:
    """On the real thing alone: for sets that take the model too long, and for damage."""
    async for made in router_rig._rig("disk", tmp_path):
        yield made


class Gate:
    """Nobody reads a set until it is opened."""

    def __init__(self, smp: RouterRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        self.is_reading = threading.Event()
        self._read_set = smp.records.read_set
        monkeypatch.setattr(smp.records, "read_set", self.read_set)

    def open(self) -> None:
        self._opened.set()

    def read_set(self, service_id: bytes) -> AbstractContextManager[IdSet]:
        return self._gated(service_id)

    @contextmanager
    def _gated(self, service_id: bytes) -> Generator[IdSet]:
        self.is_reading.set()
        assert self._opened.wait(15)
        with self._read_set(service_id) as ids:
            yield ids
