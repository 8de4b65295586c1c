"""`syncline document`: the documents of a running router, or of a folder that no router has.

`list` and `state` look into either; the other verbs need a router. Facts come from its operator's
API; `watch` and `patch` are clients like any other (`syncline.cli.document_following`).
"""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from syncline.cli.document_folders import (
    listed_facts,
    print_listed,
    read_documents,
    state_of,
    unused_folder,
)
from syncline.cli.output import JsonFlag, Output, printable
from syncline.cli.router_client import DEFAULT_URL, RouterClient, RouterOption
from syncline.errors import (
    ConfigError,
    InvalidMutationError,
    NotAuthorizedError,
    RefusedError,
    WrongKindError,
)
from syncline.values import limits
from syncline.values.json_value import Json, JsonObject
from syncline.values.kinds import Kind
from syncline.wire.names import check_document

# Some of what was asked for could not be read.
EXIT_INCOMPLETE = 1
_PAGE_COUNT = 1_000

app = typer.Typer(help="Look at documents, follow them, change them.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The document's name.", show_default=False)]
EitherUrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"A running router; {DEFAULT_URL} if there is no --data."),
]
FolderOption = Annotated[
    Path | None, typer.Option("--data", "-d", help="A data folder that no router has open.")
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="A file with a token for the document, if one is needed."),
]


@app.command("list", epilog="Example: syncline document list --data syncline-data")
def list_documents(
    url: EitherUrlOption = None,
    folder: FolderOption = None,
    is_open_only: Annotated[
        bool, typer.Option("--open", help="Only those that are open at the router, by their lag.")
    ] = False,
    is_json: JsonFlag = False,
) -> None:
    """List all documents that a router or a data folder holds."""
    output = Output(is_json=is_json)
    if folder is not None:
        _check_one_place(url)
        if is_open_only:
            raise ConfigError("in a folder that no router has nothing is open; leave --open away")
        _list_folder(output, folder)
        return
    client = RouterClient(url or DEFAULT_URL)
    if not is_open_only:
        _list_stored(output, client)
        return
    found = client.get("/api/documents")
    if is_json:
        output.json(found)
        return
    columns = ["name", "kind", "head", "first", "snapshot_seq", "state_bytes", "readers", "lag_ms"]
    rows = [[each[column] for column in columns] for each in found["documents"]]
    shown = ["name", "kind", "head", "first", "snapshot", "bytes", "readers", "lag_ms"]
    output.table(f"open documents: {found['open']}", shown, rows)
    if len(rows) < found["open"]:
        output.line(f"these are the {len(rows)} with the longest lag")


def _list_stored(output: Output, client: RouterClient) -> None:
    documents: list[dict[str, Any]] = []
    has_unreadable = False
    after: str | None = ""
    while after is not None:
        behind = f"&after={after}" if after else ""
        page = client.get(f"/api/documents?view=stored&count={_PAGE_COUNT}{behind}")
        documents += page["documents"]
        has_unreadable = has_unreadable or bool(page.get("unreadable"))
        after = page["after"]
    documents.sort(key=lambda each: (each["name"] is None, each["name"] or each["stream"]))
    if output.is_json:
        output.json({"documents": documents})
    else:
        columns = ["kind", "head", "first", "snapshot_seq", "snapshot_bytes"]
        rows: list[list[object]] = []
        for each in documents:
            name = f"unknown ({each['stream']})" if each["name"] is None else each["name"]
            facts = ["?" if each[column] is None else each[column] for column in columns]
            rows.append([name, *facts, each["readers"] if each["is_open"] else "-"])
        shown = ["name", "kind", "head", "first", "snapshot", "bytes", "readers"]
        output.table(f"documents: {len(rows)}", shown, rows)
    if has_unreadable or any(each["name"] is None for each in documents):
        output.note("some of the folder is damaged; the router's log says where")
        raise typer.Exit(EXIT_INCOMPLETE)


def _list_folder(output: Output, folder: Path) -> None:
    with unused_folder(folder) as store:
        documents, counts = read_documents(output, store)
    if output.is_json:
        output.json({"documents": [listed_facts(each) for each in documents]})
    else:
        print_listed(output, documents)
    if counts.unreadable or any(each.name is None for each in documents):
        output.note("some of the folder is damaged; `syncline verify` says where")
        raise typer.Exit(EXIT_INCOMPLETE)


@app.command("show", epilog="Example: syncline document show team/plan")
def show(name: NameArgument, url: RouterOption = DEFAULT_URL, is_json: JsonFlag = False) -> None:
    """Describe a document and everybody who has it open."""
    output = Output(is_json=is_json)
    facts = RouterClient(url).get(_path(name))
    if is_json:
        output.json(facts)
        return
    connections = facts.pop("connections")
    changed_ms = facts.pop("changed_ms")
    # Looking at a document opens it as well.
    changed = _time_text(changed_ms) if changed_ms else "not since it was opened"
    output.facts("document", facts | {"changed": changed})
    columns = ["client", "acked", "sent", "lag_ms", "acknowledges", "is_away"]
    rows = [
        [*(each[column] for column in columns), _time_text(each["joined_ms"])]
        for each in connections
    ]
    output.table(f"connections: {len(rows)}", [*columns, "joined"], rows)


@app.command("state", epilog="Example: syncline document state team/plan > plan.json")
def state(
    name: NameArgument,
    url: EitherUrlOption = None,
    folder: FolderOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Print the state of a document: JSON, or base64 if it is of another kind."""
    output = Output(is_json=is_json)
    is_whole = True
    if folder is None:
        found = RouterClient(url or DEFAULT_URL).get(f"{_path(name)}?view=state")
    else:
        _check_one_place(url)
        with unused_folder(folder) as store:
            found, is_whole = state_of(store, check_document(name))
    if is_json:
        output.json(found)
    elif found["kind"] == Kind.JSON:
        indented = msgspec.json.format(msgspec.json.encode(found["state"]), indent=2)
        output.plain(printable(indented.decode()))
    else:
        output.plain(found["state"])
    if not is_whole:
        output.note("some updates cannot be read and are left out; `syncline verify` says which")
        raise typer.Exit(EXIT_INCOMPLETE)


@app.command("delete", epilog="Example: syncline document delete team/plan --yes")
def delete(
    name: NameArgument,
    url: RouterOption = DEFAULT_URL,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    is_json: JsonFlag = False,
) -> None:
    """Delete a document for good. Whoever has it open is told."""
    output = Output(is_json=is_json)
    client = RouterClient(url)
    if not is_sure:
        _ask(name, client.get(_path(name)))
    client.delete(_path(name))
    if is_json:
        output.json({"deleted": name})
    else:
        output.line(f"deleted {name}")


def _ask(name: str, facts: dict[str, Any]) -> None:
    """Raises RefusedError unless somebody says yes."""
    if not sys.stdin.isatty():
        raise RefusedError(f"nobody can be asked whether to delete {name!r}; say so with --yes")
    question = (
        f"Delete {name!r}, a document of kind {facts['kind']} with {facts['head']} changes "
        f"and {facts['readers']} readers?"
    )
    # On standard error, so that nothing but the result is on standard output.
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError(f"{name!r} was not deleted")


@app.command("watch", epilog="Example: syncline document watch team/plan --json")
def watch(
    name: NameArgument,
    url: RouterOption = DEFAULT_URL,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="Stop after so many.", min=1)
    ] = None,
    token_file: TokenOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Print every change of a document as it is stored, until Ctrl-C."""
    # Brings in the WebSocket and CRDT libraries, which the other verbs do without.
    from syncline.cli import document_following

    client = RouterClient(url)
    kind = Kind(client.get(_path(name))["kind"])
    output = Output(is_json=is_json)
    token = _token(token_file)
    with _token_asked_for(token):
        document_following.follow(output, client.url, name, kind, token, count)


@app.command("patch", epilog="""Example: syncline document patch team/plan '{"title": "Plan"}'""")
def patch(
    name: NameArgument,
    text: Annotated[
        str, typer.Argument(metavar="PATCH", help="A JSON merge patch; - reads standard input.")
    ],
    url: RouterOption = DEFAULT_URL,
    create: Annotated[
        bool, typer.Option("--create", help="Make the document if there is none.")
    ] = False,
    token_file: TokenOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Change a JSON document by a merge patch (RFC 7396), and wait until that is stored."""
    from syncline.cli import document_following

    mutation = parsed_patch(
        sys.stdin.buffer.read(limits.frame_bytes_max + 1) if text == "-" else text
    )
    client = RouterClient(url)
    check_document(name)
    if not create:
        # Subscribing would make it: a slip of the pen is to be told, not stored.
        kind = client.get(_path(name))["kind"]
        if kind != Kind.JSON:
            raise WrongKindError(kind, Kind.JSON)
    token = _token(token_file)
    with _token_asked_for(token):
        seq = document_following.change(client.url, name, mutation, token)
    output = Output(is_json=is_json)
    if is_json:
        output.json({"name": name, "seq": seq})
    else:
        output.line(f"stored at {seq}")


def parsed_patch(text: str | bytes) -> JsonObject:
    """Raises InvalidMutationError."""
    try:
        data = text.encode() if isinstance(text, str) else text
        found: Json = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMutationError(
            f"the patch is not JSON ({error}); quote it for the shell, as in '{{\"title\": null}}'"
        ) from error
    if not isinstance(found, dict):
        raise InvalidMutationError(
            'the patch must be an object, as in {"title": "Plan"}; null takes a member away'
        )
    return found


def _path(name: str) -> str:
    return f"/api/documents/{quote(check_document(name), safe='')}"


def _check_one_place(url: str | None) -> None:
    if url is not None:
        raise typer.BadParameter("give --url or --data, not both")


def _token(file: Path | None) -> str | None:
    """Read from a file, so that no command line shows it. Raises ConfigError."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file} cannot be read; check its name") from error


@contextmanager
def _token_asked_for(token: str | None) -> Generator[None]:
    """Whoever has sent none is told how to."""
    try:
        yield
    except NotAuthorizedError as error:
        if token is not None:
            raise
        raise NotAuthorizedError(
            "the router wants a token for its documents; put one into a file and name that with "
            "--token-file"
        ) from error


def _time_text(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_ms / 1_000))
