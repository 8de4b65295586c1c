"""Where and how much the bench measures, against whom, and who had to be left out."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.status import Status

from bench.documents.plan import Plan
from bench.documents.playing import CLIENT
from bench.documents.servers import SERVERS, DocumentServer, Running
from bench.documents.updates import typed_updates, write_updates
from bench.support.figures import Bar, Figure
from bench.support.processes import BenchError, run_worker
from bench.support.rounds import alternate, median_ratio

Result = dict[str, Any]
Results = dict[str, list[Result]]

GENERATOR = "bench.documents.generator"
HOCUSPOCUS = "Hocuspocus"
Y_WEBSOCKET = "y-websocket server"
PYCRDT = "pycrdt-websocket"
BARE = "bare relay"


@dataclass(slots=True)
class Setting:
    plan: Plan
    folder: Path
    console: Console
    status: Status
    # For what is made once and used by every run.
    scratch: Path
    # Who plays us; another name only to try the bench itself.
    ours: str
    # Everything measured, for `--details`.
    details: dict[str, object] = field(default_factory=dict)
    # Why a server has no figures, by part and server.
    missing: dict[tuple[str, str], str] = field(default_factory=dict)

    @contextlib.contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """Each run starts with an empty folder that goes away afterwards."""
        with tempfile.TemporaryDirectory(
            prefix="syncline-bench-", dir=self.folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def typed_file(self, count: int) -> Path:
        """Updates of the usual author; made at the first call."""
        path = self.scratch / f"typed-{count}"
        if not path.exists():
            self.status.update(f"making {count:,} updates")
            write_updates(typed_updates(CLIENT, count), path)
        return path

    def rounds(
        self, part: str, names: Sequence[str], run: Callable[[DocumentServer], Result]
    ) -> Results:
        """Alternating rounds of our server and the named peers; who fails is left out, and said."""

        def contestant(name: str) -> Callable[[], Result | None]:
            return lambda: self._attempt(part, name, run)

        names = [self.ours, *(name for name in names if name != self.ours)]
        found = alternate(
            self.plan.round_count,
            {name: contestant(name) for name in names},
            on_turn=lambda name: self.status.update(f"{part}: {name}"),
        )
        results = {
            name: [result for result in each if result is not None]
            for name, each in found.items()
            if all(result is not None for result in each)
        }
        self.details[part] = results
        return results

    def _attempt(
        self, part: str, name: str, run: Callable[[DocumentServer], Result]
    ) -> Result | None:
        if (part, name) in self.missing:
            return None
        server = SERVERS[name]
        reason = server.why_missing()
        if reason is None:
            try:
                return run(server)
            except BenchError as error:
                # The generator gives the whole task, then the class of the error.
                reason = str(error).splitlines()[0].rpartition("BenchError: ")[2]
        self.missing[part, name] = reason
        self.console.print(f"[yellow]{part}: no figures of {name}: {reason}[/]")
        return None

    def compare(
        self, part: str, results: Results, key: str, name: str, peer: str | None, bar: Bar | None
    ) -> Figure:
        """Our median beside a peer's, and the median of the ratios of single rounds."""
        ours = [result[key] for result in results.get(self.ours, [])]
        theirs = [result[key] for result in results.get(peer, [])] if peer else []
        reasons = [
            f"{who}: {self.missing[part, who]}"
            for who in (self.ours, peer)
            if who is not None and (part, who) in self.missing
        ]
        return Figure(
            name,
            median(ours) if ours else None,
            peer,
            median(theirs) if theirs else None,
            median_ratio(ours, theirs) if ours and theirs and all(theirs) else None,
            bar,
            "; ".join(reasons),
        )


def play(found: Running, task: str, **options: object) -> Result:
    """Let the generator do something with a running server."""
    result: Result = run_worker(GENERATOR, {"task": task, **found.task(), **options})
    return result
