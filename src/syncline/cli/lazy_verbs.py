"""Verbs that are imported when they are used, so that nobody waits for what others need.

A group with such verbs knows of each its name, its help and where it is. That is enough for its own
help; the verb itself comes when it is called, or when its own help is asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


@dataclass(frozen=True, slots=True)
class Verb:
    """`place`: module and name, with a colon between them, of a function or a typer app."""

    place: str
    # As its own help begins.
    about: str


class _Loading(Mapping[str, Any]):
    """Commands by name, each made when it is looked at."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs

    def __getitem__(self, name: str) -> Any:
        return _loaded(name, self._verbs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


def _loaded(name: str, verb: Verb) -> Any:
    module, _, attribute = verb.place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        command: Any = get_group(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        command = get_command(alone)
    command.name = name
    return command


def lazy_group(verbs: Mapping[str, Verb]) -> type[TyperGroup]:
    """The class of a group with these verbs, for `typer.Typer(cls=…)`."""
    short: dict[str, Any] = {
        name: TyperCommand(name, help=verb.about) for name, verb in verbs.items()
    }

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            # It is only ever looked at; typer promises to itself that it could change it as well.
            self.commands: Any = _Loading(verbs)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            whole, self.commands = self.commands, short
            try:
                super().format_help(ctx, formatter)
            finally:
                self.commands = whole

    return LazyGroup
