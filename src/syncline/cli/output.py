"""What the verbs print: tables for people, JSON for programs, progress on standard error.

With `--json` a verb prints one JSON value, or one per line where there is no end (`tail`).
"""

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Output:
    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        # Words such as `:key:` are text of somebody's, no pictures.
        self._console = Console(highlight=False, soft_wrap=True, emoji=False)

    def json(self, value: object) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.flush()

    def line(self, text: str = "", style: str = "") -> None:
        """Text as it is: nothing in it is taken for a style."""
        self._console.print(escape(text), style=style)

    def plain(self, text: str) -> None:
        """A long text, as it is and at once."""
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Beside the output: on standard error, and for people only."""
        if not self.is_json:
            Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(escape(text))

    def warn(self, text: str) -> None:
        """As `note`, and for programs too: what they were given is not all of it."""
        if self.is_json:
            sys.stderr.write(msgspec.json.encode({"warning": text}).decode() + "\n")
        self.note(text)

    def facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Names and values, one pair a line."""
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, value in facts.items():
            table.add_row(escape(name), escape(_shown(name, value)))
        self._console.print(table)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        self._console.print(table)

    @contextmanager
    def progress(self, what: str, total_bytes: int | None) -> Generator["Bar"]:
        """A bar while something takes long; silent where nobody looks."""
        sizes = (DownloadColumn(), TransferSpeedColumn())
        with self._bar(what, total_bytes, sizes) as bar:
            yield bar

    @contextmanager
    def count_progress(self, what: str, total: int | None) -> Generator["Bar"]:
        """The same for things that are counted."""
        with self._bar(what, total, (MofNCompleteColumn(),)) as bar:
            yield bar

    @contextmanager
    def _bar(
        self, what: str, total: int | None, columns: Sequence[ProgressColumn]
    ) -> Generator["Bar"]:
        console = Console(stderr=True)
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=self.is_json or not console.is_terminal,
        ) as shown:
            yield Bar(shown, what, total)


class Bar:
    def __init__(self, progress: Progress, what: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def show(self, done: int, total: int) -> None:
        """Where it stands, for what tells that by itself."""
        self._progress.update(self._task, completed=done, total=total)

    def run_out(self, steps: Iterable[int]) -> None:
        """Go through all of `steps`, each the bytes it dealt with."""
        for byte_count in steps:
            self.advance(byte_count)


def printable(json_text: str) -> str:
    """The same JSON without any character that a terminal might obey."""
    if json_text.isprintable():
        return json_text
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in json_text
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def bytes_text(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_BYTE_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_BYTE_UNITS[unit]}"


def _shown(name: str, value: object) -> str:
    if name.endswith("bytes") and isinstance(value, int):
        return f"{bytes_text(value)} ({value})"
    return str(value)
