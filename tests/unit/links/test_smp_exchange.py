"""Commands and their answers, and when a router is believed to be gone."""

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syncline.errors import LimitExceededError
from syncline.links import smp_exchange
from syncline.links.smp_exchange import (
    Exchange,
    Expected,
    KeepAlive,
    KeepAliveRules,
    Late,
    Unasked,
)


def test_answers_find_their_commands() -> None:
    exchange: Exchange[str] = Exchange(9)
    exchange.expect(b"1", b"q1", 10.0, "one")
    exchange.expect(b"2", b"q2", 10.0, "two")
    assert exchange.answered(b"2") == Expected(b"2", b"q2", 10.0, "two")
    assert exchange.answered(b"2") == Unasked()
    assert exchange.answered(b"3") == Unasked()
    assert [each.slot for each in exchange.abandon()] == ["one"]
    assert (len(exchange), exchange.answered(b"1")) == (0, Unasked())


def test_commands_expire_in_the_order_of_their_time() -> None:
    exchange: Exchange[str] = Exchange(9)
    exchange.expect(b"slow", b"", 30.0, "slow")
    exchange.expect(b"quick", b"queue", 10.0, "quick")
    assert exchange.next_deadline_s == 10.0
    assert exchange.expire(9.9) == []
    assert [each.slot for each in exchange.expire(10.0)] == ["quick"]
    assert exchange.next_deadline_s == 30.0
    assert exchange.answered(b"quick") == Late(b"queue")
    assert exchange.answered(b"quick") == Unasked()
    assert isinstance(exchange.answered(b"slow"), Expected)
    assert exchange.next_deadline_s is None


def test_too_many_commands_are_refused() -> None:
    exchange: Exchange[None] = Exchange(2)
    exchange.expect(b"1", b"", 1.0, None)
    assert exchange.has_room
    exchange.expect(b"2", b"", 1.0, None)
    assert not exchange.has_room
    with pytest.raises(LimitExceededError):
        exchange.expect(b"3", b"", 1.0, None)
    exchange.answered(b"1")
    assert exchange.has_room


def test_late_commands_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smp_exchange, "LATE_COUNT_MAX", 2)
    exchange: Exchange[None] = Exchange(9)
    for name in (b"1", b"2", b"3"):
        exchange.expect(name, b"", 1.0, None)
    exchange.expire(1.0)
    found = [exchange.answered(name) for name in (b"1", b"2", b"3")]
    assert found == [Unasked(), Late(b""), Late(b"")]


class Walk(RuleBasedStateMachine):
    """Each command ends once: answered, expired or abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self.exchange: Exchange[int] = Exchange(1_000)
        self.now_s = 0.0
        self.numbers = count()
        self.waiting: dict[int, float] = {}
        self.expired: set[int] = set()

    @rule(timeout_s=st.sampled_from([1.0, 2.0, 5.0]))
    def ask(self, timeout_s: float) -> None:
        number = next(self.numbers)
        deadline_s = self.now_s + timeout_s
        self.exchange.expect(number.to_bytes(4), b"q", deadline_s, number)
        self.waiting[number] = deadline_s

    @rule(number=st.integers(0, 30))
    def answer(self, number: int) -> None:
        found = self.exchange.answered(number.to_bytes(4))
        if number in self.waiting:
            assert isinstance(found, Expected)
            assert found.slot == number
            del self.waiting[number]
        elif number in self.expired:
            assert isinstance(found, Late)
            self.expired.discard(number)
        else:
            assert isinstance(found, Unasked)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        expired = {each.slot for each in self.exchange.expire(self.now_s)}
        due = {number for number, at in self.waiting.items() if at <= self.now_s}
        assert expired == due
        self.expired |= due
        for number in due:
            del self.waiting[number]

    @rule()
    def lose(self) -> None:
        assert {each.slot for each in self.exchange.abandon()} == set(self.waiting)
        self.waiting.clear()
        self.expired.clear()

    @invariant()
    def next_deadline_is_right(self) -> None:
        assert len(self.exchange) == len(self.waiting)
        assert self.exchange.next_deadline_s == min(self.waiting.values(), default=None)


TestWalk = Walk.TestCase


# --------------------------------------------------------------------------------------- keep-alive

RULES = KeepAliveRules(ping_after_s=600, give_up_after_s=900, timed_out_count_max=3)


def test_ping_is_due_after_silence_of_who_has_subscribed() -> None:
    alive = KeepAlive(RULES, 0)
    assert not alive.wants_ping(10_000)
    assert alive.next_look_s(0) is None
    alive.is_subscribed = True
    assert alive.next_look_s(0) == 600
    assert not alive.wants_ping(599)
    assert alive.wants_ping(600)
    alive.ping_started()
    assert not alive.wants_ping(700)
    assert alive.next_look_s(700) is None
    alive.ping_ended()
    assert alive.next_look_s(700) == 700
    alive.received(700)
    assert alive.next_look_s(700) == 1_300


@pytest.mark.parametrize(
    ("timed_out_count", "silent_s", "is_over"),
    [(3, 900, True), (2, 900, False), (3, 899, False), (0, 9_999, False), (9, 10, False)],
)
def test_router_is_gone_when_commands_fail_and_nothing_comes(
    timed_out_count: int, silent_s: int, is_over: bool
) -> None:
    alive = KeepAlive(RULES, 0)
    for _ in range(timed_out_count):
        alive.timed_out()
    assert alive.is_over(silent_s) is is_over
    alive.received(silent_s)
    assert not alive.is_over(silent_s + 10_000), "whatever came, it is there"
