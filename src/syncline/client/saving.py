"""A change of one's own, and the wait for the router to have it on disk."""

import asyncio
from collections.abc import Generator


class Saved:
    """Await it for the sequence at which the change is stored, at the latest.

    Raises RefusedError or ProtocolError if the router will not have it, and LinkClosedError if the
    document was closed before that was known. It may be awaited by many and more than once.
    """

    def __init__(self) -> None:
        self._future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Nobody has to wait for it; who does not has no use for a warning either.
        self._future.add_done_callback(_look_at)

    def __await__(self) -> Generator[object, None, int]:
        # Who stops waiting does not take the change away from the others.
        return asyncio.shield(self._future).__await__()

    @property
    def is_stored(self) -> bool:
        """Whether the router has said so by now."""
        return self._future.done() and self._future.exception() is None

    def resolve(self, seq: int) -> None:
        if not self._future.done():
            self._future.set_result(seq)

    def fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class OwnChange:
    """A change that shows already. Await it, or its `saved`, to know that it is stored."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.saved = Saved()

    def __await__(self) -> Generator[object, None, int]:
        return self.saved.__await__()


def _look_at(future: "asyncio.Future[int]") -> None:
    if not future.cancelled():
        future.exception()
