"""What waits for all readers together is bounded, and the slowest pay for it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from syncline.server.all_waiting import AllWaiting


@dataclass(eq=False)
class Reader:
    waiting_bytes: int = 0
    was_cut_off: bool = False

    def abort(self) -> None:
        self.was_cut_off = True
        self.waiting_bytes = 0


def test_who_has_most_waiting_is_cut_off() -> None:
    waiting = AllWaiting(1_000)
    few, much, some = Reader(100), Reader(700), Reader(200)
    for reader in (few, much, some):
        waiting.saw(reader, reader.waiting_bytes)
    assert not any(reader.was_cut_off for reader in (few, much, some))
    few.waiting_bytes = 101
    waiting.saw(few, 101)
    assert [reader.was_cut_off for reader in (few, much, some)] == [False, True, False]


def test_nobody_is_cut_off_for_what_was_taken_meanwhile() -> None:
    waiting = AllWaiting(1_000)
    quick, slow = Reader(900), Reader(600)
    waiting.saw(quick, 900)
    quick.waiting_bytes = 0
    waiting.saw(slow, 600)
    assert [quick.was_cut_off, slow.was_cut_off] == [False, False]


def test_who_has_gone_counts_no_more() -> None:
    waiting = AllWaiting(1_000)
    gone, here = Reader(900), Reader(600)
    waiting.saw(gone, 900)
    waiting.forget(gone)
    waiting.forget(here)
    waiting.saw(here, 600)
    assert [gone.was_cut_off, here.was_cut_off] == [False, False]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-500, 500)), max_size=60))
def test_all_of_them_stay_within_the_bound(steps: list[tuple[int, int]]) -> None:
    """A step adds to what waits for a reader, or takes from it; only adding is told."""
    waiting, readers = AllWaiting(1_000), [Reader() for _ in range(10)]
    for number, change in steps:
        reader = readers[number]
        if reader.was_cut_off:
            waiting.forget(reader)
            reader = readers[number] = Reader()
        reader.waiting_bytes = max(0, reader.waiting_bytes + change)
        bytes_before = sum(each.waiting_bytes for each in readers)
        cut_off_before = sum(each.was_cut_off for each in readers)
        if change > 0:
            waiting.saw(reader, reader.waiting_bytes)
        assert sum(each.waiting_bytes for each in readers) <= 1_000
        is_anybody_cut_off = sum(each.was_cut_off for each in readers) > cut_off_before
        assert is_anybody_cut_off == (bytes_before > 1_000)
