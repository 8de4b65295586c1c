"""`syncline demo`: a router at work with something going wrong, and the proof of what happened."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncline.cli.interrupting import run as run_loop
from syncline.cli.interrupting import terminated_as_interrupted
from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_session import open_jobs
from syncline.errors import ForeignFolderError
from syncline.pipeline.places import check_folder_place

if TYPE_CHECKING:
    from syncline.demo.story import Examined, Lived, Places, Verdict

EXIT_WRONG = 1
# It is little: what counts is how soon Spark is there.
_MASTER = "local[2]"
_SETTINGS = [
    "spark.sql.shuffle.partitions=2",
    "spark.sql.adaptive.enabled=false",
    "spark.driver.memory=1g",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
]


def demo(
    seed: Annotated[int, typer.Option("--seed", help="Decides what everybody does.")] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, max=300.0, help="How long they work.")
    ] = 6.0,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where all of it is kept; else a new temporary folder."),
    ] = None,
    is_json: JsonFlag = False,
) -> None:
    """Run a router with a planted fault, then the pipeline; say what it found. Takes a minute."""
    from syncline.pipeline.java import find_java
    from syncline.pipeline.session import check_packages

    output = Output(is_json=is_json)
    check_packages()
    find_java()
    from syncline.demo.story import Places, judge, live

    places = Places(_made(folder))
    with terminated_as_interrupted():
        with output.count_progress("a router", None) as bar:

            def tell(text: str) -> None:
                output.note(f"  {text}")
                bar.advance(1)

            output.note(f"Everything is kept in {places.folder}.")
            lived = run_loop(live(places, seed, seconds, tell))
        examined = _examined(output, places)
    verdict = judge(lived, examined)
    if is_json:
        output.json(_facts(places, lived, examined, verdict))
    else:
        _tell(output, places, lived, examined, verdict)
    if not verdict.is_good:
        raise typer.Exit(EXIT_WRONG)


def _made(folder: Path | None) -> Path:
    """Raises ForeignFolderError for one that has something in it, ConfigError if it cannot be."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="syncline-demo-"))
    check_folder_place(folder, "the demo")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ForeignFolderError(str(folder), "it is not empty; the demo wants one of its own")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _examined(output: Output, places: "Places") -> "Examined":
    from syncline.demo.story import Report, examine
    from syncline.pipeline.progress import told_of_progress

    with open_jobs(places.tables, _MASTER, _SETTINGS, output) as jobs:

        def run(what: str, job: Callable[[], Report]) -> Report:
            output.note(f"  {what}")
            with (
                output.count_progress(what, None) as bar,
                told_of_progress(jobs.spark, bar.show),
            ):
                return job()

        return examine(jobs.spark, places, run)


def _facts(
    places: "Places", lived: "Lived", examined: "Examined", verdict: "Verdict"
) -> dict[str, Any]:
    audit = examined.audit
    return {
        "folder": str(places.folder),
        "report": str(places.report),
        "changes": len(lived.ledger.saved),
        "letters": len(lived.ledger.received),
        "planted": {"document": lived.document, "sequences": lived.lost},
        "audit": asdict(audit),
        "compact": asdict(examined.compact),
        "gc_plan": asdict(examined.gc_plan),
        "lag": asdict(examined.lag),
        "digest": asdict(examined.digest),
        "verdict": asdict(verdict) | {"is_good": verdict.is_good},
    }


def _tell(
    output: Output, places: "Places", lived: "Lived", examined: "Examined", verdict: "Verdict"
) -> None:
    audit, size = examined.audit, lived.size
    changes, letters = len(lived.ledger.saved), len(lived.ledger.received)
    output.line()
    output.line("What happened", style="bold")
    output.line(
        f"  {size.client_count} people made {changes} changes to {size.document_count} documents, "
        f"and {letters} letters went through {size.queue_count} queues."
    )
    output.line(
        f"  {len(lived.lost)} changes to {lived.document} got lost on their way to one of them, "
        "and nobody told the router."
    )
    output.line()
    output.line("What the pipeline found in the log", style="bold")
    _verdict(
        output,
        verdict.is_nothing_lost,
        f"{audit.delivered_count} of {audit.expected_count} deliveries were made; "
        f"{audit.lost_count} lost, {audit.unknown_count} unknown.",
    )
    _verdict(
        output,
        verdict.is_fault_found,
        f"{audit.findings.get('resent', 0)} had to be sent again: {len(lived.lost)} were planted.",
    )
    rest = {rule: count for rule, count in audit.findings.items() if count and rule != "resent"}
    said = ", ".join(f"{count} {rule}" for rule, count in sorted(rest.items()))
    _verdict(output, verdict.are_others_quiet, f"Beyond that: {said or 'nothing'}.")
    compact = examined.compact
    _verdict(
        output,
        verdict.are_states_equal,
        f"{compact.document_count} documents, folded from {compact.update_count} updates, are what "
        "the router and everybody have.",
    )
    digest = examined.digest
    _verdict(
        output,
        verdict.are_sets_equal,
        f"The digest that the router keeps of the service's {digest.id_count} queues is right.",
    )
    output.line()
    output.line(f"The report: {places.report}", style="bold")
    output.line(f"All of it is in {places.folder}; remove that when you have seen enough.")


def _verdict(output: Output, is_good: bool, text: str) -> None:
    output.line(f"  {'✓' if is_good else '✗'} {text}", style="green" if is_good else "bold red")
