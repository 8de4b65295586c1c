"""The hello of one connection, whatever carries its blocks: the handshake as it happens."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from syncline.certificates import Identity
from syncline.errors import NotAuthorizedError, ProtocolError, StorageError
from syncline.server.smp.faces import SessionService
from syncline.server.smp.handshake import (
    Agreed,
    LinkFacts,
    Offer,
    OfferedService,
    answer_block,
    make_offer,
    read_hello,
)
from syncline.server.smp.session import BlockLink, Sessions
from syncline.server.smp.tasks import Tasks
from syncline.wire.smp.hellos import ALL_VERSIONS, ServiceAccepted, ServiceRefused, VersionRange


@dataclass(slots=True)
class Host:
    """Whom a client meets: what every hello of a router needs."""

    identity: Identity
    sessions: Sessions
    tasks: Tasks
    now: Callable[[], datetime]
    random_bytes: Callable[[int], bytes]
    versions: VersionRange = ALL_VERSIONS


class Greeting:
    """From our hello until there is a session, or none."""

    __slots__ = ("_facts", "_has_ended", "_host", "_identity", "_link", "_offer")

    def __init__(
        self, link: BlockLink, facts: LinkFacts, host: Host, identity: Identity | None = None
    ) -> None:
        """`identity` is the one that the link was made with, where that shows one."""
        self._link = link
        self._facts = facts
        self._host = host
        # Another may take its place before the hello is over.
        self._identity = identity or host.identity
        self._has_ended = False
        self._offer: Offer | None = None

    def start(self) -> None:
        self._offer = make_offer(
            self._identity, self._facts, self._host.versions, self._host.random_bytes
        )
        if self._offer is None:
            self._fail()
        else:
            self._link.write_block(self._offer.block)

    # What the link says.

    def block_received(self, block: bytes) -> None:
        if self._offer is None or self._has_ended:
            return
        fingerprint, now = self._identity.fingerprint, self._host.now()
        try:
            agreed = read_hello(block, self._offer, self._facts, fingerprint, now)
        except (ProtocolError, NotAuthorizedError):
            self._fail()
            return
        if isinstance(agreed, ServiceRefused):
            self._refuse(agreed)
        elif agreed.service is None:
            self._open(agreed, None)
        else:
            # It waits for our answer, and has no reason to say anything before.
            self._link.pause_reading()
            self._host.tasks.start(self._admit(agreed, agreed.service), "admit a service")

    def drained(self) -> None:
        """Nothing waits but our hello."""

    def ended(self) -> None:
        self._has_ended = True

    # Outcomes.

    async def _admit(self, agreed: Agreed, service: OfferedService) -> None:
        try:
            admitted = await self._host.sessions.face.admit_service(service.chain, service.role)
        except StorageError:
            # Nothing is wrong with the service: it may come again, as whoever finds nobody here.
            self._fail()
            return
        if self._has_ended:
            return
        if isinstance(admitted, str):
            self._refuse(ServiceRefused(admitted))
            return
        self._link.write_block(answer_block(ServiceAccepted(admitted)))
        speaker = SessionService(admitted, service.role, service.key, service.fingerprint)
        self._open(agreed, speaker)
        self._link.resume_reading()

    def _open(self, agreed: Agreed, service: SessionService | None) -> None:
        assert self._offer is not None
        private = self._offer.private
        self._host.sessions.open(self._link, self._facts, agreed, private, service)

    def _refuse(self, refused: ServiceRefused) -> None:
        self._host.sessions.stats.service_refused_count += 1
        self._link.write_block(answer_block(refused))
        self._link.close()

    def _fail(self) -> None:
        self._host.sessions.stats.hello_failed_count += 1
        self._link.close()
