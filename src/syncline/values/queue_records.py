"""What is kept of a queue beside its messages, and of a service.

Ids are 24 bytes; keys stand here as they came, DER-encoded with their algorithm.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from syncline.values.ids import StreamId


class QueueMode(StrEnum):
    """Who may secure a queue: its sender, or its recipient alone."""

    MESSAGING = "M"
    CONTACT = "C"


class QueueStatus(StrEnum):
    ACTIVE = "active"
    OFF = "off"  # takes no more messages; those it has are delivered
    BLOCKED = "blocked"


class ServiceRole(StrEnum):
    MESSAGING = "M"
    NOTIFIER = "N"
    PROXY = "P"


@dataclass(frozen=True, slots=True)
class BlockReason:
    """Why an operator blocked a queue, and for how long clients should believe it."""

    reason: str
    ttl_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """Data behind a short link: `fixed` never changes, `user` may. Both are opaque."""

    link_id: bytes
    fixed: bytes
    user: bytes


@dataclass(frozen=True, slots=True)
class NotifierRecord:
    notifier_id: bytes
    key: bytes
    secret: bytes = field(repr=False)
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class QueueRecord:
    recipient_id: StreamId
    recipient_keys: tuple[bytes, ...]
    # Shared with the recipient; bodies are encrypted with it.
    secret: bytes = field(repr=False)
    sender_id: bytes
    mode: QueueMode
    sender_key: bytes | None = None
    link: LinkRecord | None = None
    notifier: NotifierRecord | None = None
    status: QueueStatus = QueueStatus.ACTIVE
    block: BlockReason | None = None
    service_id: bytes | None = None
    # Whole days since 1970: enough to find what nobody uses, too little to follow anybody.
    used_day: int = 0

    @property
    def notifier_id(self) -> bytes | None:
        return None if self.notifier is None else self.notifier.notifier_id

    @property
    def notifier_service_id(self) -> bytes | None:
        return None if self.notifier is None else self.notifier.service_id

    @property
    def link_id(self) -> bytes | None:
        return None if self.link is None else self.link.link_id


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    service_id: bytes
    role: ServiceRole
    chain: tuple[bytes, ...]
    # SHA-256 of the certificate that is its identity.
    fingerprint: bytes
    created_s: int = 0
