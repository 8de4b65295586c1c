"""How much is measured."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    round_count: int
    # Pairs of a sender and a recipient, each with a message on its way all the time.
    pair_count: int
    cycle_seconds: float
    warm_seconds: float
    body_bytes: int
    # Connections that send as many as fit into a block, all the time.
    batch_link_count: int
    batch_queue_count: int
    batch_seconds: float
    # Of one service, without messages.
    association_count: int
    # Of these, subscribed one by one as well.
    individual_count: int
    idle_count: int
    idle_base_count: int
    settle_seconds: float


FULL = Plan(
    name="full",
    round_count=3,
    pair_count=32,
    cycle_seconds=10.0,
    warm_seconds=2.0,
    body_bytes=1_024,
    batch_link_count=4,
    batch_queue_count=512,
    batch_seconds=8.0,
    association_count=1_000_000,
    individual_count=1_000_000,
    idle_count=9_000,
    idle_base_count=500,
    settle_seconds=3.0,
)

QUICK = replace(
    FULL,
    name="quick",
    round_count=1,
    cycle_seconds=5.0,
    batch_seconds=4.0,
    individual_count=50_000,
    idle_count=3_000,
)

SMOKE = replace(
    QUICK,
    name="smoke",
    pair_count=2,
    cycle_seconds=0.5,
    warm_seconds=0.2,
    batch_link_count=1,
    batch_queue_count=8,
    batch_seconds=0.5,
    association_count=2_000,
    individual_count=500,
    idle_count=30,
    idle_base_count=10,
    settle_seconds=0.2,
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
