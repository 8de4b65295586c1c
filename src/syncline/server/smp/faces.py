"""What the transport and the router know of one another; neither imports the other.

The transport carries blocks: it decodes what comes into transmissions and packs what goes out. The
router carries commands out. Both live in one event loop, and no call here waits.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.keys import PublicKey
from syncline.wire.smp.messages import RouterMessage
from syncline.wire.smp.transmissions import Damaged, Transmission


class Answer(msgspec.Struct, frozen=True):
    """An answer, or an event: then the correlation id is empty.

    A struct: three are made for each message (bench: queues).
    """

    corr_id: bytes
    entity_id: bytes
    message: RouterMessage


@dataclass(frozen=True, slots=True)
class SessionService:
    """Who a session speaks for, since its service handshake."""

    service_id: bytes
    role: ServiceRole
    # Of this session, not of the certificate.
    key: PublicKey
    # SHA-256 of the certificate that is the service's identity.
    certificate_hash: bytes


class SmpSession(Protocol):
    """One connection after its handshake, as the router sees it."""

    @property
    def number(self) -> int:
        """Unlike that of any other session since the start."""
        ...

    @property
    def version(self) -> int: ...

    @property
    def session_id(self) -> bytes: ...

    @property
    def router_private(self) -> bytes | None:
        """The router's X25519 key of this session, for authenticators; version 6 has none."""
        ...

    @property
    def service(self) -> SessionService | None: ...

    @property
    def is_proxy(self) -> bool: ...

    @property
    def forward_box(self) -> SecretBox | None:
        """What a proxy boxes forwarded commands with, if it may be a proxy's session."""
        ...

    @property
    def remote(self) -> str: ...

    @property
    def is_writable(self) -> bool:
        """False once much is unsent; `RouterFace.drained` is called when it is True again."""
        ...

    def send(self, answers: Sequence[Answer]) -> None:
        """Take them, whether or not there is room, in this order; nothing once it is closed."""
        ...

    def pause_reading(self) -> None:
        """From now on `RouterFace.received` is not called, also not for what has come already."""
        ...

    def resume_reading(self) -> None: ...

    def close(self, reason: str) -> None: ...


class RouterFace(Protocol):
    """What the transport calls."""

    def admit_service(self, chain: tuple[bytes, ...], role: ServiceRole) -> Awaitable[bytes | str]:
        """The id of the service with this certificate, or the transport error's text.

        The chain was checked and is that of the TLS connection. Raises StorageError.
        """
        ...

    def opened(self, session: SmpSession) -> None: ...

    def received(
        self, session: SmpSession, transmissions: Sequence[Transmission | Damaged]
    ) -> None:
        """One block. Not called while the session is not writable or its reading is paused."""
        ...

    def drained(self, session: SmpSession) -> None: ...

    def closed(self, session: SmpSession) -> None: ...
