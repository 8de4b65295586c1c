"""Where and how much a bench measures, and to whom it speaks."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.status import Status

from bench.log.plan import Plan


@dataclass(slots=True)
class Setting:
    plan: Plan
    folder: Path
    console: Console
    status: Status
    # Our store; another kind than the log only to try the harness.
    kind: str = "log"
    # Everything measured, for `--details`.
    details: dict[str, object] = field(default_factory=dict)

    @contextlib.contextmanager
    def fresh_folder(self, parent: Path | None = None) -> Iterator[Path]:
        """Each run starts with an empty folder that goes away afterwards."""
        with tempfile.TemporaryDirectory(
            prefix="syncline-bench-", dir=parent or self.folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder) / "data"

    def doing(self, what: str) -> None:
        self.status.update(what)
