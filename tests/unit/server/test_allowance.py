"""How fast a connection may send."""

from syncline.server.allowance import Allowance


def test_a_second_of_both_may_come_at_once() -> None:
    allowance = Allowance(10, 1_000, 5.0)
    assert allowance.spend(10, 1_000, 5.0) == 0
    assert allowance.spend(1, 0, 5.0) == 0.1
    assert allowance.spend(0, 500, 5.125) == 0.375


def test_what_is_owed_is_paid_by_waiting() -> None:
    allowance = Allowance(10, 1_000, 0.0)
    assert allowance.spend(30, 0, 0.0) == 2
    assert allowance.spend(0, 0, 2.0) == 0
    assert allowance.spend(1, 0, 2.0) == 0.1


def test_no_more_than_a_second_is_saved_up() -> None:
    allowance = Allowance(10, 1_000, 0.0)
    assert allowance.spend(10, 0, 3_600.0) == 0
    assert allowance.spend(10, 0, 3_600.0) == 1


def test_the_scarcer_of_both_decides() -> None:
    allowance = Allowance(10, 1_000, 0.0)
    assert allowance.spend(15, 3_000, 0.0) == 2
