"""What an operator may choose for queues and services, and the bounds of a session."""

from dataclasses import dataclass, field

from syncline.values import limits
from syncline.values.limits import MIB

DAY_MS = 24 * 60 * 60 * 1_000


@dataclass(frozen=True, slots=True)
class SmpOptions:
    """Settings of the router. Those with `_max` bound what peers can make it keep or do."""

    # Whether queues may be created, and what one has to know for it; empty: nothing.
    creates_queues: bool = True
    password: str = field(default="", repr=False)
    quota: int = limits.queue_quota_default
    # Of messages; 0: they stay. Looked at with each message that is sent to their queue, too.
    expire_after_ms: int = 21 * DAY_MS
    # Whether certificates that are not known yet become services, and how many there may be.
    creates_services: bool = True
    service_count_max: int = 1_024
    # Of one session: answers that wait for the disk, and commands that wait for room.
    unanswered_count_max: int = 1_024
    unanswered_bytes_max: int = 4 * MIB
    # How long a command waits for room on the disk before it is refused.
    busy_seconds_max: float = 10.0
    # Keys that may act for the recipient of a contact address; each may have to be tried.
    recipient_key_count_max: int = 16
