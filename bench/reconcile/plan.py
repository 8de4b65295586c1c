"""How much is measured: all of it, a first look in a few minutes, or a proof that it runs."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    # Fixed cases: ids on each side, and how many differ.
    set_count: int
    differences: tuple[int, ...]
    # Each fixed case on so many fresh sets.
    repeat_count: int
    # Fresh random sets of every kind, by the number of ids in them.
    fresh: tuple[tuple[int, int], ...]
    # The same with drift of equal parts on both sides alone, where bytes have a bar.
    fresh_even: tuple[tuple[int, int], ...]
    kept_change_count: int
    range_count: int
    plain_differences: tuple[int, ...]


FULL = Plan(
    name="full",
    set_count=1_000_000,
    differences=(10, 30, 100, 300, 1_000, 10_000),
    repeat_count=3,
    fresh=((50_000, 500), (300_000, 60)),
    fresh_even=((50_000, 300), (300_000, 60)),
    kept_change_count=20_000,
    range_count=2_000,
    plain_differences=(1, 100, 1_000),
)

QUICK = replace(
    FULL,
    name="quick",
    repeat_count=1,
    differences=(10, 100, 1_000, 10_000),
    fresh=((20_000, 200),),
    fresh_even=((50_000, 80),),
    kept_change_count=5_000,
    range_count=500,
    plain_differences=(1,),
)

SMOKE = replace(
    QUICK,
    name="smoke",
    set_count=5_000,
    differences=(10, 100),
    fresh=((2_000, 12),),
    fresh_even=((5_000, 4),),
    kept_change_count=300,
    range_count=20,
    plain_differences=(1,),
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
