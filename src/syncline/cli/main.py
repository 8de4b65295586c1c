"""Puts the verbs together, and says what went wrong in one sentence.

Exit codes: 0 done; 1 it was looked for damage and there is some; 2 it could not be done, the
sentence says why; 3 the device failed while serving.
"""

import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from syncline.cli import (
    certificates,
    configuring,
    doctoring,
    documents,
    exchanging,
    keeping,
    looking,
    pipelines,
    services,
    serving,
    smp_queues,
)
from syncline.errors import SynclineError

EXIT_FAILED = 2

app = typer.Typer(
    name="syncline",
    help="A durable sync router, and tools for its data folder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"syncline {version('syncline')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of every verb; what they mean is decided in `main`."""


app.command("serve")(serving.serve)
app.command("inspect")(looking.inspect)
app.command("tail")(looking.tail)
app.add_typer(documents.app, name="document")
app.add_typer(smp_queues.app, name="queue")
app.add_typer(services.app, name="service")
app.add_typer(certificates.app, name="certificate")
app.command("verify")(looking.verify)
app.command("repair")(keeping.repair)
app.command("backup")(keeping.backup)
app.command("restore")(keeping.restore)
app.command("export")(exchanging.export)
app.command("import")(exchanging.import_)
app.command("config")(configuring.config)
app.command("doctor")(doctoring.doctor)
app.add_typer(pipelines.app, name="pipeline")


def main() -> None:
    """The entry point of the `syncline` script."""
    try:
        app()
    except SynclineError as error:
        _explain(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        sys.exit(0)


def _explain(error: SynclineError) -> None:
    if "--debug" in sys.argv:
        traceback.print_exc()
    if "--json" in sys.argv:
        facts = {
            "error": type(error).__name__,
            "message": str(error),
            "retriable": error.retriable,
        }
        sys.stderr.write(msgspec.json.encode(facts).decode() + "\n")
    else:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"[bold red]error:[/] {escape(str(error))}")
