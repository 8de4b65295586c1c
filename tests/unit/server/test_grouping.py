"""Updates wait for company, and only where there is any."""

from collections.abc import Sequence

import pytest

from syncline.server.grouping import Grouping

GROUP_MS = 20


def after(updates_per_second: int, group_ms: int = GROUP_MS) -> tuple[Grouping, float]:
    """Once updates have come at that rate for a while; and when the last batch was taken."""
    grouping = Grouping(group_ms)
    now = 100.0
    for _ in range(100):
        now += 0.01
        grouping.taken(updates_per_second // 100, now)
    return grouping, now


def waited(grouping: Grouping, now: float, arrivals: Sequence[float]) -> tuple[float, int]:
    """How long a batch is held back, the first update of which comes now; and how many it has."""
    seconds = grouping.wait_seconds(now)
    total = 0.0
    came = [0.0]
    while seconds:
        total += seconds
        came = [0.0, *(each for each in arrivals if each <= total)]
        seconds = grouping.more_seconds(now + came[-1], now + total)
    return total, len(came)


def test_the_first_update_after_a_quiet_moment_does_not_wait() -> None:
    grouping, now = after(1_000)
    assert grouping.wait_seconds(now + 1.0) == 0
    assert Grouping(GROUP_MS).wait_seconds(100.0) == 0


def test_those_that_follow_closely_wait_until_the_gap_is_over() -> None:
    grouping, now = after(300)
    seconds, count = waited(grouping, now + 0.001, [0.001])
    assert (round(seconds, 6), count) == (0.004, 2)
    grouping.taken(2, now + 0.005)
    seconds, count = waited(grouping, now + 0.006, [0.001, 0.003])
    assert (round(seconds, 6), count) == (0.004, 3)


@pytest.mark.parametrize(
    ("updates_per_second", "gap_seconds"),
    [(100, 0), (300, 0.005), (500, 0.02), (1_000, 0.02), (2_000, 0.01), (20_000, 0.005)],
)
def test_the_gap_is_as_long_as_it_takes_to_bring_company_together(
    updates_per_second: int, gap_seconds: float
) -> None:
    grouping, now = after(updates_per_second)
    steady = [number / updates_per_second for number in range(1, 1_000)]
    assert waited(grouping, now, steady)[0] == pytest.approx(gap_seconds, rel=0.01)


def test_when_no_more_come_the_wait_is_over() -> None:
    """As if somebody sent sixteen at once, and the next when these are stored."""
    grouping, now = after(1_000)
    seconds, count = waited(grouping, now, [number * 0.0001 for number in range(15)])
    assert (round(seconds, 6), count) == (0.0064, 16)
    grouping, now = after(1_000)
    seconds, count = waited(grouping, now, [])
    assert (round(seconds, 6), count) == (0.005, 1)


def test_who_sends_one_after_the_other_is_not_slowed_down() -> None:
    grouping, now = after(1_000)
    waited_count = 0
    for _ in range(100):
        seconds, _ = waited(grouping, now, [])
        waited_count += seconds > 0
        grouping.taken(1, now + seconds)
        now += seconds + 0.001
    assert 1 <= waited_count <= 6


def test_when_others_come_waiting_begins_again() -> None:
    grouping, now = after(1_000)
    grouping.wait_seconds(now)
    grouping.taken(1, now + 0.001)
    now += 0.002
    # By now it has given up waiting. From here on five arrive in each group.
    waits: list[bool] = []
    for _ in range(40):
        seconds, count = waited(grouping, now, [number * 0.002 for number in range(1, 5)])
        waits.append(seconds > 0)
        grouping.taken(count, now + seconds)
        now += seconds + 0.001
    assert not waits[0]
    assert all(waits[20:])


def test_without_a_group_nobody_waits() -> None:
    grouping, now = after(1_000, group_ms=0)
    assert grouping.wait_seconds(now) == 0
