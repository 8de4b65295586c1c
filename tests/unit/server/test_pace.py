"""What is learnt of the disk: when the loop may write, how large a batch may be, and how long one
may wait for company."""

import pytest

from syncline.server.pace import (
    BATCH_BYTES_MIN,
    COMPANY_BYTES_MAX,
    COMPANY_RECORDS_MIN,
    COMPANY_SECONDS_MAX,
    INLINE_BYTES_MAX,
    INLINE_SECONDS_MAX,
    TRANSFER_SECONDS_TARGET,
    Pace,
)
from syncline.values import limits


def learn(pace: Pace, byte_count: int, seconds: float, times: int) -> None:
    for _ in range(times):
        pace.learn(byte_count, 1, seconds)


def test_nothing_is_written_inline_before_the_disk_is_known() -> None:
    assert not Pace().writes_inline(1)


def test_a_quick_disk_allows_tiny_batches_inline() -> None:
    pace = Pace()
    learn(pace, 1_000, INLINE_SECONDS_MAX / 5, 10)
    assert pace.writes_inline(INLINE_BYTES_MAX)
    assert not pace.writes_inline(INLINE_BYTES_MAX + 1)


def test_one_slow_sync_is_remembered_for_a_while() -> None:
    pace = Pace()
    learn(pace, 1_000, INLINE_SECONDS_MAX / 5, 10)
    pace.learn(1_000, 1, 0.04)
    learn(pace, 1_000, INLINE_SECONDS_MAX / 5, 20)
    assert not pace.writes_inline(1)
    learn(pace, 1_000, INLINE_SECONDS_MAX / 5, 40)
    assert pace.writes_inline(1)


def test_a_disk_that_is_never_quick_never_writes_inline() -> None:
    pace = Pace()
    learn(pace, 1_000, INLINE_SECONDS_MAX, 1_000)
    assert not pace.writes_inline(1)


def test_full_batches_on_a_quick_disk_grow_to_the_limit() -> None:
    pace = Pace()
    for _ in range(50):
        pace.learn(pace.batch_bytes_max, 1, 0.000_5)
    assert pace.batch_bytes_max == limits.batch_bytes_max


def test_half_empty_batches_say_nothing_about_larger_ones() -> None:
    pace = Pace()
    learn(pace, limits.batch_bytes_default // 2, 0.000_5, 50)
    assert pace.batch_bytes_max == limits.batch_bytes_default


def test_slow_bytes_shrink_the_batch_to_what_fits_the_target() -> None:
    pace = Pace()
    # 10 MB/s after a sync of 1 ms: a batch of the default size would take a tenth of a second.
    for _ in range(100):
        pace.learn(1_000, 1, 0.001)
        pace.learn(pace.batch_bytes_max, 1, 0.001 + pace.batch_bytes_max / 10_000_000)
    assert pace.batch_bytes_max / 10_000_000 <= 3 * TRANSFER_SECONDS_TARGET
    assert pace.batch_bytes_max >= BATCH_BYTES_MIN


def test_a_slow_sync_alone_does_not_shrink_the_batch() -> None:
    pace = Pace()
    # 30 ms whatever the size: smaller batches would only mean more of them.
    for _ in range(100):
        pace.learn(1_000, 1, 0.03)
        pace.learn(pace.batch_bytes_max, 1, 0.032)
    assert pace.batch_bytes_max >= limits.batch_bytes_default


def test_a_batch_waits_for_company_where_several_wrote_the_last() -> None:
    pace = Pace()
    assert pace.company_seconds == 0
    for _ in range(100):
        pace.learn(COMPANY_BYTES_MAX, COMPANY_RECORDS_MIN, 0.001)
    assert pace.company_seconds == pytest.approx(0.002, rel=0.01)


@pytest.mark.parametrize(
    ("byte_count", "record_count"),
    [(1_000, COMPANY_RECORDS_MIN - 1), (COMPANY_BYTES_MAX + 1, COMPANY_RECORDS_MIN)],
)
def test_who_is_alone_or_writes_much_waits_for_nobody(byte_count: int, record_count: int) -> None:
    pace = Pace()
    pace.learn(1_000, COMPANY_RECORDS_MIN, 0.001)
    assert pace.company_seconds > 0
    pace.learn(byte_count, record_count, 0.001)
    assert pace.company_seconds == 0


def test_a_disk_that_hangs_makes_nobody_wait_for_long() -> None:
    pace = Pace()
    for _ in range(100):
        pace.learn(1_000, COMPANY_RECORDS_MIN, 30.0)
    assert pace.company_seconds <= COMPANY_SECONDS_MAX
