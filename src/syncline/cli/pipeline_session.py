"""What the verbs of `syncline pipeline` share: a session of Spark, a bar for each job, the output.

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

from syncline.cli.interrupting import terminated_as_interrupted
from syncline.cli.output import Output
from syncline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TablesOption = Annotated[Path, typer.Option("--tables", help="The folder of the tables.")]
MasterOption = Annotated[
    str, typer.Option("--master", help="Where Spark runs: local[*], or the URL of a cluster.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of Spark, KEY=VALUE: spark.executor.memory=8g."),
]
DEFAULT_TABLES = Path("syncline-tables")
DEFAULT_MASTER = "local[*]"


class Jobs:
    """A session, and the folder of the tables."""

    def __init__(self, spark: "SparkSession", tables: Path, output: Output) -> None:
        self.spark = spark
        self.tables = tables
        self.output = output

    def run(self, what: str, job: Callable[[], Any]) -> dict[str, Any]:
        """The report of a job as facts; while it runs, a bar shows its tasks."""
        from syncline.pipeline.progress import told_of_progress

        with (
            self.output.count_progress(what, None) as bar,
            told_of_progress(self.spark, bar.show),
        ):
            report = job()
        return asdict(report)


@contextmanager
def open_jobs(
    tables: Path,
    master: str,
    settings: list[str] | None,
    output: Output,
    *,
    writes_tables: bool = True,
) -> Generator[Jobs]:
    """Start Spark. Before that, whatever can be known to be wrong is told, which is sooner."""
    from syncline.pipeline.places import check_tables_place
    from syncline.pipeline.session import check_packages, open_session

    check_packages()
    chosen = dict(_setting(text) for text in settings or [])
    if writes_tables:
        check_tables_place(tables.absolute())
    with (
        terminated_as_interrupted(),
        tempfile.TemporaryDirectory(prefix="syncline-spark-") as work_folder,
    ):
        output.note("starting Spark …")
        with open_session(Path(work_folder), master=master, settings=chosen) as spark:
            yield Jobs(spark, tables.absolute(), output)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise ConfigError(f"{text!r} is no setting of Spark; write spark.NAME=VALUE")
    return name, value


def print_facts(output: Output, title: str, facts: dict[str, Any]) -> None:
    if output.is_json:
        output.json(facts)
    else:
        output.facts(title, facts)
