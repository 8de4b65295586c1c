"""`syncline pipeline …`: the jobs on Spark, each with a bar of its tasks.

Spark and its friends are an extra: nothing of the pipeline is imported before it is known that they
are there.
"""

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(help="Jobs on Spark over what routers wrote.", no_args_is_help=True)

FoldersArgument = Annotated[list[Path], typer.Argument(help="Data folders of routers, or backups.")]
TablesOption = Annotated[Path, typer.Option("--tables", help="The folder of the tables.")]
MasterOption = Annotated[
    str, typer.Option("--master", help="Where Spark runs: local[*], or the URL of a cluster.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of Spark, KEY=VALUE: spark.executor.memory=8g."),
]
TailOption = Annotated[
    str,
    typer.Option(
        "--tail", help="Of the segment still written to, read: none, durable, or stopped (all)."
    ),
]
DamageOption = Annotated[
    int | None,
    typer.Option("--damage-max", help="Load nothing if there are more damaged places than this."),
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm", help="Tell routers which segments they need not archive longer."
    ),
]
SetsArgument = Annotated[str, typer.Argument(help="A snapshot, or a data folder to take one of.")]
PlanOption = Annotated[
    Path | None, typer.Option("--plan", help="Write what would mend the router to this file.")
]

DEFAULT_TABLES = Path("syncline-tables")
DEFAULT_MASTER = "local[*]"


class _Jobs:
    """A session, and what every verb does with it."""

    def __init__(self, spark: "SparkSession", tables: Path, output: Output) -> None:
        self.spark = spark
        self.tables = tables
        self.output = output

    def ingest(
        self, folders: list[Path], tail: str, damage_max: int | None, confirms: bool
    ) -> dict[str, Any]:
        from syncline.pipeline.jobs.ingest import ingest

        paths = [str(folder) for folder in folders]
        return self._run(
            "ingest",
            lambda: ingest(
                self.spark,
                self.tables,
                paths,
                tail=tail,
                damage_count_max=damage_max,
                confirms=confirms,
            ),
        )

    def snapshot(self, folder: Path) -> dict[str, Any]:
        from syncline.pipeline.snapshots import export_snapshot

        with self.output.count_progress("snapshot", None) as bar:
            report = export_snapshot(str(folder), self.tables, on_ids=bar.advance)
        return asdict(report)

    def snapshot_name(self, snapshot_or_folder: str) -> str:
        """Of a folder, one is taken."""
        if Path(snapshot_or_folder).is_dir():
            return str(self.snapshot(Path(snapshot_or_folder))["snapshot"])
        return snapshot_or_folder

    def digest(self, snapshot: str) -> dict[str, Any]:
        from syncline.pipeline.jobs.digest import digest

        return self._run("digest", lambda: digest(self.spark, self.tables, snapshot))

    def reconcile(self, router: str, wanted: str, plan: Path | None) -> dict[str, Any]:
        from syncline.pipeline.jobs.reconcile import reconcile
        from syncline.pipeline.repair_plan import write_plan

        facts = self._run("reconcile", lambda: reconcile(self.spark, self.tables, router, wanted))
        if plan is not None:
            facts["repair_count"] = write_plan(self.spark, self.tables, router, wanted, plan)
            facts["plan"] = str(plan)
        return facts

    def _run(self, what: str, job: Callable[[], Any]) -> dict[str, Any]:
        from syncline.pipeline.progress import told_of_progress

        with (
            self.output.count_progress(what, None) as bar,
            told_of_progress(self.spark, bar.show),
        ):
            report = job()
        return asdict(report)


@contextmanager
def _jobs(
    tables: Path, master: str, settings: list[str] | None, output: Output
) -> Generator[_Jobs]:
    from syncline.pipeline.session import check_packages, open_session

    check_packages()
    chosen = dict(_setting(text) for text in settings or [])
    with tempfile.TemporaryDirectory(prefix="syncline-spark-") as work_folder:
        output.note("starting Spark …")
        with open_session(Path(work_folder), master=master, settings=chosen) as spark:
            yield _Jobs(spark, tables.absolute(), output)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise ConfigError(f"{text!r} is no setting of Spark; write spark.NAME=VALUE")
    return name, value


def _check_folders(folders: list[Path], tail: str) -> None:
    """A wrong folder is told before Spark is started, which takes a while."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.jobs.ingest import ends_of

    ends_of([str(folder) for folder in folders], tail)


def _print(output: Output, title: str, facts: dict[str, Any]) -> None:
    if output.is_json:
        output.json(facts)
    else:
        output.facts(title, facts)


@app.command()
def ingest(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    tail: TailOption = "none",
    damage_max: DamageOption = None,
    confirms: ConfirmOption = True,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Load what the routers have logged since the last time into the table `events`."""
    output = Output(is_json=is_json)
    _check_folders(folders, tail)
    with _jobs(tables, master, settings, output) as jobs:
        facts = jobs.ingest(folders, tail, damage_max, confirms)
    _print(output, "ingest", facts)


@app.command()
def digest(
    sets: SetsArgument,
    tables: TablesOption = DEFAULT_TABLES,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Compute the digests of the sets of ids of a router, and compare them with its claims."""
    output = Output(is_json=is_json)
    with _jobs(tables, master, settings, output) as jobs:
        facts = jobs.digest(jobs.snapshot_name(sets))
    _print(output, "digest", facts)
    if facts["mismatch_count"]:
        raise typer.Exit(1)


@app.command()
def reconcile(
    router: SetsArgument,
    wanted: SetsArgument,
    tables: TablesOption = DEFAULT_TABLES,
    plan: PlanOption = None,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Find the ids that the router lacks of the wanted sets, and those that it has beyond them."""
    output = Output(is_json=is_json)
    with _jobs(tables, master, settings, output) as jobs:
        names = jobs.snapshot_name(router), jobs.snapshot_name(wanted)
        facts = jobs.reconcile(*names, plan)
    _print(output, "reconcile", facts)
    if facts["missing_count"] or facts["extra_count"]:
        raise typer.Exit(1)


@app.command()
def run(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    wanted: Annotated[
        str | None, typer.Option("--wanted", help="Reconcile the first folder with these sets.")
    ] = None,
    tail: TailOption = "none",
    damage_max: DamageOption = None,
    confirms: ConfirmOption = True,
    plan: PlanOption = None,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """All jobs in one session: ingest, a snapshot and digests of each folder, and reconcile."""
    from syncline.storage.records.schema import FILE_NAME

    output = Output(is_json=is_json)
    found: dict[str, Any] = {"digests": []}
    _check_folders(folders, tail)
    with _jobs(tables, master, settings, output) as jobs:
        found["ingest"] = jobs.ingest(folders, tail, damage_max, confirms)
        for folder in folders:
            # Without queues there are no records.
            if (folder / FILE_NAME).is_file():
                found["digests"].append(jobs.digest(jobs.snapshot_name(str(folder))))
        if wanted is not None:
            names = jobs.snapshot_name(str(folders[0])), jobs.snapshot_name(wanted)
            found["reconcile"] = jobs.reconcile(*names, plan)
    if is_json:
        output.json(found)
        return
    output.facts("ingest", found["ingest"])
    for facts in found["digests"]:
        output.facts("digest", facts)
    if "reconcile" in found:
        output.facts("reconcile", found["reconcile"])


@app.command()
def lineage(
    table: Annotated[str, typer.Argument(help="A table, or one version of it: events@3.")],
    tables: TablesOption = DEFAULT_TABLES,
    is_json: JsonFlag = False,
) -> None:
    """Say where the rows of a version came from."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.schemas import table_named
    from syncline.pipeline.tables import Table

    name, _, number = table.partition("@")
    found = Table(tables.absolute(), table_named(name))
    version = int(number) if number.isdigit() else found.version().number
    _print(Output(is_json=is_json), f"{name}@{version}", found.lineage(version))
