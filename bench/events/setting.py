"""Where and how much the bench measures, and the two sides that take turns."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.status import Status

from bench.events.plan import Plan
from bench.support.figures import Figure
from bench.support.rounds import alternate, median_ratio

WITH, WITHOUT = "with events", "without"
_MICROSECONDS = 1e6


@dataclass(slots=True)
class Setting:
    plan: Plan
    folder: Path
    console: Console
    status: Status
    # Everything measured, for `--details`.
    details: dict[str, object] = field(default_factory=dict[str, object])

    @contextlib.contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """Each run starts with an empty folder that goes away afterwards."""
        with tempfile.TemporaryDirectory(
            prefix="syncline-bench-", dir=self.folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def compare(self, what: str, cpu_seconds_each: Callable[[bool], float]) -> Figure:
        """`cpu_seconds_each`: of the router, with events or without, for one of what it did."""
        found = alternate(
            self.plan.round_count,
            {
                WITH: lambda: cpu_seconds_each(True) * _MICROSECONDS,
                WITHOUT: lambda: cpu_seconds_each(False) * _MICROSECONDS,
            },
            on_turn=lambda name: self.status.update(f"{what}: {name}"),
        )
        self.details[what] = found
        extra = median(a - b for a, b in zip(found[WITH], found[WITHOUT], strict=True))
        return Figure(
            f"router CPU in µs for {what}",
            median(found[WITH]),
            WITHOUT,
            median(found[WITHOUT]),
            median_ratio(found[WITH], found[WITHOUT]),
            note=f"{extra:+.2f} µs each",
        )
