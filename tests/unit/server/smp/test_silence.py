"""Sessions that read nothing and say nothing."""

from dataclasses import dataclass

from syncline.server.smp.silence import SilenceWatch


@dataclass(slots=True)
class _Session:
    number: int
    received_count: int = 1
    is_closed: bool = False

    def close(self, reason: str) -> None:
        self.is_closed = True


def test_a_silent_session_without_subscriptions_is_closed() -> None:
    session = _Session(1)
    watch = SilenceWatch(100.0, lambda number: False)
    assert [watch.look([session], now_s) for now_s in (0.0, 60.0, 100.0)] == [0, 0, 0]
    assert watch.look([session], 101.0) == 1
    assert session.is_closed


def test_a_session_that_says_something_stays() -> None:
    session = _Session(1)
    watch = SilenceWatch(100.0, lambda number: False)
    watch.look([session], 0.0)
    session.received_count += 1
    watch.look([session], 90.0)
    assert watch.look([session], 150.0) == 0
    assert watch.look([session], 191.0) == 1


def test_a_subscribed_session_may_be_silent_and_its_time_begins_when_it_is_not() -> None:
    session = _Session(1)
    subscribed = {1}
    watch = SilenceWatch(100.0, subscribed.__contains__)
    watch.look([session], 0.0)
    assert watch.look([session], 1_000.0) == 0
    subscribed.clear()
    assert watch.look([session], 1_050.0) == 0
    assert watch.look([session], 1_101.0) == 1


def test_a_number_that_is_gone_is_forgotten() -> None:
    watch = SilenceWatch(100.0, lambda number: False)
    watch.look([_Session(1)], 0.0)
    watch.look([], 50.0)
    assert watch.look([_Session(1)], 200.0) == 0
