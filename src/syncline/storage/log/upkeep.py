"""Upkeep of the log: seals old segments, merges runs, prepares files, lets the table grow.

A job is taken by the owner, done elsewhere (in a job process, or on the caller's thread), and its
result is taken over by the owner. What a job made is durable, and the manifest that lists it too,
before anything it replaces is let go of.

One at a time, but for a merge or a measurement of large runs: it takes seconds and goes on beside
the others, or the log would wait for it with its next segments and everybody for the log (bench:
log). Runs are its alone until it is done; sealing only adds to them.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Final, assert_never

from syncline.errors import StorageError, StoreBusyError, StoreFullError
from syncline.storage.base import Damage, Job
from syncline.storage.log import jobs
from syncline.storage.log.adopting import adopted_number
from syncline.storage.log.archive import Archive
from syncline.storage.log.format import SLOT_BYTES
from syncline.storage.log.jobs import (
    MeasureJob,
    MeasureResult,
    MergeJob,
    MergeResult,
    PrepareSegmentJob,
    PrepareTableJob,
    SealJob,
    SealResult,
    choose_merge,
)
from syncline.storage.log.opening import OpenedLog, table_path
from syncline.storage.log.preparing import write_table, write_zeros
from syncline.storage.log.table import LOAD_LIMIT, LOAD_MAX, capacity_for, table_bytes
from syncline.storage.options import StoreOptions
from syncline.values import limits

if TYPE_CHECKING:
    from syncline.storage.log.worker import JobProcess

# Segments that are full before they are sealed together: young messages are mostly gone by then,
# and the table is synced once for all of them.
_SEALED_TOGETHER: Final = 2
_SPARES_MAX: Final = 2
# The next segment is prepared once the current one is filled so far.
_PREPARE_AT: Final = 0.25
# Rows of runs let go of, as a share of all, before their liveness is measured.
_MEASURE_AT: Final = 0.3
_MOVED_SLOTS_AT_ONCE: Final = 1 << 40
# A merge of more than so many segments' worth of runs is long.
LONG_MERGE_SEGMENTS: Final = 2


@dataclass(frozen=True, slots=True)
class SettleTableJob:
    """The older generation is copied: make that durable, then drop it."""

    name: ClassVar[str] = "settle table"
    generation: int


_Task = SealJob | MergeJob | MeasureJob | PrepareSegmentJob | PrepareTableJob | SettleTableJob


class Upkeep:
    """What is due, and taking over what was done."""

    def __init__(self, opened: OpenedLog, options: StoreOptions) -> None:
        self._files = opened.files
        self._folder = opened.folder
        self._manifest = opened.manifest
        self._segments = opened.segments
        self._table = opened.table
        self._runs = opened.runs
        self._chain_before = opened.replay.chain_before
        self._tails = opened.replay.tails
        self._process = _job_process() if options.has_job_process else None
        # For long ones. They are rare: it ends with each.
        self._merge_process = _job_process(is_kept=False) if options.has_job_process else None
        self._task: _Task | None = None
        # A long merge beside it, or a measurement of so much.
        self._long_task: MergeJob | MeasureJob | None = None
        # Two jobs may list what they made at the same time.
        self._listing = Lock()
        self._file_count = 0
        self._is_moved = False
        # Generations of the table that are no longer listed: a job under way may be about to open
        # them, so their files stay until there is none.
        self._dropped_tables: list[str] = []
        self._is_paused = False
        # The last job found no room.
        self._is_disk_full = False
        self._is_closing = False
        self._is_closed = False
        # Creations that are not finished: each will need a slot.
        self.staged_stream_count = 0
        self._checkpoint = opened.manifest.state.checkpoint
        # How many of them died before the start is not known: it is measured once.
        self._dead_row_count = sum(run.row_count for run in opened.manifest.state.runs)
        # Live rows and bytes of each run, as last measured.
        self._measured: dict[str, tuple[int, int]] = {}
        # Two if sealing gives none back: the log may need the next before a job has ended.
        self._wanted_spare_count = 1
        self.damage: list[Damage] = []
        # Below it nothing is read from segments any more; what lies below `durable_end` is durable.
        self.live_start = opened.manifest.state.oldest_segment * self._segments.segment_bytes
        self.durable_end = opened.replay.end
        self._archive = _open_archive(opened, options)
        if self._archive is None:
            self._drop_adopted()
        else:
            # Those that were sealed before, and did not get further than that.
            self._archive.move(self._segments.retired)
            self._archive_retired()

    @property
    def is_busy(self) -> bool:
        """No other job can be taken now."""
        return self._task is not None or self._is_paused

    @property
    def is_working(self) -> bool:
        return self._task is not None or self._long_task is not None

    def pause(self) -> None:
        """No job is taken until `resume`: for a backup, which needs the files as they are.

        Those under way go on; `is_working` says when they are done.
        """
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def begin_closing(self) -> None:
        """No job will make room any more: the last batches get theirs here and now."""
        self._is_closing = True

    def count_dead(self, row_count: int) -> None:
        """Entries in runs that nobody wants any more."""
        self._dead_row_count += max(0, row_count)

    def check_room_in_table(self) -> None:
        """Before a stream is created. Raises StoreBusyError or StoreFullError.

        While a job works on the table, nobody else can make a larger one in its place. If nobody
        does it is made here: once the stream is in the log, it is too late to find no room for it.
        """
        if not self.is_table_full:
            return
        if isinstance(self._task, PrepareTableJob | SettleTableJob):
            wanted = self._table.used_count + self.staged_stream_count + 1
            raise StoreBusyError(wanted * SLOT_BYTES, self._table.capacity * SLOT_BYTES)
        self.grow_now()

    @property
    def is_table_full(self) -> bool:
        """Whether one more stream than are staged leaves the table too full to be searched."""
        table = self._table
        wanted = table.used_count + self.staged_stream_count + 1
        if isinstance(self._task, PrepareTableJob) and wanted > LOAD_LIMIT * self._task.capacity:
            # It was ordered for those that there were, and may be the smaller one.
            return True
        # One that the log deleted may have its slot yet, or once more: after a power cut.
        wanted += table.deleted_count + self._tails.deletion_count
        return wanted > LOAD_LIMIT * table.capacity

    @property
    def seal_end(self) -> int:
        """Position below which all segments are full, if enough of them are; else 0."""
        numbers = self._segments.numbers
        # The last one stays, even if it is full to the last byte: replay needs a place to start.
        current = min(self.durable_end // self._segments.segment_bytes, max(numbers, default=0))
        full = [number for number in numbers if number < current]
        return current * self._segments.segment_bytes if len(full) >= _SEALED_TOGETHER else 0

    def take_spare(self) -> str:
        """A file for the next segment, made here if the log was quicker than the jobs."""
        segments = self._segments
        if segments.spares:
            return segments.spares.pop()
        if segments.retired:
            return segments.retired.pop()
        waits_for_jobs = self._process is not None and not self._is_closing
        if waits_for_jobs and len(segments.numbers) >= limits.live_segment_count_max:
            live = len(segments.numbers) * segments.segment_bytes
            raise StoreBusyError(live, limits.live_segment_count_max * segments.segment_bytes)
        path = self._new_name("spare", ".wal", segments.folder)
        try:
            segments.reserve(path)
        except StoreFullError:
            while self._give_up_archived():
                if segments.spares:
                    return segments.spares.pop()
            raise
        return path

    def take_job(self, *, seal_to: int, save: Callable[[], bool], filled: float) -> Job | None:
        """What is due, most urgent first.

        Segments below `seal_to` may be sealed. `save` brings the table up to date and says whether
        it is. `filled` is how much of the current segment is used.
        """
        assert not self.is_busy
        self._remove_dropped_tables()
        task: _Task | None = (
            self._segment_task(filled) or self._table_task() or self._seal_task(seal_to)
        )
        if task is None and self._long_task is None:
            task = self._mending_task() or self._run_task(save)
        if isinstance(task, MergeJob | MeasureJob) and self._is_long(task):
            self._long_task = task
        else:
            self._task = task
        return task

    def take_mending(self) -> Job | None:
        """As `take_job`, if what is due next is a damaged run."""
        assert not self.is_busy
        assert not self.is_working
        self._task = self._mending_task()
        return self._task

    def run_job(self, job: Job) -> object:
        """Any thread. Of the store's memory only the manifest is changed, which has a lock."""
        task = self._under_way(job)
        try:
            result = self._do(task)
            with self._listing:
                self._list(task, result)
        except BaseException as error:
            # It is due again, for instance once there is room on the disk.
            self._end(task)
            self._is_disk_full = isinstance(error, StoreFullError)
            raise
        return result

    def _under_way(self, job: Job) -> _Task:
        task = self._long_task if job is self._long_task else self._task
        assert task is not None
        assert job is task
        return task

    def _end(self, task: _Task) -> None:
        if task is self._long_task:
            self._long_task = None
        else:
            self._task = None

    def _list(self, task: _Task, result: object) -> None:
        """Make the result count: durable in the manifest."""
        match task:
            case SealJob():
                assert isinstance(result, SealResult)
                self._list_sealed(task, result)
            case MergeJob():
                assert isinstance(result, MergeResult)
                self._list_merged(task, result)
            case PrepareTableJob(path=path, generation=generation):
                numbers = [generation, *self._manifest.state.table_generations]
                self._list_made([path], table_generations=numbers)
            case SettleTableJob(generation=generation):
                self._table.sync()
                self._manifest.change(table_generations=[generation])
            case MeasureJob() | PrepareSegmentJob():
                pass
            case _:
                assert_never(task)

    def _list_made(self, paths: Iterable[str], **changes: object) -> None:
        """In the manifest. Files for which it has no room are removed: the job is done again."""
        try:
            self._manifest.change(**changes)
        except StoreFullError:
            # Only then: after any other error the manifest on the disk may list them.
            for path in paths:
                with suppress(StorageError):
                    self._files.remove(path)
            raise

    def finish_job(self, job: Job, result: object) -> None:
        """By the owner."""
        task = self._under_way(job)
        try:
            self._take_over(task, result)
        finally:
            # Last: whoever waits for the end of the job may go on in another thread at once.
            self._end(task)
        self._remove_dropped_tables()

    def _take_over(self, task: _Task, result: object) -> None:
        match task:
            case SealJob():
                assert isinstance(result, SealResult)
                self._finish_sealed(task, result)
            case MergeJob():
                assert isinstance(result, MergeResult)
                self._finish_merged(task, result)
            case MeasureJob():
                assert isinstance(result, MeasureResult)
                self._measured = dict(result.live)
            case PrepareSegmentJob(path=path):
                self._segments.spares.append(path)
            case PrepareTableJob(path=path, generation=generation):
                self._table.grow_into(self._files, path, generation)
                self._is_moved = False
            case SettleTableJob():
                self._dropped_tables.append(self._table.drop_older())
            case _:
                assert_never(task)

    def _remove_dropped_tables(self) -> None:
        while self._dropped_tables and not self.is_working:
            self._files.remove(self._dropped_tables.pop())

    def move_slots(self, page_count: int) -> None:
        """Copy some of the older generation of the table, if there is one."""
        if self._table.is_growing and not self._is_moved:
            self._is_moved = self._table.move_some(page_count)

    def grow_now(self) -> None:
        """The table is nearly full and no job made a larger one in time.

        Raises StoreFullError: then the table is as good as before.
        """
        table = self._table
        self._delete_replayed()
        if table.is_growing and self.is_table_full:
            if isinstance(self._task, SettleTableJob):
                return
            table.move_some(_MOVED_SLOTS_AT_ONCE)
            table.sync()
            self._manifest.change(table_generations=[table.generation_number])
            self._dropped_tables.append(table.drop_older())
            self._remove_dropped_tables()
        if self.is_table_full and not isinstance(self._task, PrepareTableJob):
            self._grow()

    def _delete_replayed(self) -> None:
        """Streams that the replayed log deleted leave the table now, not when their turn comes."""
        if not self._tails.deletion_count:
            return
        for stream, tail in self._tails.items():
            if tail.is_deleted:
                self._table.delete_in_place(stream, tail.applied)
        self._tails.deletion_count = 0
        self._table.count_deleted()

    def _grow(self) -> None:
        """Begin the next generation of the table. Raises StoreFullError: then nothing changed."""
        table = self._table
        number = table.generation_number + 1
        path = table_path(self._folder, number)
        capacity = capacity_for(table.used_count + self.staged_stream_count)
        wanted, free = table_bytes(capacity), self._files.free_bytes(self._folder)
        if free < wanted:
            # Not found out by writing it: whoever creates one stream after the other would wait.
            raise StoreFullError(path, f"it would take {wanted} bytes, {free} are free")
        write_table(self._files, path, capacity, number)
        self._list_made([path], table_generations=[number, *table.numbers()])
        table.grow_into(self._files, path, number)
        self._is_moved = False

    def close(self) -> None:
        self._is_closed = True
        for process in (self._process, self._merge_process):
            if process is not None:
                process.close()

    # ---- What is due ----

    def _segment_task(self, filled: float) -> PrepareSegmentJob | None:
        segments = self._segments
        spare_count = len(segments.spares) + len(segments.retired)
        if spare_count >= self._wanted_spare_count or filled < _PREPARE_AT:
            return None
        path = self._new_name("spare", ".wal", segments.folder)
        return PrepareSegmentJob(path, segments.segment_bytes)

    def _table_task(self) -> PrepareTableJob | SettleTableJob | None:
        table = self._table
        if self.is_table_full:
            # It grows with the next stream or batch, at once: a job would be in the way.
            return None
        if table.is_growing:
            return SettleTableJob(table.generation_number) if self._is_moved else None
        if table.load <= LOAD_MAX:
            return None
        number = table.generation_number + 1
        capacity = capacity_for(table.used_count)
        return PrepareTableJob(table_path(self._folder, number), capacity, number)

    def _seal_task(self, end: int) -> SealJob | None:
        numbers = [n for n in self._segments.numbers if n * self._segments.segment_bytes < end]
        if not numbers:
            return None
        self._checkpoint = end - 1
        return SealJob(
            self._folder,
            tuple(self._segments.paths(numbers)),
            tuple(numbers),
            self._segments.segment_bytes,
            tuple(self._table.paths()),
            self._new_name("r", ".run", f"{self._folder}/runs"),
            self._segments.tag,
            self._table.key,
        )

    def _run_task(self, save: Callable[[], bool]) -> MergeJob | MeasureJob | None:
        listed = self._manifest.state.runs
        row_count = sum(run.row_count for run in listed)
        paths = tuple(self._table.paths())
        if row_count and self._dead_row_count > _MEASURE_AT * row_count:
            if not save():
                return None
            self._dead_row_count = 0
            names = tuple(self._runs.path(name) for name in self._runs.names)
            return MeasureJob(names, paths, names, tuple(listed), self._table.key)
        chosen = choose_merge(
            [run for run in listed if run.name in self._runs.names], self._measured
        )
        if chosen is None:
            return None
        return self._merge_task(chosen)

    def _mending_task(self) -> MergeJob | None:
        """Write the next run anew that is known to be damaged, without what is damaged in it.

        Else the damage would stay until a merge happens to come by, and every reader meets it.
        """
        damaged = {damage.file for damage in self._runs.damage}
        for name in self._runs.names:
            # Once that is done there is no run of this name any more.
            if self._runs.path(name) in damaged:
                return self._merge_task((name,))
        return None

    def _merge_task(self, chosen: tuple[str, ...]) -> MergeJob:
        return MergeJob(
            self._folder,
            tuple(self._runs.path(name) for name in chosen),
            tuple(self._table.paths()),
            self._new_name("r", ".run", f"{self._folder}/runs"),
            tuple(self._runs.path(name) for name in self._runs.names if name not in chosen),
            tuple(self._manifest.state.runs),
            self._table.key,
        )

    def _is_long(self, task: MergeJob | MeasureJob) -> bool:
        names = {_name(path) for path in task.run_paths}
        run_bytes = sum(run.file_bytes for run in task.listed if run.name in names)
        return run_bytes > LONG_MERGE_SEGMENTS * self._segments.segment_bytes

    # ---- Done ----

    def _do(self, task: _Task) -> object:
        if isinstance(task, SettleTableJob):
            return None
        if isinstance(task, PrepareSegmentJob):
            # Zeros, which the interpreter does not wait for: a small router, whose log never fills
            # a second segment, does without the process and its memory.
            write_zeros(self._files, task.path, task.size, is_given_up=lambda: self._is_closed)
            return None
        process = self._merge_process if task is self._long_task else self._process
        return jobs.run(self._files, task) if process is None else process.run(task)

    def _list_sealed(self, task: SealJob, result: SealResult) -> None:
        behind = self._number_behind(task)
        chain = self._chain_before[behind]
        self._list_made(
            [self._runs.path(run.name) for run in result.runs],
            oldest_segment=behind,
            previous_number=chain.number,
            previous_crc=chain.crc,
            previous_epoch=chain.epoch,
            checkpoint=self._checkpoint,
            runs=[*self._manifest.state.runs, *result.runs],
        )
        if self._archive is not None:
            self._archive.move(task.segment_paths)

    def _number_behind(self, task: SealJob) -> int:
        """Of the segment that replay starts with from now on: the next one that there is.

        One may be missing in between, and was reported as damage when the store was opened.
        """
        # A list at once: the owner adds to it while a job is listed.
        numbers = list(self._chain_before)
        return min(number for number in numbers if number > task.segment_numbers[-1])

    def _finish_sealed(self, task: SealJob, result: SealResult) -> None:
        for run in result.runs:
            self._runs.add(run)
        adopted_count = sum(run.name != _name(task.run_path) for run in result.runs)
        gives_some_back = adopted_count < len(task.segment_numbers)
        self._wanted_spare_count = 1 if gives_some_back else _SPARES_MAX
        self.damage.extend(result.damage)
        behind = self._number_behind(task)
        self.live_start = behind * self._segments.segment_bytes
        self._segments.retire_below(self.live_start)
        for number in task.segment_numbers:
            self._chain_before.pop(number, None)
        if self._archive is None:
            self._drop_adopted()
        else:
            self._archive_retired()
        self._drop_surplus()

    def let_go_of_archived(self, now_ms: int) -> None:
        """What was confirmed, and what is too much or too old. From time to time."""
        if self._archive is None:
            return
        for path in self._archive.let_go(now_ms):
            self._make_spare(path)
        self._drop_surplus()
        if self._is_disk_full and self._give_up_archived() and self._segments.spares:
            self._files.remove(self._segments.spares.pop())
        self._is_disk_full = False

    @property
    def archived_count(self) -> int:
        return 0 if self._archive is None else self._archive.count

    @property
    def archived_bytes(self) -> int:
        """What the archive takes beside the runs: a segment that became one is there twice."""
        if self._archive is None:
            return 0
        runs = {adopted_number(name) for name in self._runs.names}
        return len(set(self._archive.numbers) - runs) * self._segments.segment_bytes

    @property
    def archive_dropped_count(self) -> int:
        """Segments that went before anybody had confirmed them, since the start."""
        return 0 if self._archive is None else self._archive.dropped_count

    def _give_up_archived(self) -> bool:
        """Messages come before their history: its oldest segment becomes a spare, if it has any.

        One that became a run gives no room, but may stand before one that does. Where none does,
        history would go for nothing.
        """
        if self._archive is None or all(map(self._files.is_linked, self._archive.paths())):
            return False
        self._make_spare(self._archive.give_up_oldest())
        return True

    def _make_spare(self, archived: str) -> None:
        """Under another name at once, or the archive would show it."""
        if self._files.is_linked(archived):
            self._files.remove(archived)
            return
        spare = self._new_name("spare", ".wal", self._segments.folder)
        try:
            self._files.rename(archived, spare)
        except StoreFullError:
            # Not even for its name.
            self._files.remove(archived)
            return
        self._segments.spares.append(spare)

    def _drop_surplus(self) -> None:
        segments = self._segments
        while len(segments.retired) + len(segments.spares) > _SPARES_MAX:
            unneeded = segments.retired or segments.spares
            self._files.remove(unneeded.pop())

    def _drop_adopted(self) -> None:
        """Segments that became runs keep that name alone: they must not be written over."""
        for path in [path for path in self._segments.retired if self._files.is_linked(path)]:
            self._files.remove(path)
            self._segments.retired.remove(path)

    def _archive_retired(self) -> None:
        assert self._archive is not None
        self._segments.retired = self._archive.add(self._segments.retired)
        self._drop_adopted()

    def _list_merged(self, task: MergeJob, result: MergeResult) -> None:
        gone = {_name(path) for path in task.run_paths}
        runs = [run for run in self._manifest.state.runs if run.name not in gone]
        made = [] if result.run is None else [result.run]
        self._list_made([self._runs.path(run.name) for run in made], runs=[*runs, *made])

    def _finish_merged(self, task: MergeJob, result: MergeResult) -> None:
        if result.run is not None:
            self._runs.add(result.run)
        for found in result.damage:
            # Mostly it is why they were merged, and known.
            self._runs.report(found)
        for path in task.run_paths:
            self._runs.drop(_name(path))
            self._measured.pop(_name(path), None)
            self._files.remove(path)

    def _new_name(self, stem: str, suffix: str, folder: str) -> str:
        """Never used before: a job process that outlived its router must not meet the next one."""
        self._file_count += 1
        return f"{folder}/{stem}-{self._segments.epoch}-{self._file_count}{suffix}"


def _open_archive(opened: OpenedLog, options: StoreOptions) -> Archive | None:
    if not options.archive_bytes_max:
        return None
    return Archive(
        opened.files,
        opened.folder,
        opened.segments.segment_bytes,
        options.archive_bytes_max,
        options.archive_age_ms_max,
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _job_process(*, is_kept: bool = True) -> "JobProcess":
    # Not at the top: tools that open a folder for a moment do without it.
    from syncline.storage.log.worker import JobProcess

    return JobProcess(is_kept=is_kept)
