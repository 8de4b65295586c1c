"""`python -m bench.queues`: what messages, services and connections cost a router over SMP."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.queues import idle, messages, services
from bench.queues.plan import PLANS
from bench.queues.setting import Setting
from bench.support.arguments import DATA_FOLDER, add_folder, add_rounds, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "messages": messages.measure,
    "services": services.measure,
    "idle": idle.measure,
}


def arguments() -> argparse.Namespace:
    parser = parser_of("queues", __doc__, PARTS, PLANS)
    add_rounds(parser, "3, quick: 1")
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
        screen.print("[yellow]Smaller sets and fewer rounds than the full bench: a first look.[/]")
    folder = asked.folder or Path(tempfile.gettempdir())
    figures: list[Figure] = []
    with screen.status("starting") as status:
        setting = Setting(plan, folder, screen, status)
        for name in asked.only or PARTS:
            figures += PARTS[name](setting)
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("queues", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
