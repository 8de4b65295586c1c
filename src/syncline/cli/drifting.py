"""`syncline drift`: whether two sets of queue ids are the same, and how to make them so.

Compared are the queues of a service as an agent's store and as its router know them, the services
of two data folders, or two files of ids. The engine is the one that agents and routers use by
themselves, so what it says about bytes and round trips is what they would need.
"""

from pathlib import Path
from typing import Annotated

import typer

from syncline.cli import interrupting
from syncline.cli.output import JsonFlag, Output
from syncline.cli.smp_queues import DEFAULT_STORE, StoreOption
from syncline.core.reconciliation.initiator import Mode
from syncline.errors import ConfigError

app = typer.Typer(
    help="Find and repair differences between two sets of queue ids.", no_args_is_help=True
)

FirstArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FIRST", help="A data folder, or a file of ids.", show_default=False),
]
SecondArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="SECOND", help="What to compare it with, of the same kind.", show_default=False
    ),
]
UserOption = Annotated[
    str | None, typer.Option("--user", help="Only what this user of the store has.")
]
ServerOption = Annotated[
    str | None, typer.Option("--server", help="Only routers with this in their address.")
]
SubscribeOption = Annotated[
    bool,
    typer.Option("--subscribe", help="Take over from an agent of that store, if one is running."),
]
ModeOption = Annotated[Mode, typer.Option("--mode", help="How the difference is looked for.")]
ListOption = Annotated[
    int, typer.Option("--list", "-n", help="How many ids to show of each side.", min=0)
]


@app.command("check", epilog="Example: syncline drift check yesterday.ids today.ids")
def check(
    first: FirstArgument = None,
    second: SecondArgument = None,
    store: StoreOption = DEFAULT_STORE,
    user: UserOption = None,
    server: ServerOption = None,
    subscribes: SubscribeOption = False,
    mode: ModeOption = Mode.SKETCH,
    list_count: ListOption = 5,
    is_json: JsonFlag = False,
) -> None:
    """Say how two sets differ: of an agent's store and its router, two folders, two files."""
    # These bring in the client and its cryptography, which the other verbs do without.
    from syncline.cli import drift_agents, drift_files, drift_folders, drift_output

    output = Output(is_json=is_json)
    places = _places(first, second)
    if places is None:
        report = interrupting.run(
            drift_agents.check(output, store, user, server, mode, subscribes=subscribes)
        )
    elif _are_folders(*places):
        report = drift_folders.check(output, *places, mode)
    else:
        report = drift_files.check(output, *places, mode)
    drift_output.tell(output, report, list_count)
    raise typer.Exit(report.exit_code)


@app.command("repair", epilog="Example: syncline drift repair backup syncline-data --dry-run")
def repair(
    first: FirstArgument = None,
    second: SecondArgument = None,
    store: StoreOption = DEFAULT_STORE,
    user: UserOption = None,
    server: ServerOption = None,
    subscribes: SubscribeOption = False,
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Of two files: write here, and leave the second."),
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    mode: ModeOption = Mode.SKETCH,
    list_count: ListOption = 5,
    is_json: JsonFlag = False,
) -> None:
    """Make two sets equal: a router and a store, or the second folder or file like the first."""
    from syncline.cli import drift_agents, drift_files, drift_folders, drift_output

    output = Output(is_json=is_json)
    places = _places(first, second)
    if target is not None and (places is None or _are_folders(*places)):
        raise ConfigError("--output is for files of ids")
    if places is None:
        report = interrupting.run(
            drift_agents.repair(
                output, store, user, server, mode, subscribes=subscribes, is_dry=is_dry
            )
        )
    elif _are_folders(*places):
        report = drift_folders.repair(output, *places, mode, is_dry=is_dry)
    else:
        report = drift_files.repair(output, *places, mode, target, is_dry=is_dry)
    drift_output.tell(output, report, list_count)
    raise typer.Exit(report.exit_code)


def _places(first: Path | None, second: Path | None) -> tuple[Path, Path] | None:
    """None: an agent's store and its router."""
    if first is None:
        return None
    if second is None:
        raise ConfigError(f"there is nothing to compare {first} with; name a second file or folder")
    for path in (first, second):
        if not path.exists():
            raise ConfigError(f"there is no {path}")
    return first, second


def _are_folders(first: Path, second: Path) -> bool:
    if first.is_dir() != second.is_dir():
        folder, file = (first, second) if first.is_dir() else (second, first)
        raise ConfigError(f"{folder} is a folder and {file} is a file; compare two of a kind")
    return first.is_dir()
