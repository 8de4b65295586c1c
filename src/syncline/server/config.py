"""Settings of the router: defaults, a TOML file, the environment, flags; the later one wins.

A setting has one name, `section.key`. In the file it stands as `key` under `[section]`, in the
environment as `SYNCLINE_SECTION_KEY`, as a flag in `--set section.key=value` (the common ones have
a flag of their own). Unknown names are errors, and every value knows where it came from.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from syncline.errors import ConfigError
from syncline.server.origins import ANY_ORIGIN, SAME_ORIGIN, is_loopback, is_origin
from syncline.server.settings import ENVIRONMENT_PREFIX, SETTINGS, Setting, Settings, Value

# Names the file; the only variable with the prefix that is no setting.
FILE_VARIABLE = "SYNCLINE_CONFIG"
DEFAULT_FILE = "syncline.toml"
TOKEN_CHARACTERS_MIN = 16

_BY_VARIABLE = {known.variable: known for known in SETTINGS.values()}
_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in SETTINGS))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Config:
    settings: Settings
    origins: Mapping[str, Origin]

    def value(self, key: str) -> Value:
        return cast(Value, getattr(self.settings, key.replace(".", "_")))


def load(
    file_name: str | None,
    file_text: str | None,
    variables: Mapping[str, str],
    flags: Mapping[str, str],
) -> Config:
    """Put the settings together; `flags` are by key.

    Raises ConfigError for what is unknown, of the wrong type or out of bounds.
    """
    values: dict[str, Value] = {key: known.default for key, known in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, Origin("default"))
    found = [
        *_from_file(file_name or DEFAULT_FILE, file_text or ""),
        *_from_environment(variables),
        *_from_flags(flags),
    ]
    for known, value, origin in found:
        values[known.key] = _checked(known, value, origin)
        origins[known.key] = origin
    settings = Settings(**cast(Any, {key.replace(".", "_"): values[key] for key in values}))
    _check_together(settings)
    return Config(settings, origins)


_Found = list[tuple[Setting, object, Origin]]


def _from_file(name: str, text: str) -> _Found:
    origin = Origin("file", name)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}; correct that line") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} has a number of thousands of digits, or lists in lists by the hundred; "
            "no setting is like that"
        ) from error
    found: _Found = []
    for section, keys in content.items():
        if section not in _SECTIONS:
            raise ConfigError(
                f"{name} has an unknown section [{section}]{_nearest(section, _SECTIONS)}"
            )
        if not isinstance(keys, dict):
            raise ConfigError(f"{name}: {section} is a section; write [{section}] above its keys")
        for key, value in cast(dict[str, object], keys).items():
            found.append((_known(f"{section}.{key}", f"in {name}"), value, origin))
    return found


def _from_environment(variables: Mapping[str, str]) -> _Found:
    found: _Found = []
    for variable, value in sorted(variables.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE:
            continue
        known = _BY_VARIABLE.get(variable)
        if known is None:
            raise ConfigError(
                f"the environment has an unknown setting {variable}"
                f"{_nearest(variable, (*_BY_VARIABLE, FILE_VARIABLE))}"
            )
        found.append((known, _parsed(known, value, variable), Origin("environment", variable)))
    return found


def _from_flags(flags: Mapping[str, str]) -> _Found:
    found: _Found = []
    for key, value in flags.items():
        known = _known(key, "among the flags")
        found.append((known, _parsed(known, value, key), Origin("flag", key)))
    return found


def _known(key: str, where: str) -> Setting:
    known = SETTINGS.get(key)
    if known is None:
        raise ConfigError(f"{where} is an unknown setting {key}{_nearest(key, tuple(SETTINGS))}")
    return known


def _nearest(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"; did you mean {near[0]}? `syncline config` lists them all"


def _parsed(known: Setting, text: str, where: str) -> Value:
    """Read the text of a variable or flag as what the setting is."""
    if known.type is bool:
        word = text.strip().lower()
        if word not in {"true", "false", "1", "0", "yes", "no"}:
            raise ConfigError(f"{where} is {text!r}; write true or false")
        return word in {"true", "1", "yes"}
    if known.type is int:
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"{where} is {text!r}; write a whole number") from error
    if known.type is tuple:
        return tuple(word for word in (part.strip() for part in text.split(",")) if word)
    return text


_WANTED: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    tuple: "a list of texts",
}


def _checked(known: Setting, value: object, origin: Origin) -> Value:
    checked = _as_value(value)
    # A bool is an int to Python, and never meant as one here.
    if checked is None or type(checked) is not known.type:
        # What a secret was mistaken for may still be the secret.
        shown = "" if known.is_secret else f", not {value!r}"
        raise ConfigError(f"{known.key} ({origin}) must be {_WANTED[known.type]}{shown}")
    if not all(map(_is_text, checked if isinstance(checked, tuple) else (checked,))):
        raise ConfigError(f"{known.key} ({origin}) is not UTF-8 or has a NUL; write plain text")
    if known.choices and checked not in known.choices:
        raise ConfigError(
            f"{known.key} ({origin}) is {value!r}; choose one of {', '.join(known.choices)}"
        )
    if isinstance(checked, int) and known.type is int and not known.low <= checked <= known.high:
        raise ConfigError(
            f"{known.key} ({origin}) is {checked}; it must be between {known.low} and {known.high}"
        )
    return checked


def _as_value(value: object) -> Value | None:
    """None for what no setting can be."""
    if isinstance(value, str | int | bool):
        return value
    if not isinstance(value, list | tuple):
        return None
    words = [word for word in cast(list[object], value) if isinstance(word, str)]
    return tuple(words) if len(words) == len(cast(list[object], value)) else None


def _is_text(value: str | int) -> bool:
    """Whether it can be a name or be shown; a number can."""
    if isinstance(value, int):
        return True
    # Bytes of the environment that are not UTF-8 come as halves of characters.
    return "\0" not in value and not any("\ud800" <= each <= "\udfff" for each in value)


def _check_together(settings: Settings) -> None:
    if not settings.store_folder:
        raise ConfigError("store.folder is empty; name the folder that holds the data")
    if settings.http_token and settings.http_token_file:
        raise ConfigError("http.token and http.token_file are both set; keep one of them")
    if settings.http_token:
        check_token(settings.http_token, "http.token")
    if settings.http_message_bytes_max > settings.http_body_bytes_max:
        raise ConfigError(
            "http.message_bytes_max is above http.body_bytes_max; a message must fit a request"
        )
    _check_documents(settings)
    if is_loopback(settings.http_host):
        return
    if not settings.http_allow_remote:
        raise ConfigError(
            f"http.host {settings.http_host} can be reached from other machines; "
            "set http.allow_remote and a token, or listen on 127.0.0.1"
        )
    if not settings.http_token and not settings.http_token_file:
        raise ConfigError(
            f"http.host {settings.http_host} can be reached from other machines and no token is "
            "set; set http.token or http.token_file"
        )
    if settings.documents_enabled and not settings.has_token_keys:
        raise ConfigError(
            f"http.host {settings.http_host} can be reached from other machines and documents are "
            "open to all; set documents.token_key or documents.token_key_files, or turn them off "
            "with documents.enabled=false"
        )


def _check_documents(settings: Settings) -> None:
    for origin in settings.websocket_origins:
        if origin not in {SAME_ORIGIN, ANY_ORIGIN} and not is_origin(origin):
            raise ConfigError(
                f"websocket.origins has {origin!r}; write {SAME_ORIGIN}, {ANY_ORIGIN}, or an "
                "origin such as https://app.example"
            )
    if ANY_ORIGIN in settings.websocket_origins and not settings.has_token_keys:
        raise ConfigError(
            "websocket.origins allows every page and documents are open to all; "
            "set documents.token_key, or name the origins"
        )


def check_token(token: str, where: str) -> None:
    """Raises ConfigError for a token that can be guessed or cannot be sent."""
    is_sendable = token.isascii() and token.isprintable() and " " not in token
    if len(token) < TOKEN_CHARACTERS_MIN or not is_sendable:
        raise ConfigError(
            f"{where} needs at least {TOKEN_CHARACTERS_MIN} printable ASCII characters "
            "without spaces"
        )
