"""Lag is how long somebody has owed an acknowledgement, and nothing else."""

import pytest

from syncline.core.tracker import (
    MARK_MS,
    LagRules,
    Offset,
    Timeline,
    is_too_far_behind,
    lag_ms,
)

RULES = LagRules(relative_ms=30_000, absolute_ms=1_800_000)


def timeline(*marks: tuple[int, int]) -> Timeline:
    made = Timeline()
    for seq, time_ms in marks:
        made.add(seq, time_ms)
    return made


def test_who_has_acknowledged_everything_has_no_lag() -> None:
    assert lag_ms(Offset(5, 0), 5, timeline((5, 1_000)), 10**9) == 0


def test_lag_counts_from_the_first_update_owed() -> None:
    times = timeline((1, 1_000), (2, 5_000), (3, 9_000))
    assert lag_ms(Offset(1, 0), 3, times, 12_000) == 7_000


def test_a_newcomer_does_not_inherit_the_age_of_what_it_owes() -> None:
    assert lag_ms(Offset(1, 11_000), 3, timeline((2, 5_000)), 12_000) == 1_000


def test_a_clock_that_was_set_back_makes_no_negative_lag() -> None:
    assert lag_ms(Offset(1, 0), 3, timeline((2, 5_000)), 4_000) == 0


def test_updates_of_one_stretch_share_a_mark() -> None:
    times = timeline(*((seq, 1_000 + seq) for seq in range(1, MARK_MS)))
    assert len(times) == 1
    assert times.time_of(50) == 1_001


def test_forgetting_keeps_the_mark_that_is_still_needed() -> None:
    times = timeline((1, 1_000), (5, 2_000), (9, 3_000))
    times.forget_up_to(5)
    assert times.time_of(6) == 2_000
    times.forget_up_to(8)
    assert (len(times), times.time_of(9)) == (1, 3_000)


@pytest.mark.parametrize(
    ("acked", "others", "lag", "too_far"),
    [
        (4, [9], 30_000, False),
        (4, [9], 30_001, True),
        (4, [4, 3], 1_800_000, False),
        (4, [4, 3], 1_800_001, True),
        (4, [], 30_001, False),
    ],
    ids=["in time", "others keep up", "nobody keeps up", "for too long", "alone"],
)
def test_the_two_rules(acked: int, others: list[int], lag: int, too_far: bool) -> None:
    found = is_too_far_behind(Offset(acked, 0), [Offset(other, 0) for other in others], lag, RULES)
    assert found is too_far
