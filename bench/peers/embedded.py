"""What an embedded store offers to the bench: durable when the call returns."""

from collections.abc import Sequence
from typing import Protocol

from bench.support.processes import BenchError
from bench.support.workload import Message


class EmbeddedStore(Protocol):
    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        """Append the messages and remove the head of each acknowledged queue: one transaction."""
        ...

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        """The head message of each queue."""
        ...

    def count(self) -> int:
        """Messages stored, counted from the store itself."""
        ...

    def close(self) -> None: ...


def found(body: bytes | None) -> bytes:
    """What a look-up gave; a message that is not there ends the measurement."""
    if body is None:
        raise BenchError("a message is missing")
    return body


class Positions:
    """First and next sequence of each queue, kept in memory for a peer that has none of its own.

    A kindness: a real queue on top of such a store would look its head and tail up.
    """

    def __init__(self) -> None:
        self._next: dict[bytes, int] = {}
        self._first: dict[bytes, int] = {}

    def append(self, queue: bytes) -> bytes:
        """The key of the next message."""
        seq = self._next.get(queue, 1)
        self._next[queue] = seq + 1
        return queue + seq.to_bytes(8, "big")

    def head(self, queue: bytes) -> bytes:
        return queue + self._first.get(queue, 1).to_bytes(8, "big")

    def pop(self, queue: bytes) -> bytes:
        """The key of the head, which goes."""
        seq = self._first.get(queue, 1)
        self._first[queue] = seq + 1
        return queue + seq.to_bytes(8, "big")
