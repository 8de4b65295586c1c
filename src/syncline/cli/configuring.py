"""`syncline config`, and how the verbs find their settings."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from syncline.cli.output import JsonFlag, Output
from syncline.errors import ConfigError
from syncline.server.config import DEFAULT_FILE, FILE_VARIABLE, Config, load
from syncline.server.settings import SETTINGS, Setting, Value

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help=f"TOML file; {DEFAULT_FILE} if it is there.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; may repeat.")
]

_HIDDEN = "(set, not shown)"


def effective_config(file: Path | None, flags: dict[str, str], sets: list[str] | None) -> Config:
    """Put the settings together from where this process finds them. Raises ConfigError."""
    flags = dict(flags)
    for pair in sets or []:
        key, is_pair, value = pair.partition("=")
        if not is_pair:
            raise ConfigError(f"--set {pair} is no setting; write --set KEY=VALUE")
        flags[key.strip()] = value
    named = file or (Path(os.environ[FILE_VARIABLE]) if FILE_VARIABLE in os.environ else None)
    path = named or Path(DEFAULT_FILE)
    text = None
    if named is not None or path.exists():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the config file {path} cannot be read; check its name") from error
    return load(str(path), text, os.environ, flags)


def config(
    file: ConfigOption = None,
    sets: SetOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is good.")] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a config file.")] = False,
    is_json: JsonFlag = False,
) -> None:
    """Print every setting, its value, and where that came from."""
    effective = effective_config(file, {}, sets)
    output = Output(is_json=is_json)
    if check:
        if is_json:
            output.json({"good": True})
        else:
            output.line("the configuration is good")
    elif is_json:
        output.json([_facts(effective, setting) for setting in SETTINGS.values()])
    elif toml:
        output.line(_as_toml(effective))
    else:
        rows = [
            (
                setting.key,
                _shown(effective, setting),
                str(effective.origins[setting.key]),
                setting.about,
            )
            for setting in SETTINGS.values()
        ]
        output.table("settings", ["setting", "value", "origin", "what for"], rows)


def _shown(effective: Config, setting: Setting) -> str:
    value = effective.value(setting.key)
    if setting.is_secret:
        return _HIDDEN if value else ""
    return _toml_value(value) if isinstance(value, bool | tuple) else str(value)


def _facts(effective: Config, setting: Setting) -> dict[str, object]:
    value = effective.value(setting.key)
    return {
        "key": setting.key,
        "value": _shown(effective, setting) if setting.is_secret else value,
        "origin": str(effective.origins[setting.key]),
        "default": setting.default,
        "variable": setting.variable,
        "about": setting.about,
    }


def _as_toml(effective: Config) -> str:
    lines: list[str] = []
    section = ""
    for setting in SETTINGS.values():
        found, _, key = setting.key.partition(".")
        if found != section:
            section = found
            lines += ["", f"[{section}]"]
        lines.append(f"# {setting.about}")
        value = "" if setting.is_secret else effective.value(setting.key)
        lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines).strip()


def _toml_value(value: Value) -> str:
    # What JSON writes for a number, a text or a truth value is TOML as well.
    return msgspec.json.encode(value).decode()
