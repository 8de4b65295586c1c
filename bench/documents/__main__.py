"""`python -m bench.documents`: everything that documents promise, beside other document servers."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.documents import cold_load, fan_out, idle, installing, kill, many, stuck
from bench.documents.plan import PLANS
from bench.documents.servers import SERVERS, Syncline
from bench.documents.setting import Setting
from bench.support.arguments import DATA_FOLDER, add_folder, add_rounds, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "fan-out": fan_out.measure,
    "many": many.measure,
    "idle": idle.measure,
    "cold-load": cold_load.measure,
    "kill": kill.measure,
    "stuck": stuck.measure,
}


def arguments() -> argparse.Namespace:
    parser = parser_of("documents", __doc__, PARTS, PLANS)
    add_rounds(parser, "3, quick: 1")
    add_folder(parser, DATA_FOLDER)
    parser.add_argument(
        "--no-install", action="store_true", help="do not install peers that are missing"
    )
    parser.add_argument(
        "--ours",
        choices=SERVERS,
        default=Syncline.name,
        help="another server in our place, to try the bench itself",
    )
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
    if not asked.no_install:
        installing.install_npm_peers(screen.print)
    screen.print(f"Node.js of the npm peers: {installing.node_version() or 'missing'}.")
    folder = asked.folder or Path(tempfile.gettempdir())
    figures: list[Figure] = []
    with screen.status("starting") as status, tempfile.TemporaryDirectory() as scratch:
        setting = Setting(plan, folder, screen, status, Path(scratch), asked.ours)
        for name in asked.only or PARTS:
            figures += PARTS[name](setting)
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("documents", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
