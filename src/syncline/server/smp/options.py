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
    # Questions about the set of a service: one in parts, all parts that wait for the rest, and how
    # many are being answered, in all and of one service.
    question_bytes_max: int = 4 * MIB
    question_bytes_total_max: int = 32 * MIB
    question_count_max: int = 16
    questions_per_service_max: int = 4
    # Answers that are on their way to slow sessions; beyond that questions are refused. One answer
    # may be larger by itself: it lists a whole set.
    answer_bytes_total_max: int = 64 * MIB
    # How long SOKS waits for its opening.
    opening_seconds_max: float = 5.0
    # Sets that are followed once somebody has asked about them, and the ids of those asked about
    # lately.
    followed_set_count_max: int = 32
    followed_bytes_max: int = 128 * MIB
    followed_idle_ms_max: int = 2 * 60 * 1_000
