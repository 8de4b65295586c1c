"""The story of `syncline demo`: a router at work, a line that loses something, and the proof.

    live      a router in a process of its own, people at work, and a planted fault
    examine   the whole pipeline over what the router wrote, in one session of Spark
    judge     what was found beside what was planted

What was planted is known to the workload and to the proxy alone. The pipeline reads nothing but the
data folder.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from syncline.core.kinds import folding
from syncline.demo.editors import Kind, is_same
from syncline.demo.faults import LosesChanges
from syncline.demo.ledger import Ledger
from syncline.demo.proxy import Proxy
from syncline.demo.router import RouterProcess
from syncline.demo.workload import Size, Workload
from syncline.values.kinds import Kind as AnyKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MIN: Final = 1.0
SECONDS_MAX: Final = 300.0
# Whose line loses something.
VICTIM: Final = "bob"
LOST_COUNT: Final = 5
# So often `lag` looks at readers, at about equal distances in the log: by its end all have left.
LOOK_COUNT: Final = 8
_PAUSE_SECONDS: Final = 0.1

Report = TypeVar("Report")
Tell = Callable[[str], None]


class Run(Protocol):
    """Runs a job and shows how far it is."""

    def __call__(self, what: str, job: Callable[[], Report]) -> Report: ...


@dataclass(frozen=True, slots=True)
class Places:
    """What is where below the folder of the demo."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "router"

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


@dataclass(frozen=True, slots=True)
class Lived:
    """What happened while the router served, told by those who were there."""

    ledger: Ledger
    size: Size
    # A document, and which of its changes got lost on their way to the victim.
    document: str
    lost: tuple[int, ...]
    # Clients and documents that did not agree with the router in the end.
    different: tuple[tuple[str, str], ...]
    # What the router had then, and the kind of each.
    states: Mapping[str, Any]
    kinds: Mapping[str, Kind]


@dataclass(frozen=True, slots=True)
class Examined:
    """The report of each job."""

    ingest: Any
    audit: Any
    compact: Any
    gc_plan: Any
    lag: Any
    digest: Any
    page: Any
    # By document, as it would be given to somebody new.
    folded: Mapping[str, bytes]


async def live(places: Places, seed: int, seconds: float, tell: Tell) -> Lived:
    """So long, and until the fault is got over. Raises LinkLostError if the router fails."""
    router = RouterProcess(places.data)
    size = Size(document_count=6, client_count=4, queue_count=3)
    tell("starting a router")
    async with router.running():
        workload = Workload(seed, router, places.folder, size=size)
        document = next(iter(workload.documents))
        fault = LosesChanges([document])
        async with (
            Proxy(lambda: router.url, fault).running() as proxy,
            workload.connected({VICTIM: proxy.url}),
        ):
            tell("people at work on documents, letters through queues")
            await _work_for(workload, seconds / 2)
            await workload.settled()
            tell(f"the line to {VICTIM} loses what the router says; it has to send again")
            fault.is_on = True
            await workload.write("ann", [document], LOST_COUNT)
            await workload.settled()
            fault.is_on = False
            tell("everybody at work again")
            await _work_for(workload, seconds / 2)
            await workload.settled()
            different, states = await workload.different(), await workload.states()
        tell("stopping the router")
        await router.stop()
    lost = tuple(sorted(seq for _, seq in fault.lost))
    kinds = workload.documents
    return Lived(workload.ledger, size, document, lost, tuple(different), states, kinds)


async def _work_for(workload: Workload, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await workload.work(2)
        await asyncio.sleep(_PAUSE_SECONDS)


def examine(spark: "SparkSession", places: Places, run: Run) -> Examined:
    """Every job, over the folder of a router that is stopped. Raises PipelineError."""
    # Not at the top: they need the extra, and who has it not is told so first.
    from syncline.pipeline.jobs.audit import audit
    from syncline.pipeline.jobs.compact import compact
    from syncline.pipeline.jobs.digest import digest
    from syncline.pipeline.jobs.gc_plan import gc_plan
    from syncline.pipeline.jobs.ingest import ingest
    from syncline.pipeline.jobs.lag import lag
    from syncline.pipeline.report import write_report
    from syncline.pipeline.snapshots import export_snapshot
    from syncline.pipeline.sources.folders import Tail

    data, tables = str(places.data), places.tables
    stopped = Tail.STOPPED
    ingested = run("ingest", lambda: ingest(spark, tables, [data], tail=stopped))
    look_bytes = max(1, sum(ingested.ends.values()) // LOOK_COUNT)
    return Examined(
        ingest=ingested,
        audit=run("audit", lambda: audit(spark, tables, is_over=True)),
        compact=run("compact", lambda: compact(spark, tables)),
        gc_plan=run("gc-plan", lambda: gc_plan(spark, tables)),
        lag=run(
            "lag",
            # A row at every look: the demo is over before the first that is due.
            lambda: lag(spark, tables, [data], tail=stopped, batch_bytes=look_bytes, row_ms=0),
        ),
        digest=run("digest", lambda: digest(spark, tables, export_snapshot(data, tables).snapshot)),
        # Little enough to be read right here.
        page=run("report", lambda: write_report(None, tables, places.report)),
        folded=_folded(spark, tables),
    )


def _folded(spark: "SparkSession", tables: Path) -> dict[str, bytes]:
    """The states that the table has now."""
    from syncline.pipeline.frames import read_version
    from syncline.pipeline.schemas import DOCUMENT_STATES
    from syncline.pipeline.tables import Table

    version = Table(tables, DOCUMENT_STATES).version()
    rows = read_version(spark, DOCUMENT_STATES, version).where("state IS NOT NULL")
    found = cast("list[Any]", rows.select("name", "kind", "state").collect())
    return {row.name: folding(AnyKind(row.kind), bytes(row.state)).shown() for row in found}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the pipeline has found what was planted, and nothing else."""

    is_nothing_lost: bool
    is_fault_found: bool
    are_others_quiet: bool
    are_states_equal: bool
    are_sets_equal: bool

    @property
    def is_good(self) -> bool:
        return (
            self.is_nothing_lost
            and self.is_fault_found
            and self.are_others_quiet
            and self.are_states_equal
            and self.are_sets_equal
        )


# A slow machine is no fault.
_OF_THE_MACHINE: Final = frozenset({"late"})


def judge(lived: Lived, examined: Examined) -> Verdict:
    audit, ledger = examined.audit, lived.ledger
    others = {
        rule
        for rule, count in audit.findings.items()
        if count and rule != "resent" and rule not in _OF_THE_MACHINE
    }
    return Verdict(
        is_nothing_lost=(
            audit.lost_count == 0
            and audit.unknown_count == 0
            and audit.expected_count == audit.delivered_count > 0
            and audit.appended_count == len(ledger.saved) + len(ledger.received)
        ),
        is_fault_found=audit.findings.get("resent", 0) == len(lived.lost),
        are_others_quiet=not others,
        are_states_equal=(
            not lived.different
            and examined.compact.mismatch_count == 0
            and examined.folded.keys() == lived.states.keys()
            and all(
                is_same(lived.kinds[name], shown, lived.states[name])
                for name, shown in examined.folded.items()
            )
        ),
        are_sets_equal=examined.digest.mismatch_count == 0,
    )
