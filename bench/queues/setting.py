"""Where and how much the bench measures."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.status import Status

from bench.queues.plan import Plan


@dataclass(slots=True)
class Setting:
    plan: Plan
    folder: Path
    console: Console
    status: Status
    # Everything measured, for `--details`.
    details: dict[str, object] = field(default_factory=dict)

    @contextlib.contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """Each run starts with an empty folder that goes away afterwards."""
        with tempfile.TemporaryDirectory(
            prefix="syncline-bench-", dir=self.folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder) / "data"
