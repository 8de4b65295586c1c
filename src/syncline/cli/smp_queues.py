"""`syncline queue`: make a queue at an SMP router, send to one, read it.

Keys are in a store of their own, a file for its owner alone; whoever has the address that `create`
prints can send. Messages are encrypted from sender to recipient.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from syncline.cli import interrupting
from syncline.cli.output import JsonFlag, Output
from syncline.errors import RefusedError

app = typer.Typer(help="Make queues at an SMP router, send and receive.", no_args_is_help=True)

DEFAULT_STORE = Path(typer.get_app_dir("syncline")) / "agent.sqlite"
DEFAULT_USER = "me"

NameArgument = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
StoreOption = Annotated[
    Path,
    typer.Option(
        "--store",
        envvar="SYNCLINE_AGENT_STORE",
        help="The file with keys and queues.",
        show_default="agent.sqlite in your folder for settings",
    ),
]
UserOption = Annotated[str, typer.Option("--user", help="Whose queues, if a store has several.")]


@app.command("create", epilog="Example: syncline queue create inbox --router smp://…@127.0.0.1")
def create(
    name: NameArgument,
    router: Annotated[str, typer.Option("--router", help="The router's address: smp://…")],
    is_contact: Annotated[
        bool, typer.Option("--contact", help="Anybody with the address may send, not one alone.")
    ] = False,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Make a queue, and print the address to give to its sender."""
    # Brings in the client and its cryptography, which the other verbs do without.
    from syncline.cli import smp_talking as talking

    with talking.opened(path) as store:
        queue = interrupting.run(talking.create(store, user, name, router, is_contact=is_contact))
        talking.print_address(Output(is_json=is_json), store, queue)


@app.command("address", epilog="Example: syncline queue address inbox")
def address(
    name: NameArgument,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Print the address of a queue once more."""
    from syncline.cli import smp_talking as talking

    with talking.opened(path) as store:
        queue = talking.queue_of(store, user, name)
        talking.print_address(Output(is_json=is_json), store, queue)


@app.command("send", epilog="Example: syncline queue send 'smp://…' 'hello'")
def send(
    to: Annotated[str, typer.Argument(metavar="ADDRESS", help="What `create` printed, in quotes.")],
    text: Annotated[str, typer.Argument(help="The message; - reads standard input.")],
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            help="Send through this router, smp://…, so that the queue's own does not see you.",
            show_default=False,
        ),
    ] = None,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Send a message, and wait until the router has stored it."""
    from syncline.cli import smp_talking as talking

    size_max = talking.DATA_BYTES_MAX
    data = sys.stdin.buffer.read(size_max + 1) if text == "-" else text.encode()
    with talking.opened(path) as store:
        interrupting.run(talking.send(store, user, to, data, proxy=proxy))
    output = Output(is_json=is_json)
    if is_json:
        output.json({"stored": len(data)})
    else:
        output.line("stored")


@app.command("receive", epilog="Example: syncline queue receive inbox --follow")
def receive(
    name: NameArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay, and print messages as they come.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="Stop after so many.", min=1)
    ] = None,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Print the messages of a queue; each is deleted at the router once it is printed."""
    from syncline.cli import smp_talking as talking

    output = Output(is_json=is_json)
    with talking.opened(path) as store:
        queue = talking.queue_of(store, user, name)
        read = talking.follow if follow else talking.fetch
        interrupting.run(read(output, store, queue, count))


@app.command("list", epilog="Example: syncline queue list")
def list_queues(
    path: StoreOption = DEFAULT_STORE, user: UserOption = DEFAULT_USER, is_json: JsonFlag = False
) -> None:
    """List the queues that are read here."""
    from syncline.cli import smp_talking as talking

    with talking.opened(path) as store:
        found = talking.listed(store, user)
    output = Output(is_json=is_json)
    if is_json:
        output.json({"queues": found})
        return
    columns = ["name", "mode", "router"]
    rows = [[facts[column] for column in columns] for facts in found]
    output.table(f"queues: {len(rows)}", columns, rows)


@app.command("delete", epilog="Example: syncline queue delete inbox --yes")
def delete(
    name: NameArgument,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Delete a queue and its messages, at the router and here, for good."""
    from syncline.cli import smp_talking as talking

    with talking.opened(path) as store:
        queue = talking.queue_of(store, user, name)
        if not is_sure:
            _ask(name)
        interrupting.run(talking.delete(store, queue))
    output = Output(is_json=is_json)
    if is_json:
        output.json({"deleted": name})
    else:
        output.line(f"deleted {name}")


def _ask(name: str) -> None:
    """Raises RefusedError unless somebody says yes."""
    if not sys.stdin.isatty():
        raise RefusedError(f"nobody can be asked whether to delete {name!r}; say so with --yes")
    # On standard error, so that nothing but the result is on standard output.
    typer.echo(f"Delete {name!r} with its messages? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError(f"{name!r} was not deleted")
