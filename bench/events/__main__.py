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
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.processes import BenchError

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "queues": queues.measure,
    "documents": documents.measure,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description=__doc__)
    parser.add_argument("--rounds", type=int, help="rounds (7, quick: 3)")
    parser.add_argument("--quick", action="store_true", help="a first look in a few minutes")
    parser.add_argument("--size", choices=PLANS, default="full", help="how much is measured")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; may be given again"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the data goes; choose the disk that matters"
    )
    parser.add_argument("--details", type=Path, help="write every single measurement here, as JSON")
    found = parser.parse_args()
    if found.rounds is not None and found.rounds < 1:
        parser.error("--rounds must be at least 1")
    if found.folder is not None and not found.folder.is_dir():
        parser.error(f"--folder {found.folder} is not a folder")
    return found


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
