"""How far Spark is with what runs: tasks that are done, of those that are known.

A thread asks Spark's status a few times a second and is stopped whatever happens. It never fails a
job: if the status cannot be had, there is none to show.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PERIOD_S: Final = 0.2
_STOP_S: Final = 5.0

# Tasks done and tasks known, of all stages that are running.
OnProgress = Callable[[int, int], None]


@contextmanager
def told_of_progress(spark: "SparkSession", on_progress: OnProgress) -> Generator[None]:
    """While the block runs, `on_progress` hears how far it is; on a thread of its own."""
    is_over = Event()
    thread = Thread(target=_poll, args=(spark, on_progress, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_STOP_S)


def _poll(spark: "SparkSession", on_progress: OnProgress, is_over: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    told = (0, 0)
    while not is_over.wait(_PERIOD_S):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001 - whatever is the matter with Spark, the job itself tells
            return
        known = [stage for stage in stages if stage is not None]
        done = sum(stage.numCompletedTasks for stage in known)
        total = sum(stage.numTasks for stage in known)
        if known and (done, total) != told:
            told = (done, total)
            on_progress(done, total)
