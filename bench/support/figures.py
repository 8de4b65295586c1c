"""Figures with their bars: one table for people, one JSON line for machines."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Bar:
    """`text` is the bar as it was promised; `limit` is held against our value or the ratio."""

    text: str
    limit: float
    direction: Literal["at most", "at least"]
    applies_to: Literal["ours", "ratio"]

    def holds(self, ours: float | None, ratio: float | None) -> bool | None:
        value = ours if self.applies_to == "ours" else ratio
        if value is None:
            return None
        return value <= self.limit if self.direction == "at most" else value >= self.limit


def at_most(text: str, limit: float) -> Bar:
    return Bar(text, limit, "at most", "ours")


def at_most_ratio(text: str, limit: float) -> Bar:
    return Bar(text, limit, "at most", "ratio")


def at_least_ratio(text: str, limit: float) -> Bar:
    return Bar(text, limit, "at least", "ratio")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured line. Whatever could not be measured is None, and `note` says why."""

    name: str
    ours: float | None
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    bar: Bar | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        return None if self.bar is None else self.bar.holds(self.ours, self.ratio)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "ours": _rounded(self.ours),
            "peer": self.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
            "bar": None if self.bar is None else self.bar.text,
            "holds": self.holds,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def as_text(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def figures_table(title: str, figures: Iterable[Figure]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for column in ("figure", "ours", "peer", "its value", "ratio", "bar", "holds", "note"):
        is_number = column in {"ours", "its value", "ratio"}
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for figure in figures:
        holds = figure.holds
        table.add_row(
            figure.name,
            as_text(figure.ours),
            figure.peer or "-",
            as_text(figure.peer_value),
            as_text(figure.ratio),
            figure.bar.text if figure.bar else "-",
            "-" if holds is None else ("[green]yes[/]" if holds else "[red]no[/]"),
            figure.note,
        )
    return table


def values_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for index, column in enumerate(header):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def json_line(bench: str, figures: Iterable[Figure]) -> str:
    """The last line of every bench."""
    return json.dumps({"bench": bench, "figures": [figure.as_json() for figure in figures]})


def console() -> Console:
    """Wide enough for the tables when the output is a file."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=160)
