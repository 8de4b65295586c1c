"""The one thread that waits for the disk, so that the event loop never does."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from syncline.errors import StorageError
from syncline.storage.base import Batch, Commits

# Called in the loop: seconds that the write took, and how it failed, if it did.
Written = Callable[[float, StorageError | None], None]


class BatchThread:
    """Writes the batches it is handed, one after the other, and reports back to the loop."""

    def __init__(
        self, store: Commits, loop: asyncio.AbstractEventLoop, clock_seconds: Callable[[], float]
    ) -> None:
        self._store = store
        self._loop = loop
        self._clock_seconds = clock_seconds
        # Bounded by its user: the committer has one batch in flight.
        self._work: SimpleQueue[tuple[Batch, Written] | None] = SimpleQueue()
        # A daemon: a device that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="syncline-committer", daemon=True)
        self._thread.start()

    def write(self, batch: Batch, written: Written) -> None:
        self._work.put((batch, written))

    def close(self) -> None:
        """Let the thread end after what it was handed."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._write(*work)

    def _write(self, batch: Batch, written: Written) -> None:
        # Stands if `write_batch` raises what nobody expects: that goes on to the thread's hook, and
        # the loop must learn all the same that this batch is not durable.
        failure: StorageError | None = StorageError(
            "the thread that writes to the disk stopped on an internal error; "
            "nothing unsaved was acknowledged. Start again: the log is replayed"
        )
        started = self._clock_seconds()
        try:
            try:
                self._store.write_batch(batch)
                failure = None
            except StorageError as error:
                failure = error
        finally:
            seconds = self._clock_seconds() - started
            # A closed loop has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(written, seconds, failure)
