"""`syncline certificate`: who the router is to SMP clients, and until when."""

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from syncline.certificates import (
    Identity,
    has_identity,
    load_identity,
    open_identity,
    renew_leaf,
    rotate,
    save_identity,
)
from syncline.cli.configuring import ConfigOption, SetOption, effective_config
from syncline.cli.output import JsonFlag, Output
from syncline.errors import ConfigError
from syncline.server.settings import Settings
from syncline.server.smp.addressing import certificate_folder, router_address

app = typer.Typer(help="Show and renew the certificates for SMP.", no_args_is_help=True)

DataOption = Annotated[
    Path | None, typer.Option("--data", "-d", help="The data folder [store.folder].")
]


@app.command("show", epilog="Example: syncline certificate show --data syncline-data")
def show(
    data: DataOption = None,
    file: ConfigOption = None,
    sets: SetOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Print the router's address and until when its certificates are good."""
    settings = _settings(data, file, sets)
    _print(Output(is_json=is_json), settings, _existing(certificate_folder(settings)))


@app.command("make", epilog="Example: syncline certificate make --data syncline-data")
def make(
    data: DataOption = None,
    file: ConfigOption = None,
    sets: SetOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Make the certificates now, if there are none; `serve` does so at its first start."""
    settings = _settings(data, file, sets)
    folder = certificate_folder(settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _print(Output(is_json=is_json), settings, open_identity(folder, datetime.now(UTC)))


@app.command("renew", epilog="Example: syncline certificate renew --data syncline-data")
def renew(
    data: DataOption = None,
    file: ConfigOption = None,
    sets: SetOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Make a new leaf with a new key. The address stays; a router takes it at its next start."""
    settings = _settings(data, file, sets)
    folder = certificate_folder(settings)
    renewed = renew_leaf(_existing(folder), datetime.now(UTC))
    save_identity(folder, renewed)
    _print(Output(is_json=is_json), settings, renewed)


@app.command("rotate", epilog="Example: syncline certificate rotate --data syncline-data --yes")
def rotate_identity(
    data: DataOption = None,
    is_sure: Annotated[
        bool, typer.Option("--yes", help="The router gets another address; do it.")
    ] = False,
    file: ConfigOption = None,
    sets: SetOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Make everything new: clients that know the old address will not find this router."""
    if not is_sure:
        raise ConfigError(
            "with a new identity the router has another address, and every client must be told; "
            "say --yes to do it"
        )
    settings = _settings(data, file, sets)
    folder = certificate_folder(settings)
    rotated = rotate(_existing(folder), datetime.now(UTC))
    save_identity(folder, rotated)
    _print(Output(is_json=is_json), settings, rotated)


def _settings(data: Path | None, file: Path | None, sets: list[str] | None) -> Settings:
    flags = {} if data is None else {"store.folder": str(data)}
    return effective_config(file, flags, sets).settings


def _existing(folder: Path) -> Identity:
    if not has_identity(folder):
        raise ConfigError(
            f"{folder} holds no certificates; `syncline serve` makes them at its first start, "
            "`syncline certificate make` makes them now"
        )
    return load_identity(folder)


def _print(output: Output, settings: Settings, identity: Identity) -> None:
    facts = {
        "address": str(router_address(settings, identity.fingerprint, settings.smp_port)),
        "fingerprint": base64.urlsafe_b64encode(identity.fingerprint).decode(),
        "folder": str(certificate_folder(settings)),
        "leaf_until": identity.leaf_until.isoformat(),
        "has_ca_key": identity.ca_key is not None,
    }
    if output.is_json:
        output.json(facts)
    else:
        output.facts("the router's identity", facts)
