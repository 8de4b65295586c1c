"""`syncline pipeline …`: the jobs on Spark, each with a bar of its tasks."""

from typing import Annotated

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_audit import audit
from syncline.cli.pipeline_documents import compact, gc_plan
from syncline.cli.pipeline_ingest import ingest
from syncline.cli.pipeline_lag import lag
from syncline.cli.pipeline_report import report
from syncline.cli.pipeline_run import run
from syncline.cli.pipeline_session import DEFAULT_TABLES, TablesOption, print_facts
from syncline.cli.pipeline_sets import digest, reconcile
from syncline.errors import ConfigError

app = typer.Typer(help="Jobs on Spark over what routers wrote.", no_args_is_help=True)

for _verb in (run, ingest, audit, digest, reconcile, compact, lag, gc_plan, report):
    app.command()(_verb)


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

    name, is_version_given, number = table.partition("@")
    if is_version_given and not number.isdecimal():
        raise ConfigError(f"{table!r} names no version; write {name}@3")
    found = Table(tables.absolute(), table_named(name))
    version = int(number) if is_version_given else found.version().number
    print_facts(Output(is_json=is_json), f"{name}@{version}", found.lineage(version))
