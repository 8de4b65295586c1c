"""Updates wait for company, and only where there is any."""

from syncline.server.grouping import Grouping

GROUP_MS = 8


def test_the_first_update_after_a_quiet_moment_does_not_wait() -> None:
    grouping = Grouping(GROUP_MS)
    assert grouping.wait_seconds(100.0) == 0
    grouping.taken(1, 100.0)
    assert grouping.wait_seconds(100.004) == 0


def test_those_that_follow_closely_wait_until_the_group_is_over() -> None:
    grouping = Grouping(GROUP_MS)
    grouping.taken(1, 100.0)
    assert abs(grouping.wait_seconds(100.001) - 0.003) < 1e-9
    grouping.taken(3, 100.004)
    assert abs(grouping.wait_seconds(100.005) - 0.003) < 1e-9


def test_who_sends_one_after_the_other_is_not_slowed_down() -> None:
    grouping = Grouping(GROUP_MS)
    now, waited = 100.0, 0
    for _ in range(100):
        seconds = grouping.wait_seconds(now)
        waited += seconds > 0
        grouping.taken(1, now + seconds)
        now += seconds + 0.001
    assert 1 <= waited <= 6


def gap_at(updates_per_second: int) -> float:
    """Between two batches, once updates have come at that rate for a while."""
    grouping = Grouping(GROUP_MS)
    now = 100.0
    for _ in range(100):
        now += 0.005
        grouping.taken(updates_per_second // 200, now)
    return round(grouping.wait_seconds(now), 6)


def test_the_gap_is_longer_where_that_brings_company_together() -> None:
    few, some, more, many = (gap_at(rate) for rate in (200, 600, 2_000, 20_000))
    assert few == many == GROUP_MS / 2_000
    assert some == GROUP_MS / 1_000
    assert few < more < some


def test_when_others_come_waiting_begins_again() -> None:
    grouping = Grouping(GROUP_MS)
    now = 100.0
    for _ in range(3):
        grouping.wait_seconds(now)
        grouping.taken(1, now)
        now += 0.001
    # By now it has given up waiting. From here on five arrive in each group.
    waits: list[bool] = []
    for _ in range(40):
        seconds = grouping.wait_seconds(now)
        waits.append(seconds > 0)
        grouping.taken(5, now + seconds)
        now += seconds + 0.001
    assert not waits[0]
    assert all(waits[20:])


def test_without_a_group_nobody_waits() -> None:
    grouping = Grouping(0)
    grouping.taken(5, 100.0)
    assert grouping.wait_seconds(100.0) == 0
