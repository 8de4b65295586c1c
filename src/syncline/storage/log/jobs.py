"""Upkeep that may run outside the router's process: what there is to do, and what comes of it.

A job is a value that can be pickled; `run` does it on any `Files`. So the same code works in the
job process (`worker`) on the disk and inline on a simulated file system. Jobs touch no memory of
the store and write only files that no manifest lists yet: one that is cut off leaves rubbish, never
damage, and can be done again.

The parts that compute with NumPy are imported when a job needs them, not when the router starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, assert_never

from syncline.storage.base import Damage
from syncline.storage.files import Files
from syncline.storage.log.format import NO_TABLE_KEY
from syncline.storage.log.run_rows import RunMeta
from syncline.values import limits

# So many runs of one size become one of the next. A larger number means that a survivor is written
# again less often, and that more runs are searched meanwhile.
MERGE_FAN_IN: Final = 16
# Runs up to this size are all of one tier; from there on each tier is larger by the fan-in. No
# border lies near the size of a segment: of sixteen that became runs the merged one is of the next
# tier even if it is a little smaller than all of them, and not merged again at once.
_TIER_BYTES: Final = 6 * limits.MIB


@dataclass(frozen=True, slots=True)
class SealJob:
    """Move what is still wanted of these segments into runs, and sync the table.

    Those that become runs themselves have their number behind the name in `run_path`.
    """

    name: ClassVar[str] = "seal"
    folder: str
    segment_paths: tuple[str, ...]
    segment_numbers: tuple[int, ...]
    segment_bytes: int
    # Newest generation first, in every job.
    table_paths: tuple[str, ...]
    run_path: str
    # The store's, see `format.store_tag`.
    tag: int = 0
    # The store's, in every job: without it no stream is found in its table.
    table_key: bytes = NO_TABLE_KEY


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Write the live rows of these runs into one. Of a single run: write it anew, without damage.

    A snapshot goes, too, if one of `other_run_paths` holds a newer one of its stream. `listed` is
    what the manifest says of any of the runs: with it a damaged footer does not stop the merge.
    """

    name: ClassVar[str] = "merge"
    folder: str
    run_paths: tuple[str, ...]
    table_paths: tuple[str, ...]
    run_path: str
    other_run_paths: tuple[str, ...] = ()
    listed: tuple[RunMeta, ...] = ()
    table_key: bytes = NO_TABLE_KEY


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Count what is live in each of these runs; the other fields as in `MergeJob`.

    Name the same other runs here and in the merge, or a run that counts as half dead stays so.
    """

    name: ClassVar[str] = "measure"
    run_paths: tuple[str, ...]
    table_paths: tuple[str, ...]
    other_run_paths: tuple[str, ...] = ()
    listed: tuple[RunMeta, ...] = ()
    table_key: bytes = NO_TABLE_KEY


@dataclass(frozen=True, slots=True)
class PrepareSegmentJob:
    """Write a file full of zeros, whose blocks a later segment uses."""

    name: ClassVar[str] = "prepare segment"
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class PrepareTableJob:
    """Write an empty table."""

    name: ClassVar[str] = "prepare table"
    path: str
    capacity: int
    generation: int


LogJob = SealJob | MergeJob | MeasureJob | PrepareSegmentJob | PrepareTableJob


@dataclass(frozen=True, slots=True)
class SealResult:
    runs: tuple[RunMeta, ...]  # none: nothing was wanted any more
    live_bytes: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class MergeResult:
    run: RunMeta | None
    dropped_row_count: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """Name of each run with its live rows and bytes: `dict(result.live)`.

    The bytes are those that the run would have if it were written anew.
    """

    live: tuple[tuple[str, tuple[int, int]], ...]


LogResult = SealResult | MergeResult | MeasureResult | None


def run(files: Files, job: LogJob) -> LogResult:
    """Do it, here and now. Raises StorageError; what the job had begun to write is removed."""
    match job:
        case SealJob():
            return seal(files, job)
        case MergeJob():
            return merge(files, job)
        case MeasureJob():
            return measure(files, job)
        case PrepareSegmentJob():
            prepare_segment(files, job)
        case PrepareTableJob():
            prepare_table(files, job)
        case _:
            assert_never(job)
    return None


def seal(files: Files, job: SealJob) -> SealResult:
    from syncline.storage.log import sealing

    return sealing.seal(files, job)


def merge(files: Files, job: MergeJob) -> MergeResult:
    from syncline.storage.log import merging

    return merging.merge(files, job)


def measure(files: Files, job: MeasureJob) -> MeasureResult:
    from syncline.storage.log import merging

    return merging.measure(files, job)


def prepare_segment(files: Files, job: PrepareSegmentJob) -> None:
    from syncline.storage.log.preparing import write_zeros

    write_zeros(files, job.path, job.size)


def prepare_table(files: Files, job: PrepareTableJob) -> None:
    from syncline.storage.log.preparing import write_table

    write_table(files, job.path, job.capacity, job.generation)


def choose_merge(
    runs: Sequence[RunMeta], live: Mapping[str, tuple[int, int]]
) -> tuple[str, ...] | None:
    """Names of the runs to merge next, if any. `live` has rows and bytes of those measured.

    In this order: dead runs, which cost nothing; runs of which less than half is live, so that the
    disk holds at most twice what is wanted; a full tier; the smallest, if there are too many.
    """
    found = [_Standing(run.name, run.file_bytes, *live.get(run.name, _ALL_LIVE)) for run in runs]
    dead = [run for run in found if run.live_row_count == 0]
    if dead:
        return _names(dead)
    wasteful = [run for run in found if run.live_bytes * 2 < run.file_bytes]
    if wasteful:
        return _names(wasteful[:MERGE_FAN_IN])
    by_size = sorted(found, key=lambda run: run.file_bytes)
    tiers: dict[int, list[_Standing]] = {}
    for run in by_size:
        tiers.setdefault(_tier(run.file_bytes), []).append(run)
    for tier in tiers.values():
        if len(tier) >= MERGE_FAN_IN:
            return _names(tier[:MERGE_FAN_IN])
    if len(found) >= limits.run_count_max:
        return _names(by_size[:MERGE_FAN_IN])
    return None


_ALL_LIVE: Final = (1, 1 << 62)


@dataclass(frozen=True, slots=True)
class _Standing:
    name: str
    file_bytes: int
    live_row_count: int
    live_bytes: int


def _tier(file_bytes: int) -> int:
    tier = 0
    while file_bytes > _TIER_BYTES * MERGE_FAN_IN**tier:
        tier += 1
    return tier


def _names(runs: Sequence[_Standing]) -> tuple[str, ...]:
    return tuple(run.name for run in runs)
