"""What every kind of document offers."""

from typing import Any, Protocol

# A mutation that was checked, in whatever form its kind applies fastest.
Prepared = Any


class Folding(Protocol):
    """The state of one document. What is stored and what travels is bytes."""

    def check(self) -> None:
        """Raise CorruptionError if the state that it was made of cannot be read."""
        ...

    def prepare(self, body: bytes, value: object = None) -> Prepared:
        """Check a mutation without applying it. Raises InvalidMutationError.

        `value` is what the body says, if somebody has decoded it already.
        """
        ...

    def admit(self, body: bytes) -> None:
        """Asked once for each new mutation that was checked and is going to be stored.

        Raises LimitExceededError if the document would become one that cannot be folded safely.
        """
        ...

    def apply(self, prepared: Prepared) -> None:
        """Fold it in. Called once for each update, in order, when it is durable."""
        ...

    def state(self) -> bytes:
        """As it is stored in a snapshot, and given to a new `folding`."""
        ...

    def shown(self) -> bytes:
        """As it is given to a subscriber: for most kinds the same."""
        ...

    @property
    def byte_count(self) -> int:
        """The size of `state`, or an upper estimate of it that is cheap to have."""
        ...

    @property
    def is_folded(self) -> bool:
        """Whether the last `state` has all updates folded in.

        If not, what they fold into cannot be read again: then the state has some as they came.
        """
        ...

    @property
    def unfoldable_count(self) -> int:
        """Updates since the document was opened that are stored and relayed, but in no state."""
        ...

    def rest(self) -> None:
        """Nobody is at work on the document: keep no more than it takes to go on."""
        ...
