"""Queues of SMP routers: a client, and an agent that stays subscribed. Page: docs/smp-client.md"""

from syncline.client.smp.agent import Agent
from syncline.client.smp.agent_events import (
    AgentEvent,
    EventsMissed,
    MessageDamaged,
    MessageReceived,
    NotificationReceived,
    QueueDeleted,
    QueueDown,
    QueueEnd,
    QueueFailed,
    QueueUp,
    QueueWasFull,
    RouterUnreachable,
    ServiceAll,
    ServiceDown,
    ServiceEnd,
    ServiceLost,
    ServiceRepaired,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_session import AgentOptions
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.letters import address_of, open_letter, send_letter
from syncline.client.smp.queue_uris import QueueUri
from syncline.client.smp.repair_plan import Repaired
from syncline.client.smp.repairing import Repairer, find_difference
from syncline.client.smp.service_decisions import Drift, DriftKind
from syncline.client.smp.session_repair import AgentCounters
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import INTERACTIVE, LinkOptions, SmpLink
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.failures import FailureError

__all__ = [
    "INTERACTIVE",
    "Account",
    "Agent",
    "AgentCounters",
    "AgentEvent",
    "AgentOptions",
    "AgentStore",
    "Drift",
    "DriftKind",
    "EventsMissed",
    "FailureError",
    "LinkOptions",
    "MessageDamaged",
    "MessageReceived",
    "NotificationReceived",
    "PrivateKey",
    "QueueDeleted",
    "QueueDown",
    "QueueEnd",
    "QueueFailed",
    "QueueUp",
    "QueueUri",
    "QueueWasFull",
    "Repaired",
    "Repairer",
    "RouterAddress",
    "RouterUnreachable",
    "ServiceAll",
    "ServiceDown",
    "ServiceEnd",
    "ServiceLost",
    "ServiceRepaired",
    "ServiceUp",
    "SmpLink",
    "StoredQueue",
    "address_of",
    "find_difference",
    "open_letter",
    "send_letter",
]
