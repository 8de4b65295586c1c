"""What an agent tells the application. All but messages are about subscriptions.

Events of one account come in the order in which things happened.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from syncline.client.smp.agent_records import Account
from syncline.client.smp.repair_plan import Repaired
from syncline.client.smp.service_decisions import Drift
from syncline.client.smp.session_subscriptions import ServiceSub
from syncline.wire.smp.failures import Failure


@dataclass(frozen=True, slots=True)
class ServiceUp:
    """The bulk subscription is answered: all queues of the service deliver. With `drift` the sets
    were not the same; what follows is the repair (ServiceRepaired, from a Syncline router), and
    another ServiceUp."""

    account: Account
    sub: ServiceSub
    drift: Drift | None = None


@dataclass(frozen=True, slots=True)
class ServiceRepaired:
    """A repair has ended, after so many ids in each direction. If the sets are not equal then, all
    queues are associated once more, one by one."""

    account: Account
    repaired: Repaired


@dataclass(frozen=True, slots=True)
class ServiceDown:
    """The connection of a subscribed service has ended. The agent connects again by itself."""

    account: Account
    sub: ServiceSub


@dataclass(frozen=True, slots=True)
class ServiceAll:
    """Every message that was waiting when the service subscribed has been delivered."""

    account: Account


@dataclass(frozen=True, slots=True)
class ServiceEnd:
    """Another connection of the same service has taken over. This one does nothing more until the
    application subscribes again."""

    account: Account
    sub: ServiceSub


@dataclass(frozen=True, slots=True)
class ServiceLost:
    """The router has another service for us, none, or refuses the one we have. The queues are
    subscribed one by one."""

    account: Account
    reason: str


@dataclass(frozen=True, slots=True)
class QueueUp:
    """These deliver, each by itself or as part of the service."""

    account: Account
    queues: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class QueueDown:
    """The connection of these has ended. The agent connects again by itself."""

    account: Account
    queues: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """Another connection has subscribed to it."""

    account: Account
    queue: bytes


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """It is no more, at the router and in the store."""

    account: Account
    queue: bytes


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """The router refuses to subscribe it, or could not read it. `is_final`: the agent tries no
    more."""

    account: Account
    queue: bytes
    failure: Failure
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """To be acknowledged when the application has made it its own. Until then it comes again after
    every crash."""

    account: Account
    queue: bytes
    message_id: bytes
    time_s: int
    wants_notification: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MessageDamaged:
    """A message that cannot be read. Nothing more comes from its queue until it is acknowledged."""

    account: Account
    queue: bytes
    message_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class QueueWasFull:
    """The sender was turned away at that time; now that the queue is empty it can send again."""

    account: Account
    queue: bytes
    time_s: int


@dataclass(frozen=True, slots=True)
class NotificationReceived:
    """To be passed on to the recipient, who alone can read `metadata`."""

    account: Account
    notifier: bytes
    nonce: bytes
    metadata: bytes


@dataclass(frozen=True, slots=True)
class RouterUnreachable:
    """An attempt to connect failed; the next one is made in `retry_s`."""

    account: Account
    reason: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class EventsMissed:
    """The application was slow: so many events about subscriptions were left out here. Messages are
    never left out."""

    count: int


StateEvent: TypeAlias = (
    ServiceUp
    | ServiceRepaired
    | ServiceDown
    | ServiceAll
    | ServiceEnd
    | ServiceLost
    | QueueUp
    | QueueDown
    | QueueEnd
    | QueueDeleted
    | QueueFailed
    | QueueWasFull
    | RouterUnreachable
    | EventsMissed
)
ContentEvent: TypeAlias = MessageReceived | MessageDamaged | NotificationReceived
AgentEvent: TypeAlias = StateEvent | ContentEvent
