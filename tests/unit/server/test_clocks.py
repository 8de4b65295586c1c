"""By which time things are too old, while the machine's clock is set in all ways."""

import pytest

from syncline.server.clocks import DOUBT_MS_MAX, CautiousClock, Clock, machine_clock
from syncline.testing.clock import START_MS, ManualClock

DAY_MS = 24 * 60 * 60 * 1_000
AGE_MS = 21 * DAY_MS
LOOK_MS = 30_000


class Machine:
    """Looks at the time now and then, as a router does."""

    def __init__(self, age_ms: int = AGE_MS) -> None:
        self.wall, self.steady = ManualClock(), ManualClock(7)
        self.cautious_ms = CautiousClock(Clock(self.wall, self.steady), age_ms)

    def wait(self, duration_ms: int) -> None:
        while duration_ms > 0:
            step_ms = min(LOOK_MS, duration_ms)
            self.wall.advance(step_ms)
            self.steady.advance(step_ms)
            self.cautious_ms()
            duration_ms -= step_ms

    def is_old(self, time_ms: int) -> bool:
        return time_ms < self.cautious_ms() - AGE_MS


def test_a_clock_that_is_left_alone_is_believed_after_a_while() -> None:
    machine = Machine()
    machine.wait(DOUBT_MS_MAX - 1)
    assert machine.cautious_ms() == DOUBT_MS_MAX - 1, "nothing is that old"
    machine.wait(1)
    assert machine.cautious_ms() == machine.wall()
    machine.wait(10 * DOUBT_MS_MAX)
    assert machine.cautious_ms() == machine.wall()


def test_a_short_age_is_not_doubted_for_longer() -> None:
    machine = Machine(age_ms=2_000)
    machine.wait(2_000)
    assert machine.cautious_ms() == machine.wall()


@pytest.mark.parametrize("leap_ms", [DAY_MS, 30 * DAY_MS, 20 * 366 * DAY_MS])
def test_nothing_is_old_because_of_a_clock_that_was_wrong_for_a_while(leap_ms: int) -> None:
    machine = Machine()
    machine.wait(2 * DOUBT_MS_MAX)
    right_ms = machine.wall()
    machine.wall.step_to(right_ms + leap_ms)
    machine.wait(DOUBT_MS_MAX - LOOK_MS)
    assert not machine.is_old(right_ms - AGE_MS + DOUBT_MS_MAX)
    machine.wall.step_to(right_ms + DOUBT_MS_MAX)
    machine.wait(10 * DOUBT_MS_MAX)
    assert machine.cautious_ms() == machine.wall()


def test_a_clock_that_stays_ahead_is_believed_in_the_end() -> None:
    machine = Machine()
    machine.wait(2 * DOUBT_MS_MAX)
    machine.wall.step_to(START_MS + 30 * DAY_MS)
    machine.wait(2 * DOUBT_MS_MAX)
    assert machine.cautious_ms() == machine.wall()


def test_that_of_a_start_is_not_believed_at_once() -> None:
    machine = Machine()
    machine.wall.step_to(START_MS - 30 * DAY_MS)
    machine.wait(DOUBT_MS_MAX)
    assert machine.cautious_ms() == machine.wall()


def test_a_clock_that_goes_back_is_believed_at_once() -> None:
    machine = Machine()
    machine.wait(2 * DOUBT_MS_MAX)
    machine.wall.step_to(START_MS - 366 * DAY_MS)
    assert machine.cautious_ms() == machine.wall()


def test_both_clocks_of_a_machine_agree_at_first() -> None:
    clock = machine_clock()
    assert abs(clock.wall_ms() - clock.steady_ms()) < 1_000
