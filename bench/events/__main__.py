"""`python -m bench.events`: what it costs a router to note what it handed to whom."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.events import documents, queues
from bench.events.plan import PLANS
from bench.events.setting import Setting
from bench.support.arguments import DATA_FOLDER, add_folder, add_rounds, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.processes import BenchError

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "queues": queues.measure,
    "documents": documents.measure,
}


def arguments() -> argparse.Namespace:
    parser = parser_of("events", __doc__, PARTS, PLANS)
    add_rounds(parser, "7, quick: 3")
    add_folder(parser, DATA_FOLDER)
    return checked(parser)


def main() -> int:
    asked = arguments()
    plan = PLANS["quick" if asked.quick else asked.size]
    if asked.rounds is not None:
        plan = replace(plan, round_count=asked.rounds)
    screen = console()
    screen.print(f"Size: {plan.name}, rounds: {plan.round_count}.")
    if plan.name != "full":
        screen.print("[yellow]Shorter and fewer rounds than the full bench: a first look.[/]")
    folder = asked.folder or Path(tempfile.gettempdir())
    figures: list[Figure] = []
    failed_count = 0
    with screen.status("starting") as status:
        setting = Setting(plan, folder, screen, status)
        for name in asked.only or PARTS:
            try:
                figures += PARTS[name](setting)
            except BenchError as error:
                screen.print(f"[red]{name} could not be measured: {error}[/]")
                failed_count += 1
    screen.print(figures_table("Measured", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("events", figures) + "\n")
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
