"""The clock stands still until it is moved."""

import pytest

from syncline.testing.clock import START_MS, ManualClock


def test_the_clock_moves_by_hand_only() -> None:
    clock = ManualClock()
    assert (clock(), clock()) == (START_MS, START_MS)
    assert clock.advance(5) == START_MS + 5
    assert clock() == clock.now_ms == START_MS + 5


def test_time_passes_forwards_but_a_clock_may_be_set_back() -> None:
    clock = ManualClock(10)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)
    clock.step_to(3)
    assert clock() == 3
