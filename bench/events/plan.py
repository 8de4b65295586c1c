"""How much is measured: all of it, a first look in a few minutes, or a proof that it runs."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    round_count: int
    warm_seconds: float
    seconds: float
    # Queues: pairs of a sender and a recipient, each with a message on its way all the time.
    pair_count: int
    body_bytes: int
    # Documents: one writer, and how many of its updates are on their way at most. Updates that
    # become durable together are noted together: with a small window nearly each by itself.
    reader_count: int
    windows: tuple[int, ...]
    update_count: int
    warm_count: int
    rest_seconds: float


FULL = Plan(
    name="full",
    round_count=7,
    warm_seconds=2.0,
    seconds=6.0,
    pair_count=16,
    body_bytes=1_024,
    reader_count=50,
    windows=(1, 64),
    update_count=100_000,
    warm_count=500,
    rest_seconds=1.0,
)

QUICK = replace(FULL, name="quick", round_count=3, seconds=3.0)

SMOKE = replace(
    QUICK,
    name="smoke",
    round_count=1,
    warm_seconds=0.2,
    seconds=0.5,
    pair_count=2,
    reader_count=4,
    windows=(1,),
    update_count=20_000,
    warm_count=20,
    rest_seconds=0.1,
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
