"""Own changes on their way: order, clocks, what is sent again, and when to give up."""

import pytest

from syncline.core.send_buffer import RETRY_CAP_MS, SendBuffer
from syncline.errors import LimitExceededError


def buffer_of(*mutations: str, window: int = 256, **options: int) -> SendBuffer:
    buffer = SendBuffer(window=window, **options)
    for mutation in mutations:
        buffer.add({"v": mutation})
    return buffer


def clocks(buffer: SendBuffer, now_ms: int = 0) -> list[int]:
    return [entry.clock for entry in buffer.take_ready(now_ms)]


def test_changes_are_numbered_and_kept_in_order() -> None:
    buffer = SendBuffer()
    assert [buffer.add({"v": 1}), buffer.add({"v": 2})] == [1, 2]
    assert list(buffer.mutations()) == [{"v": 1}, {"v": 2}]
    assert len(buffer) == 2


def test_a_clock_is_given_when_first_sent_and_kept() -> None:
    buffer = buffer_of("a", "b")
    assert buffer.unsaved_clocks == [0, 0]
    assert clocks(buffer) == [1, 2]
    buffer.add({"v": "c"})
    buffer.rewind(0)
    assert clocks(buffer) == [1, 2, 3]


def test_what_was_never_sent_comes_after_an_earlier_run_with_the_same_id() -> None:
    buffer = buffer_of("a", "b")
    assert buffer.rewind(7) == []
    assert clocks(buffer) == [8, 9]


def test_nothing_is_sent_twice_in_a_subscription() -> None:
    buffer = buffer_of("a")
    assert clocks(buffer) == [1]
    assert clocks(buffer) == []
    buffer.add({"v": "b"})
    assert clocks(buffer) == [2]


def test_no_more_than_a_window_is_in_flight() -> None:
    buffer = buffer_of("a", "b", "c", window=2)
    assert clocks(buffer) == [1, 2]
    assert clocks(buffer) == []
    buffer.confirm(1, 0)
    assert clocks(buffer) == [3]


def test_a_receipt_covers_everything_before_it() -> None:
    buffer = buffer_of("a", "b", "c")
    buffer.take_ready(0)
    assert [entry.number for entry in buffer.confirm(2, 0)] == [1, 2]
    assert list(buffer.mutations()) == [{"v": "c"}]
    assert buffer.confirm(2, 0) == []


def test_a_receipt_never_covers_what_was_not_sent() -> None:
    buffer = buffer_of("a", window=1)
    buffer.take_ready(0)
    buffer.add({"v": "b"})
    assert [entry.number for entry in buffer.confirm(9, 0)] == [1]
    assert len(buffer) == 1


def test_what_the_router_has_is_not_sent_again_and_stays_until_confirmed() -> None:
    buffer = buffer_of("a", "b")
    buffer.take_ready(0)
    assert [entry.number for entry in buffer.rewind(1)] == [1]
    assert buffer.unsaved_clocks == [2]
    assert list(buffer.mutations()) == [{"v": "a"}, {"v": "b"}]
    assert clocks(buffer) == [2]
    assert [entry.number for entry in buffer.confirm(2, 0)] == [2]  # 1 was known before
    assert len(buffer) == 0


def test_covered_changes_take_no_room_in_the_window() -> None:
    buffer = buffer_of("a", "b", "c", window=2)
    buffer.take_ready(0)
    buffer.rewind(2)
    assert clocks(buffer) == [3]


def test_a_refused_change_is_let_go_of_and_its_clock_is_used_up() -> None:
    buffer = buffer_of("a", "b")
    buffer.take_ready(0)
    refused = buffer.refuse(1, 0)
    assert refused is not None
    assert refused.number == 1
    assert list(buffer.mutations()) == [{"v": "b"}]
    assert buffer.refuse(1, 0) is None
    buffer.add({"v": "c"})
    assert clocks(buffer) == [3]


def test_a_full_buffer_says_so() -> None:
    buffer = buffer_of("a", "b", count_max=2)
    with pytest.raises(LimitExceededError, match="wait for the router") as caught:
        buffer.add({"v": "c"})
    assert (caught.value.value, caught.value.limit) == (3, 2)
    assert len(buffer) == 2


def overdue(buffer: SendBuffer) -> list[int]:
    assert buffer.deadline_ms is not None
    return [entry.clock for entry in buffer.take_overdue(buffer.deadline_ms)]


def test_what_is_not_answered_is_sent_again_after_twice_the_wait_each_time() -> None:
    buffer = buffer_of("a", "b", retry_ms=100, retry_count_max=3)
    buffer.take_ready(1_000)
    assert buffer.deadline_ms == 1_100
    assert buffer.take_overdue(1_099) == []
    assert overdue(buffer) == [1, 2]
    assert buffer.deadline_ms == 1_300
    assert overdue(buffer) == [1, 2]
    assert buffer.deadline_ms == 1_700


def test_an_answer_starts_the_wait_anew() -> None:
    buffer = buffer_of("a", "b", retry_ms=100)
    buffer.take_ready(0)
    overdue(buffer)
    buffer.confirm(1, 500)
    assert buffer.deadline_ms == 600
    buffer.confirm(2, 550)
    assert buffer.deadline_ms is None


def test_the_wait_has_a_cap() -> None:
    buffer = buffer_of("a", retry_ms=20_000, retry_count_max=100)
    buffer.take_ready(0)
    overdue(buffer)
    before = buffer.deadline_ms
    overdue(buffer)
    assert before is not None
    assert buffer.deadline_ms == before + RETRY_CAP_MS


def test_after_so_many_times_in_vain_it_gives_up() -> None:
    buffer = buffer_of("a", retry_ms=100, retry_count_max=2)
    buffer.take_ready(0)
    assert [overdue(buffer), overdue(buffer)] == [[1], [1]]
    assert not buffer.is_exhausted
    assert overdue(buffer) == []
    assert buffer.is_exhausted
    assert buffer.deadline_ms is None
    # The work is kept, and another subscription tries again.
    buffer.rewind(0)
    assert not buffer.is_exhausted
    assert clocks(buffer) == [1]
