"""A backup of the store while it serves, on a thread: writing and syncing files takes its time."""

import asyncio
import posixpath
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import closing
from functools import partial

import msgspec

from syncline.errors import (
    ConfigError,
    MalformedMessageError,
    RefusedError,
    StorageError,
)
from syncline.server.threads import on_thread
from syncline.storage.base import Store
from syncline.storage.copies import CopyManifest, check_empty, copy_certificates, write_manifest
from syncline.storage.files import Files
from syncline.storage.inspection import BacksUp
from syncline.storage.life import copy_life
from syncline.storage.memory import MemoryStore
from syncline.storage.unfinished import UnfinishedFiles
from syncline.values.limits import MIB

_PROGRESS_BYTES = 8 * MIB
_WAIT_SECONDS = 0.05


class HotBackup:
    """One at a time. The answer is a line of JSON for every few megabytes, and one at the end."""

    def __init__(
        self,
        store: Store,
        files: Files,
        folder: str,
        clock_ms: Callable[[], int],
        records: BacksUp | None = None,
    ) -> None:
        self._store = store
        self._records = records
        self._files = files
        self._folder = folder
        self._clock_ms = clock_ms
        self._is_running = False

    def run(self, target: str) -> AsyncGenerator[bytes]:
        """Check what can be checked, then give the lines.

        Raises MalformedMessageError for a folder that will not do, RefusedError.
        """
        store = self._store
        if isinstance(store, MemoryStore):
            raise RefusedError(
                "what is kept in memory cannot be backed up, and is gone when the router stops; "
                "`syncline tail --url` prints the messages"
            )
        if not isinstance(store, BacksUp):
            raise RefusedError(
                "this kind of store is backed up with the router stopped: "
                "stop it, then run `syncline backup`"
            )
        self._check_idle()
        if not posixpath.isabs(target):
            raise MalformedMessageError("name the folder of the backup by its whole path")
        # Where they really are: links and dots may lead into the folder from anywhere.
        folder = posixpath.realpath(self._folder)
        if posixpath.commonpath([folder, posixpath.realpath(target)]) == folder:
            raise MalformedMessageError(
                f"{target} lies inside the data folder; choose a place outside of it"
            )
        try:
            check_empty(self._files, target)
        except ConfigError as error:
            raise MalformedMessageError(str(error)) from error
        return self._lines(store, target)

    def _check_idle(self) -> None:
        if self._is_running:
            raise RefusedError("a backup is running; wait for its end")

    async def _lines(self, store: BacksUp, target: str) -> AsyncGenerator[bytes]:
        # Only here, for nobody may ever ask for the first line; so another one may have begun since
        # this one was let in.
        try:
            self._check_idle()
        except RefusedError as error:
            yield _line({"error": str(error)})
            return
        self._is_running = True
        try:
            copied_bytes = 0
            with closing(self._steps(store, target)) as steps:
                while (step_bytes := await on_thread(partial(_advance, steps))) is not None:
                    copied_bytes += step_bytes
                    if step_bytes:
                        yield _line({"copied_bytes": copied_bytes})
                    else:
                        # It waits for upkeep to end.
                        await asyncio.sleep(_WAIT_SECONDS)
            hashing = write_manifest(self._files, target, self._clock_ms())
            manifest = await on_thread(partial(_run_out, hashing))
            yield _line({"done": True, "files": len(manifest.files), "bytes": manifest.byte_count})
        except StorageError as error:
            yield _line({"error": str(error)})
        finally:
            self._is_running = False

    def _steps(self, store: BacksUp, target: str) -> Generator[int]:
        """The store first: it makes the folder. Each part is as of its own moment.

        Until all of them are there, nobody may take the folder for a store.
        """
        files = UnfinishedFiles(self._files, target)
        yield from store.backup(target)
        files.take_back()
        if self._records is not None:
            yield from self._records.backup(target)
        yield from copy_certificates(self._files, self._folder, target)
        copy_life(self._files, self._folder, target)
        files.finish()


def _advance(steps: Iterator[int]) -> int | None:
    """Some steps: bytes copied, 0 if there is something to wait for, None at the end."""
    copied_bytes = 0
    for step_bytes in steps:
        copied_bytes += step_bytes
        if not step_bytes or copied_bytes >= _PROGRESS_BYTES:
            return copied_bytes
    return copied_bytes or None


def _run_out(steps: Generator[int, None, CopyManifest]) -> CopyManifest:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            manifest: CopyManifest = end.value
            return manifest


def _line(facts: dict[str, object]) -> bytes:
    return msgspec.json.encode(facts) + b"\n"
