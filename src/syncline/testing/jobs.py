"""Upkeep of a store a step at a time: a job is taken, run, and its result handed over.

A job that the store gives out while another is under way goes first: so a long one meets all that
may happen beside it, before it is run and between that and its end.
"""

from dataclasses import dataclass

from syncline.storage.base import Job, Store


@dataclass(slots=True)
class _Taken:
    job: Job
    result: object = None
    is_run: bool = False


class JobSteps:
    """The jobs of one store that are under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._under_way: list[_Taken] = []

    def step(self) -> bool:
        """Take the next job, or run the one that was taken last, or hand over its result.

        False if there was nothing to do. What a job raises passes through; it is due again then.
        """
        job = self._store.take_job()
        if job is not None:
            self._under_way.append(_Taken(job))
            return True
        if self._under_way:
            self._move_last()
            return True
        return False

    def finish(self) -> None:
        """What is under way, and nothing else that is due."""
        while self._under_way:
            self._move_last()

    def finish_all(self) -> None:
        while self.step():
            pass

    def _move_last(self) -> None:
        taken = self._under_way[-1]
        if taken.is_run:
            self._under_way.pop()
            self._store.finish_job(taken.job, taken.result)
            return
        try:
            taken.result = self._store.run_job(taken.job)
        except BaseException:
            self._under_way.pop()
            raise
        taken.is_run = True
