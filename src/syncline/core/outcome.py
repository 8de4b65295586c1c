"""What a step wants done: writes to make durable, then sends to let go.

A machine of the core returns an outcome and touches nothing. The committer makes the writes durable
and only then releases the sends, so whatever a peer is told has survived a crash already.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from syncline.values.records import Record

Event = TypeVar("Event", covariant=True)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Event]):
    """Writes in the order in which they are staged; sends in the order in which they go out."""

    writes: tuple[Record, ...] = ()
    sends: tuple[Event, ...] = ()
