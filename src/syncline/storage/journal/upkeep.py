"""Sweeping the tree of queues in the background, and counting what is in it.

A sweep goes through the folders in small jobs, once a day and at once after a process that did not
end in order. It removes what that process left half made, and backups of queue.log past their age.
After such an end it also counts queues, files and bytes, and makes sure that what can be seen is on
the device; otherwise the counters go on from where the process before left them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from syncline.storage.files import Files
from syncline.storage.journal.folders import DiskUse, remove_files, remove_tree
from syncline.storage.journal.layout import TRANSIENT_PREFIX, Layout, is_ours
from syncline.storage.journal.recovery import settle_file
from syncline.storage.journal.state import expired_backups
from syncline.storage.options import DAY_MS, StoreOptions
from syncline.values.ids import StreamId

_NAMES_PER_JOB: Final = 64


@dataclass(frozen=True, slots=True)
class SweepJob:
    """Names in the root, each a branch of the tree or a queue."""

    name: ClassVar[str] = "sweep"
    names: tuple[str, ...]
    now_ms: int
    counts: bool


@dataclass(slots=True)
class SweepResult:
    """What was found in the branches, if they were counted, and what was freed."""

    streams: set[StreamId] = field(default_factory=set[StreamId])
    found: DiskUse = field(default_factory=DiskUse)
    freed: DiskUse = field(default_factory=DiskUse)


class Sweeper:
    """Carries out jobs, on any thread. Touches files only."""

    def __init__(
        self, files: Files, root: str, layout: Layout, options: StoreOptions, tag: str
    ) -> None:
        self._files = files
        self._root = root
        self._layout = layout
        self._options = options
        self._tag = tag

    def run(self, job: SweepJob) -> SweepResult:
        result = SweepResult()
        for name in job.names:
            self._sweep(name, 0, job, result)
        if job.counts:
            # A branch whose name is not on the device takes all that comes into it along.
            self._sync_folder(self._root)
        return result

    def _sweep(self, path: str, level: int, job: SweepJob, result: SweepResult) -> None:
        full = f"{self._root}/{path}"
        name = path.rpartition("/")[2]
        if name.startswith(TRANSIENT_PREFIX):
            if self._tag not in name and self._files.is_folder(full):
                remove_tree(self._files, full)
        elif level == self._layout.fragment_count:
            stream = self._layout.stream(path)
            if stream is not None:
                self._sweep_queue(stream, full, job, result)
        elif len(name) == self._layout.name_characters(level):
            for below in self._list(full):
                self._sweep(f"{path}/{below}", level + 1, job, result)
            if job.counts:
                self._sync_folder(full)

    def _sweep_queue(
        self, stream: StreamId, folder: str, job: SweepJob, result: SweepResult
    ) -> None:
        names = self._list(folder)
        if not names:
            return
        expired = expired_backups(names, job.now_ms, self._options)
        freed = remove_files(self._files, folder, expired)
        result.freed.add(freed.byte_count, freed.file_count)
        if not job.counts:
            return
        result.streams.add(stream)
        for name in filter(is_ours, set(names).difference(expired)):
            self._count(f"{folder}/{name}", result)
        self._sync_folder(folder)

    def _count(self, path: str, result: SweepResult) -> None:
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return
        try:
            if self._options.is_durable:
                settle_file(file)
            result.found.add(file.size(), 1)
        finally:
            file.close()

    def _list(self, folder: str) -> list[str]:
        """Names; none if the queue was deleted meanwhile, or somebody put a file there."""
        try:
            return self._files.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _sync_folder(self, folder: str) -> None:
        if self._options.is_durable:
            try:
                self._files.sync_folder(folder)
            except (FileNotFoundError, NotADirectoryError):
                return


class Census:
    """Counters of the store, right also while a sweep is counting.

    A queue that comes or goes counts at once, unless its branch has yet to be counted: then the
    sweep will find it. While a branch is being swept what comes and goes in it is remembered,
    because nobody can say whether the sweep has seen it.
    """

    def __init__(self, layout: Layout, stream_count: int, use: DiskUse, swept_ms: int) -> None:
        self._layout = layout
        self.stream_count = stream_count
        self.use = use
        self.swept_ms = swept_ms
        self._uncounted: set[str] = set()
        self._waiting: list[str] = []
        self._job: SweepJob | None = None
        self._presence: dict[StreamId, bool] = {}

    @property
    def is_counted(self) -> bool:
        return not self._uncounted

    def start_counting(self, names: Iterable[str]) -> None:
        self._waiting = sorted(names)
        self._uncounted = set(self._waiting)

    def note(self, stream: StreamId, *, is_there: bool) -> None:
        """A queue was staged to come or to go."""
        branch = self._branch(stream)
        if self._job is not None and self._job.counts and branch in self._job.names:
            self._presence[stream] = is_there
        elif branch not in self._uncounted:
            self.stream_count += 1 if is_there else -1

    def add(self, use: DiskUse) -> None:
        self.use.add(use.byte_count, use.file_count)

    def is_round_due(self, now_ms: int) -> bool:
        return not self._waiting and self._job is None and now_ms >= self.swept_ms + DAY_MS

    def start_round(self, names: Iterable[str]) -> None:
        self._waiting = sorted(names)

    def take_job(self, now_ms: int, presence: dict[StreamId, bool]) -> SweepJob | None:
        """The next branches, one job at a time.

        `presence` is what is staged and not yet on the disk.
        """
        if self._job is not None or not self._waiting:
            return None
        names, self._waiting = self._waiting[:_NAMES_PER_JOB], self._waiting[_NAMES_PER_JOB:]
        self._job = SweepJob(tuple(names), now_ms, counts=bool(self._uncounted))
        self._presence = {
            stream: is_there
            for stream, is_there in presence.items()
            if self._job.counts and self._branch(stream) in names
        }
        return self._job

    def give_back(self, job: SweepJob) -> None:
        """It failed, and is due again."""
        assert job is self._job, "one job at a time"
        self._waiting = [*job.names, *self._waiting]
        self._job = None

    def _branch(self, stream: StreamId) -> str:
        return self._layout.path(stream).partition("/")[0]

    def finish_job(self, job: SweepJob, result: SweepResult) -> None:
        assert job is self._job, "one job at a time"
        if job.counts:
            for stream, is_there in self._presence.items():
                (result.streams.add if is_there else result.streams.discard)(stream)
            self.stream_count += len(result.streams)
            self.add(result.found)
            self._uncounted.difference_update(job.names)
        else:
            self.use.add(-result.freed.byte_count, -result.freed.file_count)
        self._job = None
        if not self._waiting:
            self.swept_ms = max(self.swept_ms, job.now_ms)
