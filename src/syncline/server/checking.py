"""Large Yjs updates are looked at on a thread, so that the event loop goes on meanwhile.

Looking at an update takes time in proportion to its size, a fifth of a second for a megabyte. The
connection that sent a large one is not read while that lasts. So to everybody it is as if the
update had come a little later: the order of what one connection sends stays as it is, and nothing
is known of the update before it is taken.

What the CRDT library does it does without letting go of the interpreter: no thread helps there.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from syncline.errors import ProtocolError
from syncline.values.limits import KIB
from syncline.wire.yjs_updates import check_update

# Below this an update is looked at where it comes in, in a few milliseconds.
LARGE_BYTES = 32 * KIB

# None: it is an update.
Checked = Callable[[ProtocolError | None], None]


class Checks:
    """One thread, started by the first large update; what waits for it is one for a connection."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: set[asyncio.Future[None]] = set()

    def is_large(self, update: bytes) -> bool:
        return len(update) >= LARGE_BYTES

    def check(self, update: bytes, checked: Checked) -> None:
        """Call `checked`, in the loop, once it is known what is wrong with it, if anything."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "syncline-checks")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, check_update, update)
        self._pending.add(future)
        future.add_done_callback(partial(self._done, checked))

    async def settled(self) -> None:
        """Wait until all are checked, and told."""
        while self._pending:
            await asyncio.wait(self._pending)
            # Their callbacks come in the turn after.
            await asyncio.sleep(0)

    def _done(self, checked: Checked, future: asyncio.Future[None]) -> None:
        self._pending.discard(future)
        error = future.exception()
        if error is not None and not isinstance(error, ProtocolError):
            raise error
        checked(error)
