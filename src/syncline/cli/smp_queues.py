"""`syncline queue`: make a queue at an SMP router, send to one, read it.

Keys are in a store of their own, a file for its owner alone; whoever has the address that `create`
prints can send. Messages are encrypted from sender to recipient.
"""

import asyncio
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.client.smp import letters
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.envelopes import DATA_BYTES_MAX
from syncline.client.smp.queue_uris import QueueUri
from syncline.errors import ConfigError, QueueExistsError, RefusedError, UnknownQueueError
from syncline.values.queue_records import QueueMode
from syncline.wire.smp.addresses import RouterAddress

app = typer.Typer(help="Make queues at an SMP router, send and receive.", no_args_is_help=True)

DEFAULT_STORE = Path(typer.get_app_dir("syncline")) / "agent.sqlite"
DEFAULT_USER = "me"
_LIST_COUNT = 1_000

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
    # Brings in the agent and its TLS, which looking into the store does without.
    from syncline.cli import smp_talking

    address = RouterAddress.parse(router)
    mode = QueueMode.CONTACT if is_contact else QueueMode.MESSAGING
    with _opened(path) as store:
        account = Account(store.user(user), store.server(address))
        if store.queue_named(account.user_id, name) is not None:
            raise QueueExistsError(name)
        queue = asyncio.run(smp_talking.create(store, account, name, mode))
        _print_address(Output(is_json=is_json), store, queue)


@app.command("address", epilog="Example: syncline queue address inbox")
def address(
    name: NameArgument,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Print the address of a queue once more."""
    with _opened(path) as store:
        _print_address(Output(is_json=is_json), store, _queue(store, user, name))


@app.command("send", epilog="Example: syncline queue send 'smp://…' 'hello'")
def send(
    to: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="What `create` printed, in quotes."),
    ],
    text: Annotated[str, typer.Argument(help="The message; - reads standard input.")],
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Send a message, and wait until the router has stored it."""
    from syncline.cli import smp_talking

    uri = QueueUri.parse(to)
    data = sys.stdin.buffer.read(DATA_BYTES_MAX + 1) if text == "-" else text.encode()
    with _opened(path) as store:
        asyncio.run(smp_talking.send(store, store.user(user), uri, data))
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
    from syncline.cli import smp_talking

    output = Output(is_json=is_json)
    with _opened(path) as store:
        queue = _queue(store, user, name)
        if follow:
            asyncio.run(smp_talking.follow(output, store, queue, count))
        else:
            asyncio.run(smp_talking.fetch(output, store, queue, count))


@app.command("list", epilog="Example: syncline queue list")
def list_queues(
    path: StoreOption = DEFAULT_STORE, user: UserOption = DEFAULT_USER, is_json: JsonFlag = False
) -> None:
    """List the queues that are read here."""
    rows: list[dict[str, Any]] = []
    with _opened(path) as store:
        user_id, after = store.user(user), ""
        while page := store.queues(user_id, after, _LIST_COUNT):
            rows += [_facts(store, queue) for queue in page]
            after = page[-1].name
    output = Output(is_json=is_json)
    if is_json:
        output.json({"queues": rows})
    else:
        columns = ["name", "mode", "router"]
        output.table(
            f"queues: {len(rows)}", columns, [[row[column] for column in columns] for row in rows]
        )


@app.command("delete", epilog="Example: syncline queue delete inbox --yes")
def delete(
    name: NameArgument,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    path: StoreOption = DEFAULT_STORE,
    user: UserOption = DEFAULT_USER,
    is_json: JsonFlag = False,
) -> None:
    """Delete a queue and its messages, at the router and here, for good."""
    from syncline.cli import smp_talking

    output = Output(is_json=is_json)
    with _opened(path) as store:
        queue = _queue(store, user, name)
        if not is_sure:
            _ask(name)
        asyncio.run(smp_talking.delete(store, queue))
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


@contextmanager
def _opened(path: Path) -> Generator[AgentStore]:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; --store names a file")
    with closing(AgentStore(path)) as store:
        yield store


def _queue(store: AgentStore, user: str, name: str) -> StoredQueue:
    queue = store.queue_named(store.user(user), name)
    if queue is None:
        raise UnknownQueueError(repr(name))
    return queue


def _print_address(output: Output, store: AgentStore, queue: StoredQueue) -> None:
    if output.is_json:
        output.json(_facts(store, queue))
    else:
        output.plain(str(letters.address_of(store, queue)))


def _facts(store: AgentStore, queue: StoredQueue) -> dict[str, Any]:
    has_address = queue.envelope_key is not None
    return {
        "name": queue.name,
        "mode": queue.mode.name.lower(),
        "router": str(store.address(queue.account.server_id)),
        "address": str(letters.address_of(store, queue)) if has_address else None,
    }
