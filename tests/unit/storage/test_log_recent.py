"""What is kept of the batches written last: bounded, newest, and never something else."""

from syncline.storage.log.recent import RecentBatches
from syncline.values import limits
from syncline.values.limits import MIB


def test_a_position_is_found_in_the_batch_that_holds_it() -> None:
    recent = RecentBatches()
    recent.keep(1_048, b"first")
    recent.keep(9_048, b"second")

    assert recent.find(1_047) is None
    assert recent.find(1_048) == (b"first", 0)
    assert recent.find(1_050) == (b"first", 2)
    # A batch in between that was not kept: behind the end of the one before it.
    assert recent.find(5_048) == (b"first", 4_000)
    assert recent.find(9_050) == (b"second", 2)


def test_the_oldest_are_let_go_of() -> None:
    recent = RecentBatches()
    body = bytes(MIB)
    kept: list[int] = []
    for number in range(100):
        recent.keep(number * 10 * MIB, body)
        kept = [n for n in range(number + 1) if recent.find(n * 10 * MIB) == (body, 0)]
        assert kept == list(range(kept[0], number + 1))
        assert len(kept) * MIB <= limits.recent_bytes_max
    assert len(kept) * MIB >= limits.recent_bytes_max // 2
