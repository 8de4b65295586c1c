"""Puts the verbs together, and says what went wrong in one sentence.

Exit codes: 0 done; 1 it was looked for damage and there is some; 2 it could not be done, the
sentence says why; 3 the device failed while serving.
"""

import errno
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any, Final, NoReturn, TextIO, cast

import typer

from syncline.cli.lazy_verbs import Verb, lazy_group
from syncline.errors import SynclineError

EXIT_FAILED = 2

# Of all that can be wrong with words and options; typer does not give it a name.
_UsageError: Final = cast(type[Exception], typer.BadParameter.__base__)
_SHOWN_MAX = 300
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FREE_SPACE = "free some space, then try again"
_GIVE_RIGHTS = "give this user the right to it, or choose another place"
_ADVICE: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EACCES: _GIVE_RIGHTS,
    errno.EPERM: _GIVE_RIGHTS,
    errno.EROFS: _GIVE_RIGHTS,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the name, and that the folder it is in is there",
    errno.ENOTDIR: "check the name: a part of it is a file",
    errno.EISDIR: "name a file",
}

# Each with the beginning of its help, in the order in which they are listed.
VERBS: Final = {
    "serve": Verb(
        "syncline.cli.serving:serve",
        "Start a router; it stops on Ctrl-C or SIGTERM and loses nothing that it acknowledged.",
    ),
    "inspect": Verb(
        "syncline.cli.looking:inspect",
        "Say what is in a data folder: queues, documents, files, bytes, damage.",
    ),
    "tail": Verb(
        "syncline.cli.looking:tail",
        "Print messages of a queue, or of all, from a data folder or a running router.",
    ),
    "verify": Verb(
        "syncline.cli.looking:verify",
        "Read everything and check it; exit code 1 if anything is damaged, and stays so.",
    ),
    "repair": Verb(
        "syncline.cli.keeping:repair",
        "Keep what is readable of a damaged folder. Copies all of it before anything is changed.",
    ),
    "backup": Verb(
        "syncline.cli.keeping:backup",
        "Copy a data folder with a list of hashes; with --url from a router while it serves.",
    ),
    "restore": Verb(
        "syncline.cli.keeping:restore",
        "Check the hashes of a backup and make a data folder of it.",
    ),
    "export": Verb(
        "syncline.cli.exchanging:export",
        "Write the queues and documents of a data folder in another layout. It stays as it is.",
    ),
    "import": Verb(
        "syncline.cli.exchanging:import_",
        "Make a data folder of queues and documents in another layout. The source stays as it is.",
    ),
    "config": Verb(
        "syncline.cli.configuring:config",
        "Print every setting, its value, and where that came from.",
    ),
    "doctor": Verb(
        "syncline.cli.doctoring:doctor",
        "Say what is installed, what is missing, and how fast the disk makes things durable.",
    ),
    "demo": Verb(
        "syncline.cli.demo:demo",
        "Run a router with a planted fault, then the pipeline; say what it found. Takes a minute.",
    ),
    "pipeline": Verb("syncline.cli.pipelines:app", "Jobs on Spark over what routers wrote."),
    "document": Verb("syncline.cli.documents:app", "Look at documents, follow them, change them."),
    "queue": Verb("syncline.cli.smp_queues:app", "Make queues at an SMP router, send and receive."),
    "service": Verb(
        "syncline.cli.services:app", "List services, replace their certificates, delete them."
    ),
    "drift": Verb(
        "syncline.cli.drifting:app", "Find and repair differences between two sets of queue ids."
    ),
    "certificate": Verb(
        "syncline.cli.certificates:app", "Show and renew the certificates for SMP."
    ),
}

app = typer.Typer(
    name="syncline",
    cls=lazy_group(VERBS),
    help="A durable sync router, and tools for its data folder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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


def main() -> None:
    """The entry point of the `syncline` script."""
    # Python has none where it was closed; what is opened next would take its number.
    if cast(TextIO | None, sys.stdout) is None:
        _fail("ConfigError", "standard output is closed; send it to a file or to /dev/null")
    try:
        for word in sys.argv:
            # One that is not UTF-8 could be worked with, and then neither told nor written down.
            word.encode()
        # People are shown a mistake in what they wrote in a box, which typer draws.
        sys.exit(app(standalone_mode="--json" not in sys.argv))
    except _UsageError as error:
        _fail("UsageError", cast(Any, error).format_message())
    except SynclineError as error:
        _fail(type(error).__name__, str(error), is_retriable=error.retriable)
    except OSError as error:
        _give_up_output()
        _fail(type(error).__name__, _sentence(error), is_retriable=error.errno in _FULL)
    except UnicodeEncodeError as error:
        _fail(type(error).__name__, _unwritable(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            # Whoever read our output has seen enough.
            sys.exit(0)
        raise


def _fail(kind: str, message: str, *, is_retriable: bool = False) -> NoReturn:
    """Say what went wrong, where anybody can hear it, and end."""
    if "--debug" in sys.argv:
        traceback.print_exc()
    # A name that is not UTF-8 is told by its bytes.
    message = message.encode(errors="backslashreplace").decode()
    with suppress(OSError):
        if "--json" in sys.argv:
            _print_facts({"error": kind, "message": message, "retriable": is_retriable})
        else:
            _print_sentence(message)
    sys.exit(EXIT_FAILED)


def _print_facts(facts: dict[str, object]) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(facts), err=True)


def _print_sentence(message: str) -> None:
    # For this alone: it takes longer than all of the rest.
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(message)}")


def _sentence(error: OSError) -> str:
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    advice = _ADVICE.get(error.errno or 0)
    reason = (error.strerror or str(error)).lower()
    return f"{place}{reason}" + ("" if advice is None else f"; {advice}")


def _give_up_output() -> None:
    """What could not be written is not tried again as the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritable(error: UnicodeEncodeError) -> str:
    text = error.object[error.start : error.end]
    if error.encoding == "utf-8":
        return f"{error.object[:_SHOWN_MAX]} is not UTF-8; use a name that is"
    return f"the output cannot show {text!a} in {error.encoding}; set PYTHONIOENCODING=utf-8"
