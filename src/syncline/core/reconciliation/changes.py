"""The last changes of a set, so that an answer can be carried over to its newest version."""

from collections import deque
from typing import Final

from syncline.values.reconciliation import CHANGE_COUNT_MAX, Change

COUNT_DEFAULT: Final = CHANGE_COUNT_MAX


class RecentChanges:
    """A bounded memory; what is older than it is not known any more."""

    def __init__(self, version: int = 0, count_max: int = COUNT_DEFAULT) -> None:
        self.version = version
        self._changes: deque[Change] = deque(maxlen=count_max)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self.version += 1

    def since(self, version: int) -> tuple[Change, ...] | None:
        """In order. None: that version is too old, or was never here."""
        missed = self.version - version
        if not 0 <= missed <= len(self._changes):
            return None
        return tuple(self._changes)[len(self._changes) - missed :]
