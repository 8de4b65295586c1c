"""What an agent keeps: accounts and their services, queues that it reads or sends to, notifiers."""

from dataclasses import dataclass, field

from syncline.certificates import ServiceCredentials
from syncline.client.smp.session_subscriptions import ServiceSub
from syncline.links.private_keys import PrivateKey
from syncline.values.digests import SetDigest
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.values.reconciliation import SetState


@dataclass(frozen=True, slots=True)
class Account:
    """A user at a server in one role: what has a connection of its own, and one service at most."""

    user_id: int
    server_id: int
    role: ServiceRole = ServiceRole.MESSAGING


@dataclass(frozen=True, slots=True)
class StoredService:
    account: Account
    credentials: ServiceCredentials | None
    # None until a router has given one.
    service_id: bytes | None
    # Grows when all associations are given up at once; see `agent_schema`.
    generation: int
    digest: SetDigest
    # The intent to be subscribed to everything of this account, kept until it is taken back.
    wants_all: bool

    @property
    def expected(self) -> ServiceSub | None:
        """What a bulk subscription should be answered with."""
        if self.service_id is None:
            return None
        return ServiceSub(self.service_id, self.digest.count, self.digest.xor_md5)

    @property
    def state(self) -> SetState:
        """The same as a Syncline router tells it."""
        digest = self.digest
        return SetState(digest.version, digest.count, digest.xor_xxh3, digest.sum128)


@dataclass(frozen=True, slots=True)
class NotifierCredentials:
    """How a queue's notifications are subscribed to (the id and the key), and read (the secret)."""

    notifier_id: bytes
    key: PrivateKey
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue that is read here."""

    account: Account
    name: str
    recipient_id: bytes
    sender_id: bytes
    mode: QueueMode
    key: PrivateKey
    # Shared with the router, which encrypts each message with it.
    secret: bytes = field(repr=False)
    # Between sender and recipient, if they use the envelope.
    envelope_key: PrivateKey | None = None
    sender_dh: bytes | None = None
    notifier: NotifierCredentials | None = None
    link_id: bytes | None = None
    is_wanted: bool = True
    is_associated: bool = False
    # The last message that the application is done with: when it comes again, it is not shown.
    done_message_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredNotifier:
    """A queue of somebody else whose notifications are followed here."""

    account: Account
    notifier_id: bytes
    key: PrivateKey
    is_associated: bool = False


@dataclass(frozen=True, slots=True)
class StoredSender:
    """A queue that is sent to."""

    user_id: int
    uri: str
    key: PrivateKey
    envelope_key: PrivateKey
    is_secured: bool = False


@dataclass(frozen=True, slots=True)
class Subscribable:
    """What SUB or NSUB needs of a queue."""

    entity_id: bytes
    key: PrivateKey
    # Where it stands among those that are not associated; the next page begins after it.
    place: tuple[int, bytes]
