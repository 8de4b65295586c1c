"""`syncline service`: the services of a running router, and what they believe to have."""

from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.router_client import DEFAULT_URL, RouterClient, RouterOption
from syncline.errors import ConfigError, MalformedMessageError
from syncline.values.ids import StreamId

app = typer.Typer(
    help="List services, replace their certificates, delete them.", no_args_is_help=True
)

ServiceArgument = Annotated[str, typer.Argument(help="The service's id.", show_default=False)]


@app.command("list", epilog="Example: syncline service list")
def list_services(url: RouterOption = DEFAULT_URL, is_json: JsonFlag = False) -> None:
    """List services with the count and the digest of their associations."""
    found = RouterClient(url).get("/api/services")
    output = Output(is_json=is_json)
    if is_json:
        output.json(found)
        return
    columns = ["service", "role", "count", "xor_md5", "session"]
    rows = [[_shown(each[column]) for column in columns] for each in found["services"]]
    output.table(f"services: {found['count']}", columns, rows)
    if len(rows) < found["count"]:
        output.note(f"the first {len(rows)} of them are shown")


@app.command("show", epilog="Example: syncline service show ID")
def show(
    service: ServiceArgument, url: RouterOption = DEFAULT_URL, is_json: JsonFlag = False
) -> None:
    """Print all that is known of one service."""
    _print(Output(is_json=is_json), RouterClient(url).get(_path(service)))


@app.command("rotate", epilog="Example: syncline service rotate ID --certificate new.pem")
def rotate(
    service: ServiceArgument,
    certificate: Annotated[
        Path, typer.Option("--certificate", help="PEM file with the new certificate, leaf first.")
    ],
    url: RouterOption = DEFAULT_URL,
    is_json: JsonFlag = False,
) -> None:
    """Give a service another certificate; it keeps its id and all its associations."""
    try:
        pem = certificate.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{certificate} cannot be read as PEM; check its name") from error
    client = RouterClient(url)
    found = client.post(f"{_path(service)}/rotate", {"certificate": pem})
    _print(Output(is_json=is_json), found)


@app.command("delete", epilog="Example: syncline service delete ID --yes")
def delete(
    service: ServiceArgument,
    is_sure: Annotated[
        bool, typer.Option("--yes", help="Its associations go with it; do it.")
    ] = False,
    url: RouterOption = DEFAULT_URL,
    is_json: JsonFlag = False,
) -> None:
    """Delete a service. Its queues stay, with their messages, and belong to nobody."""
    if not is_sure:
        raise ConfigError("the associations of the service go with it; say --yes to delete it")
    RouterClient(url).delete(_path(service))
    output = Output(is_json=is_json)
    if is_json:
        output.json({"deleted": service})
    else:
        output.line(f"service {service} is deleted")


def _path(service: str) -> str:
    """Raises MalformedMessageError for what is no id: in a path it would be something else."""
    try:
        return f"/api/services/{StreamId.parse(service)}"
    except MalformedMessageError as error:
        raise MalformedMessageError(
            f"{service!r} is no id of a service; `syncline service list` shows them"
        ) from error


def _print(output: Output, facts: dict[str, Any]) -> None:
    if output.is_json:
        output.json(facts)
    else:
        output.facts("service", facts)


def _shown(value: object) -> object:
    return "" if value is None else value
