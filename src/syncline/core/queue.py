"""Decisions about one queue: what may be acknowledged, and what a reader gets.

A queue is seen as two numbers: `first`, the lowest sequence still wanted, and `durable_next`, below
which every message has survived a crash already.

- Only what could have been delivered may be acknowledged, and only what is durable is delivered.
- An acknowledgement covers everything up to its sequence. One that came before changes nothing, so
  a reader that is not sure may repeat it.
"""

from dataclasses import dataclass

from syncline.core.outcome import Outcome
from syncline.errors import MalformedMessageError, UnexpectedMessageError
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.records import TruncateStream


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue as a step meets it."""

    stream: StreamId
    first: int
    durable_next: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Told to the reader: everything below `first` is gone."""

    stream: StreamId
    first: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a reader asks for, within bounds."""

    from_seq: int
    count_max: int
    bytes_max: int


def acknowledge(view: QueueView, seq: int) -> Outcome[Acknowledged]:
    """Let go of everything up to and including `seq`.

    Raises MalformedMessageError below 1 and UnexpectedMessageError for what nobody can have read.
    """
    if seq < 1:
        raise MalformedMessageError(f"sequences start at 1, {seq} cannot be acknowledged")
    if seq >= view.durable_next:
        raise UnexpectedMessageError(
            f"message {seq} was not delivered yet; acknowledge up to {view.durable_next - 1}"
        )
    if seq < view.first:
        return Outcome(sends=(Acknowledged(view.stream, view.first),))
    return Outcome(
        writes=(TruncateStream(view.stream, before_seq=seq + 1),),
        sends=(Acknowledged(view.stream, seq + 1),),
    )


def read_request(from_seq: int, count: int, bytes_max: int) -> ReadRequest:
    """Bring what a reader asked for within the limits.

    Raises MalformedMessageError for numbers that mean nothing; what is merely large is cut.
    """
    if not 0 <= from_seq <= limits.sequence_max:
        raise MalformedMessageError(f"a position is between 0 and {limits.sequence_max}")
    if count < 1:
        raise MalformedMessageError("at least one message must be asked for")
    return ReadRequest(
        from_seq=from_seq,
        count_max=min(count, limits.read_count_max),
        bytes_max=min(bytes_max, limits.read_bytes_max),
    )


def checked_quota(quota: int) -> int:
    """The quota of a new queue; 0 for none. Raises MalformedMessageError."""
    if not 0 <= quota <= limits.queue_quota_max:
        raise MalformedMessageError(
            f"a quota is between 0 (none) and {limits.queue_quota_max}, not {quota}"
        )
    return quota
