"""`python -m bench.log`: everything that the log promises, beside its peers."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.log import backlog, counters, creation, in_process, restart, sockets
from bench.log.plan import PLANS
from bench.log.setting import Setting
from bench.support.arguments import DATA_FOLDER, add_folder, add_rounds, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.packages import install_missing
from bench.support.processes import BenchError

SECTIONS: dict[str, Callable[[Setting], list[Figure]]] = {
    "counters": counters.measure,
    "in-process": in_process.measure,
    "socket": sockets.measure,
    "backlog": backlog.measure,
    "restart": restart.measure,
    "creation": creation.measure,
}


# What is run, and the package that has it.
PROGRAMS = {
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "mkfs.ext4": "e2fsprogs",
}


def arguments() -> argparse.Namespace:
    parser = parser_of("log", __doc__, SECTIONS, PLANS)
    add_rounds(parser, "5, quick: 1")
    add_folder(parser, DATA_FOLDER)
    parser.add_argument(
        "--no-install", action="store_true", help="do not install peers that are missing"
    )
    return checked(parser)


def main() -> int:
    asked = arguments()
    plan = PLANS["quick" if asked.quick else asked.size]
    if asked.rounds is not None:
        plan = replace(plan, round_count=asked.rounds, restart_round_count=asked.rounds)
    screen = console()
    screen.print(f"Size: {plan.name}, rounds: {plan.round_count}.")
    if plan.name != "full":
        screen.print("[yellow]Smaller sets and fewer rounds than the full bench: a first look.[/]")
    if not asked.no_install:
        install_missing(PROGRAMS, screen.print)
    folder = asked.folder or Path(tempfile.gettempdir())
    figures: list[Figure] = []
    with screen.status("starting") as status:
        setting = Setting(plan, folder, screen, status)
        for name in asked.only or SECTIONS:
            try:
                figures += SECTIONS[name](setting)
            except BenchError as error:
                screen.print(f"[red]{name} could not be measured: {error}[/]")
                return 1
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("log", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
