"""The end of the log in memory: bounded, newest, and never something else."""

import mmap
from random import Random

import pytest

from syncline.storage.log.recent import RecentLog
from syncline.values import limits

BLOCK = 4_096
RING = 8 * BLOCK


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch) -> RecentLog:
    monkeypatch.setattr(limits, "recent_bytes_max", RING)
    return RecentLog()


def keep(recent: RecentLog, position: int, data: bytes) -> bytes:
    assert recent.make_room(position, len(data))
    return b"".join(recent.put(position, [data[:10], data[10:]]))


def test_nothing_is_found_before_it_is_said_where_the_log_ends(recent: RecentLog) -> None:
    assert recent.find(5 * BLOCK, 10) is None
    recent.begin(5 * BLOCK)
    # Somebody else wrote what lies below.
    assert recent.find(5 * BLOCK - 1, 1) is None


def test_the_last_bytes_are_found_and_no_others(recent: RecentLog) -> None:
    """Whatever sizes batches have: against all that was ever written."""
    chance = Random(1)
    end = 11 * BLOCK
    batches: list[tuple[int, bytes]] = []
    recent.begin(end)
    for _ in range(300):
        data = chance.randbytes(BLOCK * chance.randint(1, 5))
        # Sometimes the rest of a segment stays empty.
        position = end + BLOCK * (chance.random() < 0.1)
        end = position + len(data)
        assert keep(recent, position, data) == data
        batches.append((position, data))
        for start, written in batches[-20:]:
            at = chance.randrange(len(written))
            length = chance.randint(1, len(written) - at)
            is_split = (start + at) // RING != (start + at + length - 1) // RING
            is_kept = start + at >= end - RING and not is_split
            expected = written[at : at + length] if is_kept else None
            assert recent.find(start + at, length) == expected


def test_what_makes_room_is_forgotten_before_it_is_written_over(recent: RecentLog) -> None:
    recent.begin(0)
    keep(recent, 0, b"a" * RING)
    assert recent.find(0, 10) == b"a" * 10
    assert recent.make_room(RING, BLOCK)
    assert recent.find(0, 10) is None
    assert recent.find(BLOCK, 10) == b"a" * 10


def test_a_batch_that_is_too_large_is_not_kept(recent: RecentLog) -> None:
    recent.begin(0)
    keep(recent, 0, b"a" * BLOCK)
    assert not recent.make_room(BLOCK, RING + BLOCK)
    assert recent.find(0, 10) is None
    assert recent.find(BLOCK, 10) is None
    assert keep(recent, RING + 2 * BLOCK, b"b" * BLOCK) == b"b" * BLOCK
    assert recent.find(RING + 2 * BLOCK, 10) == b"b" * 10


def test_blocks_begin_with_a_page(recent: RecentLog) -> None:
    recent.begin(6 * BLOCK)
    assert recent.make_room(6 * BLOCK, 4 * BLOCK)
    blocks = recent.put(6 * BLOCK, [bytes(4 * BLOCK)])
    assert [len(block) % mmap.PAGESIZE for block in blocks] == [0, 0]
    assert sum(map(len, blocks)) == 4 * BLOCK
