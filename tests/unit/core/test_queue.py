"""What may be acknowledged, what a reader gets, what a quota may be."""

import pytest

from syncline.core.queue import Acknowledged, QueueView, acknowledge, checked_quota, read_request
from syncline.errors import MalformedMessageError, UnexpectedMessageError
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.records import TruncateStream

QUEUE = StreamId(bytes(24))
VIEW = QueueView(QUEUE, first=5, durable_next=9)


@pytest.mark.parametrize("seq", [5, 6, 8])
def test_acknowledging_lets_go_of_everything_up_to_it(seq: int) -> None:
    outcome = acknowledge(VIEW, seq)
    assert outcome.writes == (TruncateStream(QUEUE, before_seq=seq + 1),)
    assert outcome.sends == (Acknowledged(QUEUE, first=seq + 1),)


@pytest.mark.parametrize("seq", [1, 4])
def test_an_acknowledgement_that_came_before_changes_nothing(seq: int) -> None:
    outcome = acknowledge(VIEW, seq)
    assert outcome.writes == ()
    assert outcome.sends == (Acknowledged(QUEUE, first=5),)


@pytest.mark.parametrize("seq", [9, 10, limits.sequence_max])
def test_what_nobody_can_have_read_is_not_acknowledged(seq: int) -> None:
    with pytest.raises(UnexpectedMessageError, match="up to 8"):
        acknowledge(VIEW, seq)


@pytest.mark.parametrize("seq", [0, -1])
def test_sequences_start_at_one(seq: int) -> None:
    with pytest.raises(MalformedMessageError):
        acknowledge(VIEW, seq)


def test_a_reader_that_asks_for_much_gets_what_is_allowed() -> None:
    request = read_request(0, 10**9, 10**12)
    assert request.count_max == limits.read_count_max
    assert request.bytes_max == limits.read_bytes_max


@pytest.mark.parametrize(("from_seq", "count"), [(-1, 1), (limits.sequence_max + 1, 1), (0, 0)])
def test_a_reader_that_asks_for_nonsense_is_told(from_seq: int, count: int) -> None:
    with pytest.raises(MalformedMessageError):
        read_request(from_seq, count, 1)


@pytest.mark.parametrize("quota", [0, 1, limits.queue_quota_max])
def test_a_quota_within_the_limits_is_kept(quota: int) -> None:
    assert checked_quota(quota) == quota


@pytest.mark.parametrize("quota", [-1, limits.queue_quota_max + 1])
def test_a_quota_beyond_the_limits_is_refused(quota: int) -> None:
    with pytest.raises(MalformedMessageError):
        checked_quota(quota)
