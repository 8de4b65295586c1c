"""How much a bench measures, where it may write, and to whom it speaks."""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from rich.console import Console
from rich.status import Status

from bench.pipeline.plan import Plan
from bench.support.processes import BenchError
from syncline.pipeline.session import SessionKind, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


@dataclass(slots=True)
class Timed:
    """What a contestant took, at its best, and all its times in the order of the runs."""

    seconds: float
    all_seconds: list[float]


@dataclass(slots=True)
class Setting:
    plan: Plan
    console: Console
    status: Status
    # New at every run, unless one is given.
    seed: int
    # Scratch files; whoever made the folder removes it.
    folder: Path
    details: dict[str, object] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _spark: "SparkSession | None" = None

    @property
    def spark(self) -> "SparkSession":
        """One session for all parts, with the settings of one machine; started when asked for."""
        if self._spark is None:
            self.doing("starting Spark")
            session = open_session(self.folder / "spark", kind=SessionKind.MACHINE)
            self._spark = self._stack.enter_context(session)
        return self._spark

    def close(self) -> None:
        self._spark = None
        self._stack.close()

    def random(self, part: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, part))

    def doing(self, what: str) -> None:
        self.status.update(what)

    def check_space(self, byte_count: int) -> None:
        """Raises BenchError if the scratch folder cannot take so much."""
        free = shutil.disk_usage(self.folder).free
        if free < byte_count:
            raise BenchError(
                f"{byte_count / 1e9:.1f} GB are needed in {self.folder} and {free / 1e9:.1f} GB "
                "are free; --folder names another place, --size a smaller bench"
            )

    def timed(self, work: Callable[[], Result]) -> tuple[float, Result]:
        began = time.perf_counter()
        found = work()
        return time.perf_counter() - began, found

    def both_orders(
        self,
        contestants: Mapping[str, Callable[[], Result]],
        check: Callable[[str, Result], None],
        turn_count: int | None = None,
    ) -> dict[str, Timed]:
        """Everyone in one order, then in the other; `check` looks at each result, off the clock.

        It raises BenchError for one that is wrong. One turn is a warm-up.
        """
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        order = list(contestants)
        for turn in range(turn_count or self.plan.turn_count):
            for name in order if turn % 2 == 0 else reversed(order):
                self.doing(f"{name}, turn {turn + 1}")
                taken, found = self.timed(contestants[name])
                check(name, found)
                seconds[name].append(taken)
        return {name: Timed(min(each), each) for name, each in seconds.items()}
