"""A way of looking for a difference, as the initiator drives it."""

from typing import Protocol

from syncline.values.reconciliation import Answer, Opening, Request


class Search(Protocol):
    """Keeps the working set up to date with what it learns; asks until there is nothing to ask."""

    # Cells that the opening should have; 0: an opening without cells and counts.
    opening_cells: int

    def opened(self, opening: Opening) -> None: ...

    def learn(self, asked: Request, answer: Answer) -> None:
        """`answer` is one that `asked` may have."""
        ...

    def next(self, version: int, round_trips: int) -> Request | None:
        """The next question. None: by all that was said, the difference is known."""
        ...
